//! What was in the way of a wait that failed: the leg and its reason, whatever the leg is, here or at a store.

use std::any::Any;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::policy::BoxLimiter;
use tollgate::{
    FixedWindow, LeakyBucket, Limiter, LimiterExt, ManualClock, Policy, Quota, Reason, Refusal, Semaphore, SlidingLog,
    SlidingWindow, TokenBucket,
};

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

    /// By a rate or a window, which one admission uses up.
    fn by_rate(kind: &'static str, clock: &ManualClock, leg: impl Limiter + 'static) -> Self {
        let leg = Arc::new(leg);
        leg.try_admit(1).unwrap().forget();
        Self::by(kind, Reason::RateExceeded, clock, leg, ())
    }

    fn all(clock: &ManualClock) -> Vec<Self> {
        let hour = Quota::per_hour(1);
        let permits = Arc::new(Semaphore::new(1));
        let held = permits.try_admit_owned(1).unwrap();
        vec![
            Self::by("semaphore", Reason::Saturated, clock, permits, held),
            Self::by_rate("token bucket", clock, TokenBucket::new(hour).on(clock)),
            Self::by_rate("leaky bucket", clock, LeakyBucket::new(hour).on(clock)),
            Self::by_rate("fixed window", clock, FixedWindow::new(1, MINUTE).unwrap().on(clock)),
            Self::by_rate(
                "sliding window",
                clock,
                SlidingWindow::new(1, MINUTE).unwrap().on(clock),
            ),
            Self::by_rate("sliding log", clock, SlidingLog::new(1, MINUTE).unwrap().on(clock)),
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

/// The same of legs that answer over a network, whose permits and tokens another process has.
#[cfg(feature = "remote")]
#[test]
fn a_wait_that_fails_at_a_remote_leg_names_it_and_why() {
    use tollgate::remote::{Key, Memory, Remote, RemoteBuilder};
    let clock = ManualClock::new();
    clock.advance(MINUTE);
    let key = || Key::new("shared").unwrap();
    let permits = || Remote::permits(key(), 1);
    let rate = || Remote::rate(key(), Quota::per_hour(1));
    let window = || Remote::window(key(), 1, 10 * MINUTE);
    let legs: [(_, _, &dyn Fn() -> RemoteBuilder); 3] = [
        ("permits", Reason::Saturated, &permits),
        ("rate", Reason::RateExceeded, &rate),
        ("window", Reason::RateExceeded, &window),
    ];
    for (kind, cause, builder) in legs {
        let store = Arc::new(Memory::new(&clock));
        let machine = || Arc::new(builder().on(&clock).in_place(Arc::clone(&store)).unwrap());
        let (here, there) = (machine(), machine());
        let held = clock.run(Arc::clone(&there).acquire_owned(1)).unwrap();
        Bound::by(kind, cause, &clock, here, held).check(&clock);
    }
}

/// A remote leg that no wait can open refuses for its own reason, at once.
#[cfg(feature = "remote")]
#[test]
fn a_closed_remote_leg_refuses_for_its_own_reason() {
    use tollgate::remote::{Key, Memory, Remote};
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let remote = Remote::permits(Key::new("shared").unwrap(), 1).on(&clock);
    let remote = Arc::new(remote.in_place(store).unwrap());
    let bound = Bound::by("closed", Reason::Closed, &clock, Arc::clone(&remote), ());
    clock.run(remote.close());
    let refused = clock.run(bound.policy.admit(1)).unwrap_err();
    assert_eq!(
        (refused.reason(), refused.cause(), refused.leg()),
        (Reason::Closed, None, "binds")
    );
}

/// Given a rate of zero whose burst is spent, then neither a wait that fails nor a full queue names an instant, and the refusal says that
/// no instant will do.
#[test]
fn a_wait_for_what_never_comes_back_is_not_retryable() {
    let clock = ManualClock::new();
    let spent = TokenBucket::new(Quota::zero().burst(1)).on(&clock);
    spent.try_acquire(1).unwrap();
    let policy = Policy::builder().limit(spent).limit(Semaphore::new(9)).max_queue(1);
    let policy = policy.on(&clock).build().unwrap();
    let mut first = pin!(policy.admit_timeout(1, MINUTE));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    let full = clock.run(policy.admit(1)).unwrap_err();
    let late = clock.run(first).unwrap_err();
    for (refused, reason) in [(full, Reason::QueueFull), (late, Reason::TimedOut)] {
        assert_eq!(
            (refused.reason(), refused.cause()),
            (reason, Some(Reason::RateExceeded))
        );
        assert_eq!(
            (refused.is_retryable(), refused.retry_after()),
            (false, None),
            "{reason:?}"
        );
    }
}
