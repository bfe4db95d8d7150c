//! The circuit breaker: one probe goes to one caller, every probe comes back, a window misses nothing, and a late result decides
//! nothing.

use loom::thread;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome};
use tollgate_resilience::{BreakerState, CircuitBreaker};

const SECOND: Duration = Duration::from_secs(1);

fn breaker(clock: &ManualClock, window: usize, probes: u64) -> Arc<CircuitBreaker> {
    let builder = CircuitBreaker::builder().count_window(window).minimum_calls(2);
    Arc::new(builder.probes(probes).seed(0).on(clock).build().unwrap())
}

fn half_open(probes: u64) -> (ManualClock, Arc<CircuitBreaker>) {
    let clock = ManualClock::new();
    let breaker = breaker(&clock, 2, probes);
    breaker.trip(SECOND);
    clock.advance(SECOND);
    (clock, breaker)
}

/// Given an open circuit whose time is over and one probe, when two ask at once, then one goes.
#[test]
fn two_callers_at_the_end_of_the_open_time_share_one_probe() {
    crate::exhaustive(|| {
        let (_clock, breaker) = half_open(1);
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || other.try_admit(1).map(|probe| probe.forget()).is_ok());
        let here = breaker.try_admit(1).map(|probe| probe.forget()).is_ok();
        assert!(here ^ thread.join().unwrap());
    });
}

/// Given two probes out, when one comes back without a result beside one with a success, then the trial still has a
/// probe to be judged by.
#[test]
fn a_probe_that_comes_back_beside_a_result_is_free() {
    crate::exhaustive(|| {
        let (_clock, breaker) = half_open(2);
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || other.try_admit(1).unwrap().cancel());
        breaker.try_admit(1).unwrap().finish(Outcome::Success);
        thread.join().unwrap();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.try_admit(1).unwrap().finish(Outcome::Success);
        assert_eq!(breaker.state(), BreakerState::Closed);
    });
}

/// Given a window of two, when a success and a failure end at once, so that one makes it large enough and the other bad
/// enough, then the circuit opens, whichever came first.
#[test]
fn a_success_beside_a_failure_opens_the_circuit() {
    crate::exhaustive(|| {
        let clock = ManualClock::new();
        let breaker = breaker(&clock, 2, 1);
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || other.try_admit(1).unwrap().finish(Outcome::Success));
        breaker.try_admit(1).unwrap().finish(Outcome::Failure);
        thread.join().unwrap();
        assert_eq!(breaker.state(), BreakerState::Open);
    });
}

/// Given a window of two, when two failures end at once, then the circuit opens, whichever came first.
#[test]
fn two_failures_at_once_open_the_circuit() {
    crate::exhaustive(|| {
        let clock = ManualClock::new();
        let builder = CircuitBreaker::builder()
            .count_window(4)
            .minimum_calls(2)
            .failure_rate(1.0);
        let breaker = Arc::new(builder.seed(0).on(&clock).build().unwrap());
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || other.try_admit(1).unwrap().finish(Outcome::Failure));
        breaker.try_admit(1).unwrap().finish(Outcome::Failure);
        thread.join().unwrap();
        assert_eq!(breaker.state(), BreakerState::Open);
    });
}

/// Given a failure in a window of two, when three successes push it and each other out, then it is taken off once: the
/// circuit opens at two failures in a row, and not before.
#[test]
fn results_that_push_each_other_out_are_counted_once() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let builder = CircuitBreaker::builder().count_window(2).failure_rate(1.0);
        let breaker = Arc::new(builder.seed(0).on(&clock).build().unwrap());
        let call = |outcome| breaker.try_admit(1).unwrap().finish(outcome);
        call(Outcome::Failure);
        call(Outcome::Success);
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || {
            other.try_admit(1).unwrap().finish(Outcome::Success);
            other.try_admit(1).unwrap().finish(Outcome::Success);
        });
        call(Outcome::Success);
        thread.join().unwrap();
        call(Outcome::Failure);
        assert_eq!((breaker.state(), breaker.metrics().failed), (BreakerState::Closed, 1));
        call(Outcome::Failure);
        assert_eq!(breaker.state(), BreakerState::Open);
    });
}

/// Given a closed circuit with work under way that fails, when it is reset beside that, then the new window never has
/// it, nor a place for it.
#[test]
fn a_late_result_beside_a_reset_decides_nothing() {
    crate::exhaustive(|| {
        let clock = ManualClock::new();
        let breaker = breaker(&clock, 2, 1);
        let late = breaker.try_admit_owned(1).unwrap();
        let thread = thread::spawn(move || late.finish(Outcome::Failure));
        breaker.reset();
        thread.join().unwrap();
        let metrics = breaker.metrics();
        assert_eq!((metrics.calls, metrics.failed), (0, 0));
        breaker.try_admit(1).unwrap().finish(Outcome::Success);
        breaker.try_admit(1).unwrap().finish(Outcome::Success);
        let metrics = breaker.metrics();
        assert_eq!((metrics.calls, metrics.failed), (2, 0));
    });
}

/// The same with a window of time.
#[test]
fn a_late_result_beside_a_reset_is_in_no_window_of_time() {
    crate::exhaustive(|| {
        let clock = ManualClock::new();
        let builder = CircuitBreaker::builder().time_window(SECOND).minimum_calls(2);
        let breaker = Arc::new(builder.seed(0).on(&clock).build().unwrap());
        let late = breaker.try_admit_owned(1).unwrap();
        let thread = thread::spawn(move || late.finish(Outcome::Failure));
        breaker.reset();
        thread.join().unwrap();
        let metrics = breaker.metrics();
        assert_eq!((metrics.calls, metrics.failed), (0, 0));
    });
}
