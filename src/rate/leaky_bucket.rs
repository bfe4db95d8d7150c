//! The leaky bucket: even spacing, one after the other.
//!
//! # The meter
//! A take fills the bucket, and time empties it; it admits while it does not run over. Debts and bookings may raise the
//! level beyond the brim: they are due when it has sunk back to it.
//!
//! # Refunds
//! Without a reservation the level would be lower by it, but never below empty. So it refunds at most the part that it
//! left in the bucket, less the outflow since. Later takes lie on top and do not matter. Refunds of *older*
//! reservations since lay below and are subtracted, as are its own. That takes an order (a number for each take) and
//! the refunds of late, [`MAX_REFUNDS`] at most. Older refunds that could still matter count as below. So does all that
//! a reservation refunds after it was settled upwards, since a part of it lies below the takes in between. And a refund
//! leaves every later booking an instant before which the bucket has not run empty; see [`Promises`].
//!
//! # One unit alone
//! If the only unit in the bucket has flowed out, the next one taken alone is a [`SingleUnit`].

use super::drain::{Drain, GRAIN, grains};
use super::future::{FutureReservation, Promises, TakeOrder};
use super::inherit::Inherit;
use super::meter::Meter;
use super::meter_limiter::{MeterLimiter, RateTicket, meter_limiter};
use super::quota::Quota;
use super::rate_error::RateError;
use super::single_unit::{self, Known, SingleUnit, Times};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, ClockReading};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

const LEG: &str = "leaky_bucket";

/// Lets units out one by one, an interval apart: at ten a second, one each 100 ms. Exact integers, no drift.
///
/// Idle time is lost, except for the *slack*: up to `slack` more units may follow at once, to catch up with the
/// spacing. In any span of time `t` it admits at most `1 + slack + rate x t`, where `t` counts a tick of the clock
/// longer. The rounding of a wait is not lost, up to a unit per 16 ns. At higher rates on a machine's clock, each wait
/// for a single unit is rounded up to a tick. A request for more than `1 + slack` units is `Oversized`; it can be
/// booked.
///
/// As a [`Limiter`] it admits units that may start now and refuses the rest. In a [`Policy`](crate::Policy) the refused
/// requests wait in the queue, and come out evenly spaced. [`book`](Self::book) admits for later: the bucket holds the
/// bookings that are not yet due, and refuses a booking that does not fit. Its size is the quota's burst.
///
/// | | 4 at one instant, at 10/s burst 3 |
/// |---|---|
/// | `try_acquire` | 1 admitted, 3 refused |
/// | `book` | due after 0, 100 and 200 ms, 1 refused |
/// | `try_acquire`, slack 1 | 2 admitted, 2 refused |
///
/// # Giving back
/// A cancelled reservation or booking gives back all it took, unless the bucket could have been empty in between
/// without it. Precisely, it gives back the part that it left in the bucket, less the outflow since, and less the
/// refunds of older ones since. So cancels are exact in any order, and no span exceeds its bound. Of more than 64
/// cancels while the bucket does not run empty, some count as older than they are, and give back less. Before instants
/// that were [booked](Self::book) less is given back, so that no span exceeds its bound by these. A
/// [`settle`](crate::Permit::settle) corrects the charge from now on.
///
/// The bucket is the meter of ITU-T I.371 (generic cell rate algorithm), in its leaky form.
///
/// # Memory ordering
/// None is promised to callers: a rate orders no work after other work.
///
/// ```
/// # use tollgate::{LeakyBucket, ManualClock, Quota};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let bucket = LeakyBucket::new(Quota::per_second(10).burst(3)).on(&clock);
/// assert!(bucket.try_acquire(1).is_ok());
/// assert_eq!(bucket.try_acquire(1).unwrap_err().retry_after(), Some(Duration::from_millis(100)));
///
/// // A long pause earns nothing.
/// clock.advance(Duration::from_secs(60));
/// let waits: Vec<_> = (0..3).map(|_| bucket.book(1).unwrap()).map(|booking| {
///     let wait = booking.wait().as_millis();
///     booking.commit();
///     wait
/// }).collect();
/// assert_eq!(waits, [0, 100, 200]);
/// assert!(bucket.book(1).is_err());
/// ```
pub struct LeakyBucket {
    inner: MeterLimiter<LeakyMeter>,
    settings: Mutex<Settings>,
}

/// The settings in force.
#[derive(Clone, Copy, Debug)]
struct Settings {
    quota: Quota,
    slack: u64,
}

impl Settings {
    /// The level allowed right after an admission, and after a booking.
    fn sizes(&self) -> (u64, u64) {
        let ahead = self.quota.burst_size().max(1);
        (self.slack + 1, self.slack.saturating_add(ahead))
    }

    fn check(self) -> Result<Self, RateError> {
        let given = self.slack;
        let flows_out = || self.quota.is_unlimited() || self.quota.with_burst(given + 1).is_ok();
        if given < Quota::MAX_BURST && flows_out() {
            Ok(self)
        } else {
            Err(RateError::Slack { given })
        }
    }
}

/// The outflow of a quota; `None` if it is unlimited.
fn drain_of(quota: &Quota, clock: &Clock) -> Option<Drain> {
    if quota.is_unlimited() {
        return None;
    }
    if quota.is_zero() {
        return Some(Drain::STOPPED);
    }
    let (count, nanos) = quota.reduced();
    Some(Drain::new(count, nanos, clock.nanos_scale()))
}

impl LeakyBucket {
    /// An empty bucket without slack, on the real clock. At [`Quota::zero`] nothing flows out, and nothing is admitted.
    pub fn new(quota: Quota) -> Self {
        Self::build(Settings { quota, slack: 0 }, &Clock::real())
    }

    /// The same bucket on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(*self.settings.lock(), clock)
    }

    /// The same bucket with another slack, empty: up to `slack` units may catch up with the spacing after a pause.
    ///
    /// # Errors
    /// [`RateError::Slack`] when it is 2^40 or more, or would not flow out within 584 years.
    ///
    /// ```
    /// # use tollgate::{Inherit, LeakyBucket, ManualClock, Quota};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let spaced = LeakyBucket::new(Quota::per_second(10)).slack(2)?.on(&clock);
    /// assert_eq!(spaced.acquire_up_to(5), 3, "one, and two to catch up");
    /// assert_eq!(spaced.time_until(1), Some(Duration::from_millis(100)));
    /// spaced.force_acquire(4);
    /// spaced.set_quota(Quota::per_second(20), Inherit::AsIs)?;
    /// spaced.set_slack(0, Inherit::AsIs)?;
    /// spaced.reset();
    /// assert_eq!(spaced.available(), 1);
    /// # Ok::<(), tollgate::RateError>(())
    /// ```
    pub fn slack(self, slack: u64) -> Result<Self, RateError> {
        let set = Settings {
            slack,
            ..*self.settings.lock()
        };
        Ok(Self::build(set.check()?, self.inner.clock()))
    }

    fn build(set: Settings, clock: &Clock) -> Self {
        let (brim, size) = set.sizes();
        let drain = drain_of(&set.quota, clock);
        Self {
            inner: MeterLimiter::new(LEG, clock, |now| LeakyMeter::new(now, drain, brim, size)),
            settings: Mutex::new(set),
        }
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.settings.lock().quota
    }

    /// Changes the rate, and with it the size, at once. The units in the bucket flow out at the new rate. The slack
    /// stays as it is, so every rule is the same but [`Inherit::Reset`], which empties the bucket. An unlimited quota
    /// empties it as well.
    ///
    /// # Errors
    /// [`RateError::Slack`] when the slack would not flow out within 584 years. Nothing is changed then.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) -> Result<(), RateError> {
        self.set_all(|set| Settings { quota, ..set }, inherit)
    }

    /// Changes the slack at once; `inherit` says what becomes of the room that is left. A debt stays.
    ///
    /// # Errors
    /// [`RateError::Slack`] as for [`slack`](Self::slack). Nothing is changed then.
    pub fn set_slack(&self, slack: u64, inherit: Inherit) -> Result<(), RateError> {
        self.set_all(|set| Settings { slack, ..set }, inherit)
    }

    fn set_all(&self, change: impl FnOnce(Settings) -> Settings, inherit: Inherit) -> Result<(), RateError> {
        let mut set = self.settings.lock();
        let new = change(*set).check()?;
        self.apply(&new, inherit);
        *set = new;
        drop(set);
        self.inner.notify_changed();
        Ok(())
    }

    fn apply(&self, set: &Settings, inherit: Inherit) {
        let (brim, size) = set.sizes();
        let drain = drain_of(&set.quota, self.inner.clock());
        self.inner.change(|leaky| {
            let (old, new) = (leaky.brim() as i128, grains(brim));
            let room = leaky.room();
            let wanted = inherit.scaled(room, old, new as i128);
            let counted = [old, new as i128].map(|brim| drain.is_some().then_some(brim));
            let room = self.inner.inherit(inherit, room, wanted, counted);
            leaky.set_drain(drain);
            leaky.set_brim(new, size, room);
            if inherit == Inherit::Reset || drain.is_none() {
                leaky.clear();
            }
        });
    }

    /// Takes `n` for the first instant at which all of them have flowed out of the brim, behind everything booked
    /// before. Any weight that fits into the bucket can be booked, with a slack or without.
    ///
    /// Bookings behind one that is given back keep their instants, although they could start earlier now. By these
    /// instants no span of time `t` has more than `1 + slack + rate x t`, or than one weight that is more than `1 +
    /// slack`, plus `rate x t`. So a booking before others gives back at most as much as had flowed out, without it,
    /// when each of them starts. Without a slack its slot stays empty. The rest comes back when the bookings in its way
    /// are given back as well. Two limits give back less: of more than 256 bookings, neighbours count as one; of more
    /// than 64 that wait for their rest, the oldest is forgotten. After a change of the quota or the slack nothing is
    /// given back before others that were booked before it. They keep their instants at any new rate, and are counted
    /// by those of the old one. At a higher rate the bucket is empty sooner, and others start beside them.
    ///
    /// # Errors
    /// `QueueFull` when the bucket would run over, with a true `retry_after`; `Oversized` when `n` never fits.
    pub fn book(&self, n: u64) -> Result<FutureReservation<'_, Self>, Refusal<'_>> {
        let (mark, made, start) = self.inner.book(n, |leaky| leaky.book(n))?;
        let ticket = RateTicket { units: n, mark };
        Ok(FutureReservation::new(self, ticket, self.inner.clock(), made, start))
    }

    /// How many units are owed, by bookings and debts, before the next can be admitted without slack; rounded up.
    pub fn debt(&self) -> u64 {
        self.inner.read(LeakyMeter::debt)
    }
}

impl LeakyBucket {
    fn status(&self) -> Option<State> {
        self.quota().status(self.available(), self.time_until(1))
    }
}

meter_limiter!(LeakyBucket, 3, status);

impl fmt::Debug for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = *self.settings.lock();
        f.debug_struct("LeakyBucket")
            .field("quota", &format_args!("{}", set.quota))
            .field("slack", &set.slack)
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

/// How many refunds are remembered separately.
pub(super) const MAX_REFUNDS: usize = 64;

/// Amounts are grains.
#[derive(Debug)]
pub(super) struct LeakyMeter {
    now: u64,
    /// `None` if nothing is counted.
    drain: Option<Drain>,
    level: u128,
    /// The most that may be in it right after an admission.
    brim: u128,
    /// The most that may be in it right after a booking.
    size: u128,
    /// The outflow so far, and the refunds that are no longer remembered.
    passed: u128,
    /// The number of takes.
    taken: u64,
    /// Takes up to this number are not refunded.
    cleared: u64,
    refunds: VecDeque<Refund>,
    /// The bookings that are not due yet.
    promises: Promises<[u64; 3]>,
    /// The outflow since the bucket ran empty, less than a tick ago. The wait for that was rounded up, and units that
    /// are taken now count from then.
    early: u128,
    /// The part of that which was taken at this instant.
    early_taken: u128,
    /// How long one unit alone takes to flow out; the end of time if ticks are too coarse for it.
    unit_lasts: u64,
    /// Set while the bucket holds one unit that was taken alone.
    single_unit: SingleUnit<[u64; 3]>,
}

/// In the second word of a mark: the take was settled upwards, and so is in two places of the order.
const TWICE: u64 = 1 << 63;

/// The level after a take, plus all outflow before.
fn filled(mark: &[u64; 3]) -> u128 {
    u128::from(mark[1] & !TWICE) << 64 | u128::from(mark[2])
}

/// By the number of the take.
impl TakeOrder for [u64; 3] {
    fn is_before(&self, other: &Self) -> bool {
        self[0] < other[0]
    }
}

/// A refund of a take.
#[derive(Debug)]
struct Refund {
    /// The number of the take.
    from: u64,
    /// The number of takes when it was made.
    at: u64,
    amount: u128,
    /// Once this much has flowed out, nothing is left of the bucket as it was then.
    stale: u128,
}

impl LeakyMeter {
    /// An empty bucket.
    pub(super) fn new(now: u64, drain: Option<Drain>, brim: u64, size: u64) -> Self {
        Self {
            now,
            drain,
            level: 0,
            brim: grains(brim),
            size: grains(size),
            passed: 0,
            taken: 0,
            cleared: 0,
            refunds: VecDeque::new(),
            promises: Promises::EMPTY,
            early: 0,
            early_taken: 0,
            unit_lasts: unit_lasts(drain),
            single_unit: SingleUnit::new([0; 3]),
        }
    }

    /// Changes the outflow. The level stays.
    pub(super) fn set_drain(&mut self, drain: Option<Drain>) {
        self.drain = drain;
        self.unit_lasts = unit_lasts(drain);
        self.early = 0;
        self.single_unit.end();
        self.promises.freeze();
    }

    fn is_stopped(&self) -> bool {
        self.drain.is_some_and(|drain| drain.is_stopped())
    }

    pub(super) fn brim(&self) -> u128 {
        self.brim
    }

    /// The room below the brim; negative in debt.
    pub(super) fn room(&self) -> i128 {
        self.brim as i128 - i128::try_from(self.level).unwrap_or(i128::MAX)
    }

    /// Moves the brim, and leaves `room` below it.
    pub(super) fn set_brim(&mut self, brim: u128, size: u64, room: i128) {
        (self.brim, self.size) = (brim, grains(size));
        self.promises.freeze();
        let level = (brim as i128).saturating_sub(room).max(0) as u128;
        self.lower(0, self.level.saturating_sub(level));
        self.level = level;
        self.single_unit.end();
    }

    /// The level beyond the brim, rounded up to whole units.
    pub(super) fn debt(&self) -> u64 {
        u64::try_from(self.level.saturating_sub(self.brim).div_ceil(1 << GRAIN)).unwrap_or(u64::MAX)
    }

    /// The level after a take of this amount, the first part of which has flowed out already.
    fn level_with(&self, amount: u128) -> u128 {
        self.level.saturating_add(amount - self.early.min(amount))
    }

    /// Takes `n` for a later instant, which it returns. Fails with the instant at which there will be room for the
    /// booking, if there is one.
    pub(super) fn book(&mut self, n: u64) -> Result<([u64; 3], u64), Option<u64>> {
        let level = self.level_with(grains(n));
        if self.is_stopped() && n > 0 {
            return Err(None);
        }
        if self.drain.is_some() && level > self.size {
            let fits = grains(n) <= self.size;
            return Err(fits.then(|| self.sunk_at(level - self.size)).flatten());
        }
        let due = self.sunk_at(level.saturating_sub(self.brim)).ok_or(None)?;
        let below = self.level;
        let mark = self.take(n);
        if let Some(mut drain) = self.drain.filter(|_| due > self.now && n > 0) {
            self.promises.expire(self.now);
            let room = below.saturating_sub(drain.pass(due - self.now));
            self.promises.add(mark, due, room);
        }
        Ok((mark, due))
    }

    /// Refunds up to `amount` of a take.
    fn refund(&mut self, mark: [u64; 3], amount: u128) {
        let left = self.left_by(mark[0], filled(&mark));
        let amount = self.promises.release(mark, amount.min(left));
        let from = if mark[1] & TWICE == 0 { mark[0] } else { 0 };
        self.lower(from, amount);
    }

    /// The mark under the lock of a take; `None` if that was cleared.
    fn known(&self, mark: [u64; 3]) -> Option<[u64; 3]> {
        match self.single_unit.find(mark[0]) {
            None => (mark[0] > self.cleared).then_some(mark),
            Some(Known::As(mark)) => Some(mark),
            // Older than everything in the bucket, and no part of it is left.
            Some(Known::Past) => Some([0; 3]),
            Some(Known::Cleared) => None,
        }
    }

    /// When `amount` has flowed out.
    fn sunk_at(&self, amount: u128) -> Option<u64> {
        match &self.drain {
            Some(drain) => drain.ticks_until(amount).map(|ticks| self.now.saturating_add(ticks)),
            None => Some(self.now),
        }
    }

    /// The part of a take that is still in the bucket.
    fn left_by(&self, number: u64, filled: u128) -> u128 {
        let below = |refund: &&Refund| refund.at >= number && refund.from <= number;
        let given: u128 = self.refunds.iter().filter(below).map(|refund| refund.amount).sum();
        filled.saturating_sub(self.passed).saturating_sub(given)
    }

    /// Takes one unit, into an empty bucket.
    fn take_alone(&mut self) {
        // All bookings have begun, unless the rate was changed since. If it was, no take may pass them through the
        // word.
        self.promises.expire(self.now);
        if self.promises.is_empty() {
            self.single_unit.begin(self.now.saturating_add(self.unit_lasts));
        } else {
            self.single_unit.end();
        }
    }

    /// The mark of the latest take, which filled the bucket to `level`.
    #[inline]
    fn mark_at(&self, level: u128) -> [u64; 3] {
        let filled = level.saturating_add(self.passed);
        [self.taken, (filled >> 64) as u64, filled as u64]
    }

    /// Lowers the level for a refund of the take `from`; zero stands for older than all.
    fn lower(&mut self, from: u64, amount: u128) {
        let early = amount.saturating_sub(self.level).min(self.early_taken);
        self.early_taken -= early;
        self.early += early;
        let amount = amount.min(self.level);
        if amount == 0 {
            return;
        }
        self.single_unit.end();
        while self.refunds.front().is_some_and(|refund| refund.stale <= self.passed) {
            self.refunds.pop_front();
        }
        if self.refunds.len() == MAX_REFUNDS {
            if let Some(refund) = self.refunds.pop_front() {
                self.passed = self.passed.saturating_add(refund.amount);
            }
        }
        self.refunds.push_back(Refund {
            from,
            at: self.taken,
            amount,
            stale: self.passed.saturating_add(self.level).saturating_add(self.early_taken),
        });
        self.level -= amount;
    }
}

impl Meter for LeakyMeter {
    type Mark = [u64; 3];

    const BY_WORD: Option<fn(u64) -> Self::Mark> = Some(|until| [single_unit::mark_of(until), 0, 0]);

    fn went_by_word(&mut self, word: u64) {
        if self.single_unit.is(word) {
            return;
        }
        // All of it has flowed out.
        self.passed = self.passed.saturating_add(self.level);
        self.level = 0;
        if let Some(drain) = &mut self.drain {
            drain.run_dry();
        }
        if let Some(since) = single_unit::since_of(word) {
            self.now = self.now.max(since);
            return self.single_unit.is_free(since, self.times());
        }
        self.now = word - self.unit_lasts;
        let mark = self.take(1);
        self.single_unit.went(word, mark);
    }

    #[inline(always)]
    fn open(&mut self) -> u64 {
        let times = self.times();
        self.single_unit.open(self.now, times)
    }

    #[inline(always)]
    fn times(&self) -> Times {
        Times {
            lasts: self.unit_lasts,
            rest: if self.brim == grains(1) { 0 } else { u64::MAX },
        }
    }

    #[inline]
    fn advance(&mut self, now: u64) {
        let ticks = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if let Some(drain) = self.drain.as_mut().filter(|_| ticks > 0) {
            let ran_dry = self.level > 0;
            let flow = drain.pass(ticks);
            let over = flow.saturating_sub(self.level);
            let flow = flow.min(self.level);
            self.passed = self.passed.saturating_add(flow);
            self.level -= flow;
            // The part that was taken early had flowed out by then.
            self.passed = self.passed.saturating_add(std::mem::take(&mut self.early_taken));
            self.early = 0;
            if self.level == 0 {
                if ran_dry && drain.takes_no_tick(over) && self.unit_lasts == u64::MAX {
                    self.early = over.min(grains(1) - 1);
                } else {
                    drain.run_dry();
                }
                // Nothing is left of any take, as if all refunds had flowed out.
                while let Some(refund) = self.refunds.pop_front() {
                    self.passed = self.passed.saturating_add(refund.amount);
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.now
    }

    #[inline]
    fn fits(&self, n: u64) -> bool {
        let sinks = || !self.is_stopped() && self.level.saturating_add(grains(n)) <= self.brim;
        n == 0 || self.drain.is_none() || sinks()
    }

    fn free(&self) -> u64 {
        match self.drain {
            Some(drain) if drain.is_stopped() => 0,
            Some(_) => u64::try_from(self.brim.saturating_sub(self.level) >> GRAIN).unwrap_or(u64::MAX),
            None => u64::MAX,
        }
    }

    #[inline]
    fn take(&mut self, n: u64) -> Self::Mark {
        if self.drain.is_none() {
            return [0; 3];
        }
        self.taken += 1;
        if n == 1 && self.level == 0 && self.brim >= grains(1) {
            self.take_alone();
        } else {
            self.single_unit.end();
        }
        let early = self.early.min(grains(n));
        self.level = self.level_with(grains(n));
        self.early -= early;
        self.early_taken += early;
        self.mark_at(self.level.saturating_add(self.early_taken))
    }

    fn restore(&mut self, mark: &Self::Mark, units: u64) {
        let Some(mark) = self.known(*mark) else { return };
        self.promises.expire(self.now);
        if self.promises.is_empty() {
            return self.refund(mark, grains(units));
        }
        for (mark, amount) in self.promises.cancel(mark, grains(units)) {
            self.refund(mark, amount);
        }
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        if self.drain.is_none() {
            return actual;
        }
        self.promises.expire(self.now);
        let known = self.known(*mark);
        match (actual.checked_sub(charged), known) {
            (None, Some(mark)) => self.refund(mark, grains(charged - actual)),
            (None, None) => {}
            (Some(more), known) => {
                // The rest of the take goes on as a part of the new one. If instants may have been promised between
                // both, only the new part may still come back.
                let left = match known {
                    Some(mark) if self.promises.is_empty() => self.left_by(mark[0], filled(&mark)),
                    _ => 0,
                };
                self.single_unit.end();
                self.taken += 1;
                self.level = self.level.saturating_add(grains(more));
                *mark = self.mark_at(left.saturating_add(grains(more)));
                mark[1] |= TWICE;
            }
        }
        actual
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if self.drain.is_some() && grains(n) > self.brim {
            return None;
        }
        if n == 0 && ahead == 0 {
            return Some(self.now);
        }
        if self.is_stopped() {
            return None;
        }
        let wanted = self.level_with(grains(n).saturating_add(grains(ahead)));
        self.sunk_at(wanted.saturating_sub(self.brim))
    }

    fn fresh_at(&self) -> Option<u64> {
        self.sunk_at(self.level)
    }

    fn clear(&mut self) {
        (self.level, self.early, self.early_taken) = (0, 0, 0);
        self.cleared = self.taken;
        self.single_unit.clear();
        self.refunds.clear();
        self.promises = Promises::EMPTY;
    }
}

/// How long one unit takes to flow out of an empty bucket. It is the end of time if that is no whole number of ticks,
/// so that the rest is not lost each time. Two cases ignore the rest: if it is less than a millionth, and at rates at
/// which more time passes while one unit is admitted.
fn unit_lasts(drain: Option<Drain>) -> u64 {
    let Some(mut drain) = drain else { return u64::MAX };
    drain.run_dry();
    let Some(ticks) = drain.ticks_until(grains(1)) else {
        return u64::MAX;
    };
    let in_vain = ticks >= 1_000_000 || drain.is_brief(ticks);
    match in_vain || drain.pass(ticks) == grains(1) {
        true => ticks,
        false => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What flowed out before an instant that was rounded up belongs to the booking that uses it: no span from its start has more
    /// than the largest weight and the outflow, a tick longer.
    #[test]
    fn a_booking_starts_when_its_own_level_has_sunk() {
        let mut leaky = LeakyMeter::new(0, Some(Drain::new(5, 38, 1 << 40)), 2, 20);
        let starts = [(0, 1), (8, 4), (8, 4), (31, 3)].map(|(now, n)| {
            leaky.advance(now);
            leaky.book(n).unwrap().1
        });
        assert!((4 + 4 + 3 - 4) * 38 <= 5 * (starts[3] - starts[1] + 1), "{starts:?}");
    }

    /// Refunds in parts are no more than the part that is left, however much lies on top.
    #[test]
    fn refunds_of_one_take_count_against_it() {
        let mut leaky = LeakyMeter::new(0, Some(Drain::new(1, 10, 1 << 40)), 20, 20);
        let mark = leaky.take(4);
        leaky.advance(10);
        leaky.take(5);
        for left in [6, 5, 5] {
            leaky.restore(&mark, 2);
            assert_eq!(leaky.level, grains(left));
        }
    }

    /// Counters of 2.6 GHz, 24 MHz and 1 GHz: each unit starts at the first tick at which it may.
    #[test]
    fn steady_demand_loses_no_part_of_a_tick() {
        const UNITS: u128 = 50_000;
        const SECOND: u64 = 1_000_000_000;
        for scale in [(1u64 << 40) * 5 / 13, (1 << 40) * 125 / 3, 1 << 40] {
            for count in [7, 900_000, 1_000_003, 3_000_000] {
                let mut leaky = LeakyMeter::new(0, Some(Drain::new(count, SECOND, scale)), 1, 1);
                for _ in 0..UNITS {
                    assert!(leaky.fits(1));
                    leaky.take(1);
                    let ready = leaky.ready(1, 0).unwrap();
                    leaky.advance(ready);
                }
                let exact = ((UNITS * u128::from(SECOND)) << 40) / u128::from(count) / u128::from(scale);
                let off = u128::from(leaky.now).abs_diff(exact);
                assert!(
                    off <= 2 + exact / 1_000_000,
                    "{count}/s of {scale}: {} for {exact}",
                    leaky.now
                );
            }
        }
    }

    /// Given a bucket that ran empty within a tick, then the rest of the tick is kept as long as no time passes, and no idle time
    /// is added to it.
    #[test]
    fn the_rest_of_a_tick_is_kept_for_its_instant() {
        // A unit in 16 2/3 ticks of 2 ns.
        let mut leaky = LeakyMeter::new(0, Some(Drain::new(3, 100, 1 << 41)), 1, 1);
        leaky.take(1);
        leaky.advance(17);
        let early = leaky.early;
        assert!(early > 0);
        leaky.advance(17);
        assert_eq!(leaky.early, early);
        for now in 18..40 {
            leaky.advance(now);
            assert_eq!(leaky.early, 0, "at {now}");
        }
    }

    #[test]
    fn the_rest_of_a_tick_is_less_than_a_unit() {
        // 41 2/3 units in a tick.
        let drain = Drain::new(1_000_000_000, 1_000_000_000, (1 << 40) * 125 / 3);
        let mut leaky = LeakyMeter::new(0, Some(drain), 1, 1);
        leaky.take(1);
        leaky.advance(1);
        assert_eq!(leaky.early, grains(1) - 1);
    }

    /// A demand for zero units waits for those ahead, too.
    #[test]
    fn a_demand_for_nothing_is_ready_after_those_ahead() {
        let mut leaky = LeakyMeter::new(0, Some(Drain::new(1, 10, 1 << 40)), 4, 4);
        leaky.take(4);
        assert_eq!(
            [leaky.ready(0, 0), leaky.ready(0, 3), leaky.ready(1, 0)],
            [Some(0), Some(30), Some(10)]
        );
    }
}
