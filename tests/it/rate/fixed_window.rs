//! The fixed window: counts, boundaries and debts against plain lists.

use crate::rate::alike::{WINDOWS, starts};
use program::{Change, Op};
use proptest::prelude::*;
use std::time::{Duration, UNIX_EPOCH};
use tollgate::time::ClockReading;
use tollgate::{Ask, Cost, Demand, FixedWindow, Inherit, Limiter, LimiterExt, ManualClock, RateError, Settlement};

#[path = "../../../fuzz/targets/fixed_window.rs"]
mod program;

const SECOND: Duration = Duration::from_secs(1);
const TOKENS: Cost = Cost::new("tokens");
const NANO: Duration = Duration::from_nanos(1);

fn window(clock: &ManualClock, limit: u64) -> FixedWindow {
    FixedWindow::new(limit, SECOND).unwrap().on(clock)
}

/// The documented edge: twice the limit within one length, across a boundary, and not one more.
#[test]
fn twice_the_limit_passes_across_a_boundary() {
    let clock = ManualClock::new();
    let window = window(&clock, 10);
    clock.advance(SECOND - NANO);
    assert_eq!(window.acquire_up_to(u64::MAX), 10);
    assert_eq!(window.try_acquire(1).unwrap_err().retry_after(), Some(NANO));
    clock.advance(NANO);
    assert_eq!(window.acquire_up_to(u64::MAX), 10);
    clock.advance(SECOND - NANO);
    assert_eq!(window.acquire_up_to(u64::MAX), 0);
}

#[test]
fn boundaries_follow_the_wall_clock_where_asked() {
    let minute = Duration::from_secs(60);
    for (wall, first) in [
        (UNIX_EPOCH + Duration::from_secs(1_000 * 60), minute),
        (
            UNIX_EPOCH + Duration::from_secs(1_000 * 60 + 42),
            Duration::from_secs(18),
        ),
        (UNIX_EPOCH + minute - NANO, NANO),
        (UNIX_EPOCH - NANO, NANO),
        (UNIX_EPOCH - Duration::from_secs(59), Duration::from_secs(59)),
        (UNIX_EPOCH - minute, minute),
    ] {
        // Also on a clock that has not run for as long as the window has.
        for started in [Duration::ZERO, Duration::from_secs(7), minute * 3] {
            let clock = ManualClock::new();
            clock.advance(started);
            clock.set_wall(wall);
            let window = FixedWindow::new(1, minute).unwrap().on(&clock).aligned();
            for wait in [first, minute, minute] {
                window.try_acquire(1).unwrap();
                assert_eq!(window.try_acquire(1).unwrap_err().retry_after(), Some(wait), "{wall:?}");
                clock.advance(wait);
            }
        }
    }
    let now = FixedWindow::new(1, Duration::from_secs(365 * 86_400)).unwrap();
    assert!(now.aligned().time_until_full().is_some());
}

#[test]
fn the_verbs_take_the_stated_amounts() {
    let clock = ManualClock::new();
    let window = window(&clock, 5);
    clock.advance(SECOND / 4);
    assert_eq!(window.acquire_up_to(3), 3);
    assert_eq!((window.available(), window.debt()), (2, 0));
    assert_eq!(
        (window.time_until(2), window.time_until(3)),
        (Some(Duration::ZERO), Some(SECOND * 3 / 4))
    );
    assert_eq!(
        (window.time_until(6), window.time_until_full()),
        (None, Some(SECOND * 3 / 4))
    );
    window.force_acquire(9);
    assert_eq!((window.available(), window.debt()), (0, 7));
    // A debt leaves with the window in which it was taken.
    assert_eq!(window.time_until(5), Some(SECOND * 3 / 4));
    assert_eq!(window.time_until_full(), Some(SECOND * 3 / 4));
    clock.advance(SECOND * 3 / 4);
    assert_eq!((window.available(), window.debt()), (5, 0));
    window.try_acquire(2).unwrap();
    let old = window.try_admit(2).unwrap();
    window.reset();
    assert_eq!(window.available(), 5);
    window.try_acquire(5).unwrap();
    old.cancel();
    assert_eq!(
        window.available(),
        0,
        "what was taken before a reset does not come back"
    );
}

#[test]
fn cancels_are_exact_in_any_order_while_their_window_runs() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let clock = ManualClock::new();
        let window = window(&clock, 10);
        let mut held: Vec<_> = (1..=3).map(|n| window.try_admit(n)).map(Result::ok).collect();
        clock.advance(SECOND - NANO);
        let mut there = 4;
        for index in order {
            held[index].take().unwrap().cancel();
            there += index as u64 + 1;
            assert_eq!(window.available(), there);
        }
        let late = window.try_admit(10).unwrap();
        clock.advance(NANO);
        window.try_acquire(10).unwrap();
        late.cancel();
        assert_eq!(window.available(), 0, "its window has ended");
    }
}

#[test]
fn a_settlement_corrects_the_count() {
    let clock = ManualClock::new();
    let window = std::sync::Arc::new(window(&clock, 100));
    let gate = std::sync::Arc::clone(&window).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 60)).unwrap();
    let mut other = gate.try_admit(Ask::one().cost(TOKENS, 10)).unwrap();
    permit.settle(TOKENS, 20).unwrap();
    assert_eq!(window.available(), 70);
    permit.settle(TOKENS, 130).unwrap();
    assert_eq!((window.available(), window.debt()), (0, 40));
    clock.advance(SECOND);
    window.try_acquire(40).unwrap();
    for permit in [&mut other, &mut permit] {
        for actual in [0, 50] {
            permit.settle(TOKENS, actual).unwrap();
            assert_eq!(window.available(), 60, "its window has ended");
        }
    }
}

/// A settlement upwards charges the window of the admission, and a cancel gives back all of it.
#[test]
fn a_settlement_upwards_refunds_no_later_charge() {
    let clock = ManualClock::new();
    let window = window(&clock, 4);
    let gate = (&window).per(TOKENS);
    let reading = ClockReading::at(&clock, clock.now());
    let ask = Ask::one().cost(TOKENS, 2);
    let mut first = gate.try_reserve(&Demand::new(&ask, &reading)).unwrap();
    window.force_acquire(6);
    gate.settle(&mut first, &Settlement::new(TOKENS, 5));
    assert_eq!(window.debt(), 7);
    gate.cancel(first);
    assert_eq!(window.debt(), 2);
}

/// Rows of (taken of ten, rule, new limit, room after).
#[test]
fn a_changed_limit_follows_its_inherit_rule() {
    for (taken, rule, limit, after) in WINDOWS {
        let clock = ManualClock::new();
        let window = window(&clock, 10);
        window.try_acquire(taken).unwrap();
        window.set_limit(limit, rule);
        assert_eq!(window.available(), after, "{taken} taken, {rule:?}, limit {limit}");
        clock.advance(SECOND);
        assert_eq!(
            window.available(),
            limit,
            "what exceeded the new limit ends with its window"
        );
    }
    let clock = ManualClock::new();
    let window = window(&clock, 10);
    window.force_acquire(13);
    window.set_limit(20, Inherit::AsIs);
    assert_eq!((window.available(), window.debt()), (7, 0), "all that was taken counts");
}

#[test]
fn bad_lengths_are_refused() {
    for given in [Duration::ZERO, Duration::MAX] {
        assert_eq!(FixedWindow::new(1, given).unwrap_err(), RateError::Length { given });
    }
}

#[test]
fn zero_and_unlimited_have_names() {
    let clock = ManualClock::new();
    let shut = window(&clock, 0);
    assert!(shut.try_acquire(0).is_ok());
    assert_eq!(shut.try_acquire(1).unwrap_err().retry_after(), None);
    shut.force_acquire(3);
    assert_eq!((shut.debt(), shut.time_until_full()), (3, Some(SECOND)));
    clock.advance(SECOND);
    assert_eq!(shut.debt(), 0, "it leaves with its window");
    shut.set_limit(2, Inherit::Reset);
    assert!(shut.try_acquire(2).is_ok());

    let open = window(&clock, FixedWindow::UNLIMITED);
    for n in [0, 1, u64::MAX] {
        open.try_acquire(n).unwrap();
        open.force_acquire(n);
    }
    assert_eq!((open.available(), open.debt()), (u64::MAX, 0));
    open.set_limit(2, Inherit::AsIs);
    assert_eq!(open.available(), 2);
    for n in [3, u64::MAX] {
        assert!(open.try_acquire(n).is_err());
    }
    for _ in 0..3 {
        open.force_acquire(u64::MAX);
    }
    assert!(open.debt() > 1 << 63);
    clock.advance(open.time_until(2).unwrap());
    assert_eq!((open.available(), open.debt()), (2, 0));
}

#[test]
fn waiters_fill_one_window_after_the_other() {
    let clock = ManualClock::new();
    assert_eq!(
        starts(&clock, window(&clock, 2), 6),
        [0, 0, 1, 1, 2, 2].map(|turn| SECOND * turn)
    );
}

proptest! {
    #![proptest_config(crate::cases(2_000))]

    /// Given any takes and cancels, then it is a list of counts by window, and every cancel in time is exact.
    #[test]
    fn it_is_a_list_of_counts(ops in crate::ops(1..80, Op::decode), limit in 0u64..12) {
        program::counts(limit, ops);
    }

    /// Given any change of the limit beside admissions, debts, reservations and cancels, then the window counts what its contract
    /// says; and a refused caller is admitted at the instant that its refusal names.
    #[test]
    fn it_counts_by_window_through_any_change(
        ops in crate::ops(1..60, Change::decode), limit in 1u64..9, length in 1u64..90,
    ) {
        program::changes(limit, length, ops);
    }

    /// Given settlements both ways, then each counts in the window of its admission, exactly.
    #[test]
    fn settlements_count_in_the_window_of_the_admission(
        ops in prop::collection::vec((any::<[u8; 3]>().prop_map(Op::decode), 0usize..6, 0u64..12), 1..80),
        limit in 1u64..6,
    ) {
        const LENGTH: u64 = 100;
        let clock = ManualClock::new();
        let window = FixedWindow::new(limit, Duration::from_nanos(LENGTH)).unwrap().on(&clock);
        let gate = (&window).per(TOKENS);
        let mut counts = std::collections::BTreeMap::<u64, u64>::new();
        let mut held = Vec::new();
        for (op, index, actual) in ops {
            let reading = ClockReading::at(&clock, clock.now());
            let now = clock.elapsed().as_nanos() as u64 / LENGTH;
            match op {
                Op::Advance(step) => clock.advance(Duration::from_nanos(step)),
                Op::UpTo(n) => *counts.entry(now).or_default() += window.acquire_up_to(n),
                Op::Reserve(n) => {
                    let ask = Ask::one().cost(TOKENS, n);
                    if let Ok(ticket) = gate.try_reserve(&Demand::new(&ask, &reading)) {
                        *counts.entry(now).or_default() += n;
                        held.push((ticket, n, now));
                    }
                }
                Op::Take(_) if index < held.len() => {
                    let (ticket, charged, at) = &mut held[index];
                    gate.settle(ticket, &Settlement::new(TOKENS, actual));
                    let count = counts.entry(*at).or_default();
                    *count = *count + actual - *charged;
                    *charged = actual;
                }
                Op::Cancel(_) if index < held.len() => {
                    let (ticket, charged, at) = held.remove(index);
                    gate.cancel(ticket);
                    *counts.entry(at).or_default() -= charged;
                }
                Op::Take(_) | Op::Cancel(_) => {}
            }
            let now = clock.elapsed().as_nanos() as u64 / LENGTH;
            let count = counts.get(&now).copied().unwrap_or(0);
            let expected = (limit.saturating_sub(count), count.saturating_sub(limit));
            prop_assert_eq!((window.available(), window.debt()), expected);
        }
    }
}
