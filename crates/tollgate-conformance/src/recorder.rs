//! A limiter that records the life of each of its tickets, and what it says to waiters behind others.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use tollgate::sync::{Place, Watch};
use tollgate::{Demand, Description, Instant, Limiter, Outcome, Refusal, Settlement};

#[derive(Default)]
struct Log {
    /// By ticket: true once it has ended.
    tickets: Vec<bool>,
    complaint: Option<String>,
    behind: Option<Option<Instant>>,
}

/// Wraps a limiter and records every call.
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

    /// The first fault of the calls so far. Call it when nothing is held.
    pub(super) fn complaint(&self) -> Option<String> {
        let log = self.log();
        let open = log.tickets.iter().position(|has_ended| !has_ended);
        log.complaint
            .clone()
            .or_else(|| open.map(|ticket| format!("ticket {ticket} never ended")))
    }

    /// The instant before which the last demand behind others was refused; `None` if there was no such demand.
    pub(super) fn behind(&self) -> Option<Option<Instant>> {
        self.log().behind
    }

    /// A limiter may panic, but never while this is locked.
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, ticket: u64, call: &str) {
        let mut log = self.log();
        match log.tickets.get_mut(ticket as usize) {
            Some(has_ended) if !*has_ended => *has_ended = true,
            Some(_) => log.complaint = Some(format!("`{call}` was called on a ticket that had ended")),
            None => log.complaint = Some(format!("`{call}` was called with a ticket that was never made")),
        }
    }
}

impl<L: Limiter> Limiter for Recorder<L> {
    type Ticket = (u64, L::Ticket);

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        let ticket = self.limiter.try_reserve(demand)?;
        let mut log = self.log();
        log.tickets.push(false);
        Ok((log.tickets.len() as u64 - 1, ticket))
    }
    fn cancel(&self, (id, ticket): Self::Ticket) {
        self.end(id, "cancel");
        self.limiter.cancel(ticket);
    }
    fn settle(&self, (_, ticket): &mut Self::Ticket, settlement: &Settlement) -> u32 {
        self.limiter.settle(ticket, settlement)
    }
    fn finish(&self, (id, ticket): Self::Ticket, outcome: Outcome) {
        self.end(id, "finish");
        self.limiter.finish(ticket, outcome);
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let looked = self.limiter.look(demand);
        if demand.ahead() > 0 {
            self.log().behind = Some(looked.err().and_then(|refusal| refusal.wait().not_before()));
        }
        looked
    }
    fn leave(&self, place: &Place) {
        self.limiter.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.limiter.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.limiter.describe(visit);
    }
}
