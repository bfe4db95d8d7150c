//! The circuit breaker at the edges: ignored outcomes, asks of many calls, metrics.

use std::time::Duration;
use tollgate::{Ask, LimiterExt, ManualClock, Outcome, Policy, Semaphore};
use tollgate_resilience::BreakerState::{Closed, Open};
use tollgate_resilience::{BreakerBuilder, CircuitBreaker, OpenTime};

const SECOND: Duration = Duration::from_secs(1);

fn builders(clock: &ManualClock) -> [BreakerBuilder; 4] {
    let builder = || CircuitBreaker::builder().minimum_calls(4).probes(2).on(clock);
    [
        builder().count_window(4),
        builder().time_window(10 * SECOND),
        builder().count_window(4).slow_calls(SECOND, 1.0),
        builder().time_window(10 * SECOND).consecutive_failures(9),
    ]
}

/// One call after the other, each at once: a success, an error, an overload.
#[track_caller]
fn calls(breaker: &CircuitBreaker, letters: &str) {
    for letter in letters.chars() {
        let outcome = match letter {
            'S' => Outcome::Success,
            'E' => Outcome::Failure,
            _ => Outcome::Overload,
        };
        breaker.try_admit(1).unwrap().finish(outcome);
    }
}

/// Calls, failed, slow.
fn seen(breaker: &CircuitBreaker) -> (u64, u64, u64) {
    let metrics = breaker.metrics();
    (metrics.calls, metrics.failed, metrics.slow)
}

/// Whatever a window is of: ignored outcomes are in none, several calls are several results, and overload is a failure.
#[test]
fn every_window_counts_alike() {
    for place in 0..4 {
        let clock = ManualClock::new();
        let breaker = builders(&clock).into_iter().nth(place).unwrap().build().unwrap();
        let call = |n, outcome| breaker.try_admit(n).unwrap().finish(outcome);
        for _ in 0..5 {
            call(1, Outcome::Ignored);
            drop(breaker.try_admit(1).unwrap());
            breaker.try_admit(1).unwrap().cancel();
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
        // The most that one caller may ask for is the whole trial.
        clock.advance(30 * SECOND);
        call(u64::MAX, Outcome::Success);
        assert_eq!((seen(&breaker), breaker.state()), ((0, 0, 0), Closed), "{place}");
        call(u64::MAX, Outcome::Failure);
        assert_eq!(breaker.state(), Open, "{place}");
    }
}

/// Given a policy that waits for the probe of another, then it wakes when that comes back, and not before.
#[test]
fn a_waiter_for_a_probe_wakes_when_the_probe_is_back() {
    let clock = ManualClock::new();
    let builder = CircuitBreaker::builder().probes(1).wait_while_open();
    let breaker = builder.on(&clock).build().unwrap();
    breaker.trip(SECOND);
    clock.advance(SECOND);
    let policy = Policy::builder().on(&clock).limit(breaker).build().unwrap();
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
    let breaker = builder.on(&clock).build().unwrap();
    breaker.trip(SECOND);
    clock.advance(SECOND);
    breaker.try_admit(1).unwrap().forget();
    assert_eq!(breaker.try_admit(1).unwrap_err().retry_after(), None);
    clock.advance(2 * SECOND);
    assert_eq!(breaker.try_admit(1).unwrap_err().retry_after(), Some(30 * SECOND));
    assert_eq!(breaker.metrics().refused, 1);
}

#[test]
fn its_debug_form_names_the_state_and_the_settings() {
    let clock = ManualClock::new();
    let builder = CircuitBreaker::builder().count_window(7).probes(3).on(&clock);
    let shown = format!("{builder:?}");
    assert!(shown.contains("Calls(7)") && shown.contains("probes: 3"), "{shown}");
    let breaker = builder.build().unwrap();
    breaker.try_admit(Ask::many(2)).unwrap().finish(Outcome::Failure);
    let shown = format!("{breaker:?}");
    assert!(shown.contains("Closed") && shown.contains("failed: 2"), "{shown}");
    let both = breaker.and(Semaphore::new(1));
    assert!(both.try_admit(1).is_ok());
}

/// Given a window in which each failure pushes out another, when that goes on for longer than any counter is wide, then
/// the window still has as many failures as the last calls had.
#[test]
fn a_window_whose_failures_push_out_failures_stays_exact() {
    for (size, pattern, failed) in [(1, "E", 1), (4, "ESSS", 1), (5, "EOESS", 3)] {
        let clock = ManualClock::new();
        let builder = CircuitBreaker::builder().count_window(size).minimum_calls(1);
        let breaker = builder.on(&clock).build().unwrap();
        breaker.metrics_only();
        // More failures than 17 bits hold.
        for _ in 0..(1 << 17) / failed + 1 {
            calls(&breaker, pattern);
        }
        assert_eq!(seen(&breaker), (size as u64, failed, 0), "{pattern}");
        calls(&breaker, &"S".repeat(size));
        assert_eq!(seen(&breaker), (size as u64, 0, 0), "{pattern}");
    }
}

/// Given nothing but successes, then each fills the window until it is full; those after that leave it as it is.
#[test]
fn successes_count_until_the_window_is_full() {
    let clock = ManualClock::new();
    for (before, letters, state) in [
        (0, "SSE", Closed),
        (0, "SSEE", Open),
        (0, "EESS", Open),
        (3, "EE", Open),
        (1_000, "E", Closed),
        (1_000, "EE", Open),
    ] {
        let builder = CircuitBreaker::builder().count_window(4).minimum_calls(4);
        let breaker = builder.on(&clock).build().unwrap();
        calls(&breaker, &"S".repeat(before));
        assert_eq!(breaker.metrics().calls, before.min(4) as u64);
        calls(&breaker, letters);
        assert_eq!(breaker.state(), state, "{before} and {letters}");
    }
}

/// Failures in a row are counted in each period anew, by asks of several as well.
#[test]
fn failures_in_a_row_open_it_time_and_again() {
    let clock = ManualClock::new();
    let builder = CircuitBreaker::builder().any_failure_rate().consecutive_failures(3);
    let breaker = builder.probes(2).on(&clock).build().unwrap();
    for round in 0..3 {
        calls(&breaker, "EESEE");
        assert_eq!(breaker.state(), Closed, "{round}");
        let late = breaker.try_admit(5).unwrap();
        breaker.try_admit(2).unwrap().finish(Outcome::Failure);
        assert_eq!(breaker.state(), Open, "{round}");
        clock.advance(30 * SECOND);
        calls(&breaker, "SS");
        late.finish(Outcome::Failure);
        assert_eq!(breaker.state(), Closed, "{round}");
    }
}

/// Its metrics: thresholds as they were set, and rates once there is a result of a probe.
#[test]
fn metrics_name_the_thresholds() {
    let clock = ManualClock::new();
    let builder = CircuitBreaker::builder().slow_calls(SECOND, 0.25).probes(4);
    let breaker = builder.on(&clock).build().unwrap();
    let metrics = breaker.metrics();
    assert_eq!(
        (metrics.failure_threshold(), metrics.slow_threshold()),
        (Some(0.5), Some(0.25))
    );
    assert_eq!((metrics.usual_failure_rate(), metrics.usual_slow_rate()), (None, None));
    assert_eq!((metrics.failure_rate(), metrics.minimum), (None, 20));
    breaker.trip(SECOND);
    clock.advance(SECOND);
    calls(&breaker, "SE");
    let metrics = breaker.metrics();
    assert_eq!(
        (metrics.failure_rate(), metrics.slow_rate(), metrics.minimum),
        (Some(0.5), Some(0.0), 1)
    );

    let blind = CircuitBreaker::builder().any_failure_rate().on(&clock).build().unwrap();
    let metrics = blind.metrics();
    assert_eq!((metrics.failure_threshold(), metrics.slow_threshold()), (None, None));
    let time = OpenTime::exponential(SECOND, 2.0, 8 * SECOND).jitter(0.5);
    assert!(format!("{time:?}").contains("factor: 2.0") && format!("{time:?}").contains("jitter: 0.5"));
    assert!(format!("{:?}", OpenTime::computed(|_| SECOND)).contains("computed: true"));
}
