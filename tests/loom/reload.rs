//! A version that is put in force beside an admission: all of the old rules or all of the new ones.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Wake, Waker};
use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySetSpec, PolicySpec};
use tollgate::{Ask, LimiterExt, ManualClock};

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

fn legs(a: usize, b: usize) -> PolicySpec {
    PolicySpec::new([
        LegSpec::new("a", LegRule::semaphore(a)),
        LegSpec::new("b", LegRule::semaphore(b)),
    ])
}

/// Given two legs of which the old version allows nothing by the second and the new one nothing by the first, when
/// a caller asks while the new one is put in force, then it is admitted in no interleaving, and nothing is held.
#[test]
fn no_admission_sees_some_of_each_version() {
    crate::roomy(3, || {
        let clock = ManualClock::new();
        let policy = legs(1, 0).build(&clock).unwrap();
        let other = policy.clone();
        let there = crate::spawn(move || other.apply(legs(0, 1)).unwrap());
        let admitted = policy.limiter().try_admit(Ask::one()).is_ok();
        there.join().unwrap();
        assert!(!admitted, "neither version allows it");
        assert_eq!(
            (policy.limiter().in_use("a"), policy.limiter().in_use("b")),
            (Some(0), Some(0))
        );
    });
}

/// Given a permit that is given back while a version takes its leg away, then it goes back to the leg that gave it.
#[test]
fn a_permit_finds_its_leg_beside_a_reload() {
    crate::roomy(3, || {
        let clock = ManualClock::new();
        let policy = Arc::new(legs(1, 1).build(&clock).unwrap());
        let permit = policy.limiter().try_admit(Ask::one()).unwrap();
        let other = Arc::clone(&policy);
        let there = crate::spawn(move || {
            let only = PolicySpec::new([LegSpec::new("b", LegRule::semaphore(1))]);
            other.apply(only).unwrap();
        });
        drop(permit);
        there.join().unwrap();
        assert_eq!(policy.limiter().in_use("b"), Some(0));
        policy.apply(legs(1, 1)).unwrap();
        assert!(policy.limiter().try_admit(Ask::one()).is_ok());
    });
}

/// Given two waiters, of which the first leaves while a version admits one, then the second is admitted, whether the first had its
/// ticket or not.
#[test]
fn a_waiter_that_leaves_beside_a_version_leaves_its_admission_to_the_next() {
    crate::roomy(2, || {
        let policy = legs(1, 0).build(&ManualClock::new()).unwrap();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut first = Box::pin(policy.admit(Ask::one()));
        let mut second = Box::pin(policy.admit(Ask::one()));
        assert!(
            first
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        assert!(second.as_mut().poll(&mut cx).is_pending());
        let other = policy.clone();
        let there = crate::spawn(move || drop(other.apply(legs(1, 1)).unwrap()));
        drop(first);
        there.join().unwrap();
        assert!(woken.0.load(SeqCst), "the second was not woken");
        assert!(second.as_mut().poll(&mut cx).is_ready());
    });
}

/// Given a key that is first asked for while a version of its set is put in force, then its policy is of that version afterwards.
#[test]
fn a_key_that_is_made_beside_a_version_of_a_set_has_that_version() {
    crate::roomy(3, || {
        let spec = |limit| {
            let all = PolicySpec::new([LegSpec::new("a", LegRule::semaphore(limit))]);
            let mut spec = PolicySetSpec::default();
            spec.keyed.insert("tenant".into(), KeyedSpec::new(1, "all", all));
            spec
        };
        let set = spec(1).build(&ManualClock::new()).unwrap();
        let map = set.keyed("tenant").unwrap();
        let there = crate::spawn(move || drop(set.apply(spec(2)).unwrap()));
        let policy = map.get("acme").unwrap();
        there.join().unwrap();
        assert!(policy.try_admit(2).is_ok(), "the key kept the version before");
    });
}
