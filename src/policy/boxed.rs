//! Any limiter behind one type, without an allocation per admission: its ticket's words travel in a fixed buffer.

use super::all_or_nothing::LongTickets;
use crate::ask::Demand;
use crate::limiter::{Heeds, Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::standing::Standing;
use crate::sync::turn::Turnstile;
use crate::ticket::{BoxTicket, Ticket};
use crate::time::{Clock, Pass};
use std::fmt;

/// The object-safe form of a limiter: tickets go through a slice of words.
pub(crate) trait Erased: Send + Sync {
    fn try_reserve(&self, demand: Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'_>>;
    fn cancel(&self, words: &[u64], now: Pass<'_>);
    fn commit(&self, words: &mut [u64], now: Pass<'_>);
    fn settle(&self, words: &mut [u64], actual: Settlement<'_>) -> u32;
    fn finish(&self, words: &[u64], outcome: Outcome, now: Pass<'_>);
    fn forget(&self, words: &[u64]);
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_>;
    fn clock(&self) -> Option<&Clock>;
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn Turnstile));
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock));
    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>));
    fn is_fresh(&self, now: Pass<'_>) -> bool;
    fn name(&self) -> Option<&str>;
}

impl<L: Limiter> Erased for L {
    fn try_reserve(&self, demand: Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'_>> {
        Limiter::try_reserve(self, demand).map(|ticket| ticket.write(words))
    }
    fn cancel(&self, words: &[u64], now: Pass<'_>) {
        Limiter::cancel(self, L::Ticket::read(words), now);
    }
    fn commit(&self, words: &mut [u64], now: Pass<'_>) {
        Limiter::commit(self, &mut Changed::of(words).ticket, now);
    }
    fn settle(&self, words: &mut [u64], actual: Settlement<'_>) -> u32 {
        Limiter::settle(self, &mut Changed::of(words).ticket, actual)
    }
    fn finish(&self, words: &[u64], outcome: Outcome, now: Pass<'_>) {
        Limiter::finish(self, L::Ticket::read(words), outcome, now);
    }
    fn forget(&self, words: &[u64]) {
        Limiter::forget(self, L::Ticket::read(words));
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        Limiter::ready_at(self, demand)
    }
    fn clock(&self) -> Option<&Clock> {
        Limiter::clock(self)
    }
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn Turnstile)) {
        Limiter::queues(self, visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        Limiter::clocks(self, visit);
    }
    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        Limiter::survey(self, visit);
    }
    fn is_fresh(&self, now: Pass<'_>) -> bool {
        Limiter::is_fresh(self, now)
    }
    fn name(&self) -> Option<&str> {
        Limiter::name(self)
    }
}

/// A ticket that may have changed: written back when this is dropped, also on a panic.
struct Changed<'a, T: Ticket> {
    ticket: T,
    words: &'a mut [u64],
}

impl<'a, T: Ticket> Changed<'a, T> {
    #[inline]
    fn of(words: &'a mut [u64]) -> Self {
        Self {
            ticket: T::read(words),
            words,
        }
    }
}

impl<T: Ticket> Drop for Changed<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.ticket.write(self.words);
    }
}

/// A limiter of any type behind a box.
///
/// A ticket of up to [`BoxTicket::WORDS_INLINE`] words needs no allocation. A longer one stands in a buffer that is used
/// again, behind a lock.
pub struct BoxLimiter {
    limiter: Box<dyn Erased>,
    heeds: Heeds,
    long: Option<Box<LongTickets>>,
}

impl BoxLimiter {
    /// Boxes `limiter`.
    pub fn new<L: Limiter + 'static>(limiter: L) -> Self {
        Self {
            heeds: limiter.heeds(),
            limiter: Box::new(limiter),
            long: LongTickets::unless_fits(L::Ticket::WORDS, BoxTicket::WORDS_INLINE),
        }
    }
}

impl BoxLimiter {
    #[inline(always)]
    fn reserve_words(&self, demand: Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'_>> {
        match &self.long {
            None => self.limiter.try_reserve(demand, ticket.words_mut()),
            Some(long) => long.fill(ticket.words_mut(), |words| self.limiter.try_reserve(demand, words)),
        }
    }
}

impl fmt::Debug for BoxLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxLimiter")
    }
}

impl Limiter for BoxLimiter {
    type Ticket = BoxTicket;
    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<BoxTicket, Refusal<'_>> {
        let mut ticket = BoxTicket::EMPTY;
        self.reserve_words(demand, &mut ticket)?;
        Ok(ticket)
    }
    fn cancel(&self, ticket: BoxTicket, now: Pass<'_>) {
        match &self.long {
            None => self.limiter.cancel(ticket.words(), now),
            Some(long) => long.end(ticket.words(), |words| self.limiter.cancel(words, now)),
        }
    }
    #[inline(always)]
    fn commit(&self, ticket: &mut BoxTicket, now: Pass<'_>) {
        match &self.long {
            _ if !self.heeds.commit => {}
            None => self.limiter.commit(ticket.words_mut(), now),
            Some(long) => long.change(ticket.words(), |words| self.limiter.commit(words, now)),
        }
    }
    fn settle(&self, ticket: &mut BoxTicket, actual: Settlement<'_>) -> u32 {
        match &self.long {
            None => self.limiter.settle(ticket.words_mut(), actual),
            Some(long) => long.change(ticket.words(), |words| self.limiter.settle(words, actual)),
        }
    }
    #[inline(always)]
    fn finish(&self, ticket: BoxTicket, outcome: Outcome, now: Pass<'_>) {
        self.finish_in(&ticket, outcome, now);
    }
    #[inline(always)]
    fn reserve_in(&self, demand: Demand<'_>, place: &mut Option<BoxTicket>) -> Result<(), Refusal<'_>> {
        let mut place = BoxTicket::begin(place);
        self.reserve_words(demand, place.ticket())?;
        place.keep();
        Ok(())
    }
    #[inline(always)]
    fn finish_in(&self, ticket: &BoxTicket, outcome: Outcome, now: Pass<'_>) {
        match &self.long {
            // A long ticket's buffer comes back, whether the limiter heeds the end or not.
            Some(long) => long.end(ticket.words(), |words| self.limiter.finish(words, outcome, now)),
            None if self.heeds.finish => self.limiter.finish(ticket.words(), outcome, now),
            None => {}
        }
    }
    fn forget(&self, ticket: BoxTicket) {
        match &self.long {
            None => self.limiter.forget(ticket.words()),
            Some(long) => long.end(ticket.words(), |words| self.limiter.forget(words)),
        }
    }
    fn heeds(&self) -> Heeds {
        self.heeds
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.limiter.ready_at(demand)
    }
    fn clock(&self) -> Option<&Clock> {
        self.limiter.clock()
    }
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn Turnstile)) {
        self.limiter.queues(visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        self.limiter.clocks(visit);
    }
    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        self.limiter.survey(visit);
    }
    fn is_fresh(&self, now: Pass<'_>) -> bool {
        self.limiter.is_fresh(now)
    }
}
