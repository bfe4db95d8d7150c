//! Legs that depend on the load of others, beside changes and beside callers that come and go.

use loom::thread::JoinHandle;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use tollgate::policy::ReloadableLegs;
use tollgate::policy::spec::{LegRule, LegSpec, LoadMetric, Peak, PeakStep, PolicySpec, Rule, SpecError, When};
use tollgate::{Ask, Clock, Cost, LimiterExt, ManualClock, Permit, Policy, Semaphore};

/// How many units each leg is asked for: what it counts has its name.
fn ask<const N: usize>(units: [(&'static str, u64); N]) -> Ask {
    units
        .into_iter()
        .fold(Ask::one(), |ask, (leg, units)| ask.cost(Cost::new(leg), units))
}

fn semaphore(name: &str, limit: usize) -> LegSpec {
    LegSpec::new(name, LegRule::semaphore(limit)).per(name)
}

fn build(legs: impl IntoIterator<Item = LegSpec>) -> Policy<ReloadableLegs> {
    PolicySpec::new(legs).build(&ManualClock::new()).unwrap()
}

/// Holds `ask` until it is dropped, on any thread.
fn hold(policy: &Policy<ReloadableLegs>, ask: Ask) -> Permit<Arc<Policy<ReloadableLegs>>> {
    Arc::new(policy.clone()).try_admit_owned(ask).unwrap()
}

/// Nothing goes through while more than half of the permits are held.
fn throttle() -> LegSpec {
    semaphore("throttle", 0).when(When::above("permits", LoadMetric::Use, 0.5))
}

#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Waits for `ask` while `meanwhile` is done: admitted, or woken and admitted then.
fn is_let_in(policy: &Policy<ReloadableLegs>, ask: Ask, meanwhile: JoinHandle<()>) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waits = Box::pin(policy.admit(ask));
    let mut poll = || waits.as_mut().poll(&mut Context::from_waker(&waker));
    let first = poll();
    meanwhile.join().unwrap();
    match first {
        Poll::Ready(admitted) => drop(admitted.unwrap()),
        Poll::Pending => {
            assert!(
                woken.0.load(std::sync::atomic::Ordering::SeqCst),
                "the waiter was not woken"
            );
            assert!(poll().is_ready());
        }
    }
}

/// Given an attempt that takes a permit and returns it, since the leg behind refuses, when a caller asks meanwhile whom more
/// than half of the permits would keep out, then that was no load.
#[test]
fn an_attempt_that_rolls_back_is_no_load() {
    crate::roomy(3, || {
        let policy = build([throttle(), semaphore("permits", 1), semaphore("closed", 0)]);
        let other = policy.clone();
        let there = crate::spawn(move || {
            let refused = other
                .limiter()
                .try_admit(ask([("throttle", 0), ("permits", 1), ("closed", 1)]));
            assert!(refused.is_err());
        });
        let ask = ask([("throttle", 1), ("permits", 0), ("closed", 0)]);
        let admitted = policy.limiter().try_admit(ask);
        assert!(admitted.is_ok(), "{:?}", admitted.err());
        drop(admitted);
        there.join().unwrap();
    });
}

/// Given a permit whose return ends the load, beside a waiter that begins to wait for that, then the wait ends.
#[test]
fn a_return_that_ends_the_load_beside_a_waiter_is_not_lost() {
    crate::roomy(3, || {
        let policy = build([throttle(), semaphore("permits", 1)]);
        let held = hold(&policy, ask([("throttle", 0), ("permits", 1)]));
        let there = crate::spawn(move || drop(held));
        is_let_in(&policy, ask([("throttle", 1), ("permits", 0)]), there);
    });
}

/// The same where the permit is one of a version without links, and the link comes meanwhile.
fn a_return_beside_a_version_that_links(permits: fn() -> LegSpec) {
    crate::roomy(3, move || {
        let policy = build([permits()]);
        let held = hold(&policy, ask([("permits", 1)]));
        let there = crate::spawn(move || drop(held));
        let linked = PolicySpec::new([throttle(), permits()]);
        policy.apply(linked).unwrap();
        is_let_in(&policy, ask([("throttle", 1), ("permits", 0)]), there);
    });
}

#[test]
fn a_return_beside_a_version_that_links_is_not_lost() {
    a_return_beside_a_version_that_links(|| semaphore("permits", 1));
}

/// A kind that holds, and is no semaphore.
#[derive(Clone, Debug, PartialEq)]
struct Held;

impl Rule for Held {
    type Limiter = Arc<Semaphore>;
    const KIND: &'static str = "held";
    const HOLDS: bool = true;

    fn build(&self, _: &Clock) -> Result<Arc<Semaphore>, SpecError> {
        Ok(Arc::new(Semaphore::new(1)))
    }

    fn capacity(&self, permits: &Arc<Semaphore>) -> Option<u64> {
        Some(permits.limit() as u64)
    }
}

#[test]
fn a_return_of_another_kind_beside_a_version_that_links_is_not_lost() {
    a_return_beside_a_version_that_links(|| LegSpec::new("permits", LegRule::from(Held)).per("permits"));
}

/// Given a load that ends while another thread has the turn to change legs, beside a waiter that begins to wait for the
/// numbers below the peak, then the wait ends when the turn is free.
#[test]
fn a_peak_that_ends_beside_a_version_is_followed() {
    crate::roomy(1, || {
        let at_peak = PeakStep {
            above: 0.5,
            below: 0.5,
            quota: None,
            limit: Some(0),
        };
        let table = Peak {
            leg: "permits".into(),
            metric: LoadMetric::Use,
            over: When::OVER,
            steps: vec![at_peak],
        };
        let spec = PolicySpec::new([semaphore("permits", 1), semaphore("gate", 1).peak(table)]);
        let policy = spec.build(&ManualClock::new()).unwrap();
        let held = hold(&policy, ask([("permits", 1), ("gate", 0)]));
        let nothing = ask([("permits", 0), ("gate", 0)]);
        drop(policy.limiter().try_admit(nothing).unwrap());
        assert_eq!(policy.limiter().leg("gate").unwrap().capacity, Some(0));
        let other = policy.clone();
        // The waiter is the other thread, so that one preemption, of the version, is enough.
        let there = crate::spawn(move || {
            drop(held);
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut waits = Box::pin(async move { other.admit_owned(ask([("permits", 0), ("gate", 1)])).await });
            let first = waits.as_mut().poll(&mut Context::from_waker(&waker));
            (waits, woken, first.is_ready())
        });
        policy.apply(spec).unwrap();
        let (mut waits, woken, let_in) = there.join().unwrap();
        if !let_in {
            assert!(
                woken.0.load(std::sync::atomic::Ordering::SeqCst),
                "the waiter was not woken"
            );
            let waker = Waker::from(woken);
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        }
    });
}
