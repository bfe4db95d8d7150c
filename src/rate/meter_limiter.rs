//! Turns a pure meter into a limiter: a lock, a clock, waiters that are notified, and the verbs that all of them share.

use super::in_turn::{Forecast, let_book};
use super::inherit::{Inherit, Withheld};
use super::meter::Meter;
use super::single_unit::{Attempt, MeterGuard, MeterLock, until_of};
use crate::core::ask::{Demand, Place};
use crate::core::limiter::Settlement;
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::core::ticket::Ticket;
use crate::core::turns::Turns;
use crate::sync::notify::Notify;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, Instant};
use std::time::Duration;

/// A meter behind a lock. The lock is held for the few steps of the meter, and never while other code runs.
pub(super) struct MeterLimiter<M> {
    meter: MeterLock<M>,
    clock: Clock,
    notify: Notify,
    turns: Turns,
    leg: &'static str,
    /// Set by every change of a setting. Under the lock.
    changed: AtomicBool,
    /// `None` before the first change of the limit.
    withheld: Mutex<Option<Withheld>>,
}

/// The units of one admission, and the meter's mark: one word more than the mark has.
///
/// ```
/// # use tollgate::{FixedWindow, Limiter, RateTicket, Ticket};
/// fn words<L: Limiter<Ticket = RateTicket<MARK>>, const MARK: usize>() -> usize {
///     <L::Ticket as Ticket>::WORDS
/// }
/// assert_eq!(words::<FixedWindow, 4>(), 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateTicket<const MARK: usize> {
    pub(super) units: u64,
    pub(super) mark: [u64; MARK],
}

impl<const MARK: usize> Ticket for RateTicket<MARK> {
    const WORDS: usize = 1 + MARK;
    #[inline(always)]
    fn write(&self, words: &mut [u64]) {
        words[0] = self.units;
        words[1..=MARK].copy_from_slice(&self.mark);
    }
    #[inline(always)]
    fn read(words: &[u64]) -> Self {
        let mut mark = [0; MARK];
        mark.copy_from_slice(&words[1..=MARK]);
        Self { units: words[0], mark }
    }
}

impl<M: Meter> MeterLimiter<M> {
    pub(super) fn new(leg: &'static str, clock: &Clock, meter: impl FnOnce(u64) -> M) -> Self {
        Self {
            meter: MeterLock::new(meter(clock.now().ticks())),
            clock: clock.clone(),
            notify: Notify::new(),
            turns: Turns::new(),
            leg,
            changed: AtomicBool::new(false),
            withheld: Mutex::new(None),
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The meter as of `now`.
    #[inline]
    pub(super) fn at(&self, now: Instant) -> MeterGuard<'_, M> {
        let mut meter = self.meter.lock();
        if meter.catch_up(now.ticks()) {
            return self.tell(meter, now);
        }
        meter
    }

    /// The meter as of `now`, without telling the waiters: the caller may hold a lock.
    fn at_quietly(&self, now: Instant) -> MeterGuard<'_, M> {
        let mut meter = self.meter.lock();
        meter.advance(now.ticks());
        meter
    }

    /// Notifies the waiters between two locks.
    #[cold]
    #[inline(never)]
    fn tell<'a>(&'a self, meter: MeterGuard<'a, M>, now: Instant) -> MeterGuard<'a, M> {
        drop(meter);
        self.notify.notify_all();
        self.at_quietly(now)
    }

    /// Reads the meter now.
    pub(super) fn read<R>(&self, read: impl FnOnce(&M) -> R) -> R {
        read(&self.at(self.clock.now()))
    }

    /// Changes a setting of the meter now. Call [`notify_changed`](Self::notify_changed) afterwards, outside every
    /// lock.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut M) -> R) -> R {
        let mut meter = self.at_quietly(self.clock.now());
        // Relaxed: read under the same lock.
        self.changed.store(true, Ordering::Relaxed);
        change(&mut meter)
    }

    /// Counts the settings in force as those that it was made with: a version of a policy decides them, and not the key.
    pub(super) fn adopt_settings(&self) {
        let _meter = self.at_quietly(self.clock.now());
        self.changed.store(false, Ordering::Relaxed);
    }

    /// The rest of `room` when the limit changes from `old` to `new` and the rule says `wanted`. Call it once for each
    /// change. A limit of none, or a reset, forgets all earlier changes.
    pub(super) fn inherit(&self, rule: Inherit, room: i128, wanted: i128, [old, new]: [Option<i128>; 2]) -> i128 {
        let mut withheld = self.withheld.lock();
        let (Some(old), Some(new), false) = (old, new, rule == Inherit::Reset) else {
            *withheld = None;
            return wanted;
        };
        let (now, left) = withheld.unwrap_or(Withheld::new(old)).change(room, wanted, new);
        *withheld = Some(now);
        left
    }

    /// Starts the meter anew. Call [`notify_changed`](Self::notify_changed) afterwards.
    pub(super) fn clear(&self) {
        *self.withheld.lock() = None;
        self.at(self.clock.now()).clear();
    }

    /// Takes `n` at `now`, whether they are there or not.
    pub(super) fn charge(&self, n: u64, now: Instant) -> M::Mark {
        self.at(now).take(n)
    }

    /// True if it cannot be told from a new one.
    pub(super) fn is_pristine(&self, now: Instant) -> bool {
        let meter = self.at_quietly(now);
        // Relaxed: written under the same lock.
        let changed = self.changed.load(Ordering::Relaxed);
        !changed && !self.turns.is_waited() && meter.fresh_at().is_some_and(|at| at <= meter.now())
    }

    /// Notifies the waiters that the settings have changed.
    pub(super) fn notify_changed(&self) {
        self.notify.notify_reconfigured();
    }

    /// Takes the demand's units, unless the heads of queues are before it.
    #[inline(always)]
    pub(super) fn take_in_turn(&self, demand: Demand<'_>) -> Result<M::Mark, Refusal<'_>> {
        let (n, now) = (demand.units(), demand.now(&self.clock));
        if self.turns.is_waited() {
            return self.take_by_turn(n, demand.place(), now);
        }
        self.take(n, now)
    }

    /// One function out of line, so that the usual admission saves no registers for it.
    #[cold]
    #[inline(never)]
    fn take_by_turn(&self, n: u64, place: Option<&Place<'_>>, now: Instant) -> Result<M::Mark, Refusal<'_>> {
        self.let_try(n, place, now)?;
        self.take(n, now)
    }

    #[cold]
    fn let_try(&self, n: u64, place: Option<&Place<'_>>, now: Instant) -> Result<(), Refusal<'_>> {
        let forecast = |n, ahead| self.forecast(n, ahead, now);
        let judged = self.turns.let_try(n, place, now, &self.clock, forecast);
        judged.map_err(|at| self.refusal(n, now, at.map(Instant::ticks)))
    }

    #[inline(always)]
    pub(super) fn take(&self, n: u64, now: Instant) -> Result<M::Mark, Refusal<'_>> {
        if let (Some(mark), 1) = (M::BY_WORD, n) {
            match self.meter.take_one(now.ticks()) {
                Attempt::Until(until) => return Ok(mark(until)),
                Attempt::Not(at) => return Err(self.refusal(n, now, Some(at))),
                Attempt::ByLock => {}
            }
        }
        let mut meter = self.meter.lock();
        if let Some(mark) = meter.take_at_once(n, now.ticks()) {
            return Ok(mark);
        }
        if meter.catch_up(now.ticks()) {
            meter = self.tell(meter, now);
        }
        if meter.fits(n) {
            return Ok(meter.take(n));
        }
        let at = meter.ready(n, 0);
        drop(meter);
        Err(self.refusal(n, now, at))
    }

    /// Inlined, so that the usual admission does not go through memory for it.
    #[inline(always)]
    fn refusal(&self, n: u64, now: Instant, at: Option<u64>) -> Refusal<'_> {
        match at {
            Some(at) => {
                let due = Due::at(&self.clock, now, Instant::from_ticks(at));
                Refusal::new(Reason::RateExceeded, self.leg, n, Wait::Until(due))
            }
            None => Refusal::new(Reason::Oversized, self.leg, n, Wait::Never),
        }
    }

    #[inline(always)]
    pub(super) fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
        let now = self.clock.now();
        if self.turns.is_waited() {
            return self.take_by_turn(n, None, now).map(|_| ());
        }
        self.take(n, now).map(|_| ())
    }

    pub(super) fn acquire_up_to(&self, n: u64) -> u64 {
        if self.turns.is_waited() && self.let_try(1, None, self.clock.now()).is_err() {
            return 0;
        }
        let mut meter = self.at(self.clock.now());
        let n = n.min(meter.free());
        meter.take(n);
        n
    }

    pub(super) fn force_acquire(&self, n: u64) {
        self.charge(n, self.clock.now());
    }

    /// Takes `n` for later, by the meter's own booking.
    pub(super) fn book(
        &self,
        n: u64,
        book: impl FnOnce(&mut M) -> Result<(M::Mark, u64), Option<u64>>,
    ) -> Result<(M::Mark, Instant, Instant), Refusal<'_>> {
        let now = self.clock.now();
        if self.turns.is_waited() {
            let_book(self.let_try(n, None, now))?;
        }
        let booked = book(&mut self.at(now));
        match booked {
            Ok((mark, due)) => Ok((mark, now, Instant::from_ticks(due))),
            Err(None) => Err(self.refusal(n, now, None)),
            Err(at) => Err(self.refusal(n, now, at).with_reason(Reason::QueueFull)),
        }
    }

    fn until(&self, instant: impl FnOnce(&M) -> Option<u64>) -> Option<Duration> {
        let now = self.clock.now();
        let at = instant(&self.at(now))?;
        Some(self.clock.between(now, Instant::from_ticks(at)))
    }

    pub(super) fn time_until(&self, n: u64) -> Option<Duration> {
        self.until(|meter| meter.ready(n, 0))
    }

    pub(super) fn time_until_full(&self) -> Option<Duration> {
        self.until(M::fresh_at)
    }

    #[inline]
    pub(super) fn cancel(&self, units: u64, mark: &M::Mark, now: Instant) {
        if !self.cancel_one(units, mark, now) {
            self.at(now).restore(mark, units);
        }
        self.notify.notify_all();
    }

    /// Refunds one unit that was taken through the word, if the word is unchanged since.
    #[inline]
    fn cancel_one(&self, units: u64, mark: &M::Mark, now: Instant) -> bool {
        let until = match mark.as_ref() {
            [first, ..] if M::BY_WORD.is_some() && units == 1 => until_of(*first),
            _ => None,
        };
        until.is_some_and(|until| self.meter.give_back_one(until, now.ticks()))
    }

    pub(super) fn settle(&self, units: &mut u64, mark: &mut M::Mark, settlement: &Settlement<'_>) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        let charged = *units;
        if actual != charged {
            let now = settlement.reading().now(&self.clock);
            *units = self.at(now).correct(mark, charged, actual);
            if actual < charged {
                self.notify.notify_all();
            }
        }
        1
    }

    pub(super) fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        let now = demand.now(&self.clock);
        self.turns
            .ready_at(self.leg, demand, &self.clock, |n, ahead| self.forecast(n, ahead, now))
    }

    /// When `n` units are admitted behind `ahead` others.
    fn forecast(&self, n: u64, ahead: u64, now: Instant) -> Forecast {
        let meter = self.at(now);
        match meter.ready(n, ahead) {
            // A demand for zero units: it waits for those ahead.
            None if n == 0 => Forecast::Event,
            None => Forecast::Never,
            // There is nothing to wait for, also by a stale reading of the clock.
            Some(at) if at <= meter.now() => Forecast::Now,
            Some(at) => Forecast::At(Instant::from_ticks(at)),
        }
    }

    /// The queues that wait here.
    pub(super) fn turns(&self) -> &dyn WaitQueue {
        &self.turns
    }
}

/// Writes the verbs of a limiter that has a field `inner`, and its `Limiter`. `$status` is the method that reports
/// its state.
macro_rules! meter_limiter {
    ($ty:ident, $mark:literal $(, $status:ident)?) => {
        impl $ty {
            /// Takes `n` now, or refuses: the method for a limiter that stands alone.
            ///
            /// # Errors
            /// `RateExceeded`, with a true `retry_after`; `Oversized` when no instant, but only a change of the quota, could
            /// admit `n`.
            #[inline]
            pub fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
                self.inner.try_acquire(n)
            }

            /// Takes up to `n` of the units that are there, and returns how many it took.
            pub fn acquire_up_to(&self, n: u64) -> u64 {
                self.inner.acquire_up_to(n)
            }

            /// Takes `n` now, whether they are there or not. The rest is a debt, which is paid before anything else is
            /// admitted.
            pub fn force_acquire(&self, n: u64) {
                self.inner.force_acquire(n);
            }

            /// How many could be taken now. A snapshot.
            pub fn available(&self) -> u64 {
                self.inner.read(Meter::free)
            }

            /// How long until `n` could be taken, if no other caller takes any meanwhile; rounded up to a nanosecond.
            /// `None` if only a change of the quota could admit them.
            pub fn time_until(&self, n: u64) -> Option<Duration> {
                self.inner.time_until(n)
            }

            /// How long until it is as good as new, if no caller takes any meanwhile. `None` if that is never.
            pub fn time_until_full(&self) -> Option<Duration> {
                self.inner.time_until_full()
            }

            pub(crate) fn adopt_settings(&self) {
                self.inner.adopt_settings();
            }

            /// Starts anew, as if nothing had been taken. Nothing that was taken before is given back any more.
            pub fn reset(&self) {
                self.inner.clear();
                self.inner.notify_changed();
            }
        }

        $crate::rate::rate_limiter::rate_limiter!($ty);

        impl Limiter for $ty {
            type Ticket = RateTicket<$mark>;

            #[inline(always)]
            fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
                let units = demand.units();
                let mark = self.inner.take_in_turn(demand)?;
                Ok(RateTicket { units, mark })
            }

            fn cancel(&self, ticket: Self::Ticket, now: &ClockReading) {
                let now = now.now(self.inner.clock());
                self.inner.cancel(ticket.units, &ticket.mark, now);
            }

            fn settle(&self, ticket: &mut Self::Ticket, settlement: Settlement<'_>) -> u32 {
                self.inner
                    .settle(&mut ticket.units, &mut ticket.mark, &settlement)
            }

            #[inline]
            fn finish(&self, _: Self::Ticket, _: Outcome, _: &ClockReading) {}

            #[inline]
            fn forget(&self, _: Self::Ticket) {}

            #[inline]
            fn callbacks(&self) -> $crate::core::limiter::Callbacks {
                $crate::core::limiter::Callbacks::NONE
            }

            fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
                self.inner.ready_at(demand)
            }

            fn clock(&self) -> Option<&Clock> {
                Some(self.inner.clock())
            }

            $(
                fn visit_status(&self, visit: &mut dyn FnMut($crate::core::status::Status<'_>)) {
                    if let Some(state) = self.$status() {
                        visit($crate::core::status::Status::new(LEG, LEG, state));
                    }
                }
            )?

            fn is_pristine(&self, now: &ClockReading) -> bool {
                self.inner.is_pristine(now.now(self.inner.clock()))
            }

            #[inline(always)]
            fn finish_may_panic(&self) -> bool {
                false
            }

            fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn $crate::sync::wait_queue::WaitQueue)) {
                visit(self.inner.turns());
            }
        }
    };
}
pub(super) use meter_limiter;
