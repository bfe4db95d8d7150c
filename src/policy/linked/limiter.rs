//! A limiter that applies only while something else is under load.

use super::mark::{Gate, Mark};
use crate::core::ask::Demand;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::core::status::Status;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading, Instant};

/// A limiter that applies only while a load exceeds a mark. Made by [`LimiterExt::linked`](crate::LimiterExt::linked).
///
/// While the load is low it takes nothing and refuses nobody. What was admitted in that time has left no trace in the
/// limiter: a semaphore does not know of it when it begins to apply.
///
/// A request that the load is measured by does not count in its own case: put what is [metered](super::Meter) before or behind
/// it, as it costs least.
///
/// Whoever waits is told when the load falls, at the instant that the load names or by its `Notify`.
#[derive(Debug)]
pub struct Linked<L> {
    limiter: L,
    gate: Gate,
}

impl<L> Linked<L> {
    pub(crate) fn new(limiter: L, mark: Mark) -> Self {
        Self {
            limiter,
            gate: Gate::new(mark),
        }
    }

    /// The limiter.
    pub fn inner(&self) -> &L {
        &self.limiter
    }

    /// True while it applies, as of now.
    pub fn applies(&self) -> bool {
        self.gate.is_exceeded(self.gate.clock().now())
    }
}

/// A refusal whose end is known may end earlier, when the load falls first. What never fits does once the limit applies no more.
pub(crate) fn sooner<'a>(refusal: Refusal<'a>, ends: Option<Instant>, clock: &'a Clock, now: Instant) -> Refusal<'a> {
    let at = |ends| Wait::Until(Due::at(clock, now, ends));
    match (refusal.wait(), ends) {
        (Wait::Until(due), Some(ends)) if ends < due.instant() => refusal.with_wait(at(ends)),
        (Wait::Never, ends) if refusal.reason() == Reason::Oversized => refusal
            .with_reason(Reason::RateExceeded)
            .with_wait(ends.map_or(Wait::Event, at)),
        _ => refusal,
    }
}

impl<L: Limiter> Limiter for Linked<L> {
    /// What the limiter gave, if it applied.
    type Ticket = Option<L::Ticket>;

    #[inline]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        let clock = self.gate.clock();
        let now = demand.now(clock);
        if !self.gate.is_exceeded(now) {
            return Ok(None);
        }
        match self.limiter.try_reserve(demand) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(refusal) => Err(sooner(refusal, self.gate.ends(now), clock, now).through(self)),
        }
    }

    #[inline]
    fn cancel(&self, ticket: Self::Ticket, now: &ClockReading) {
        if let Some(ticket) = ticket {
            self.limiter.cancel(ticket, now);
        }
    }

    #[inline]
    fn commit(&self, ticket: &mut Self::Ticket, now: &ClockReading) {
        if let Some(ticket) = ticket {
            self.limiter.commit(ticket, now);
        }
    }

    /// Where it did not apply, the cost counts as corrected if it counts it at all.
    fn settle(&self, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        match ticket {
            Some(ticket) => self.limiter.settle(ticket, actual),
            None => actual.actual().is_some().into(),
        }
    }

    #[inline]
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome, now: &ClockReading) {
        if let Some(ticket) = ticket {
            self.limiter.finish(ticket, outcome, now);
        }
    }

    fn forget(&self, ticket: Self::Ticket) {
        if let Some(ticket) = ticket {
            self.limiter.forget(ticket);
        }
    }

    #[inline]
    fn callbacks(&self) -> Callbacks {
        self.limiter.callbacks()
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.gate.listen(demand);
        let now = demand.now(self.gate.clock());
        if !self.gate.is_exceeded(now) {
            return ReadyAt::NOW;
        }
        self.limiter.ready_at(demand).or_at(self.gate.ends(now))
    }

    fn name(&self) -> Option<&str> {
        self.limiter.name()
    }

    /// That of the limiter, or else the one that the load is read by.
    fn clock(&self) -> Option<&Clock> {
        self.limiter.clock().or(Some(self.gate.clock()))
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.limiter.queues(visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        match self.limiter.clock() {
            Some(_) => self.limiter.clocks(visit),
            None => visit(self.gate.clock()),
        }
    }

    /// That of the limiter, while it applies.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        if self.applies() {
            self.limiter.visit_status(visit);
        }
    }

    /// The limiter is, and the load does not count as exceeded.
    fn is_pristine(&self, now: &ClockReading) -> bool {
        !self.gate.is_exceeded(now.now(self.gate.clock())) && self.limiter.is_pristine(now)
    }
}
