//! The token bucket around the start and the end of its axis: an earlier instant is the start, and what has passed beyond the
//! end is not forgotten.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::time::{ClockReading, Instant};
use tollgate::{Ask, Cost, Demand, Inherit, Limiter, LimiterExt, ManualClock, Quota, Settlement, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn bucket(clock: &ManualClock, quota: &str) -> TokenBucket {
    TokenBucket::new(quota.parse().unwrap()).on(clock)
}

fn at(clock: &ManualClock, since_zero: Duration) -> ClockReading {
    ClockReading::at(clock, clock.after(Instant::ZERO, since_zero))
}

/// Takes `n` as of an instant.
fn take_at(bucket: &TokenBucket, clock: &ManualClock, instant: Duration, n: u64) -> bool {
    let (ask, reading) = (Ask::many(n), at(clock, instant));
    bucket.try_reserve(&Demand::new(&ask, &reading)).is_ok()
}

/// Rates whose burst takes more than a lifetime to refill.
const SLOW: [&str; 5] = [
    "1/s burst 17179869184",
    "100/s burst 1099511627776",
    "1/d burst 60000",
    "1/365d burst 150",
    "1/365d burst 580",
];

/// Given a rate so slow that its axis lives for ever, when a caller uses a reading from before the last change, then an empty
/// bucket is empty, and a full one has its remainder: not what there will be at the end of time.
#[test]
fn a_reading_from_before_the_start_is_not_one_from_the_end_of_time() {
    for text in SLOW {
        let quota: Quota = text.parse().unwrap();
        let burst = quota.burst_size();
        for change in [
            |_: &TokenBucket, _| (),
            |bucket: &TokenBucket, quota| {
                bucket.set_quota(quota, Inherit::AsIs);
            },
        ] {
            let clock = ManualClock::new();
            clock.advance(SECOND * 100);
            let bucket = bucket(&clock, text);
            change(&bucket, quota);
            for early in [SECOND * 99, Duration::ZERO, SECOND * 100 - Duration::from_nanos(1)] {
                assert!(take_at(&bucket, &clock, early, 1), "{text}");
                assert_eq!(bucket.available(), burst - 1, "{text}: one was taken");
                bucket.reset();
            }
            bucket.try_acquire(burst).unwrap();
            for early in [SECOND * 99, Duration::ZERO] {
                assert!(!take_at(&bucket, &clock, early, burst), "{text}: a second burst");
                assert!(!take_at(&bucket, &clock, early, 1), "{text}");
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(1_000))]

    /// Given any quota, however slow, when requests come by readings from before the last change as well as after it, then the
    /// verdicts are those of a bucket that is asked by the instant of the change instead.
    #[test]
    fn an_earlier_instant_is_the_start(
        count in 1u64..5, period in prop_oneof![Just(1u64), 1u64..1_000_000, Just(86_400), Just(365 * 86_400)],
        bits in 0u32..41, by_interval: bool, steps in prop::collection::vec((0u64..300, 0u64..6, any::<bool>()), 1..20),
    ) {
        let quota = Quota::new(count, SECOND * period as u32).unwrap();
        let Ok(quota) = quota.with_burst(1 << bits) else { return Ok(()) };
        let quota = if by_interval { quota.by_interval() } else { quota };
        let clock = ManualClock::new();
        let [one, other] = [(); 2].map(|()| TokenBucket::new(quota).on(&clock));
        let mut start = 0;
        for (seconds, share, change) in steps {
            clock.advance(SECOND);
            if change {
                start = clock.elapsed().as_secs();
                for bucket in [&one, &other] {
                    bucket.set_quota(quota, Inherit::AsIs);
                }
            }
            let n = ((1u64 << bits) * share / 4).max(1);
            let now = clock.elapsed().as_secs();
            let asked = seconds % (now + 1);
            prop_assert_eq!(
                take_at(&one, &clock, SECOND * asked as u32, n),
                take_at(&other, &clock, SECOND * asked.max(if by_interval { 0 } else { start }) as u32, n)
            );
            prop_assert_eq!(one.available(), other.available());
        }
    }
}

/// Rows of (quota, shortly before its axis runs out, shortly after it, what comes in between): a bucket is emptied before, and a
/// caller with an early reading takes one as of after it. Then callers with earlier readings find it as empty as it was, and by
/// that one there is the rest of what has come.
#[test]
fn an_axis_that_restarts_has_nothing_for_late_callers() {
    let millis = Duration::from_millis;
    for (quota, before, after, comes) in [
        ("1000000/s burst 1000", millis(4_294_900), millis(4_295_000), 1_000),
        ("60/min burst 60", millis(4_095_000), millis(4_097_000), 2),
        (
            "1000/s burst 5000 by interval",
            millis(281_474_900),
            millis(281_475_000),
            1_000,
        ),
    ] {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, quota);
        clock.advance(before);
        assert!(take_at(&bucket, &clock, before, bucket.quota().burst_size()));
        assert!(take_at(&bucket, &clock, after, 1), "{quota}");
        for late in [before, before - millis(1), before / 2, Duration::ZERO] {
            assert!(!take_at(&bucket, &clock, late, 1), "{quota}: one at {late:?}");
        }
        assert!(take_at(&bucket, &clock, after, comes - 1), "{quota}");
        assert!(!take_at(&bucket, &clock, after, 1), "{quota}");
    }
}

/// Rows of (quota, when its tokens are taken, when the quota changes, to what): the axis has run out in between. All that was
/// taken has come again by then.
#[test]
fn a_change_after_the_axis_has_run_out_forgets_no_refill() {
    for (quota, taken, changed, after) in [
        ("10/d burst 10", DAY * 63 / 10, DAY * 8, "10/d burst 12"),
        ("60/min burst 60", SECOND * 4_090, SECOND * 4_200, "60/min burst 72"),
        ("100/s burst 20", SECOND * 5_242, SECOND * 50_000, "100/s burst 24"),
        ("10/d burst 10 by interval", DAY * 3, YEAR, "10/d burst 12 by interval"),
    ] {
        for (rule, there) in [
            (Inherit::AsIs, [10, 10]),
            (Inherit::Proportional, [12, 10]),
            (Inherit::Reset, [12, 12]),
        ] {
            let clock = ManualClock::new();
            let bucket = bucket(&clock, quota);
            let (old, new): (Quota, Quota) = (quota.parse().unwrap(), after.parse().unwrap());
            clock.advance(taken);
            bucket.try_acquire(old.burst_size()).unwrap();
            // A debt that has been paid for long is none either.
            bucket.force_acquire(old.burst_size() / 2);
            clock.advance(changed - taken);
            bucket.set_quota(new, rule);
            let expected = there[0] * old.burst_size() / 10;
            assert_eq!((bucket.available(), bucket.debt()), (expected, 0), "{quota}, {rule:?}");
        }
    }
}

/// Given a reservation from before the axis ran out, when the quota has changed since, then a cancel gives back nothing that
/// would have overflowed.
#[test]
fn a_cancel_across_the_end_of_an_axis_and_a_change_gives_nothing_twice() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, "60/min burst 60");
    clock.advance(SECOND * 4_090);
    let held = bucket.try_admit(60).unwrap();
    clock.advance(SECOND * 110);
    bucket.set_quota("60/min burst 72".parse().unwrap(), Inherit::AsIs);
    assert_eq!(bucket.available(), 60);
    held.cancel();
    assert_eq!(bucket.available(), 60);
}

/// Given a clock that has come to its last tick, then a bucket that fills by interval has what all intervals have brought.
#[test]
fn at_the_last_tick_of_all_intervals_have_ended() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, "3/s burst 7 by interval");
    bucket.try_acquire(7).unwrap();
    clock.advance(Duration::MAX);
    // Asked first of all, so that no other call has noticed.
    bucket.try_acquire(3).unwrap();
    assert_eq!(bucket.available(), 4);
    bucket.try_acquire(4).unwrap();
    assert!(bucket.try_acquire(1).is_err());
}

/// Given a settlement by a stale reading, then it gives back no more than a cancel would by now, and takers that are stale as well
/// find no more than in any bucket.
#[test]
fn a_stale_settlement_mints_nothing_for_stale_takers() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let bucket = bucket(&clock, "1/s burst 10");
    let gate = (&bucket).per(TOKENS);
    let ask = Ask::one().cost(TOKENS, 10);
    let stale = at(&clock, Duration::ZERO);
    let mut first = gate.try_reserve(&Demand::new(&ask, &stale)).unwrap();
    clock.advance(SECOND * 10);
    bucket.try_acquire(4).unwrap();
    gate.settle(&mut first, &Settlement::new(TOKENS, 0));
    // It has been full since: nothing comes back. Six seconds before there was nothing.
    assert_eq!(bucket.available(), 6);
    assert!(!take_at(&bucket, &clock, SECOND * 4, 1));
    bucket.try_acquire(6).unwrap();
    assert!(bucket.try_acquire(1).is_err());
}

/// As every other rate.
#[test]
fn nothing_is_there_even_in_debt() {
    let clock = ManualClock::new();
    for quota in ["10/s burst 5", "10/s burst 5 by interval", "zero burst 5"] {
        let bucket = bucket(&clock, quota);
        bucket.force_acquire(9);
        assert_eq!(bucket.debt(), 4);
        bucket.try_acquire(0).unwrap();
        bucket.try_admit(0).unwrap().forget();
        assert_eq!(
            (bucket.acquire_up_to(0), bucket.time_until(0)),
            (0, Some(Duration::ZERO))
        );
        assert!(bucket.try_acquire(1).is_err());
        assert_eq!(bucket.debt(), 4, "{quota}");
    }
    // So a request that costs a leg nothing is not refused by that leg's debt.
    const BYTES: Cost = Cost::new("bytes");
    let bytes = bucket(&clock, "10/s burst 5");
    bytes.force_acquire(9);
    let gate = bytes.per(BYTES);
    assert!(gate.try_admit(Ask::one().cost(BYTES, 0)).is_ok());
    assert!(gate.try_admit(Ask::one().cost(BYTES, 1)).is_err());
}

/// Versions of the quota recur after 32,768 changes. A reservation from an earlier round is not taken for a current one, nor for
/// one of a few changes ago.
#[test]
fn a_reservation_held_across_any_round_of_changes_gives_nothing_back() {
    let quotas = [Quota::per_second(1).burst(10), Quota::zero().burst(10)];
    let changes = [32_767, 32_768, 32_773, 65_536, 65_540];
    for (quota, changes) in quotas
        .into_iter()
        .flat_map(|quota| changes.map(|changes| (quota, changes)))
    {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(quota).on(&clock);
        let held = bucket.try_admit(10).unwrap();
        bucket.reset();
        bucket.try_acquire(10).unwrap();
        for _ in 1..changes {
            bucket.set_quota(quota, Inherit::AsIs);
        }
        held.cancel();
        assert_eq!(bucket.available(), 0, "{quota} after {changes} changes");
    }
}

/// A reservation of the latest changes gives back what it took, wherever a round ends.
#[test]
fn the_end_of_a_round_of_changes_takes_nothing_away() {
    let quota = Quota::per_second(1).burst(10);
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(quota).on(&clock);
    for change in 0..32_800 {
        let far = (32_740..32_780).contains(&change);
        if !far {
            bucket.set_quota(quota, Inherit::AsIs);
            continue;
        }
        let held = bucket.try_admit(10).unwrap();
        for _ in 0..change % 4 {
            bucket.set_quota(quota, Inherit::AsIs);
        }
        held.cancel();
        assert_eq!(bucket.available(), 10, "at change {change}");
        bucket.set_quota(quota, Inherit::AsIs);
    }
}
