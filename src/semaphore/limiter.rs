//! The semaphore as a leg of a policy.

use super::atomic::{LEG, Semaphore};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::Refusal;
use crate::core::status::{Description, State};
use crate::core::ticket::Ticket;
use crate::sync::wait_queue::{Key, Place, Watch};
use std::sync::Weak;

/// The number of permits that an admission holds.
///
/// ```
/// # use tollgate::{SemaphoreTicket, Ticket};
/// // One word of each admission in a policy.
/// assert_eq!(SemaphoreTicket::WORDS, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemaphoreTicket(u64);

impl SemaphoreTicket {
    pub(super) fn new(permits: usize) -> Self {
        Self(permits as u64)
    }

    pub(super) fn permits(self) -> usize {
        self.0 as usize
    }

    /// Lowers the number to `actual`, and returns the permits to give back.
    pub(super) fn lower_to(&mut self, actual: u64) -> usize {
        let less = self.0.saturating_sub(actual);
        self.0 -= less;
        less as usize
    }
}

impl Ticket for SemaphoreTicket {
    const WORDS: usize = 1;
    #[inline] // row: from a file
    fn write(&self, words: &mut [u64]) {
        words[0] = self.0;
    }
    #[inline] // row: from a file
    fn read(words: &[u64]) -> Self {
        Self(words[0])
    }
}

/// An ask above the limit is refused as [`Oversized`](crate::Reason::Oversized), unless the limit is zero, which is a pause. A settlement
/// to less gives the rest back at once; a settlement to more changes nothing.
impl Limiter for Semaphore {
    type Ticket = SemaphoreTicket;

    #[inline(always)] // row: policy try_admit
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<SemaphoreTicket, Refusal> {
        let units = demand.units();
        let taken = match demand.place() {
            None => self.try_take(units) || self.try_take_flagged(units),
            Some(place) => self.try_take_as_head(place, units),
        };
        if taken {
            return Ok(SemaphoreTicket(units));
        }
        Err(self.refusal(units))
    }

    #[inline] // row: policy try_admit
    fn cancel(&self, ticket: SemaphoreTicket) {
        self.release(ticket.0);
    }

    #[inline(always)] // row: policy try_admit
    fn finish(&self, ticket: SemaphoreTicket, outcome: Outcome) {
        match outcome {
            Outcome::Forgotten => self.lose(ticket.0),
            _ => self.release(ticket.0),
        }
    }

    fn settle(&self, ticket: &mut SemaphoreTicket, settlement: &Settlement) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        self.release(ticket.lower_to(actual) as u64);
        1
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        if let Some(place) = demand.place() {
            return self.look_as_head(demand, place);
        }
        let units = demand.units();
        let ahead = if units == 0 { 0 } else { demand.ahead() };
        match self.has_free(units.saturating_add(ahead)) {
            true => Ok(()),
            false => Err(self.refusal(units)),
        }
    }

    fn leave(&self, place: &Place) {
        if let Some(age) = place.leaves(&self.queue) {
            self.leave_at(Key::Head(age));
        }
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let state = State::Permits {
            limit: self.limit() as u64,
            in_use: self.in_use() as u64,
            waiting: self.waiting() as u64,
        };
        let leg = Description::new(LEG)
            .state(state)
            .hands_over_to(&self.queue)
            .holds_permits_of(&self.queue);
        visit(leg.as_new(self.is_as_new()));
    }
}
