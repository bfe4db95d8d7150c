//! The throttler and the retry budget.

use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Reason};
use tollgate_resilience::shed::{RetryBudget, ShedError, Throttler};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_throttler_refuses_requests_that_the_service_would_refuse() {
    let clock = ManualClock::new();
    let throttler = Throttler::new(0.5, 0.9, 120 * SECOND).unwrap().on(&clock).seed(1);
    // The resource takes one in four: no more than about twice that are sent.
    let (mut sent, mut asked) = (0u32, 0u32);
    for second in 0..1_000u32 {
        clock.advance(SECOND);
        for request in 0..20 {
            asked += u32::from(second >= 200);
            if let Ok(permit) = throttler.try_admit(1) {
                sent += u32::from(second >= 200);
                let taken = request % 4 == 0;
                permit.finish(if taken { Outcome::Success } else { Outcome::Overload });
            }
        }
    }
    // Sent x with x / 4 accepted and asked 1: x = 1 - (1 - x / 2), so it goes down to the least that always goes.
    assert!(sent * 10 >= asked && sent * 5 < asked, "{sent} of {asked}");
    // Once the resource takes everything, nothing is refused soon after.
    for _ in 0..600 {
        clock.advance(SECOND);
        for _ in 0..20 {
            let _ = throttler.try_admit(1).map(|permit| permit.finish(Outcome::Success));
        }
    }
    assert_eq!(throttler.rate(), 0.0);
    assert_eq!(
        throttler.try_admit(1).map(drop).map_err(|refusal| refusal.reason()),
        Ok(())
    );
}

#[test]
fn cancelled_and_ignored_requests_do_not_count() {
    let clock = ManualClock::new();
    let throttler = Throttler::new(0.5, 0.9, 120 * SECOND).unwrap().on(&clock);
    for _ in 0..1_000 {
        throttler.try_admit(1).unwrap().cancel();
        drop(throttler.try_admit(1).unwrap());
    }
    assert_eq!(throttler.rate(), 0.0);
    throttler.try_admit(1).unwrap().finish(Outcome::Overload);
    assert_eq!(throttler.rate(), 0.5);
}

#[test]
fn retries_are_a_part_of_the_requests() {
    let budget = RetryBudget::new(0.1, 10).unwrap();
    let mut retries = 0;
    for _ in 0..1_000 {
        budget.deposit();
        // Everything fails, and everything is tried again while it may be.
        retries += std::iter::from_fn(|| budget.try_admit(1).ok()).count();
    }
    // The first deposit found the reserve full.
    assert_eq!(retries, 10 + 99);
    // A retry that is not made after all is given back, and no more than is kept.
    budget.deposit();
    (0..9).for_each(|_| budget.deposit());
    budget.try_admit(1).unwrap().cancel();
    assert_eq!(budget.available(), 1);
    let _ = budget.try_admit(u64::MAX).unwrap_err();
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let errors: [(ShedError, &str); 3] = [
        (
            Throttler::new(0.0, 0.5, SECOND).unwrap_err(),
            "accept rate: 0 was given, and 0.01 to 1 is allowed",
        ),
        (
            Throttler::new(0.5, 0.5, Duration::ZERO).unwrap_err(),
            "a window of 0ns was given, and above zero to 365 days is allowed",
        ),
        (
            RetryBudget::new(-0.1, 1).unwrap_err(),
            "ratio: -0.1 was given, and 0 to 1000 is allowed",
        ),
    ];
    for (error, message) in errors {
        assert_eq!(error.to_string(), message);
    }
}

/// No deposit fills a reserve that is too small.
#[test]
fn a_request_for_more_than_the_reserve_is_refused_for_good() {
    let budget = RetryBudget::new(1.0, 2).unwrap();
    let waits = |n| {
        let refused = budget.try_admit(n).unwrap_err();
        (refused.reason(), refused.reason().is_permanent())
    };
    assert_eq!(waits(3), (Reason::Oversized, true));
    assert_eq!(waits(u64::MAX), (Reason::Oversized, true));
    budget.try_admit(1).unwrap().forget();
    assert_eq!(waits(2), (Reason::Saturated, false));
}
