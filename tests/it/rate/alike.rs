//! Tables that several rates share, and the tests of what the token bucket and the leaky bucket do alike.

use std::sync::Arc;
use std::time::Duration;
use tollgate::rate::Inherit;
use tollgate::{Ask, Cost, LeakyBucket, Limiter, LimiterExt, ManualClock, Policy, Quota, Reason, TokenBucket};

const TENTH: Duration = Duration::from_millis(100);
const NANO: Duration = Duration::from_nanos(1);

/// What a change of a burst of ten leaves in a bucket: (taken of ten, rule, new burst, available after it).
pub(crate) const INHERITED: [(u64, Inherit, u64, u64); 8] = [
    (6, Inherit::AsIs, 20, 4),
    (6, Inherit::AsIs, 3, 3),
    (6, Inherit::Proportional, 20, 8),
    (6, Inherit::Proportional, 5, 2),
    (6, Inherit::Reset, 3, 3),
    (10, Inherit::Reset, 20, 20),
    (0, Inherit::AsIs, 20, 10),
    (10, Inherit::Proportional, 20, 0),
];

/// The same of a window with a limit of ten, which keeps what it has counted.
pub(crate) const WINDOWS: [(u64, Inherit, u64, u64); 12] = [
    (6, Inherit::AsIs, 20, 14),
    (6, Inherit::AsIs, 7, 1),
    (6, Inherit::AsIs, 2, 0),
    (0, Inherit::AsIs, 20, 20),
    (10, Inherit::AsIs, 0, 0),
    (6, Inherit::Proportional, 20, 8),
    (6, Inherit::Proportional, 5, 2),
    (10, Inherit::Proportional, 20, 0),
    (10, Inherit::Proportional, 0, 0),
    (6, Inherit::Reset, 3, 3),
    (10, Inherit::Reset, 20, 20),
    (0, Inherit::Reset, 20, 20),
];

/// The instants at which `calls` calls start, one after the other, as soon as `limiter` admits each.
pub(crate) fn starts<L: Limiter + 'static>(clock: &ManualClock, limiter: L, calls: usize) -> Vec<Duration> {
    let policy = Policy::new(limiter);
    clock.run(async {
        let mut starts = Vec::new();
        for _ in 0..calls {
            policy.admit(1).await.unwrap().forget();
            starts.push(clock.elapsed());
        }
        starts
    })
}

macro_rules! buckets {
    ($($module:ident: $make:expr;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn the_verbs_take_the_stated_amounts() {
                let clock = ManualClock::new();
                let bucket = $make(&clock, 5);
                assert_eq!(
                    (bucket.time_until_full(), bucket.time_until(5)),
                    (Some(Duration::ZERO), Some(Duration::ZERO))
                );
                assert_eq!(bucket.acquire_up_to(3), 3);
                assert_eq!((bucket.available(), bucket.time_until_full()), (2, Some(TENTH * 3)));
                assert_eq!([bucket.acquire_up_to(10), bucket.acquire_up_to(10)], [2, 0]);
                bucket.force_acquire(7);
                assert_eq!((bucket.debt(), bucket.available()), (7, 0));
                assert_eq!(
                    [bucket.time_until(1), bucket.time_until(5), bucket.time_until(6)],
                    [Some(TENTH * 8), Some(TENTH * 12), None]
                );
                assert_eq!(bucket.time_until_full(), Some(TENTH * 12));
                clock.advance(TENTH * 7 - NANO);
                assert_eq!((bucket.debt(), bucket.available()), (1, 0), "rounded up");
                bucket.reset();
                let old = bucket.try_admit(1).unwrap();
                bucket.reset();
                assert_eq!((bucket.debt(), bucket.available()), (0, 5));
                bucket.try_acquire(5).unwrap();
                old.cancel();
                assert_eq!(bucket.available(), 0, "charges from before a reset are not refunded");
            }

            #[test]
            fn a_settlement_corrects_the_charge_up_to_the_capacity_and_into_debt() {
                const TOKENS: Cost = Cost::new("tokens");
                let clock = ManualClock::new();
                let bucket = Arc::new($make(&clock, 10));
                let gate = Arc::clone(&bucket).per(TOKENS);
                let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 8)).unwrap();
                permit.settle(TOKENS, 3).unwrap();
                assert_eq!(bucket.available(), 7);
                permit.settle(TOKENS, 14).unwrap();
                assert_eq!((bucket.available(), bucket.debt()), (0, 4));
                let refused = gate.try_admit(Ask::one().cost(TOKENS, 1)).unwrap_err();
                assert_eq!(refused.retry_after(), Some(TENTH * 5), "4 in debt, and one");
                clock.advance(TENTH * 4);
                assert_eq!(bucket.debt(), 0);
                clock.advance(TENTH * 5);
                permit.settle(TOKENS, 0).unwrap();
                assert_eq!(bucket.available(), 10, "never above the capacity");
                drop(permit);
                assert_eq!(gate.try_admit(Ask::one()).unwrap_err().reason(), Reason::Unpriced);
            }
        }
    )*};
}

buckets! {
    token_bucket: |clock: &ManualClock, burst: u64| TokenBucket::new(Quota::per_second(10).burst(burst)).on(clock);
    leaky_bucket: |clock: &ManualClock, burst: u64| LeakyBucket::new(Quota::per_second(10)).slack(burst - 1).unwrap().on(clock);
}
