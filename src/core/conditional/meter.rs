//! Measures the admissions of limiters.

use super::Load;
use super::recent::{Counts, PARTS, Recent};
use crate::core::ask::Demand;
use crate::core::decision::LoadMetric;
use crate::core::limiter::{Limiter, Outcome, delegate};
use crate::core::refusal::Refusal;
use crate::core::ticket::Ticket;
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
            capacity,
        })
    }

    /// Units per second.
    pub fn rate(&self) -> f64 {
        self.per_second(self.sum(self.clock.now()).units)
    }

    /// The mean time from commit to end of the admissions that have ended; zero when none has.
    pub fn latency(&self) -> Duration {
        Duration::from_secs_f64(self.mean_seconds(&self.sum(self.clock.now())))
    }

    /// Requests per second that were refused.
    pub fn refusals(&self) -> f64 {
        self.per_second(self.sum(self.clock.now()).refused)
    }

    /// Units that are in flight. A snapshot.
    pub fn in_flight(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// The span that it measures over.
    pub fn over(&self) -> Duration {
        self.over
    }

    fn per_second(&self, n: u64) -> f64 {
        n as f64 / self.over.as_secs_f64()
    }

    fn mean_seconds(&self, sum: &Counts) -> f64 {
        if sum.ended == 0 {
            return 0.0;
        }
        let mean = Instant::from_ticks(sum.ticks / sum.ended);
        self.clock.between(Instant::ZERO, mean).as_secs_f64()
    }

    fn sum(&self, now: Instant) -> Counts {
        self.recent.lock().sum(now.ticks())
    }

    /// The value of `metric` for these counts.
    fn of(&self, metric: LoadMetric, sum: &Counts) -> f64 {
        match metric {
            LoadMetric::Rate => self.per_second(sum.units),
            LoadMetric::Latency => self.mean_seconds(sum),
            LoadMetric::Refusals => self.per_second(sum.refused),
            LoadMetric::Use => 0.0,
        }
    }

    /// The value of `metric`, which is not the use, at `now`.
    pub(crate) fn measured(&self, metric: LoadMetric, now: Instant) -> f64 {
        self.of(metric, &self.sum(now))
    }

    /// When that falls to `mark` by the passing of time.
    pub(crate) fn falls_to(&self, metric: LoadMetric, mark: f64, now: Instant) -> Option<Instant> {
        let low = |sum: &Counts| self.of(metric, sum) <= mark;
        let at = self.recent.lock().until(now.ticks(), low)?;
        Some(Instant::from_ticks(at))
    }

    pub(crate) fn admitted(&self, units: u64, now: Instant) {
        let mut recent = self.recent.lock();
        let part = recent.at(now.ticks());
        part.units = part.units.saturating_add(units);
    }

    /// Takes back what was [`admitted`](Self::admitted) at `then`, unless it is forgotten already.
    pub(crate) fn cancelled(&self, units: u64, then: Instant, now: Instant) {
        let mut recent = self.recent.lock();
        if let Some(part) = recent.past(then.ticks(), now.ticks()) {
            part.units = part.units.saturating_sub(units);
        }
    }

    pub(crate) fn refused(&self, now: Instant) {
        self.recent.lock().at(now.ticks()).refused += 1;
    }

    pub(crate) fn ended(&self, started: Instant, now: Instant) {
        {
            let mut recent = self.recent.lock();
            let part = recent.at(now.ticks());
            part.ended += 1;
            part.ticks = part.ticks.saturating_add(now.ticks_since(started));
        }
        self.watchers.changed();
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter")
            .field("rate", &self.rate())
            .field("latency", &self.latency())
            .field("refusals", &self.refusals())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// One number of a meter.
struct MeterLoad {
    meter: Arc<Meter>,
    metric: LoadMetric,
    capacity: f64,
}

impl Load for MeterLoad {
    fn read(&self, now: Instant) -> f64 {
        match self.metric {
            LoadMetric::Use => self.meter.in_flight() as f64 / self.capacity,
            metric => self.meter.measured(metric, now),
        }
    }

    fn falls_to(&self, mark: f64, now: Instant) -> Option<Instant> {
        match self.metric {
            LoadMetric::Use => None,
            metric => self.meter.falls_to(metric, mark, now),
        }
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.meter.watchers.watch(watcher);
    }
}

/// A limiter that a [`Meter`] watches. Made by [`Meter::watch`].
///
/// ```
/// # use tollgate::policy::conditional::Meter;
/// # use tollgate::{LimiterExt, ManualClock, Semaphore};
/// # use std::time::Duration;
/// let meter = Meter::new(&ManualClock::new(), Duration::from_secs(1));
/// let pages = meter.watch(Semaphore::new(10));
/// let _held = pages.try_admit(3).unwrap();
/// assert_eq!((pages.meter().in_flight(), pages.limiter().in_use()), (3, 3));
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

    /// The meter.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }
}

/// The ticket of the limiter, its units, and when they started.
///
/// ```
/// # use tollgate::policy::conditional::{Metered, MeteredTicket};
/// # use tollgate::{Limiter, Semaphore, SemaphoreTicket, Ticket};
/// fn words<L: Limiter<Ticket = MeteredTicket<SemaphoreTicket>>>() -> usize {
///     <L::Ticket as Ticket>::WORDS
/// }
/// assert_eq!(words::<Metered<Semaphore>>(), SemaphoreTicket::WORDS + 2);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MeteredTicket<T> {
    ticket: T,
    units: u64,
    started: u64,
}

impl<T: Ticket> Ticket for MeteredTicket<T> {
    const WORDS: usize = 2 + T::WORDS;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[0] = self.units;
        words[1] = self.started;
        self.ticket.write(&mut words[2..]);
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self {
            units: words[0],
            started: words[1],
            ticket: T::read(&words[2..]),
        }
    }
}

impl<L: Limiter> Limiter for Metered<L> {
    type Ticket = MeteredTicket<L::Ticket>;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        let (units, now) = (demand.units(), demand.now(&self.meter.clock));
        match self.limiter.try_reserve(demand) {
            Ok(ticket) => {
                self.meter.admitted(units, now);
                // Relaxed: a statistic. A waiter that must see it fall is told after it has.
                self.meter.running.fetch_add(units, Ordering::Relaxed);
                let started = now.ticks();
                Ok(MeteredTicket { ticket, units, started })
            }
            Err(refusal) => {
                self.meter.refused(now);
                Err(refusal)
            }
        }
    }

    fn cancel(&self, ticket: Self::Ticket) {
        let back = || {
            self.meter.running.fetch_sub(ticket.units, Ordering::Relaxed);
            let then = Instant::from_ticks(ticket.started);
            self.meter.cancelled(ticket.units, then, self.meter.clock.now());
            self.meter.watchers.changed();
        };
        both(back, || self.limiter.cancel(ticket.ticket));
    }

    fn settle(&self, ticket: &mut Self::Ticket, settlement: &crate::Settlement) -> u32 {
        self.limiter.settle(&mut ticket.ticket, settlement)
    }

    fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
        let ended = || {
            // Relaxed: the notification that follows orders it before the looks of waiters.
            self.meter.running.fetch_sub(ticket.units, Ordering::Relaxed);
            match outcome {
                Outcome::Forgotten => self.meter.watchers.changed(),
                _ => self
                    .meter
                    .ended(Instant::from_ticks(ticket.started), self.meter.clock.now()),
            }
        };
        // The waiters that the limiter frees are asked under the load that is left.
        both(ended, || self.limiter.finish(ticket.ticket, outcome));
    }

    // The counts stay with the meter when the limiter is as new.
    delegate!(self => self.limiter; look leave watch describe);
}
