//! All-or-nothing with two legs, a semaphore and a token bucket, and two threads.

use loom::thread;
use std::sync::Arc;
use tollgate::{LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};

/// Given two permits and one token, when two threads are admitted at once, then at most one has both, and the other has
/// given its permit back: nothing is lost, and nothing minted, in any interleaving.
/// Keeps out cadence#6030.
#[test]
fn a_refusal_by_the_second_leg_gives_the_first_back() {
    crate::exhaustive(|| {
        let clock = ManualClock::new();
        let semaphore = Arc::new(Semaphore::new(2));
        let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock));
        let gate = Arc::new(Arc::clone(&semaphore).and(Arc::clone(&bucket)));
        let other = Arc::clone(&gate);
        let there = thread::spawn(move || other.try_admit(1).map(|permit| permit.forget()).is_ok());
        let here = gate.try_admit(1).map(|permit| permit.forget()).is_ok();
        let there = there.join().unwrap();
        assert!(here ^ there, "one token admits exactly one");
        // Forgotten, its permit is gone; that of the refused one is back.
        assert_eq!((semaphore.limit(), semaphore.available_permits()), (1, 1));
        assert_eq!(bucket.available(), 0);
    });
}

/// Given one permit and two tokens, asked the other way round: the one that is refused its permit gives its token back.
#[test]
fn a_refusal_by_the_semaphore_gives_the_token_back() {
    crate::exhaustive(|| {
        let clock = ManualClock::new();
        let semaphore = Arc::new(Semaphore::new(1));
        let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(2)).on(&clock));
        let gate = Arc::new(Arc::clone(&bucket).and(Arc::clone(&semaphore)));
        let other = Arc::clone(&gate);
        let there = thread::spawn(move || other.try_admit(1).is_ok());
        let here = gate.try_admit(1).is_ok();
        let there = there.join().unwrap();
        // Both, when one had finished before the other came.
        assert!(here || there);
        assert_eq!(semaphore.available_permits(), 1);
        assert_eq!(bucket.available(), 2 - u64::from(here) - u64::from(there));
    });
}
