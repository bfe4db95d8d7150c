//! What was in the way of a wait that failed: the leg and its reason.

use std::any::Any;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::policy::BoxLimiter;
use tollgate::{Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, Reason, Refusal, Semaphore, TokenBucket};
use tollgate_resilience::CircuitBreaker;
use tollgate_resilience::adaptive::Adaptive;

const MINUTE: Duration = Duration::from_secs(60);

/// A policy of which one leg, neither the first nor the last, admits nothing for a minute.
struct Bound {
    kind: &'static str,
    cause: Reason,
    policy: Policy<BoxLimiter>,
    _held: Box<dyn Any>,
}

impl Bound {
    fn by(kind: &'static str, cause: Reason, clock: &ManualClock, leg: impl Limiter + 'static, held: impl Any) -> Self {
        let rate = TokenBucket::new(Quota::per_second(100)).on(clock);
        let policy = Policy::builder()
            .limit(rate.named("free"))
            .limit(leg.named("binds"))
            .limit(Semaphore::new(9).named("in flight"));
        let policy = policy.boxed().max_queue(1).on(clock).build().unwrap();
        let _held = Box::new(held);
        Self {
            kind,
            cause,
            policy,
            _held,
        }
    }

    fn all(clock: &ManualClock) -> Vec<Self> {
        let adaptive = Arc::new(Adaptive::builder(Semaphore::new(1)).on(clock).build().unwrap());
        let learnt = adaptive.try_admit_owned(1).unwrap();
        let breaker = CircuitBreaker::builder().consecutive_failures(1).wait_while_open();
        let breaker = breaker
            .open_for(tollgate_resilience::OpenTime::fixed(MINUTE))
            .on(clock)
            .build()
            .unwrap();
        breaker.try_admit(1).unwrap().finish(Outcome::Failure);
        vec![
            Self::by("adaptive limit", Reason::Saturated, clock, adaptive, learnt),
            Self::by("breaker", Reason::CircuitOpen, clock, breaker, ()),
        ]
    }

    #[track_caller]
    fn says(&self, refused: Refusal, reason: Reason) {
        assert_eq!(
            (refused.reason(), refused.cause(), refused.leg()),
            (reason, Some(self.cause), "binds"),
            "{}",
            self.kind
        );
    }

    /// A time-out and a full queue name the leg and its reason.
    fn check(&self, clock: &ManualClock) {
        clock.run(async {
            let refused = self.policy.admit_timeout(1, Duration::from_secs(1)).await;
            self.says(refused.unwrap_err(), Reason::TimedOut);
            let mut waits = pin!(self.policy.admit(1));
            let first = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(first, Poll::Pending), "{}", self.kind);
            self.says(self.policy.admit(1).await.unwrap_err(), Reason::QueueFull);
        });
    }
}

/// Given a leg that admits nothing, when a wait for it times out or finds the queue full, then the refusal names that leg and its
/// own reason.
#[test]
fn a_wait_that_fails_names_the_leg_in_the_way_and_why() {
    let clock = ManualClock::new();
    for bound in Bound::all(&clock) {
        bound.check(&clock);
    }
}

/// Given a circuit that opens again after the deadline, then the refusal comes at once, and its text says all of it.
#[test]
fn the_text_of_a_time_out_says_what_was_in_the_way() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder().consecutive_failures(1).wait_while_open();
    let breaker = breaker
        .open_for(tollgate_resilience::OpenTime::fixed(MINUTE))
        .on(&clock)
        .build()
        .unwrap();
    breaker.try_admit(1).unwrap().finish(Outcome::Failure);
    let policy = Policy::builder()
        .limit(breaker.named("downstream"))
        .on(&clock)
        .build()
        .unwrap();
    let refused = clock.run(policy.admit_timeout(1, Duration::from_secs(1))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "limiter `downstream` did not admit in time: it has an open circuit"
    );
    assert!(clock.elapsed().is_zero(), "known at once");
}
