//! Conditional limits: a limiter that applies only while something else is under load.
//!
//! | type | purpose |
//! |---|---|
//! | [`Meter`] | measures limiters: rate, latency, refusals, units in flight |
//! | [`Metered`] | a limiter of any kind, alone, composed, keyed or pacing, seen by a meter |
//! | [`Load`] | a number that rises and falls, and notifies when it has fallen |
//! | [`Trigger`] | the load above which a limit applies, and the one below which it stops |
//! | [`Conditional`] | a limiter that applies only while a trigger is exceeded |

mod meter;
mod recent;

pub use meter::{Meter, Metered, MeteredTicket};

use crate::core::ask::Demand;
use crate::core::delegate::delegate;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::core::status::Status;
use crate::sync::notify::Notify;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::sync::Arc;

/// A limiter that applies only while a load exceeds a trigger. Made by [`LimiterExt::when`](crate::LimiterExt::when).
///
/// While the load is low it takes nothing and refuses nothing. Admissions in that time leave no trace in the limiter: a
/// semaphore does not count them when it begins to apply.
///
/// A request that the load is measured by does not count in its own case: put what is [metered](Meter) before or behind
/// it, as it costs least.
///
/// Waiters are woken when the load falls: at the instant that the load names, or by its [`notify`](Load::notify).
///
/// ```
/// # use tollgate::policy::conditional::{Meter, Trigger};
/// # use tollgate::policy::spec::LoadMetric;
/// # use tollgate::{LimiterExt, ManualClock, Semaphore};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let meter = Meter::new(&clock, Duration::from_secs(1));
/// let pages = meter.watch(Semaphore::new(10));
/// let busy = Trigger::above(meter.load(LoadMetric::Use, 10.0), 0.5).on(&clock);
/// let batches = Semaphore::new(0).when(busy);
/// assert!(!batches.applies() && batches.try_admit(1).is_ok());
/// let _load = pages.try_admit(6).unwrap();
/// assert!(batches.applies() && batches.try_admit(1).is_err());
/// ```
#[derive(Debug)]
pub struct Conditional<L> {
    limiter: L,
    gate: Gate,
}

impl<L> Conditional<L> {
    pub(crate) fn new(limiter: L, trigger: Trigger) -> Self {
        Self {
            limiter,
            gate: Gate::new(trigger),
        }
    }

    /// The limiter.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    /// True while it applies, as of now.
    pub fn applies(&self) -> bool {
        self.gate.is_exceeded(self.gate.clock().now())
    }
}

/// A refusal whose end is known may end earlier, when the load falls first. A request that never fits does fit once the limit
/// does not apply.
pub(crate) fn sooner<'a>(refusal: Refusal<'a>, ends: Option<Instant>, clock: &'a Clock, now: Instant) -> Refusal<'a> {
    let at = |ends| Wait::Until(Due::at(clock, now, ends));
    match (refusal.wait(), ends) {
        (Wait::Until(due), Some(ends)) if ends < due.instant() => refusal.with_wait(at(ends)),
        (Wait::Never, ends) if refusal.reason() == Reason::Oversized => refusal
            .with_reason(Reason::RateExceeded)
            .with_wait(ends.map_or(Wait::Event, at)),
        _ => refusal,
    }
}

impl<L: Limiter> Limiter for Conditional<L> {
    /// The ticket of the limiter, if it applied.
    type Ticket = Option<L::Ticket>;

    #[inline]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        let clock = self.gate.clock();
        let now = demand.now(clock);
        if !self.gate.is_exceeded(now) {
            return Ok(None);
        }
        match self.limiter.try_reserve(demand) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(refusal) => Err(sooner(refusal, self.gate.ends(now), clock, now).through(self)),
        }
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.gate.listen(demand);
        let now = demand.now(self.gate.clock());
        if !self.gate.is_exceeded(now) {
            return ReadyAt::NOW;
        }
        self.limiter.ready_at(demand).or_at(self.gate.ends(now))
    }

    /// That of the limiter, or else the one that the load is read by.
    fn clock(&self) -> Option<&Clock> {
        self.limiter.clock().or(Some(self.gate.clock()))
    }

    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        match self.limiter.clock() {
            Some(_) => self.limiter.clocks(visit),
            None => visit(self.gate.clock()),
        }
    }

    /// That of the limiter, while it applies.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        if self.applies() {
            self.limiter.visit_status(visit);
        }
    }

    /// The limiter is, and the load does not count as exceeded.
    fn is_pristine(&self, now: &ClockReading) -> bool {
        !self.gate.is_exceeded(now.now(self.gate.clock())) && self.limiter.is_pristine(now)
    }

    delegate!(self => self.limiter; some: cancel commit settle finish forget visit_sources);
    delegate!(self => self.limiter; callbacks name queues);
}

/// A load: a number that rises and falls. A [`Meter`] gives some; write your own for what only you can
/// measure.
///
/// **Starvation**: a load that falls must report it, or waiters sleep on. By its [`notify`](Self::notify) after an event, by
/// [`falls_to`](Self::falls_to) when it falls as time passes.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tollgate::policy::conditional::{Load, Trigger};
/// use tollgate::sync::Notify;
/// use tollgate::{Ask, Instant, LimiterExt, Semaphore};
///
/// /// How far a replica is behind, in milliseconds.
/// #[derive(Default)]
/// struct Lag {
///     millis: AtomicU64,
///     notify: Notify,
/// }
/// impl Lag {
///     fn set(&self, millis: u64) {
///         self.millis.store(millis, Ordering::Relaxed);
///         self.notify.notify_all();
///     }
/// }
/// impl Load for Lag {
///     fn read(&self, _: Instant) -> f64 {
///         self.millis.load(Ordering::Relaxed) as f64
///     }
///     fn notify(&self) -> Option<&Notify> {
///         Some(&self.notify)
///     }
/// }
///
/// let lag = Arc::new(Lag::default());
/// let batch = Semaphore::new(0).when(Trigger::above(lag.clone(), 500.0).below(100.0));
/// assert!(batch.try_admit(Ask::one()).is_ok());
/// lag.set(501);
/// assert!(batch.try_admit(Ask::one()).is_err());
/// lag.set(101);
/// assert!(batch.try_admit(Ask::one()).is_err());
/// lag.set(100);
/// assert!(batch.try_admit(Ask::one()).is_ok());
/// ```
pub trait Load: Send + Sync {
    /// The number at `now`. It must not block.
    fn read(&self, now: Instant) -> f64;

    /// The first instant after `now` at which the number is at or below `mark` because time has passed, if nothing else
    /// happens. `None` when only an event can lower it.
    fn falls_to(&self, mark: f64, now: Instant) -> Option<Instant> {
        let _ = (mark, now);
        None
    }

    /// Notified after each event that has lowered the load.
    fn notify(&self) -> Option<&Notify> {
        None
    }
}

/// A threshold of a load, with hysteresis: exceeded from when the load is above `above` until it is at or below `below`.
///
/// ```
/// # use tollgate::policy::conditional::{Meter, Trigger};
/// # use tollgate::policy::spec::LoadMetric;
/// # use tollgate::{LimiterExt, ManualClock, Semaphore};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let meter = Meter::new(&clock, Duration::from_secs(1));
/// let pages = meter.watch(Semaphore::new(10));
/// // From above 0.8 until it is down to 0.5.
/// let trigger = Trigger::above(meter.load(LoadMetric::Use, 10.0), 0.8).below(0.5).on(&clock);
/// let batches = Semaphore::new(0).when(trigger);
/// let (few, many) = (pages.try_admit(6).unwrap(), pages.try_admit(3).unwrap());
/// assert!(batches.try_admit(1).is_err());
/// drop(many);
/// assert!(batches.try_admit(1).is_err(), "0.6 is between the marks");
/// drop(few);
/// assert!(batches.try_admit(1).is_ok());
/// ```
#[derive(Clone)]
pub struct Trigger {
    load: Arc<dyn Load>,
    clock: Clock,
    above: f64,
    below: f64,
}

impl Trigger {
    /// Exceeded while `load` is above `above`, on the real clock.
    pub fn above(load: Arc<dyn Load>, above: f64) -> Self {
        Self {
            load,
            clock: Clock::real(),
            above,
            below: above,
        }
    }

    /// The same, until the load is at or below `below`. One that is above `above` counts as that.
    #[must_use]
    pub fn below(self, below: f64) -> Self {
        let below = below.min(self.above);
        Self { below, ..self }
    }

    /// The same on `clock`.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let clock = clock.clone();
        Self { clock, ..self }
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trigger")
            .field("above", &self.above)
            .field("below", &self.below)
            .finish_non_exhaustive()
    }
}

/// A trigger, and whether it is exceeded.
#[derive(Debug)]
pub(crate) struct Gate {
    trigger: Trigger,
    exceeded: AtomicBool,
}

impl Gate {
    pub(crate) fn new(trigger: Trigger) -> Self {
        Self {
            trigger,
            exceeded: AtomicBool::new(false),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.trigger.clock
    }

    /// True while the trigger is exceeded, as of `now`.
    #[inline]
    pub(crate) fn is_exceeded(&self, now: Instant) -> bool {
        let load = self.trigger.load.read(now);
        // Relaxed: between the two thresholds either answer is right, and outside them it is not read.
        let was = self.exceeded.load(Ordering::Relaxed);
        let is = load > if was { self.trigger.below } else { self.trigger.above };
        if is != was {
            self.exceeded.store(is, Ordering::Relaxed);
        }
        is
    }

    /// The upper threshold, if it was exceeded at the latest look.
    pub(crate) fn was_above(&self) -> Option<f64> {
        // Relaxed: as in `is_exceeded`.
        self.exceeded.load(Ordering::Relaxed).then_some(self.trigger.above)
    }

    /// Goes on from a load that was above `highest`, and had not fallen since as far as is known.
    pub(crate) fn goes_on_from(&self, highest: Option<f64>) {
        let is = highest.is_some_and(|highest| highest >= self.trigger.above);
        self.exceeded.store(is, Ordering::Relaxed);
    }

    /// When it is no longer exceeded, if that is known.
    pub(crate) fn ends(&self, now: Instant) -> Option<Instant> {
        self.trigger.load.falls_to(self.trigger.below, now)
    }

    /// Lets waiters hear when the load falls. To be called before the load is read.
    pub(crate) fn listen(&self, demand: Demand<'_>) {
        if let Some(notify) = self.trigger.load.notify() {
            demand.listen(notify);
        }
    }
}
