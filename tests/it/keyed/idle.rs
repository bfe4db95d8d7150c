//! A map whose keys are idle has room for new ones, whatever limiters they have; and keeps those that remember something.

use std::sync::Arc;
use std::time::Duration;
use tollgate::keyed::Shared;
use tollgate::policy::Partitions;
use tollgate::{Keyed, KeysFull, LimiterExt, ManualClock, Quota, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);

/// What a class holds is not the entry's.
#[test]
fn a_map_of_classes_admits_new_keys() {
    let shared = Arc::new(Partitions::levels(10, &[1.0, 0.5]).unwrap());
    let classes = Arc::clone(&shared);
    let map = Keyed::new(1, move |key: &usize| Shared::from(Arc::clone(classes.class(key % 2))));
    let held = map.get(&0).unwrap().try_admit_owned(1).unwrap();
    assert!(map.get(&1).is_err(), "its handle is held");
    drop(held);
    assert!(map.get(&1).is_ok());
}

/// Given a map whose limiters have a leg of another map, when that is full, then a new key is refused, or shares the overflow: it
/// never gets a limiter that nothing else knows.
#[test]
fn a_limiter_that_cannot_be_built_refuses_its_key() {
    let clock = ManualClock::new();
    let rates = Arc::new(Keyed::new(1, {
        let on = clock.clone();
        move |_: &u64| TokenBucket::new(Quota::per_second(2)).on(&on)
    }));
    let make = {
        let rates = Arc::clone(&rates);
        move |key: &u64| -> Result<_, KeysFull> { Ok(Shared::from(rates.entry(key)?)) }
    };
    let tenants = Keyed::try_new(10, make.clone());
    let first = tenants.get(&1).unwrap();
    first.try_acquire(2).unwrap();
    assert_eq!(tenants.get(&2).map(drop), Err(rates.get(&2).unwrap_err()));
    assert_eq!((tenants.len(), rates.len()), (1, 1));
    let other = Shared::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
    let tenants = Keyed::try_new(10, make).overflow(other.clone());
    tenants.get(&2).unwrap().try_acquire(1).unwrap();
    assert_eq!((other.available(), tenants.len()), (0, 0));
    // Once the rate of the first is as new, and nothing else refers to it, there is room.
    drop(first);
    clock.advance(SECOND);
    assert!(tenants.get(&1).is_ok());
}
