//! The states of a circuit and the transitions between them. Every change begins a new *period*: an admission of an
//! older period decides nothing in a newer one.
//!
//! ```text
//!            thresholds                 open time over, next call
//!   Closed --------------> Open ------------------------------------> HalfOpen
//!      ^                    ^                                          |    |
//!      |                    '----- too many probes bad, or none back --'    |
//!      '------------------------------ enough probes good ------------------'
//!
//!   ForcedOpen, Disabled, MetricsOnly: by hand, and left by hand.
//! ```
//!
//! The probes of a half-open circuit: each is out, back with a result, or free.
//!
//! Invariant: `out + results <= count`. A probe that comes back without a result is free again. So the half-open period
//! lasts until all probes have results, and no probe is lost.

use super::thresholds::{CallCounts, CallResult, Thresholds};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CircuitState {
    // The states that admit without asking the machine come first: see `admits`.
    Closed = 0,
    Disabled = 1,
    MetricsOnly = 2,
    Open = 3,
    HalfOpen = 4,
    ForcedOpen = 5,
}

impl CircuitState {
    const ALL: [CircuitState; 6] = [
        CircuitState::Closed,
        CircuitState::Disabled,
        CircuitState::MetricsOnly,
        CircuitState::Open,
        CircuitState::HalfOpen,
        CircuitState::ForcedOpen,
    ];

    #[inline]
    pub(super) fn admits(self) -> bool {
        self as u8 <= CircuitState::MetricsOnly as u8
    }

    /// True when results go into the window.
    #[inline]
    pub(super) fn records(self) -> bool {
        matches!(self, CircuitState::Closed | CircuitState::MetricsOnly)
    }

    #[inline]
    pub(super) fn from_bits(bits: u64) -> Self {
        Self::ALL[(bits as usize).min(Self::ALL.len() - 1)]
    }
}

/// The machine's answer when a circuit does not simply admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Answer {
    /// Admitted, as a probe if the circuit is half-open.
    Goes,
    /// Refused until this instant.
    Until(u64),
    /// Refused until an event.
    OnEvent,
    /// Refused until a probe comes back, or all of them are overdue, at this instant.
    OnProbe(u64),
    /// The probes are overdue: the caller has to open the circuit first.
    Overdue,
}

impl Answer {
    /// The same for a caller that does not come back when the probes are overdue.
    pub(super) fn without_limit(self) -> Self {
        match self {
            Self::OnProbe(_) => Self::OnEvent,
            other => other,
        }
    }
}

/// Instants and lengths of time are in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    state: CircuitState,
    /// Counts up with every change of state. Tickets remember 32 bits of it.
    period: u64,
    /// When an open circuit lets probes through.
    until: u64,
    /// How many times in a row it has opened; zero once it has closed.
    opened: u32,
    probes: Probes,
    /// When the latest probe went out.
    probed: u64,
    /// The results that opened the circuit.
    reason: CallCounts,
    /// The resource has asked for no probe before.
    hold_off: u64,
    probe_count: u64,
    overdue_after: u64,
}

impl Machine {
    pub(super) fn new(probes: u64, overdue_after: u64) -> Self {
        Self {
            state: CircuitState::Closed,
            period: 0,
            until: 0,
            opened: 0,
            probes: Probes::default(),
            probed: 0,
            reason: CallCounts::default(),
            hold_off: 0,
            probe_count: probes,
            overdue_after,
        }
    }

    pub(super) fn state(&self) -> CircuitState {
        self.state
    }

    pub(super) fn period(&self) -> u64 {
        self.period
    }

    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// How many probes a half-open circuit has.
    pub(super) fn probe_count(&self) -> u64 {
        self.probe_count
    }

    pub(super) fn opened(&self) -> u32 {
        self.opened
    }

    /// The results of the probes, or those that opened the circuit.
    pub(super) fn counts(&self) -> CallCounts {
        match self.state {
            CircuitState::HalfOpen => self.probes.results(),
            _ => self.reason,
        }
    }

    /// The results of the latest probes, also once they are decided.
    pub(super) fn probe_results(&self) -> CallCounts {
        self.probes.results()
    }

    /// True if `period`, of which 32 bits count, is not over.
    fn is_in(&self, period: u64) -> bool {
        period as u32 == self.period as u32
    }

    fn enter(&mut self, state: CircuitState) {
        self.state = state;
        self.period += 1;
    }

    /// The answer to `units` calls, behind `ahead` others. Changes nothing.
    pub(super) fn answer(&self, units: u64, ahead: u64, now: u64) -> Answer {
        match self.state {
            CircuitState::Closed | CircuitState::Disabled | CircuitState::MetricsOnly => Answer::Goes,
            CircuitState::ForcedOpen => Answer::OnEvent,
            CircuitState::Open if now < self.until => Answer::Until(self.until),
            CircuitState::Open => Self::fits(self.probe_count, self.probe_count, units, ahead),
            CircuitState::HalfOpen => match Self::fits(self.probes.free(), self.probes.missing(), units, ahead) {
                Answer::Goes => Answer::Goes,
                // A caller ahead may take a probe that is not out.
                _ if self.probes.out() == 0 => Answer::OnEvent,
                _ => match self.probed.saturating_add(self.overdue_after) {
                    overdue if overdue <= now => Answer::Overdue,
                    overdue => Answer::OnProbe(overdue),
                },
            },
        }
    }

    /// An ask of more calls than there are results to come takes all of them: no caller waits for probes that will
    /// never be.
    fn fits(free: u64, missing: u64, units: u64, ahead: u64) -> Answer {
        if units.min(missing).saturating_add(ahead) <= free {
            Answer::Goes
        } else {
            Answer::OnEvent
        }
    }

    /// Lets `units` calls through, or says why not. The first call after the open time makes the circuit half-open.
    pub(super) fn ask(&mut self, units: u64, now: u64) -> Answer {
        let answer = self.answer(units, 0, now);
        if answer == Answer::Goes && matches!(self.state, CircuitState::Open | CircuitState::HalfOpen) {
            if self.state == CircuitState::Open {
                self.enter(CircuitState::HalfOpen);
                self.probes = Probes::new(self.probe_count);
            }
            let taken = self.probes.take(units.min(self.probes.missing()));
            debug_assert!(taken, "the answer was that they fit");
            self.probed = self.probed.max(now);
        }
        answer
    }

    /// Returns `units` probes without a result. True if they belong to this period.
    pub(super) fn give_back(&mut self, period: u64, units: u64) -> bool {
        let ours = self.is_in(period) && self.state == CircuitState::HalfOpen;
        if ours {
            self.probes.give_back(units);
        }
        ours
    }

    /// Records the result of `units` probes. Results of an older period decide nothing.
    pub(super) fn record_probe(
        &mut self,
        period: u64,
        result: CallResult,
        units: u64,
        thresholds: &Thresholds,
    ) -> ProbeVerdict {
        if !self.is_in(period) || self.state != CircuitState::HalfOpen {
            return ProbeVerdict::Undecided;
        }
        self.probes.record(result, units, thresholds)
    }

    /// Opens for `open` ticks, or until the end of a hold-off, whichever is later. False if `period` is over: another
    /// thread has changed the state.
    pub(super) fn open(&mut self, period: u64, reason: CallCounts, open: u64, now: u64) -> bool {
        if !self.is_in(period) {
            return false;
        }
        self.enter(CircuitState::Open);
        self.reason = reason;
        self.opened = self.opened.saturating_add(1);
        self.until = now.saturating_add(open).max(self.hold_off);
        true
    }

    /// Changes to a state that is left by results or by hand.
    pub(super) fn go(&mut self, state: CircuitState) {
        self.enter(state);
        self.opened = 0;
        self.hold_off = 0;
        self.reason = CallCounts::default();
    }

    /// Allows no probe before `until`. True if the circuit is open and that is later than it was.
    pub(super) fn hold_off(&mut self, until: u64) -> bool {
        self.hold_off = self.hold_off.max(until);
        let later = self.state == CircuitState::Open && self.hold_off > self.until;
        if later {
            self.until = self.hold_off;
        }
        later
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Probes {
    count: u64,
    out: u64,
    results: CallCounts,
}

/// The verdict of the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum ProbeVerdict {
    /// Nothing yet.
    Undecided,
    Healthy,
    Sick,
}

impl Probes {
    pub(super) fn new(probes: u64) -> Self {
        Self {
            count: probes,
            ..Self::default()
        }
    }

    /// How many probes are free.
    pub(super) fn free(&self) -> u64 {
        self.count - self.out - self.results.calls
    }

    /// How many are out.
    pub(super) fn out(&self) -> u64 {
        self.out
    }

    /// How many results are to come.
    pub(super) fn missing(&self) -> u64 {
        self.count - self.results.calls
    }

    pub(super) fn results(&self) -> CallCounts {
        self.results
    }

    /// Takes `n` probes, if they are free.
    pub(super) fn take(&mut self, n: u64) -> bool {
        let fits = n <= self.free();
        if fits {
            self.out += n;
        }
        fits
    }

    /// Returns `n` probes without a result.
    pub(super) fn give_back(&mut self, n: u64) {
        self.out -= n.min(self.out);
    }

    /// Records the result of `n` probes.
    pub(super) fn record(&mut self, result: CallResult, n: u64, thresholds: &Thresholds) -> ProbeVerdict {
        let n = n.min(self.out);
        self.out -= n;
        self.results.add(result, n);
        match self.results.calls < self.count {
            true => ProbeVerdict::Undecided,
            false if thresholds.for_probes(self.count).are_reached_by(self.results) => ProbeVerdict::Sick,
            false => ProbeVerdict::Healthy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CircuitState;

    #[test]
    fn a_state_is_read_back_from_its_bits() {
        for state in CircuitState::ALL {
            assert_eq!(CircuitState::from_bits(state as u64), state);
        }
        assert_eq!(CircuitState::from_bits(99), CircuitState::ForcedOpen);
        let admitting = CircuitState::ALL.into_iter().filter(|state| state.admits());
        let expected = [CircuitState::Closed, CircuitState::Disabled, CircuitState::MetricsOnly];
        assert!(admitting.eq(expected));
    }
}
