//! The map of keys: an entry that is dropped to make room beside somebody who uses it.

use loom::thread;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Keyed, ManualClock, Quota, TokenBucket};

/// Given a map of one entry, when a new key wants its room beside a thread that empties its bucket, then no later request
/// of that key is admitted.
#[test]
fn a_new_key_beside_the_use_of_an_old_one_hands_out_nothing_twice() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let map = Arc::new(Keyed::new(1, move |_: &u64| {
            TokenBucket::new(Quota::new(1, Duration::from_secs(3_600)).unwrap()).on(&clock)
        }));
        drop(map.get(&1).unwrap());
        let admitted = |map: &Keyed<u64, TokenBucket>, key| {
            let bucket = map.get(&key);
            u64::from(bucket.is_ok_and(|bucket| bucket.try_acquire(1).is_ok()))
        };
        let other = Arc::clone(&map);
        let thread = thread::spawn(move || drop(other.get(&2)));
        let first = admitted(&map, 1);
        thread.join().unwrap();
        let second = admitted(&map, 1);
        assert!(first + second <= 1, "the key of a dropped bucket has regained a token");
    });
}
