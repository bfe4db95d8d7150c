//! A limiter that notes what becomes of each of its tickets.

use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::sync::shim::Mutex;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reserved,
    Committed,
    Ended,
}

#[derive(Default)]
struct Log {
    tickets: Vec<Stage>,
    complaint: Option<String>,
}

/// Stands around a limiter and sees every call.
pub(super) struct Recorder<L> {
    limiter: L,
    log: Mutex<Log>,
}

impl<L> Recorder<L> {
    pub(super) fn new(limiter: L) -> Self {
        Self {
            limiter,
            log: Mutex::new(Log::default()),
        }
    }

    /// What is wrong with what has been called so far, now that nothing is held any more.
    pub(super) fn complaint(&self) -> Option<String> {
        let log = self.log.lock();
        let open = log.tickets.iter().position(|&stage| stage != Stage::Ended);
        log.complaint
            .clone()
            .or_else(|| open.map(|ticket| format!("ticket {ticket} never ended")))
    }

    fn step(&self, ticket: u64, call: &str, from: Stage, to: Stage) {
        let mut log = self.log.lock();
        let Some(stage) = log.tickets.get_mut(ticket as usize) else {
            log.complaint = Some(format!("`{call}` was called with a ticket that was never made"));
            return;
        };
        let found = std::mem::replace(stage, to);
        if found != from {
            log.complaint = Some(format!("`{call}` was called on a ticket that was {found:?}"));
        }
    }
}

impl<L: Limiter> Limiter for Recorder<L> {
    type Ticket = (u64, L::Ticket);

    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        let ticket = self.limiter.try_reserve(demand)?;
        let mut log = self.log.lock();
        log.tickets.push(Stage::Reserved);
        Ok((log.tickets.len() as u64 - 1, ticket))
    }
    fn cancel(&self, (id, ticket): Self::Ticket, now: &ClockReading) {
        self.step(id, "cancel", Stage::Reserved, Stage::Ended);
        self.limiter.cancel(ticket, now);
    }
    fn commit(&self, (id, ticket): &mut Self::Ticket, now: &ClockReading) {
        self.step(*id, "commit", Stage::Reserved, Stage::Committed);
        self.limiter.commit(ticket, now);
    }
    fn settle(&self, (_, ticket): &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        self.limiter.settle(ticket, actual)
    }
    fn finish(&self, (id, ticket): Self::Ticket, outcome: Outcome, now: &ClockReading) {
        self.step(id, "finish", Stage::Committed, Stage::Ended);
        self.limiter.finish(ticket, outcome, now);
    }
    fn forget(&self, (id, ticket): Self::Ticket) {
        self.step(id, "forget", Stage::Committed, Stage::Ended);
        self.limiter.forget(ticket);
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.limiter.ready_at(demand)
    }
    fn clock(&self) -> Option<&Clock> {
        self.limiter.clock()
    }
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.limiter.queues(visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        self.limiter.clocks(visit);
    }
}
