//! A meter as a limiter: a clock, waiters that are told, and the verbs that all rates share.

use super::inherit::Inherit;
use super::meter::{Forecast, Limited, Locked, Meter, Standing, UNLIMITED};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::core::status::{Description, State};
use crate::sync::wait_queue::{Place, WaitQueue, Watch};
use crate::time::{Clock, Instant};
use std::fmt;
use std::sync::Weak;
use std::time::Duration;

/// Limits how often work starts, by a [`Meter`]. [`TokenBucket`](crate::TokenBucket), [`LeakyBucket`](crate::LeakyBucket),
/// [`FixedWindow`](crate::FixedWindow), [`SlidingWindow`](crate::SlidingWindow), [`SlidingLog`](crate::SlidingLog) and
/// [`Warmup`](crate::Warmup) are names of it. Their verbs are these:
///
/// ```
/// # use tollgate::rate::{Meter, Rate};
/// # use tollgate::{ManualClock, Quota, SlidingLog, TokenBucket};
/// # use std::time::Duration;
/// /// Admits `n` now, in debt if need be, and returns when the debt is paid.
/// fn urgent<M: Meter>(rate: &Rate<M>, n: u64) -> Option<Duration> {
///     rate.force_acquire(n);
///     rate.time_until(1)
/// }
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(1)).on(&clock);
/// let log = SlidingLog::new(1, Duration::from_secs(60)).unwrap().on(&clock);
/// assert_eq!(urgent(&bucket, 3), Some(Duration::from_secs(3)));
/// assert_eq!(urgent(&log, 1), Some(Duration::from_secs(60)));
/// ```
///
/// A rate admits or refuses at once. To wait for one, give it to a [`Policy`](crate::Policy).
///
/// # Memory ordering
/// None is promised to callers: a rate orders no work after other work.
pub struct Rate<M> {
    pub(super) meter: M,
    pub(super) clock: Clock,
    queue: WaitQueue,
}

impl<M: Meter> Rate<M> {
    pub(super) fn of(meter: M, clock: &Clock) -> Self {
        Self {
            meter,
            clock: clock.clone(),
            queue: WaitQueue::new(M::LEG),
        }
    }

    /// Tells the waiters that the settings have changed. Call it outside every lock.
    pub(super) fn notify_changed(&self) {
        self.queue.changed();
    }

    /// Takes `n` now, or refuses: the method for a rate that stands alone.
    ///
    /// # Errors
    /// `RateExceeded`, with a true `retry_after`; without one if no time brings more. `Oversized` if only a change of the settings
    /// could admit `n`.
    #[inline(always)] // row: token bucket admit
    pub fn try_acquire(&self, n: u64) -> Result<(), Refusal> {
        let now = self.clock.now();
        if !self.queue.is_empty() {
            self.behind(n, now)?;
        }
        self.take(n, now).map(|_| ())
    }

    /// Takes up to `n` of the units that are there, and returns how many it took.
    pub fn acquire_up_to(&self, n: u64) -> u64 {
        let now = self.clock.now();
        if !self.queue.is_empty() && self.behind(1, now).is_err() {
            return 0;
        }
        loop {
            let there = self.meter.standing(now).free.min(n);
            if self.meter.take(there, now).is_ok() {
                return there;
            }
        }
    }

    /// Takes `n` now, whether they are there or not. The rest is a debt, which is paid before anything else is admitted.
    ///
    /// **Over-admission**: a bucket charges no debt beyond two bursts or half an hour's refill, whichever is more.
    pub fn force_acquire(&self, n: u64) {
        self.meter.force(n, &self.clock);
    }

    /// The units that are there, also while the head of a policy waits for them. A snapshot.
    pub fn available(&self) -> u64 {
        let now = self.clock.now();
        let mut free = self.meter.standing(now).free;
        if self.tell_if_early() {
            // The waiters that were told may have taken some.
            free = self.meter.standing(now).free;
        }
        free
    }

    /// How many units are owed before the next can be taken; rounded up. A snapshot.
    pub fn debt(&self) -> u64 {
        self.meter.standing(self.clock.now()).debt
    }

    /// How long until `n` could be taken, if no other caller takes any meanwhile; rounded up to a nanosecond. `None` if only a
    /// change of the settings could admit them.
    pub fn time_until(&self, n: u64) -> Option<Duration> {
        let now = self.clock.now();
        let forecast = self.meter.forecast(n, 0, now);
        self.tell_if_early();
        match forecast {
            Forecast::Now => Some(Duration::ZERO),
            Forecast::At(at) => Some(self.clock.between(now, at)),
            Forecast::Event | Forecast::Spent | Forecast::Never => None,
        }
    }

    /// How long until it is full, or as good as new, if no caller takes any meanwhile. `None` if that is never.
    pub fn time_until_full(&self) -> Option<Duration> {
        let now = self.clock.now();
        Some(self.clock.between(now, self.meter.standing(now).fresh_at?))
    }

    /// Starts anew. Nothing that was taken before is given back any more.
    pub fn reset(&self) {
        self.meter.clear(&self.clock);
        self.notify_changed();
    }

    #[inline(always)] // row: token bucket admit
    fn take(&self, n: u64, now: Instant) -> Result<M::Ticket, Refusal> {
        let taken = self.meter.take(n, now);
        self.tell_if_early();
        taken.map_err(|forecast| self.refusal(forecast, now))
    }

    /// The answer to a caller outside a policy while heads of policies wait here: they are older.
    #[cold]
    #[inline(never)] // row: token bucket admit
    fn behind(&self, n: u64, now: Instant) -> Result<(), Refusal> {
        if n == 0 {
            return Ok(());
        }
        let ahead = self.queue.lock().units();
        self.judge_behind(n, ahead, now)?;
        Err(self.queue.others_before())
    }

    /// Would `n` units be admitted now, behind `ahead` others?
    fn judge(&self, n: u64, ahead: u64, now: Instant) -> Result<(), Refusal> {
        match self.meter.forecast(n, ahead, now) {
            Forecast::Now => Ok(()),
            forecast => Err(self.refusal(forecast, now)),
        }
    }

    /// The same outside the lock of the queue.
    fn judge_behind(&self, n: u64, ahead: u64, now: Instant) -> Result<(), Refusal> {
        let judged = self.judge(n, ahead, now);
        self.tell_if_early();
        judged
    }

    /// Tells the waiters of an instant that has come earlier than it was told, and returns if there is one.
    fn tell_if_early(&self) -> bool {
        let is_early = self.meter.has_come_early();
        if is_early {
            self.queue.notify();
        }
        is_early
    }

    #[cold]
    #[inline(never)] // row: token bucket admit
    fn refusal(&self, forecast: Forecast, now: Instant) -> Refusal {
        let until = |at| Wait::until(&self.clock, now, at);
        let (reason, wait) = match forecast {
            Forecast::Now => (Reason::RateExceeded, until(now)),
            Forecast::At(at) => (Reason::RateExceeded, until(at)),
            Forecast::Event => (Reason::RateExceeded, Wait::EVENT),
            Forecast::Spent => (Reason::RateExceeded, Wait::SPENT),
            Forecast::Never => (Reason::Oversized, Wait::Never),
        };
        Refusal::new(reason, M::LEG, wait)
    }
}

impl<M: Meter> Limiter for Rate<M> {
    type Ticket = M::Ticket;

    #[inline(always)] // row: bare chain
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<M::Ticket, Refusal> {
        let now = demand.now(&self.clock);
        self.queue
            .check(demand, |units, ahead| self.judge_behind(units, ahead, now))?;
        self.take(demand.units(), now)
    }

    // Inlined into the guards of a composite it would keep their tickets in memory: 17 ns of a policy with LTO.
    #[cold]
    #[inline(never)] // row: bare chain
    fn cancel(&self, mut ticket: M::Ticket) {
        self.meter.settle(&mut ticket, 0, &self.clock);
        self.queue.notify();
    }

    fn finish(&self, _: M::Ticket, _: Outcome) {}

    fn settle(&self, ticket: &mut M::Ticket, settlement: &Settlement) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        if self.meter.settle(ticket, actual, &self.clock) {
            self.queue.notify();
        }
        1
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let now = demand.now(&self.clock);
        let looked = self.queue.look(demand, |units, ahead| self.judge(units, ahead, now));
        self.tell_if_early();
        looked
    }

    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let now = self.clock.now();
        let (available, next, standing) = (self.available(), self.time_until(1), self.meter.standing(now));
        let Standing {
            limit,
            window,
            fresh_at,
            ..
        } = standing;
        let is_fresh = fresh_at.is_some_and(|at| at <= now);
        let state = match limit {
            UNLIMITED => State::Unknown,
            limit => State::Rate {
                limit,
                window,
                available,
                next,
                reset: fresh_at
                    .filter(|_| standing.is_window && !is_fresh)
                    .map(|at| self.clock.between(now, at)),
            },
        };
        let as_new = self.queue.is_empty() && is_fresh && !standing.is_changed;
        visit(Description::new(M::LEG).on(&self.clock).state(state).as_new(as_new));
    }
}

/// What all windows have.
impl<M: Limited> Rate<Locked<M>> {
    /// A limit that admits everything, and counts nothing.
    pub const UNLIMITED: u64 = UNLIMITED;

    /// The limit in force.
    pub fn limit(&self) -> u64 {
        self.meter.look(|window| window.standing().limit)
    }

    /// Changes the limit at once; `inherit` says what becomes of the units that count. Only with [`Inherit::AsIs`] does no window
    /// across the change exceed the larger limit.
    pub fn set_limit(&self, limit: u64, inherit: Inherit) {
        self.meter
            .change(self.clock.now(), |window| window.set_limit(limit, inherit));
        self.notify_changed();
    }
}

impl<M: Meter> fmt::Debug for Rate<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Standing {
            limit, window, free, ..
        } = self.meter.standing(self.clock.now());
        f.debug_struct("Rate")
            .field("kind", &M::LEG)
            .field("limit", &limit)
            .field("window", &window)
            .field("available", &free)
            .finish_non_exhaustive()
    }
}
