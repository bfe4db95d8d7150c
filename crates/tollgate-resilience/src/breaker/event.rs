//! The state of a breaker, its metrics, and its events.

use super::machine::CircuitState;
use super::thresholds::{CallCounts, Thresholds};
use std::time::Duration;
use tollgate::status::BreakerState;

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

/// The counts of a breaker: of its window while it is closed, of its probes while it is half-open, and those that
/// opened it while it is open.
///
/// ```
/// # use tollgate::{LimiterExt, Outcome};
/// # use tollgate_resilience::{BreakerState, CircuitBreaker};
/// let breaker = CircuitBreaker::new();
/// for outcome in [Outcome::Success, Outcome::Failure, Outcome::Success] {
///     breaker.try_admit(1).unwrap().finish(outcome);
/// }
/// let metrics = breaker.metrics();
/// assert_eq!((metrics.calls, metrics.failed), (3, 1));
/// assert_eq!(metrics.state, BreakerState::Closed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerMetrics {
    /// The state.
    pub state: BreakerState,
    /// The number of changes of state so far.
    pub period: u64,
    /// The number of results.
    pub calls: u64,
    /// The failures among them.
    pub failed: u64,
    /// The slow results among them, failed or not.
    pub slow: u64,
    /// The refused attempts in this state.
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

    /// The part of the results that are failures, 0 to 1; `None` if there are too few results.
    pub fn failure_rate(&self) -> Option<f64> {
        self.rate(self.failed)
    }

    /// The part of the results that are slow, 0 to 1; `None` if there are too few results.
    pub fn slow_rate(&self) -> Option<f64> {
        self.rate(self.slow)
    }

    pub(super) fn with_usual(mut self, usual: (Option<u64>, Option<u64>)) -> Self {
        self.usual = usual;
        self
    }

    /// The usual part of failures, from [history](crate::breaker::History); `None` without a history, or before it has
    /// learnt enough.
    pub fn usual_failure_rate(&self) -> Option<f64> {
        self.usual.0.map(part)
    }

    /// The usual part of slow calls, likewise.
    pub fn usual_slow_rate(&self) -> Option<f64> {
        self.usual.1.map(part)
    }

    /// The part of failures that opens the circuit, for the current number of results; `None` if it is not judged.
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

/// As a fraction.
fn part(millionths: u64) -> f64 {
    millionths as f64 / 1e6
}

/// A change of state. Events of several threads may arrive in another order than they happened:
/// [`period`](Self::period) has their order.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # use tollgate::{LimiterExt, Outcome};
/// # use tollgate_resilience::{BreakerState, CircuitBreaker};
/// let events = Arc::new(Mutex::new(Vec::new()));
/// let log = Arc::clone(&events);
/// let builder = CircuitBreaker::builder().consecutive_failures(1);
/// let breaker = builder.on_event(move |event| log.lock().unwrap().push(event)).build().unwrap();
/// breaker.try_admit(1).unwrap().finish(Outcome::Failure);
/// let events = events.lock().unwrap();
/// assert_eq!((events[0].from, events[0].to), (BreakerState::Closed, BreakerState::Open));
/// assert_eq!(events[0].open_for.unwrap().as_secs(), 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerEvent {
    /// The state before.
    pub from: BreakerState,
    /// The state from now on.
    pub to: BreakerState,
    /// The number of this change, counting from 1.
    pub period: u64,
    /// The number of results judged; zero if none were.
    pub calls: u64,
    /// The failures among them.
    pub failed: u64,
    /// The slow results among them.
    pub slow: u64,
    /// How long it is open, if it is.
    pub open_for: Option<Duration>,
}
