//! The map of bare rates: the same verdicts as a map of buckets, key by key.

use crate::keyed::program::{self, Ask};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tollgate::keyed::KeyedRate;
use tollgate::{ManualClock, Quota, Reason, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_key_has_a_bucket_of_its_own() {
    let clock = ManualClock::new();
    let rates = KeyedRate::new(10, Quota::per_second(10).burst(4)).on(&clock);
    assert!(rates.is_empty());
    rates.try_acquire("a", 3).unwrap();
    assert_eq!((rates.available("a"), rates.available("b"), rates.len()), (1, 4, 1));
    let refused = rates.try_acquire("a", 2).unwrap_err();
    assert_eq!((refused.reason(), refused.leg()), (Reason::RateExceeded, "keyed_rate"));
    assert_eq!(refused.retry_after(), Some(SECOND / 10));
    clock.advance(SECOND / 10);
    rates.try_acquire("a", 2).unwrap();
    assert!(rates.try_acquire("a", 1).is_err());
    for key in ["a", "new"] {
        let refused = rates.try_acquire(key, 5).unwrap_err();
        assert_eq!((refused.reason(), refused.retry_after()), (Reason::Oversized, None));
    }
    let _: KeyedRate<String> = rates;
}

#[test]
fn a_limited_key_is_never_dropped_and_a_new_one_is_refused() {
    let clock = ManualClock::new();
    let rates = KeyedRate::new(2, Quota::per_second(1).burst(2)).on(&clock);
    rates.try_acquire(&1, 1).unwrap();
    rates.try_acquire(&2, 2).unwrap();
    let refused = rates.try_acquire(&3, 1).unwrap_err();
    assert_eq!((refused.reason(), refused.leg()), (Reason::Saturated, "keyed"));
    clock.advance(SECOND);
    rates.try_acquire(&3, 1).unwrap();
    assert_eq!((rates.available(&1), rates.available(&2), rates.len()), (2, 1, 2));
    assert!(KeyedRate::new(0, Quota::per_second(1)).try_acquire(&1, 1).is_err());
}

/// Given quotas whose axis does not last as long as the keys, when time leaps, then a charge is neither forgotten too
/// early nor held against its key for longer than it takes to refill.
#[test]
fn an_axis_that_ends_is_started_anew() {
    let clock = ManualClock::new();
    let quota = Quota::per_second(1_000_000_000).burst(Quota::MAX_BURST);
    let rates = KeyedRate::new(10, quota).on(&clock);
    for hour in 1..50 {
        clock.advance(Duration::from_secs(3_600));
        rates.try_acquire(&1, Quota::MAX_BURST).unwrap();
        rates.try_acquire(&hour, Quota::MAX_BURST / 2).unwrap_or(());
        clock.advance(Duration::from_nanos(1_000));
        assert!(rates.available(&1).abs_diff(1_000) <= 1, "{}", rates.available(&1));
    }
    clock.advance(Duration::from_secs(100 * 365 * 86_400));
    assert_eq!(rates.available(&1), Quota::MAX_BURST);
}

/// Given a rate of one in 110 seconds, whose axis lasts an hour, when it is started anew again and again, then no time to
/// wait is off by a nanosecond: each is what is left of a whole number of periods.
#[test]
fn no_fraction_is_lost_where_an_axis_starts_anew() {
    const PERIOD: u64 = 110_000_000_000;
    let clock = ManualClock::new();
    let quota = Quota::new(1, Duration::from_nanos(PERIOD)).unwrap().burst(5);
    let (rates, bucket) = (KeyedRate::new(10, quota).on(&clock), TokenBucket::new(quota).on(&clock));
    rates.try_acquire(&1, 5).unwrap();
    bucket.try_acquire(5).unwrap();
    // The instant at which all that was taken is there again.
    let mut full = 5 * PERIOD;
    for _ in 0..500 {
        clock.advance(Duration::from_nanos(PERIOD - 7_777_777_777));
        let now = clock.elapsed().as_nanos() as u64;
        let missing = full.saturating_sub(now);
        let exact = (missing + PERIOD).saturating_sub(5 * PERIOD);
        if exact == 0 {
            rates.try_acquire(&1, 1).unwrap();
            bucket.try_acquire(1).unwrap();
            full = full.max(now) + PERIOD;
            continue;
        }
        let waits = [
            rates.try_acquire(&1, 1).unwrap_err(),
            bucket.try_acquire(1).unwrap_err(),
        ];
        assert_eq!(
            waits.map(|refused| refused.retry_after()),
            [Some(Duration::from_nanos(exact)); 2],
            "at {now} ns"
        );
    }
}

/// Given quotas that do not flow, then a key's bucket is what a bucket of its own would be.
#[test]
fn intervals_and_the_extremes_are_those_of_a_bucket() {
    let quotas = [
        Quota::per_second(3).burst(7).by_interval(),
        Quota::per_hour(1_000).burst(1_500).by_interval(),
        Quota::zero(),
        Quota::zero().burst(4),
        Quota::unlimited(),
    ];
    for quota in quotas {
        let clock = ManualClock::new();
        let (rates, bucket) = (KeyedRate::new(10, quota).on(&clock), TokenBucket::new(quota).on(&clock));
        for step in 0..400u64 {
            let n = step % 5 * quota.burst_size().min(2_000) / 4;
            match (rates.try_acquire(&1, n), bucket.try_acquire(n)) {
                (Ok(()), Ok(())) => {}
                (Err(ours), Err(theirs)) => {
                    assert_eq!(ours.retry_after(), theirs.retry_after(), "{quota}: {n} at {step}");
                }
                (ours, theirs) => panic!("{quota}: {ours:?} and {theirs:?}"),
            }
            assert_eq!(rates.available(&1), bucket.available(), "{quota}: at {step}");
            clock.advance(quota.period() * (1 + (step * step % 7) as u32) / 5);
            if step % 100 == 99 {
                // Beyond the life of any axis.
                clock.advance(Duration::from_secs(1_000_000_000));
            }
        }
    }
}

proptest! {
    /// Given any quota, keys and times, then every verdict and every time to wait is that of a bucket of the key's own that
    /// was never dropped, as long as there is room, or a nanosecond longer where the key was dropped while it was full.
    /// Keeps out agave#6893, agave#8154, agave#8740.
    #[test]
    fn it_agrees_with_buckets(
        asks in crate::ops(1..200, Ask::decode), count in 1u64..1_000_000, seconds in 1u64..10_000, burst in 1u64..10, max in 3usize..7,
    ) {
        program::rate(count, seconds, burst, max, asks);
    }
}

/// Given eight threads that race for keys and for room while time stands still, then no key gets more than its burst.
/// Keeps out agave#9278.
#[test]
fn no_key_regains_a_token_while_threads_race() {
    const KEYS: u64 = 200;
    let clock = ManualClock::new();
    let rates = KeyedRate::new(100, Quota::per_second(1).burst(3)).on(&clock);
    let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for seed in 1..=8u64 {
            let (rates, admitted) = (&rates, &admitted);
            scope.spawn(move || {
                let mut random = seed;
                for _ in 0..5_000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                    let (key, n) = ((random >> 33) % KEYS, random >> 61 & 1);
                    if rates.try_acquire(&key, n).is_ok() {
                        admitted[key as usize].fetch_add(n, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(rates.len() <= 100);
    assert!(admitted.iter().all(|admitted| admitted.load(Ordering::Relaxed) <= 3));
}

/// A key whose clone takes its time: what happens meanwhile.
struct Slow<'a> {
    name: u32,
    meanwhile: &'a dyn Fn(),
}

impl std::hash::Hash for Slow<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl PartialEq for Slow<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Slow<'_> {}

impl Clone for Slow<'_> {
    fn clone(&self) -> Self {
        (self.meanwhile)();
        Self { ..*self }
    }
}

/// Given a caller that has read the clock and not taken the lock yet, when the key is charged, fills up and is dropped
/// meanwhile, then by that reading it is not full: its tokens of that instant have been taken.
#[test]
fn a_key_that_was_dropped_is_not_full_by_a_reading_from_before() {
    let clock = ManualClock::new();
    let rates = KeyedRate::new(1, Quota::per_second(1).burst(10)).on(&clock);
    clock.advance(SECOND * 5);
    let quick = |name| Slow {
        name,
        meanwhile: &|| (),
    };
    let meanwhile = || {
        rates.try_acquire(&quick(1), 10).unwrap();
        clock.advance(SECOND * 10);
        // The only place is taken by another, since the first is full again.
        rates.try_acquire(&quick(2), 1).unwrap();
        clock.advance(SECOND);
    };
    let slow = Slow {
        name: 1,
        meanwhile: &meanwhile,
    };
    let refused = rates.try_acquire(&slow, 10).unwrap_err();
    assert_eq!(
        (refused.reason(), refused.retry_after()),
        (Reason::RateExceeded, Some(SECOND * 10))
    );
    rates.try_acquire(&quick(1), 10).unwrap();
    assert!(rates.try_acquire(&quick(1), 1).is_err());
}

/// The same where the axis of all has started anew meanwhile: by the earlier reading nothing has come yet.
#[test]
fn a_reading_from_before_the_axis_restarted_finds_the_old_tokens() {
    let clock = ManualClock::new();
    let rates = KeyedRate::new(10, Quota::per_second(1_000_000).burst(1_000)).on(&clock);
    clock.advance(Duration::from_millis(4_294_900));
    let quick = |name| Slow {
        name,
        meanwhile: &|| (),
    };
    let meanwhile = || {
        rates.try_acquire(&quick(1), 1_000).unwrap();
        clock.advance(SECOND / 10);
        rates.try_acquire(&quick(2), 1).unwrap();
    };
    let slow = Slow {
        name: 1,
        meanwhile: &meanwhile,
    };
    assert!(rates.try_acquire(&slow, 1).is_err());
    rates.try_acquire(&quick(1), 1_000).unwrap();
}
