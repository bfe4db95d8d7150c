//! Two limiters as one, all-or-nothing.

use crate::ask::Demand;
use crate::limiter::{Heeds, Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::standing::Standing;
use crate::sync::turn::{Turnstile, TurnstileId};
use crate::time::{Clock, Pass};

/// Both `A` and `B`, asked in this order. Made by [`LimiterExt::and`](crate::LimiterExt::and).
///
/// When `B` refuses, or panics, what `A` gave is given back. No semaphore may stand in both: a policy that waits for it
/// could not tell its two places there apart, and might never stop trying. (A builder refuses such legs.)
#[derive(Debug)]
pub struct And<A, B> {
    a: A,
    b: B,
}

impl<A, B> And<A, B> {
    pub(crate) fn new(a: A, b: B) -> Self {
        Self { a, b }
    }
}

/// A leg's reservation while a later leg is asked: given back unless forgotten, also on a panic. It has a copy of the
/// ticket, so that what is kept need not be read back from here.
struct Held<'a, L: Limiter> {
    leg: &'a L,
    ticket: L::Ticket,
    pass: Pass<'a>,
}

impl<L: Limiter> Drop for Held<'_, L> {
    #[inline]
    fn drop(&mut self) {
        if !seeded!("and_forgets_rollback") {
            self.leg.cancel(self.ticket, self.pass);
        }
    }
}

impl<A: Limiter, B: Limiter> Limiter for And<A, B> {
    type Ticket = (A::Ticket, B::Ticket);

    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        let a = self.a.try_reserve(demand)?;
        let held = Held {
            leg: &self.a,
            ticket: a,
            pass: demand.pass(),
        };
        let b = self.b.try_reserve(demand)?;
        std::mem::forget(held);
        Ok((a, b))
    }

    #[inline]
    fn cancel(&self, (a, b): Self::Ticket, now: Pass<'_>) {
        self.b.cancel(b, now);
        self.a.cancel(a, now);
    }

    #[inline(always)]
    fn commit(&self, (a, b): &mut Self::Ticket, now: Pass<'_>) {
        self.a.commit(a, now);
        self.b.commit(b, now);
    }

    #[inline]
    fn settle(&self, (a, b): &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        self.a.settle(a, actual) + self.b.settle(b, actual)
    }

    #[inline(always)]
    fn finish(&self, (a, b): Self::Ticket, outcome: Outcome, now: Pass<'_>) {
        self.b.finish(b, outcome, now);
        self.a.finish(a, outcome, now);
    }

    #[inline]
    fn forget(&self, (a, b): Self::Ticket) {
        self.b.forget(b);
        self.a.forget(a);
    }

    #[inline]
    fn heeds(&self) -> Heeds {
        self.a.heeds().or(self.b.heeds())
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.a.ready_at(demand).and(self.b.ready_at(demand))
    }

    fn clock(&self) -> Option<&Clock> {
        self.a.clock().or_else(|| self.b.clock())
    }

    fn turnstile(&self, id: TurnstileId) -> Option<&dyn Turnstile> {
        self.a.turnstile(id).or_else(|| self.b.turnstile(id))
    }

    fn turnstiles(&self, visit: &mut dyn FnMut(TurnstileId)) {
        self.a.turnstiles(visit);
        self.b.turnstiles(visit);
    }

    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        self.a.survey(visit);
        self.b.survey(visit);
    }

    fn is_fresh(&self, now: Pass<'_>) -> bool {
        self.a.is_fresh(now) && self.b.is_fresh(now)
    }
}
