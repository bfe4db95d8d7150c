//! Two classes of one limit at once.

use loom::thread;
use std::sync::Arc;
use tollgate::LimiterExt;
use tollgate::policy::Partitions;

/// Given one permit that no class has for itself, when two classes want it at once, then one has it.
#[test]
fn two_classes_share_one_permit() {
    crate::exhaustive(|| {
        let shared = Arc::new(Partitions::guaranteed(1, &[0.5, 0.5]).unwrap());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.class(0).try_admit(1).map(|permit| permit.forget()).is_ok());
        let here = shared.class(1).try_admit(1).map(|permit| permit.forget()).is_ok();
        assert!(here ^ thread.join().unwrap());
    });
}

/// Given three permits, two of which are parts, when both classes take two at once and give them back, then at no time are
/// more than three held, and in the end none.
#[test]
fn the_sum_stays_within_the_limit_while_permits_come_and_go() {
    crate::exhaustive(|| {
        let shared = Arc::new(Partitions::guaranteed(3, &[0.34, 0.34]).unwrap());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let held = other.class(0).try_admit(2);
            assert!(other.in_use() <= 3);
            drop(held);
        });
        let held = shared.class(1).try_admit(2);
        assert!(shared.in_use() <= 3);
        drop(held);
        thread.join().unwrap();
        assert_eq!(shared.in_use(), 0);
        assert!(shared.class(0).try_admit(2).is_ok());
    });
}
