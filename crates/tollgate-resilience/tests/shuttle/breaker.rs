//! A half-open circuit: whatever becomes of its probes, in whatever order, they are back in the end, and no waiter
//! is left behind.

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Semaphore};
use tollgate_resilience::{BreakerState, CircuitBreaker, OpenTime};

const SECOND: Duration = Duration::from_secs(1);
const PROBES: u64 = 2;
const THREADS: usize = 3;
const STEPS: usize = 3;

fn half_open(clock: &ManualClock) -> Arc<CircuitBreaker> {
    let builder = CircuitBreaker::builder().count_window(4).minimum_calls(2);
    let builder = builder.probes(PROBES).probe_timeout(60 * SECOND).wait_while_open();
    let breaker = builder.open_for(OpenTime::fixed(SECOND)).seed(0).on(clock).build();
    let breaker = Arc::new(breaker.unwrap());
    breaker.trip(SECOND);
    clock.advance(SECOND);
    breaker
}

/// One call that ends in one of the ways in which calls end; some begin in one trial and end in another. Panics are left
/// to the test of that: the model takes all threads to panic while one does.
fn call(breaker: &CircuitBreaker, clock: &ManualClock) {
    let Ok(probe) = breaker.try_admit(1) else {
        // A refusal may last until a time is over.
        return clock.advance(SECOND);
    };
    thread::yield_now();
    match thread_rng().gen_range(0..6) {
        0 => probe.finish(Outcome::Success),
        1 => probe.finish(Outcome::Failure),
        2 => probe.finish(Outcome::Ignored),
        3 => drop(probe),
        4 => {
            drop(probe);
            if let Ok(probe) = breaker.try_admit(1) {
                probe.cancel();
            }
        }
        _ => {
            let nothing = Semaphore::new(0);
            drop(probe);
            assert!(breaker.and(&nothing).try_admit(1).is_err());
        }
    }
}

/// Given a half-open circuit and threads whose calls end in every way, when all have ended, then every probe is free: no trial
/// needs its time-out, and calls that succeed close the circuit.
#[test]
fn every_probe_comes_back() {
    super::check(20_000, || {
        let clock = ManualClock::new();
        let breaker = half_open(&clock);
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (breaker, clock) = (Arc::clone(&breaker), clock.clone());
                thread::spawn(move || (0..STEPS).for_each(|_| call(&breaker, &clock)))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        for _ in 0..10 {
            match breaker.try_admit(1) {
                Ok(probe) => probe.finish(Outcome::Success),
                Err(_) => {
                    assert_eq!(breaker.state(), BreakerState::Open, "a probe is missing");
                    clock.advance(SECOND);
                }
            }
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    });
}

/// Given a half-open circuit in a policy, when threads wait for it whose probes end without a result, or well, then all of
/// them are admitted: each probe that comes back wakes the next.
#[test]
fn a_waiter_for_a_probe_is_woken() {
    super::check(10_000, || {
        let clock = ManualClock::new();
        let breaker = half_open(&clock);
        let policy = Policy::builder()
            .on(&clock)
            .limit(Arc::clone(&breaker))
            .build()
            .unwrap();
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let policy = policy.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let probe = block_on(policy.admit(1)).unwrap();
                        thread::yield_now();
                        match thread_rng().gen_range(0..2) {
                            0 => drop(probe),
                            _ => probe.finish(Outcome::Success),
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(policy.waiting(), 0);
        assert!(breaker.state() != BreakerState::Open);
    });
}
