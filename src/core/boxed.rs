//! Any limiter behind one type, without an allocation per admission: its ticket's words travel in a fixed buffer.

use super::all_or_nothing::LongTickets;
use crate::core::ask::Demand;
use crate::core::decision::LegDecision;
use crate::core::delegate::delegate;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
use crate::core::ticket::{BoxTicket, Ticket};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};
use std::fmt;

/// The object-safe form of a limiter: tickets go through a slice of words.
pub(crate) trait Erased: Send + Sync {
    /// The demand goes by reference: a copy, in wide parts of what was written in narrow ones, would wait for the writes.
    fn try_reserve<'a>(&'a self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>>;
    fn cancel(&self, words: &[u64], now: &ClockReading);
    fn commit(&self, words: &mut [u64], now: &ClockReading);
    fn settle(&self, words: &mut [u64], actual: Settlement<'_>) -> u32;
    fn finish(&self, words: &[u64], outcome: Outcome, now: &ClockReading);
    fn forget(&self, words: &[u64]);
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_>;
    fn callbacks(&self) -> Callbacks;
    fn clock(&self) -> Option<&Clock>;
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue));
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock));
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>));
    fn is_pristine(&self, now: &ClockReading) -> bool;
    fn name(&self) -> Option<&str>;
    fn explain_legs(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision));
    fn visit_sources<'a>(&'a self, words: &[u64], visit: &mut dyn FnMut(&'a str));
}

impl<L: Limiter> Erased for L {
    fn try_reserve<'a>(&'a self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
        let mut place = None;
        self.reserve_in(*demand, &mut place)?;
        if let Some(ticket) = place {
            ticket.write(words);
        }
        Ok(())
    }
    fn cancel(&self, words: &[u64], now: &ClockReading) {
        Limiter::cancel(self, L::Ticket::read(words), now);
    }
    fn commit(&self, words: &mut [u64], now: &ClockReading) {
        Limiter::commit(self, &mut Changed::of(words).ticket, now);
    }
    fn settle(&self, words: &mut [u64], actual: Settlement<'_>) -> u32 {
        Limiter::settle(self, &mut Changed::of(words).ticket, actual)
    }
    fn finish(&self, words: &[u64], outcome: Outcome, now: &ClockReading) {
        Limiter::finish(self, L::Ticket::read(words), outcome, now);
    }
    fn forget(&self, words: &[u64]) {
        Limiter::forget(self, L::Ticket::read(words));
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        Limiter::ready_at(self, demand)
    }
    fn callbacks(&self) -> Callbacks {
        Limiter::callbacks(self)
    }
    fn clock(&self) -> Option<&Clock> {
        Limiter::clock(self)
    }
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        Limiter::queues(self, visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        Limiter::clocks(self, visit);
    }
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        Limiter::visit_status(self, visit);
    }
    fn is_pristine(&self, now: &ClockReading) -> bool {
        Limiter::is_pristine(self, now)
    }
    fn name(&self) -> Option<&str> {
        Limiter::name(self)
    }
    fn explain_legs(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
        Limiter::explain_legs(self, demand, visit);
    }
    fn visit_sources<'a>(&'a self, words: &[u64], visit: &mut dyn FnMut(&'a str)) {
        Limiter::visit_sources(self, &L::Ticket::read(words), visit);
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
///
/// ```
/// # use tollgate::{BoxLimiter, LimiterExt, Quota, Semaphore, TokenBucket};
/// let limiters: Vec<BoxLimiter> =
///     vec![Semaphore::new(2).boxed(), TokenBucket::new(Quota::per_second(5)).boxed()];
/// assert!(limiters.iter().all(|limiter| limiter.try_admit(1).is_ok()));
/// ```
pub struct BoxLimiter {
    pub(super) limiter: Box<dyn Erased>,
    pub(super) callbacks: Callbacks,
    /// The words of a ticket of the limiter.
    pub(super) words: usize,
    long: Option<Box<LongTickets>>,
}

impl BoxLimiter {
    /// Boxes `limiter`.
    pub fn new<L: Limiter + 'static>(limiter: L) -> Self {
        Self {
            callbacks: limiter.callbacks(),
            limiter: Box::new(limiter),
            words: L::Ticket::WORDS,
            long: LongTickets::unless_fits(L::Ticket::WORDS, BoxTicket::WORDS_INLINE),
        }
    }
}

impl BoxLimiter {
    #[inline(always)]
    fn reserve_words(&self, demand: Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'_>> {
        match &self.long {
            None => self.limiter.try_reserve(&demand, ticket.words_mut()),
            Some(long) => long.fill(ticket.words_mut(), |words| self.limiter.try_reserve(&demand, words)),
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
    fn cancel(&self, ticket: BoxTicket, now: &ClockReading) {
        match &self.long {
            None => self.limiter.cancel(ticket.words(), now),
            Some(long) => long.end(ticket.words(), |words| self.limiter.cancel(words, now)),
        }
    }
    #[inline(always)]
    fn commit(&self, ticket: &mut BoxTicket, now: &ClockReading) {
        match &self.long {
            _ if !self.callbacks.commit => {}
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
    fn finish(&self, ticket: BoxTicket, outcome: Outcome, now: &ClockReading) {
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
    fn finish_in(&self, ticket: &BoxTicket, outcome: Outcome, now: &ClockReading) {
        match &self.long {
            // A long ticket's buffer comes back, whether the limiter acts on the end or not.
            Some(long) => long.end(ticket.words(), |words| self.limiter.finish(words, outcome, now)),
            None if self.callbacks.finish => self.limiter.finish(ticket.words(), outcome, now),
            None => {}
        }
    }
    fn forget(&self, ticket: BoxTicket) {
        match &self.long {
            None => self.limiter.forget(ticket.words()),
            Some(long) => long.end(ticket.words(), |words| self.limiter.forget(words)),
        }
    }
    fn callbacks(&self) -> Callbacks {
        self.callbacks
    }
    fn visit_sources<'a>(&'a self, ticket: &BoxTicket, visit: &mut dyn FnMut(&'a str)) {
        match &self.long {
            None => self.limiter.visit_sources(ticket.words(), visit),
            Some(long) => long.look(ticket.words(), |words| self.limiter.visit_sources(words, visit)),
        }
    }

    delegate!(self => self.limiter; ready_at name clock clocks queues visit_status explain_legs is_pristine);
}
