//! A governor rate limiter as a leg.

use crate::core::ask::Demand;
use crate::core::limiter::{Callbacks, Limiter, Outcome};
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::core::status::{State, Status};
use crate::time::{Clock, ClockReading, Instant};
use governor::clock::Reference;
use governor::middleware::RateLimitingMiddleware;
use governor::nanos::Nanos;
use governor::state::direct::{DirectStateStore, NotKeyed};
use governor::{NotUntil, RateLimiter};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LEG: &str = "governor";

/// A direct rate limiter of governor, of any clock and store, as the *last* leg of a policy.
///
/// Last, since governor cannot give back: its admissions are spent, also when a leg behind it refuses, or when the caller goes
/// away before it sees its permit. So law 3 is not kept: a cancel restores nothing. Nor are charges corrected:
/// [`settle`](crate::Permit::settle) does not count it. Prefer a [`TokenBucket`](crate::TokenBucket), which admits the same and
/// gives back.
///
/// Governor decides by its own clock, and names the instant of its next cell only by refusing. A policy asks it, is refused, and
/// waits until the instant of that refusal; [`ready_at`](Limiter::ready_at) knows nothing beforehand, so law 8 holds as a
/// bound, and is not tight.
///
/// It never says that it is [pristine](Limiter::is_pristine): governor does not show its state without taking a cell. So a
/// [`Keyed`](crate::Keyed) does not drop one.
///
/// A request for more than the burst, or than `u32::MAX`, is `Oversized`; any other refusal is `RateExceeded`, with
/// governor's own time to wait as `retry_after`.
///
/// ```
/// # use governor::{Quota, RateLimiter};
/// # use std::num::NonZeroU32;
/// # use std::time::Duration;
/// # use tollgate::{Ask, Governed, LimiterExt, ManualClock, Semaphore};
/// let clock = ManualClock::new();
/// let quota = Quota::per_second(NonZeroU32::new(10).unwrap()).allow_burst(NonZeroU32::new(1).unwrap());
/// // A clock of this crate is a clock for governor, too.
/// let existing = RateLimiter::direct_with_clock(quota, clock.clock().clone());
/// let gate = Semaphore::new(4).and(Governed::new(existing).on(&clock));
/// assert!(gate.try_admit(Ask::one()).is_ok());
/// let refused = gate.try_admit(Ask::one()).unwrap_err();
/// assert_eq!((refused.leg(), refused.retry_after()), ("governor", Some(Duration::from_millis(100))));
/// ```
pub struct Governed {
    check: Box<dyn Fn(NonZeroU32) -> Verdict + Send + Sync>,
    clock: Clock,
    /// When the latest refusal said that there would be more, in ticks.
    due: AtomicU64,
}

enum Verdict {
    Admitted,
    NotBefore(Duration),
    Never,
}

impl Governed {
    /// A leg that asks `limiter`, which may be in an [`Arc`] and in use elsewhere.
    pub fn new<S, C, MW>(limiter: impl Into<Arc<RateLimiter<NotKeyed, S, C, MW>>>) -> Self
    where
        S: DirectStateStore + Send + Sync + 'static,
        C: governor::clock::Clock + Send + Sync + 'static,
        MW: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>> + Send + Sync + 'static,
    {
        let limiter = limiter.into();
        let check = move |n| match limiter.check_n(n) {
            Ok(Ok(_)) => Verdict::Admitted,
            Ok(Err(until)) => Verdict::NotBefore(until.wait_time_from(limiter.clock().now())),
            Err(_) => Verdict::Never,
        };
        Self {
            check: Box::new(check),
            clock: Clock::real(),
            due: AtomicU64::new(0),
        }
    }

    /// The same, for a policy that waits by `clock`. It should run at the speed of governor's.
    #[must_use]
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self.due = AtomicU64::new(0);
        self
    }
}

impl Limiter for Governed {
    type Ticket = ();

    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        let units = demand.units();
        let never = Refusal::new(Reason::Oversized, LEG, units, Wait::Never);
        let Ok(small) = u32::try_from(units) else {
            return Err(never);
        };
        let Some(n) = NonZeroU32::new(small) else {
            return Ok(());
        };
        match (self.check)(n) {
            Verdict::Admitted => Ok(()),
            Verdict::NotBefore(wait) => {
                // From now on, whatever the shared reading is: governor has looked at its own clock.
                let now = self.clock.now();
                let at = self.clock.after(now, wait);
                // Relaxed: a number that is only shown.
                self.due.store(at.ticks(), Ordering::Relaxed);
                let due = Due::at(&self.clock, now, at);
                Err(Refusal::new(Reason::RateExceeded, LEG, units, Wait::Until(due)))
            }
            Verdict::Never => Err(never),
        }
    }

    /// Governor cannot give back.
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}

    #[inline]
    fn callbacks(&self) -> Callbacks {
        Callbacks::NONE
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        if demand.units() > u32::MAX.into() {
            return ReadyAt::never_for(Reason::Oversized, LEG, demand.units());
        }
        ReadyAt::NOW
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    /// A rate of which only the time of its last refusal is known.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let due = Instant::from_ticks(self.due.load(Ordering::Relaxed));
        let next = self.clock.between(self.clock.now(), due);
        visit(Status::new(LEG, LEG, State::Opaque { next }));
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn crate::sync::wait_queue::WaitQueue)) {}
}

impl fmt::Debug for Governed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Governed")
    }
}

/// So that a governor limiter runs in virtual time, beside limiters of this crate: nanoseconds since the clock's zero.
impl governor::clock::Clock for Clock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::from(self.between(Instant::ZERO, Clock::now(self)))
    }
}

// The implementation above relies on this.
const _: fn() = || {
    fn is_reference<T: Reference>() {}
    is_reference::<Nanos>();
};
