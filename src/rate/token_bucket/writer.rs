//! Everything that happens under the writer's lock: changes of the quota, restarts of the axis, refunds, and the
//! promises of bookings.
//!
//! # Changes
//! A change of quota and a restart of the axis are the same step: [`TokenBucket::publish`] replaces the parameters.
//!
//! # Refunds
//! A refund lowers the position, for a cancel or a settlement. The lock orders refunds, so that each counts those
//! before it.
//!
//! Let `room` be how much was missing in the bucket when `n` were reserved. Let `r` have been refilled since, and `g`
//! have been refunded to older reservations. Then `h = room + n - r - g` would be missing now had no caller taken
//! since, and a cancel refunds `min(n, h)`. A bucket that had never seen the reservation would hold `min(n, s)` more,
//! where `s` is the least that has been missing since, and `s >= h`. So a cancel refunds no more than that. It refunds
//! exactly that where `r + g <= room`, which makes both `n`. Otherwise it refunds at most `r + g - room` less.
//!
//! The instants at which other callers took decide this. So the clock is read after the word, and again if the word has
//! changed before it could be moved: a caller may have found the bucket full since. If the word is as the reservation
//! left it, no other caller matters. A taker reads the clock before its exchange on the word, which releases. So a
//! manual or a coarse clock is never read behind that. A processor may read its own counter some nanoseconds before the
//! word that was to be read first. Then the refund may exceed the bound by the rate's yield in these nanoseconds.
//!
//! [`Refunds`] keeps the refunds of late in the order of their reservations. So a refund that lowered the ground under
//! a reservation is told from one that only removed tokens taken later.
//!
//! # Bookings
//! When bookings are cancelled, the bucket is left as the kept ones would have left it alone, each taking at its own
//! instant. That holds as long as no more has been refilled since a booking was made than there was room before it.
//! Later, less may come back, by at most the refill beyond that room.

use super::params::{Params, whole_ticks};
use super::{BucketTicket, POSITION, TokenBucket, Word};
use crate::rate::future::{Promises, TakeOrder};
use crate::rate::inherit::{Inherit, Withheld};
use crate::rate::quota::Quota;
use crate::sync::shim::MutexGuard;
use crate::sync::shim::atomic::Ordering;
use crate::time::{ClockReading, Instant};
use std::convert::Infallible;

/// The state that only the lock holder touches.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) quota: Quota,
    pub(super) made_with: Quota,
    changes: Vec<Change>,
    /// The refunds since the last change.
    refunds: Refunds,
    /// How many changes there were.
    pub(super) era: u64,
    /// The bookings that have not begun.
    pub(super) promises: Promises<EraTicket>,
    /// In `2^-60` tokens.
    withheld: Withheld,
}

/// How to read a position of an earlier set of parameters. Distances are in `2^-60` tokens.
#[derive(Clone, Copy, Debug)]
struct Change {
    version: u64,
    before: Params,
    end: u64,
    after: Params,
    start: u64,
    /// How much the level was raised by the change itself; `None` when it was reset.
    raised: Option<i128>,
    /// The count of refunds until then, as `TokenBucket::refunded` has it, and where that count goes on from.
    refunded: u64,
    refunded_after: u64,
}

/// How many changes back a reservation can be cancelled.
const HISTORY: usize = 16;
/// Versions recur. Each time they do, the count of refunds grows by this many units: more than any reservation has
/// left. So a reservation of an earlier round gives back nothing. The count of units has 63 bits, hence 2^15 rounds of
/// 2^15 versions are told apart.
const ROUND: u64 = 1 << 48;
const FINE: u32 = 60;

pub(super) fn fine(units: u64, params: &Params) -> i128 {
    i128::from(units) << (FINE - params.scale)
}

impl TokenBucket {
    /// Changes the quota at once; `inherit` says what becomes of the tokens that are there. A debt stays.
    ///
    /// An unlimited quota counts nothing: after it the bucket is full by every rule, and nothing that was taken before
    /// is given back. From one quota by interval to another, the intervals go on from the end of the latest.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) {
        self.change_quota(|_| quota, inherit);
    }

    /// Counts the quota in force as the one that it was made with: a version of a policy decides it, and not the key.
    pub(crate) fn adopt_settings(&self) {
        let mut writer = self.writer.lock();
        writer.made_with = writer.quota;
    }

    /// Starts anew, full. Nothing that was taken before is given back any more.
    pub fn reset(&self) {
        self.change_quota(|quota| quota, Inherit::Reset);
    }

    fn change_quota(&self, change: impl FnOnce(Quota) -> Quota, inherit: Inherit) {
        {
            let mut writer = self.writer.lock();
            let now = self.clock.now();
            let quota = change(writer.quota);
            let after = self.compile(&quota, now);
            let mut withheld = writer.withheld;
            self.replace(&mut writer, now, after, |level, before, earlier| {
                let kept = i128::from(level) << (FINE - before.scale);
                let [old, new] = [before, &after].map(|params| fine(params.whole_burst(), params));
                let uncounted = before.is_unlimited() || after.is_unlimited();
                if inherit == Inherit::Reset || uncounted {
                    withheld = Withheld::new(new);
                    return (new, None);
                }
                let wanted = match inherit {
                    Inherit::Proportional if level > 0 => {
                        let burst = before.whole_burst();
                        let share = i128::from(level) * i128::from(after.whole_burst()) / i128::from(burst);
                        share << (FINE - after.scale)
                    }
                    Inherit::Additive => kept + (new - old).max(-kept.max(0)),
                    _ => kept,
                };
                let left;
                (withheld, left) = earlier.change(kept, wanted.min(new), new);
                // Later refunds do not bring back the overflow either.
                let raised = if wanted > kept { left - kept } else { wanted - kept };
                (left, Some(raised))
            });
            writer.withheld = withheld;
            writer.quota = quota;
            writer.promises.freeze();
        }
        self.notify.notify_reconfigured();
    }

    /// Compiles another quota from `now` on. Under the writer's lock.
    fn compile(&self, quota: &Quota, now: Instant) -> Params {
        let (_, before) = self.read();
        if quota.is_by_interval() && before.step > 0 {
            let after = Params::compile(quota, &self.clock, before.latest_step(now));
            if after.lives(now) {
                return after;
            }
        }
        Params::compile(quota, &self.clock, now)
    }

    /// Starts the axis anew, with everything else as it is, when `now` lies beyond its life.
    #[cold]
    pub(super) fn start_anew(&self, now: Instant) {
        let mut writer = self.writer.lock();
        let (_, before) = self.read();
        if before.lives(now) {
            return;
        }
        // An axis that gains nothing lasts for ever.
        let epoch = before.epoch_anew(whole_ticks(&writer.quota, &self.clock), now);
        let after = Params { epoch, ..before };
        let end = before.axis_beyond_life(now);
        let start = after.axis_at(now);
        loop {
            let word = Word(self.word.load(Ordering::Acquire));
            // Not more than full at `now`: so it is empty by a reading from before the new start.
            let held = (i128::from(end) - i128::from(word.position())).min(i128::from(before.burst));
            let position = (i128::from(start) - held).clamp(0, i128::from(POSITION)) as u64;
            if self.publish(word, position, &after) {
                let (refunded, refunded_after) = self.carry_refunds(word.version());
                writer.remember(Change {
                    version: word.version(),
                    before,
                    end,
                    after,
                    start,
                    raised: Some(0),
                    refunded,
                    refunded_after,
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
        mut inherit: impl FnMut(i64, &Params, Withheld) -> (i128, Option<i128>),
    ) {
        loop {
            let (word, before) = self.read();
            let level = Self::level(word, &before, now);
            let (level, raised) = inherit(level, &before, writer.withheld);
            let start = after.axis_at(now);
            let position = i128::from(start) - (level >> (FINE - after.scale));
            let position = position.clamp(0, i128::from(POSITION)) as u64;
            if self.publish(word, position, &after) {
                let (refunded, refunded_after) = self.carry_refunds(word.version());
                writer.remember(Change {
                    version: word.version(),
                    before,
                    end: before.axis_beyond_life(now),
                    after,
                    start,
                    raised,
                    refunded,
                    refunded_after,
                });
                return;
            }
        }
    }

    /// The count of refunds until the change from `version`, and the count to go on from. Under the writer's lock.
    fn carry_refunds(&self, version: u64) -> (u64, u64) {
        // Relaxed, both: written under the lock that we hold. A reservation that sees the later version and the earlier count, or
        // the other way round, gives back nothing.
        let refunded = self.refunded.load(Ordering::Relaxed);
        if Word::next_version(version) > 0 {
            return (refunded, refunded);
        }
        let after = refunded.wrapping_add(2 * ROUND);
        self.refunded.store(after, Ordering::Relaxed);
        (refunded, after)
    }

    /// Moves to `after` and `position` from `word`, if it is still in force: the tag moves on by two. Under the writer's
    /// lock.
    fn publish(&self, word: Word, position: u64, after: &Params) -> bool {
        self.moving.store(after);
        let mut moving = word.next(position);
        // Release: a reader of this tag reads the slot as written above. Pairs with `read`.
        if self
            .word
            .compare_exchange(word.0, moving.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        // No exchange that was computed with the resting parameters succeeds any more.
        self.resting.store(after);
        loop {
            let resting = moving.next(moving.position());
            // Release: as above.
            match self
                .word
                .compare_exchange_weak(moving.0, resting.0, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => moving = Word(seen),
            }
        }
    }
}

/// A reservation of earlier parameters, measured by those in force. In `2^-60` tokens.
struct Past {
    /// Its position now.
    position: i128,
    /// The least room that was left at the changes in between.
    least_room: i128,
    /// The refunds until the last change.
    lowered: i128,
    /// The count of refunds at the last change, as `TokenBucket::refunded` has it.
    refunded: u64,
}

impl Writer {
    pub(super) fn new(quota: Quota, burst: i128) -> Self {
        Self {
            quota,
            made_with: quota,
            changes: Vec::new(),
            refunds: Refunds::default(),
            era: 0,
            promises: Promises::EMPTY,
            withheld: Withheld::new(burst),
        }
    }

    fn remember(&mut self, change: Change) {
        self.refunds.clear();
        self.era += 1;
        if self.changes.len() == HISTORY {
            self.changes.remove(0);
        }
        self.changes.push(change);
    }

    /// `None` if the changes since then are not all remembered, or one was a reset.
    fn since(&self, ticket: &BucketTicket, now: u64) -> Option<Past> {
        let taken = Word(ticket.word);
        let first = self
            .changes
            .iter()
            .position(|change| change.version == taken.version())?;
        let mut past = Past {
            position: i128::from(taken.position()) << (FINE - self.changes[first].before.scale),
            least_room: i128::MAX,
            lowered: 0,
            refunded: ticket.refunded,
        };
        let mut last = taken.version();
        for change in &self.changes[first..] {
            let end = fine(change.end, &change.before);
            past.least_room = past
                .least_room
                .min(past.position - end + fine(change.before.burst, &change.before));
            past.position = fine(change.start, &change.after) + past.position - end - change.raised?;
            past.lowered += fine(refunded_between(past.refunded, change.refunded), &change.before);
            past.refunded = change.refunded_after;
            last = change.version;
        }
        (Word::next_version(last) == now).then_some(past)
    }
}

/// What becomes of a ticket after a refund.
#[derive(Clone, Copy)]
pub(super) enum After {
    /// It is cancelled, as a whole.
    Ends,
    /// It is settled, or was spent in part.
    Stays,
}

/// A ticket, and the number of changes before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EraTicket {
    era: u64,
    ticket: BucketTicket,
}

impl EraTicket {
    /// From the number of changes so far, and the version in force since the last.
    pub(super) fn new(ticket: BucketTicket, era: u64, version: u64) -> Self {
        let era = era.saturating_sub(Word::versions_between(Word(ticket.word).version(), version));
        Self { era, ticket }
    }
}

impl TakeOrder for EraTicket {
    fn is_before(&self, other: &Self) -> bool {
        let within = || match (self.ticket.gross_position(), other.ticket.gross_position()) {
            (Some(own), Some(other)) => behind(own, other),
            (own, _) => own.is_none(),
        };
        self.era < other.era || self.era == other.era && within()
    }
}

/// The units refunded between two readings of `TokenBucket::refunded`.
fn refunded_between(earlier: u64, later: u64) -> u64 {
    (later & !1).wrapping_sub(earlier & !1) >> 1
}

impl TokenBucket {
    /// Locks the writer with an axis that lives at `now`. Refunds run one at a time, so that each counts those before
    /// it.
    pub(super) fn lock_writer(&self, now: Instant) -> (MutexGuard<'_, Writer>, Params) {
        loop {
            let writer = self.writer.lock();
            let (_, params) = self.read();
            if params.lives(now) {
                return (writer, params);
            }
            drop(writer);
            self.start_anew(now);
        }
    }

    /// How much of a reservation may be refunded at `now`, in units of the parameters in force, without regard to
    /// bookings.
    fn refundable(&self, writer: &Writer, ticket: &BucketTicket, params: &Params, now: Instant) -> u64 {
        let taken = Word(ticket.word);
        // Relaxed: written under the lock that we hold.
        let refunded = self.refunded.load(Ordering::Relaxed);
        let version = Word(self.word.load(Ordering::Relaxed)).version();
        if taken.version() == version {
            let floor = params.axis_at(now) - params.burst;
            let room = taken.position().saturating_sub(floor);
            // Without refill nothing has overflowed, whatever has been refunded in this round of versions.
            if params.mul == 0 && refunded_between(ticket.refunded, refunded) < ROUND {
                return room;
            }
            // Refunds of newer reservations had been on top of this one.
            let newer = ticket
                .gross_position()
                .map_or(0, |position| writer.refunds.by_newer_than(position));
            let lowered = refunded_between(ticket.refunded, refunded).saturating_sub(newer);
            return room.saturating_sub(lowered);
        }
        let Some(past) = writer.since(ticket, version) else {
            return 0;
        };
        let lowered = past.lowered + fine(refunded_between(past.refunded, refunded), params);
        let now_room = past.position - fine(params.axis_at(now), params) + fine(params.burst, params);
        let room = (now_room.min(past.least_room) - lowered).max(0) >> (FINE - params.scale);
        u64::try_from(room).unwrap_or(u64::MAX)
    }

    /// Moves the position to the one that `change` returns for the current word, and counts the difference as refunded.
    /// Starts at `word`, under the writer's lock, so that the tag stays. Returns the units refunded.
    fn shift_position(&self, mut word: Word, change: impl Fn(Word) -> u64) -> u64 {
        // Relaxed: written under the lock that we hold. Published by the exchange below.
        let refunded = self.refunded.load(Ordering::Relaxed);
        self.refunded.store(refunded | 1, Ordering::Relaxed);
        let units = loop {
            let shifted = word.at(change(word));
            // Release: a reservation on the lowered position sees that a refund is under way. Pairs with the exchange
            // in `take`. Acquire: a retry sees the takes in between.
            match self
                .word
                .compare_exchange_weak(word.0, shifted.0, Ordering::Release, Ordering::Acquire)
            {
                Ok(_) => break word.position().saturating_sub(shifted.position()),
                Err(seen) => word = Word(seen),
            }
        };
        // Release: a thread that reads this count sees the lowered position. Pairs with `try_reserve`.
        self.refunded.store(refunded.wrapping_add(2 * units), Ordering::Release);
        units
    }

    /// Gives back the last `tokens` of a reservation, as far as they have not overflowed.
    pub(crate) fn give_back(&self, ticket: &BucketTicket, tokens: u64, reading: &ClockReading) {
        if tokens > 0 {
            self.refund(ticket, tokens.min(ticket.tokens), After::Stays, reading);
            self.notify.notify_all();
        }
    }

    /// Refunds up to `tokens` of a reservation: all of them when it is cancelled, the overcharge when it is settled.
    #[cold]
    pub(super) fn refund(&self, ticket: &BucketTicket, tokens: u64, after: After, reading: &ClockReading) {
        loop {
            let mut writer = self.writer.lock();
            let (word, params) = self.read();
            let wanted = params.units(tokens);
            if self.undo_latest(&mut writer, ticket, after, wanted, word) {
                return;
            }
            let seen = self.observe(word, reading);
            if !params.lives(seen.now) {
                drop(writer);
                self.start_anew(seen.now);
                continue;
            }
            let booked = EraTicket::new(*ticket, writer.era, word.version());
            writer.promises.expire(seen.now.ticks());
            // A booking that is settled to less keeps its promised instant.
            if writer.promises.is_empty() || tokens < ticket.tokens {
                return self.refund_now(&mut writer, booked, wanted.into(), &params, seen);
            }
            for (booked, units) in writer.promises.cancel(booked, wanted.into()) {
                let (word, _) = self.read();
                self.refund_now(&mut writer, booked, units, &params, self.observe(word, reading));
            }
            return;
        }
    }

    /// A word that has been read, with an instant not behind the clock of any taker before it.
    fn observe(&self, word: Word, reading: &ClockReading) -> Seen {
        let now = reading.latest(&self.clock);
        Seen { word, now }
    }

    /// Refunds all `units` of the reservation that was taken last, if nothing was refunded since: then nothing has
    /// overflowed, whatever the clock says. Returns false, with nothing done, if others came since.
    ///
    /// A reservation whose ticket ends leaves no trace, so it is neither counted nor remembered. The lock keeps refunds out: with
    /// one in between, the word could be the same again after other takes. A ticket that stays may be settled again, by the count.
    #[inline]
    fn undo_latest(&self, writer: &mut Writer, ticket: &BucketTicket, after: After, units: u64, word: Word) -> bool {
        // Relaxed: written under the lock that we hold. So it is even, and the order of takes is known.
        let as_it_was = word.0 == ticket.word && self.refunded.load(Ordering::Relaxed) == ticket.refunded;
        if !as_it_was || !writer.promises.is_empty() {
            return false;
        }
        if matches!(after, After::Ends) {
            // Relaxed, both: no refund is under way, and an exchange goes on with the release of the take before it.
            let before = word.at(word.position().saturating_sub(units));
            let undone = self
                .word
                .compare_exchange(word.0, before.0, Ordering::Relaxed, Ordering::Relaxed);
            return undone.is_ok();
        }
        if !writer.refunds.has_room() {
            return false;
        }
        writer.refunds.make_room();
        let lower = |seen: Word| {
            let units = if seen == word { units } else { 0 };
            seen.position().saturating_sub(units)
        };
        let back = self.shift_position(word, lower);
        remember(writer, ticket, word, back);
        back > 0 || units == 0
    }

    /// Refunds up to `wanted` units.
    fn refund_now(&self, writer: &mut Writer, booked: EraTicket, wanted: u128, params: &Params, seen: Seen) {
        let most = self.refundable(writer, &booked.ticket, params, seen.now);
        let units = writer.promises.release(booked, wanted.min(most.into())) as u64;
        self.forget_spent(writer, params, seen.now);
        let units = self.shift_position(seen.word, |word| {
            let still = if word != seen.word {
                self.still_refundable(writer, &booked.ticket, params, seen)
            } else {
                u64::MAX
            };
            word.position().saturating_sub(units.min(still))
        });
        remember(writer, &booked.ticket, seen.word, units);
    }

    /// How much may be refunded now that another caller has moved the word: it may have found the bucket full.
    #[cold]
    fn still_refundable(&self, writer: &Writer, ticket: &BucketTicket, params: &Params, seen: Seen) -> u64 {
        let now = self.clock.now().max(seen.now);
        self.refundable(writer, ticket, params, now)
    }

    /// Forgets the refunds older than any reservation with room left to refund.
    fn forget_spent(&self, writer: &mut Writer, params: &Params, now: Instant) {
        // Here, so that it allocates once in the life of a bucket, and only of a bucket that refunds.
        writer.refunds.make_room();
        // A reservation with room left had it above this after its take, with nothing refunded.
        let floor = params.axis_at(now) - params.burst;
        // Relaxed: written under the lock that we hold.
        let refunded = self.refunded.load(Ordering::Relaxed) >> 1;
        writer.refunds.forget_spent(floor.wrapping_add(refunded));
    }

    /// Takes `more` for a reservation, into debt if need be. Returns its ticket: the part that may still come back by
    /// now, and the new tokens. The debt is cut, and the part that is cut off is not charged.
    ///
    /// The old part lies below later takers, so it has no place in the order of reservations any more: it counts all
    /// later refunds as older.
    #[cold]
    pub(super) fn take_more(&self, ticket: &BucketTicket, more: u64, reading: &ClockReading) -> BucketTicket {
        loop {
            let writer = self.writer.lock();
            let (word, params) = self.read();
            let now = self.observe(word, reading).now;
            if !params.lives(now) {
                drop(writer);
                self.start_anew(now);
                continue;
            }
            let kept = self.refundable(&writer, ticket, &params, now);
            let mut taken = 0;
            // The axis lives, so that this needs no lock.
            let word = self.move_forward(now, |base, axis, params| {
                taken = params.owed(base, axis, more);
                Ok::<_, Infallible>(params.units(taken))
            });
            let Ok(word) = word;
            let floor = params.axis_at(now) - params.burst;
            let left = floor.saturating_add(kept).saturating_add(params.units(taken));
            return BucketTicket {
                tokens: ticket
                    .tokens
                    .saturating_add(if params.is_unlimited() { more } else { taken }),
                word: word.at(left).0,
                // Relaxed: written under the lock that we hold.
                refunded: self.refunded.load(Ordering::Relaxed) | 1,
            };
        }
    }
}

/// The word, and an instant that was read after it.
#[derive(Clone, Copy)]
struct Seen {
    word: Word,
    now: Instant,
}

/// Records the refund of `ticket` under the parameters of `word`.
fn remember(writer: &mut Writer, ticket: &BucketTicket, word: Word, units: u64) {
    let Some(position) = ticket.gross_position() else {
        return;
    };
    if Word(ticket.word).version() == word.version() && units > 0 {
        writer.refunds.add(position, units);
    }
}

/// How many refunds are told apart. Beyond that the newest two count as one, which refunds less.
const ENTRIES: usize = 64;

/// Amounts by the gross position of the refunded reservation: the sum of all that had been taken until then. Positions
/// wrap around at `2^63`; all that are held at a time lie within half of their range.
#[derive(Debug, Default)]
struct Refunds {
    /// In order of position.
    entries: Vec<(u64, u64)>,
}

/// True if `a` lies behind `b`. They have 63 significant bits: half of the count of refunded units.
fn behind(a: u64, b: u64) -> bool {
    ((a.wrapping_sub(b) << 1) as i64) < 0
}

impl Refunds {
    /// Reserves the memory for all entries at once.
    fn make_room(&mut self) {
        self.entries
            .reserve_exact((ENTRIES + 1).saturating_sub(self.entries.len()));
    }

    /// True if one more entry is told apart from all others.
    fn has_room(&self) -> bool {
        self.entries.len() < ENTRIES
    }

    /// Counts the refund of the reservation at `position`.
    fn add(&mut self, position: u64, units: u64) {
        let is_newest = self.entries.last().is_none_or(|&(newest, _)| behind(newest, position));
        if is_newest && self.has_room() {
            return self.entries.push((position, units));
        }
        let at = self.entries.partition_point(|&(other, _)| behind(other, position));
        match self.entries.get_mut(at) {
            Some((other, sum)) if *other == position => *sum += units,
            _ => self.entries.insert(at, (position, units)),
        }
        if self.entries.len() > ENTRIES {
            // The two newest as one at the older position: newer than fewer, never than more.
            let newest = self.entries.pop().map_or(0, |(_, units)| units);
            if let Some((_, sum)) = self.entries.last_mut() {
                *sum += newest;
            }
        }
    }

    /// The refunds of reservations after the one at `position`.
    fn by_newer_than(&self, position: u64) -> u64 {
        let newer = self.entries.iter().rev();
        newer
            .take_while(|&&(other, _)| behind(position, other))
            .map(|&(_, units)| units)
            .sum()
    }

    /// Forgets entries that no refund will ask for again. A reservation has room left to refund if its position, plus
    /// the refunds of newer ones, lies beyond `spent`.
    ///
    /// The take of an entry lies between it and all before it. So those reach no further, with its refund, than it does
    /// without. From the newest on, the first entry that does not reach far enough ends the list.
    fn forget_spent(&mut self, spent: u64) {
        let mut newer = 0;
        let mut reaches = |&(position, units): &(u64, u64)| {
            let reach = position.wrapping_add(newer);
            newer += units;
            behind(spent, reach)
        };
        let kept = self.entries.iter().rev().take_while(|entry| reaches(entry)).count();
        self.entries.drain(..self.entries.len() - kept);
    }

    fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_summed_from_the_newest_in_any_order_of_refunds() {
        let mut refunds = Refunds::default();
        for (position, units) in [(30, 3), (10, 1), (20, 2), (20, 5)] {
            refunds.add(position, units);
        }
        let newer = [5, 10, 20, 29, 30].map(|position| refunds.by_newer_than(position));
        assert_eq!(newer, [11, 10, 3, 3, 0]);
        // 10 + 10 that newer ones gave back reaches 20, 20 + 3 reaches 23, 30 reaches 30.
        refunds.forget_spent(19);
        assert_eq!(refunds.by_newer_than(5), 11);
        refunds.forget_spent(20);
        assert_eq!(refunds.by_newer_than(5), 10);
        refunds.forget_spent(30);
        assert_eq!(refunds.by_newer_than(5), 0);
    }

    #[test]
    fn positions_wrap_around() {
        let mut refunds = Refunds::default();
        refunds.add(3, 1);
        refunds.add(u64::MAX - 3, 2);
        assert_eq!(
            (refunds.by_newer_than(u64::MAX - 9), refunds.by_newer_than(u64::MAX)),
            (3, 1)
        );
    }

    #[test]
    fn a_reservation_refunded_in_parts_takes_one_entry() {
        let mut refunds = Refunds::default();
        refunds.add(20, 5);
        for _ in 0..2 * ENTRIES {
            refunds.add(10, 1);
        }
        assert_eq!(refunds.entries.len(), 2);
        assert_eq!(
            (refunds.by_newer_than(10), refunds.by_newer_than(9)),
            (5, 5 + 2 * ENTRIES as u64)
        );
    }

    #[test]
    fn too_many_never_count_as_newer_than_they_are() {
        let mut refunds = Refunds::default();
        for position in 0..2 * ENTRIES as u64 {
            refunds.add(position, 1);
        }
        assert_eq!(refunds.entries.len(), ENTRIES);
        for position in 0..2 * ENTRIES as u64 {
            assert!(refunds.by_newer_than(position) < 2 * ENTRIES as u64 - position);
        }
        // Refunded from the newest to the oldest, nothing is lost.
        let mut refunds = Refunds::default();
        for position in (0..2 * ENTRIES as u64).rev() {
            assert_eq!(refunds.by_newer_than(position), 2 * ENTRIES as u64 - 1 - position);
            refunds.add(position, 1);
        }
    }

    /// A ticket at a position, after `era` changes and `refunded` units; odd if the order is unknown.
    fn booked(era: u64, position: u64, refunded: u64) -> EraTicket {
        let word = Word::new(2 * era, position).0;
        let ticket = BucketTicket {
            tokens: 1,
            word,
            refunded,
        };
        // The version in force is the fifth.
        EraTicket::new(ticket, 105, 5)
    }

    #[test]
    fn tickets_are_ordered_by_change_and_then_by_gross_position() {
        let order = [
            booked(3, 900, 0),
            booked(4, 700, 0),
            booked(5, 100, 0),
            booked(5, 60, 100),
            booked(5, 70, 100),
        ];
        assert_eq!(order.map(|booked| booked.era), [103, 104, 105, 105, 105]);
        for (index, older) in order.iter().enumerate() {
            assert_eq!(
                order.map(|newer| older.is_before(&newer)),
                [0, 1, 2, 3, 4].map(|at| at > index)
            );
        }
    }

    #[test]
    fn a_ticket_of_unknown_order_is_older_than_all_since_the_same_change() {
        let (known, unknown) = (booked(5, 100, 6), booked(5, 900, 7));
        assert!(unknown.is_before(&known) && !known.is_before(&unknown));
        assert!(!unknown.is_before(&booked(4, 900, 0)) && booked(4, 900, 0).is_before(&unknown));
        assert_eq!([known, unknown].map(|of| of.ticket.gross_position()), [Some(103), None]);
    }

    /// The count of refunded units has 63 bits.
    #[test]
    fn the_order_survives_a_wrap_of_the_count_of_refunds() {
        let (last, first) = (booked(5, 100, u64::MAX - 1), booked(5, 100, 0));
        assert!(last.is_before(&first) && !first.is_before(&last));
        assert!(!last.is_before(&booked(5, 50, u64::MAX - 1)));
    }

    /// Versions are counted modulo `2^15`.
    #[test]
    fn the_versions_between_two_wrap_around() {
        let between = [(5, 5), (3, 5), (0x7fff, 2)].map(|(from, to)| Word::versions_between(from, to));
        assert_eq!(between, [0, 2, 3]);
    }
}
