//! The map of keys: an entry that is dropped to make room beside a thread that uses it.
//!
//! What its last user did is seen through the `Arc`, which loom does not know. So the limiter here is behind a lock.

use loom::sync::Mutex;
use loom::thread;
use std::sync::Arc;
use tollgate::{Demand, Description, Keyed, Limiter, LimiterExt, Outcome, Reason, Refusal, Wait};

/// Admits once.
struct Once(Mutex<bool>);

impl Limiter for Once {
    type Ticket = ();
    fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        let taken = std::mem::replace(&mut *self.0.lock().unwrap(), true);
        let refusal = Refusal::new(Reason::RateExceeded, "once", Wait::Never);
        if taken { Err(refusal) } else { Ok(()) }
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let is_unused = !*self.0.lock().unwrap();
        visit(Description::new("once").as_new(is_unused));
    }
}

fn admitted(map: &Keyed<u64, Once>, key: u64) -> u64 {
    let once = map.get(&key);
    u64::from(once.is_ok_and(|once| once.try_admit(1).is_ok()))
}

/// Given a map of one entry, when a new key wants its room beside a thread that uses it up, then no later request of that
/// key is admitted.
/// Keeps out agave#9278.
#[test]
fn a_new_key_beside_the_use_of_an_old_one_hands_out_nothing_twice() {
    crate::exhaustive(|| {
        let map = Arc::new(Keyed::new(1, |_: &u64| Once(Mutex::new(false))));
        drop(map.get(&1).unwrap());
        let other = Arc::clone(&map);
        let thread = thread::spawn(move || drop(other.get(&2)));
        let first = admitted(&map, 1);
        thread.join().unwrap();
        let second = admitted(&map, 1);
        assert!(first + second <= 1, "the key of a dropped limiter is admitted again");
    });
}

/// Given settings that change before all entries are visited, when a key is first asked for beside that, then its limiter was visited, or
/// made by the new settings.
#[test]
fn a_key_that_is_made_beside_a_visit_has_the_new_settings() {
    crate::exhaustive(|| {
        // Spent or not, in place of a number.
        let settings = Arc::new(Mutex::new(false));
        let read = Arc::clone(&settings);
        let map = Arc::new(Keyed::new(1, move |_: &u64| Once(Mutex::new(*read.lock().unwrap()))));
        let other = Arc::clone(&map);
        let thread = thread::spawn(move || {
            *settings.lock().unwrap() = true;
            other.for_each(|_, once| *once.0.lock().unwrap() = true);
        });
        let first = map.get(&1).unwrap();
        thread.join().unwrap();
        assert!(*first.0.lock().unwrap(), "the limiter kept the old settings");
    });
}
