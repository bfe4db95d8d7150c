//! Policies of many legs: their tickets do not fit into one, and stand in buffers.

use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, Cost, Legs, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};

const TOKENS: Cost = Cost::new("tokens");

fn bucket(clock: &ManualClock, burst: u64) -> Arc<TokenBucket> {
    Arc::new(TokenBucket::new(Quota::per_second(1).burst(burst)).on(clock))
}

#[test]
fn a_policy_may_have_any_number_of_legs() {
    let clock = ManualClock::new();
    let buckets: Vec<_> = (0..100).map(|_| bucket(&clock, 100)).collect();
    let last = Arc::new(Semaphore::new(3));
    let limiters = buckets.iter().map(|bucket| Arc::clone(bucket).per(TOKENS).boxed());
    let limiters = limiters.chain([Arc::clone(&last).boxed()]);
    let policy = Policy::new(limiters.collect::<Legs>());
    let left = || buckets.iter().map(|bucket| bucket.available()).collect::<Vec<_>>();

    let mut one = policy.try_admit(Ask::one().cost(TOKENS, 30)).unwrap();
    let two = policy.try_admit(Ask::one().cost(TOKENS, 10)).unwrap();
    assert_eq!((left(), last.in_use()), (vec![60; 100], 2));
    assert_eq!(one.settle(TOKENS, 20), Ok(100));
    assert_eq!(left(), vec![70; 100]);
    let three = policy.try_admit(Ask::one().cost(TOKENS, 70)).unwrap();
    assert_eq!((left(), last.in_use()), (vec![0; 100], 3));
    assert!(policy.try_admit(Ask::one().cost(TOKENS, 1)).is_err());
    three.cancel();
    assert_eq!((left(), last.in_use()), (vec![70; 100], 2));
    // The tickets of those that are out are their own, in whatever order they end.
    drop(one);
    two.forget();
    assert_eq!((last.in_use(), last.available_permits()), (0, 2));
    assert_eq!(left(), vec![70; 100]);
}

#[test]
fn a_policy_of_policies_and_boxes_fits() {
    let clock = ManualClock::new();
    let buckets: Vec<_> = (0..9).map(|_| bucket(&clock, 10)).collect();
    let inner = |three: &[Arc<TokenBucket>]| {
        let legs = three.iter().map(|bucket| Arc::clone(bucket).boxed());
        Policy::new(legs.collect::<Legs>())
    };
    let chain = (Arc::clone(&buckets[6]).and(Arc::clone(&buckets[7]))).and(Arc::clone(&buckets[8]));
    let policy = Policy::builder()
        .limit(inner(&buckets[..3]))
        .limit(inner(&buckets[3..6]).boxed())
        .limit(chain.boxed())
        .build()
        .unwrap()
        .boxed();
    let permit = policy.try_admit(4).unwrap();
    let left = || buckets.iter().map(|bucket| bucket.available()).collect::<Vec<_>>();
    assert_eq!(left(), [6; 9]);
    drop(permit);
    policy.try_admit(6).unwrap().cancel();
    assert_eq!(left(), [6; 9]);
}

#[test]
fn a_chain_of_any_length_can_be_boxed() {
    let clock = ManualClock::new();
    let bucket = || TokenBucket::new(Quota::per_second(1).burst(5)).on(&clock);
    let gate = bucket().and(bucket()).and(bucket()).and(bucket());
    let gate = gate.and(bucket()).and(bucket()).and(Semaphore::new(2)).boxed();
    let (one, two) = (gate.try_admit(1).unwrap(), gate.try_admit(1).unwrap());
    assert_eq!(gate.try_admit(1).unwrap_err().leg(), "semaphore");
    drop(one);
    let three = gate.try_admit(1).unwrap();
    drop((two, three));
    clock.advance(Duration::from_secs(10));
    assert!(gate.try_admit(2).is_ok());
}
