//! The token bucket against exact arithmetic.

use crate::rate::alike::INHERITED;
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Inherit, LimiterExt, ManualClock, Quota, Reason, TokenBucket};

const TENTH: Duration = Duration::from_millis(100);

/// Given rates from the slowest to the fastest, when a year passes in steps of many sizes and everything that is there
/// is taken, then what was taken is within one token of the exact rational number: far less than 1 ppm where the year
/// yields a million tokens.
/// Keeps out governor#203, leaky-bucket#35, leaky-bucket#9, leaky-bucket#30.
#[test]
fn a_year_does_not_drift() {
    const YEAR: u64 = 365 * 86_400 * 1_000_000_000;
    for (count, seconds) in [
        (1, 365 * 86_400),
        (7, 1),
        (30_000_000, 1),
        (700_000_000, 1),
        (1_000_000_000, 1),
        (999_999_937, 1),
        (86_399, 86_400),
    ] {
        let period = Duration::from_secs(seconds);
        let quota = Quota::new(count, period).unwrap();
        let burst = Quota::MAX_BURST.min((u128::from(u64::MAX) * u128::from(count) / period.as_nanos()) as u64);
        let quota = quota.with_burst(burst).unwrap();
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(quota).on(&clock);
        bucket.try_acquire(bucket.available()).unwrap();
        let mut taken = 0u128;
        let mut passed = 0u64;
        let mut step = 1u64;
        while passed < YEAR {
            // Never so long that the bucket fills: nothing overflows, so all of it must be there.
            step = (step * 7 + 13) % 800_000_000_000 + 1;
            let next = step.min(YEAR - passed);
            clock.advance(Duration::from_nanos(next));
            passed += next;
            let available = bucket.available();
            bucket.try_acquire(available).unwrap();
            taken += u128::from(available);
        }
        let exact = u128::from(YEAR) * u128::from(count) / period.as_nanos();
        assert!(
            taken.abs_diff(exact) <= 1,
            "{count} per {seconds} s: {taken}, exactly {exact}"
        );
    }
}

/// The table of a published rate limiter's tests: (tenths of a second, tokens before, n, admitted) at ten a second.
#[test]
fn the_published_tables_hold() {
    let table = |burst, rows: &[(u32, u64, u64, bool)]| {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(Quota::per_second(10).burst(burst)).on(&clock);
        for &(tenths, before, n, admitted) in rows {
            clock.advance_to(clock.after(tollgate::Instant::ZERO, TENTH * tenths));
            assert_eq!(bucket.available(), before, "before taking {n} at {tenths}");
            assert_eq!(bucket.try_acquire(n).is_ok(), admitted, "{n} at {tenths}");
        }
    };
    table(
        1,
        &[
            (0, 1, 1, true),
            (0, 0, 1, false),
            (1, 1, 1, true),
            (1, 0, 1, false),
            (2, 1, 2, false),
            (2, 1, 1, true),
            (2, 0, 1, false),
        ],
    );
    table(
        3,
        &[
            (0, 3, 2, true),
            (0, 1, 2, false),
            (0, 1, 1, true),
            (0, 0, 1, false),
            (1, 1, 4, false),
            (2, 2, 1, true),
            (3, 2, 1, true),
            (4, 2, 1, true),
            (4, 1, 1, true),
            (4, 0, 1, false),
            (9, 3, 3, true),
            (9, 0, 0, true),
        ],
    );
    // The clock goes back: it stays at the latest instant instead.
    table(
        3,
        &[
            (1, 3, 1, true),
            (0, 2, 1, true),
            (0, 1, 1, true),
            (0, 0, 1, false),
            (1, 0, 1, false),
            (2, 1, 1, true),
            (2, 0, 1, false),
        ],
    );
}

#[test]
fn a_changed_quota_follows_its_inherit_rule() {
    for (taken, rule, burst, after) in INHERITED {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock);
        bucket.try_acquire(taken).unwrap();
        bucket.set_quota(Quota::per_second(5).burst(burst), rule);
        assert_eq!(bucket.available(), after, "{taken} taken, {rule:?}, burst {burst}");
        bucket.try_acquire(after).unwrap();
        clock.advance(Duration::from_secs(1));
        assert_eq!(bucket.available(), 5.min(burst), "the new rate");
    }
}

#[test]
fn more_than_the_burst_never_fits() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(10).burst(5)).on(&clock);
    for n in [6, u64::MAX] {
        let refused = bucket.try_acquire(n).unwrap_err();
        assert_eq!((refused.reason(), refused.retry_after()), (Reason::Oversized, None));
    }
    assert_eq!(bucket.available(), 5);
}

#[test]
fn a_bucket_that_sat_full_gives_nothing_back() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock);
    let reserved = bucket.try_admit(10).unwrap();
    clock.advance(Duration::from_secs(1));
    bucket.try_acquire(10).unwrap();
    reserved.cancel();
    assert_eq!(
        bucket.available(),
        0,
        "twenty at one instant from a burst of ten otherwise"
    );
}

/// What newer reservations gave back takes nothing from an older one, however much it is.
#[test]
fn a_cancel_after_many_newer_ones_gives_back_all() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(10).burst(700)).on(&clock);
    let oldest = bucket.try_admit(100).unwrap();
    bucket.try_acquire(400).unwrap();
    let old = bucket.try_admit(100).unwrap();
    oldest.cancel();
    let newer = bucket.try_admit(100).unwrap();
    clock.advance(Duration::from_millis(30_100));
    newer.cancel();
    bucket.try_admit(300).unwrap().cancel();
    bucket.try_acquire(100).unwrap();
    for n in [200, 400] {
        bucket.try_admit(n).unwrap().cancel();
    }
    assert_eq!(bucket.available(), 401);
    old.cancel();
    assert_eq!(bucket.available(), 501);
}

#[derive(Clone, Debug)]
enum Op {
    Advance(u64),
    Take(u64),
    Reserve(u64),
    Cancel(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0u64..400).prop_map(Op::Advance),
        (0u64..7).prop_map(Op::Take),
        (1u64..7).prop_map(Op::Reserve),
        (0usize..4).prop_map(Op::Cancel),
    ]
}

/// The tokens missing from a bucket at `now` that is refilled by ten each microsecond, by its log.
fn room(log: &[(u64, u64)], now: u64) -> u64 {
    let (mut missing, mut then) = (0u64, 0);
    for &(at, n) in log {
        missing = missing.saturating_sub((at - then) * 10) + n;
        then = at;
    }
    missing.saturating_sub((now - then) * 10)
}

proptest! {
    #![proptest_config(crate::cases(4_000))]

    /// Given any takes, reservations and cancels, then what stays admitted never exceeds `burst + rate x t` in any span,
    /// and a cancel gives back exactly what was taken, as long as the room before it covers what was refilled and given back since.
    /// Keeps out go#56924, go#69419.
    #[test]
    fn cancels_never_mint_and_are_exact_in_time(ops in prop::collection::vec(op(), 1..80), burst in 1u64..8) {
        const FINE: u64 = 1_000;
        let clock = ManualClock::new();
        // In thousandths of what the operations count in, so that `available` rounds next to nothing away: one of
        // theirs is a thousand tokens and takes 100 us.
        let bucket = TokenBucket::new(Quota::new(10, Duration::from_micros(1)).unwrap().burst(burst * FINE)).on(&clock);
        let mut now = 0u64;
        let (mut exact, mut cancels, mut given) = (0, 0, 0);
        let mut held = Vec::new();
        let mut log: Vec<(u64, u64)> = Vec::new();
        for op in ops {
            match op {
                Op::Advance(micros) => {
                    now += micros;
                    clock.advance(Duration::from_micros(micros));
                }
                Op::Take(n) => if bucket.try_acquire(n * FINE).is_ok() {
                    log.push((now, n * FINE));
                },
                Op::Reserve(n) => if let Ok(reserved) = bucket.try_admit(n * FINE) {
                    let found = (burst - n) * FINE - bucket.available();
                    held.push((reserved, log.len(), (now, found, given), n * FINE));
                    log.push((now, n * FINE));
                },
                Op::Cancel(index) => if index < held.len() {
                    let (reserved, entry, (at, found, given_before), n) = held.remove(index);
                    let before = bucket.available();
                    reserved.cancel();
                    let back = bucket.available() - before;
                    prop_assert!(back <= n);
                    // Until then nothing can have overflowed.
                    if (now - at) * 10 + given - given_before <= found {
                        prop_assert_eq!(back, n);
                        exact += 1;
                    }
                    given += back;
                    cancels += 1;
                    log[entry].1 -= back;
                    if exact == cancels {
                        prop_assert_eq!(bucket.available(), burst * FINE - room(&log, now));
                    }
                },
            }
        }
        for from in 0..log.len() {
            let mut sum = 0;
            for &(at, n) in &log[from..] {
                sum += n;
                let allowed = burst * FINE + (at - log[from].0) * 10 + cancels;
                prop_assert!(sum <= allowed, "{sum} from {} to {at}", log[from].0);
            }
        }
    }

    /// Law 5: refused one nanosecond before the promised instant, admitted exactly at it.
    #[test]
    fn retry_after_is_true_to_the_nanosecond(
        count in 1u64..5_000, seconds in 1u64..100, burst in 1u64..50, start in 0u64..1_000_000_000_000, n in 1u64..50,
    ) {
        let clock = ManualClock::new();
        let quota = Quota::new(count, Duration::from_secs(seconds)).unwrap().burst(burst);
        let bucket = TokenBucket::new(quota).on(&clock);
        clock.advance(Duration::from_nanos(start));
        bucket.try_acquire(burst).unwrap();
        let n = n.min(burst);
        let wait = bucket.try_acquire(n).unwrap_err().retry_after().unwrap();
        clock.advance(wait - Duration::from_nanos(1));
        prop_assert!(bucket.try_acquire(n).is_err());
        clock.advance(Duration::from_nanos(1));
        prop_assert!(bucket.try_acquire(n).is_ok());
    }
}

/// Eight threads, with a clock that one of them moves: never more than the burst and what time has brought.
/// Keeps out go#45245, go#65508.
#[test]
fn threads_take_exactly_the_available_tokens() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(1_000).burst(50)).on(&clock);
    let taken = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..7 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    if bucket.try_acquire(1).is_ok() {
                        taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..500 {
            clock.advance(Duration::from_millis(1));
            bucket.set_quota(Quota::per_second(1_000).burst(50), Inherit::AsIs);
        }
    });
    let rest = bucket.available();
    let taken = taken.into_inner();
    assert!(taken + rest <= 550, "{taken} taken and {rest} left");
    assert!(taken >= 50);
}

#[test]
fn a_bucket_takes_at_most_200_bytes() {
    assert!(size_of::<TokenBucket>() <= 200, "{}", size_of::<TokenBucket>());
}
