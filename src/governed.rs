//! A governor rate limiter as a leg.

use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::core::status::{Description, State};
use crate::sync::shim::Mutex;
use crate::sync::wait_queue::{Place, WaitQueue, Watch};
use crate::time::{Clock, Instant};
use governor::clock::Reference;
use governor::middleware::RateLimitingMiddleware;
use governor::nanos::Nanos;
use governor::state::direct::{DirectStateStore, NotKeyed};
use governor::{NotUntil, RateLimiter};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

const LEG: &str = "governor";

/// Puts an existing rate limiter of governor into a policy, as its *last* leg: a direct one, of any clock and store.
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
///
/// **Lost units**: governor cannot give back. Its admissions are spent, also when a leg behind it refuses, or when the caller goes
/// away before it sees its permit. So the law that a cancel restores what was taken is not kept, and it has to be the last leg. Nor are
/// charges corrected: [`settle`](crate::Permit::settle) does not count it. Prefer a [`TokenBucket`](crate::TokenBucket), which admits the
/// same and gives back.
///
/// A request for more than the burst, or than `u32::MAX`, is `Oversized`; any other refusal is `RateExceeded`, with
/// governor's own time to wait as `retry_after`.
///
/// # Waiting
/// Governor decides by its own clock, and names the instant of its next cell only by refusing. A policy asks it, is refused, and
/// waits until the instant of that refusal; beforehand nothing is known, so a deadline may turn out to be too short only when the waiter is
/// the first.
///
/// # Eviction
/// It never says that it is [as new](crate::status::Description::is_as_new): governor does not show its state without taking a cell. So a
/// [`Keyed`](crate::Keyed) does not evict one.
pub struct Governed {
    check: Box<dyn Fn(NonZeroU32) -> Verdict + Send + Sync>,
    clock: Clock,
    refused: Mutex<Refused>,
    queue: WaitQueue,
}

/// The latest refusal of governor: fewer units than these may be there earlier.
#[derive(Default)]
struct Refused {
    units: u64,
    until: Instant,
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
            refused: Mutex::new(Refused::default()),
            queue: WaitQueue::new(LEG),
        }
    }

    /// The same, for a policy that waits by `clock`. It should run at the speed of governor's.
    #[must_use]
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self.refused = Mutex::new(Refused::default());
        self
    }

    /// `units` as a number of governor's.
    fn number(units: u64) -> Result<u32, Refusal> {
        u32::try_from(units).map_err(|_| Refusal::new(Reason::Oversized, LEG, Wait::Never))
    }

    /// What the latest refusal says of `units` at `now`.
    fn judge(&self, units: u64, now: Instant) -> Result<(), Refusal> {
        Self::number(units)?;
        let refused = self.refused.lock();
        match refused.units <= units && now < refused.until {
            true => Err(self.not_before(now, refused.until)),
            false => Ok(()),
        }
    }

    fn not_before(&self, now: Instant, at: Instant) -> Refusal {
        Refusal::new(Reason::RateExceeded, LEG, Wait::until(&self.clock, now, at))
    }
}

impl Limiter for Governed {
    type Ticket = ();

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let units = demand.units();
        let now = demand.now(&self.clock);
        self.queue.check(demand, |units, _| self.judge(units, now))?;
        let Some(n) = NonZeroU32::new(Self::number(units)?) else {
            return Ok(());
        };
        match (self.check)(n) {
            Verdict::Admitted => Ok(()),
            Verdict::NotBefore(wait) => {
                // From now on, whatever the shared reading is: governor has looked at its own clock.
                let now = self.clock.now();
                let until = self.clock.after(now, wait);
                *self.refused.lock() = Refused { units, until };
                Err(self.not_before(now, until))
            }
            Verdict::Never => Err(Refusal::new(Reason::Oversized, LEG, Wait::Never)),
        }
    }

    /// Governor cannot give back.
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        if demand.place().is_none() {
            // Of others nothing is known: only governor says when it has more, and to ask it is to take.
            return Self::number(demand.units()).map(drop);
        }
        let now = demand.now(&self.clock);
        self.queue.look(demand, |units, _| self.judge(units, now))
    }

    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }

    /// A rate of which only the time of its last refusal is known.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let until = self.refused.lock().until;
        let next = self.clock.between(self.clock.now(), until);
        let leg = Description::new(LEG).on(&self.clock);
        visit(leg.state(State::Opaque { next }));
    }
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
