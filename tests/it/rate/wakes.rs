//! What wakes another waiter: a share that goes, a unit that is given back.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tollgate::keyed::FairBudget;
use tollgate::{LeakyBucket, LimiterExt, ManualClock, Policy, Quota};

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Alone a share gains twice as fast: the waiter is due sooner, and has to be woken.
#[test]
fn a_removed_share_wakes_the_waiters_that_refill_faster_without_it() {
    let clock = ManualClock::new();
    let budget = FairBudget::new(Quota::per_second(2).burst(2)).on(&clock);
    let (stays, goes) = (Arc::new(budget.share()), budget.share());
    stays.try_acquire(2).unwrap();
    goes.try_acquire(2).unwrap();
    let policy = Policy::new(Arc::clone(&stays));
    let wakes = Arc::<Wakes>::default();
    let waker = Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    let mut waits = pin!(policy.admit(2));
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    drop(goes);
    clock.advance(Duration::from_secs(1));
    assert!(
        wakes.0.load(Ordering::SeqCst) > 0,
        "it is due now, instead of in a second"
    );
    assert!(waits.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn a_unit_that_is_given_back_wakes_the_waiter() {
    let clock = ManualClock::new();
    let bucket = Arc::new(LeakyBucket::new(Quota::per_minute(1)).on(&clock));
    let reservation = bucket.try_admit(1).unwrap();
    let policy = Policy::new(Arc::clone(&bucket));
    let wakes = Arc::<Wakes>::default();
    let waker = Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    let mut waits = pin!(policy.admit(1));
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    reservation.cancel();
    assert!(wakes.0.load(Ordering::SeqCst) > 0, "there is room now");
    assert!(waits.as_mut().poll(&mut cx).is_ready());
}
