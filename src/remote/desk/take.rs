//! What is taken and given back on the spot.

use super::{Away, Desk, RemoteTicket, SHARED, UNCOUNTED};
use crate::core::refusal::Reason;
use crate::remote::plan::MAX_UNITS;
use crate::time::Instant;
use std::collections::btree_map;

impl Desk {
    /// Takes `n` now, or says why not.
    pub(in crate::remote) fn take(&mut self, n: u64, now: Instant) -> Result<RemoteTicket, Reason> {
        if self.is_copy(now) || self.closed {
            return Err(Reason::Closed);
        }
        self.drop_stale(now);
        if n == 0 || self.line.is_empty() && n <= self.free(now) {
            let ticket = self.take_free(n, now);
            if self.wishes.is_empty() && self.free(now) < self.low_water() {
                self.poke();
            }
            return Ok(ticket);
        }
        if self.is_oversized(n, now) {
            return Err(Reason::Oversized);
        }
        if self.away && self.waiting() == 0 {
            return self.take_while_away(n, now);
        }
        Err(if self.plan.spends() {
            Reason::RateExceeded
        } else {
            Reason::Saturated
        })
    }

    /// Takes `n` of what is free.
    pub(super) fn take_free(&mut self, n: u64, now: Instant) -> RemoteTicket {
        self.tally.granted += 1;
        if self.plan.spends() {
            // What comes back of it lives no longer than it would have.
            let until = self.credit.front().map_or(Instant::ZERO, |(until, _)| *until);
            let missing = self.begin_missing(n, now);
            self.spend(n);
            return RemoteTicket {
                units: n,
                term: self.term,
                token: missing,
                order: until.ticks(),
            };
        }
        self.in_use += n;
        self.least_free = self.least_free.min(self.held - self.in_use);
        self.order += 1;
        if n > 0 {
            *self.abroad.entry(self.token).or_default() += n;
        }
        RemoteTicket {
            units: n,
            term: self.term,
            token: self.token,
            order: self.order - 1,
        }
    }

    fn spend(&mut self, n: u64) {
        self.spent += n;
        self.draw(n);
    }

    /// Takes so many tokens off those at hand, first those that are dropped first.
    pub(super) fn draw(&mut self, mut n: u64) {
        while n > 0
            && let Some((_, units)) = self.credit.front_mut()
        {
            let part = n.min(*units);
            *units -= part;
            self.credit_total -= part;
            n -= part;
            if *units == 0 {
                self.credit.pop_front();
            }
        }
    }

    /// What is done for `n` while the store is away.
    pub(super) fn take_while_away(&mut self, n: u64, now: Instant) -> Result<RemoteTicket, Reason> {
        let (token, order) = (self.token, self.order);
        let ticket = |term| RemoteTicket {
            units: n,
            term,
            token,
            order,
        };
        match self.plan.away {
            Away::Reject => Err(Reason::Unavailable),
            Away::Admit => {
                self.tally.uncounted += 1;
                Ok(ticket(UNCOUNTED))
            }
            Away::Share { of } => {
                let parts = n.saturating_mul(of.max(1));
                let fits = if self.plan.spends() {
                    self.share.advance(self.micros(now));
                    self.share.fits(parts)
                } else {
                    self.share_in_use.saturating_add(n).saturating_mul(of.max(1)) <= self.limit()
                };
                if !fits {
                    let reason = if self.plan.spends() {
                        Reason::RateExceeded
                    } else {
                        Reason::Saturated
                    };
                    return Err(reason);
                }
                if self.plan.spends() {
                    self.share.take(parts);
                } else {
                    self.share_in_use += n;
                }
                self.tally.uncounted += 1;
                Ok(ticket(SHARED))
            }
        }
    }

    /// What was taken comes back: the work has ended, or does not start.
    pub(in crate::remote) fn put_back(&mut self, ticket: RemoteTicket, cancelled: bool, now: Instant) {
        if ticket.term == SHARED && !self.plan.spends() {
            self.share_in_use -= ticket.units;
            self.serve(now);
            return;
        }
        if ticket.term != self.term || ticket.units == 0 {
            return;
        }
        if self.plan.spends() {
            if cancelled {
                self.put_back_tokens(ticket.units, &ticket, now);
            }
            return;
        }
        self.in_use -= ticket.units;
        if let btree_map::Entry::Occupied(mut used) = self.abroad.entry(ticket.token) {
            *used.get_mut() -= ticket.units;
            // That of the last grant stays, since it is used again.
            if *used.get() == 0 && ticket.token != self.token {
                used.remove();
            }
        }
        if self.plan.blocks.is_none() {
            self.give_back(ticket.units);
            return;
        }
        self.serve(now);
        if self.recall.is_some() {
            self.poke();
        }
    }

    /// Tokens are at hand again, as far as they are still missing, up to a block, and as long as they would have been.
    pub(super) fn put_back_tokens(&mut self, units: u64, ticket: &RemoteTicket, now: Instant) {
        self.drop_stale(now);
        self.note_missing(now);
        let (missing, until) = self.still_missing(units, ticket, now);
        let missing = if seeded!("remote_mints_by_cancelling") {
            units
        } else {
            missing
        };
        self.spent = self.spent.saturating_sub(units);
        // A ticket that was settled says what is left of it.
        let own = ticket.units.max(units);
        let most = self.plan.blocks.map_or(own, |blocks| blocks.most.max(own));
        let units = missing.min(most.saturating_sub(self.credit_total));
        if until > now && units > 0 {
            self.lows.lower(ticket.token, units);
            self.add_credit(units, until);
            self.serve(now);
        }
    }

    /// Tokens that are granted and may not be used yet.
    pub(super) fn coming(&self) -> u64 {
        self.coming.iter().map(|(_, units)| units).sum()
    }

    /// Tokens are at hand until then.
    pub(super) fn add_credit(&mut self, units: u64, until: Instant) {
        let at = self.credit.partition_point(|(other, _)| *other <= until);
        self.credit.insert(at, (until, units));
        self.credit_total += units;
    }

    /// Corrects a charge of tokens: to no more than can be asked for.
    pub(in crate::remote) fn settle(&mut self, ticket: &mut RemoteTicket, actual: u64, now: Instant) {
        let actual = actual.min(MAX_UNITS);
        let charged = std::mem::replace(&mut ticket.units, actual);
        if ticket.term == UNCOUNTED || ticket.term == SHARED {
            return;
        }
        if actual < charged {
            return self.put_back_tokens(charged - actual, ticket, now);
        }
        let more = actual - charged;
        self.drop_stale(now);
        let part = more.min(self.free(now));
        self.note_missing(now);
        self.spend(part);
        if more > part {
            self.debt = self.debt.saturating_add(more - part);
            self.poke();
        }
    }

    /// Gives `n` units that are not in use back to the store.
    pub(super) fn give_back(&mut self, n: u64) {
        if let Some(live) = &mut self.live
            && n > 0
        {
            live.returned += n;
            self.held -= n;
            self.least_free = self.least_free.min(self.held - self.in_use);
            self.poke();
        }
    }

    pub(super) fn micros(&self, now: Instant) -> u64 {
        let since = self.clock.between(Instant::ZERO, now);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}
