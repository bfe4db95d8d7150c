//! The breaker as a leg of a policy.

use super::circuit::{CircuitBreaker, LEG, parts};
use crate::algo::breaker::Answer;
use crate::ask::Demand;
use crate::limiter::{Heeds, Limiter, Outcome};
use crate::refusal::{ReadyAt, Refusal};
use crate::standing::{Standing, State};
use crate::ticket::Ticket;
use crate::time::{Clock, Instant, Pass};

/// In which period of a breaker work was admitted, how many calls it is, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerTicket {
    pub(super) word: u64,
    pub(super) units: u64,
    /// In ticks; zero when nobody wants to know.
    pub(super) started: u64,
}

impl BreakerTicket {
    #[inline]
    pub(super) fn new(word: u64, units: u64, started: u64) -> Self {
        Self { word, units, started }
    }
}

impl Ticket for BreakerTicket {
    const WORDS: usize = 3;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[..3].copy_from_slice(&[self.word, self.units, self.started]);
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self::new(words[0], words[1], words[2])
    }
}

impl Limiter for CircuitBreaker {
    type Ticket = BreakerTicket;

    // Always inlined, as is `finish`: the ticket then stays in registers. Copied, it is read wider than it was written,
    // which costs as much as all the rest.
    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<BreakerTicket, Refusal<'_>> {
        let word = self.word();
        if !parts(word).0.admits() {
            return self.ask_slow(demand.units(), demand.now(&self.clock));
        }
        let started = match self.config.times_calls() {
            true => demand.now(&self.clock).ticks(),
            false => 0,
        };
        Ok(BreakerTicket::new(word, demand.units(), started))
    }

    #[inline(always)]
    fn finish_in(&self, ticket: &BreakerTicket, outcome: Outcome, now: Pass<'_>) {
        self.finish(*ticket, outcome, now);
    }

    #[inline]
    fn cancel(&self, ticket: BreakerTicket, _: Pass<'_>) {
        self.give_back(ticket);
    }

    #[inline(always)]
    fn finish(&self, ticket: BreakerTicket, outcome: Outcome, now: Pass<'_>) {
        if self.word() != ticket.word {
            return;
        }
        match self.config.is_plain() && ticket.units == 1 && outcome != Outcome::Ignored {
            true => self.record_plain(ticket.word, outcome != Outcome::Success, now),
            false => self.record(ticket.word, ticket.units, ticket.started, outcome, now),
        }
    }

    /// A probe that is forgotten stays out until it is overdue.
    #[inline]
    fn forget(&self, _: BreakerTicket) {}

    #[inline]
    fn heeds(&self) -> Heeds {
        Heeds::FINISH
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.bell);
        if parts(self.word()).0.admits() {
            return ReadyAt::NOW;
        }
        let now = demand.now(&self.clock).ticks();
        let answer = self.machine.lock().answer(demand.units(), demand.ahead(), now);
        match answer {
            // An overdue trial is ended by whoever asks for real.
            Answer::Goes | Answer::Overdue => ReadyAt::NOW,
            Answer::Until(until) => ReadyAt::at(LEG, Instant::from_ticks(until)),
            Answer::OnEvent => ReadyAt::on_event(LEG),
            Answer::OnProbe(overdue) => ReadyAt::on_event(LEG).by(Instant::from_ticks(overdue)),
        }
    }

    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        let (state, open_for) = (self.state(), self.retry_after());
        visit(Standing::new(LEG, LEG, State::Breaker { state, open_for }));
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}
