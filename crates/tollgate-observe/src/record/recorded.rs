//! A limiter whose requests are recorded.

use super::log::{AdmissionLog, Number};
use crate::clock_of;
use std::fmt;
use std::sync::Weak;
use tollgate::sync::both;
use tollgate::sync::{Place, Watch};
use tollgate::{Ask, Clock, Demand, Description, Limiter, Outcome, Permit, Policy, Refusal, Settlement};

/// A limiter or a policy with an [`AdmissionLog`]. Made by [`AdmissionLog::record`].
///
/// A request is one call of a verb: a [`try_admit`](tollgate::LimiterExt::try_admit), or an [`admit`](Self::admit) with its wait. A
/// permit that is [cancelled](Permit::cancel) is none. A permit that is forgotten is recorded as one that ended then.
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
        let clock = clock_of(&limiter).unwrap_or_default();
        Self { limiter, log, clock }
    }

    /// Measures by `clock` if the limiter has no clock of its own.
    #[must_use]
    pub fn on(mut self, clock: &Clock) -> Self {
        if clock_of(&self.limiter).is_none() {
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
    pub async fn admit(&self, ask: impl Into<Ask>) -> Result<Permit<Self>, Refusal> {
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
                Ok(permit.wrapped_by(self.clone(), |ticket| (Number::word(number), ticket)))
            }
            Err(refusal) => {
                if let Some(number) = wait.ended() {
                    self.log.refused(number, refusal.leg(), &self.clock, self.clock.now());
                }
                Err(refusal)
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

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        let now = demand.now(&self.clock);
        let reserved = self.limiter.try_reserve(demand);
        let number = self.log.begin(demand.ask(), &self.clock, now);
        match reserved {
            Ok(ticket) => Ok((Number::word(number), ticket)),
            Err(refusal) => {
                if let Some(number) = number {
                    self.log.refused(number, refusal.leg(), &self.clock, now);
                }
                Err(refusal)
            }
        }
    }

    fn cancel(&self, ticket: Self::Ticket) {
        if let Some(number) = Self::number(&ticket) {
            self.log.withdrawn(number);
        }
        self.limiter.cancel(ticket.1);
    }

    fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
        let ended = || {
            if let Some(number) = Self::number(&ticket) {
                self.log.finished(number, outcome, &self.clock, self.clock.now());
            }
        };
        both(|| self.limiter.finish(ticket.1, outcome), ended);
    }

    fn settle(&self, ticket: &mut Self::Ticket, settlement: &Settlement) -> u32 {
        let corrected = self.limiter.settle(&mut ticket.1, settlement);
        let units = settlement.per(settlement.cost()).actual().filter(|_| corrected > 0);
        if let (Some(number), Some(units)) = (Self::number(ticket), units) {
            self.log.settled(number, settlement.cost(), units);
        }
        corrected
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.limiter.look(demand)
    }

    fn leave(&self, place: &Place) {
        self.limiter.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.limiter.watch(watcher);
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.limiter.describe(&mut |leg| visit(leg.as_new(false)));
    }
}
