//! What limiters of this crate show of themselves: their status, and the queues in them.

use std::sync::Arc;
use tollgate::status::State;
use tollgate::{Limiter, LimiterExt, ManualClock, Policy, PolicyError, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, Aimd};

fn states(limiter: &impl Limiter) -> Vec<(String, &'static str, State)> {
    let mut states = Vec::new();
    limiter.visit_status(&mut |status| states.push((status.leg.to_owned(), status.kind, status.state)));
    states
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
    let permits = State::Permits {
        limit: 10,
        in_use: 1,
        waiting: 0,
    };
    assert_eq!(states(&found), [("found".to_owned(), "adaptive", permits)]);
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
