//! The semaphore as a leg of a policy, and as a queue that a policy waits in.

use super::atomic::Semaphore;
use crate::core::ask::Demand;
use crate::core::limiter::{Callbacks, Limiter, Outcome};
use crate::core::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::core::status::{self, Status};
use crate::core::ticket::Ticket;
use crate::semaphore::queue::State;
use crate::sync::wait_queue::{QueueDemand, QueueId, QueueKey, WaitQueue};
use crate::time::ClockReading;
use std::task::Waker;

const LEG: &str = "semaphore";

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
    #[inline]
    pub(super) fn new(permits: usize) -> Self {
        Self(permits as u64)
    }

    #[inline]
    pub(super) fn permits(self) -> usize {
        self.0 as usize
    }

    #[inline]
    fn signed(self) -> i64 {
        self.0 as i64
    }
}

impl Ticket for SemaphoreTicket {
    const WORDS: usize = 1;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[0] = self.0;
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self(words[0])
    }
}

impl Semaphore {
    /// Its name in refusals.
    fn leg(&self) -> &str {
        self.name().unwrap_or(LEG)
    }

    #[cold]
    fn try_reserve_slow(&self, demand: Demand<'_>) -> Result<SemaphoreTicket, Refusal<'_>> {
        let (units, closed) = (demand.units(), self.is_closed());
        if !closed && self.is_oversized(units) {
            return Err(self.refused(Reason::Oversized, units));
        }
        let id = QueueId::of(self);
        if let Some(position) = demand.queue_key(id) {
            match self.look_for_policy(position.key(), units) {
                State::Waiting | State::WaitingKept | State::WaitingPassive => {
                    return Err(self.refused(Reason::Saturated, units));
                }
                State::Granted => {
                    demand.redeem(id);
                    return Ok(SemaphoreTicket(units));
                }
                State::Closed => {
                    demand.redeem(id);
                    return Err(self.refused(Reason::Closed, units));
                }
                State::Evicted | State::Free => demand.redeem(id),
            }
        }
        if closed {
            return Err(self.refused(Reason::Closed, units));
        }
        if units == 0 || self.try_take_slow(units as i64) {
            return Ok(SemaphoreTicket(units));
        }
        Err(self.refused(Reason::Saturated, units))
    }

    /// The refusal of `units` that are not free.
    #[cold]
    fn refusal(&self, units: u64) -> Refusal<'_> {
        let reason = match (self.is_closed(), self.is_oversized(units)) {
            (true, _) => Reason::Closed,
            (false, true) => Reason::Oversized,
            (false, false) => Reason::Saturated,
        };
        self.refused(reason, units)
    }

    #[inline(always)]
    fn refused(&self, reason: Reason, units: u64) -> Refusal<'_> {
        let wait = match reason {
            Reason::Saturated => Wait::Turn(self as &dyn WaitQueue),
            _ => Wait::Never,
        };
        Refusal::new(reason, self.leg(), units, wait)
    }
}

impl Limiter for Semaphore {
    type Ticket = SemaphoreTicket;

    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<SemaphoreTicket, Refusal<'_>> {
        let units = demand.units();
        if units <= Self::MAX_PERMITS as u64
            && demand.queue_key(QueueId::of(self)).is_none()
            && self.try_take(units as i64)
        {
            return Ok(SemaphoreTicket(units));
        }
        self.try_reserve_slow(demand)
    }

    #[inline(always)]
    fn refuses(&self, demand: Demand<'_>) -> Option<Refusal<'_>> {
        let units = demand.units();
        // A policy that has a place in the queue finds out by the attempt how its wait has ended.
        let full = units > 0 && !self.may_have(units) && demand.queue_key(QueueId::of(self)).is_none();
        full.then(|| self.refusal(units))
    }

    fn admits(&self, demand: Demand<'_>) -> bool {
        // Zero units are there whenever it is not closed, which takes more than a look.
        let units = demand.units();
        units > 0 && demand.queue_key(QueueId::of(self)).is_none() && self.has_free(units)
    }

    #[inline]
    fn cancel(&self, ticket: SemaphoreTicket, _: &ClockReading) {
        self.release(ticket.signed());
    }

    #[inline(always)]
    fn finish(&self, ticket: SemaphoreTicket, _: Outcome, _: &ClockReading) {
        self.release(ticket.signed());
    }

    fn forget(&self, ticket: SemaphoreTicket) {
        self.lose(ticket.signed());
    }

    #[inline]
    fn callbacks(&self) -> Callbacks {
        Callbacks::FINISH
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        let units = demand.units();
        // Both are read: the limit may be seen as raised before the largest is.
        let waits_for_raise = self.is_oversized(units) || units > self.limit() as u64;
        if waits_for_raise {
            demand.listen(self.raised());
        }
        if self.is_closed() {
            return ReadyAt::never_for(Reason::Closed, self.leg(), units);
        }
        if self.is_oversized(units) {
            return ReadyAt::never_for(Reason::Oversized, self.leg(), units);
        }
        let position = demand.queue_key(QueueId::of(self));
        let position = position.map(|position| self.state_for_policy(position.key()));
        // A grant before the limit was lowered is good.
        if waits_for_raise && self.is_beyond_limit(units) && position != Some(State::Granted) {
            return ReadyAt::on_raise(self.leg());
        }
        let free = match position {
            // Once it does not wait, the next attempt finds out how the wait has ended.
            Some(state) => !state.waits(),
            None if units == 0 => true,
            None => self.has_free(units.saturating_add(demand.ahead())),
        };
        if free {
            ReadyAt::NOW
        } else {
            ReadyAt::in_turn(self.leg(), self, units)
        }
    }

    #[inline(always)]
    fn finish_may_panic(&self) -> bool {
        false
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(self);
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let state = status::State::Permits {
            limit: self.limit() as u64,
            in_use: self.in_use() as u64,
            waiting: self.waiting() as u64,
        };
        visit(Status::new(self.leg(), LEG, state));
    }

    fn is_pristine(&self, _: &ClockReading) -> bool {
        self.is_untouched()
    }
}

impl WaitQueue for Semaphore {
    fn join(&self, demand: QueueDemand<'_>, waker: &Waker) -> QueueKey {
        // As for `acquire`: a number above MAX_PERMITS waits for ever.
        let units = demand.units.min(Self::MAX_PERMITS as u64 + 1);
        QueueKey::new(
            QueueId::of(self),
            self.join_for_policy(units as i64, demand.class, waker),
        )
    }

    fn leave(&self, key: QueueKey) {
        self.leave_for_policy(key.key());
    }
}
