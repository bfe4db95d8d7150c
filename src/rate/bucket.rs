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
//! A change of quota writes new parameters into the next of four slots and then moves tag and position together. So the
//! one compare-exchange of an admission also proves that it was computed with the parameters in force. The same change,
//! to the same quota with a later epoch, starts the axis anew before it leaves its 47 bits.

use super::params::{ORIGIN, Params, Slot};
use super::quota::Quota;
use crate::ask::Demand;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::sync::bell::Bell;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use crate::ticket::Ticket;
use crate::time::{Clock, Instant, Pass};
use std::fmt;

const TAG_SHIFT: u32 = 48;
const POSITION: u64 = (1 << TAG_SHIFT) - 1;
const SLOTS: u64 = 4;
const LEG: &str = "token_bucket";

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
    #[inline]
    fn position(self) -> u64 {
        self.0 & POSITION
    }
    /// The same tag with a position that is known to fit.
    #[inline]
    fn forward(self, position: u64) -> Self {
        Self(self.0 & !POSITION | position)
    }
    #[inline]
    fn at(self, position: u64) -> Self {
        Self::new(self.tag(), position)
    }
}

/// What a running bucket keeps when its quota changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Inherit {
    /// The tokens that are there, up to the new burst.
    #[default]
    AsIs,
    /// The same share of the burst.
    Proportional,
    /// The tokens that are there, plus what the burst has grown by, or less what it has shrunk by; not below zero.
    Additive,
    /// Nothing: it starts full.
    Reset,
}

/// Admits at a rate, and up to a burst of what was saved up. Exact integers, no drift, no lock.
///
/// In any span of time `t` it admits at most `burst + rate x t`. A request for more than the burst waits for a larger
/// quota. Stale readings of the clock never add tokens.
///
/// # Giving back
/// A reservation that is cancelled gives back all it took, unless the bucket could have been full in between: what
/// would have overflowed by then is gone. Precisely it gives back `min(n, h)`, where `h` is the room that was left in
/// the bucket right after the reservation, less what has been refilled and what others have given back since. So no
/// span ever exceeds its bound, and a cancel within the time that the room takes to refill is exact. A reservation held
/// across a change of quota gives back nothing when the change was a [`Reset`](Inherit::Reset), and at most what both
/// quotas leave room for otherwise.
///
/// [`settle`](crate::Permit::settle) is no cancel: it corrects the charge now. What was overcharged flows back up to the
/// burst; what was undercharged is taken even if the bucket goes into debt.
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
    slots: [Slot; SLOTS as usize],
    clock: Clock,
    /// Tokens given back by cancels and settlements, rounded up, ever: bumped before the position is lowered.
    given: AtomicU64,
    writer: Mutex<Writer>,
    bell: Bell,
}

/// What only changes of the quota touch.
#[derive(Debug)]
struct Writer {
    quota: Quota,
    changes: Vec<Change>,
}

/// How to read a position of an earlier set of parameters. Distances are in `2^-60` tokens.
#[derive(Clone, Copy, Debug)]
struct Change {
    tag: u64,
    before: Params,
    end: u64,
    after: Params,
    start: u64,
    /// How much the level was raised by the change itself; `None` when it was reset.
    raised: Option<i128>,
}

/// How many changes back a reservation can be cancelled.
const HISTORY: usize = 16;
const FINE: u32 = 60;

fn fine(units: u64, params: &Params) -> i128 {
    i128::from(units) << (FINE - params.scale)
}

/// A reservation's memory: what was taken, where that left the bucket, and what had been given back until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTicket {
    tokens: u64,
    word: u64,
    given: u64,
}

impl Ticket for BucketTicket {
    const WORDS: usize = 3;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[..3].copy_from_slice(&[self.tokens, self.word, self.given]);
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self {
            tokens: words[0],
            word: words[1],
            given: words[2],
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
            word: AtomicU64::new(Word::new(0, ORIGIN - params.burst).0),
            slots: Default::default(),
            clock: clock.clone(),
            given: AtomicU64::new(0),
            writer: Mutex::new(Writer {
                quota,
                changes: Vec::new(),
            }),
            bell: Bell::new(),
        };
        bucket.slots[0].store(&params);
        bucket
    }

    /// Word and parameters that belong together, as far as a later compare-exchange, or [`Self::still`], confirms it.
    #[inline]
    fn read(&self) -> (Word, Params) {
        // Acquire: the slot was written before the tag that names it. Pairs with the exchange in `replace`.
        let word = Word(self.word.load(Ordering::Acquire));
        (word, self.slots[(word.tag() % SLOTS) as usize].load())
    }

    /// True when the parameters read with `word` are still in force.
    #[inline]
    fn still(&self, word: Word) -> bool {
        // Relaxed: ordered after the slot's acquiring loads; see `Slot::load`.
        Word(self.word.load(Ordering::Relaxed)).tag() == word.tag()
    }

    /// Takes `n` tokens, or refuses: the method for a bucket that stands alone.
    ///
    /// # Errors
    /// `RateExceeded`, with a true `retry_after`; without one when `n` exceeds the burst, since only a larger quota
    /// could admit it.
    #[inline]
    pub fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
        self.take(n, self.clock.now()).map(|_| ())
    }

    #[inline]
    fn take(&self, n: u64, now: Instant) -> Result<Word, Refusal<'_>> {
        loop {
            let (word, params) = self.read();
            let ticks = params.ticks(now);
            if ticks > params.life {
                self.start_anew(now);
                continue;
            }
            let axis = params.axis_after(ticks);
            let need = params.units(n);
            let base = word.position().max(axis - params.burst);
            // More than the burst never fits, since the base is at most a burst behind.
            if base + need <= axis {
                let taken = word.forward(base + need);
                // Relaxed: the position carries no other memory with it. It succeeds only if tag and position are
                // those that were read.
                if self
                    .word
                    .compare_exchange_weak(word.0, taken.0, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
                {
                    return Ok(taken);
                }
            } else if self.still(word) {
                return Err(self.refusal(n, need, base, &params, now));
            }
        }
    }

    #[inline]
    fn refusal(&self, n: u64, need: u64, base: u64, params: &Params, now: Instant) -> Refusal<'_> {
        let wait = if need > params.burst {
            Wait::Event
        } else {
            let distance = base + need - ORIGIN;
            Wait::Until(Due::on_axis(
                &self.clock,
                now,
                params.epoch,
                distance,
                params.mul,
                params.shift,
            ))
        };
        Refusal::new(Reason::RateExceeded, LEG, n, wait)
    }

    /// What the bucket holds at `now`, in units; negative in debt.
    fn level(word: Word, params: &Params, now: Instant) -> i64 {
        let axis = params.axis_at(now);
        axis as i64 - word.position().max(axis - params.burst) as i64
    }

    /// Whole tokens that could be taken now. A snapshot.
    pub fn available(&self) -> u64 {
        let now = self.clock.now();
        loop {
            let (word, params) = self.read();
            if params.ticks(now) > params.life {
                self.start_anew(now);
            } else if self.still(word) {
                return Self::level(word, &params, now).max(0) as u64 >> params.scale;
            }
        }
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.writer.lock().quota
    }

    /// Changes the quota at once; `inherit` says what becomes of the tokens that are there. A debt stays.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) {
        {
            let mut writer = self.writer.lock();
            let now = self.clock.now();
            let after = Params::compile(&quota, &self.clock, now);
            self.replace(&mut writer, now, after, |level, before| {
                let kept = i128::from(level) << (FINE - before.scale);
                let (old, new) = (fine(before.burst, before), fine(after.burst, &after));
                let raised = match inherit {
                    Inherit::Reset => return (new, None),
                    Inherit::Proportional if level > 0 => {
                        let share = i128::from(level) * i128::from(after.burst) / i128::from(before.burst);
                        (share << (FINE - after.scale)) - kept
                    }
                    Inherit::Additive => (new - old).max(-kept.max(0)),
                    _ => 0,
                };
                ((kept + raised).min(new), Some(raised))
            });
            writer.quota = quota;
        }
        self.bell.ring();
    }

    /// Starts the axis anew, with everything else as it is, when `now` lies beyond its life.
    #[cold]
    fn start_anew(&self, now: Instant) {
        let mut writer = self.writer.lock();
        let (_, before) = self.read();
        let passed = before.ticks(now);
        if passed <= before.life {
            return;
        }
        // By whole periods, where the clock counts nanoseconds: there the axis has gained whole tokens, exactly.
        let (_, period) = writer.quota.reduced();
        let whole = if self.clock.is_manual() {
            passed / period * period
        } else {
            passed
        };
        let epoch = before
            .epoch
            .after_ticks(if passed - whole < before.life { whole } else { passed });
        let after = Params { epoch, ..before };
        let end = ORIGIN.saturating_add(before.gained_beyond_life(now));
        let start = after.axis_at(now);
        loop {
            let word = Word(self.word.load(Ordering::Acquire));
            let held = (i128::from(end) - i128::from(word.position())).min(i128::from(before.burst));
            let position = (i128::from(start) - held).clamp(0, i128::from(POSITION)) as u64;
            if self.publish(word, position, &after) {
                writer.remember(Change {
                    tag: word.tag(),
                    before,
                    end,
                    after,
                    start,
                    raised: Some(0),
                });
                return;
            }
        }
    }

    /// Replaces the parameters. `inherit` maps the level in units, and the old parameters, to the new level in `2^-60`
    /// tokens, and to how much that raised it.
    fn replace(
        &self,
        writer: &mut Writer,
        now: Instant,
        after: Params,
        inherit: impl Fn(i64, &Params) -> (i128, Option<i128>),
    ) {
        loop {
            let (word, before) = self.read();
            let level = Self::level(word, &before, now);
            let (level, raised) = inherit(level, &before);
            let start = after.axis_at(now);
            let position = i128::from(start) - (level >> (FINE - after.scale));
            let position = position.clamp(0, i128::from(POSITION)) as u64;
            if self.publish(word, position, &after) {
                writer.remember(Change {
                    tag: word.tag(),
                    before,
                    end: before.axis_at(now),
                    after,
                    start,
                    raised,
                });
                return;
            }
        }
    }

    /// Moves tag and position together, having written the slot that the new tag names. Under the writer's lock.
    fn publish(&self, word: Word, position: u64, after: &Params) -> bool {
        let tag = word.tag().wrapping_add(1) & (POSITION >> 32);
        #[cfg(tollgate_bug = "bucket_same_slot")]
        let slot = word.tag() % SLOTS;
        #[cfg(not(tollgate_bug = "bucket_same_slot"))]
        let slot = tag % SLOTS;
        self.slots[slot as usize].store(after);
        #[cfg(tollgate_bug = "bucket_same_slot")]
        self.slots[(tag % SLOTS) as usize].store(after);
        // Release: whoever reads this tag reads the slot as written above. Pairs with `read`.
        self.word
            .compare_exchange(word.0, Word::new(tag, position).0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Waits for the turn to lower the position at `now`: one at a time, so that each counts those before it.
    fn giver(&self, now: Instant) -> (MutexGuard<'_, Writer>, Params) {
        loop {
            let writer = self.writer.lock();
            let (_, params) = self.read();
            if params.ticks(now) <= params.life {
                return (writer, params);
            }
            drop(writer);
            self.start_anew(now);
        }
    }

    /// How much of a reservation may be given back at `now`, in units of the parameters in force.
    fn to_give_back(&self, writer: &Writer, ticket: &BucketTicket, params: &Params, now: Instant) -> u64 {
        let taken = Word(ticket.word);
        // Relaxed: written under the lock that we hold.
        let others = self.given.load(Ordering::Relaxed).wrapping_sub(ticket.given);
        let wanted = params.units(ticket.tokens);
        let tag = Word(self.word.load(Ordering::Relaxed)).tag();
        if taken.tag() == tag {
            let floor = params.axis_at(now) - params.burst;
            let room = taken.position().saturating_sub(floor);
            return room.saturating_sub(params.units(others)).min(wanted);
        }
        let Some((position, least)) = writer.room_since(taken, tag) else {
            return 0;
        };
        let now_room = position - fine(params.axis_at(now), params) + fine(params.burst, params);
        let room = (now_room.min(least) - (i128::from(others) << FINE)).max(0) >> (FINE - params.scale);
        u64::try_from(room).unwrap_or(u64::MAX).min(wanted)
    }

    /// Moves the position by `change`, and counts what that gives back. Under the giver's lock, so that the tag stays.
    fn shift_position(&self, change: impl Fn(u64) -> u64, params: &Params) {
        let mut word = Word(self.word.load(Ordering::Relaxed));
        loop {
            let shifted = word.at(change(word.position()));
            // Relaxed: as in `take`.
            match self
                .word
                .compare_exchange_weak(word.0, shifted.0, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    let units = word.position().saturating_sub(shifted.position());
                    // After the position was lowered: a reservation that reads the older count sees the lower
                    // position, or gives back less than it might; never more.
                    self.given
                        .fetch_add(units.div_ceil(1 << params.scale), Ordering::Release);
                    return;
                }
                Err(seen) => word = Word(seen),
            }
        }
    }

    #[cold]
    fn give_back(&self, ticket: &BucketTicket, now: Instant) {
        let (writer, params) = self.giver(now);
        let units = self.to_give_back(&writer, ticket, &params, now);
        #[cfg(tollgate_bug = "bucket_cancel_keeps")]
        let units = units & 0;
        self.shift_position(|position| position.saturating_sub(units), &params);
    }

    /// Corrects a charge of `charged` tokens to `actual`.
    #[cold]
    fn correct(&self, charged: u64, actual: u64, now: Instant) {
        let (_writer, params) = self.giver(now);
        let floor = params.axis_at(now) - params.burst;
        let back = params.units(charged.saturating_sub(actual));
        let more = params.units(actual.saturating_sub(charged));
        self.shift_position(
            |position| {
                let base = position.max(floor);
                base.saturating_add(more).saturating_sub(back).max(floor)
            },
            &params,
        );
    }
}

impl Writer {
    fn remember(&mut self, change: Change) {
        if self.changes.len() == HISTORY {
            self.changes.remove(0);
        }
        self.changes.push(change);
    }

    /// Where a position of an earlier set of parameters lies now, and the least room that was left at the changes in
    /// between; nothing when they are not all remembered, or one was a reset. In `2^-60` tokens.
    fn room_since(&self, taken: Word, now: u64) -> Option<(i128, i128)> {
        let first = self.changes.iter().position(|change| change.tag == taken.tag())?;
        let mut position = i128::from(taken.position()) << (FINE - self.changes[first].before.scale);
        let mut least = i128::MAX;
        let mut last = taken.tag();
        for change in &self.changes[first..] {
            let end = fine(change.end, &change.before);
            least = least.min(position - end + fine(change.before.burst, &change.before));
            position = fine(change.start, &change.after) + position - end - change.raised?;
            last = change.tag;
        }
        (last.wrapping_add(1) & 0xffff == now).then_some((position, least))
    }
}

impl Limiter for TokenBucket {
    type Ticket = BucketTicket;

    #[inline]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<BucketTicket, Refusal<'_>> {
        // Before the position is moved: a give-back in between counts as one since.
        // Acquire: whoever reads a count also sees the lowered position. Pairs with `shift_position`.
        let given = self.given.load(Ordering::Acquire);
        let word = self.take(demand.units(), demand.now(&self.clock))?;
        Ok(BucketTicket {
            tokens: demand.units(),
            word: word.0,
            given,
        })
    }

    fn cancel(&self, ticket: BucketTicket, now: Pass<'_>) {
        if ticket.tokens > 0 {
            self.give_back(&ticket, now.now(&self.clock));
            self.bell.ring();
        }
    }

    fn settle(&self, ticket: &mut BucketTicket, settlement: Settlement<'_>) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        if actual != ticket.tokens {
            self.correct(ticket.tokens, actual, settlement.pass().now(&self.clock));
            let loosened = actual < ticket.tokens;
            ticket.tokens = actual;
            if loosened {
                self.bell.ring();
            }
        }
        1
    }

    #[inline]
    fn finish(&self, _: BucketTicket, _: Outcome, _: Pass<'_>) {}

    #[inline]
    fn forget(&self, _: BucketTicket) {}

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.bell);
        let now = demand.now(&self.clock);
        loop {
            let (word, params) = self.read();
            if params.ticks(now) > params.life {
                self.start_anew(now);
                continue;
            }
            let axis = params.axis_at(now);
            let base = word.position().max(axis - params.burst);
            let need = params.units(demand.units());
            if !self.still(word) {
                continue;
            }
            if need > params.burst {
                return ReadyAt::on_event(LEG);
            }
            let target = base.saturating_add(params.units(demand.ahead())).saturating_add(need);
            if target <= axis {
                return ReadyAt::NOW;
            }
            let ticks = crate::algo::axis::ticks_until(target - ORIGIN, params.mul, params.shift);
            return ReadyAt::at(LEG, params.epoch.after_ticks(ticks));
        }
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
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
