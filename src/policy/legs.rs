//! Any number of legs of any types, all-or-nothing: the form that a builder or a file makes.

use super::boxed::Erased;
use super::whole::{LongTickets, Whole};
use crate::core::ask::Demand;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
use crate::core::ticket::{BoxTicket, Ticket};
use crate::sync::notify::together_quietly;
use crate::sync::wait_queue::{QueueId, WaitQueue};
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::ops::Range;

/// The legs of a policy, asked in order. Their tickets share one inline buffer of [`BoxTicket::WORDS_INLINE`] words: no
/// admission allocates. The words of longer policies stand in buffers that are used again, behind a lock.
pub struct Legs {
    legs: Vec<Leg>,
    callbacks: Callbacks,
    /// A leg behind the first may roll back what it has taken itself.
    nested: bool,
    long: Option<Box<LongTickets>>,
}

pub(super) struct Leg {
    limiter: Box<dyn Erased>,
    words: Range<usize>,
    callbacks: Callbacks,
}

impl Legs {
    pub(super) fn empty() -> Self {
        Self {
            legs: Vec::new(),
            callbacks: Callbacks::NONE,
            nested: false,
            long: None,
        }
    }

    pub(super) fn push<L: Limiter + 'static>(&mut self, limiter: L) {
        let start = self.words();
        let end = start + L::Ticket::WORDS;
        self.nested |= !self.is_empty() && limiter.callbacks().roll_back;
        self.callbacks = self.callbacks.and(limiter.callbacks());
        self.legs.push(Leg {
            callbacks: limiter.callbacks(),
            limiter: Box::new(limiter),
            words: start..end,
        });
        self.long = LongTickets::unless_fits(end, BoxTicket::WORDS_INLINE);
    }

    /// How many words a ticket of all legs takes.
    fn words(&self) -> usize {
        self.legs.last().map_or(0, |leg| leg.words.end)
    }

    /// How many legs there are.
    pub fn len(&self) -> usize {
        self.legs.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.legs.is_empty()
    }

    /// The legs, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &dyn Erased> {
        self.legs.iter().map(|leg| &*leg.limiter)
    }

    /// The first leg that has a queue in which an earlier one, or itself, stands already. A queue that hands nothing over may
    /// stand in several: its turn is one for all of them.
    pub(super) fn doubled(&self) -> Option<usize> {
        let mut known = Vec::new();
        self.legs.iter().position(|leg| {
            let mut doubled = false;
            leg.limiter.queues(&mut |queue| {
                if queue.holds_nothing() {
                    return;
                }
                let id = QueueId::of_queue(queue);
                doubled |= known.contains(&id);
                known.push(id);
            });
            doubled
        })
    }

    #[inline(always)]
    fn reserve_words(&self, demand: Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'_>> {
        let mut reserved = match &self.long {
            None if self.nested => self.reserve_nested(demand, ticket.words_mut()),
            None => self.reserve_all(demand, ticket.words_mut()),
            Some(long) => long.fill(ticket.words_mut(), |words| self.reserve_nested(demand, words)),
        };
        if let Err(refusal) = &mut reserved {
            refusal.among(self, demand);
        }
        reserved
    }

    #[inline(never)]
    fn reserve_nested(&self, demand: Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'_>> {
        together_quietly(|| self.reserve_all(demand, words))
    }

    /// The first leg that decides by another clock than `clock`.
    pub(super) fn off(&self, clock: &Clock) -> Option<usize> {
        self.legs.iter().position(|leg| {
            let mut off = false;
            leg.limiter.clocks(&mut |other| off |= !other.is_same(clock));
            off
        })
    }
}

impl Whole for Legs {
    type Leg = Leg;

    #[inline(always)]
    fn legs(&self) -> &[Leg] {
        &self.legs
    }
    #[inline(always)]
    fn reserve_leg<'a>(&'a self, leg: &'a Leg, demand: Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
        leg.limiter.try_reserve(demand, &mut words[leg.words.clone()])
    }
    #[inline]
    fn cancel_leg(&self, leg: &Leg, words: &[u64], now: &ClockReading) {
        leg.limiter.cancel(&words[leg.words.clone()], now);
    }
    #[inline(always)]
    fn commit_leg(&self, leg: &Leg, words: &mut [u64], now: &ClockReading) {
        if leg.callbacks.commit {
            leg.limiter.commit(&mut words[leg.words.clone()], now);
        }
    }
    fn settle_leg(&self, leg: &Leg, words: &mut [u64], actual: Settlement<'_>) -> u32 {
        leg.limiter.settle(&mut words[leg.words.clone()], actual)
    }
    #[inline(always)]
    fn finish_leg(&self, leg: &Leg, words: &[u64], outcome: Outcome, now: &ClockReading) {
        if leg.callbacks.finish {
            leg.limiter.finish(&words[leg.words.clone()], outcome, now);
        }
    }
    fn forget_leg(&self, leg: &Leg, words: &[u64]) {
        leg.limiter.forget(&words[leg.words.clone()]);
    }
}

impl Limiter for Legs {
    type Ticket = BoxTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<BoxTicket, Refusal<'_>> {
        let mut ticket = BoxTicket::EMPTY;
        self.reserve_words(demand, &mut ticket)?;
        Ok(ticket)
    }

    #[inline(always)]
    fn reserve_in(&self, demand: Demand<'_>, place: &mut Option<BoxTicket>) -> Result<(), Refusal<'_>> {
        let mut place = BoxTicket::begin(place);
        self.reserve_words(demand, place.ticket())?;
        place.keep();
        Ok(())
    }

    #[inline(always)]
    fn finish_in(&self, ticket: &BoxTicket, outcome: Outcome, now: &ClockReading) {
        match &self.long {
            None => self.finish_all(ticket.words(), outcome, now),
            Some(long) => long.end(ticket.words(), |words| self.finish_all(words, outcome, now)),
        }
    }

    fn cancel(&self, ticket: BoxTicket, now: &ClockReading) {
        match &self.long {
            None => self.cancel_all(ticket.words(), now),
            Some(long) => long.end(ticket.words(), |words| self.cancel_all(words, now)),
        }
    }

    #[inline(always)]
    fn commit(&self, ticket: &mut BoxTicket, now: &ClockReading) {
        match &self.long {
            _ if !self.callbacks.commit => {}
            None => self.commit_all(ticket.words_mut(), now),
            Some(long) => long.change(ticket.words(), |words| self.commit_all(words, now)),
        }
    }

    fn settle(&self, ticket: &mut BoxTicket, actual: Settlement<'_>) -> u32 {
        match &self.long {
            None => self.settle_all(ticket.words_mut(), actual),
            Some(long) => long.change(ticket.words(), |words| self.settle_all(words, actual)),
        }
    }

    fn finish(&self, ticket: BoxTicket, outcome: Outcome, now: &ClockReading) {
        self.finish_in(&ticket, outcome, now);
    }

    fn forget(&self, ticket: BoxTicket) {
        match &self.long {
            None => self.forget_all(ticket.words()),
            Some(long) => long.end(ticket.words(), |words| self.forget_all(words)),
        }
    }

    fn callbacks(&self) -> Callbacks {
        self.callbacks
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.legs
            .iter()
            .map(|leg| leg.limiter.ready_at(demand))
            .fold(ReadyAt::NOW, ReadyAt::and)
    }

    fn clock(&self) -> Option<&Clock> {
        self.legs.iter().find_map(|leg| leg.limiter.clock())
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.legs.iter().for_each(|leg| leg.limiter.queues(visit));
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        self.legs.iter().for_each(|leg| leg.limiter.clocks(visit));
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        self.legs.iter().for_each(|leg| leg.limiter.visit_status(visit));
    }

    fn is_pristine(&self, now: &ClockReading) -> bool {
        self.legs.iter().all(|leg| leg.limiter.is_pristine(now))
    }
}

impl fmt::Debug for Legs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Legs").field("len", &self.len()).finish()
    }
}
