//! Names of limiters at a store, and the kinds of limiters that share one. In virtual time.

use crate::remote::world::now;
use std::sync::Arc;
use tollgate::remote::{Key, Memory, Remote, RemoteError};
use tollgate::{ManualClock, Quota, Reason};

#[test]
fn permits_a_rate_and_a_window_of_one_name_are_independent() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let key = Key::new("api").unwrap();
    let quota = Quota::per_second(20).burst(20);
    let length = std::time::Duration::from_secs(1);
    let permits = Remote::permits(key.clone(), 3).on(&clock).in_place(Arc::clone(&store));
    let rate = Remote::rate(key.clone(), quota).on(&clock).in_place(Arc::clone(&store));
    let window = Remote::window(key, 20, length).on(&clock).in_place(Arc::clone(&store));
    let (permits, rate, window) = (permits.unwrap(), rate.unwrap(), window.unwrap());
    let held = now(permits.acquire(3)).unwrap();
    for _ in 0..3 {
        for other in [&rate, &window] {
            drop(now(other.acquire_now(20)).expect("it has come back"));
            assert_eq!(now(other.acquire_now(1)).unwrap_err().reason(), Reason::RateExceeded);
        }
        assert_eq!(now(permits.acquire_now(1)).unwrap_err().reason(), Reason::Saturated);
        clock.advance(length * 2);
        assert!(!held.is_lost());
    }
}

#[test]
fn a_name_that_is_no_name_is_refused_when_it_is_made() {
    for odd in ["", ".", "..", "a b", "a\nb", "a{b", "a}", &"a".repeat(201)] {
        assert_eq!(Key::new(odd), Err(RemoteError::Key { given: odd.into() }), "{odd:?}");
    }
    for name in ["...", "a/../b", "%2E%2E", "ü", &"a".repeat(200)] {
        assert_eq!(Key::new(name).unwrap().as_str(), name);
    }
}
