//! The pause of an upstream: a call that begins beside it has begun before it or does not begin, and its end is not lost on a waiter.

use loom::future::block_on;
use loom::thread;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, ManualClock, Policy};
use tollgate_resilience::upstream::{Feedback, Upstream};

const SECOND: Duration = Duration::from_secs(1);

fn upstream(clock: &ManualClock) -> Arc<Upstream> {
    Arc::new(Upstream::builder().on(clock).build().unwrap())
}

/// Given a call in flight, when its refusal is observed beside another call that begins, then no call begins once it has been observed.
#[test]
fn a_call_beside_a_refusal_begins_before_it_or_not_at_all() {
    crate::exhaustive(|| {
        let clock = ManualClock::new();
        let upstream = upstream(&clock);
        let call = upstream.begin(&Ask::one()).unwrap();
        let (other, read) = (Arc::clone(&upstream), crate::Passed::new());
        let passed = read.clone();
        let thread = thread::spawn(move || {
            other.observe(&call, &Feedback::throttled(Some(SECOND)));
            passed.pass();
        });
        let was_read = read.or_not();
        let begun = upstream.begin(&Ask::one()).is_some();
        assert!(!(was_read && begun), "a call began after the refusal had been read");
        thread.join().unwrap();
        assert!(upstream.begin(&Ask::one()).is_none());
    });
}

/// Given a pause, when it is ended beside a waiter that joins, then the waiter is admitted.
#[test]
fn a_resume_beside_a_join_is_not_lost() {
    crate::bounded(2, || {
        let clock = ManualClock::new();
        let upstream = upstream(&clock);
        upstream.pause(SECOND);
        let policy = Policy::builder()
            .limit(Arc::clone(&upstream))
            .on(&clock)
            .build()
            .unwrap();
        let thread = thread::spawn(move || upstream.resume());
        block_on(async { drop(policy.admit(1).await.unwrap()) });
        thread.join().unwrap();
    });
}
