//! Any number of legs of any types, all-or-nothing: the form that a builder or a file makes.

use super::boxed::Erased;
use crate::ask::Demand;
use crate::limiter::{Heeds, Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::standing::Standing;
use crate::sync::turn::{Turnstile, TurnstileId};
use crate::ticket::{BoxTicket, Ticket};
use crate::time::{Clock, Pass};
use std::fmt;
use std::ops::Range;

/// The legs of a policy, asked in order. Their tickets share one inline buffer: no admission allocates.
pub struct Legs(Vec<Leg>);

struct Leg {
    limiter: Box<dyn Erased>,
    words: Range<usize>,
    heeds: Heeds,
}

impl Legs {
    pub(super) fn empty() -> Self {
        Self(Vec::new())
    }

    pub(super) fn push<L: Limiter + 'static>(&mut self, limiter: L) {
        let start = self.words();
        self.0.push(Leg {
            heeds: limiter.heeds(),
            limiter: Box::new(limiter),
            words: start..start + L::Ticket::WORDS,
        });
    }

    /// How many words a ticket of all legs takes.
    pub(super) fn words(&self) -> usize {
        self.0.last().map_or(0, |leg| leg.words.end)
    }

    /// How many legs there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The legs, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &dyn Erased> {
        self.0.iter().map(|leg| &*leg.limiter)
    }

    /// The first leg that has a queue in which an earlier one, or itself, stands already.
    pub(super) fn doubled(&self) -> Option<usize> {
        let mut known = Vec::new();
        self.0.iter().position(|leg| {
            let mut doubled = false;
            leg.limiter.turnstiles(&mut |id| {
                doubled |= known.contains(&id);
                known.push(id);
            });
            doubled
        })
    }

    /// Takes from each leg, into its part of `ticket`, or from none.
    #[inline]
    fn reserve_all(&self, demand: Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'_>> {
        let mut held = Held {
            legs: &self.0,
            taken: 0,
            ticket,
            pass: demand.pass(),
        };
        for leg in &self.0 {
            let words = &mut held.ticket.words_mut()[leg.words.clone()];
            leg.limiter.try_reserve(demand, words)?;
            held.taken += 1;
        }
        std::mem::forget(held);
        Ok(())
    }

    /// The clocks that legs decide by, with their positions.
    pub(super) fn clocks(&self) -> impl Iterator<Item = (usize, &Clock)> {
        self.0
            .iter()
            .enumerate()
            .filter_map(|(position, leg)| Some((position, leg.limiter.clock()?)))
    }
}

/// What the first legs have given: given back in reverse order unless forgotten, also on a panic.
struct Held<'a> {
    legs: &'a [Leg],
    taken: usize,
    ticket: &'a mut BoxTicket,
    pass: Pass<'a>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for leg in self.legs[..self.taken].iter().rev() {
            leg.limiter.cancel(&self.ticket.words()[leg.words.clone()], self.pass);
        }
    }
}

impl Limiter for Legs {
    type Ticket = BoxTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<BoxTicket, Refusal<'_>> {
        let mut ticket = BoxTicket::EMPTY;
        self.reserve_all(demand, &mut ticket)?;
        Ok(ticket)
    }

    #[inline(always)]
    fn reserve_in(&self, demand: Demand<'_>, place: &mut Option<BoxTicket>) -> Result<(), Refusal<'_>> {
        BoxTicket::fill(place, |ticket| self.reserve_all(demand, ticket))
    }

    #[inline(always)]
    fn finish_in(&self, ticket: &BoxTicket, outcome: Outcome, now: Pass<'_>) {
        for leg in self.0.iter().rev().filter(|leg| leg.heeds.finish) {
            leg.limiter.finish(&ticket.words()[leg.words.clone()], outcome, now);
        }
    }

    fn cancel(&self, ticket: BoxTicket, now: Pass<'_>) {
        for leg in self.0.iter().rev() {
            leg.limiter.cancel(&ticket.words()[leg.words.clone()], now);
        }
    }

    #[inline(always)]
    fn commit(&self, ticket: &mut BoxTicket, now: Pass<'_>) {
        for leg in self.0.iter().filter(|leg| leg.heeds.commit) {
            leg.limiter.commit(&mut ticket.words_mut()[leg.words.clone()], now);
        }
    }

    fn settle(&self, ticket: &mut BoxTicket, actual: Settlement<'_>) -> u32 {
        self.0
            .iter()
            .map(|leg| leg.limiter.settle(&mut ticket.words_mut()[leg.words.clone()], actual))
            .sum()
    }

    fn finish(&self, ticket: BoxTicket, outcome: Outcome, now: Pass<'_>) {
        self.finish_in(&ticket, outcome, now);
    }

    fn forget(&self, ticket: BoxTicket) {
        for leg in self.0.iter().rev() {
            leg.limiter.forget(&ticket.words()[leg.words.clone()]);
        }
    }

    fn heeds(&self) -> Heeds {
        self.0.iter().fold(Heeds::NONE, |all, leg| all.or(leg.heeds))
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.0
            .iter()
            .map(|leg| leg.limiter.ready_at(demand))
            .fold(ReadyAt::NOW, ReadyAt::and)
    }

    fn clock(&self) -> Option<&Clock> {
        self.clocks().next().map(|(_, clock)| clock)
    }

    fn turnstile(&self, id: TurnstileId) -> Option<&dyn Turnstile> {
        self.0.iter().find_map(|leg| leg.limiter.turnstile(id))
    }

    fn turnstiles(&self, visit: &mut dyn FnMut(TurnstileId)) {
        self.0.iter().for_each(|leg| leg.limiter.turnstiles(visit));
    }

    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        self.0.iter().for_each(|leg| leg.limiter.survey(visit));
    }

    fn is_fresh(&self, now: Pass<'_>) -> bool {
        self.0.iter().all(|leg| leg.limiter.is_fresh(now))
    }
}

impl fmt::Debug for Legs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Legs").field("len", &self.len()).finish()
    }
}
