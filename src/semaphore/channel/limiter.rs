//! The channel semaphore as a leg of a policy. A policy waits for it by its bell, not by receiving: a policy's line is
//! pumped, and nobody blocks in a pump.

use super::ChannelSemaphore;
use crate::ask::Demand;
use crate::limiter::{Heeds, Limiter, Outcome};
use crate::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::semaphore::error::TryAcquireError;
use crate::semaphore::limiter::SemaphoreTicket;
use crate::standing::{Standing, State};
use crate::time::Pass;

const LEG: &str = "channel_semaphore";

impl Limiter for ChannelSemaphore {
    type Ticket = SemaphoreTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<SemaphoreTicket, Refusal<'_>> {
        let units = demand.units();
        let Some(n) = fits(units) else {
            return Err(Refusal::new(Reason::Oversized, LEG, units, Wait::Never));
        };
        match self.home.take(n) {
            Ok(()) => Ok(SemaphoreTicket::new(n)),
            Err(TryAcquireError::NoPermits) => Err(Refusal::new(Reason::Saturated, LEG, units, Wait::Event)),
            Err(TryAcquireError::Closed) => Err(Refusal::new(Reason::Closed, LEG, units, Wait::Never)),
        }
    }

    fn cancel(&self, ticket: SemaphoreTicket, _: Pass<'_>) {
        self.home.give_back(ticket.permits());
    }

    fn finish(&self, ticket: SemaphoreTicket, _: Outcome, _: Pass<'_>) {
        self.home.give_back(ticket.permits());
    }

    fn forget(&self, ticket: SemaphoreTicket) {
        self.home.lose(ticket.permits());
    }

    #[inline]
    fn heeds(&self) -> Heeds {
        Heeds::FINISH
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.home.bell);
        let units = demand.units();
        let (closed, free) = self.home.look();
        if closed || fits(units).is_none() {
            return ReadyAt::never(LEG);
        }
        if units.saturating_add(demand.ahead()) <= free as u64 {
            ReadyAt::NOW
        } else {
            ReadyAt::on_event(LEG)
        }
    }

    /// Who waits does so in the channel, where nobody counts.
    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        let state = State::Permits {
            limit: self.limit() as u64,
            in_use: self.in_use() as u64,
            waiting: 0,
        };
        visit(Standing::new(LEG, LEG, state));
    }

    fn is_fresh(&self, _: Pass<'_>) -> bool {
        self.is_untouched()
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn crate::sync::turn::Turnstile)) {}
}

/// `units` as a number of permits that there could be.
fn fits(units: u64) -> Option<usize> {
    usize::try_from(units)
        .ok()
        .filter(|&n| n <= ChannelSemaphore::MAX_PERMITS)
}
