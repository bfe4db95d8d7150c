//! Limiters of this crate in a box.

use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Semaphore};
use tollgate_resilience::CircuitBreaker;
use tollgate_resilience::shed::Throttler;

/// A breaker and a throttler learn how the work ended.
#[test]
fn outcomes_pass_through_a_box() {
    let clock = ManualClock::new();
    let breaker = || {
        let builder = CircuitBreaker::builder().minimum_calls(5).on(&clock);
        builder.build().unwrap()
    };
    let boxed = breaker().boxed();
    let legs = Policy::builder()
        .limit(breaker())
        .limit(Semaphore::new(9))
        .build()
        .unwrap();
    for _ in 0..5 {
        boxed.try_admit(1).unwrap().finish(Outcome::Failure);
        legs.try_admit(1).unwrap().finish(Outcome::Failure);
    }
    assert!(
        boxed.try_admit(1).is_err() && legs.try_admit(1).is_err(),
        "both are open"
    );

    let throttler = std::sync::Arc::new(
        Throttler::new(0.5, 0.9, Duration::from_secs(120))
            .unwrap()
            .on(&clock)
            .seed(7),
    );
    let boxed = throttler.clone().boxed();
    for _ in 0..1_000 {
        if let Ok(permit) = boxed.try_admit(1) {
            permit.finish(Outcome::Overload);
        }
    }
    assert!(throttler.rate() > 0.89);
    clock.advance(Duration::from_secs(132));
    for outcome in [Outcome::Success, Outcome::Overload] {
        for _ in 0..100 {
            boxed.try_admit(1).unwrap().finish(outcome);
        }
    }
    assert_eq!(throttler.rate(), 0.0, "half of them succeeded");
}
