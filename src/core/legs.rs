//! Any number of legs of any types, all-or-nothing.

use super::all_or_nothing::{AllOrNothing, LongTickets};
use super::boxed::{BoxLimiter, Erased};
use crate::core::ask::Demand;
use crate::core::decision::LegDecision;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
use crate::core::ticket::BoxTicket;
use crate::sync::notify::together_quietly;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::ops::Range;

/// Limiters as one, all-or-nothing, asked in order. For legs whose number is known only while the program runs; a
/// [builder](crate::Policy::builder) makes faster ones of those that a program names. Without legs it admits everything.
///
/// The tickets share one inline buffer of [`BoxTicket::WORDS_INLINE`] words: no admission allocates. The words of longer tickets
/// stand in buffers that are used again, behind a lock.
///
/// ```
/// # use tollgate::{BoxLimiter, Legs, LimiterExt, Policy, Quota, Semaphore, TokenBucket};
/// let quotas = [Quota::per_second(10), Quota::per_hour(1_000)];
/// let legs: Legs = quotas.into_iter().map(|quota| TokenBucket::new(quota).boxed()).collect();
/// let policy = Policy::builder().limit(legs).limit(Semaphore::new(4)).build()?;
/// assert!(policy.try_admit(1).is_ok());
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
pub struct Legs {
    legs: Vec<Leg>,
    callbacks: Callbacks,
    /// A leg behind the first may roll back what it has taken itself.
    nested: bool,
    long: Option<Box<LongTickets>>,
}

pub(crate) struct Leg {
    limiter: Box<dyn Erased>,
    words: Range<usize>,
    callbacks: Callbacks,
}

impl FromIterator<BoxLimiter> for Legs {
    fn from_iter<I: IntoIterator<Item = BoxLimiter>>(limiters: I) -> Self {
        let (mut legs, mut words) = (Vec::new(), 0);
        let (mut callbacks, mut nested) = (Callbacks::NONE, false);
        for leg in limiters {
            nested |= !legs.is_empty() && leg.callbacks.roll_back;
            callbacks = callbacks.and(leg.callbacks);
            let start = words;
            words += leg.words;
            legs.push(Leg {
                limiter: leg.limiter,
                words: start..words,
                callbacks: leg.callbacks,
            });
        }
        Self {
            legs,
            callbacks,
            nested,
            long: LongTickets::unless_fits(words, BoxTicket::WORDS_INLINE),
        }
    }
}

impl Legs {
    /// The number of legs.
    pub fn len(&self) -> usize {
        self.legs.len()
    }

    /// True without legs.
    pub fn is_empty(&self) -> bool {
        self.legs.is_empty()
    }

    #[inline(always)]
    fn reserve_words(&self, demand: Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'_>> {
        let reserved = match &self.long {
            None if self.nested => self.reserve_nested(&demand, ticket.words_mut()),
            None => self.reserve_all(&demand, ticket.words_mut()),
            Some(long) => long.fill(ticket.words_mut(), |words| self.reserve_nested(&demand, words)),
        };
        reserved.map_err(|refusal| refusal.among(self, demand))
    }

    #[inline(never)]
    fn reserve_nested<'a>(&'a self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
        together_quietly(|| self.reserve_all(demand, words))
    }
}

impl AllOrNothing for Legs {
    type Leg = Leg;

    #[inline(always)]
    fn legs(&self) -> &[Leg] {
        &self.legs
    }
    #[inline(always)]
    fn reserve_leg<'a>(&'a self, leg: &'a Leg, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
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

    fn explain_legs(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
        self.legs.iter().for_each(|leg| leg.limiter.explain_legs(demand, visit));
    }

    fn visit_sources<'a>(&'a self, ticket: &BoxTicket, visit: &mut dyn FnMut(&'a str)) {
        let mut look = |words: &[u64]| {
            for leg in &self.legs {
                leg.limiter.visit_sources(&words[leg.words.clone()], visit);
            }
        };
        match &self.long {
            None => look(ticket.words()),
            Some(long) => long.look(ticket.words(), look),
        }
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
