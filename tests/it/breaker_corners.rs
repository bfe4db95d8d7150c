//! The circuit breaker at the edges: what says nothing, what is many calls, what is told about it.

use std::time::Duration;
use tollgate::BreakerState::{Closed, Open};
use tollgate::{Ask, BreakerBuilder, CircuitBreaker, LimiterExt, ManualClock, Outcome, Policy, Semaphore};

const SECOND: Duration = Duration::from_secs(1);

fn builders(clock: &ManualClock) -> [BreakerBuilder; 4] {
    let builder = || CircuitBreaker::builder().minimum_calls(4).probes(2).clock(clock);
    [
        builder().count_window(4),
        builder().time_window(10 * SECOND),
        builder().count_window(4).slow_calls(SECOND, 1.0),
        builder().time_window(10 * SECOND).consecutive_failures(9),
    ]
}

fn seen(breaker: &CircuitBreaker) -> (u64, u64, u64) {
    let metrics = breaker.metrics();
    (metrics.calls, metrics.failed, metrics.slow)
}

/// Whatever a window is of: what is ignored is in none, several calls are several results, and overload is a failure.
#[test]
fn every_window_counts_alike() {
    for place in 0..4 {
        let clock = ManualClock::new();
        let breaker = builders(&clock).into_iter().nth(place).unwrap().build().unwrap();
        let call = |n, outcome| breaker.try_admit(n).unwrap().finish(outcome);
        for _ in 0..5 {
            call(1, Outcome::Ignored);
            drop(breaker.try_admit(1).unwrap());
            drop(breaker.reserve(1).unwrap());
            breaker.try_admit(1).unwrap().forget();
        }
        call(0, Outcome::Failure);
        assert_eq!(seen(&breaker), (0, 0, 0), "{place}");
        call(2, Outcome::Success);
        assert_eq!(seen(&breaker), (2, 0, 0), "{place}");
        call(1, Outcome::Overload);
        assert_eq!((seen(&breaker), breaker.state()), ((3, 1, 0), Closed), "{place}");
        // Two of four are half.
        call(1, Outcome::Failure);
        assert_eq!((seen(&breaker), breaker.state()), ((4, 2, 0), Open), "{place}");
        // As many as anybody may ask for are the whole trial.
        clock.advance(30 * SECOND);
        call(u64::MAX, Outcome::Success);
        assert_eq!((seen(&breaker), breaker.state()), ((0, 0, 0), Closed), "{place}");
        call(u64::MAX, Outcome::Failure);
        assert_eq!(breaker.state(), Open, "{place}");
    }
}

/// Given a policy that waits for the probe of another, then it wakes when that comes back, and not before.
#[test]
fn whoever_waits_for_a_probe_wakes_when_it_is_back() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder().probes(1).clock(&clock).build().unwrap();
    breaker.trip(SECOND);
    clock.advance(SECOND);
    let policy = Policy::builder().clock(&clock).over(breaker).unwrap();
    clock.run(async {
        let probe = policy.try_admit(1).unwrap();
        let mut waits = std::pin::pin!(policy.admit(1));
        std::future::poll_fn(|context| {
            assert!(waits.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        let before = clock.now();
        drop(probe);
        waits.await.unwrap().finish(Outcome::Success);
        assert_eq!(clock.now(), before);
    });
    assert_eq!(policy.limiter().state(), Closed);
}

/// Given a half-open circuit whose probes are overdue, then a look at it says that it may be asked now, and asking says until
/// when it is open again.
#[test]
fn an_overdue_trial_says_when() {
    let clock = ManualClock::new();
    let builder = CircuitBreaker::builder().probes(1).probe_timeout(2 * SECOND);
    let breaker = builder.clock(&clock).build().unwrap();
    breaker.trip(SECOND);
    clock.advance(SECOND);
    breaker.try_admit(1).unwrap().forget();
    assert_eq!(breaker.try_admit(1).unwrap_err().retry_after(), None);
    clock.advance(2 * SECOND);
    assert_eq!(breaker.try_admit(1).unwrap_err().retry_after(), Some(30 * SECOND));
    assert_eq!(breaker.metrics().refused, 1);
}

#[test]
fn what_is_shown_names_the_state_and_the_settings() {
    let clock = ManualClock::new();
    let builder = CircuitBreaker::builder().count_window(7).probes(3).clock(&clock);
    let shown = format!("{builder:?}");
    assert!(shown.contains("Calls(7)") && shown.contains("probes: 3"), "{shown}");
    let breaker = builder.build().unwrap();
    breaker.try_admit(Ask::many(2)).unwrap().finish(Outcome::Failure);
    let shown = format!("{breaker:?}");
    assert!(shown.contains("Closed") && shown.contains("failed: 2"), "{shown}");
    let both = breaker.and(Semaphore::new(1));
    assert!(both.try_admit(1).is_ok());
}
