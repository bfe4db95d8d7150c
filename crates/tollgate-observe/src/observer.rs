//! Records attempts on behalf of a gate or a queue.

use super::meter::Meter;
use super::observed::Observed;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Clock, Instant, Limiter, Permit, Refusal};

/// Records attempts under one name: for a gate or a queue of your own, in front of one limiter or of many.
///
/// Clones share their counters. A single limiter needs none: see [`Observed`].
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_observe::{Observed, Observer};
/// # use tollgate::{LimiterExt, Permit, Refusal, Semaphore};
/// /// Admits each request by the semaphore of its tenant; one name for all tenants.
/// fn enter(tenant: &Arc<Semaphore>, observer: &Observer) -> Result<Permit<Observed<Arc<Semaphore>>>, Refusal> {
///     match tenant.try_admit_owned(1) {
///         Ok(permit) => Ok(observer.admitted(permit)),
///         Err(refusal) => {
///             observer.refused(&refusal);
///             Err(refusal)
///         }
///     }
/// }
/// let (tenant, observer) = (Arc::new(Semaphore::new(1)), Observer::new("tenants"));
/// let permit = enter(&tenant, &observer).unwrap();
/// assert!(enter(&tenant, &observer).is_err());
/// drop(permit);
/// assert_eq!(tenant.in_use(), 0);
/// ```
#[derive(Clone)]
pub struct Observer {
    pub(super) meter: Arc<Meter>,
    pub(super) clock: Clock,
}

impl Observer {
    /// An observer under `name`, a constant of the program. Install the recorder of `metrics` first: handles are looked up here.
    pub fn new(name: &'static str) -> Self {
        Self {
            meter: Arc::new(Meter::new(name, None)),
            clock: Clock::default(),
        }
    }

    /// Measures by `clock`; by the real one by default.
    #[must_use]
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Counts refusals by these legs, constants of the program, and by `other`. By default the first 31 names count.
    #[must_use]
    pub fn legs(mut self, legs: &'static [&'static str]) -> Self {
        self.meter = Arc::new(Meter::new(self.meter.name(), Some(legs)));
        self
    }

    /// The limiter, recorded by this observer.
    pub fn wrap<L: Limiter>(&self, limiter: L) -> Observed<L> {
        Observed::of(limiter, self.clone())
    }

    /// Records a refusal without a wait.
    pub fn refused(&self, refusal: &Refusal) {
        self.meter.refused(refusal, Duration::ZERO);
    }

    /// Records an admission without a wait, and returns the permit as one that records its end.
    pub fn admitted<L: Limiter + Clone>(&self, permit: Permit<L>) -> Permit<Observed<L>> {
        self.admitted_after(permit, Duration::ZERO)
    }

    /// Begins a wait. Dropping it before its end records a cancelled wait.
    pub fn wait(&self) -> ObservedWait {
        ObservedWait {
            began: self.clock.now(),
            observer: Some(self.clone()),
        }
    }

    fn admitted_after<L: Limiter + Clone>(&self, permit: Permit<L>, waited: Duration) -> Permit<Observed<L>> {
        self.meter.granted(waited);
        let limiter = self.wrap(permit.limiter().clone());
        let now = self.nanos(self.clock.now());
        permit.wrapped_by(limiter, |ticket| (now, ticket))
    }

    /// Nanoseconds since the clock's origin.
    pub(super) fn nanos(&self, instant: Instant) -> u64 {
        u64::try_from(self.clock.between(Instant::ZERO, instant).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(&self.meter.name()).finish()
    }
}

/// A wait that is recorded. Made by [`Observer::wait`].
///
/// ```
/// # use tollgate_observe::Observer;
/// # use tollgate::{Clock, LimiterExt, Policy, Semaphore};
/// let observer = Observer::new("api");
/// let policy = Policy::builder().limit(Semaphore::new(1)).max_queue(0).build()?;
/// let run = async || {
///     let wait = observer.wait();
///     match policy.admit_owned(1).await {
///         Ok(permit) => Ok(wait.admitted(permit)),
///         Err(refusal) => {
///             wait.refused(&refusal);
///             Err(refusal)
///         }
///     }
/// };
/// # tollgate::ManualClock::new().run(async {
/// let _permit = run().await.unwrap();
/// assert!(run().await.is_err());
/// # });
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[must_use = "dropping a wait records it as cancelled"]
pub struct ObservedWait {
    began: Instant,
    observer: Option<Observer>,
}

impl ObservedWait {
    fn ended(&mut self) -> Option<(Observer, Duration)> {
        let observer = self.observer.take()?;
        let waited = observer.clock.between(self.began, observer.clock.now());
        Some((observer, waited))
    }

    /// Ends the wait with an admission, and returns the permit as one that records its end.
    pub fn admitted<L: Limiter + Clone>(mut self, permit: Permit<L>) -> Permit<Observed<L>> {
        let (observer, waited) = self.ended().expect("a wait ends once");
        observer.admitted_after(permit, waited)
    }

    /// Ends the wait with a refusal.
    pub fn refused(mut self, refusal: &Refusal) {
        if let Some((observer, waited)) = self.ended() {
            observer.meter.refused(refusal, waited);
        }
    }
}

impl Drop for ObservedWait {
    fn drop(&mut self) {
        if let Some(observer) = &self.observer {
            observer.meter.cancelled();
        }
    }
}

impl fmt::Debug for ObservedWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObservedWait")
    }
}
