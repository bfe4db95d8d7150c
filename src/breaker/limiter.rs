//! The breaker as a leg of a policy.

use super::circuit::{CircuitBreaker, LEG};
use super::word::{Admitted, Word};
use crate::algo::breaker::{Answer, Counts, State as AlgoState};
use crate::ask::Demand;
use crate::limiter::{Callbacks, Limiter, Outcome};
use crate::refusal::{ReadyAt, Reason, Refusal};
use crate::status::{State, Status};
use crate::ticket::Ticket;
use crate::time::{Clock, ClockReading, Instant};

/// In which period of a breaker work was admitted, how many calls it is, and when it began.
///
/// Two words, which a processor passes in registers: one of three goes through memory, which costs more than all that the
/// breaker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerTicket {
    /// The breaker's word, with the number of calls in it.
    admitted: Admitted,
    /// In ticks; zero when nobody wants to know.
    pub(super) started: u64,
}

impl BreakerTicket {
    #[inline(always)]
    pub(super) fn new(word: Word, units: u64, started: u64) -> Self {
        let admitted = word.admit(units);
        Self { admitted, started }
    }

    #[inline(always)]
    pub(super) fn word(self) -> Word {
        self.admitted.word()
    }

    #[inline(always)]
    pub(crate) fn units(self) -> u64 {
        self.admitted.units()
    }
}

impl Ticket for BreakerTicket {
    const WORDS: usize = 2;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[..2].copy_from_slice(&[self.admitted.bits(), self.started]);
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self {
            admitted: Admitted::from_bits(words[0]),
            started: words[1],
        }
    }
}

impl Limiter for CircuitBreaker {
    type Ticket = BreakerTicket;

    // Always inlined, as is `finish`: the ticket then stays in registers. Copied, it is read wider than it was written,
    // which costs as much as all the rest.
    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<BreakerTicket, Refusal<'_>> {
        let word = self.word();
        if !word.state().admits() {
            return self.ask_slow(demand.units(), demand.now(&self.clock));
        }
        let started = match self.config.times_calls {
            true => demand.now(&self.clock).ticks(),
            false => 0,
        };
        Ok(BreakerTicket::new(word, demand.units(), started))
    }

    #[inline(always)]
    fn finish_in(&self, ticket: &BreakerTicket, outcome: Outcome, now: &ClockReading) {
        self.finish(*ticket, outcome, now);
    }

    #[inline]
    fn cancel(&self, ticket: BreakerTicket, _: &ClockReading) {
        self.give_back(ticket);
    }

    #[inline(always)]
    fn finish(&self, ticket: BreakerTicket, outcome: Outcome, now: &ClockReading) {
        if self.word() != ticket.word() {
            return;
        }
        match self.simple_window(ticket) {
            Some(window) if outcome != Outcome::Ignored => {
                self.record_simple(window, ticket.word(), outcome != Outcome::Success, now);
            }
            _ => self.finish_slow(ticket, outcome, now),
        }
    }

    /// A probe that is forgotten stays out until it is overdue.
    #[inline]
    fn forget(&self, _: BreakerTicket) {}

    #[inline]
    fn callbacks(&self) -> Callbacks {
        Callbacks::FINISH
    }

    #[inline(always)]
    fn finish_may_panic(&self) -> bool {
        false
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        if self.word().state().admits() {
            return ReadyAt::NOW;
        }
        let now = demand.now(&self.clock).ticks();
        let answer = self.machine.lock().answer(demand.units(), demand.ahead(), now);
        let ready = match answer {
            // An overdue trial is ended by whoever asks for real.
            Answer::Goes | Answer::Overdue => ReadyAt::NOW,
            Answer::Until(until) => ReadyAt::at(LEG, Instant::from_ticks(until)),
            Answer::OnEvent => ReadyAt::on_event(LEG),
            Answer::OnProbe(overdue) => ReadyAt::on_event(LEG).by(Instant::from_ticks(overdue)),
        };
        match self.config.waits {
            true => ready,
            false => ready.at_once(Reason::CircuitOpen),
        }
    }

    /// Closed, with nothing learnt and no failed or slow call in its window: good ones count for nothing.
    fn is_pristine(&self, now: &ClockReading) -> bool {
        let word = self.word();
        let bad = |counts: Counts| counts.failed > 0 || counts.slow > 0;
        word.state() == AlgoState::Closed
            && !self.has_learnt()
            && !self.streak.is_running()
            && !bad(self.window.recount(word.period(), now.now(&self.clock).ticks()))
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let (state, open_for) = (self.state(), self.retry_after());
        visit(Status::new(LEG, LEG, State::Breaker { state, open_for }));
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn crate::sync::wait_queue::WaitQueue)) {}
}
