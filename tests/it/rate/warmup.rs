//! The warm-up against exact integer arithmetic, and its rules one by one.

use crate::rate::alike::starts;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, Cost, Inherit, LimiterExt, ManualClock, Permit, Quota, RateError, Warmup};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn warmup(clock: &ManualClock) -> Warmup {
    Warmup::new(Quota::per_second(2), SECOND * 4).unwrap().on(clock)
}

/// Lets a number of calls go, each as soon as it may.
fn walk(warmup: &Warmup, clock: &ManualClock, n: usize) {
    for _ in 0..n {
        clock.advance(warmup.time_until(1).unwrap());
        warmup.try_acquire(1).unwrap();
    }
    clock.advance(warmup.time_until(1).unwrap());
}

#[test]
fn waiters_are_admitted_at_the_pace_of_the_curve() {
    let clock = ManualClock::new();
    let instants = [0, 1_375, 2_500, 3_375, 4_000, 4_500].map(millis);
    assert_eq!(starts(&clock, warmup(&clock), 6), instants);
}

#[test]
fn idle_time_cools_it_down() {
    let clock = ManualClock::new();
    let warmup = warmup(&clock);
    walk(&warmup, &clock, 8);
    assert_eq!(warmup.interval(), Some(millis(500)));
    // Eight stored in four seconds; from the fourth on it is slower.
    for (idle, interval) in [(2_000, 500), (500, 750), (500, 1_000), (1_000, 1_500), (60_000, 1_500)] {
        clock.advance(millis(idle));
        assert_eq!(warmup.interval(), Some(millis(interval)), "after {idle} more");
    }
    assert_eq!(warmup.time_until_full(), Some(Duration::ZERO), "as cold as it gets");
}

#[test]
fn the_verbs_take_the_stated_amounts() {
    let clock = ManualClock::new();
    let warmup = warmup(&clock);
    assert_eq!(
        (warmup.available(), warmup.time_until(2), warmup.time_until(3)),
        (2, Some(Duration::ZERO), None)
    );
    // Two start at once, and the next call pays for them.
    assert_eq!(warmup.acquire_up_to(5), 2);
    assert_eq!((warmup.available(), warmup.acquire_up_to(5)), (0, 0));
    assert_eq!(warmup.try_acquire(1).unwrap_err().retry_after(), Some(millis(2_500)));
    assert_eq!(
        warmup.time_until_full(),
        Some(millis(3_500)),
        "free, and a second to store two"
    );
    warmup.force_acquire(2);
    assert_eq!(warmup.time_until(1), Some(millis(4_000)));
    warmup.try_acquire(0).unwrap();
    warmup.reset();
    assert_eq!((warmup.available(), warmup.interval()), (2, Some(millis(1_500))));
}

#[test]
fn only_the_latest_is_undone() {
    let clock = ManualClock::new();
    let warmup = warmup(&clock);
    let held = warmup.try_admit(1).unwrap();
    clock.advance(millis(200));
    held.cancel();
    assert_eq!(
        (warmup.time_until(1), warmup.interval()),
        (Some(Duration::ZERO), Some(millis(1_500)))
    );
    let older = warmup.try_admit(1).unwrap();
    warmup.force_acquire(1);
    older.cancel();
    assert_eq!(warmup.time_until(1), Some(millis(2_500)), "its place has been passed");
    let held = warmup.try_admit(0).unwrap();
    held.cancel();
    assert_eq!(warmup.time_until(1), Some(millis(2_500)), "nothing was taken");
}

#[test]
fn a_settlement_corrects_the_latest_and_charges_for_the_others() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let warmup = Arc::new(warmup(&clock));
    let gate = Arc::clone(&warmup).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 2)).unwrap();
    permit.settle(TOKENS, 1).unwrap();
    assert_eq!(warmup.time_until(1), Some(millis(1_375)));
    permit.settle(TOKENS, 4).unwrap();
    assert_eq!(warmup.time_until(1), Some(millis(4_000)));
    permit.settle(TOKENS, 1).unwrap();
    clock.advance(millis(1_375));
    let mut later = gate.try_admit(Ask::one().cost(TOKENS, 1)).unwrap();
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!(
        warmup.time_until(1),
        Some(millis(1_125)),
        "nothing comes back of an earlier one"
    );
    permit.settle(TOKENS, 1).unwrap();
    assert_eq!(warmup.time_until(1), Some(millis(2_000)), "more is charged");
    later.settle(TOKENS, 0).unwrap();
    assert_eq!(warmup.time_until(1), Some(millis(1_125)), "it is still the latest");
}

/// Rows of (taken from cold, rule, new rate, interval after, in ms). At most eight are stored at 2 a second, and
/// sixteen at 4.
#[test]
fn a_changed_rate_follows_its_inherit_rule() {
    for (taken, rule, rate, interval) in [
        // Six are stored, two above the threshold of four; eight is the threshold at 4 a second.
        (2, Inherit::AsIs, 4, 250),
        (2, Inherit::Proportional, 4, 500),
        (2, Inherit::Reset, 4, 750),
        // Four at most at 1 a second, two of them above the threshold.
        (2, Inherit::AsIs, 1, 3_000),
        (2, Inherit::Proportional, 1, 2_000),
        (2, Inherit::Reset, 1, 3_000),
        (8, Inherit::Proportional, 4, 250),
    ] {
        let clock = ManualClock::new();
        let warmup = warmup(&clock);
        walk(&warmup, &clock, taken);
        warmup.set_quota(Quota::per_second(rate), rule).unwrap();
        assert_eq!(
            warmup.interval(),
            Some(millis(interval)),
            "{taken} taken, {rule:?}, {rate}/s"
        );
    }
    let clock = ManualClock::new();
    let warmup = warmup(&clock);
    let held = warmup.try_admit(2).unwrap();
    warmup.set_quota(Quota::per_second(20), Inherit::AsIs).unwrap();
    assert_eq!(
        warmup.time_until(1),
        Some(millis(2_500)),
        "what was admitted is paid for at the old rate"
    );
    held.cancel();
    assert_eq!(warmup.time_until(1), Some(millis(2_500)), "and is not given back");
}

#[test]
fn zero_and_unlimited_have_names() {
    let clock = ManualClock::new();
    let shut = Warmup::new(Quota::zero(), SECOND).unwrap().on(&clock);
    shut.try_acquire(0).unwrap();
    let refused = shut.try_acquire(1).unwrap_err();
    assert_eq!(
        (refused.retry_after(), shut.available(), shut.interval()),
        (None, 0, None)
    );
    shut.force_acquire(3);
    shut.set_quota(Quota::per_second(2), Inherit::AsIs).unwrap();
    assert_eq!(
        (shut.available(), shut.interval()),
        (2, Some(millis(500))),
        "nothing was stored"
    );

    let open = Warmup::new(Quota::unlimited(), SECOND).unwrap().on(&clock);
    for n in [0, 1, u64::MAX] {
        open.try_acquire(n).unwrap();
        open.force_acquire(n);
        assert_eq!(open.acquire_up_to(n), n);
    }
    assert_eq!(
        (open.available(), open.interval(), open.time_until(9)),
        (u64::MAX, None, Some(Duration::ZERO))
    );
}

#[test]
fn bad_numbers_are_refused_and_change_nothing() {
    let quota = Quota::per_second(2);
    for given in [Duration::ZERO, SECOND * 365 * 86_400 + NANO, Duration::MAX] {
        assert_eq!(Warmup::new(quota, given).unwrap_err(), RateError::Length { given });
    }
    for given in [0, 101, u32::MAX] {
        let error = Warmup::new(quota, SECOND).unwrap().cold_factor(given).unwrap_err();
        assert_eq!(error, RateError::ColdFactor { given });
        assert!(error.to_string().contains(&given.to_string()));
    }
    let fast = Quota::per_second(1_000_000_000);
    let period = SECOND * 3;
    assert_eq!(
        Warmup::new(fast, period).unwrap_err(),
        RateError::Permits { quota: fast, period }
    );
    let clock = ManualClock::new();
    let warmup = Warmup::new(quota, period).unwrap().on(&clock);
    warmup.try_acquire(1).unwrap();
    let wait = warmup.time_until(1);
    assert!(warmup.set_quota(fast, Inherit::Reset).is_err());
    assert_eq!((warmup.quota(), warmup.time_until(1)), (quota, wait));
    for cold in [1, 100] {
        let warmup = Warmup::new(quota, SECOND * 4)
            .unwrap()
            .cold_factor(cold)
            .unwrap()
            .on(&clock);
        let exact = millis(500) * cold;
        assert!(
            warmup.interval().unwrap().abs_diff(exact) <= exact / 1_000_000,
            "within 1 ppm"
        );
    }
    // A period so short that nothing is ever stored.
    let bare = Warmup::new(Quota::per_hour(1), NANO).unwrap().on(&clock);
    bare.try_acquire(1).unwrap();
    assert_eq!(bare.time_until(1), Some(SECOND * 3_600));
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Advance(u64),
    Wait,
    Take(u64),
    Force(u64),
    Undo(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0u64..30_000_000).prop_map(Op::Advance),
        3 => Just(Op::Wait),
        4 => (1u64..5).prop_map(Op::Take),
        1 => (1u64..5).prop_map(Op::Force),
        1 => (1u64..5).prop_map(Op::Undo),
    ]
}

proptest! {
    #![proptest_config(crate::cases(1_000))]

    /// Given any takes, when each cost is the area under the curve in whole numbers, then waits are the same to a few
    /// nanoseconds.
    #[test]
    fn it_is_the_area_under_the_curve(
        ops in prop::collection::vec(op(), 1..80), interval in 100_000u64..2_000_000, threshold in 1u64..30,
    ) {
        // With a cold factor of 3 the most is twice the threshold, which takes a period to store: a nanosecond stores
        // the interval's share of a permit, so that what is stored is counted in nanoseconds.
        let (clock, full) = (ManualClock::new(), 2 * threshold * interval);
        let quota = Quota::new(1, Duration::from_nanos(interval)).unwrap().burst(4);
        let warmup = Warmup::new(quota, Duration::from_nanos(full)).unwrap().on(&clock);
        let area = threshold * interval;
        // In `area`ths of a nanosecond.
        let cost = |stored: u64, n: u64| {
            let above = |stored: u64| u128::from(stored.saturating_sub(area));
            let (from, to) = (above(stored), above(stored.saturating_sub(n * interval)));
            u128::from(n * interval) * u128::from(area) + from * from - to * to
        };
        let (mut now, mut free_at, mut stored) = (0u64, 0u128, full);
        for op in ops {
            let current = |now: u64| {
                let free = free_at.div_ceil(area.into()) as u64;
                full.min(stored + now.saturating_sub(free))
            };
            let free = free_at.div_ceil(area.into()) as u64;
            let wait = warmup.time_until(1).unwrap().as_nanos() as u64;
            prop_assert!(wait.abs_diff(free.saturating_sub(now)) <= 400, "{wait}, not {}", free.saturating_sub(now));
            let taken = match op {
                Op::Advance(step) => {
                    now += step;
                    clock.advance(Duration::from_nanos(step));
                    0
                }
                Op::Wait => {
                    now += wait;
                    clock.advance(Duration::from_nanos(wait));
                    0
                }
                Op::Take(n) => {
                    prop_assert_eq!(warmup.try_acquire(n).is_ok(), wait == 0);
                    if wait == 0 { n } else { 0 }
                }
                Op::Force(n) => {
                    warmup.force_acquire(n);
                    n
                }
                Op::Undo(n) => {
                    let _ = warmup.try_admit(n).map(Permit::cancel);
                    0
                }
            };
            if taken > 0 {
                let level = current(now);
                free_at = free_at.max(u128::from(now) * u128::from(area)) + cost(level, taken);
                stored = level.saturating_sub(taken * interval);
            }
        }
    }
}
