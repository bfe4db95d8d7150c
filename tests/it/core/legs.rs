//! Lists of many legs, whose tickets do not fit into a permit.

use super::tuple::World;
use std::sync::Arc;
use std::thread;
use tollgate::{Ask, Cost, Legs, Limiter, LimiterExt, ManualClock, Permit, Policy, Quota, TokenBucket};

const LEGS: usize = 32;
const TOKENS: Cost = Cost::new("tokens");

#[test]
fn thirty_two_legs_are_taken_all_or_nothing() {
    let world = World::new(LEGS);
    world.all_or_nothing(|bad| Legs::from_iter((0..LEGS).map(|number| world.leg(number, bad).boxed())));
}

fn buckets(clock: &ManualClock) -> (Vec<Arc<TokenBucket>>, Legs) {
    let bucket = |_| Arc::new(TokenBucket::new(Quota::per_second(1).burst(100)).on(clock));
    let buckets: Vec<_> = (0..LEGS).map(bucket).collect();
    let legs = buckets.iter().map(|bucket| Arc::clone(bucket).per(TOKENS).boxed());
    let legs = legs.collect();
    (buckets, legs)
}

/// Long tickets of several permits, settled and ended in any order, are not mixed up.
#[test]
fn long_tickets_are_settled_and_ended_in_any_order() {
    let clock = ManualClock::new();
    let (buckets, legs) = buckets(&clock);
    let available = || {
        let first = buckets[0].available();
        assert!(buckets.iter().all(|bucket| bucket.available() == first));
        first
    };
    for order in [[0, 0, 0], [2, 1, 0], [1, 1, 0], [0, 1, 0]] {
        let mut permits: Vec<_> = [10, 20, 30]
            .map(|n| legs.try_admit(Ask::one().cost(TOKENS, n)).unwrap())
            .into();
        assert_eq!(available(), 40);
        assert_eq!(permits[1].settle(TOKENS, 5).unwrap(), LEGS as u32);
        assert_eq!(available(), 55);
        assert!(legs.try_admit(Ask::one().cost(TOKENS, 56)).is_err());
        for index in order {
            permits.remove(index).cancel();
        }
        assert_eq!(available(), 100, "{order:?}");
    }
}

#[test]
fn long_tickets_of_many_threads_give_all_back() {
    let clock = ManualClock::new();
    let (buckets, legs) = buckets(&clock);
    let policy = Policy::new(legs);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..200 {
                    let ask = Ask::one().cost(TOKENS, 1 + n % 7);
                    let mut permits: Vec<_> = (0..3).filter_map(|_| policy.try_admit(ask).ok()).collect();
                    for permit in &mut permits {
                        permit.settle(TOKENS, 1).unwrap();
                    }
                    permits.into_iter().for_each(Permit::cancel);
                }
            });
        }
    });
    clock.advance(std::time::Duration::from_secs(100));
    assert!(buckets.iter().all(|bucket| bucket.available() == 100));
}

#[test]
fn a_list_without_a_leg_admits_everything() {
    let none = Legs::new();
    assert!(none.try_admit(u64::MAX).is_ok());
    let mut shown = 0;
    none.describe(&mut |_| shown += 1);
    assert_eq!(shown, 0);
}
