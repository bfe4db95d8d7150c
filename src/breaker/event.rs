//! What a breaker tells: its state, its numbers, and the changes of its state.

use super::machine::CircuitState;
use super::thresholds::{CallCounts, Thresholds};
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

impl From<CircuitState> for BreakerState {
    fn from(state: CircuitState) -> Self {
        match state {
            CircuitState::Closed => Self::Closed,
            CircuitState::Disabled => Self::Disabled,
            CircuitState::MetricsOnly => Self::MetricsOnly,
            CircuitState::Open => Self::Open,
            CircuitState::HalfOpen => Self::HalfOpen,
            CircuitState::ForcedOpen => Self::ForcedOpen,
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
    /// In millionths, of failures and of slow calls.
    usual: (Option<u64>, Option<u64>),
    thresholds: (Option<u64>, Option<u64>),
}

impl BreakerMetrics {
    pub(super) fn new(
        state: CircuitState,
        period: u64,
        counts: CallCounts,
        refused: u64,
        thresholds: Thresholds,
    ) -> Self {
        Self {
            state: state.into(),
            period,
            calls: counts.calls,
            failed: counts.failed,
            slow: counts.slow,
            refused,
            minimum: thresholds.minimum,
            usual: (None, None),
            thresholds: (thresholds.failure_rate, thresholds.slow_rate),
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

    pub(super) fn with_usual(mut self, usual: (Option<u64>, Option<u64>)) -> Self {
        self.usual = usual;
        self
    }

    /// The part of the calls that usually fails, as [history](crate::breaker::History) has it; `None` without one, or
    /// before it knows.
    pub fn usual_failure_rate(&self) -> Option<f64> {
        self.usual.0.map(part)
    }

    /// The part of the calls that is usually slow, likewise.
    pub fn usual_slow_rate(&self) -> Option<f64> {
        self.usual.1.map(part)
    }

    /// The part of failures that opens the circuit, for so many results as there are; `None` when it is not judged.
    pub fn failure_threshold(&self) -> Option<f64> {
        self.thresholds.0.map(part)
    }

    /// The part of slow calls that opens the circuit, likewise.
    pub fn slow_threshold(&self) -> Option<f64> {
        self.thresholds.1.map(part)
    }

    fn rate(&self, part: u64) -> Option<f64> {
        (self.calls > 0 && self.calls >= self.minimum).then(|| part as f64 / self.calls as f64)
    }
}

/// Of millionths.
fn part(millionths: u64) -> f64 {
    millionths as f64 / 1e6
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
