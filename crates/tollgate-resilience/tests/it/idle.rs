//! A map whose keys are idle has room for new ones; and keeps those that remember something.

use std::time::Duration;
use tollgate::{Keyed, Limiter, LimiterExt, ManualClock, Outcome, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, Aimd};

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
