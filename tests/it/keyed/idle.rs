//! A map whose keys are idle has room for new ones, whatever limiters they have; and keeps those that remember something.

use std::sync::Arc;
use std::time::Duration;
use tollgate::keyed::Shared;
use tollgate::policy::Partitions;
use tollgate::shed::{RetryBudget, Throttler};
use tollgate::{
    CircuitBreaker, Keyed, KeysFull, Limiter, LimiterExt, ManualClock, OpenTime, Outcome, Quota, TokenBucket,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const KEYS: u64 = 8;

/// Fills a map with keys, uses each, and sees that all stay right then, and that all may go when they have been idle.
#[track_caller]
fn makes_room<L: Limiter + 'static>(
    clock: &ManualClock,
    idle: Duration,
    make: impl Fn() -> L + Send + Sync + 'static,
    in_use: impl Fn(&L),
) {
    let map = Keyed::new(KEYS as usize, move |_: &u64| make());
    for key in 0..KEYS {
        in_use(&*map.get(&key).unwrap());
    }
    assert!(map.get(&KEYS).is_err(), "all of them remember something");
    clock.advance(idle);
    for key in KEYS..2 * KEYS {
        map.get(&key).unwrap_or_else(|full| panic!("{full}"));
    }
}

#[test]
fn a_map_of_idle_breakers_admits_new_keys() {
    let clock = ManualClock::new();
    let on = clock.clone();
    let build = move || {
        let builder = CircuitBreaker::builder().time_window(MINUTE).minimum_calls(10);
        let builder = builder.consecutive_failures(5).on(&on);
        builder.build().unwrap()
    };
    makes_room(&clock, MINUTE * 2, build, |breaker| {
        for outcome in [Outcome::Failure, Outcome::Success, Outcome::Success] {
            breaker.try_admit(1).unwrap().finish(outcome);
        }
    });
    // An open circuit is not dropped; a closed one with good calls alone is as new.
    let on = clock.clone();
    let map = Keyed::new(2, move |_: &u64| {
        let open = OpenTime::fixed(SECOND);
        let builder = CircuitBreaker::builder()
            .count_window(4)
            .minimum_calls(1)
            .open_for(open);
        builder.on(&on).build().unwrap()
    });
    map.get(&1).unwrap().try_admit(1).unwrap().finish(Outcome::Failure);
    map.get(&2).unwrap().try_admit(1).unwrap().finish(Outcome::Success);
    clock.advance(MINUTE);
    map.get(&3).unwrap();
    assert!(map.peek(&1).is_some() && map.peek(&2).is_none());
}

#[test]
fn a_map_of_idle_shedders_admits_new_keys() {
    let clock = ManualClock::new();
    let on = clock.clone();
    let throttler = move || Throttler::new(0.5, 0.9, SECOND * 10).unwrap().on(&on);
    makes_room(&clock, SECOND * 11, throttler, |throttler| {
        throttler.try_admit(1).unwrap().finish(Outcome::Overload);
    });

    let map = Keyed::new(2, |_: &u64| RetryBudget::new(0.5, 2).unwrap());
    let budgets = [1, 2].map(|key| map.get(&key).unwrap());
    for budget in &budgets {
        budget.try_admit(1).unwrap().forget();
    }
    budgets[0].deposit();
    drop(budgets);
    assert!(map.get(&3).is_err(), "half a retry is missing");
    let budget = map.get(&1).unwrap();
    budget.deposit();
    drop(budget);
    assert!(map.get(&3).is_ok());

    // What a class holds is not the entry's.
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
