//! Giving back: what a cancel or a settlement lowers the position by. One at a time, under the writer's lock, so that each
//! counts those before it.

use super::book::Booked;
use super::change::{FINE, Writer, fine};
use super::params::Params;
use super::word::Word;
use super::{BucketTicket, TokenBucket};
use crate::sync::shim::MutexGuard;
use crate::sync::shim::atomic::Ordering;
use crate::time::Instant;

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
            if params.ticks(now) <= params.life {
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

    /// Moves the position by `change`, and counts what that gives back on behalf of `ticket`. Under the giver's lock, so
    /// that the tag stays.
    fn shift_position(
        &self,
        writer: &mut Writer,
        ticket: &BucketTicket,
        change: impl Fn(u64) -> u64,
        params: &Params,
        now: Instant,
    ) {
        // Here, so that it is once in the life of a bucket, and of those alone that give back.
        writer.given.make_room();
        // Relaxed: written under the lock that we hold. Published by the exchange below.
        let given = self.given.load(Ordering::Relaxed);
        self.given.store(given | 1, Ordering::Relaxed);
        let mut word = Word(self.word.load(Ordering::Relaxed));
        let units = loop {
            let shifted = word.at(change(word.position()));
            // Release: a reservation that is made on the lowered position sees that something is being given back.
            // Pairs with the exchange in `take`.
            match self
                .word
                .compare_exchange_weak(word.0, shifted.0, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => break word.position().saturating_sub(shifted.position()),
                Err(seen) => word = Word(seen),
            }
        };
        let given = given.wrapping_add(2 * units);
        // Release: whoever reads this count sees the lowered position. Pairs with `try_reserve`.
        self.given.store(given, Ordering::Release);
        if let Some(position) = ticket.gross_position()
            && Word(ticket.word).version() == word.version()
            && units > 0
        {
            writer.given.add(position, units);
            // Whoever has room left to give back had it above this when all was taken, and nothing had been given.
            let floor = params.axis_at(now) - params.burst;
            writer.given.forget_spent(floor.wrapping_add(given >> 1));
        }
    }

    #[cold]
    pub(super) fn give_back(&self, ticket: &BucketTicket, now: Instant) {
        let (mut writer, params) = self.giver(now);
        // Relaxed: the version changes only under the lock that we hold.
        let version = Word(self.word.load(Ordering::Relaxed)).version();
        let booked = Booked::new(*ticket, writer.era, version);
        writer.ahead.pass(now.ticks());
        let wanted = params.units(ticket.tokens).into();
        if writer.ahead.is_empty() {
            return self.let_back(&mut writer, booked, wanted, &params, now);
        }
        for (booked, units) in writer.ahead.give_up(booked, wanted) {
            self.let_back(&mut writer, booked, units, &params, now);
        }
    }

    /// Gives back as much of `wanted` units as may be.
    fn let_back(&self, writer: &mut Writer, booked: Booked, wanted: u128, params: &Params, now: Instant) {
        let most = self.to_give_back(writer, &booked.ticket, params, now);
        let units = writer.ahead.let_back(booked, wanted.min(most.into())) as u64;
        let units = if seeded!("bucket_cancel_keeps") { 0 } else { units };
        let lower = |position: u64| position.saturating_sub(units);
        self.shift_position(writer, &booked.ticket, lower, params, now);
    }

    /// Corrects a charge to `actual`.
    #[cold]
    pub(super) fn correct(&self, ticket: &BucketTicket, actual: u64, now: Instant) {
        let (mut writer, params) = self.giver(now);
        let floor = params.axis_at(now) - params.burst;
        // Relaxed: the version changes only under the lock that we hold.
        let version = Word(self.word.load(Ordering::Relaxed)).version();
        // What a reset has forgiven is not given back as well.
        let counts = Word(ticket.word).version() == version || writer.since(ticket, version).is_some();
        let back = if counts {
            params.units(ticket.tokens.saturating_sub(actual))
        } else {
            0
        };
        writer.ahead.pass(now.ticks());
        let booked = Booked::new(*ticket, writer.era, version);
        let back = writer.ahead.allow(&booked, back.into()) as u64;
        let more = params.units(actual.saturating_sub(ticket.tokens));
        let shift = |position: u64| {
            let base = position.max(floor);
            base.saturating_add(more).saturating_sub(back).max(floor)
        };
        self.shift_position(&mut writer, ticket, shift, &params, now);
    }
}
