//! The channel semaphore as a leg of a policy. A policy waits for it by its `Notify`, not by receiving: a policy's line is
//! pumped, and nobody blocks in a pump.

use super::ChannelSemaphore;
use crate::ask::Demand;
use crate::limiter::{Callbacks, Limiter, Outcome};
use crate::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::semaphore::error::TryAcquireError;
use crate::semaphore::limiter::SemaphoreTicket;
use crate::status::{State, Status};
use crate::sync::wait_queue::{QueueId, WaitQueue};
use crate::time::ClockReading;

const LEG: &str = "channel_semaphore";

impl Limiter for ChannelSemaphore {
    type Ticket = SemaphoreTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<SemaphoreTicket, Refusal<'_>> {
        let units = demand.units();
        let oversized = || Refusal::new(Reason::Oversized, LEG, units, Wait::Never);
        let Some(n) = fits(units) else {
            return Err(oversized());
        };
        let turns = &self.home.turns;
        let saturated = || {
            if self.home.is_oversized(n) {
                return oversized();
            }
            // More than there are permits waits for a limit that was there before, and holds up none that fit.
            let wait = if n > self.limit() {
                Wait::Event
            } else {
                Wait::Turn(turns)
            };
            Refusal::new(Reason::Saturated, LEG, units, wait)
        };
        if turns.is_waited() && n > 0 && turns.before(demand.holder(QueueId::of(turns)), units).is_anything() {
            return Err(saturated());
        }
        match self.home.take(n) {
            Ok(()) => Ok(SemaphoreTicket::new(n)),
            Err(TryAcquireError::NoPermits) => Err(saturated()),
            Err(TryAcquireError::Closed) => Err(Refusal::new(Reason::Closed, LEG, units, Wait::Never)),
        }
    }

    fn cancel(&self, ticket: SemaphoreTicket, _: &ClockReading) {
        self.home.give_back(ticket.permits());
    }

    fn finish(&self, ticket: SemaphoreTicket, _: Outcome, _: &ClockReading) {
        self.home.give_back(ticket.permits());
    }

    fn forget(&self, ticket: SemaphoreTicket) {
        self.home.lose(ticket.permits());
    }

    #[inline]
    fn callbacks(&self) -> Callbacks {
        // An attempt for several tells whom it kept out.
        Callbacks {
            roll_back: true,
            ..Callbacks::FINISH
        }
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.home.notify);
        let units = demand.units();
        let (closed, limit, free) = self.home.look();
        if closed {
            return ReadyAt::never_for(Reason::Closed, LEG, units);
        }
        if fits(units).is_none_or(|n| self.home.is_oversized(n)) {
            return ReadyAt::never_for(Reason::Oversized, LEG, units);
        }
        let turns = &self.home.turns;
        let before = turns.before(demand.holder(QueueId::of(turns)), units);
        if before.lapsed {
            demand.redeem(QueueId::of(turns));
        }
        if units.saturating_add(demand.ahead()) <= free as u64 && (units == 0 || !before.is_anything()) {
            ReadyAt::NOW
        } else if limit > 0 && units > limit as u64 {
            ReadyAt::on_raise(LEG)
        } else {
            ReadyAt::in_turn(LEG, turns, units)
        }
    }

    /// Who waits does so in the channel, where nobody counts.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let state = State::Permits {
            limit: self.limit() as u64,
            in_use: self.in_use() as u64,
            waiting: 0,
        };
        visit(Status::new(LEG, LEG, state));
    }

    fn is_pristine(&self, _: &ClockReading) -> bool {
        self.is_untouched()
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(&self.home.turns);
    }
}

/// `units` as a number of permits that there could be.
fn fits(units: u64) -> Option<usize> {
    usize::try_from(units)
        .ok()
        .filter(|&n| n <= ChannelSemaphore::MAX_PERMITS)
}
