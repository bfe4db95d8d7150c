//! The token bucket: one atomic word on the axis of tokens.
//!
//! Time moves an axis `V` forward at the quota's rate. The word holds a position `P` on it: `V - P` is the level of the
//! bucket, at most the burst `B`. To take `n` is to move `P` to `max(P, V - B) + n`, allowed as long as that is not
//! beyond `V`. This is the generic cell rate algorithm (ITU-T I.371), turned from instants to tokens. So the rate
//! enters by one multiply, and everything else is whole numbers.
//!
//! | bits | meaning |
//! |---|---|
//! | 48..64 | tag: which set of parameters `P` is measured by |
//! | 0..48 | `P`, in units of `2^-scale` tokens |
//!
//! An admission reads its parameters from the resting slot beside the word. Its one compare-exchange also proves that
//! they were in force. A change of quota takes two steps, and each increments the tag. The first publishes the new
//! parameters in a second slot, with the new position, and sends every reader there. When the resting slot has been
//! written too, the second step sends the readers back. The same change, to the same quota with a later epoch, restarts
//! the axis before it leaves its 47 bits.
//!
//! The transitions of the word: `take`, `move_forward` and `book_ahead` move the position forward. `publish` changes
//! the tag, and `shift_position` lowers the position; both are in `writer.rs`, under the writer's lock.

mod axis;
mod params;
mod writer;

pub(crate) use axis::SharedAxis;

use super::future::FutureReservation;
use super::in_turn::{Forecast, let_book};
use super::quota::Quota;
use crate::core::ask::{Demand, Place};
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::core::status::Status;
use crate::core::ticket::Ticket;
use crate::core::turns::Turns;
use crate::sync::notify::Notify;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading, Instant};
use params::{MAX_AHEAD, ORIGIN, Params, Slot};
use std::fmt;
use std::time::Duration;
use writer::{After, EraTicket, Writer, fine};

const LEG: &str = "token_bucket";

/// Admits at a rate, and up to a saved burst. Exact integers, no drift, no lock.
///
/// In any span of time `t` it admits at most `burst + rate x t`, plus one unit for rounding. A unit is the finest
/// power-of-two part of a token in which the burst and an hour's refill can be counted. At 1/d with a burst of 1 that
/// is 2^-45 of a token, so two admissions may be a day less 3 ns apart. At a million a second it is 2^-15, and it is
/// never more than 2^-5. Where a token takes less than a million ticks of the clock, and no whole number of them, `t`
/// counts two ticks longer. So a bucket whose burst is wanted each time loses nothing to the rounding of each wait. A
/// request for more than the burst is `Oversized`; a request for zero units never waits. Stale readings of the clock
/// never add tokens.
///
/// # Giving back
/// A cancelled reservation gives back all it took, unless the bucket could have been full in between: tokens that would
/// have overflowed by then are gone. Precisely, it gives back `min(n, h)`. Here `h` is the room that was left in the
/// bucket right after the reservation, less the refill since, and less the refunds of older reservations since. So no
/// span ever exceeds its bound, and cancels within the time that the room takes to refill are exact, in any order.
///
/// Two cases give back less. Of more than 64 cancels in the time of two bursts, some count as older than they are. A
/// reservation made while another thread gives back counts all others as older.
///
/// The refund is never more than a bucket without the reservation would hold. It is exactly that as long as no more has
/// been refilled since than there was room before it. Where more was refilled, and other callers took meanwhile, it may
/// be less although the bucket was not full, by at most the refill beyond that room. A bucket does not remember the
/// order of its takers.
///
/// A reservation held across a change of quota gives back nothing if the change was a [`Reset`](crate::rate::Inherit::Reset).
/// Otherwise it gives back at most what both quotas leave room for, and only across the latest 16 changes. (Changes are
/// counted modulo 2^30. A reservation made while the count passes a multiple of 2^15 may give back nothing.)
///
/// Before instants that were [booked](Self::book), it gives back no more than leaves the bucket short of full until
/// each booking starts.
///
/// [`settle`](crate::Permit::settle) follows the same rule: an overcharge comes back as if it had been cancelled. An
/// undercharge is taken now, even if the bucket goes into debt. A debt is cut to two bursts or half an hour's refill,
/// whichever is more (at a rate of zero to 2^30 tokens). The part that is cut off was never charged. A reservation that
/// was settled upwards counts all others as older, and gives back no more before instants that were booked before.
///
/// # Refill
/// Continuous, or [by interval](Quota::by_interval). By interval, the bound for any span is `burst + n x count`, where
/// `n` ends of intervals lie in it. Several bandwidths are several buckets, all-or-nothing:
///
/// ```
/// # use tollgate::{LimiterExt, Quota, TokenBucket};
/// let gate = TokenBucket::new(Quota::per_second(10)).and(TokenBucket::new(Quota::per_minute(100)));
/// assert!(gate.try_admit(10).is_ok());
/// assert!(gate.try_admit(1).is_err());
/// ```
///
/// # Memory ordering
/// None is promised to callers: a rate orders no work after other work.
///
/// ```
/// # use tollgate::{ManualClock, Quota, TokenBucket};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(10).burst(3)).on(&clock);
/// assert!(bucket.try_acquire(3).is_ok());
/// let refused = bucket.try_acquire(2).unwrap_err();
/// assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
/// clock.advance(Duration::from_millis(200));
/// assert!(bucket.try_acquire(2).is_ok());
/// ```
pub struct TokenBucket {
    word: AtomicU64,
    /// The parameters at rest, under an even tag.
    resting: Slot,
    /// The parameters while the resting slot is rewritten, under an odd tag.
    moving: Slot,
    clock: Clock,
    /// Twice the units refunded by cancels and settlements, ever; odd while the position is being lowered.
    refunded: AtomicU64,
    writer: Mutex<Writer>,
    notify: Notify,
    turns: Turns,
}

/// A reservation's memory: the tokens taken, the word after that, and the count of refunds until then. The count is odd
/// if a refund ran meanwhile, so that their order is unknown.
///
/// ```
/// # use tollgate::{BucketTicket, Ticket};
/// // Three words of each admission in a policy.
/// assert_eq!(BucketTicket::WORDS, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTicket {
    tokens: u64,
    word: u64,
    refunded: u64,
}

/// Why a take failed.
#[derive(Clone, Copy)]
enum Shortage {
    /// The tokens are there at this instant.
    Until(Instant),
    /// Nothing is refilled as time passes.
    Spent,
    /// The demand exceeds the burst.
    Oversized,
}

impl BucketTicket {
    /// The tokens that are charged for it.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// All tokens taken until then, whatever was refunded: reservations are ordered by it. `None` if the order is
    /// unknown. Counts modulo `2^63`.
    fn gross_position(&self) -> Option<u64> {
        (self.refunded & 1 == 0).then(|| Word(self.word).position().wrapping_add(self.refunded >> 1))
    }
}

impl Ticket for BucketTicket {
    const WORDS: usize = 3;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[..3].copy_from_slice(&[self.tokens, self.word, self.refunded]);
    }
    #[inline(always)]
    fn read(words: &[u64]) -> Self {
        Self {
            tokens: words[0],
            word: words[1],
            refunded: words[2],
        }
    }
}

impl TokenBucket {
    /// A full bucket on the real clock.
    pub fn new(quota: Quota) -> Self {
        Self::build(quota, &Clock::real())
    }

    /// The same quota on `clock`, full.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.quota(), clock)
    }

    fn build(quota: Quota, clock: &Clock) -> Self {
        let params = Params::compile(&quota, clock, clock.now());
        let bucket = Self {
            word: AtomicU64::new(Word::new(0, ORIGIN - params.whole_burst()).0),
            resting: Slot::default(),
            moving: Slot::default(),
            clock: clock.clone(),
            refunded: AtomicU64::new(0),
            writer: Mutex::new(Writer::new(quota, fine(params.whole_burst(), &params))),
            notify: Notify::new(),
            turns: Turns::new(),
        };
        bucket.resting.store(&params);
        bucket
    }

    /// Reads the word and the parameters that belong to it, as far as a later compare-exchange, or [`Self::still`],
    /// confirms it.
    #[inline(always)]
    fn read_flow(&self) -> (Word, Params) {
        // Acquire: the slot was written before the tag that names it. Pairs with the exchanges in `publish`.
        let word = Word(self.word.load(Ordering::Acquire));
        // A branch, not an address that depends on the word: the parameters are loaded beside it.
        if word.tag() & 1 == 0 {
            (word, self.resting.load_flow())
        } else {
            (word, self.read_moving())
        }
    }

    #[cold]
    fn read_moving(&self) -> Params {
        self.moving.load_flow()
    }

    /// The same with all parameters, for everything but an admission.
    fn read(&self) -> (Word, Params) {
        // Acquire: as above.
        let word = Word(self.word.load(Ordering::Acquire));
        let slot = if word.tag() & 1 == 0 {
            &self.resting
        } else {
            &self.moving
        };
        (word, slot.load())
    }

    /// True when the parameters read with `word` are still in force.
    #[inline(always)]
    fn still(&self, word: Word) -> bool {
        // Relaxed: ordered after the slot's acquiring loads; see `Slot::load`.
        Word(self.word.load(Ordering::Relaxed)).tag() == word.tag()
    }

    /// Takes `n` tokens, or refuses: the method for a bucket that stands alone.
    ///
    /// # Errors
    /// `RateExceeded`, with a true `retry_after`; without one at a rate of zero. `Oversized` when `n` exceeds the burst, since
    /// only a larger quota could admit it.
    #[inline(always)]
    pub fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
        let now = self.clock.now();
        if self.turns.is_waited() {
            return self.take_by_turn(n, None, now).map(|_| ());
        }
        self.take(n, now).map(|_| ())
    }

    /// One function out of line, so that the usual admission saves no registers for it.
    #[cold]
    #[inline(never)]
    fn take_by_turn(&self, n: u64, place: Option<&Place<'_>>, now: Instant) -> Result<Word, Refusal<'_>> {
        self.let_try(n, place, now)?;
        self.take(n, now)
    }

    /// Refuses a demand for `n` at `place` while the heads of queues are before it.
    #[cold]
    fn let_try(&self, n: u64, place: Option<&Place<'_>>, now: Instant) -> Result<(), Refusal<'_>> {
        let forecast = |n, ahead| self.forecast(n, ahead, now);
        let judged = self.turns.let_try(n, place, now, &self.clock, forecast);
        judged.map_err(|at| self.refusal_until(n, at.map_or(Shortage::Spent, Shortage::Until), now))
    }

    /// When `n` units are admitted behind `ahead` others.
    fn forecast(&self, n: u64, ahead: u64, now: Instant) -> Forecast {
        self.look(now, |base, axis, params| {
            let need = params.units(n);
            let target = base.saturating_add(params.units(ahead)).saturating_add(need);
            if need > params.burst {
                Forecast::Never
            } else if target <= axis || (n == 0 && ahead == 0) {
                Forecast::Now
            } else {
                params.reaches(target).map_or(Forecast::Spent, Forecast::At)
            }
        })
    }

    #[inline(always)]
    fn take(&self, n: u64, now: Instant) -> Result<Word, Refusal<'_>> {
        loop {
            let (word, params) = self.read_flow();
            let Some(ticks) = params.living_ticks(now) else {
                // The error is small, so that the usual refusal is not built in memory for this path.
                return self
                    .take_slow(n, now)
                    .map_err(|short| self.refusal_until(n, short, now));
            };
            let gained = params.flowed(ticks);
            let need = params.units(n);
            let base = word.position().max(params.floor + gained);
            // More than the burst never fits, since the base is at most a burst behind.
            if base + need <= ORIGIN + gained {
                let taken = word.forward(base + need);
                // It succeeds only if tag and position are those that were read. Acquire: a taker from a lowered
                // position sees that a refund is under way. Pairs with `shift_position`. Release: a thread that reads
                // this word and then the clock is not behind the reading that the word was taken by. Pairs with `read`,
                // in `observe`.
                if self
                    .word
                    .compare_exchange_weak(word.0, taken.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    return Ok(taken);
                }
            } else if self.still(word) {
                // Zero units are always there, also in debt, and move nothing.
                if n == 0 {
                    return Ok(word);
                }
                return Err(self.refusal(n, need, base, &params, now));
            }
        }
    }

    /// The count of refunds until now. Read it before the position is moved, so that a refund in between counts as a
    /// later one.
    #[inline(always)]
    fn refunded_before(&self) -> u64 {
        // Acquire: a thread that reads a count also sees the lowered position. Pairs with `shift_position`.
        self.refunded.load(Ordering::Acquire)
    }

    /// The ticket of `tokens` that moved the position to that of `word`.
    #[inline(always)]
    fn ticket(&self, tokens: u64, word: Word, refunded_before: u64) -> BucketTicket {
        // Relaxed: ordered after the exchange that moved the position, which acquires.
        let unknown = u64::from(self.refunded.load(Ordering::Relaxed) != refunded_before);
        BucketTicket {
            tokens,
            word: word.0,
            refunded: refunded_before | unknown,
        }
    }

    #[inline]
    fn refusal(&self, n: u64, need: u64, base: u64, params: &Params, now: Instant) -> Refusal<'_> {
        if need > params.burst {
            return Refusal::new(Reason::Oversized, LEG, n, Wait::Never);
        }
        let distance = base + need - ORIGIN;
        let due = Due::on_axis(&self.clock, now, params.epoch, distance, params.mul, params.shift);
        Refusal::new(Reason::RateExceeded, LEG, n, Wait::Until(due))
    }

    #[inline(always)]
    fn refusal_until(&self, n: u64, short: Shortage, now: Instant) -> Refusal<'_> {
        let (reason, wait) = match short {
            Shortage::Until(at) => (Reason::RateExceeded, Wait::Until(Due::at(&self.clock, now, at))),
            Shortage::Spent => (Reason::RateExceeded, Wait::Until(Due::never(&self.clock, now))),
            Shortage::Oversized => (Reason::Oversized, Wait::Never),
        };
        Refusal::new(reason, LEG, n, wait)
    }

    /// Takes `n` by all of the parameters, on a live axis.
    #[cold]
    fn take_slow(&self, n: u64, now: Instant) -> Result<Word, Shortage> {
        self.move_forward(now, |base, axis, params| {
            let need = params.units(n);
            let target = base.saturating_add(need);
            match params.reaches(target) {
                _ if target <= axis || n == 0 => Ok(need),
                _ if need > params.burst => Err(Shortage::Oversized),
                at => Err(at.map_or(Shortage::Spent, Shortage::Until)),
            }
        })
    }

    /// Reads the bucket at `now`: its position, the axis, and the parameters by which both are measured.
    fn look<R>(&self, now: Instant, look: impl Fn(u64, u64, &Params) -> R) -> R {
        loop {
            let (word, params, base, axis) = self.read_living(now);
            let seen = look(base, axis, &params);
            if self.still(word) {
                return seen;
            }
        }
    }

    /// The word, the parameters, and the position and the axis at `now`, which is within the life of the axis.
    fn read_living(&self, now: Instant) -> (Word, Params, u64, u64) {
        loop {
            let (word, params) = self.read();
            if let Some(ticks) = params.living_ticks(now) {
                let gained = params.gained(ticks);
                let base = word.position().max(params.floor + gained);
                return (word, params, base, ORIGIN + gained);
            }
            self.start_anew(now);
        }
    }

    /// The bucket's level at `now`, in units; negative in debt. Also valid when the axis has run out since.
    fn level(word: Word, params: &Params, now: Instant) -> i64 {
        let held = i128::from(params.axis_beyond_life(now)) - i128::from(word.position());
        // A position has 48 bits, and so has a burst.
        held.min(params.burst.into()) as i64
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.writer.lock().quota
    }
}

impl TokenBucket {
    /// Whole tokens that could be taken now. A snapshot.
    pub fn available(&self) -> u64 {
        self.look(self.clock.now(), |base, axis, params| match params.is_unlimited() {
            true => u64::MAX,
            false => axis.saturating_sub(base) >> params.scale,
        })
    }

    /// How many tokens are owed, by bookings and debts, before the first can be taken; rounded up.
    pub fn debt(&self) -> u64 {
        self.look(self.clock.now(), |base, axis, params| {
            base.saturating_sub(axis).div_ceil(1 << params.scale)
        })
    }

    /// How long until `n` could be taken, if no other caller takes any meanwhile; rounded up to a nanosecond. `None` if
    /// only a change of the quota could admit them.
    pub fn time_until(&self, n: u64) -> Option<Duration> {
        self.until(|base, params| {
            let need = params.units(n);
            // Zero units are there already, also in debt.
            let position = if n == 0 { 0 } else { base.saturating_add(need) };
            (need <= params.burst).then_some(position)
        })
    }

    /// How long until it is full, if no caller takes any meanwhile. `None` if that is never.
    pub fn time_until_full(&self) -> Option<Duration> {
        self.until(|base, params| Some(base.saturating_add(params.whole_burst())))
    }

    /// How long until the axis reaches the position that `target` returns.
    fn until(&self, target: impl Fn(u64, &Params) -> Option<u64>) -> Option<Duration> {
        let now = self.clock.now();
        let at = self.look(now, |base, _, params| params.reaches(target(base, params)?))?;
        Some(self.clock.between(now, at))
    }

    /// Takes up to `n` of the tokens that are there, and returns how many it took.
    pub fn acquire_up_to(&self, n: u64) -> u64 {
        let mut taken = 0;
        if self.turns.is_waited() && self.let_try(1, None, self.clock.now()).is_err() {
            return taken;
        }
        let _ = self.move_forward(self.clock.now(), |base, axis, params| {
            let there = axis.saturating_sub(base) >> params.scale;
            taken = if params.is_unlimited() { n } else { n.min(there) };
            Ok::<_, ()>(params.units(taken))
        });
        taken
    }

    /// Takes `n` now, whether they are there or not. The rest is a debt, which is paid before anything else is
    /// admitted. A debt is cut to two bursts or half an hour's refill, whichever is more; at a rate of zero to 2^30
    /// tokens.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Quota, TokenBucket};
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_hour(10)).on(&clock);
    /// bucket.force_acquire(1_000);
    /// assert_eq!(bucket.debt(), 20);
    /// ```
    pub fn force_acquire(&self, n: u64) {
        let _ = self.move_forward(self.clock.now(), |base, axis, params| {
            Ok::<_, ()>(params.units(params.owed(base, axis, n)))
        });
    }

    /// Moves the position forward by the number of units that `choose` returns, from the position, the axis and the
    /// parameters. It may call `choose` more than once.
    fn move_forward<E>(
        &self,
        now: Instant,
        mut choose: impl FnMut(u64, u64, &Params) -> Result<u64, E>,
    ) -> Result<Word, E> {
        loop {
            let (word, params, base, axis) = self.read_living(now);
            match choose(base, axis, &params) {
                Err(refused) if self.still(word) => return Err(refused),
                Err(_) => {}
                Ok(units) => {
                    let taken = word.at(base.saturating_add(units));
                    // Both: as in `take`.
                    if self
                        .word
                        .compare_exchange_weak(word.0, taken.0, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                    {
                        return Ok(taken);
                    }
                }
            }
        }
    }
}

impl TokenBucket {
    /// Takes `n` for the first instant at which they will be there, behind everything booked before. Dropping it gives
    /// the tokens back, as exactly as a reservation does.
    ///
    /// Bookings behind one that is given back keep their instants, although they could start earlier now. The next
    /// booking may start beside them, as far as the burst allows: by the instants at which they start, no span exceeds
    /// its bound. So a booking before others gives back at most as much as the bucket, without it, would be short of
    /// full when each of them starts. The rest comes back when the bookings in its way are given back as well. Two
    /// limits give back less: of more than 256 bookings, neighbours count as one; of more than 64 that wait for their
    /// rest, the oldest is forgotten. After a change of the quota nothing is given back before others that were booked
    /// before it. They keep their instants at any new rate, and are counted by those of the old one.
    ///
    /// # Errors
    /// `Oversized` when `n` exceeds the burst, `RateExceeded` at a rate of zero: only a change of the quota could admit it.
    /// `QueueFull` when a burst, or a quarter of an hour's refill if that is more, would be booked ahead, with a true
    /// `retry_after`.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Quota, TokenBucket};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_second(10).burst(2)).on(&clock);
    /// let (now, later) = (bucket.book(2).unwrap(), bucket.book(1).unwrap());
    /// assert_eq!((now.wait(), later.wait()), (Duration::ZERO, Duration::from_millis(100)));
    /// drop(later);
    /// assert_eq!(bucket.book(2).unwrap().wait(), Duration::from_millis(200));
    /// # now.commit();
    /// ```
    pub fn book(&self, n: u64) -> Result<FutureReservation<'_, Self>, Refusal<'_>> {
        self.book_within(n, Duration::MAX)
    }

    /// [`book`](Self::book)s `n`, if they will be there within `max_wait`.
    ///
    /// # Errors
    /// Those of `book`, and `TimedOut` when they come later. Its `retry_after` says when they would come in time.
    ///
    /// ```
    /// # use tollgate::{Inherit, ManualClock, Quota, TokenBucket};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_second(1).burst(2)).on(&clock);
    /// assert_eq!(bucket.acquire_up_to(5), 2);
    /// assert_eq!(bucket.time_until(2), Some(Duration::from_secs(2)));
    /// assert!(bucket.book_within(1, Duration::from_millis(500)).is_err(), "it would start after a second");
    /// assert!(bucket.book_within(1, Duration::from_secs(1)).is_ok());
    /// bucket.set_quota(Quota::per_second(1).burst(9), Inherit::Reset);
    /// bucket.force_acquire(3);
    /// bucket.reset();
    /// assert_eq!(bucket.available(), 9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn book_within(&self, n: u64, max_wait: Duration) -> Result<FutureReservation<'_, Self>, Refusal<'_>> {
        let now = self.clock.now();
        if self.turns.is_waited() {
            let_book(self.let_try(n, None, now))?;
        }
        let refunded = self.refunded_before();
        // Zero units are always there, and are still booked behind the others.
        if n > 0 {
            if let Ok(word) = self.take(n, now) {
                let ticket = self.ticket(n, word, refunded);
                return Ok(FutureReservation::new(self, ticket, &self.clock, now, now));
            }
        }
        let (ticket, start) = self.book_ahead(n, now, self.clock.ticks_of(max_wait))?;
        Ok(FutureReservation::new(self, ticket, &self.clock, now, start))
    }

    /// Runs under the writer's lock, so that no refund comes between the booking and its promise.
    #[cold]
    fn book_ahead(&self, n: u64, now: Instant, max_wait: u64) -> Result<(BucketTicket, Instant), Refusal<'_>> {
        let refuse = |reason, at: Option<Instant>| {
            let due = at.map_or(Due::never(&self.clock, now), |at| Due::at(&self.clock, now, at));
            Refusal::new(reason, LEG, n, Wait::Until(due))
        };
        let (mut writer, params) = self.lock_writer(now);
        let (axis, need) = (params.axis_at(now), params.units(n));
        if need > params.burst {
            return Err(self.refusal_until(n, Shortage::Oversized, now));
        }
        // Relaxed: written under the lock that we hold. So it is even, and all newer refunds are known.
        let refunded = self.refunded.load(Ordering::Relaxed);
        let mut word = Word(self.word.load(Ordering::Relaxed));
        let (base, start) = loop {
            let base = word.position().max(axis - params.burst);
            let target = base.saturating_add(need);
            let Some(start) = params.reaches(target) else {
                return Err(refuse(Reason::RateExceeded, None));
            };
            let start = start.max(now);
            if target.saturating_sub(axis) > MAX_AHEAD {
                return Err(refuse(Reason::QueueFull, params.reaches(target - MAX_AHEAD)));
            }
            if let Some(late @ 1..) = start.ticks_since(now).checked_sub(max_wait) {
                return Err(refuse(Reason::TimedOut, Some(now.after_ticks(late))));
            }
            let taken = word.at(target);
            // Relaxed: refunds, and changes of the parameters, happen under the lock that we hold.
            match self
                .word
                .compare_exchange_weak(word.0, taken.0, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    word = taken;
                    break (base, start);
                }
                Err(seen) => word = Word(seen),
            }
        };
        let ticket = BucketTicket {
            tokens: n,
            word: word.0,
            refunded,
        };
        writer.promises.expire(now.ticks());
        if start > now && need > 0 {
            let then = params.axis_beyond_life(start);
            let room = base.saturating_add(params.burst).saturating_sub(then);
            let booked = EraTicket::new(ticket, writer.era, word.version());
            writer.promises.add(booked, start.ticks(), room.into());
        }
        Ok((ticket, start))
    }
}

impl Limiter for TokenBucket {
    type Ticket = BucketTicket;

    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<BucketTicket, Refusal<'_>> {
        let refunded = self.refunded_before();
        let (n, now) = (demand.units(), demand.now(&self.clock));
        let word = match self.turns.is_waited() {
            true => self.take_by_turn(n, demand.place(), now)?,
            false => self.take(n, now)?,
        };
        Ok(self.ticket(n, word, refunded))
    }

    fn admits(&self, demand: Demand<'_>) -> bool {
        let (n, now) = (demand.units(), demand.now(&self.clock));
        let (word, params) = self.read_flow();
        let admits = params.living_ticks(now).is_some_and(|ticks| {
            let gained = params.flowed(ticks);
            word.position().max(params.floor + gained) + params.units(n) <= ORIGIN + gained
        });
        admits && !self.turns.is_waited() && self.still(word)
    }

    fn cancel(&self, ticket: BucketTicket, now: &ClockReading) {
        if ticket.tokens > 0 {
            self.refund(&ticket, ticket.tokens, After::Ends, now);
            self.notify.notify_all();
        }
    }

    fn settle(&self, ticket: &mut BucketTicket, settlement: Settlement<'_>) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        match actual.checked_sub(ticket.tokens) {
            Some(0) => {}
            Some(more) => *ticket = self.take_more(ticket, more, settlement.reading()),
            None => {
                self.give_back(ticket, ticket.tokens - actual, settlement.reading());
                ticket.tokens = actual;
            }
        }
        1
    }

    #[inline]
    fn finish(&self, _: BucketTicket, _: Outcome, _: &ClockReading) {}

    #[inline]
    fn forget(&self, _: BucketTicket) {}

    #[inline]
    fn callbacks(&self) -> Callbacks {
        Callbacks::NONE
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        let now = demand.now(&self.clock);
        self.turns
            .ready_at(LEG, demand, &self.clock, |n, ahead| self.forecast(n, ahead, now))
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        if let Some(state) = self.quota().status(self.available(), self.time_until(1)) {
            visit(Status::new(LEG, LEG, state));
        }
    }

    fn is_pristine(&self, now: &ClockReading) -> bool {
        let now = now.now(&self.clock);
        // Under the lock, so that the parameters stay.
        let (writer, params) = self.lock_writer(now);
        let word = Word(self.word.load(Ordering::Relaxed));
        let untouched = writer.quota == writer.made_with && !self.turns.is_waited();
        untouched && Self::level(word, &params, now) >= params.whole_burst() as i64
    }

    #[inline(always)]
    fn finish_may_panic(&self) -> bool {
        false
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(&self.turns);
    }
}

impl fmt::Debug for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBucket")
            .field("quota", &format_args!("{}", self.quota()))
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

const TAG_SHIFT: u32 = 48;
const POSITION: u64 = (1 << TAG_SHIFT) - 1;
const TAGS: u64 = u64::MAX >> TAG_SHIFT;
const VERSIONS: u64 = TAGS >> 1;

/// Tag and position, as one word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    #[inline]
    fn new(tag: u64, position: u64) -> Self {
        Self(tag << TAG_SHIFT | position.min(POSITION))
    }
    #[inline]
    fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }
    /// The version of the parameters: the same in the last step of a change and after it.
    #[inline]
    fn version(self) -> u64 {
        ((self.tag() + 1) >> 1) & VERSIONS
    }
    #[inline]
    fn position(self) -> u64 {
        self.0 & POSITION
    }
    /// The same tag with a position that is known to fit.
    #[inline]
    fn forward(self, position: u64) -> Self {
        Self(self.0 & !POSITION | position)
    }
    /// The next tag with `position`.
    fn next(self, position: u64) -> Self {
        Self::new((self.tag() + 1) & TAGS, position)
    }
    #[inline]
    fn at(self, position: u64) -> Self {
        Self::new(self.tag(), position)
    }
    /// The version after `version`.
    fn next_version(version: u64) -> u64 {
        (version + 1) & VERSIONS
    }
    /// How many versions after `earlier` the version `later` is.
    fn versions_between(earlier: u64, later: u64) -> u64 {
        later.wrapping_sub(earlier) & VERSIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the machine's own clock and in nanoseconds: each token is taken at the first tick at which it is there.
    #[test]
    fn steady_demand_at_a_burst_of_one_loses_no_part_of_a_tick() {
        const TOKENS: u32 = 50_000;
        let manual = crate::time::ManualClock::new();
        for clock in [&Clock::real(), manual.clock()] {
            for count in [7, 900_000, 1_000_003, 3_000_000] {
                let bucket = TokenBucket::new(Quota::per_second(count).burst(1)).on(clock);
                let start = clock.now();
                let mut now = start;
                for _ in 0..TOKENS {
                    bucket.take(1, now).unwrap();
                    let Forecast::At(at) = bucket.forecast(1, 0, now) else {
                        unreachable!("it is empty")
                    };
                    now = at;
                }
                let exact = std::time::Duration::from_secs(1) * TOKENS / count as u32;
                let off = clock.between(start, now).abs_diff(exact);
                assert!(
                    off.as_nanos() <= 2 + exact.as_nanos() / 1_000_000,
                    "{count}/s: {off:?} off"
                );
            }
        }
    }
}
