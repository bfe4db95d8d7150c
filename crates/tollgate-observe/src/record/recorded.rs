//! A limiter whose requests are recorded.

use super::log::{AdmissionLog, Number};
use std::fmt;
use tollgate::bridge::{both, permit_of};
use tollgate::status::Status;
use tollgate::sync::WaitQueue;
use tollgate::{
    Ask, Clock, ClockReading, Demand, Limiter, Outcome, Permit, Policy, ReadyAt, Refusal, Rejection, Settlement,
};

/// A limiter or a policy with an [`AdmissionLog`]. Made by [`AdmissionLog::record`].
///
/// A request is one call of a verb: a [`try_admit`](tollgate::LimiterExt::try_admit), or an [`admit`](Self::admit) with its wait. A
/// reservation that is dropped before it starts is none. A permit that is forgotten is recorded as one that ended then.
///
/// # Memory ordering
/// That of the limiter inside.
///
/// ```
/// # use tollgate_observe::record::AdmissionLog;
/// # use tollgate::{LimiterExt, ManualClock, Semaphore};
/// let log = AdmissionLog::new(100, &[]);
/// let gate = log.record(Semaphore::new(1)).on(&ManualClock::new());
/// let _permit = gate.try_admit(1).unwrap();
/// assert!(gate.try_admit(1).is_err());
/// assert_eq!((gate.limiter().in_use(), log.write(&mut std::io::sink())?), (1, 1), "the other has not ended");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Recorded<L> {
    limiter: L,
    log: AdmissionLog,
    clock: Clock,
}

impl<L: Limiter> Recorded<L> {
    pub(super) fn new(limiter: L, log: AdmissionLog) -> Self {
        let clock = limiter.clock().cloned().unwrap_or_default();
        Self { limiter, log, clock }
    }

    /// Measures by `clock` if the limiter has no clock of its own.
    #[must_use]
    pub fn on(mut self, clock: &Clock) -> Self {
        if self.limiter.clock().is_none() {
            self.clock = clock.clone();
        }
        self
    }

    /// The limiter inside. Its own verbs are not recorded.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    fn number(ticket: &(u64, L::Ticket)) -> Option<Number> {
        Number::of_word(ticket.0)
    }
}

impl<L: Limiter + 'static> Recorded<Policy<L>> {
    /// Admits in turn, as [`Policy::admit`], and records the request with its wait.
    ///
    /// # Errors
    /// As [`Policy::admit`].
    ///
    /// # Cancel safety
    /// As [`Policy::admit`]; a dropped future is recorded as [cancelled](AdmissionLog::CANCELLED).
    pub async fn admit(&self, ask: impl Into<Ask>) -> Result<Permit<Self>, Rejection> {
        let ask = ask.into();
        let wait = RecordedWait {
            gate: self,
            number: self.log.begin(&ask, &self.clock, self.clock.now()),
        };
        match self.limiter.admit_owned(ask).await {
            Ok(permit) => {
                let number = wait.ended();
                if let Some(number) = number {
                    self.log.admitted(number, &self.clock, self.clock.now());
                }
                Ok(permit_of(self.clone(), permit, |ticket| (Number::word(number), ticket)))
            }
            Err(rejection) => {
                if let Some(number) = wait.ended() {
                    self.log.refused(number, &rejection.leg, &self.clock, self.clock.now());
                }
                Err(rejection)
            }
        }
    }
}

/// A request that waits.
struct RecordedWait<'a, L: Limiter + 'static> {
    gate: &'a Recorded<Policy<L>>,
    number: Option<Number>,
}

impl<L: Limiter> RecordedWait<'_, L> {
    fn ended(mut self) -> Option<Number> {
        self.number.take()
    }
}

impl<L: Limiter> Drop for RecordedWait<'_, L> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let Recorded { log, clock, .. } = self.gate;
            log.refused(number, AdmissionLog::CANCELLED, clock, clock.now());
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for Recorded<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recorded").field(&self.limiter).finish()
    }
}

impl<L: Limiter> Limiter for Recorded<L> {
    /// The number of the record and one, or zero, and the ticket of the limiter inside.
    type Ticket = (u64, L::Ticket);

    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        let now = demand.now(&self.clock);
        match self.limiter.try_reserve(demand) {
            Ok(ticket) => {
                let number = self.log.begin(demand.ask(), &self.clock, now);
                Ok((Number::word(number), ticket))
            }
            Err(refusal) => {
                // First the leg, which the other legs are asked for.
                let leg = refusal.leg();
                if let Some(number) = self.log.begin(demand.ask(), &self.clock, now) {
                    self.log.refused(number, leg, &self.clock, now);
                }
                Err(refusal)
            }
        }
    }

    fn cancel(&self, ticket: Self::Ticket, now: &ClockReading) {
        if let Some(number) = Self::number(&ticket) {
            self.log.withdrawn(number);
        }
        self.limiter.cancel(ticket.1, now);
    }

    fn commit(&self, ticket: &mut Self::Ticket, now: &ClockReading) {
        if let Some(number) = Self::number(ticket) {
            self.log.admitted(number, &self.clock, now.now(&self.clock));
        }
        self.limiter.commit(&mut ticket.1, now);
    }

    fn settle(&self, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        let corrected = self.limiter.settle(&mut ticket.1, actual);
        let units = actual.per(actual.cost()).actual().filter(|_| corrected > 0);
        if let (Some(number), Some(units)) = (Self::number(ticket), units) {
            self.log.settled(number, actual.cost(), units);
        }
        corrected
    }

    fn finish(&self, ticket: Self::Ticket, outcome: Outcome, now: &ClockReading) {
        let ended = || {
            if let Some(number) = Self::number(&ticket) {
                self.log.finished(number, outcome, &self.clock, now.now(&self.clock));
            }
        };
        both(|| self.limiter.finish(ticket.1, outcome, now), ended);
    }

    fn forget(&self, ticket: Self::Ticket) {
        if let Some(number) = Self::number(&ticket) {
            self.log
                .finished(number, Outcome::Ignored, &self.clock, self.clock.now());
        }
        self.limiter.forget(ticket.1);
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        visit(&self.clock);
        self.limiter.clocks(visit);
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.limiter.ready_at(demand)
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.limiter.queues(visit);
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        self.limiter.visit_status(visit);
    }

    fn visit_sources<'a>(&'a self, (_, ticket): &Self::Ticket, visit: &mut dyn FnMut(&'a str)) {
        self.limiter.visit_sources(ticket, visit);
    }
}
