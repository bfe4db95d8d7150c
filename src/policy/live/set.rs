//! The legs of one version, in order: what an admission runs through, and what its ticket is read by.
//!
//! A set never changes. Its legs do, but only their numbers. Its tickets carry its number, so that they find it again
//! when another one is in force.

use super::link::{Link, PeakTable};
use super::node::{Body, Node};
use crate::ask::Demand;
use crate::limiter::{Outcome, Settlement};
use crate::policy::linked::{Meter, sooner};
use crate::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::sync::turn::TurnstileId;
use crate::ticket::BoxTicket;
use crate::time::{Clock, Instant, Pass};
use std::ops::Range;
use std::sync::Arc;

/// The words of a ticket before those of the legs: which set it is and which legs were taken, and when it started.
pub(super) const HEAD: usize = 2;
/// How many words the legs of a policy may take together.
pub(in super::super) const MAX_WORDS: usize = BoxTicket::WORDS_INLINE - HEAD;

const INDEX: u64 = u32::MAX as u64;
const TAKEN: u32 = 32;

/// The number of the set that a ticket was made by.
#[inline]
pub(super) fn index_of(ticket: &BoxTicket) -> u32 {
    (ticket.words()[0] & INDEX) as u32
}

/// A leg in a set.
pub(super) struct SetLeg {
    pub(super) node: Arc<Node>,
    pub(super) words: Range<usize>,
    pub(super) shadow: bool,
    pub(super) link: Option<Arc<Link>>,
    pub(super) peak: Option<Arc<PeakTable>>,
    /// Who measures it for other legs.
    pub(super) meters: Vec<Arc<Meter>>,
}

impl SetLeg {
    /// This leg's view of a demand.
    fn demand<'a>(&self, demand: Demand<'a>) -> Option<Demand<'a>> {
        match self.node.per {
            Some(cost) => demand.per(cost),
            None => Some(demand.per_call()),
        }
    }
}

/// The legs of one version.
pub(super) struct LegSet {
    legs: Vec<SetLeg>,
    /// Its number, as it stands in its tickets.
    index: u32,
    clock: Clock,
    /// A leg depends on the load of another, which may fall whenever something ends.
    pub(super) linked: bool,
    /// A leg has a peak table.
    pub(super) peaks: bool,
    /// Somebody wants to know how long work takes.
    timed: bool,
    /// The positions of the semaphores, a bit for each.
    permits: u64,
}

impl LegSet {
    pub(super) fn new(index: u32, mut legs: Vec<SetLeg>, clock: &Clock) -> Self {
        let mut at = HEAD;
        for leg in &mut legs {
            let words = leg.words.len();
            leg.words = at..at + words;
            at += words;
        }
        Self {
            index,
            linked: legs.iter().any(|leg| leg.link.is_some() || leg.peak.is_some()),
            peaks: legs.iter().any(|leg| leg.peak.is_some()),
            permits: (legs.iter().enumerate())
                .filter(|(_, leg)| matches!(leg.node.body, Body::Semaphore(_)))
                .fold(0, |permits, (position, _)| permits | 1 << position),
            timed: legs.iter().any(|leg| !leg.meters.is_empty()),
            legs,
            clock: clock.clone(),
        }
    }

    pub(super) fn legs(&self) -> &[SetLeg] {
        &self.legs
    }

    /// The leg that is `node`, if it has one.
    pub(super) fn leg(&self, node: &Arc<Node>) -> Option<&SetLeg> {
        self.legs.iter().find(|leg| Arc::ptr_eq(&leg.node, node))
    }

    /// Takes from every leg that applies, or from none.
    #[inline]
    pub(super) fn reserve<'a>(&'a self, demand: Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'a>> {
        let mut held = Held {
            set: self,
            ticket,
            taken: 0,
            pass: demand.pass(),
        };
        for (position, leg) in self.legs.iter().enumerate() {
            match self.ask_leg(leg, demand, &mut held.ticket.words_mut()[leg.words.clone()]) {
                Ok(true) => held.taken |= 1 << position,
                Ok(false) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        let taken = held.taken;
        std::mem::forget(held);
        ticket.words_mut()[0] = u64::from(self.index) | taken << TAKEN;
        self.permits(ticket).for_each(|(node, units)| node.hold(units));
        if self.timed {
            self.measure(demand, ticket);
        }
        Ok(())
    }

    /// Asks one leg. True when it gave, false when it does not apply, or is in shadow mode and would have refused.
    #[inline]
    fn ask_leg<'a>(&'a self, leg: &'a SetLeg, demand: Demand<'_>, words: &mut [u64]) -> Result<bool, Refusal<'a>> {
        let node = &*leg.node;
        if let Some(link) = &leg.link
            && !link.gate.is_exceeded(demand.now(&self.clock))
        {
            return Ok(false);
        }
        let result = match leg.demand(demand) {
            Some(demand) => self.ask_node(node, demand, words),
            None => Err(Refusal::new(Reason::Unpriced, &node.name, 0, Wait::Never)),
        };
        match result {
            Ok(()) => {
                if leg.shadow {
                    node.trial.admitted();
                }
                Ok(true)
            }
            Err(refusal) if leg.shadow => {
                node.trial.refused(refusal.reason());
                Ok(false)
            }
            Err(refusal) => {
                let now = demand.now(&self.clock);
                for meter in &leg.meters {
                    meter.refused(now);
                }
                let ends = leg.ends(now);
                Err(sooner(refusal.named(&node.name), ends, &self.clock, now))
            }
        }
    }

    #[inline]
    fn ask_node<'a>(&'a self, node: &'a Node, demand: Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
        let Body::Semaphore(semaphore) = &node.body else {
            return node.body.erased().try_reserve(demand, words);
        };
        let claimed = demand.claim(TurnstileId::of(semaphore)).is_some();
        node.body.erased().try_reserve(demand, words)?;
        // A turn that was granted before the limit sank would be an admission that the new rule does not allow.
        if claimed && semaphore.debt() > 0 {
            node.body.erased().cancel(words, demand.pass());
            let wait = Wait::Turn(semaphore);
            return Err(Refusal::new(Reason::Saturated, &node.name, demand.units(), wait));
        }
        Ok(())
    }

    /// Tells the meters what was taken, and the ticket when.
    #[cold]
    fn measure(&self, demand: Demand<'_>, ticket: &mut BoxTicket) {
        let now = demand.now(&self.clock);
        ticket.words_mut()[1] = now.ticks();
        for leg in self.taken(ticket) {
            for meter in &leg.meters {
                meter.admitted(leg.node.units(demand.ask()).unwrap_or(0), now);
            }
        }
    }

    /// The legs that a ticket has taken from.
    fn taken<'a>(&'a self, ticket: &BoxTicket) -> impl DoubleEndedIterator<Item = &'a SetLeg> + use<'a> {
        let taken = ticket.words()[0] >> TAKEN;
        let legs = self.legs.iter().enumerate();
        legs.filter(move |(position, _)| taken >> position & 1 == 1)
            .map(|(_, leg)| leg)
    }

    /// The semaphores that a ticket holds permits of, and how many.
    #[inline]
    fn permits<'a>(&'a self, ticket: &'a BoxTicket) -> impl Iterator<Item = (&'a Node, u64)> + use<'a> {
        let mut left = ticket.words()[0] >> TAKEN & self.permits;
        std::iter::from_fn(move || {
            let leg = self.legs.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some((&*leg.node, ticket.words()[leg.words.start]))
        })
    }

    /// What the ticket holds is no load any more: before its permits come back, so that whoever gets them does not count
    /// them twice.
    #[inline]
    fn let_go(&self, ticket: &BoxTicket) {
        self.permits(ticket).for_each(|(node, units)| node.let_go(units));
    }

    pub(super) fn cancel(&self, ticket: &BoxTicket, pass: Pass<'_>) {
        self.let_go(ticket);
        let reserved = Instant::from_ticks(ticket.words()[1]);
        for leg in self.taken(ticket).rev() {
            let words = &ticket.words()[leg.words.clone()];
            leg.node.body.erased().cancel(words, pass);
            for meter in &leg.meters {
                meter.cancelled(leg.node.body.units_of(words), reserved, pass.now(&self.clock));
            }
        }
    }

    #[inline]
    pub(super) fn commit(&self, ticket: &mut BoxTicket, pass: Pass<'_>) {
        for leg in self.taken(ticket) {
            leg.node
                .body
                .erased()
                .commit(&mut ticket.words_mut()[leg.words.clone()], pass);
        }
        if self.timed {
            ticket.words_mut()[1] = pass.now(&self.clock).ticks();
        }
    }

    pub(super) fn settle(&self, ticket: &mut BoxTicket, actual: Settlement<'_>) -> u32 {
        let taken = ticket.words()[0] >> TAKEN;
        let mut corrected = 0;
        for (position, leg) in self.legs.iter().enumerate() {
            let actual = match leg.node.per {
                Some(cost) => actual.per(cost),
                None => actual.per_call(),
            };
            corrected += if taken >> position & 1 == 1 {
                leg.node
                    .body
                    .erased()
                    .settle(&mut ticket.words_mut()[leg.words.clone()], actual)
            } else {
                // It let this one through uncharged: there is nothing to correct, and nothing is wrong.
                actual.actual().is_some().into()
            };
        }
        corrected
    }

    #[inline]
    pub(super) fn finish(&self, ticket: &BoxTicket, outcome: Outcome, pass: Pass<'_>) {
        self.let_go(ticket);
        for leg in self.taken(ticket).rev() {
            leg.node
                .body
                .erased()
                .finish(&ticket.words()[leg.words.clone()], outcome, pass);
        }
        if self.timed {
            let (started, now) = (Instant::from_ticks(ticket.words()[1]), pass.now(&self.clock));
            for meter in self.taken(ticket).flat_map(|leg| &leg.meters) {
                meter.ended(started, now);
            }
        }
    }

    pub(super) fn forget(&self, ticket: &BoxTicket) {
        self.let_go(ticket);
        for leg in self.taken(ticket).rev() {
            leg.node.body.erased().forget(&ticket.words()[leg.words.clone()]);
        }
    }

    pub(super) fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        let ready = self.legs.iter().map(|leg| self.leg_ready(leg, demand));
        ready.fold(ReadyAt::NOW, ReadyAt::and)
    }

    fn leg_ready<'a>(&'a self, leg: &'a SetLeg, demand: Demand<'_>) -> ReadyAt<'a> {
        if leg.shadow {
            return ReadyAt::NOW;
        }
        self.leg_says(leg, demand).unwrap_or(ReadyAt::NOW)
    }

    /// What a leg says, obeyed or not; `None` when it does not apply.
    pub(super) fn leg_says<'a>(&'a self, leg: &'a SetLeg, demand: Demand<'_>) -> Option<ReadyAt<'a>> {
        if let Some(link) = &leg.link
            && !link.gate.is_exceeded(demand.now(&self.clock))
        {
            return None;
        }
        let node = &*leg.node;
        let Some(demand) = leg.demand(demand) else {
            return Some(ReadyAt::never(&node.name));
        };
        let ready = node.body.erased().ready_at(demand).named(&node.name);
        Some(match leg.link.is_some() || leg.peak.is_some() {
            true => ready.or_at(leg.ends(demand.now(&self.clock))),
            false => ready,
        })
    }
}

impl SetLeg {
    /// When the load that makes it strict will have fallen, if that is known.
    fn ends(&self, now: Instant) -> Option<Instant> {
        let link = self.link.as_ref().and_then(|link| link.gate.ends(now));
        let peak = self.peak.as_ref().and_then(|peak| peak.ends(now));
        link.into_iter().chain(peak).min()
    }
}

/// What the first legs have given: given back in reverse order unless forgotten, also on a panic.
struct Held<'a> {
    set: &'a LegSet,
    ticket: &'a mut BoxTicket,
    taken: u64,
    pass: Pass<'a>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for (position, leg) in self.set.legs.iter().enumerate().rev() {
            if self.taken >> position & 1 == 1 {
                leg.node
                    .body
                    .erased()
                    .cancel(&self.ticket.words()[leg.words.clone()], self.pass);
            }
        }
    }
}
