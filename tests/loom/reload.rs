//! A version that is put in force beside an admission: all of the old rules or all of the new ones.

use std::sync::Arc;
use tollgate::policy::spec::{LegSpec, PolicySpec, Rule};
use tollgate::{Ask, LimiterExt, ManualClock};

fn legs(a: usize, b: usize) -> PolicySpec {
    PolicySpec::new([
        LegSpec::new("a", Rule::semaphore(a)),
        LegSpec::new("b", Rule::semaphore(b)),
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
            let only = PolicySpec::new([LegSpec::new("b", Rule::semaphore(1))]);
            other.apply(only).unwrap();
        });
        drop(permit);
        there.join().unwrap();
        assert_eq!(policy.limiter().in_use("b"), Some(0));
        policy.apply(legs(1, 1)).unwrap();
        assert!(policy.limiter().try_admit(Ask::one()).is_ok());
    });
}
