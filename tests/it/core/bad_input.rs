//! Every number and text that a public constructor takes, at its edges and beyond: a typed error or a stated meaning,
//! never a panic. Quotas have a table of their own.

use std::time::Duration;
use tollgate::{
    Ask, Cost, LimiterExt, ManualClock, Policy, PolicyError, Quota, Reason, Semaphore, SlidingWindow, TokenBucket,
};

const TOKENS: Cost = Cost::new("tokens");

/// Asks for no, one, and the most units are answered by every limiter.
#[test]
fn extreme_asks_are_answered() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock);
    let window = SlidingWindow::new(1, Duration::from_secs(1)).unwrap().on(&clock);
    let semaphore = Semaphore::new(1);
    for (units, admitted) in [(0, true), (1, true), (2, false), (u64::MAX, false)] {
        assert_eq!(bucket.try_admit(units).is_ok(), admitted, "bucket, {units}");
        assert_eq!(window.try_admit(units).is_ok(), admitted, "window, {units}");
        assert_eq!(semaphore.try_admit(units).is_ok(), admitted, "semaphore, {units}");
    }
    assert_eq!(semaphore.try_admit(u64::MAX).unwrap_err().reason(), Reason::Oversized);
}

#[test]
fn extreme_settlements_saturate() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(1).burst(10)).on(&clock);
    let gate = bucket.per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 5)).unwrap();
    for actual in [u64::MAX, 0, u64::MAX, 5] {
        permit.settle(TOKENS, actual).unwrap();
    }
    assert!(permit.settle(Cost::new("bytes"), 1).is_err());
    drop(permit);
    // Whatever that came to, it never holds more than its burst.
    assert!(gate.try_admit(Ask::one().cost(TOKENS, 11)).is_err());
}

#[test]
fn more_costs_than_fit_are_unpriced_not_free() {
    let ask = (0..5).fold(Ask::one(), |ask, index| {
        ask.cost(Cost::new(["a", "b", "c", "d", "e"][index]), 1)
    });
    assert_eq!((ask.of(Cost::new("d")), ask.of(Cost::new("e"))), (Some(1), None));
    let gate = Semaphore::new(1).per(Cost::new("e"));
    assert_eq!(gate.try_admit(ask).unwrap_err().reason(), Reason::Unpriced);
}

#[test]
fn a_policy_that_cannot_be_is_refused_with_its_reason() {
    let (clock, other) = (ManualClock::new(), ManualClock::new());
    let bucket = |clock: &ManualClock| TokenBucket::new(Quota::per_second(1)).on(clock);
    let mixed = Policy::builder().limit(bucket(&clock)).limit(bucket(&other)).build();
    assert_eq!(mixed.unwrap_err(), PolicyError::OtherClock { leg: 1 });
    let slots = std::sync::Arc::new(Semaphore::new(1));
    let legs = Policy::builder()
        .limit(std::sync::Arc::clone(&slots))
        .limit(bucket(&clock));
    let doubled = legs.limit(slots).build();
    assert_eq!(doubled.unwrap_err(), PolicyError::SameQueue { leg: 2 });
}

#[test]
fn bounds_of_the_queue_take_any_value() {
    let clock = ManualClock::new();
    for (max_wait, max_queue, reason) in [
        (Duration::ZERO, usize::MAX, Reason::TimedOut),
        (Duration::MAX, 0, Reason::QueueFull),
    ] {
        let policy = Policy::builder()
            .limit(TokenBucket::new(Quota::per_second(1)).on(&clock))
            .max_wait(max_wait)
            .max_queue(max_queue)
            .lateness(Duration::MAX)
            .build()
            .unwrap();
        clock.run(async {
            policy.admit(1).await.unwrap().forget();
            assert_eq!(policy.admit(1).await.unwrap_err().reason(), reason);
            assert!(policy.admit_timeout(1, Duration::MAX).await.is_err());
        });
    }
}
