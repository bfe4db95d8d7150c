//! What limiters of this crate show of themselves: their status, and the queues in them.

use std::sync::Arc;
use std::time::Duration;
use tollgate::status::State;
use tollgate::{Description, Limiter, LimiterExt, ManualClock, Outcome, Policy, PolicyError, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, Aimd};
use tollgate_resilience::shed::{RetryBudget, Throttler};
use tollgate_resilience::{BreakerState, CircuitBreaker};

const SECOND: Duration = Duration::from_secs(1);

/// One line for each leg: its name, its kind, what it counts if not calls, and its numbers.
fn described(limiter: &impl Limiter) -> Vec<String> {
    let mut lines = Vec::new();
    limiter.describe(&mut |leg: Description<'_>| {
        let cost = leg.cost.map_or(String::new(), |cost| format!(" of {}", cost.name()));
        let numbers = match leg.state {
            State::Permits { limit, in_use, waiting } => format!("{in_use}/{limit} +{waiting}"),
            State::Breaker { state, open_for } => format!("{state:?} {open_for:?}"),
            State::Budget { limit, available } => format!("{available}/{limit} kept"),
            State::Shed { likelihood } => format!("{likelihood:.3} shed"),
            other => panic!("{other:?}"),
        };
        lines.push(format!("{} ({}){cost}: {numbers}", leg.leg, leg.kind));
    });
    lines
}

#[test]
fn an_adaptive_limit_shows_its_permits_under_its_name() {
    let clock = ManualClock::new();
    let found = Adaptive::builder(Semaphore::new(10))
        .bounds(1, 20)
        .on(&clock)
        .build()
        .unwrap();
    let found = found.named("found");
    let _permit = found.try_admit(1).unwrap();
    assert_eq!(described(&found), ["found (adaptive): 1/10 +0"]);
}

#[test]
fn an_adaptive_limit_hides_no_queue() {
    let clock = ManualClock::new();
    let semaphore = Arc::new(Semaphore::new(5));
    let adaptive = Adaptive::builder(Arc::clone(&semaphore)).law(Aimd::new()).bounds(1, 10);
    let adaptive = adaptive.on(&clock).build().unwrap();
    let built = Policy::builder().on(&clock).limit(adaptive).limit(semaphore).build();
    assert_eq!(built.unwrap_err(), PolicyError::SameQueue { leg: 1 });
}

#[test]
fn shedders_report_the_remainder_or_the_refusal_probability() {
    let clock = ManualClock::new();
    let budget = RetryBudget::new(0.5, 3).unwrap();
    let _retry = budget.try_admit(2).unwrap();
    assert_eq!(described(&budget), ["retry_budget (retry_budget): 1/3 kept"]);

    let throttler = Throttler::new(1.0, 0.9, 10 * SECOND).unwrap().on(&clock).seed(1);
    assert_eq!(described(&throttler), ["throttler (throttler): 0.000 shed"]);
    throttler.try_admit(1).unwrap().finish(Outcome::Overload);
    // One was asked, none accepted: 1 of 1 + 1.
    assert_eq!(described(&throttler), ["throttler (throttler): 0.500 shed"]);
}

#[test]
fn a_breaker_says_how_long_it_stays_open() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder().count_window(1).minimum_calls(1).on(&clock);
    let breaker = breaker
        .open_for(tollgate_resilience::OpenTime::fixed(3 * SECOND))
        .build()
        .unwrap();
    assert_eq!(described(&breaker), ["breaker (breaker): Closed None"]);
    breaker.try_admit(1).unwrap().finish(Outcome::Failure);
    clock.advance(SECOND);
    assert_eq!(
        (breaker.state(), described(&breaker)),
        (BreakerState::Open, vec!["breaker (breaker): Open Some(2s)".into()])
    );
}
