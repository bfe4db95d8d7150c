//! Thresholds from history: outliers open the circuit, usual failures do not.

use crate::cases;
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome};
use tollgate_resilience::BreakerState::{Closed, HalfOpen, Open};
use tollgate_resilience::breaker::History;
use tollgate_resilience::{BreakerBuilder, CircuitBreaker, OpenTime};

const SECOND: Duration = Duration::from_secs(1);

fn builder(clock: &ManualClock) -> BreakerBuilder {
    let open = OpenTime::fixed(SECOND);
    let history = History::new().memory(2_000).least(0.01);
    CircuitBreaker::builder().adaptive(history).open_for(open).on(clock)
}

fn call(breaker: &CircuitBreaker, failed: bool) {
    let outcome = if failed { Outcome::Failure } else { Outcome::Success };
    breaker.try_admit(1).unwrap().finish(outcome);
}

/// Makes `n` calls, of which each `every`th fails.
fn calls(breaker: &CircuitBreaker, n: u64, every: u64) {
    (1..=n).for_each(|n| call(breaker, n % every == 0));
}

/// The same, and one more by which the last of them are learnt from.
fn taught(breaker: &CircuitBreaker, n: u64, every: u64) {
    calls(breaker, n, every);
    call(breaker, false);
}

/// How many failures in a row it takes.
fn failures_to_open(breaker: &CircuitBreaker) -> usize {
    let failures = std::iter::from_fn(|| (breaker.state() == Closed).then(|| call(breaker, true)));
    failures.count()
}

/// Given a resource of which a hundredth fails and one of which a tenth does, when each begins to fail, then the first is
/// cut off earlier, and both long before half of the calls fail.
#[test]
fn an_outlier_opens_the_circuit() {
    let clock = ManualClock::new();
    for (every, most) in [(100, 5), (10, 12)] {
        let breaker = builder(&clock).build().unwrap();
        taught(&breaker, 1_000, every);
        let failures = failures_to_open(&breaker);
        assert!((2..=most).contains(&failures), "{failures} where 1 in {every} fails");
    }
    let fixed = CircuitBreaker::builder().on(&clock).build().unwrap();
    calls(&fixed, 1_000, 100);
    assert_eq!(failures_to_open(&fixed), 49);
}

/// Given nothing known yet, then the rate that is set is the threshold; and it stays the most that is borne.
#[test]
fn the_rate_that_is_set_is_the_most() {
    let clock = ManualClock::new();
    let breaker = builder(&clock).build().unwrap();
    calls(&breaker, 90, 10);
    let metrics = breaker.metrics();
    assert_eq!(
        (metrics.usual_failure_rate(), metrics.failure_threshold()),
        (None, Some(0.5))
    );
    assert_eq!(failures_to_open(&breaker), 44);

    let breaker = builder(&clock).failure_rate(0.25).build().unwrap();
    taught(&breaker, 2_000, 5);
    let metrics = breaker.metrics();
    assert_eq!(
        (metrics.usual_failure_rate(), metrics.failure_threshold()),
        (Some(0.2), Some(0.25))
    );
}

/// Given an outage, when it is over, then its failures are not taken for usual, and probes are judged by the usual rate.
#[test]
fn an_outage_is_not_learnt() {
    let clock = ManualClock::new();
    let breaker = builder(&clock).probes(10).build().unwrap();
    taught(&breaker, 1_000, 100);
    let usual = breaker.metrics().usual_failure_rate();
    for _ in 0..5 {
        assert!(failures_to_open(&breaker) > 0);
        clock.advance(SECOND);
        // Two of ten fail: a fifth, where a hundredth is usual.
        for n in 0..10 {
            call(&breaker, n < 2);
        }
        assert_eq!(breaker.state(), Open);
        clock.advance(SECOND);
        for _ in 0..10 {
            call(&breaker, false);
        }
        assert_eq!(
            (breaker.state(), breaker.metrics().usual_failure_rate()),
            (Closed, usual)
        );
    }
}

/// Given calls of which a tenth is slow, when a third of them is, then the circuit opens, by the slow ones alone.
#[test]
fn slowness_is_learnt_like_failure() {
    let clock = ManualClock::new();
    let breaker = builder(&clock).slow_calls(SECOND, 0.5).build().unwrap();
    let timed = |slow: bool| {
        let permit = breaker.try_admit(1).unwrap();
        clock.advance(if slow { 2 * SECOND } else { SECOND });
        permit.finish(Outcome::Success);
    };
    (0..1_001).for_each(|n| timed(n % 10 == 9));
    assert_eq!(breaker.metrics().usual_slow_rate(), Some(0.1));
    let more = (0..).take_while(|n| {
        let goes = breaker.state() == Closed;
        if goes {
            timed(n % 3 == 0);
        }
        goes
    });
    assert!(more.count() < 100);
    assert_eq!((breaker.state(), breaker.metrics().failed), (Open, 0));
}

/// Measuring only, it learns and does not open.
#[test]
fn metrics_alone_teach_as_well() {
    let clock = ManualClock::new();
    let breaker = builder(&clock).build().unwrap();
    breaker.metrics_only();
    taught(&breaker, 1_000, 2);
    assert_eq!(breaker.metrics().usual_failure_rate(), Some(0.5));
    breaker.reset();
    calls(&breaker, 10, 2);
    assert_eq!(breaker.state(), Closed);
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let build = |history: History| CircuitBreaker::builder().adaptive(history).build().unwrap_err();
    for (history, message) in [
        (
            History::new().deviations(0.0),
            "history: 0 deviations were given, and above 0 to 100 is allowed",
        ),
        (
            History::new().deviations(f64::NAN),
            "history: NaN deviations were given, and above 0 to 100 is allowed",
        ),
        (
            History::new().least(0.0),
            "least threshold: 0 was given, and above 0 (a millionth at least) to 1 is allowed",
        ),
        (
            History::new().memory(0),
            "memory of history: 0 was given, and 1 to 3276800 is allowed",
        ),
        (
            History::new().memory(3_276_801),
            "memory of history: 3276801 was given, and 1 to 3276800 is allowed",
        ),
    ] {
        assert_eq!(build(history).to_string(), message);
    }
}

proptest! {
    #![proptest_config(cases(64))]

    /// Whatever has been seen, a threshold is between the least and the rate that is set, and calls that all succeed open
    /// nothing.
    #[test]
    fn thresholds_stay_within_their_bounds(
        results in prop::collection::vec((any::<bool>(), 1u64..2_000), 0..300),
        memory in 1u64..5_000,
        (least, most) in (0.001f64..1.0, 0.001f64..1.0),
    ) {
        let clock = ManualClock::new();
        let history = History::new().memory(memory).least(least);
        let breaker = CircuitBreaker::builder().failure_rate(most).adaptive(history).on(&clock).build().unwrap();
        breaker.metrics_only();
        for (failed, n) in results {
            breaker.try_admit(n).unwrap().finish(if failed { Outcome::Failure } else { Outcome::Success });
            let metrics = breaker.metrics();
            let threshold = metrics.failure_threshold().unwrap();
            prop_assert!(threshold <= most && threshold + 1e-6 >= least.min(most), "{least} {threshold} {most}");
            prop_assert!(metrics.usual_failure_rate().is_none_or(|usual| (0.0..=1.0).contains(&usual)));
        }
        breaker.reset();
        calls(&breaker, 300, u64::MAX);
        prop_assert!(breaker.state() != HalfOpen && breaker.state() != Open);
    }
}
