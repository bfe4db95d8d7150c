//! The legs that are in force, as one limiter.

use super::LiveLegs;
use super::node::Node;
use super::set::{LegSet, SetLeg, index_of};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
use crate::core::ticket::BoxTicket;
use crate::sync::shim::atomic::{Ordering, fence};
use crate::sync::unwind::{Rest, ask, both};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};
use std::sync::Arc;

impl LiveLegs {
    /// What is in force: the word, and its set.
    #[inline]
    pub(super) fn in_force(&self) -> (u64, &LegSet) {
        // Acquire: sees the set, and the numbers that have become stricter. Pairs with (S) in `apply`.
        let word = self.current.load(Ordering::Acquire);
        match self.sets.get(word as u32) {
            Some(set) => (word, set),
            None => unreachable!("a set is put in its place before its number is published"),
        }
    }

    /// True when `word` is still in force. To be called after the legs were asked.
    #[inline]
    fn is_in_force(&self, word: u64) -> bool {
        if seeded!("live_looks_once") {
            return true;
        }
        // Whoever has seen a number that was loosened after (S) sees (S) as well. Pairs with the fence in `apply`.
        fence(Ordering::Acquire);
        // Relaxed: by the fence.
        self.current.load(Ordering::Relaxed) == word
    }

    /// The set by which a ticket was made.
    #[inline]
    fn set_of(&self, ticket: &BoxTicket) -> &LegSet {
        match self.sets.get(index_of(ticket)) {
            Some(set) => set,
            None => unreachable!("a ticket is made by a set that is in its place"),
        }
    }

    /// Takes from all legs in force, or from none. A version that comes in between makes it ask again.
    #[inline]
    fn reserve_all(&self, demand: Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'_>> {
        loop {
            let (word, set) = self.in_force();
            if set.peaks {
                self.follow_peaks(set, demand.now(&self.clock));
            }
            let mut result = set.reserve(demand, ticket);
            if self.is_in_force(word) {
                if let Err(refusal) = &mut result {
                    refusal.among(self, demand);
                }
                return result;
            }
            if result.is_ok() {
                let taken = std::mem::replace(ticket, BoxTicket::EMPTY);
                both(|| set.cancel(&taken, demand.reading()), || self.ended(set));
            }
        }
    }

    /// A load may have fallen, which counts for the legs in force also where those that made the ticket knew no links.
    #[inline]
    fn ended(&self, set: &LegSet) {
        // SeqCst: what was given back comes before the look at what is in force, as the list in force comes before the ring
        // of whoever has put it there, in `apply`. So if no link is seen here, that ring comes after, and whoever it calls
        // sees what was given back. Pairs with the fence in `Notify::notify_all`.
        if !set.linked && !seeded!("live_ends_unfenced") {
            fence(Ordering::SeqCst);
        }
        if (set.linked || self.in_force().1.linked) && !seeded!("live_ends_quietly") {
            ask(|| self.notify.notify_all());
        }
    }
}

impl Limiter for LiveLegs {
    type Ticket = BoxTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<BoxTicket, Refusal<'_>> {
        let mut ticket = BoxTicket::EMPTY;
        self.reserve_all(demand, &mut ticket)?;
        Ok(ticket)
    }

    #[inline]
    fn reserve_in(&self, demand: Demand<'_>, place: &mut Option<BoxTicket>) -> Result<(), Refusal<'_>> {
        let mut place = BoxTicket::begin(place);
        self.reserve_all(demand, place.ticket())?;
        place.keep();
        Ok(())
    }

    fn cancel(&self, ticket: BoxTicket, now: &ClockReading) {
        let set = self.set_of(&ticket);
        both(|| set.cancel(&ticket, now), || self.ended(set));
    }

    #[inline]
    fn commit(&self, ticket: &mut BoxTicket, now: &ClockReading) {
        self.set_of(ticket).commit(ticket, now);
    }

    fn settle(&self, ticket: &mut BoxTicket, actual: Settlement<'_>) -> u32 {
        self.set_of(ticket).settle(ticket, actual)
    }

    fn finish(&self, ticket: BoxTicket, outcome: Outcome, now: &ClockReading) {
        self.finish_in(&ticket, outcome, now);
    }

    #[inline]
    fn finish_in(&self, ticket: &BoxTicket, outcome: Outcome, now: &ClockReading) {
        let set = self.set_of(ticket);
        let rest = Rest::new(|| self.ended(set));
        set.finish(ticket, outcome, now);
        rest.make();
    }

    fn forget(&self, ticket: BoxTicket) {
        let set = self.set_of(&ticket);
        both(|| set.forget(&ticket), || self.ended(set));
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        let (_, set) = self.in_force();
        if set.peaks {
            self.follow_peaks(set, demand.now(&self.clock));
        }
        set.ready_at(demand)
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    /// The legs in force that apply and are obeyed, under their names.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let (_, set) = self.in_force();
        let now = self.clock.now();
        self.follow_peaks(set, now);
        let idle = |leg: &SetLeg| leg.link.as_ref().is_some_and(|link| !link.gate.is_exceeded(now));
        for leg in set.legs().iter().filter(|leg| !leg.shadow && !idle(leg)) {
            let node = &leg.node;
            node.body.erased().visit_status(&mut |status| {
                let status = status.named(&node.name);
                visit(node.per.map_or(status, |cost| status.per(cost)));
            });
        }
    }

    /// Also those of legs that are gone: a place in one's queue is still to be left.
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        let mut shown: Vec<&Arc<Node>> = Vec::new();
        for leg in self.sets.iter().flat_map(LegSet::legs) {
            if !shown.iter().any(|node| Arc::ptr_eq(node, &leg.node)) {
                shown.push(&leg.node);
                leg.node.body.erased().queues(visit);
            }
        }
    }
}
