//! An adaptive limit whose law speaks on two threads at once.

use loom::thread;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, LimitLaw, Sample};

struct OneMore;

impl LimitLaw for OneMore {
    fn next(&mut self, limit: f64, _: &Sample) -> f64 {
        limit + 1.0
    }
}

/// Given two whose work ends at once, each of whom ends a window, then the limit in force is the one that came out last.
#[test]
fn of_two_changes_the_last_is_in_force() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let builder = Adaptive::builder(Semaphore::new(4)).law(OneMore);
        let gate = Arc::new(builder.window(Duration::ZERO, 1).on(&clock).build().unwrap());
        let other = gate.try_admit_owned(1).unwrap();
        let thread = thread::spawn(move || other.finish(Outcome::Success));
        gate.try_admit(1).unwrap().finish(Outcome::Success);
        thread.join().unwrap();
        assert_eq!((gate.limit(), gate.limiter().available_permits()), (6, 6));
    });
}
