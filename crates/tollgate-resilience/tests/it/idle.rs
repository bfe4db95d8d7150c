//! A map whose keys are idle has room for new ones; and keeps those that remember something.

use std::time::Duration;
use tollgate::{Keyed, Limiter, LimiterExt, ManualClock, Outcome, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, Aimd};
use tollgate_resilience::shed::{RetryBudget, Throttler};
use tollgate_resilience::{CircuitBreaker, OpenTime};

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
fn a_map_of_idle_adaptive_limits_admits_new_keys() {
    let clock = ManualClock::new();
    let on = clock.clone();
    let build = move || -> Adaptive {
        let builder = Adaptive::builder(Semaphore::new(10)).law(Aimd::new()).bounds(2, 20);
        builder.window(Duration::ZERO, 1).on(&on).build().unwrap()
    };
    makes_room(&clock, MINUTE * 2, build.clone(), |adaptive| {
        adaptive.try_admit(1).unwrap().finish(Outcome::Overload);
        assert_eq!(adaptive.limit(), 9);
    });
    let map = Keyed::new(1, move |_: &u64| build());
    let held = map.get(&1).unwrap().try_admit_owned(1).unwrap();
    clock.advance(MINUTE * 2);
    assert!(map.get(&2).is_err());
    held.forget();
    assert!(map.get(&2).is_err(), "it is in use for good");
    let map = Keyed::new(1, {
        let on = clock.clone();
        move |_: &u64| {
            Adaptive::builder(Semaphore::new(10))
                .bounds(2, 20)
                .on(&on)
                .build()
                .unwrap()
        }
    });
    map.get(&1).unwrap().pin(3);
    clock.advance(MINUTE * 2);
    assert!(map.get(&2).is_err(), "a setting stays");
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
