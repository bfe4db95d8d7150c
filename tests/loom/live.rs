//! Legs that depend on the load of others, beside callers that come and go.

use loom::thread::JoinHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::policy::conditional::{LoadMetric, Meter, Metered, Trigger};
use tollgate::{Limiter, LimiterExt, ManualClock, Permit, Policy, Semaphore};

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits for one unit while `meanwhile` is done: admitted, or woken and admitted then.
fn is_let_in(policy: &Policy<impl Limiter + 'static>, meanwhile: JoinHandle<()>) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waits = Box::pin(policy.admit(1));
    let mut poll = || waits.as_mut().poll(&mut Context::from_waker(&waker));
    let first = poll();
    meanwhile.join().unwrap();
    match first {
        Poll::Ready(admitted) => drop(admitted.unwrap()),
        Poll::Pending => {
            assert!(woken.0.load(Ordering::SeqCst), "the waiter was not woken");
            assert!(poll().is_ready());
        }
    }
}

/// Two permits with a meter, and a policy through which nothing goes while more than half of them are held.
fn throttled() -> (Arc<Metered<Semaphore>>, Policy<impl Limiter + use<>>) {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, Duration::from_secs(1));
    let permits = Arc::new(meter.watch(Semaphore::new(2)));
    let busy = Trigger::above(meter.load(LoadMetric::Use, 2.0), 0.5).on(&clock);
    let throttle = Semaphore::new(0).when(busy);
    (permits, Policy::builder().on(&clock).limit(throttle).build().unwrap())
}

/// Given a permit whose return, or whose cancel, ends the load, beside a waiter that begins to wait for that, then the wait ends.
#[test]
fn a_return_that_ends_the_load_beside_a_waiter_is_not_lost() {
    for end in [drop as fn(Permit<Arc<Metered<Semaphore>>>), Permit::cancel] {
        crate::roomy(3, move || {
            let (permits, policy) = throttled();
            let held = permits.try_admit_owned(2).unwrap();
            let there = crate::spawn(move || end(held));
            is_let_in(&policy, there);
        });
    }
}

/// Given a load that begins and ends beside a waiter, then the wait ends.
#[test]
fn a_load_that_comes_and_goes_beside_a_waiter_leaves_nobody_asleep() {
    crate::roomy(2, || {
        let (permits, policy) = throttled();
        let there = crate::spawn(move || drop(permits.try_admit(2).unwrap()));
        is_let_in(&policy, there);
    });
}
