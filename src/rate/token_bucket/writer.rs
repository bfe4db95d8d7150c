//! Changing the quota while the bucket runs, and starting the axis anew: the same step, under the writer's lock.
//!
//! Giving back: what a cancel or a settlement lowers the position by. One at a time, under the writer's lock, so that each
//! counts those before it.
//!
//! Let `room` be how much was missing in the bucket when `n` were reserved. When `r` have been refilled since, and older
//! reservations have given back `g` since, then `h = room + n - r - g` would be missing now had nobody taken since, and a cancel
//! gives back `min(n, h)`. A bucket that had never seen the reservation would hold `min(n, s)` more, with `s` the least that has
//! been missing since, which is `h` at least. So a cancel gives back no more than that; just that where `r + g <= room`, which
//! makes both `n`; and otherwise at most `r + g - room` less.
//!
//! All of this is by the instants at which the others have taken. So the clock is read after the word, and again whenever the
//! word has changed before it could be moved: somebody may have found the bucket full since. Only when the word is as the
//! reservation left it there is nobody to ask about. Whoever takes read the clock before the exchange that moves the word, which
//! releases; so a manual or a coarse clock is not read behind that. A processor may read its own counter some nanoseconds before
//! the word that was to be read first: then as much more may come back as the rate yields in these.
//!
//! Who has given back how much, by the order of their reservations: what tells a give-back that lowered the ground under a
//! reservation from one that only took away what had been put on top of it later.
//!
//! FutureReservation: taking now for the first instant at which the tokens will be there.
//!
//! What is left when bookings are given up is what those that are kept would have left alone, each taking at its own instant, as
//! long as no more has been refilled since one was made than there was room before it. Later, less may come back, by at most what
//! was refilled beyond that room: see [`give_back`](super::give_back).

use super::params::{Params, whole_ticks};
use super::{BucketTicket, POSITION, TokenBucket, Word};
use crate::rate::future::{Promises, TakeOrder};
use crate::rate::inherit::{Inherit, Withheld};
use crate::rate::quota::Quota;
use crate::sync::shim::MutexGuard;
use crate::sync::shim::atomic::Ordering;
use crate::time::{Instant, Pass};
use std::convert::Infallible;

/// What only changes of the quota touch.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) quota: Quota,
    pub(super) made_with: Quota,
    changes: Vec<Change>,
    /// Who gave back what, since the last change.
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
    /// What had been given back until then, as `TokenBucket::given` has it, and where that goes on from.
    refunded: u64,
    refunded_after: u64,
}

/// How many changes back a reservation can be cancelled.
const HISTORY: usize = 16;
/// Versions recur. Each time they do, what has been given back grows by this, in units: more than any reservation has left to
/// give back. So one of an earlier round gives back nothing. The count of units has 63 bits, hence 2^15 rounds of 2^15 versions
/// are told apart.
const ROUND: u64 = 1 << 48;
const FINE: u32 = 60;

pub(super) fn fine(units: u64, params: &Params) -> i128 {
    i128::from(units) << (FINE - params.scale)
}

impl TokenBucket {
    /// Changes the quota at once; `inherit` says what becomes of the tokens that are there. A debt stays.
    ///
    /// An unlimited quota counts nothing: the bucket is full after it, whatever the rule, and nothing that was taken
    /// before is given back. From one quota by interval to another the intervals go on from where the latest ended.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) {
        self.change_quota(|_| quota, inherit);
    }

    /// Starts anew, full. What was taken before is not given back any more.
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
                if inherit == Inherit::Reset || uncounted && !seeded!("bucket_counts_the_unlimited") {
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
                // What overflows is gone for those as well who give back later.
                let raised = if wanted > kept { left - kept } else { wanted - kept };
                (left, Some(raised))
            });
            writer.withheld = withheld;
            writer.quota = quota;
            writer.promises.freeze();
        }
        self.bell.ring_anew();
    }

    /// The parameters of another quota from `now` on. Under the writer's lock.
    fn compile(&self, quota: &Quota, now: Instant) -> Params {
        let (_, before) = self.read();
        if quota.is_by_interval() && before.step > 0 && !seeded!("bucket_intervals_restart") {
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
        // (What gains nothing lasts for ever.)
        let epoch = before.epoch_anew(whole_ticks(&writer.quota, &self.clock), now);
        let after = Params { epoch, ..before };
        let end = before.axis_beyond_life(now);
        let start = after.axis_at(now);
        loop {
            let word = Word(self.word.load(Ordering::Acquire));
            // Not more than full, `now`: so there is nothing by a reading from before the new start.
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

    /// What was given back until the change from `version`, and what the count goes on from. Under the writer's lock.
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
        if seeded!("bucket_same_slot") {
            self.resting.store(after);
        }
        self.moving.store(after);
        let mut moving = word.next(position);
        // Release: whoever reads this tag reads the slot as written above. Pairs with `read`.
        if self
            .word
            .compare_exchange(word.0, moving.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        // Nobody's exchange succeeds any more that was computed with what rests here.
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

/// What a reservation under earlier parameters has to do with those in force. In `2^-60` tokens.
struct Past {
    /// Where its position lies now.
    position: i128,
    /// The least room that was left at the changes in between.
    least_room: i128,
    /// What was given back until the last change.
    lowered: i128,
    /// What had been given back at the last change, as `TokenBucket::given` has it.
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

    /// Nothing when the changes since then are not all remembered, or one was a reset.
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

/// What was taken, and after how many changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct EraTicket {
    era: u64,
    ticket: BucketTicket,
}

impl EraTicket {
    /// With how many changes there have been, and the version that is in force since the last.
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

/// The units given back between two readings of `TokenBucket::given`.
fn refunded_between(earlier: u64, later: u64) -> u64 {
    (later & !1).wrapping_sub(earlier & !1) >> 1
}

impl TokenBucket {
    /// Waits for the turn to lower the position at `now`: one at a time, so that each counts those before it.
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

    /// How much of a reservation may be given back at `now`, in units of the parameters in force, were nobody booked ahead.
    fn refundable(&self, writer: &Writer, ticket: &BucketTicket, params: &Params, now: Instant) -> u64 {
        let taken = Word(ticket.word);
        // Relaxed: written under the lock that we hold.
        let refunded = self.refunded.load(Ordering::Relaxed);
        let version = Word(self.word.load(Ordering::Relaxed)).version();
        if taken.version() == version {
            let floor = params.axis_at(now) - params.burst;
            let room = taken.position().saturating_sub(floor);
            // Where nothing is refilled nothing has overflowed, whatever others have given back in this round of versions.
            if params.mul == 0 && refunded_between(ticket.refunded, refunded) < ROUND {
                return room;
            }
            // What newer ones gave back had been on top of this one.
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

    /// Moves the position to where `change` says, which is given the word that is there, and counts what that gives back.
    /// Starts at `word`, and under the lock_writer's lock, so that the tag stays. Returns the units given back.
    fn shift_position(&self, mut word: Word, change: impl Fn(Word) -> u64) -> u64 {
        // Relaxed: written under the lock that we hold. Published by the exchange below.
        let refunded = self.refunded.load(Ordering::Relaxed);
        self.refunded.store(refunded | 1, Ordering::Relaxed);
        let units = loop {
            let shifted = word.at(change(word));
            // Release: a reservation that is made on the lowered position sees that something is being given back.
            // Pairs with the exchange in `take`. Acquire: who is asked again sees what has been taken meanwhile.
            match self
                .word
                .compare_exchange_weak(word.0, shifted.0, Ordering::Release, Ordering::Acquire)
            {
                Ok(_) => break word.position().saturating_sub(shifted.position()),
                Err(seen) => word = Word(seen),
            }
        };
        // Release: whoever reads this count sees the lowered position. Pairs with `try_reserve`.
        self.refunded.store(refunded.wrapping_add(2 * units), Ordering::Release);
        units
    }

    /// Gives back `tokens` of a reservation, as far as they may be: all of them when it is cancelled, the overcharge when it is
    /// settled.
    #[cold]
    pub(super) fn refund(&self, ticket: &BucketTicket, tokens: u64, pass: Pass<'_>) {
        loop {
            let mut writer = self.writer.lock();
            let (word, params) = self.read();
            let wanted = params.units(tokens);
            if self.undo_latest(&mut writer, ticket, wanted, word) {
                return;
            }
            let seen = self.seen(word, pass);
            if !params.lives(seen.now) {
                drop(writer);
                self.start_anew(seen.now);
                continue;
            }
            let booked = EraTicket::new(*ticket, writer.era, word.version());
            writer.promises.expire(seen.now.ticks());
            // What is settled to less is still promised its instant.
            if writer.promises.is_empty() || tokens < ticket.tokens {
                return self.refund_now(&mut writer, booked, wanted.into(), &params, seen);
            }
            for (booked, units) in writer.promises.cancel(booked, wanted.into()) {
                let (word, _) = self.read();
                self.refund_now(&mut writer, booked, units, &params, self.seen(word, pass));
            }
            return;
        }
    }

    /// A word that has been read, with an instant that no one who has taken until then was ahead of.
    fn seen(&self, word: Word, pass: Pass<'_>) -> Seen {
        let now = pass.latest(&self.clock);
        Seen { word, now }
    }

    /// Gives back all `units` of a reservation that is the last that was taken or given back: then nothing has overflowed
    /// since that was seen, whatever the clock says. False, with nothing done, when it is not.
    #[inline]
    fn undo_latest(&self, writer: &mut Writer, ticket: &BucketTicket, units: u64, word: Word) -> bool {
        // Relaxed: written under the lock that we hold. So it is even, and the order of what was taken is known.
        let as_it_was = word.0 == ticket.word && self.refunded.load(Ordering::Relaxed) == ticket.refunded;
        if !as_it_was || !writer.promises.is_empty() || !writer.refunds.has_room() {
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

    /// Gives back as much of `wanted` units as may be.
    fn refund_now(&self, writer: &mut Writer, booked: EraTicket, wanted: u128, params: &Params, seen: Seen) {
        let most = self.refundable(writer, &booked.ticket, params, seen.now);
        let units = writer.promises.release(booked, wanted.min(most.into())) as u64;
        let units = if seeded!("bucket_cancel_keeps") { 0 } else { units };
        self.forget_spent(writer, params, seen.now);
        let units = self.shift_position(seen.word, |word| {
            let overtaken = word != seen.word && !seeded!("bucket_cancels_by_an_old_reading");
            let still = if overtaken {
                self.still_refundable(writer, &booked.ticket, params, seen)
            } else {
                u64::MAX
            };
            word.position().saturating_sub(units.min(still))
        });
        remember(writer, &booked.ticket, seen.word, units);
    }

    /// How much may be given back now that somebody has moved the word since: who took may have found the bucket full.
    #[cold]
    fn still_refundable(&self, writer: &Writer, ticket: &BucketTicket, params: &Params, seen: Seen) -> u64 {
        let now = self.clock.now().max(seen.now);
        self.refundable(writer, ticket, params, now)
    }

    /// Forgets who gave back before all who have room left to give back.
    fn forget_spent(&self, writer: &mut Writer, params: &Params, now: Instant) {
        // Here, so that it is once in the life of a bucket, and of those alone that give back.
        writer.refunds.make_room();
        // Whoever has room left had it above this when all was taken, and nothing had been given.
        let floor = params.axis_at(now) - params.burst;
        // Relaxed: written under the lock that we hold.
        let refunded = self.refunded.load(Ordering::Relaxed) >> 1;
        writer.refunds.forget_spent(floor.wrapping_add(refunded));
    }

    /// Takes `more` for a reservation, into debt if need be, and returns its ticket: what may still come back of it by now,
    /// and what was taken. The debt is cut, and what is cut off is not charged.
    ///
    /// What may come back lies below others that have taken since. It has no place in the order of reservations any more: as
    /// if all who give back later had been before it.
    #[cold]
    pub(super) fn take_more(&self, ticket: &BucketTicket, more: u64, pass: Pass<'_>) -> BucketTicket {
        loop {
            let writer = self.writer.lock();
            let (word, params) = self.read();
            let now = self.seen(word, pass).now;
            if !params.lives(now) {
                drop(writer);
                self.start_anew(now);
                continue;
            }
            let kept = self.refundable(&writer, ticket, &params, now);
            let mut taken = 0;
            // It lives, so that this needs no lock.
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

/// Remembers what `ticket` has given back under the parameters of `word`.
fn remember(writer: &mut Writer, ticket: &BucketTicket, word: Word, units: u64) {
    if let Some(position) = ticket.gross_position()
        && Word(ticket.word).version() == word.version()
        && units > 0
    {
        writer.refunds.add(position, units);
    }
}

/// So many give-backs are told apart; more are told apart less well, which gives back less.
const ENTRIES: usize = 64;

/// Amounts by the gross position of the reservation that gave them back: the sum of all that had been taken until then.
/// Positions wrap around at `2^63`; all that are held at a time lie within half of their range.
#[derive(Debug, Default)]
struct Refunds {
    /// In order of position.
    entries: Vec<(u64, u64)>,
}

/// True when `a` lies behind `b`. They have 63 bits that count: so many has half of what counts what was given.
fn behind(a: u64, b: u64) -> bool {
    ((a.wrapping_sub(b) << 1) as i64) < 0
}

impl Refunds {
    /// Makes room for all that will ever be remembered, at once.
    fn make_room(&mut self) {
        self.entries
            .reserve_exact((ENTRIES + 1).saturating_sub(self.entries.len()));
    }

    /// True when one more is told apart from all others.
    fn has_room(&self) -> bool {
        self.entries.len() < ENTRIES
    }

    /// Counts what the reservation at `position` has given back.
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

    /// What reservations after the one at `position` have given back.
    fn by_newer_than(&self, position: u64) -> u64 {
        let newer = self.entries.iter().rev();
        newer
            .take_while(|&&(other, _)| behind(position, other))
            .map(|&(_, units)| units)
            .sum()
    }

    /// Forgets those that nobody will ask for again: a reservation has room left to give back if its position, with what
    /// newer ones gave back, lies beyond `spent`.
    ///
    /// What an entry took lies between it and all before it, so these reach no further, with what it gave back, than it
    /// does without: the first that does not reach far enough, from the newest, is the last that is asked for.
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
    fn amounts_are_summed_from_the_newest_whatever_the_order_of_giving() {
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
    fn what_one_reservation_gives_back_in_parts_takes_one_entry() {
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
        // Refunds back from the newest to the oldest, nothing is lost.
        let mut refunds = Refunds::default();
        for position in (0..2 * ENTRIES as u64).rev() {
            assert_eq!(refunds.by_newer_than(position), 2 * ENTRIES as u64 - 1 - position);
            refunds.add(position, 1);
        }
    }

    /// After so many changes, at a position, when so many units had been given back; odd when that is not known.
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
    fn what_was_taken_is_told_by_its_change_and_by_all_that_had_been_taken() {
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
    fn what_nobody_knows_the_order_of_is_older_than_all_since_the_same_change() {
        let (known, unknown) = (booked(5, 100, 6), booked(5, 900, 7));
        assert!(unknown.is_before(&known) && !known.is_before(&unknown));
        assert!(!unknown.is_before(&booked(4, 900, 0)) && booked(4, 900, 0).is_before(&unknown));
        assert_eq!([known, unknown].map(|of| of.ticket.gross_position()), [Some(103), None]);
    }

    /// Half of what counts the units given back has 63 bits.
    #[test]
    fn the_order_outlasts_the_count_of_what_was_given_back() {
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
