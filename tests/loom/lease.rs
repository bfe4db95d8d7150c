//! Leases: what one thread gives back beside another that takes.

use loom::thread;
use std::time::Duration;
use tollgate::{Leased, ManualClock, Quota, TokenBucket};

fn leased(clock: &ManualClock, burst: u64, units: u64) -> Leased<TokenBucket> {
    let quota = Quota::new(1, Duration::from_secs(3_600)).unwrap().with_burst(burst);
    Leased::new(TokenBucket::new(quota.unwrap()).on(clock), units)
}

fn take(rate: &Leased<TokenBucket>, times: u64) -> u64 {
    (0..times).filter(|_| rate.try_acquire(1).is_ok()).count() as u64
}

/// Given a thread that spends one of a lease and gives back the rest, beside one that tries twice, then no more is spent
/// than was there, and nothing is lost.
#[test]
fn tokens_returned_beside_another_thread_are_there_once() {
    crate::bounded(3, || {
        let rate = leased(&ManualClock::new(), 3, 2);
        let other = rate.clone();
        let thread = thread::spawn(move || {
            let spent = u64::from(other.try_acquire(1).is_ok());
            other.release();
            spent
        });
        let here = take(&rate, 2);
        let there = thread.join().unwrap();
        rate.release();
        assert_eq!(here + there + rate.limiter().available(), 3);
    });
}
