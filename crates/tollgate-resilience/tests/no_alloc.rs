//! A closed breaker allocates nothing.
//!
//! A binary of its own, since counting allocations replaces the allocator. They are counted per thread.
#![cfg(not(any(tollgate_loom, tollgate_shuttle)))]

use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome};
use tollgate_resilience::CircuitBreaker;

/// How many allocations 1,000 runs of `work` make, after a first one.
fn allocations(work: impl Fn()) -> u64 {
    work();
    allocation_counter::measure(|| (0..1_000).for_each(|_| work())).count_total
}

/// Given a breaker that judges by everything it can, beside a semaphore, then closed it allocates nothing.
#[test]
fn a_closed_breaker_allocates_nothing_per_admission() {
    let builder = || {
        CircuitBreaker::builder()
            .minimum_calls(1_000_000_000)
            .on(&ManualClock::new())
    };
    for breaker in [
        builder().count_window(65_536).minimum_calls(65_536),
        builder()
            .time_window(Duration::from_secs(10))
            .slow_calls(Duration::from_secs(1), 0.5),
        builder().consecutive_failures(1_000_000_000),
    ] {
        let breaker = breaker.build().unwrap();
        let all_ways = || {
            for outcome in [Outcome::Success, Outcome::Failure, Outcome::Ignored] {
                breaker.try_admit(1).unwrap().finish(outcome);
            }
            breaker.try_admit(1).unwrap().cancel();
        };
        breaker.metrics_only();
        assert_eq!(allocations(all_ways), 0);
    }
}
