//! The sliding window and the sliding log against a plain list of admissions, and their rules one by one.

use crate::rate::alike::INHERITED;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, Cost, Inherit, LimiterExt, ManualClock, Permit, SlidingLog, SlidingWindow, WindowError};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);
const TOKENS: Cost = Cost::new("tokens");
/// Nanoseconds: five segments.
const LENGTH: u64 = 100;
const SEGMENT: u64 = 20;

#[derive(Clone, Copy, Debug)]
enum Op {
    Advance(u64),
    Take(u64),
    UpTo(u64),
    Force(u64),
    Reserve(u64),
    Cancel(usize),
    Settle(usize, u64),
    Limit(u64),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0u64..60).prop_map(Op::Advance),
        3 => (0u64..7).prop_map(Op::Take),
        1 => (0u64..7).prop_map(Op::UpTo),
        1 => (0u64..4).prop_map(Op::Force),
        3 => (1u64..7).prop_map(Op::Reserve),
        2 => (0usize..6).prop_map(Op::Cancel),
        2 => (0usize..6, 0u64..9).prop_map(|(index, actual)| Op::Settle(index, actual)),
        1 => (0u64..12).prop_map(Op::Limit),
        1 => Just(Op::Reset),
    ]
}

/// Admissions, by the instant at which they leave the window.
#[derive(Default)]
struct List {
    entries: Vec<(u64, u64)>,
}

impl List {
    fn held(&self, now: u64) -> u64 {
        let inside = self.entries.iter().filter(|&&(leaves, _)| leaves > now);
        inside.map(|&(_, n)| n).sum()
    }

    /// When at most `room` are left in the window.
    fn wait(&self, now: u64, room: u64) -> Duration {
        let mut at = now;
        while self.held(at) > room {
            let next = self
                .entries
                .iter()
                .map(|&(leaves, _)| leaves)
                .filter(|&leaves| leaves > at);
            at = next.min().unwrap();
        }
        Duration::from_nanos(at - now)
    }
}

macro_rules! against_a_list {
    ($name:ident, $ty:ty, $make:expr, $leaves:expr) => {
        proptest! {
            #![proptest_config(crate::cases(2_000))]
            #[test]
            fn $name(ops in prop::collection::vec(op(), 1..80), limit in 0u64..12) {
                let (clock, mut limit) = (ManualClock::new(), limit);
                let window: Arc<$ty> = Arc::new($make(limit, &clock));
                let gate = Arc::clone(&window).per(TOKENS);
                let leaves: fn(u64) -> u64 = $leaves;
                let mut list = List::default();
                let mut held: Vec<(Permit<_>, usize)> = Vec::new();
                let mut now = 0;
                for op in ops {
                    let count = list.held(now);
                    prop_assert_eq!(window.available(), limit.saturating_sub(count));
                    prop_assert_eq!(window.debt(), count.saturating_sub(limit));
                    prop_assert_eq!(window.time_until_full(), Some(list.wait(now, 0)));
                    match op {
                        Op::Advance(step) => {
                            now += step;
                            clock.advance(Duration::from_nanos(step));
                        }
                        Op::Take(n) => {
                            let wait = limit.checked_sub(n).map(|room| list.wait(now, room));
                            let wait = if n == 0 { Some(Duration::ZERO) } else { wait };
                            prop_assert_eq!(window.time_until(n), wait);
                            match window.try_acquire(n) {
                                Ok(()) => list.entries.push((leaves(now), n)),
                                Err(refused) => prop_assert_eq!(refused.retry_after(), wait),
                            }
                            prop_assert!(n == 0 || list.held(now) == count || count + n <= limit);
                            prop_assert!(count + n > limit || list.held(now) == count + n);
                        }
                        Op::UpTo(n) => {
                            let there = n.min(limit.saturating_sub(count));
                            prop_assert_eq!(window.acquire_up_to(n), there);
                            list.entries.push((leaves(now), there));
                        }
                        Op::Force(n) => {
                            window.force_acquire(n);
                            list.entries.push((leaves(now), n));
                        }
                        Op::Reserve(n) => if let Ok(permit) = gate.try_admit(Ask::one().cost(TOKENS, n)) {
                            held.push((permit, list.entries.len()));
                            list.entries.push((leaves(now), n));
                        },
                        Op::Cancel(index) => if index < held.len() {
                            // Settled to nothing, as a cancel does.
                            let (mut permit, entry) = held.remove(index);
                            permit.settle(TOKENS, 0).unwrap();
                            list.entries[entry].1 = 0;
                        },
                        // An admission settled to nothing is no entry any more; that has a test of its own.
                        Op::Settle(index, actual) => if index < held.len() && actual > 0 {
                            let (permit, entry) = &mut held[index];
                            permit.settle(TOKENS, actual).unwrap();
                            list.entries[*entry].1 = actual;
                        },
                        Op::Limit(new) => {
                            window.set_limit(new, Inherit::Additive);
                            limit = new;
                        }
                        Op::Reset => {
                            window.reset();
                            list.entries.clear();
                            held.clear();
                        }
                    }
                }
            }
        }
    };
}

against_a_list!(
    the_log_is_the_list,
    SlidingLog,
    |limit, clock: &ManualClock| SlidingLog::new(limit, Duration::from_nanos(LENGTH)).unwrap().on(clock),
    |at| at + LENGTH
);
// Until the last instant of its segment lies a whole window back.
against_a_list!(
    the_window_is_the_list_by_segments,
    SlidingWindow,
    |limit, clock: &ManualClock| {
        let window = SlidingWindow::new(limit, Duration::from_nanos(LENGTH)).unwrap();
        window.segments((LENGTH / SEGMENT) as usize).unwrap().on(clock)
    },
    |at| (at / SEGMENT + 1) * SEGMENT + LENGTH
);

macro_rules! rules {
    ($module:ident, $ty:ty) => {
        mod $module {
            use super::*;

            fn window(clock: &ManualClock, limit: u64) -> $ty {
                <$ty>::new(limit, SECOND).unwrap().on(clock)
            }

            /// Rows of (taken of ten, rule, new limit, room after, taken since that still counts for a raise to 30).
            #[test]
            fn a_changed_limit_follows_its_inherit_rule() {
                let further = [(10, Inherit::Additive, 0, 0), (10, Inherit::Proportional, 0, 0)];
                for (taken, rule, limit, after) in INHERITED.into_iter().chain(further) {
                    let counts = match rule {
                        Inherit::Additive => taken,
                        _ => limit - after,
                    };
                    let clock = ManualClock::new();
                    let window = window(&clock, 10);
                    window.try_acquire(taken).unwrap();
                    window.set_limit(limit, rule);
                    assert_eq!(
                        window.available(),
                        after,
                        "{taken} taken, {rule:?}, limit {limit}"
                    );
                    window.set_limit(30, Inherit::Additive);
                    // Forgiven charges come back as far as the limit stays within its old value.
                    assert!(
                        (30 - counts.max(taken)..=30 - counts).contains(&window.available()),
                        "{taken} taken, {rule:?}, limit {limit}"
                    );
                    clock.advance(SECOND * 2);
                    assert_eq!(window.available(), 30, "what counts leaves with its window");
                }
            }

            #[test]
            fn forgiven_charges_are_not_refunded() {
                let clock = ManualClock::new();
                let window = window(&clock, 10);
                let held = window.reserve(6).unwrap();
                window.set_limit(3, Inherit::AsIs);
                window.try_acquire(3).unwrap();
                drop(held);
                assert_eq!(window.available(), 0);
                clock.advance(SECOND * 2);
                let held = window.reserve(3).unwrap();
                window.reset();
                window.try_acquire(3).unwrap();
                drop(held);
                assert_eq!(window.available(), 0);
            }

            #[test]
            fn zero_and_unlimited_have_names() {
                let clock = ManualClock::new();
                let shut = window(&clock, 0);
                shut.try_acquire(0).unwrap();
                assert_eq!(shut.try_acquire(1).unwrap_err().retry_after(), None);
                shut.force_acquire(3);
                assert_eq!((shut.debt(), shut.acquire_up_to(9)), (3, 0));

                let open = window(&clock, <$ty>::UNLIMITED);
                for n in [0, 1, u64::MAX] {
                    open.try_acquire(n).unwrap();
                    open.force_acquire(n);
                    assert_eq!(open.acquire_up_to(n), n);
                }
                let held = open.reserve(3).unwrap();
                assert_eq!(
                    (open.available(), open.time_until_full()),
                    (u64::MAX, Some(Duration::ZERO))
                );
                open.set_limit(4, Inherit::Proportional);
                open.try_acquire(4).unwrap();
                drop(held);
                assert_eq!(open.available(), 0, "what was not counted is not given back");
                open.set_limit(<$ty>::UNLIMITED, Inherit::AsIs);
                open.set_limit(4, Inherit::AsIs);
                assert_eq!(open.available(), 4, "without a limit nothing counts");
                for _ in 0..3 {
                    open.force_acquire(u64::MAX);
                }
                assert!(open.debt() > 1 << 63 && open.time_until(1).is_some());
                clock.advance(SECOND * 2);
                assert_eq!(open.available(), 4);
            }

            #[test]
            fn bad_lengths_are_refused_and_change_nothing() {
                let clock = ManualClock::new();
                let window = window(&clock, 2);
                window.try_acquire(1).unwrap();
                for given in [
                    Duration::ZERO,
                    Duration::from_secs(365 * 86_400) + NANO,
                    Duration::MAX,
                ] {
                    assert_eq!(<$ty>::new(1, given).unwrap_err(), WindowError::Length { given });
                    assert_eq!(window.set_length(given), Err(WindowError::Length { given }));
                }
                assert_eq!((window.length(), window.available()), (SECOND, 1));
                let longest = <$ty>::new(1, Duration::from_secs(365 * 86_400))
                    .unwrap()
                    .on(&clock);
                longest.try_acquire(1).unwrap();
                assert!(longest.time_until(1) >= Some(longest.length()));
            }
        }
    };
}
rules!(log, SlidingLog);
rules!(window, SlidingWindow);

#[test]
fn the_length_of_a_log_changes_at_once() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(2, SECOND).unwrap().on(&clock);
    log.try_acquire(2).unwrap();
    clock.advance(SECOND / 2);
    log.set_length(SECOND * 3).unwrap();
    assert_eq!(log.time_until(1), Some(SECOND * 5 / 2));
    log.set_length(SECOND / 2).unwrap();
    assert_eq!((log.available(), log.length()), (2, SECOND / 2));
}

#[test]
fn a_changed_length_keeps_earlier_admissions() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(2, SECOND).unwrap().segments(10).unwrap().on(&clock);
    let held = window.reserve(1).unwrap();
    clock.advance(SECOND / 2);
    for length in [SECOND * 3, SECOND / 2] {
        window.set_length(length).unwrap();
        assert_eq!(window.available(), 1);
        assert_eq!(
            window.time_until(2),
            Some(length + length / 10),
            "as if it were admitted now"
        );
    }
    drop(held);
    assert_eq!(window.available(), 1);
}

#[test]
fn a_log_of_few_entries_refuses_rather_than_forgets() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(100, SECOND).unwrap().max_entries(3).unwrap().on(&clock);
    for _ in 0..3 {
        log.try_acquire(1).unwrap();
        log.try_acquire(1).unwrap();
        clock.advance(SECOND / 4);
    }
    assert_eq!(
        (log.entries(), log.available()),
        (3, 0),
        "one entry for all of an instant"
    );
    assert_eq!(log.try_acquire(1).unwrap_err().retry_after(), Some(SECOND / 4));
    assert_eq!(log.time_until(98), Some(SECOND / 2));
    // A debt has to be remembered: the newest entry counts as long as it.
    log.force_acquire(5);
    assert_eq!(log.entries(), 3);
    clock.advance(SECOND / 4);
    assert_eq!(log.available(), 100 - 9);
    clock.advance(SECOND * 3 / 4 - NANO);
    assert_eq!(log.available(), 100 - 7);
    clock.advance(NANO);
    assert_eq!(log.available(), 100);
    assert_eq!(
        SlidingLog::new(1, SECOND).unwrap().max_entries(0).unwrap_err(),
        WindowError::Entries { given: 0 }
    );
}

#[test]
fn a_charge_that_was_settled_to_nothing_counts_from_when_it_is_raised() {
    let clock = ManualClock::new();
    let log = Arc::new(SlidingLog::new(10, SECOND).unwrap().on(&clock));
    let gate = Arc::clone(&log).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 0)).unwrap();
    clock.advance(SECOND / 2);
    permit.settle(TOKENS, 4).unwrap();
    clock.advance(SECOND - NANO);
    assert_eq!(log.available(), 6);
    clock.advance(NANO);
    assert_eq!(log.available(), 10);
}
