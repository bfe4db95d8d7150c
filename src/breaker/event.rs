//! What a breaker tells: its state, its numbers, and the changes of its state.

use crate::algo::breaker::{Counts, State};
use std::time::Duration;

/// The state of a [`CircuitBreaker`](crate::CircuitBreaker).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Admits, and judges by the window.
    Closed,
    /// Refuses until its time is over.
    Open,
    /// Admits so many probes, and judges by them.
    HalfOpen,
    /// Refuses until it is told otherwise.
    ForcedOpen,
    /// Admits everything and records nothing.
    Disabled,
    /// Admits everything and records it, and never opens.
    MetricsOnly,
}

impl From<State> for BreakerState {
    fn from(state: State) -> Self {
        match state {
            State::Closed => Self::Closed,
            State::Disabled => Self::Disabled,
            State::MetricsOnly => Self::MetricsOnly,
            State::Open => Self::Open,
            State::HalfOpen => Self::HalfOpen,
            State::ForcedOpen => Self::ForcedOpen,
        }
    }
}

/// What a breaker has seen: in its window while it is closed, of its probes while it is half-open, and what opened it
/// while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerMetrics {
    /// The state.
    pub state: BreakerState,
    /// How often the state has changed.
    pub period: u64,
    /// How many results there are.
    pub calls: u64,
    /// How many of them are failures.
    pub failed: u64,
    /// How many of them are slow, failed or not.
    pub slow: u64,
    /// How many attempts have been refused in this state.
    pub refused: u64,
    /// The number of results below which the rates say nothing.
    pub minimum: u64,
}

impl BreakerMetrics {
    pub(super) fn new(state: State, period: u64, counts: Counts, refused: u64, minimum: u64) -> Self {
        Self {
            state: state.into(),
            period,
            calls: counts.calls,
            failed: counts.failed,
            slow: counts.slow,
            refused,
            minimum,
        }
    }

    /// The part of the results that are failures, 0 to 1; `None` while there are too few.
    pub fn failure_rate(&self) -> Option<f64> {
        self.rate(self.failed)
    }

    /// The part of the results that are slow, 0 to 1; `None` while there are too few.
    pub fn slow_rate(&self) -> Option<f64> {
        self.rate(self.slow)
    }

    fn rate(&self, part: u64) -> Option<f64> {
        (self.calls > 0 && self.calls >= self.minimum).then(|| part as f64 / self.calls as f64)
    }
}

/// A change of state. Events of several threads may be told in another order than they happened:
/// [`period`](Self::period) has their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerEvent {
    /// The state before.
    pub from: BreakerState,
    /// The state from now on.
    pub to: BreakerState,
    /// The number of this change, counting from 1.
    pub period: u64,
    /// How many results were judged; zero when none were.
    pub calls: u64,
    /// How many of them were failures.
    pub failed: u64,
    /// How many of them were slow.
    pub slow: u64,
    /// For how long it is open, when it is.
    pub open_for: Option<Duration>,
}
