//! Measures the admissions of limiters.

use super::Load;
use super::recent::{Counts, PARTS, Recent};
use crate::core::ask::Demand;
use crate::core::decision::LoadMetric;
use crate::core::limiter::{Limiter, Outcome, Settlement, delegate};
use crate::core::refusal::Refusal;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::unwind::both;
use crate::sync::wait_queue::{Watch, Watchers};
use crate::time::{Clock, Instant};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Measures the limiters that it [watches](Self::watch): units admitted per second, latency, refusals per second, units in
/// flight.
///
/// Rates and latencies are those of the last span, which moves in tenths: 9 to 10 of them are seen, so that a steady
/// rate reads up to a tenth low just after a tenth has begun. One lock per admission and one per end.
///
/// A unit counts once the limiter has admitted it, and no longer when it is cancelled. So a request counts itself at the legs behind
/// the metered one: put a leg that depends on the load before it. The latency is that of the admission, from there to its end.
///
/// ```
/// # use tollgate::{Ask, LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
/// # use tollgate::policy::conditional::{Trigger, Meter};
/// # use tollgate::policy::conditional::LoadMetric;
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let meter = Meter::new(&clock, Duration::from_secs(1));
/// // The database is shared by pages and by batches: batches go slow while pages press.
/// let database = Semaphore::new(10);
/// let pages = meter.watch(database);
/// let busy = Trigger::above(meter.load(LoadMetric::Use, 10.0), 0.8).below(0.5).on(&clock);
/// let batches = TokenBucket::new(Quota::per_second(1)).on(&clock).when(busy);
///
/// assert!(batches.try_admit(100).is_ok(), "no page is there");
/// let press: Vec<_> = (0..9).map(|_| pages.try_admit(Ask::one()).unwrap()).collect();
/// assert!(batches.try_admit(1).is_ok(), "one per second");
/// assert!(batches.try_admit(1).is_err());
/// drop(press);
/// assert!(batches.try_admit(100).is_ok());
/// ```
pub struct Meter {
    clock: Clock,
    over: Duration,
    recent: Mutex<Recent>,
    /// Units that were committed and have not ended.
    running: AtomicU64,
    watchers: Watchers,
}

impl Meter {
    /// A meter of the last `over`, at least a microsecond, on `clock`.
    pub fn new(clock: &Clock, over: Duration) -> Arc<Self> {
        let over = over.max(Duration::from_micros(1));
        let part = clock.ticks_of(over).div_ceil(PARTS as u64);
        Arc::new(Self {
            clock: clock.clone(),
            over,
            recent: Mutex::new(Recent::new(part, clock.now().ticks())),
            running: AtomicU64::new(0),
            watchers: Watchers::new(),
        })
    }

    /// `limiter`, measured. A meter may watch several: all limiters of a keyed map, or the legs of several policies.
    pub fn watch<L: Limiter>(self: &Arc<Self>, limiter: L) -> Metered<L> {
        Metered {
            limiter,
            meter: Arc::clone(self),
        }
    }

    /// A metric of it as a load. [`LoadMetric::Use`] is the units in flight divided by `capacity`; the others ignore it.
    pub fn load(self: &Arc<Self>, metric: LoadMetric, capacity: f64) -> Arc<dyn Load> {
        Arc::new(MeterLoad {
            meter: Arc::clone(self),
            metric,
            whole: if metric == LoadMetric::Use { capacity } else { 1.0 },
        })
    }

    /// A metric of it: of [`LoadMetric::Use`] the units in flight. A snapshot.
    pub fn read(&self, metric: LoadMetric) -> f64 {
        self.read_at(metric, self.clock.now())
    }

    /// The span that it measures over.
    pub fn over(&self) -> Duration {
        self.over
    }

    fn read_at(&self, metric: LoadMetric, now: Instant) -> f64 {
        match metric {
            LoadMetric::Use => self.running.load(Ordering::Relaxed) as f64,
            metric => self.of(metric, &self.recent.lock().sum(now.ticks())),
        }
    }

    /// The value of `metric`, which is not the use, for these counts.
    fn of(&self, metric: LoadMetric, sum: &Counts) -> f64 {
        let per_second = |n: u64| n as f64 / self.over.as_secs_f64();
        match metric {
            LoadMetric::Rate => per_second(sum.units),
            LoadMetric::Refusals => per_second(sum.refused),
            LoadMetric::Latency if sum.ended > 0 => {
                let mean = Instant::from_ticks(sum.ticks / sum.ended);
                self.clock.between(Instant::ZERO, mean).as_secs_f64()
            }
            LoadMetric::Latency | LoadMetric::Use => 0.0,
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Meter");
        for metric in LoadMetric::ALL {
            out.field(&metric.to_string(), &self.read(metric));
        }
        out.finish_non_exhaustive()
    }
}

/// One number of a meter.
struct MeterLoad {
    meter: Arc<Meter>,
    metric: LoadMetric,
    /// That which reads as one.
    whole: f64,
}

impl Load for MeterLoad {
    fn read(&self, now: Instant) -> f64 {
        self.meter.read_at(self.metric, now) / self.whole
    }

    fn falls_to(&self, mark: f64, now: Instant) -> Option<Instant> {
        if self.metric == LoadMetric::Use {
            return None;
        }
        let low = |sum: &Counts| self.meter.of(self.metric, sum) <= mark;
        let at = self.meter.recent.lock().until(now.ticks(), low)?;
        Some(Instant::from_ticks(at))
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.meter.watchers.watch(watcher);
    }
}

/// A limiter that a [`Meter`] watches. Made by [`Meter::watch`].
///
/// ```
/// # use tollgate::policy::conditional::{LoadMetric, Meter};
/// # use tollgate::{LimiterExt, ManualClock, Semaphore};
/// # use std::time::Duration;
/// let meter = Meter::new(&ManualClock::new(), Duration::from_secs(1));
/// let pages = meter.watch(Semaphore::new(10));
/// let _held = pages.try_admit(3).unwrap();
/// assert_eq!((meter.read(LoadMetric::Use), pages.limiter().in_use()), (3.0, 3));
/// ```
#[derive(Debug)]
pub struct Metered<L> {
    limiter: L,
    meter: Arc<Meter>,
}

impl<L> Metered<L> {
    /// The limiter.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }
}

impl<L: Limiter> Limiter for Metered<L> {
    /// The ticket of the limiter, its units, and when they started.
    type Ticket = (L::Ticket, u64, u64);

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        let (units, now) = (demand.units(), demand.now(&self.meter.clock).ticks());
        let reserved = self.limiter.try_reserve(demand);
        {
            let mut recent = self.meter.recent.lock();
            let part = recent.at(now);
            match reserved {
                Ok(_) => part.units = part.units.saturating_add(units),
                Err(_) => part.refused += 1,
            }
        }
        let ticket = reserved?;
        // Relaxed: a statistic. A waiter that must see it fall is told after it has.
        self.meter.running.fetch_add(units, Ordering::Relaxed);
        Ok((ticket, units, now))
    }

    fn cancel(&self, (ticket, units, started): Self::Ticket) {
        let back = || {
            self.meter.running.fetch_sub(units, Ordering::Relaxed);
            let now = self.meter.clock.now().ticks();
            if let Some(part) = self.meter.recent.lock().past(started, now) {
                part.units = part.units.saturating_sub(units);
            }
            self.meter.watchers.changed();
        };
        both(back, || self.limiter.cancel(ticket));
    }

    fn settle(&self, ticket: &mut Self::Ticket, settlement: &Settlement) -> u32 {
        self.limiter.settle(&mut ticket.0, settlement)
    }

    fn finish(&self, (ticket, units, started): Self::Ticket, outcome: Outcome) {
        let ended = || {
            // Relaxed: the notification that follows orders it before the looks of waiters.
            self.meter.running.fetch_sub(units, Ordering::Relaxed);
            if outcome != Outcome::Forgotten {
                let now = self.meter.clock.now().ticks();
                let mut recent = self.meter.recent.lock();
                let part = recent.at(now);
                part.ended += 1;
                part.ticks = part.ticks.saturating_add(now.saturating_sub(started));
            }
            self.meter.watchers.changed();
        };
        // The waiters that the limiter frees are asked under the load that is left.
        both(ended, || self.limiter.finish(ticket, outcome));
    }

    // The counts stay with the meter when the limiter is as new.
    delegate!(self => self.limiter; look leave watch describe);
}
