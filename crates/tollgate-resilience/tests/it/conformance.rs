//! A conformance line for every limiter of the crate.

use std::time::Duration;
use tollgate::{Ask, Inherit, LimiterExt, ManualClock, Outcome, Quota, Semaphore, TokenBucket};
use tollgate_conformance::Suite;
use tollgate_resilience::CircuitBreaker;
use tollgate_resilience::shed::{RetryBudget, Throttler};
use tollgate_resilience::upstream::{Feedback, Refill, RemainingQuota, Upstream};

/// An upstream that has just said that `limit` calls are left.
fn upstream_with(clock: &ManualClock, limit: u64, refill: Refill) -> Upstream {
    let upstream = Upstream::builder().on(clock).build().unwrap();
    let call = upstream.begin(&Ask::one()).unwrap();
    let window = Duration::from_millis(500);
    let quota = RemainingQuota::of_calls(limit)
        .limit(limit)
        .reset(window)
        .window(window);
    upstream.observe(&call, &Feedback::default().quota(quota.refill(refill)));
    upstream
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn upstream_conforms() {
    let suite = |refill| {
        Suite::of_rate(5, Duration::from_millis(500), move |clock| {
            upstream_with(clock, 5, refill)
        })
        .holding()
        .loosen(move |upstream| {
            let call = upstream.begin(&Ask::many(5)).unwrap();
            let quota = RemainingQuota::of_calls(15).limit(15).reset(Duration::from_secs(9));
            upstream.observe(&call, &Feedback::default().quota(quota.refill(refill)));
        })
        .never_fits(6)
    };
    suite(Refill::AtReset).check();
    suite(Refill::PerSecond(10.0)).inexact_cancel().check();
}

#[test]
fn adaptive_conforms() {
    use tollgate_resilience::Adaptive;
    Suite::of_permits(3, |clock| -> Adaptive {
        let builder = Adaptive::builder(Semaphore::new(3)).bounds(3, 4);
        builder.on(clock).build().unwrap()
    })
    .loosen(|adaptive| adaptive.pin(4))
    .takes_turns()
    .check();
}

#[test]
fn an_adaptive_rate_conforms() {
    use tollgate_resilience::Adaptive;
    Suite::of_rate(3, Duration::from_secs(3), |clock| -> Adaptive<TokenBucket> {
        let bucket = TokenBucket::new(Quota::per_second(1).burst(3)).on(clock);
        Adaptive::builder(bucket).bounds(1, 1_000).on(clock).build().unwrap()
    })
    .loosen(|rate| {
        rate.limiter().set_quota(Quota::per_second(1).burst(6), Inherit::Reset);
    })
    .takes_turns()
    .never_fits(4)
    .check();
}

#[test]
fn shedders_conform() {
    // What is only spent never comes back: beside something that does.
    let budget = || -> RetryBudget { RetryBudget::new(0.1, 1_000_000).unwrap() };
    Suite::of_permits(3, move |_| budget().and(Semaphore::new(3)))
        .takes_turns()
        .check();
    // While a resource accepts, nothing is refused.
    let throttler = |clock: &ManualClock| -> Throttler { Throttler::new(0.01, 0.0, MINUTE).unwrap().on(clock) };
    Suite::of_permits(3, move |clock| throttler(clock).and(Semaphore::new(3)))
        .takes_turns()
        .check();
}

#[test]
fn circuit_breaker_conforms() {
    // Closed it admits everything: beside something that does not.
    Suite::of_permits(3, |clock| {
        let breaker = CircuitBreaker::builder().minimum_calls(1_000_000).time_window(MINUTE);
        breaker.on(clock).build().unwrap().and(Semaphore::new(3))
    })
    .check();
    // Half-open, with probes that are never judged.
    let half_open = |clock: &ManualClock| -> CircuitBreaker {
        let builder = CircuitBreaker::builder().probes(3).classifier(|_, _| Outcome::Ignored);
        // The laws of waiting hold for what is waited for.
        let breaker = builder.wait_while_open().on(clock).build().unwrap();
        breaker.trip(Duration::from_nanos(1));
        clock.advance(Duration::from_nanos(1));
        breaker
    };
    // An ask of more than three is the whole trial, not too much. So the first law is checked beside a leg that refuses
    // it, and gives the probes back.
    Suite::of_permits(3, half_open)
        .loosen(CircuitBreaker::reset)
        .excused(1)
        .check();
    Suite::of_permits(3, move |clock| half_open(clock).and(Semaphore::new(3))).check();
}
