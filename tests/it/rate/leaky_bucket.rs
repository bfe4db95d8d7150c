//! The leaky bucket against exact rational arithmetic, and its rules one by one.

use crate::rate::alike::{INHERITED, starts};
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Inherit, LeakyBucket, LimiterExt, ManualClock, Quota, QuotaError, Reason};

const TENTH: Duration = Duration::from_millis(100);

fn bucket(clock: &ManualClock, slack: u64) -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).on(clock).slack(slack).unwrap()
}

#[test]
fn admissions_are_an_interval_apart_and_a_pause_earns_the_slack_alone() {
    for slack in [0, 1, 4] {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, slack);
        for pause in [Duration::ZERO, TENTH / 2, TENTH * 3, Duration::from_secs(3_600)] {
            while bucket.try_acquire(1).is_ok() {}
            clock.advance(pause);
            let there = (pause.as_millis() as u64 / 100).min(slack + 1);
            assert_eq!(bucket.available(), there, "after {pause:?}, slack {slack}");
        }
    }
}

#[test]
fn waiters_come_out_evenly_spaced() {
    let clock = ManualClock::new();
    let instants: Vec<_> = (0..20).map(|turn| TENTH * turn).collect();
    assert_eq!(starts(&clock, bucket(&clock, 0), 20), instants);
}

/// Rows of (taken of ten, rule, new slack, room after).
#[test]
fn a_changed_slack_follows_its_inherit_rule() {
    for (taken, rule, limit, after) in INHERITED {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 9);
        bucket.try_acquire(taken).unwrap();
        bucket.set_quota(bucket.quota(), limit - 1, rule).unwrap();
        assert_eq!(bucket.available(), after, "{taken} taken, {rule:?}, limit {limit}");
        bucket
            .set_quota(Quota::per_second(5), limit - 1, Inherit::AsIs)
            .unwrap();
        bucket.try_acquire(after).unwrap();
        assert_eq!(bucket.time_until(1), Some(TENTH * 2), "the new rate");
    }
}

#[test]
fn more_than_the_slack_and_one_never_starts() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 1);
    let refused = bucket.try_acquire(3).unwrap_err();
    assert_eq!((refused.reason(), refused.retry_after()), (Reason::Oversized, None));
    assert_eq!(bucket.time_until(3), None);
}

/// Each wait is rounded up to a nanosecond, and none of these fractions is lost.
#[test]
fn the_eighth_of_seven_a_minute_starts_at_the_minute() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_minute(7)).on(&clock);
    for _ in 0..8 {
        clock.advance(bucket.time_until(1).unwrap());
        bucket.try_acquire(1).unwrap();
    }
    assert_eq!(clock.elapsed(), Duration::from_secs(60));
}

#[test]
fn a_reservation_across_a_change_refunds_its_own_charge() {
    for (rule, given) in [(Inherit::AsIs, 4), (Inherit::Reset, 0)] {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 9);
        let held = bucket.try_admit(4).unwrap();
        bucket.set_quota(Quota::per_second(1), 9, rule).unwrap();
        bucket.try_acquire(6).unwrap();
        let before = bucket.available();
        held.cancel();
        assert_eq!(bucket.available(), before + given, "{rule:?}");
    }
}

#[test]
fn zero_and_unlimited_have_names() {
    let clock = ManualClock::new();
    let stopped = LeakyBucket::new(Quota::zero()).on(&clock);
    let refused = stopped.try_acquire(1).unwrap_err();
    assert_eq!(
        (refused.retry_after(), stopped.available(), stopped.time_until(1)),
        (None, 0, None)
    );
    stopped.try_acquire(0).unwrap();
    stopped.force_acquire(1);
    clock.advance(Duration::from_secs(86_400 * 365));
    assert_eq!(stopped.time_until_full(), None);
    stopped.set_quota(Quota::per_second(10), 0, Inherit::AsIs).unwrap();
    let owed = stopped.try_acquire(1).unwrap_err().retry_after();
    assert_eq!(owed, Some(TENTH * 2), "the debt stays");

    let open = LeakyBucket::new(Quota::unlimited()).on(&clock);
    for n in [0, 1, u64::MAX] {
        open.try_acquire(n).unwrap();
    }
    let held = open.try_admit(5).unwrap();
    assert_eq!((open.available(), open.debt()), (u64::MAX, 0));
    open.set_quota(Quota::per_second(10), 0, Inherit::AsIs).unwrap();
    open.try_acquire(1).unwrap();
    held.cancel();
    assert_eq!(open.available(), 0, "what was not counted is not given back");
    // Its contents when it was opened are gone when it is limited again.
    open.force_acquire(9);
    open.set_quota(Quota::unlimited(), 0, Inherit::AsIs).unwrap();
    open.set_quota(Quota::per_second(10), 0, Inherit::AsIs).unwrap();
    assert_eq!((open.available(), open.debt()), (1, 0));
}

#[test]
fn bad_slacks_are_refused_and_change_nothing() {
    let clock = ManualClock::new();
    for (quota, given) in [
        (Quota::per_second(10), 1 << 40),
        (Quota::per_second(10), u64::MAX),
        (Quota::zero(), 1 << 40),
        (Quota::unlimited(), 1 << 40),
        // 600 years at one a year.
        (Quota::new(1, Duration::from_secs(365 * 86_400)).unwrap(), 600),
    ] {
        let error = LeakyBucket::new(quota).on(&clock).slack(given).unwrap_err();
        let given = given.saturating_add(1);
        assert_eq!(error, QuotaError::Burst { given });
        assert!(error.to_string().contains(&given.to_string()));
    }
    let bucket = bucket(&clock, 600);
    bucket.try_acquire(601).unwrap();
    let slow = Quota::new(1, Duration::from_secs(365 * 86_400)).unwrap();
    assert!(bucket.set_quota(slow, 600, Inherit::Reset).is_err());
    assert!(bucket.set_quota(slow, u64::MAX, Inherit::Reset).is_err());
    assert_eq!(
        (bucket.quota(), bucket.available()),
        (Quota::per_second(10).burst(601), 0)
    );
}

/// Extreme rates, weights and instants: no panic, and the answer of 128-bit arithmetic.
#[test]
fn the_edges_of_the_grid_are_exact() {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    for (count, period) in [
        (1, YEAR),
        (7, YEAR),
        (1, Duration::from_nanos(1)),
        (999_999_937, Duration::from_secs(1)),
    ] {
        let quota = Quota::new(count, period).unwrap().with_burst(1).unwrap();
        for start in [0, 1, 1_000_000_007, u64::MAX / 4] {
            let clock = ManualClock::new();
            clock.advance(Duration::from_nanos(start));
            // A debt of up to two bursts.
            let bucket = LeakyBucket::new(quota).slack(1).unwrap().on(&clock);
            bucket.try_acquire(2).unwrap();
            bucket.force_acquire(3);
            let exact = (4 * period.as_nanos()).div_ceil(u128::from(count));
            // A rate is rounded up to 53 bits.
            let off = exact.abs_diff(bucket.time_until(1).unwrap().as_nanos());
            assert!(off <= exact >> 53, "{quota} from {start}: {off} off");
            for n in [2, 1 << 40, u64::MAX] {
                assert!(bucket.try_acquire(n).is_err());
            }
            bucket.try_acquire(0).unwrap();
            bucket.force_acquire(u64::MAX);
            bucket.force_acquire(u64::MAX);
            let _ = (bucket.debt(), bucket.time_until(1), bucket.time_until_full());
            bucket.reset();
            bucket.try_acquire(1).unwrap();
        }
    }
}

/// Nothing is lost nor gained by a year of odd steps: within one unit of the exact number.
#[test]
fn a_year_does_not_drift() {
    const YEAR: u64 = 365 * 86_400 * 1_000_000_000;
    for (count, seconds) in [
        (1, 86_400),
        (7, 1),
        (700_000_000, 1),
        (999_999_937, 1),
        (86_399, 86_400),
    ] {
        let clock = ManualClock::new();
        let quota = Quota::new(count, Duration::from_secs(seconds)).unwrap();
        // So deep that nothing overflows.
        let most = u128::from(u64::MAX) * u128::from(count) / (u128::from(seconds) * 1_000_000_000);
        let slack = (Quota::MAX_BURST - 1).min(most as u64 - 1);
        let bucket = LeakyBucket::new(quota).slack(slack).unwrap().on(&clock);
        bucket.try_acquire(bucket.available()).unwrap();
        let mut taken: u128 = 0;
        let (mut passed, mut step) = (0u64, 1u64);
        while passed < YEAR {
            step = (step * 7 + 13) % 800_000_000_000 + 1;
            clock.advance(Duration::from_nanos(step.min(YEAR - passed)));
            passed += step.min(YEAR - passed);
            taken += u128::from(bucket.acquire_up_to(u64::MAX));
        }
        let exact = u128::from(YEAR) * u128::from(count) / (u128::from(seconds) * 1_000_000_000);
        assert!(taken.abs_diff(exact) <= 1, "{quota}: {taken}, exactly {exact}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Advance(u64),
    Take(u64),
    UpTo(u64),
    Force(u64),
    Reserve(u64),
    Cancel(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..400).prop_map(Op::Advance),
        2 => (0u64..7).prop_map(Op::Take),
        1 => (0u64..7).prop_map(Op::UpTo),
        1 => (0u64..4).prop_map(Op::Force),
        3 => (1u64..7).prop_map(Op::Reserve),
        4 => (0usize..6).prop_map(Op::Cancel),
    ]
}

/// What a bucket does that never gives back: the history, replayed from the start in whole numbers.
#[derive(Clone, Debug, Default)]
struct Replay {
    /// (instant, units) of all that was taken, in order; cancelled ones have none.
    taken: Vec<(u64, u64)>,
}

impl Replay {
    /// The level at `now` in units of `1/nanos`, at `count` per `nanos`.
    fn level(&self, count: u64, nanos: u64, now: u64) -> u128 {
        let (mut level, mut last) = (0u128, 0);
        for &(at, units) in self.taken.iter().chain(&[(now, 0)]) {
            level = level.saturating_sub(u128::from(at - last) * u128::from(count));
            level += u128::from(units) * u128::from(nanos);
            last = at;
        }
        level
    }
}

proptest! {
    #![proptest_config(crate::cases(1_500))]

    /// Given any takes and no cancel, then each is admitted, refused, and due exactly as the replay says.
    #[test]
    fn it_is_the_replay(
        ops in prop::collection::vec(op(), 1..60), count in 1u64..16, nanos in 1u64..50, slack in 0u64..6,
    ) {
        // A unit takes whole nanoseconds: of others the waits are rounded, and what that is counts.
        let nanos = nanos * count;
        let clock = ManualClock::new();
        let quota = Quota::new(count, Duration::from_nanos(nanos)).unwrap();
        let bucket = LeakyBucket::new(quota).on(&clock).slack(slack).unwrap();
        let size = u128::from((slack + 1) * nanos);
        let mut replay = Replay::default();
        let mut now = 0;
        for op in ops {
            let level = replay.level(count, nanos, now);
            let after = |n: u64| level + u128::from(n * nanos);
            let wait = |n: u64| after(n).saturating_sub(size).div_ceil(u128::from(count));
            prop_assert_eq!(u128::from(bucket.available()), size.saturating_sub(level) / u128::from(nanos));
            prop_assert_eq!(u128::from(bucket.debt()), level.saturating_sub(size).div_ceil(u128::from(nanos)));
            prop_assert_eq!(bucket.time_until_full().unwrap().as_nanos(), level.div_ceil(u128::from(count)));
            match op {
                Op::Advance(step) => {
                    now += step;
                    clock.advance(Duration::from_nanos(step));
                }
                Op::Take(n) | Op::Reserve(n) => match bucket.try_acquire(n) {
                    Ok(()) => {
                        prop_assert!(n == 0 || after(n) <= size);
                        replay.taken.push((now, n));
                    }
                    Err(refused) => {
                        prop_assert!(after(n) > size);
                        let expected = (n <= slack + 1).then(|| wait(n));
                        prop_assert_eq!(refused.retry_after().map(|wait| wait.as_nanos()), expected);
                    }
                },
                Op::UpTo(n) => {
                    let taken = bucket.acquire_up_to(n);
                    prop_assert_eq!(u128::from(taken), u128::from(n).min(size.saturating_sub(level) / u128::from(nanos)));
                    replay.taken.push((now, taken));
                }
                Op::Force(n) => {
                    bucket.force_acquire(n);
                    replay.taken.push((now, n));
                }
                Op::Cancel(_) => {}
            }
        }
    }

    /// Given cancels as well, in any order, then the bucket is never emptier than the history without what was cancelled
    /// makes it; and at the instant of the reservations it is exactly that.
    /// Keeps out go#56924, go#69419.
    #[test]
    fn cancels_in_any_order_never_mint(
        ops in prop::collection::vec(op(), 1..80), count in 1u64..20, nanos in 20u64..50, slack in 0u64..9,
    ) {
        let nanos = nanos * count;
        let clock = ManualClock::new();
        let quota = Quota::new(count, Duration::from_nanos(nanos)).unwrap();
        let bucket = LeakyBucket::new(quota).on(&clock).slack(slack).unwrap();
        let mut replay = Replay::default();
        let mut held = Vec::new();
        let mut now = 0;
        let mut exact = true;
        for op in ops {
            match op {
                Op::Advance(step) => {
                    // A later cancel may be lost by then.
                    exact &= held.is_empty() || step == 0;
                    now += step;
                    clock.advance(Duration::from_nanos(step));
                }
                Op::Take(n) | Op::UpTo(n) => if bucket.try_acquire(n).is_ok() {
                    replay.taken.push((now, n));
                },
                Op::Force(n) => {
                    bucket.force_acquire(n);
                    replay.taken.push((now, n));
                }
                Op::Reserve(n) => if let Ok(reserved) = bucket.try_admit(n) {
                    held.push((reserved, replay.taken.len()));
                    replay.taken.push((now, n));
                },
                Op::Cancel(index) => if index < held.len() {
                    let (reserved, entry) = held.remove(index);
                    reserved.cancel();
                    replay.taken[entry].1 = 0;
                    let without = replay.level(count, nanos, now);
                    let level = bucket.time_until_full().unwrap().as_nanos() * u128::from(count);
                    // To a nanosecond, which is what `time_until_full` rounds up to.
                    prop_assert!(level + u128::from(count) > without, "minted: {level}, not {without}");
                    if exact {
                        prop_assert!(level < without + u128::from(count), "lost: {level}, not {without}");
                    }
                },
            }
        }
    }

    /// In any span admissions that were not cancelled are at most `1 + slack + rate x t`.
    /// Keeps out governor#39.
    #[test]
    fn no_span_exceeds_its_bound(ops in prop::collection::vec(op(), 1..80), slack in 0u64..4) {
        let clock = ManualClock::new();
        let bucket = LeakyBucket::new(Quota::new(1, Duration::from_nanos(100)).unwrap()).on(&clock).slack(slack).unwrap();
        let mut log: Vec<(u64, u64)> = Vec::new();
        let mut held = Vec::new();
        let mut now = 0;
        for op in ops {
            match op {
                Op::Advance(step) => {
                    now += step;
                    clock.advance(Duration::from_nanos(step));
                }
                Op::Reserve(n) => if let Ok(reserved) = bucket.try_admit(n) {
                    held.push((reserved, log.len()));
                    log.push((now, n));
                },
                Op::Cancel(index) => if index < held.len() {
                    let (reserved, entry) = held.remove(index);
                    reserved.cancel();
                    log[entry].1 = 0;
                },
                Op::Take(n) | Op::UpTo(n) | Op::Force(n) => if bucket.try_acquire(n).is_ok() {
                    log.push((now, n));
                },
            }
        }
        for (from, &(start, _)) in log.iter().enumerate() {
            let mut sum = 0;
            for &(at, n) in &log[from..] {
                sum += n;
                prop_assert!(sum <= 1 + slack + (at - start) / 100 , "{sum} from {start} to {at}");
            }
        }
    }
}
