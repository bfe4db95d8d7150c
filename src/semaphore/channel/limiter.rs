//! The channel semaphore as a leg of a policy. A policy waits for it by its bell, not by receiving: a policy's line is
//! pumped, and nobody blocks in a pump.

use super::ChannelSemaphore;
use crate::ask::Demand;
use crate::limiter::{Heeds, Limiter, Outcome};
use crate::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::semaphore::error::TryAcquireError;
use crate::semaphore::limiter::SemaphoreTicket;
use crate::standing::{Standing, State};
use crate::sync::turn::{Turnstile, TurnstileId};
use crate::time::Pass;

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
        if turns.is_waited() && n > 0 && turns.before(demand.holder(TurnstileId::of(turns)), units).is_anything() {
            return Err(saturated());
        }
        match self.home.take(n) {
            Ok(()) => Ok(SemaphoreTicket::new(n)),
            Err(TryAcquireError::NoPermits) => Err(saturated()),
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
        // An attempt for several tells whom it kept out.
        Heeds {
            roll_back: true,
            ..Heeds::FINISH
        }
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.home.bell);
        let units = demand.units();
        let (closed, limit, free) = self.home.look();
        if closed {
            return ReadyAt::never_for(Reason::Closed, LEG, units);
        }
        if fits(units).is_none_or(|n| self.home.is_oversized(n)) {
            return ReadyAt::never_for(Reason::Oversized, LEG, units);
        }
        let turns = &self.home.turns;
        let before = turns.before(demand.holder(TurnstileId::of(turns)), units);
        if before.lapsed {
            demand.redeem(TurnstileId::of(turns));
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

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn Turnstile)) {
        visit(&self.home.turns);
    }
}

/// `units` as a number of permits that there could be.
fn fits(units: u64) -> Option<usize> {
    usize::try_from(units)
        .ok()
        .filter(|&n| n <= ChannelSemaphore::MAX_PERMITS)
}
