//! The states of a circuit and the ways between them. Every change begins a new *period*: what was admitted in an older
//! one has no say in a newer one.
//!
//! ```text
//!            thresholds                 open time over, somebody asks
//!   Closed --------------> Open ------------------------------------> HalfOpen
//!      ^                    ^                                          |    |
//!      |                    '----- too many probes bad, or none back --'    |
//!      '------------------------------ enough probes good ------------------'
//!
//!   ForcedOpen, Disabled, MetricsOnly: by hand, and left by hand.
//! ```

use super::judge::{Counts, Judge, Mark};
use super::trial::{Trial, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    // Those that admit without asking the machine come first: see `admits`.
    Closed = 0,
    Disabled = 1,
    MetricsOnly = 2,
    Open = 3,
    HalfOpen = 4,
    ForcedOpen = 5,
}

impl State {
    const ALL: [State; 6] = [
        State::Closed,
        State::Disabled,
        State::MetricsOnly,
        State::Open,
        State::HalfOpen,
        State::ForcedOpen,
    ];

    #[inline]
    pub(crate) fn admits(self) -> bool {
        self as u8 <= State::MetricsOnly as u8
    }

    /// True when results go into the window.
    #[inline]
    pub(crate) fn records(self) -> bool {
        matches!(self, State::Closed | State::MetricsOnly)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self::ALL[(bits as usize).min(Self::ALL.len() - 1)]
    }
}

/// What somebody hears who asks a circuit that does not simply admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Answer {
    /// Goes, as a probe where the circuit is half-open.
    Goes,
    /// Not before this instant.
    Until(u64),
    /// Not before something happens.
    OnEvent,
    /// Not before a probe comes back, or all of them are overdue, at this instant.
    OnProbe(u64),
    /// The probes of the trial are overdue: it has to be ended first.
    Overdue,
}

/// Instants and lengths of time are in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    state: State,
    /// Counts up with every change of state. What is out remembers 32 bits of it.
    period: u64,
    /// When an open circuit lets probes through.
    until: u64,
    /// How often in a row it has opened; zero once it has closed.
    opened: u32,
    trial: Trial,
    /// When the latest probe went out.
    probed: u64,
    /// What opened the circuit.
    reason: Counts,
    /// Not to be tried before, as the resource itself has said.
    hold_off: u64,
    probes: u64,
    overdue_after: u64,
}

impl Machine {
    pub(crate) fn new(probes: u64, overdue_after: u64) -> Self {
        Self {
            state: State::Closed,
            period: 0,
            until: 0,
            opened: 0,
            trial: Trial::default(),
            probed: 0,
            reason: Counts::default(),
            hold_off: 0,
            probes,
            overdue_after,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn period(&self) -> u64 {
        self.period
    }

    pub(crate) fn until(&self) -> u64 {
        self.until
    }

    /// How many probes a trial has.
    pub(crate) fn probes(&self) -> u64 {
        self.probes
    }

    pub(crate) fn opened(&self) -> u32 {
        self.opened
    }

    /// The results of the trial, or those that opened the circuit.
    pub(crate) fn counts(&self) -> Counts {
        match self.state {
            State::HalfOpen => self.trial.results(),
            _ => self.reason,
        }
    }

    /// The results of the latest trial, also once it is over.
    pub(crate) fn trial(&self) -> Counts {
        self.trial.results()
    }

    /// True when `period`, of which 32 bits count, is not over.
    fn is_in(&self, period: u64) -> bool {
        period as u32 == self.period as u32
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.period += 1;
    }

    /// What `units` calls would hear, behind `ahead` others. Changes nothing.
    pub(crate) fn answer(&self, units: u64, ahead: u64, now: u64) -> Answer {
        match self.state {
            State::Closed | State::Disabled | State::MetricsOnly => Answer::Goes,
            State::ForcedOpen => Answer::OnEvent,
            State::Open if now < self.until => Answer::Until(self.until),
            State::Open => Self::fits(self.probes, self.probes, units, ahead),
            State::HalfOpen => match Self::fits(self.trial.free(), self.trial.missing(), units, ahead) {
                Answer::Goes => Answer::Goes,
                // A probe that is not out can be asked for by whoever is ahead.
                _ if self.trial.out() == 0 => Answer::OnEvent,
                _ => match self.probed.saturating_add(self.overdue_after) {
                    overdue if overdue <= now => Answer::Overdue,
                    overdue => Answer::OnProbe(overdue),
                },
            },
        }
    }

    /// An ask of more calls than there are results to come is all of them: nobody waits for probes that will never be.
    fn fits(free: u64, missing: u64, units: u64, ahead: u64) -> Answer {
        if units.min(missing).saturating_add(ahead) <= free {
            Answer::Goes
        } else {
            Answer::OnEvent
        }
    }

    /// Lets `units` calls through, or says why not. Whoever comes first after the open time begins the trial.
    pub(crate) fn ask(&mut self, units: u64, now: u64) -> Answer {
        let answer = self.answer(units, 0, now);
        if answer == Answer::Goes && matches!(self.state, State::Open | State::HalfOpen) {
            if self.state == State::Open {
                self.enter(State::HalfOpen);
                self.trial = Trial::new(self.probes);
            }
            let taken = self.trial.take(units.min(self.trial.missing()));
            debug_assert!(taken, "the answer was that they fit");
            self.probed = self.probed.max(now);
        }
        answer
    }

    /// `units` probes of the trial come back without a result. True when they were this trial's.
    pub(crate) fn give_back(&mut self, period: u64, units: u64) -> bool {
        let ours = self.is_in(period) && self.state == State::HalfOpen;
        if ours {
            self.trial.give_back(units);
        }
        ours
    }

    /// `units` probes come back with a result. Results of an older period decide nothing.
    pub(crate) fn record_probe(&mut self, period: u64, mark: Mark, units: u64, judge: &Judge) -> Verdict {
        if !self.is_in(period) || self.state != State::HalfOpen {
            return Verdict::Undecided;
        }
        self.trial.record(mark, units, judge)
    }

    /// Opens for `open` ticks, or until the resource wants to be asked again, whichever is later. False when `period`
    /// is over: somebody else has changed the state.
    pub(crate) fn open(&mut self, period: u64, reason: Counts, open: u64, now: u64) -> bool {
        if !self.is_in(period) {
            return false;
        }
        self.enter(State::Open);
        self.reason = reason;
        self.opened = self.opened.saturating_add(1);
        self.until = now.saturating_add(open).max(self.hold_off);
        true
    }

    /// Goes to a state that is left by results or by hand.
    pub(crate) fn go(&mut self, state: State) {
        self.enter(state);
        self.opened = 0;
        self.hold_off = 0;
        self.reason = Counts::default();
    }

    /// The resource is not to be tried before `until`. True when the circuit is open and that is later than it was.
    pub(crate) fn hold_off(&mut self, until: u64) -> bool {
        self.hold_off = self.hold_off.max(until);
        let later = self.state == State::Open && self.hold_off > self.until;
        if later {
            self.until = self.hold_off;
        }
        later
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn a_state_is_read_back_from_its_bits() {
        for state in State::ALL {
            assert_eq!(State::from_bits(state as u64), state);
        }
        assert_eq!(State::from_bits(99), State::ForcedOpen);
        let admitting = State::ALL.into_iter().filter(|state| state.admits());
        let expected = [State::Closed, State::Disabled, State::MetricsOnly];
        assert!(admitting.eq(expected));
    }
}
