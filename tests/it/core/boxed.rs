//! A limiter behind a box, alone or as a leg, receives each call that concerns it.

use tollgate::policy::Partitions;
use tollgate::{Ask, Cost, Legs, Limiter, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};

/// Admits all that fits, twice, and gives it back in between; alone in a box, and as a leg beside another.
fn comes_back<L: Limiter + 'static>(name: &str, capacity: usize, make: impl Fn() -> L) {
    let boxed = make().boxed();
    let legs: Legs = [make().boxed(), Semaphore::new(1_000).boxed()].into_iter().collect();
    let legs = Policy::new(legs);
    let static_policy = Policy::new(make().and(Semaphore::new(1_000)));
    for round in 0..3 {
        let alone: Vec<_> = std::iter::from_fn(|| boxed.try_admit(1).ok()).collect();
        let beside: Vec<_> = std::iter::from_fn(|| legs.try_admit(1).ok()).collect();
        let typed: Vec<_> = std::iter::from_fn(|| static_policy.try_admit(1).ok()).collect();
        let counts = (alone.len(), beside.len(), typed.len());
        assert_eq!(counts, (capacity, capacity, capacity), "{name}, round {round}");
    }
}

#[test]
fn permits_held_through_a_box_come_back() {
    comes_back("semaphore", 3, || Semaphore::new(3));
    comes_back("named", 3, || Semaphore::new(3).named("in flight"));
    comes_back("both", 2, || Semaphore::new(3).and(Semaphore::new(2)));
    comes_back("policy", 3, || Policy::new(Semaphore::new(3)));
    comes_back("shared", 3, || std::sync::Arc::new(Semaphore::new(3)));
    let twice = Semaphore::new(3).boxed().boxed();
    for _ in 0..3 {
        let held: Vec<_> = std::iter::from_fn(|| twice.try_admit(1).ok()).collect();
        assert_eq!(held.len(), 3);
    }
    let shared = Partitions::guaranteed(10, &[0.3, 0.7]).unwrap();
    let class = shared.class(0).clone();
    let held: Vec<_> = std::iter::from_fn(|| class.try_admit(1).ok()).collect();
    assert_eq!(held.len(), 3);
    drop(held);
    let boxed = class.boxed();
    for _ in 0..3 {
        let held: Vec<_> = std::iter::from_fn(|| boxed.try_admit(1).ok()).collect();
        assert_eq!(held.len(), 3);
    }
    #[cfg(feature = "channel")]
    comes_back("channel", 3, || tollgate::ChannelSemaphore::new(3));
}

/// What a settlement of a boxed rate gives back is there again, though its end is not told.
#[test]
fn a_rate_in_a_box_is_settled_and_cancelled() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let bucket = std::sync::Arc::new(TokenBucket::new(Quota::per_minute(60)).on(&clock));
    let policy = Policy::builder()
        .limit(bucket.clone().per(TOKENS))
        .limit(Semaphore::new(1))
        .on(&clock)
        .build()
        .unwrap();
    let mut permit = policy.try_admit(Ask::one().cost(TOKENS, 60)).unwrap();
    assert_eq!(permit.settle(TOKENS, 20), Ok(1));
    assert_eq!(bucket.available(), 40);
    assert!(policy.try_admit(Ask::one().cost(TOKENS, 40)).is_err());
    assert_eq!(bucket.available(), 40, "the semaphore refused");
    drop(permit);
    policy.try_admit(Ask::one().cost(TOKENS, 40)).unwrap().cancel();
    assert_eq!(bucket.available(), 40);
}

/// A second settlement goes by what the first has charged: the ticket in the box has changed.
#[test]
fn a_rate_in_a_box_is_settled_twice() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let bucket = std::sync::Arc::new(TokenBucket::new(Quota::per_minute(60)).on(&clock));
    let boxed = bucket.clone().per(TOKENS).boxed();
    let mut permit = boxed.try_admit(Ask::one().cost(TOKENS, 10)).unwrap();
    for (actual, left) in [(50, 10), (30, 30), (0, 60)] {
        assert_eq!(permit.settle(TOKENS, actual), Ok(1));
        assert_eq!(bucket.available(), left);
    }
}
