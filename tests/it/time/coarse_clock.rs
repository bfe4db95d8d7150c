//! The coarse clock: how far it is behind, and what that costs.

use proptest::prelude::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tollgate::{Clock, ClockError, Instant, LeakyBucket, ManualClock, Policy, Quota, TokenBucket};

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_resolution_out_of_range_is_refused() {
    for given in [Duration::ZERO, Duration::from_nanos(999), Duration::from_millis(1_001)] {
        for clock in [Clock::real(), ManualClock::new().clock().clone()] {
            let error = clock.coarse(given).unwrap_err();
            assert!(matches!(error, ClockError::Resolution { given: g } if g == given));
            assert!(error.to_string().contains("1 µs to 1 s is allowed"));
        }
    }
    let coarse = ManualClock::new().coarse(MS).unwrap();
    assert!(matches!(coarse.coarse(MS), Err(ClockError::AlreadyCoarse)));
}

#[test]
fn in_virtual_time_it_is_the_time_rounded_down() {
    let clock = ManualClock::new();
    let coarse = clock.coarse(MS).unwrap();
    assert!(!coarse.is_same(&clock) && coarse.is_same(&coarse.clone()));
    for (micros, shown) in [(0, 0), (999, 0), (1, 1), (1_500, 2), (500, 3)] {
        clock.advance(Duration::from_micros(micros));
        assert_eq!(coarse.between(Instant::ZERO, coarse.now()), MS * shown);
    }
    assert_eq!(clock.worst_lag(), Duration::ZERO);
    assert_eq!(coarse.worst_lag(), MS - Duration::from_nanos(1));
}

/// Given a policy on a coarse clock, when a caller waits for an instant between two of its readings, then it is admitted
/// at the next reading, and sleeps once.
#[test]
fn a_waiter_on_it_is_late_by_less_than_the_resolution() {
    let clock = ManualClock::new();
    let coarse = clock.coarse(MS).unwrap();
    let policy = Policy::new(TokenBucket::new(Quota::new(1, Duration::from_micros(1_500)).unwrap()).on(&coarse));
    clock.run(async {
        let mut instants = Vec::new();
        for _ in 0..5 {
            drop(policy.admit(1).await.unwrap());
            instants.push(clock.elapsed().as_micros());
        }
        assert_eq!(instants, [0, 2_000, 3_000, 5_000, 6_000]);
    });
}

/// Given 300 a second and a resolution of a millisecond, when each waits for its turn, then what saves up nothing admits every 4 ms,
/// and a burst or a slack of one more loses nothing.
#[test]
fn a_unit_saved_up_makes_up_for_the_resolution() {
    const TIMES: u32 = 3_000;
    let quota = Quota::per_second(300);
    let evenly = Duration::from_secs(1) * (TIMES - 2) / 300;
    for (saved, exact) in [(0, MS * 4 * (TIMES - 1)), (1, evenly)] {
        let clock = ManualClock::new();
        let coarse = clock.coarse(MS).unwrap();
        let bucket = TokenBucket::new(quota.burst(1 + saved)).on(&coarse);
        let leaky = LeakyBucket::new(quota).slack(saved).unwrap().on(&coarse);
        let took = |admits: &dyn Fn() -> bool| {
            let start = clock.elapsed();
            let mut served = 0;
            while served < TIMES {
                match admits() {
                    true => served += 1,
                    false => clock.advance(MS),
                }
            }
            clock.elapsed() - start
        };
        for time in [
            took(&|| bucket.try_acquire(1).is_ok()),
            took(&|| leaky.try_acquire(1).is_ok()),
        ] {
            assert!(time.abs_diff(exact) <= MS, "{saved} saved up: {time:?}");
        }
    }
}

proptest! {
    /// Given a bucket on a coarse clock, when it is asked at any instants, then no span of real time holds more than the
    /// burst, what the rate yields, and what it yields in the stated error.
    #[test]
    fn it_admits_at_most_the_rate_times_its_error_more(
        steps in prop::collection::vec((1u64..4_000, 1u64..4), 1..200),
        rate in 1u64..2_000,
        burst in 1u64..8,
        resolution in 1u64..5_000,
    ) {
        let clock = ManualClock::new();
        let coarse = clock.coarse(Duration::from_micros(resolution)).unwrap();
        let bucket = TokenBucket::new(Quota::per_second(rate).burst(burst)).on(&coarse);
        let mut admitted: Vec<(u128, u64)> = Vec::new();
        for (micros, n) in steps {
            clock.advance(Duration::from_micros(micros));
            if bucket.try_acquire(n).is_ok() {
                admitted.push((clock.elapsed().as_nanos(), n));
            }
        }
        let error = coarse.worst_lag().as_nanos();
        for first in 0..admitted.len() {
            let mut sum = 0;
            for &(at, n) in &admitted[first..] {
                sum += u128::from(n);
                let span = at - admitted[first].0 + error;
                prop_assert!(sum <= u128::from(burst) + (span * u128::from(rate)).div_ceil(1_000_000_000));
            }
        }
    }
}

/// Given four threads that take whatever they get from a bucket on the machine's coarse clock, when the instants are
/// measured by an exact one, then the worst span exceeds the quota by no more than the rate yields in the lag.
#[test]
fn the_measured_excess_is_at_most_the_rate_times_the_measured_lag() {
    const RATE: u64 = 50_000;
    const BURST: u64 = 10;
    let exact = Clock::real();
    let coarse = exact.coarse(MS).unwrap();
    assert!(coarse.is_same(&exact.coarse(MS).unwrap()));
    assert!(!coarse.is_same(&exact.coarse(2 * MS).unwrap()));
    let bucket = TokenBucket::new(Quota::per_second(RATE).burst(BURST)).on(&coarse);
    let (start, from) = (Barrier::new(4), exact.now());
    let admissions = AtomicU64::new(0);
    let mut instants: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut instants = Vec::new();
                    start.wait();
                    loop {
                        // Before and after: an admission took place between them.
                        let before = exact.now();
                        let admitted = bucket.try_acquire(1).is_ok();
                        let after = exact.now();
                        // By the later one, a span looks longer; by the earlier one, shorter. Only those between which the
                        // thread was not interrupted are looked at.
                        if admitted && exact.between(before, after) < MS / 20 {
                            instants.push(exact.between(from, before).as_nanos() as u64);
                        }
                        if admissions.fetch_add(u64::from(admitted), Ordering::Relaxed) > 5_000 {
                            return instants;
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    instants.sort_unstable();
    assert!(!instants.is_empty());
    // The lag, and how far the instant that is recorded may be before the admission.
    let error = coarse.worst_lag().as_nanos() as u64 + 50_000;
    // The worst span: the greatest excess of a count over what the rate yields, as a running maximum.
    let (mut least, mut worst) = (i128::MAX, 0);
    for (count, &at) in instants.iter().enumerate() {
        let yields = i128::from(at) * i128::from(RATE);
        let ahead = count as i128 * 1_000_000_000 - yields;
        least = least.min(ahead);
        worst = worst.max(ahead + 1_000_000_000 - least);
    }
    let allowed = i128::from(BURST) * 1_000_000_000 + i128::from(error) * i128::from(RATE);
    assert!(worst <= allowed, "{worst} of {allowed}, lag {:?}", coarse.worst_lag());
}
