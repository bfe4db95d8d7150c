//! How much of a reservation of tokens may come back.
//!
//! What is at hand here and what lies at the store count as one bucket, which holds a block more than the store's. What was
//! taken out of it and is given up is no longer missing as soon as that bucket would have been full without it: what flows in
//! after that would have had nowhere to go. So no more comes back than has been missing from then on, all the time.
//!
//! Only the store knows how full its own is. It says so with each answer, and from then on it fills no faster than its rate:
//! that is the least that is missing. Of a window nobody knows what leaves it when: there nothing counts as missing but what is not
//! at hand, and without blocks nothing has come in that could be too much.

use super::{Desk, RemoteTicket};
use crate::rate::Quota;
use crate::remote::backend::{Reply, Rule};
use crate::time::Instant;
use std::time::Duration;

/// What is given up so soon after it came comes back whole where there are no blocks: the bound is exceeded by no more than comes
/// in this time.
const LATENESS: Duration = Duration::from_millis(10);

impl Desk {
    /// How much is missing, at least, before anything changes at `now`.
    pub(super) fn note_missing(&mut self, now: Instant) {
        if self.plan.spends() {
            let missing = self.missing(0, now);
            self.lows.note(missing);
        }
    }

    /// The same, and `n` that are at hand are to be taken. Returns the moment from which on they are missing.
    pub(super) fn begin_missing(&mut self, n: u64, now: Instant) -> u64 {
        let before = self.missing(0, now);
        self.lows.note(before);
        // As a rule the sum; less where more is at hand than can be missing.
        let after = if before > 0 { before + n } else { self.missing(n, now) };
        self.lows.begin(after)
    }

    /// The same once `n` more were taken.
    fn missing(&self, n: u64, now: Instant) -> u64 {
        let here = self.credit_total + self.coming();
        (self.most() + self.missing_there(now) + n).saturating_sub(here)
    }

    /// How much a process may have at hand.
    fn most(&self) -> u64 {
        self.plan.blocks.map_or(0, |blocks| blocks.most)
    }

    /// How many tokens the bucket of the store is short of, at least.
    fn missing_there(&self, now: Instant) -> u64 {
        let (tokens, since) = self.short;
        match self.plan.rule {
            Rule::Rate { quota } => {
                // Clocks run apart.
                let passed = self.clock.between(since, now).saturating_mul(101) / 100;
                tokens.saturating_sub(gained(&quota, passed))
            }
            _ => 0,
        }
    }

    /// What the store has said of itself, asked at `sent`.
    pub(super) fn note_short(&mut self, reply: &Reply, sent: Instant) {
        let (limit, used) = (reply.census.limit, reply.census.in_use.min(reply.census.limit));
        // A part of a token counts as one there.
        let known = (used.saturating_sub(1), sent);
        // What was asked for before, and is told again, may have been given some time ago.
        let once = |wish| self.wishes.get(&wish).is_some_and(|wished| wished.said == 1);
        let fresh = reply.grants.iter().filter(|grant| once(grant.wish));
        let given: u64 = fresh.map(|grant| grant.units).sum();
        self.short = match reply.again {
            // It may be fuller than it says: what was given, now or for later, is all that was there for certain.
            _ if reply.bound && !seeded!("remote_trusts_bounds") => (given.min(limit), sent),
            // What is given for later leaves nothing until then.
            Some(again) if given > 0 => (limit, self.clock.after(sent, again)),
            None if given > known.0 => (given.min(limit), sent),
            _ => known,
        };
    }

    /// What nothing is known of any more.
    pub(super) fn forget_short(&mut self, now: Instant) {
        self.short = (0, now);
        self.note_missing(now);
    }

    /// So much of `units` that were taken with `ticket` is still missing, and until when it may be used.
    pub(super) fn still_missing(&self, units: u64, ticket: &RemoteTicket, now: Instant) -> (u64, Instant) {
        let until = Instant::from_ticks(ticket.order);
        match (self.plan.rule, self.plan.blocks) {
            (Rule::Rate { quota }, None) => {
                // Whole tokens are all that can be given back here, and of a small bucket a part of one is soon there again.
                let arrived = self.clock.after(now, self.plan.expiry());
                let back = if arrived <= self.clock.after(until, LATENESS) {
                    units
                } else {
                    units.min(self.lows.since(ticket.token))
                };
                // Without a block of its own it must be spent before the store has as much again.
                let here = self.credit_total + self.coming() + back;
                let spare = (self.short.0 + 1).saturating_sub(here);
                let lasts = spending(&quota, spare).saturating_mul(100) / 101;
                (back, until.min(self.clock.after(self.short.1, lasts)))
            }
            (_, Some(_)) => (units.min(self.lows.since(ticket.token)), until),
            (_, None) => (units, until),
        }
    }
}

/// How many tokens come in this time, rounded up.
fn gained(quota: &Quota, passed: Duration) -> u64 {
    let parts = passed.as_nanos().saturating_mul(quota.count().into());
    u64::try_from(parts.div_ceil(quota.period().as_nanos())).unwrap_or(u64::MAX)
}

/// In what time so many come, rounded down.
fn spending(quota: &Quota, tokens: u64) -> Duration {
    let nanos = quota.period().as_nanos().saturating_mul(tokens.into()) / u128::from(quota.count());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
