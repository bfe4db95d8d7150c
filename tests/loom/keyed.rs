//! The map of keys: an entry that is dropped to make room beside a thread that uses it.
//!
//! What its last user did is seen through the `Arc`, which loom does not know. So the limiter here is behind a lock.

use loom::sync::Mutex;
use loom::thread;
use std::sync::Arc;
use tollgate::{ClockReading, Demand, Keyed, Limiter, LimiterExt, Outcome, ReadyAt, Reason, Refusal, Wait};

/// Admits once.
struct Once(Mutex<bool>);

impl Limiter for Once {
    type Ticket = ();
    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        let taken = std::mem::replace(&mut *self.0.lock().unwrap(), true);
        let refusal = Refusal::new(Reason::RateExceeded, "once", demand.units(), Wait::Never);
        if taken { Err(refusal) } else { Ok(()) }
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}
    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::NOW
    }
    fn is_pristine(&self, _: &ClockReading) -> bool {
        !*self.0.lock().unwrap()
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn tollgate::sync::WaitQueue)) {}
}

fn admitted(map: &Keyed<u64, Once>, key: u64) -> u64 {
    let once = map.get(&key);
    u64::from(once.is_ok_and(|once| once.try_admit(1).is_ok()))
}

/// Given a map of one entry, when a new key wants its room beside a thread that uses it up, then no later request of that
/// key is admitted.
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
