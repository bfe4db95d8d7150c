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

use super::book::Booked;
use super::change::{FINE, ROUND, Writer, fine};
use super::params::Params;
use super::word::Word;
use super::{BucketTicket, TokenBucket};
use crate::sync::shim::MutexGuard;
use crate::sync::shim::atomic::Ordering;
use crate::time::{ClockReading, Instant};
use std::convert::Infallible;

/// The units given back between two readings of `TokenBucket::given`.
pub(super) fn given_between(earlier: u64, later: u64) -> u64 {
    (later & !1).wrapping_sub(earlier & !1) >> 1
}

impl TokenBucket {
    /// Waits for the turn to lower the position at `now`: one at a time, so that each counts those before it.
    pub(super) fn giver(&self, now: Instant) -> (MutexGuard<'_, Writer>, Params) {
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
    fn to_give_back(&self, writer: &Writer, ticket: &BucketTicket, params: &Params, now: Instant) -> u64 {
        let taken = Word(ticket.word);
        // Relaxed: written under the lock that we hold.
        let given = self.given.load(Ordering::Relaxed);
        let version = Word(self.word.load(Ordering::Relaxed)).version();
        if taken.version() == version {
            let floor = params.axis_at(now) - params.burst;
            let room = taken.position().saturating_sub(floor);
            // Where nothing is refilled nothing has overflowed, whatever others have given back in this round of versions.
            if params.mul == 0 && given_between(ticket.given, given) < ROUND {
                return room;
            }
            // What newer ones gave back had been on top of this one.
            let newer = ticket
                .gross_position()
                .map_or(0, |position| writer.given.by_newer_than(position));
            let lowered = given_between(ticket.given, given).saturating_sub(newer);
            return room.saturating_sub(lowered);
        }
        let Some(past) = writer.since(ticket, version) else {
            return 0;
        };
        let lowered = past.lowered + fine(given_between(past.given, given), params);
        let now_room = past.position - fine(params.axis_at(now), params) + fine(params.burst, params);
        let room = (now_room.min(past.least_room) - lowered).max(0) >> (FINE - params.scale);
        u64::try_from(room).unwrap_or(u64::MAX)
    }

    /// Moves the position to where `change` says, which is given the word that is there, and counts what that gives back.
    /// Starts at `word`, and under the giver's lock, so that the tag stays. Returns the units given back.
    fn shift_position(&self, mut word: Word, change: impl Fn(Word) -> u64) -> u64 {
        // Relaxed: written under the lock that we hold. Published by the exchange below.
        let given = self.given.load(Ordering::Relaxed);
        self.given.store(given | 1, Ordering::Relaxed);
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
        self.given.store(given.wrapping_add(2 * units), Ordering::Release);
        units
    }

    /// Gives back `tokens` of a reservation, as far as they may be: all of them when it is cancelled, the overcharge when it is
    /// settled.
    #[cold]
    pub(super) fn give_back(&self, ticket: &BucketTicket, tokens: u64, reading: &ClockReading) {
        loop {
            let mut writer = self.writer.lock();
            let (word, params) = self.read();
            let wanted = params.units(tokens);
            if self.take_back(&mut writer, ticket, wanted, word) {
                return;
            }
            let seen = self.seen(word, reading);
            if !params.lives(seen.now) {
                drop(writer);
                self.start_anew(seen.now);
                continue;
            }
            let booked = Booked::new(*ticket, writer.era, word.version());
            writer.ahead.pass(seen.now.ticks());
            // What is settled to less is still promised its instant.
            if writer.ahead.is_empty() || tokens < ticket.tokens {
                return self.let_back(&mut writer, booked, wanted.into(), &params, seen);
            }
            for (booked, units) in writer.ahead.give_up(booked, wanted.into()) {
                let (word, _) = self.read();
                self.let_back(&mut writer, booked, units, &params, self.seen(word, reading));
            }
            return;
        }
    }

    /// A word that has been read, with an instant that no one who has taken until then was ahead of.
    fn seen(&self, word: Word, reading: &ClockReading) -> Seen {
        let now = reading.latest(&self.clock);
        Seen { word, now }
    }

    /// Gives back all `units` of a reservation that is the last that was taken or given back: then nothing has overflowed
    /// since that was seen, whatever the clock says. False, with nothing done, when it is not.
    #[inline]
    fn take_back(&self, writer: &mut Writer, ticket: &BucketTicket, units: u64, word: Word) -> bool {
        // Relaxed: written under the lock that we hold. So it is even, and the order of what was taken is known.
        let as_it_was = word.0 == ticket.word && self.given.load(Ordering::Relaxed) == ticket.given;
        if !as_it_was || !writer.ahead.is_empty() || !writer.given.has_room() {
            return false;
        }
        writer.given.make_room();
        let lower = |seen: Word| {
            let units = if seen == word { units } else { 0 };
            seen.position().saturating_sub(units)
        };
        let back = self.shift_position(word, lower);
        remember(writer, ticket, word, back);
        back > 0 || units == 0
    }

    /// Gives back as much of `wanted` units as may be.
    fn let_back(&self, writer: &mut Writer, booked: Booked, wanted: u128, params: &Params, seen: Seen) {
        let most = self.to_give_back(writer, &booked.ticket, params, seen.now);
        let units = writer.ahead.let_back(booked, wanted.min(most.into())) as u64;
        let units = if seeded!("bucket_cancel_keeps") { 0 } else { units };
        self.forget_spent(writer, params, seen.now);
        let units = self.shift_position(seen.word, |word| {
            let overtaken = word != seen.word && !seeded!("bucket_cancels_by_an_old_reading");
            let still = if overtaken {
                self.still_to_give_back(writer, &booked.ticket, params, seen)
            } else {
                u64::MAX
            };
            word.position().saturating_sub(units.min(still))
        });
        remember(writer, &booked.ticket, seen.word, units);
    }

    /// How much may be given back now that somebody has moved the word since: who took may have found the bucket full.
    #[cold]
    fn still_to_give_back(&self, writer: &Writer, ticket: &BucketTicket, params: &Params, seen: Seen) -> u64 {
        let now = self.clock.now().max(seen.now);
        self.to_give_back(writer, ticket, params, now)
    }

    /// Forgets who gave back before all who have room left to give back.
    fn forget_spent(&self, writer: &mut Writer, params: &Params, now: Instant) {
        // Here, so that it is once in the life of a bucket, and of those alone that give back.
        writer.given.make_room();
        // Whoever has room left had it above this when all was taken, and nothing had been given.
        let floor = params.axis_at(now) - params.burst;
        // Relaxed: written under the lock that we hold.
        let given = self.given.load(Ordering::Relaxed) >> 1;
        writer.given.forget_spent(floor.wrapping_add(given));
    }

    /// Takes `more` for a reservation, into debt if need be, and returns its ticket: what may still come back of it by now,
    /// and what was taken. The debt is cut, and what is cut off is not charged.
    ///
    /// What may come back lies below others that have taken since. It has no place in the order of reservations any more: as
    /// if all who give back later had been before it.
    #[cold]
    pub(super) fn take_more(&self, ticket: &BucketTicket, more: u64, reading: &ClockReading) -> BucketTicket {
        loop {
            let writer = self.writer.lock();
            let (word, params) = self.read();
            let now = self.seen(word, reading).now;
            if !params.lives(now) {
                drop(writer);
                self.start_anew(now);
                continue;
            }
            let kept = self.to_give_back(&writer, ticket, &params, now);
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
                given: self.given.load(Ordering::Relaxed) | 1,
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
        writer.given.add(position, units);
    }
}
