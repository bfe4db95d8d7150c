//! Conditional limits: a limiter that applies only while something else is under load.
//!
//! | type | purpose |
//! |---|---|
//! | [`Meter`] | measures limiters: rate, latency, refusals, units in flight |
//! | [`Metered`] | a limiter of any kind, alone, composed, keyed or pacing, seen by a meter |
//! | [`Load`] | a number that rises and falls, and notifies when it has fallen |
//! | [`Trigger`] | the load above which a limit applies, and the one below which it stops |
//!
//! [`LimiterExt::when`](crate::LimiterExt::when) makes a leg that applies only while a trigger is exceeded. While the load is low, the leg
//! takes nothing and refuses nothing, and admissions leave no trace in it: a semaphore does not count them when it begins to apply.

mod meter;
mod recent;

pub use crate::core::decision::LoadMetric;
pub use meter::{Meter, Metered};

use crate::core::ask::{Ask, Demand};
use crate::core::decision::MeasuredLoad;
use crate::core::refusal::Wait;
use crate::sync::shim::atomic::{AtomicBool, Ordering, fence};
use crate::sync::wait_queue::{Watch, Watchers};
use crate::time::{Clock, Instant};
use std::fmt;
use std::sync::{Arc, Weak};

/// The condition under which a leg applies, for [`LimiterExt::when`](crate::LimiterExt::when): a function of the request, or a
/// [`Trigger`] on the load of something else. It runs at each admission, and outside all locks.
pub enum Condition {
    /// The same for the same request at any time.
    Asked(Box<dyn Fn(&Ask) -> bool + Send + Sync>),
    /// While the load is exceeded.
    Loaded(Trigger),
}

impl<F: Fn(&Ask) -> bool + Send + Sync + 'static> From<F> for Condition {
    fn from(asked: F) -> Self {
        Self::Asked(Box::new(asked))
    }
}

impl From<Trigger> for Condition {
    fn from(trigger: Trigger) -> Self {
        Self::Loaded(trigger)
    }
}

impl Condition {
    pub(crate) fn applies(&self, demand: &Demand<'_>) -> bool {
        match self {
            Self::Asked(asked) => asked(demand.ask()),
            Self::Loaded(trigger) => trigger.0.applies(demand.now(&trigger.0.clock)),
        }
    }
}

/// A load: a number that rises and falls. A [`Meter`] gives some; write your own for what only you can
/// measure.
///
/// **Starvation**: a load that falls must report it, or waiters sleep on. By its [`watch`](Self::watch) after an event, by
/// [`falls_to`](Self::falls_to) when it falls as time passes.
///
/// ```
/// use std::sync::{Arc, Weak};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tollgate::policy::conditional::{Load, Trigger};
/// use tollgate::sync::{Watch, Watchers};
/// use tollgate::{Ask, Instant, LimiterExt, Semaphore};
///
/// /// How far a replica is behind, in milliseconds.
/// #[derive(Default)]
/// struct Lag {
///     millis: AtomicU64,
///     watchers: Watchers,
/// }
/// impl Lag {
///     fn set(&self, millis: u64) {
///         self.millis.store(millis, Ordering::Relaxed);
///         self.watchers.changed();
///     }
/// }
/// impl Load for Lag {
///     fn read(&self, _: Instant) -> f64 {
///         self.millis.load(Ordering::Relaxed) as f64
///     }
///     fn watch(&self, watcher: &Weak<dyn Watch>) {
///         self.watchers.watch(watcher);
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

    /// The name of the leg and the number that this load measures, for explanations.
    fn measures(&self) -> Option<(&str, LoadMetric)> {
        None
    }

    /// Tells `watcher` of each event that has changed the load.
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        let _ = watcher;
    }
}

/// A threshold of a load, with hysteresis: exceeded from when the load is above `above` until it is at or below `below`.
///
/// ```
/// # use tollgate::policy::conditional::{Meter, Trigger};
/// # use tollgate::policy::conditional::LoadMetric;
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
pub struct Trigger(Arc<Gate>);

/// A trigger, and whether it is exceeded.
struct Gate {
    load: Arc<dyn Load>,
    clock: Clock,
    above: f64,
    below: f64,
    exceeded: AtomicBool,
    // An admission has found it exceeded since waiters were told the last time.
    seen: AtomicBool,
    // What waiters were told last.
    told: AtomicBool,
    watchers: Watchers,
}

impl Trigger {
    /// Exceeded while `load` is above `above`, on the real clock.
    pub fn above(load: Arc<dyn Load>, above: f64) -> Self {
        Self::of(load, &Clock::real(), above, above)
    }

    /// The same, until the load is at or below `below`. One that is above `above` counts as that.
    #[must_use]
    pub fn below(self, below: f64) -> Self {
        let Gate { load, clock, above, .. } = &*self.0;
        Self::of(Arc::clone(load), clock, *above, below.min(*above))
    }

    /// The same on `clock`.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let Gate { load, above, below, .. } = &*self.0;
        Self::of(Arc::clone(load), clock, *above, *below)
    }

    fn of(load: Arc<dyn Load>, clock: &Clock, above: f64, below: f64) -> Self {
        let gate = Arc::new(Gate {
            load,
            clock: clock.clone(),
            above,
            below,
            exceeded: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            told: AtomicBool::new(false),
            watchers: Watchers::new(),
        });
        let watcher: Weak<dyn Watch> = Arc::downgrade(&gate) as Weak<dyn Watch>;
        gate.load.watch(&watcher);
        Self(gate)
    }

    /// True while the load is exceeded.
    pub fn is_exceeded(&self) -> bool {
        self.0.is_exceeded(self.0.clock.now())
    }

    /// When the load has fallen if nothing else happens, as a wait from now; `None` where that is not known.
    pub(crate) fn ends(&self, demand: &Demand<'_>) -> Option<Wait> {
        let now = demand.now(&self.0.clock);
        let at = self.0.load.falls_to(self.0.below, now)?;
        Some(Wait::until(&self.0.clock, now, at))
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Tells `watcher` when the load has begun or ceased to be exceeded.
    pub(crate) fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.watchers.watch(watcher);
    }

    /// The load, for an explanation.
    pub(crate) fn measured(&self, demand: &Demand<'_>) -> Option<MeasuredLoad> {
        let now = demand.now(&self.0.clock);
        let (leg, metric) = self.0.load.measures()?;
        Some(MeasuredLoad {
            leg: leg.into(),
            metric,
            load: self.0.load.read(now),
            above: self.0.above,
            below: self.0.below,
            exceeded: self.0.is_exceeded(now),
        })
    }
}

impl Gate {
    fn is_exceeded(&self, now: Instant) -> bool {
        let load = self.load.read(now);
        // Relaxed: between the two thresholds either answer is right, and outside them it is not read.
        let was = self.exceeded.load(Ordering::Relaxed);
        let is = load > if was { self.below } else { self.above };
        if is != was {
            self.exceeded.store(is, Ordering::Relaxed);
        }
        is
    }

    /// The same for a request, which may be about to wait for the load to fall.
    fn applies(&self, now: Instant) -> bool {
        if !self.is_exceeded(now) {
            return false;
        }
        if !self.seen.load(Ordering::Relaxed) {
            self.seen.store(true, Ordering::Relaxed);
        }
        // Either `changed` finds `seen`, or this reads the load as it announces it. Pairs with the fence there.
        fence(Ordering::SeqCst);
        self.is_exceeded(now)
    }
}

impl Watch for Gate {
    fn changed(self: Arc<Self>) {
        // Pairs with the fence in `applies`.
        fence(Ordering::SeqCst);
        let is = self.is_exceeded(self.clock.now());
        let flipped = self.told.swap(is, Ordering::Relaxed) != is;
        let missed = !is && self.seen.swap(false, Ordering::Relaxed);
        if flipped || missed {
            self.watchers.changed();
        }
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trigger")
            .field("above", &self.0.above)
            .field("below", &self.0.below)
            .field("exceeded", &self.is_exceeded())
            .finish_non_exhaustive()
    }
}
