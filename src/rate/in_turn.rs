//! How a rate answers where queues take [turns](crate::core::turns). All rates share it, and add a forecast only.

use crate::core::ask::{Demand, Place};
use crate::core::refusal::{ReadyAt, Reason, Refusal};
use crate::core::turns::{Before, Late, Turns};
use crate::sync::wait_queue::QueueId;
use crate::sync::wake::quietly;
use crate::time::{Clock, Instant};

/// When a rate admits a demand, once those before it have been admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forecast {
    Now,
    At(Instant),
    /// No instant is known.
    Event,
    /// Nothing comes back by itself.
    Spent,
    /// No instant can, under the settings in force.
    Never,
}

/// Passes on the refusal of a booking by the queues before it. If no instant admits the booking, its meter refuses it with
/// its own reason.
#[cold]
pub(super) fn let_book<'a>(judged: Result<(), Refusal<'a>>) -> Result<(), Refusal<'a>> {
    match judged {
        Err(refusal) if refusal.retry_after().is_some() => Err(refusal.with_reason(Reason::QueueFull)),
        _ => Ok(()),
    }
}

impl Turns {
    /// Answers `demand` for the rate `leg`. `forecast` says when it admits a number of units behind others.
    pub(crate) fn ready_at<'a>(
        &'a self,
        leg: &'a str,
        demand: Demand<'_>,
        clock: &Clock,
        forecast: impl Fn(u64, u64) -> Forecast,
    ) -> ReadyAt<'a> {
        let (id, units) = (QueueId::of(self), demand.units());
        loop {
            let before = self.before(demand.holder(id), units);
            if before.lapsed {
                demand.redeem(id);
            }
            let behind = before.is_anything() && units > 0;
            let at = match forecast(units, demand.ahead().saturating_add(before.units)) {
                Forecast::Never => return ReadyAt::never_for(Reason::Oversized, leg, units),
                Forecast::Event => return ReadyAt::on_event(leg).because(Reason::RateExceeded),
                Forecast::Spent => return ReadyAt::on_event(leg).because(Reason::RateExceeded).without_instant(),
                Forecast::Now if !behind => return ReadyAt::NOW,
                Forecast::Now => demand.now(clock),
                Forecast::At(at) if !behind => return ReadyAt::at(leg, at).by_turns(self, units, false),
                Forecast::At(at) => at,
            };
            let Ok(late) = self.late_first(before, clock, &forecast) else {
                continue;
            };
            let until = late.as_ref().map(|late| late.until);
            if let Some(late) = late.filter(|_| demand.is_queued()) {
                // Its queue may not know that its turn has come. A panic of its waker is not this demand's.
                quietly(|| late.waker.wake_by_ref());
            }
            // By a reading that is in the past it can be due by now.
            if demand.is_queued() && at <= clock.now() {
                let ready = ReadyAt::due_in_turn(leg, at, self, units).because(Reason::RateExceeded);
                return until.map_or(ready, |until| ready.by(until));
            }
            return ReadyAt::at(leg, sooner(at, until, clock)).by_turns(self, units, true);
        }
    }

    /// Lets a demand for `units` at `place` try, as of `now`, if no other is before it. Fails with the instant to try
    /// again at, if there is one. It takes the parts of a demand: a path that passes one on builds all of it in memory.
    #[cold]
    pub(crate) fn let_try(
        &self,
        units: u64,
        place: Option<&Place<'_>>,
        now: Instant,
        clock: &Clock,
        forecast: impl Fn(u64, u64) -> Forecast,
    ) -> Result<(), Option<Instant>> {
        let id = QueueId::of(self);
        loop {
            let before = self.before(Place::holder(place, id), units);
            if units == 0 || !before.is_anything() {
                return Ok(());
            }
            let at = match forecast(units, before.units) {
                // The rate refuses it for its own reason.
                Forecast::Never => return Ok(()),
                Forecast::Event | Forecast::Spent => return Err(None),
                Forecast::Now => now,
                Forecast::At(at) => at,
            };
            if let Ok(late) = self.late_first(before, clock, &forecast) {
                return Err(Some(sooner(at, late.map(|late| late.until), clock)));
            }
        }
    }

    /// The first demand `before`, if it is due and has not been admitted. Fails if it has gone, or lost its place: then
    /// the caller asks again.
    fn late_first(
        &self,
        before: Before,
        clock: &Clock,
        forecast: impl Fn(u64, u64) -> Forecast,
    ) -> Result<Option<Late>, ()> {
        if forecast(before.first_units, 0) != Forecast::Now {
            return Ok(None);
        }
        self.late(before, clock.now(), clock).map(Some).ok_or(())
    }
}

/// When to ask again: at `at`, or when the first demand before has lost its place, whichever is first. Never in the
/// past.
fn sooner(at: Instant, until: Option<Instant>, clock: &Clock) -> Instant {
    match until {
        Some(until) if until < at || at <= clock.now() => until,
        _ => at,
    }
}
