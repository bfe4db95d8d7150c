//! How a rate is asked where queues take [turns](crate::sync::turns): the same for all rates, which only say when.

use crate::ask::Demand;
use crate::refusal::ReadyAt;
use crate::sync::turn::TurnstileId;
use crate::sync::turns::Turns;
use crate::sync::wake::quietly;
use crate::time::{Clock, Instant};

/// When a rate admits a number of units, once those before them have been admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forecast {
    Now,
    At(Instant),
    /// No instant is known.
    Event,
}

impl Turns {
    /// What the rate `leg` says to `demand`, where `forecast` says when it admits it behind a number of units.
    pub(crate) fn ready_at<'a>(
        &'a self,
        leg: &'a str,
        demand: Demand<'_>,
        clock: &Clock,
        forecast: impl Fn(u64) -> Forecast,
    ) -> ReadyAt<'a> {
        let (id, units) = (TurnstileId::of(self), demand.units());
        loop {
            let before = self.before(demand.holder(id), units);
            if before.lapsed {
                demand.redeem(id);
            }
            let behind = before.is_anything() && units > 0;
            let due = match forecast(demand.ahead().saturating_add(before.units)) {
                Forecast::Event => return ReadyAt::on_event(leg),
                Forecast::Now if !behind => return ReadyAt::NOW,
                Forecast::Now => demand.now(clock),
                // As of an instant that has passed it can be due by now.
                Forecast::At(at) if behind && demand.is_in_line() && at <= clock.now() => at,
                Forecast::At(at) => return ReadyAt::at(leg, at).by_turns(self, units, behind),
            };
            let Some(late) = self.late(before, clock.now(), clock) else {
                continue;
            };
            if !demand.is_in_line() {
                return ReadyAt::at(leg, late.until);
            }
            // The queue of the first may not know that its turn has come. What it panics with is not for this demand.
            quietly(|| late.waker.wake_by_ref());
            return ReadyAt::due_in_turn(leg, due, self, units).by(late.until);
        }
    }

    /// Lets `demand` try, if no other is before it. Fails with the instant to try again at, if there is one.
    #[cold]
    pub(crate) fn let_try(
        &self,
        demand: Demand<'_>,
        clock: &Clock,
        forecast: impl Fn(u64) -> Forecast,
    ) -> Result<(), Option<Instant>> {
        let id = TurnstileId::of(self);
        loop {
            let before = self.before(demand.holder(id), demand.units());
            if demand.units() == 0 || !before.is_anything() {
                return Ok(());
            }
            return match forecast(before.units) {
                Forecast::Event => Err(None),
                Forecast::At(at) => Err(Some(at)),
                Forecast::Now => match self.late(before, clock.now(), clock) {
                    Some(late) => Err(Some(late.until)),
                    None => continue,
                },
            };
        }
    }
}
