//! The token bucket: one atomic word on the axis of tokens.
//!
//! Time moves an axis `V` forward at the quota's rate. The word holds a position `P` on it: `V - P` is what is in the
//! bucket, at most the burst `B`. To take `n` is to move `P` to `max(P, V - B) + n`, allowed as long as that is not
//! beyond `V`: the generic cell rate algorithm (ITU-T I.371), turned from instants to tokens, so that the rate enters
//! by one multiply, and everything else is whole numbers.
//!
//! | bits | meaning |
//! |---|---|
//! | 48..64 | tag: which set of parameters `P` is measured by |
//! | 0..48 | `P`, in units of `2^-scale` tokens |
//!
//! An admission reads its parameters from where they rest, beside the word, and its one compare-exchange also proves
//! that they were in force. A change of quota goes in two steps, each of which moves the tag on by one: first everybody
//! is sent to a second slot, with the new parameters and position; then, when they have been written to where parameters
//! rest, back. The same change, to the same quota with a later epoch, starts the axis anew before it leaves its 47 bits.

mod axis;
mod params;
mod writer;

pub(crate) use axis::SharedAxis;

use super::future::FutureReservation;
use super::in_turn::Forecast;
use super::quota::Quota;
use crate::ask::{Demand, Place};
use crate::limiter::{Heeds, Limiter, Outcome, Settlement};
use crate::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::standing::{Standing, State};
use crate::sync::bell::Bell;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::turn::Turnstile;
use crate::sync::turns::Turns;
use crate::ticket::Ticket;
use crate::time::{Clock, Instant, Pass};
use params::{MAX_AHEAD, ORIGIN, Params, Slot};
use std::fmt;
use std::time::Duration;
use writer::{EraTicket, Writer, fine};

const LEG: &str = "token_bucket";

/// Admits at a rate, and up to a burst of what was saved up. Exact integers, no drift, no lock.
///
/// In any span of time `t` it admits at most `burst + rate x t`, and a unit for rounding: the finest part of a token, of those
/// that are a power of two, in which the burst and an hour's refill can be counted. At 1/d with a burst of 1 that is 2^-45 of a
/// token, so that two may come a day less 3 ns apart; at a million a second it is 2^-15, and never more than 2^-5. Where a token
/// takes less than a million ticks of the clock, and no whole number of them, `t` counts two ticks longer: by that a bucket whose
/// burst is wanted each time loses nothing as each wait is rounded up. A request for more than the burst is `Oversized`; one for
/// nothing at all never waits. Stale readings of the clock never add tokens.
///
/// # Giving back
/// A reservation that is cancelled gives back all it took, unless the bucket could have been full in between: what
/// would have overflowed by then is gone. Precisely it gives back `min(n, h)`, where `h` is the room that was left in
/// the bucket right after the reservation, less what has been refilled since, and what older reservations have given
/// back since. So no span ever exceeds its bound, and cancels within the time that the room takes to refill are exact,
/// in any order. (Of more than 64 cancels in the time of two bursts some count as older than they are; a reservation
/// made while another thread gives back counts all others as older. Both give back less.) It is never more than a bucket
/// that had not seen the reservation would hold, and the same as long as no more has been refilled since than there was
/// room before it. Where more was, and others took meanwhile, it may be less although the bucket was not full, by what was
/// refilled beyond that room at most: a bucket does not remember who took when. A reservation held across a change of
/// quota gives back nothing when the change was a [`Reset`](Inherit::Reset), and at most what both quotas leave room for
/// otherwise, and only across the latest 16 changes. (Changes are counted modulo 2^30. A reservation that is made just while the
/// count passes a multiple of 2^15 may give back nothing.)
///
/// Before those who have [booked](Self::book) an instant to come it gives back no more than leaves the bucket short of full
/// until each of them starts.
///
/// [`settle`](crate::Permit::settle) follows the same rule: what was overcharged comes back as if it had been cancelled. What was
/// undercharged is taken now, even if the bucket goes into debt. A debt is cut to two bursts or half an hour's refill, whichever
/// is more (at a rate of zero to 2^30 tokens), and what is cut off was never charged. After it was settled upwards a reservation counts all others as older, and
/// gives back no more before instants that were booked before.
///
/// # Refill
/// Continuous, or [by interval](Quota::by_interval). Then the bound for any span is `burst + n x count`, with `n` the
/// ends of intervals that lie in it. Several bandwidths are several buckets, all-or-nothing:
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
    /// Where the parameters rest, under an even tag.
    resting: Slot,
    /// Where they are while the others change, under an odd tag.
    moving: Slot,
    clock: Clock,
    /// Twice the units given back by cancels and settlements, ever; odd while the position is being lowered.
    refunded: AtomicU64,
    writer: Mutex<Writer>,
    bell: Bell,
    turns: Turns,
}

/// A reservation's memory: what was taken, where that left the bucket, and what had been given back until then; odd when
/// something was being given back meanwhile, so that nobody knows which came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTicket {
    tokens: u64,
    word: u64,
    refunded: u64,
}

/// Why tokens are not there.
#[derive(Clone, Copy)]
enum Shortage {
    /// They will be, then.
    Until(Instant),
    /// Nothing comes as time passes.
    Spent,
    /// They never fit.
    Oversized,
}

impl BucketTicket {
    /// What was taken by nobody, and never given back.
    pub(crate) const NOTHING: Self = Self {
        tokens: 0,
        word: 0,
        refunded: 1,
    };

    /// The last `tokens` of those that were taken, as a reservation of their own.
    pub(crate) fn last(self, tokens: u64) -> Self {
        let tokens = tokens.min(self.tokens);
        Self { tokens, ..self }
    }

    /// All that had been taken until then, whatever was given back: by this reservations have an order. None when it is
    /// not known. Counts modulo `2^63`.
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
        Self::with_clock(quota, &Clock::real())
    }

    /// The same quota on `clock`, full.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::with_clock(self.quota(), clock)
    }

    fn with_clock(quota: Quota, clock: &Clock) -> Self {
        let params = Params::compile(&quota, clock, clock.now());
        let bucket = Self {
            word: AtomicU64::new(Word::new(0, ORIGIN - params.whole_burst()).0),
            resting: Slot::default(),
            moving: Slot::default(),
            clock: clock.clone(),
            refunded: AtomicU64::new(0),
            writer: Mutex::new(Writer::new(quota, fine(params.whole_burst(), &params))),
            bell: Bell::new(),
            turns: Turns::new(),
        };
        bucket.resting.store(&params);
        bucket
    }

    /// Word and parameters that belong together, as far as a later compare-exchange, or [`Self::still`], confirms it.
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

    /// The same with all parameters: for whatever is no admission.
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

    /// Whole and apart, so that the usual admission has nothing to save for its sake.
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

    /// The same for a booking. One that no instant admits is refused for a reason of its own.
    #[cold]
    fn let_newcomer_book(&self, n: u64, now: Instant) -> Result<(), Refusal<'_>> {
        match self.let_try(n, None, now) {
            Err(refusal) if refusal.retry_after().is_some() => Err(refusal.with_reason(Reason::QueueFull)),
            _ => Ok(()),
        }
    }

    /// When `n` are admitted behind `ahead`.
    fn forecast(&self, n: u64, ahead: u64, now: Instant) -> Forecast {
        self.look(now, |base, axis, params| {
            let need = params.units(n);
            let target = base.saturating_add(params.units(ahead)).saturating_add(need);
            if need > params.burst {
                Forecast::Never
            } else if target <= axis || (n == 0 && ahead == 0) {
                Forecast::Now
            } else {
                params.reaches(target).map_or(Forecast::Event, Forecast::At)
            }
        })
    }

    #[inline(always)]
    fn take(&self, n: u64, now: Instant) -> Result<Word, Refusal<'_>> {
        loop {
            let (word, params) = self.read_flow();
            let Some(ticks) = params.living_ticks(now) else {
                // What it returns is small, so that the usual refusal is not kept in memory for its sake.
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
                // It succeeds only if tag and position are those that were read. Acquire: whoever takes from a lowered
                // position sees that something is being given back. Pairs with `shift_position`. Release: whoever reads this
                // word and then the clock is not behind the reading that it was taken by. Pairs with `read`, in `seen`.
                if self
                    .word
                    .compare_exchange_weak(word.0, taken.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    return Ok(taken);
                }
            } else if self.still(word) {
                // Nothing is always there, also in debt: nothing is moved by it.
                if n == 0 {
                    return Ok(word);
                }
                return Err(self.refusal(n, need, base, &params, now));
            }
        }
    }

    /// What had been given back until now: to be read before the position is moved, so that a give-back in between counts
    /// as one since.
    #[inline(always)]
    fn refunded_before(&self) -> u64 {
        // Acquire: whoever reads a count also sees the lowered position. Pairs with `shift_position`.
        self.refunded.load(Ordering::Acquire)
    }

    /// The ticket of `tokens` that moved the position to that of `word`.
    #[inline(always)]
    fn ticket(&self, tokens: u64, word: Word, refunded_before: u64) -> BucketTicket {
        // Relaxed: ordered after the exchange that moved the position, which acquires.
        let unknown = u64::from(self.refunded.load(Ordering::Relaxed) != refunded_before);
        let unknown = if seeded!("bucket_trusts_order") { 0 } else { unknown };
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
            Shortage::Spent => (Reason::RateExceeded, Wait::Event),
            Shortage::Oversized => (Reason::Oversized, Wait::Never),
        };
        Refusal::new(reason, LEG, n, wait)
    }

    /// Takes `n` by all of the parameters, on an axis that is alive. Fails with what they are short of.
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

    /// Looks at the bucket at `now`: at its position, where the axis is, and the parameters by which both are measured.
    fn look<R>(&self, now: Instant, look: impl Fn(u64, u64, &Params) -> R) -> R {
        loop {
            let (word, params) = self.read();
            let Some(ticks) = params.living_ticks(now) else {
                self.start_anew(now);
                continue;
            };
            let gained = params.gained(ticks);
            let seen = look(word.position().max(params.floor + gained), ORIGIN + gained, &params);
            if self.still(word) || seeded!("bucket_looks_once") {
                return seen;
            }
        }
    }

    /// What the bucket holds at `now`, in units; negative in debt. Also when the axis has run out since.
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

    /// How long until `n` could be taken, if nobody takes any meanwhile; rounded up to a nanosecond. `None` when no
    /// instant, but only a change of the quota, could admit them.
    pub fn time_until(&self, n: u64) -> Option<Duration> {
        self.until(|base, params| {
            let need = params.units(n);
            // Nothing is there already, also in debt.
            let position = if n == 0 { 0 } else { base.saturating_add(need) };
            (need <= params.burst).then_some(position)
        })
    }

    /// How long until it is full, if nobody takes any meanwhile. `None` when that is never.
    pub fn time_until_full(&self) -> Option<Duration> {
        self.until(|base, params| Some(base.saturating_add(params.whole_burst())))
    }

    /// How long until the axis reaches the position that `target` makes of the bucket's.
    fn until(&self, target: impl Fn(u64, &Params) -> Option<u64>) -> Option<Duration> {
        let now = self.clock.now();
        let at = self.look(now, |base, _, params| params.reaches(target(base, params)?))?;
        Some(self.clock.between(now, at))
    }

    /// Takes as many as there are, up to `n`, and says how many that were.
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

    /// Takes `n` now whether they are there or not. What is not is a debt, which is paid before anything else is
    /// admitted. It is cut to two bursts or half an hour's refill, whichever is more; at a rate of zero to 2^30 tokens.
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

    /// Moves the position forward by as many units as `choose` says, which is given the position, the axis, and the
    /// parameters. It may be asked more than once.
    fn move_forward<E>(
        &self,
        now: Instant,
        mut choose: impl FnMut(u64, u64, &Params) -> Result<u64, E>,
    ) -> Result<Word, E> {
        loop {
            let (word, params) = self.read();
            let Some(ticks) = params.living_ticks(now) else {
                self.start_anew(now);
                continue;
            };
            let gained = params.gained(ticks);
            let base = word.position().max(params.floor + gained);
            match choose(base, ORIGIN + gained, &params) {
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
    /// Takes `n` for the first instant at which they will be there, behind everything booked before. It is given back
    /// by being dropped, as exactly as a reservation.
    ///
    /// Those behind one that is given back keep their instants, although they could start earlier now. Whoever books next
    /// may start beside them, as far as the burst allows: by the instants at which they start no span exceeds its bound.
    /// So one before others gives back at most as much as the bucket, without it, would hold less than the burst when each
    /// of them starts; the rest comes back when those in its way are given back as well. Of more than 256 booked ahead
    /// neighbours count as one, and of more than 64 that wait for the rest the oldest is forgotten: both give back less.
    /// After a change of the quota nothing is given back before others that were booked before it; they keep their
    /// instants whatever the new rate is, and are counted by those of the old one.
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
    pub fn book_within(&self, n: u64, max_wait: Duration) -> Result<FutureReservation<'_, Self>, Refusal<'_>> {
        let now = self.clock.now();
        if self.turns.is_waited() {
            self.let_newcomer_book(n, now)?;
        }
        let refunded = self.refunded_before();
        // Nothing is always there, and is booked behind the others all the same.
        if n > 0
            && let Ok(word) = self.take(n, now)
        {
            let ticket = self.ticket(n, word, refunded);
            return Ok(FutureReservation::new(self, ticket, &self.clock, now, now));
        }
        let (ticket, start) = self.book_ahead(n, now, self.clock.ticks_of(max_wait))?;
        Ok(FutureReservation::new(self, ticket, &self.clock, now, start))
    }

    /// Under the writer's lock, so that nobody gives back between the booking and its promise.
    #[cold]
    fn book_ahead(&self, n: u64, now: Instant, max_wait: u64) -> Result<(BucketTicket, Instant), Refusal<'_>> {
        let refuse = |reason, at: Option<Instant>| {
            let wait = at.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
            Refusal::new(reason, LEG, n, wait)
        };
        let (mut writer, params) = self.lock_writer(now);
        let (axis, need) = (params.axis_at(now), params.units(n));
        if need > params.burst {
            return Err(self.refusal_until(n, Shortage::Oversized, now));
        }
        // Relaxed: written under the lock that we hold. So it is even, and what is newer is known.
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
            // Relaxed: what is given back, and which parameters are in force, changes under the lock that we hold.
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

    fn cancel(&self, ticket: BucketTicket, now: Pass<'_>) {
        if ticket.tokens > 0 {
            self.refund(&ticket, ticket.tokens, now);
            self.bell.ring();
        }
    }

    fn settle(&self, ticket: &mut BucketTicket, settlement: Settlement<'_>) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        match actual.checked_sub(ticket.tokens) {
            Some(0) => {}
            Some(more) => *ticket = self.take_more(ticket, more, settlement.pass()),
            None => {
                self.refund(ticket, ticket.tokens - actual, settlement.pass());
                ticket.tokens = actual;
                self.bell.ring();
            }
        }
        1
    }

    #[inline]
    fn finish(&self, _: BucketTicket, _: Outcome, _: Pass<'_>) {}

    #[inline]
    fn forget(&self, _: BucketTicket) {}

    #[inline]
    fn heeds(&self) -> Heeds {
        Heeds::NONE
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.bell);
        let now = demand.now(&self.clock);
        self.turns
            .ready_at(LEG, demand, &self.clock, |n, ahead| self.forecast(n, ahead, now))
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        if let Some(state) = State::by_quota(&self.quota(), self.available(), self.time_until(1)) {
            visit(Standing::new(LEG, LEG, state));
        }
    }

    fn is_fresh(&self, now: Pass<'_>) -> bool {
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

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn Turnstile)) {
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
    /// Which set of parameters: the same in the last step of a change and after it.
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
