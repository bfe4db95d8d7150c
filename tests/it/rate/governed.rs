//! A governor limiter as the last leg of a policy.

use governor::clock::FakeRelativeClock;
use governor::middleware::StateInformationMiddleware;
use governor::{Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, Governed, LimiterExt, ManualClock, Policy, Reason, Semaphore};

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn on(clock: &ManualClock, rate: u32, burst: u32) -> Governed {
    let quota = Quota::per_second(number(rate)).allow_burst(number(burst));
    Governed::new(RateLimiter::direct_with_clock(quota, clock.clock().clone())).on(clock)
}

#[test]
fn its_errors_become_refusals() {
    let clock = ManualClock::new();
    let gate = on(&clock, 10, 5);
    assert!(gate.try_admit(0).is_ok());
    for too_many in [6, u64::from(u32::MAX) + 1, u64::MAX] {
        let refused = gate.try_admit(too_many).unwrap_err();
        assert_eq!(refused.reason(), Reason::Oversized);
    }
    assert!(gate.try_admit(5).is_ok());
    let refused = gate.try_admit(2).unwrap_err();
    assert_eq!((refused.reason(), refused.leg()), (Reason::RateExceeded, "governor"));
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
    clock.advance(Duration::from_nanos(199_999_999));
    assert!(gate.try_admit(2).is_err());
    clock.advance(Duration::from_nanos(1));
    assert!(gate.try_admit(2).is_ok());
}

/// Given a policy whose last leg is governor, when many wait, then they are admitted in order, each at its instant, although
/// governor itself knows no line.
#[test]
fn a_policy_waits_for_it_in_order() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(Semaphore::new(100))
        .limit(on(&clock, 10, 1))
        .on(&clock)
        .build()
        .unwrap();
    clock.run(async {
        let order = std::sync::Mutex::new(Vec::new());
        let waits = (0..5).map(|who| {
            let (policy, order, clock) = (&policy, &order, &clock);
            async move {
                let permit = policy.admit(1).await.unwrap();
                order.lock().unwrap().push((who, clock.elapsed().as_millis()));
                drop(permit);
            }
        });
        futures::future::join_all(waits).await;
        assert_eq!(*order.lock().unwrap(), [(0, 0), (1, 100), (2, 200), (3, 300), (4, 400)]);
    });
}

#[test]
fn a_refusal_of_an_earlier_leg_takes_nothing_of_it_and_one_of_a_later_leg_does() {
    let clock = ManualClock::new();
    let closed = Semaphore::new(0);
    let last = (&closed).and(on(&clock, 1, 1));
    assert!(last.try_admit(1).is_err());
    closed.set_limit(1);
    assert!(last.try_admit(1).is_ok());

    closed.set_limit(0);
    let first = on(&clock, 1, 1).and(&closed);
    assert_eq!(first.try_admit(1).unwrap_err().leg(), "semaphore");
    closed.set_limit(1);
    assert_eq!(first.try_admit(1).unwrap_err().leg(), "governor");
}

#[test]
fn any_clock_and_middleware_will_do_and_the_limiter_may_be_shared() {
    let theirs = FakeRelativeClock::default();
    let quota = Quota::per_second(number(1)).allow_burst(number(2));
    let limiter = RateLimiter::direct_with_clock(quota, theirs.clone()).with_middleware::<StateInformationMiddleware>();
    let limiter = Arc::new(limiter);
    let gate = Governed::new(Arc::clone(&limiter));
    assert!(gate.try_admit(Ask::one()).is_ok());
    assert!(limiter.check().is_ok());
    assert!(gate.try_admit(Ask::one()).is_err());
    theirs.advance(Duration::from_secs(1));
    assert!(gate.try_admit(Ask::one()).is_ok());
}
