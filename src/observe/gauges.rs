//! What changes all the time, set when somebody asks for it.

use crate::breaker::BreakerState;
use crate::limiter::Limiter;
use crate::standing::State;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};

/// Sets the gauges of all legs of `limiter`, under `name` and the names of the legs: call it before each scrape, or once a
/// second. Legs of one limiter that have one name share their gauges.
pub fn record(name: &'static str, limiter: &(impl Limiter + ?Sized)) {
    limiter.survey(&mut |standing| {
        let (leg, kind) = (standing.leg.to_owned(), standing.kind);
        let set = |metric: &'static str, value: f64| {
            gauge!(metric, "limiter" => name, "leg" => leg.clone(), "kind" => kind).set(value);
        };
        match standing.state {
            State::Permits { limit, in_use, waiting } => {
                set(super::PERMITS_LIMIT, limit as f64);
                set(super::PERMITS_IN_USE, in_use as f64);
                set(super::WAITERS, waiting as f64);
                if kind == "adaptive" {
                    set(super::ADAPTIVE_LIMIT, limit as f64);
                }
            }
            State::Rate { limit, available, .. } => {
                set(super::RATE_LIMIT, limit as f64);
                set(super::RATE_AVAILABLE, available as f64);
            }
            State::Breaker { state, .. } => set(super::BREAKER_STATE, code(state)),
            State::Line { waiting } => set(super::QUEUE_DEPTH, waiting as f64),
        }
    });
}

/// 0 for closed, 1 for half-open, 2 for open; a circuit that only pretends counts as what it does to callers.
fn code(state: BreakerState) -> f64 {
    match state {
        BreakerState::Closed | BreakerState::Disabled | BreakerState::MetricsOnly => 0.0,
        BreakerState::HalfOpen => 1.0,
        BreakerState::Open | BreakerState::ForcedOpen => 2.0,
    }
}

/// Tells the recorder the unit of each metric, and what it means. Once, after the recorder has been installed.
pub fn describe() {
    describe_counter!(super::ACQUIRE_TOTAL, Unit::Count, "admissions asked for, by outcome");
    describe_counter!(super::REFUSALS_TOTAL, Unit::Count, "refusals, by the leg that refused");
    describe_histogram!(super::WAIT_TIME, Unit::Seconds, "time from asking to admission");
    describe_histogram!(
        super::HELD_TIME,
        Unit::Seconds,
        "time from admission to the end of the work"
    );
    describe_gauge!(super::PERMITS_LIMIT, Unit::Count, "permits there are");
    describe_gauge!(super::PERMITS_IN_USE, Unit::Count, "permits held");
    describe_gauge!(super::WAITERS, Unit::Count, "how many wait for a permit");
    describe_gauge!(
        super::ADAPTIVE_LIMIT,
        Unit::Count,
        "the limit that an adaptive limit has found"
    );
    describe_gauge!(super::RATE_LIMIT, Unit::Count, "a bucket's burst, or a window's limit");
    describe_gauge!(super::RATE_AVAILABLE, Unit::Count, "what could be taken now");
    describe_gauge!(super::BREAKER_STATE, Unit::Count, "0 closed, 1 half-open, 2 open");
    describe_gauge!(super::QUEUE_DEPTH, Unit::Count, "how many stand in a policy's line");
}
