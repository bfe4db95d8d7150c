//! What can be asked of a breaker, and done to it by hand.

use super::circuit::CircuitBreaker;
use super::event::{BreakerMetrics, BreakerState};
use crate::algo::breaker::{Judge, State};
use crate::sync::shim::atomic::Ordering;
use crate::time::Instant;
use std::time::Duration;

impl CircuitBreaker {
    /// The state. A snapshot: an open circuit whose time is over is open until somebody asks.
    pub fn state(&self) -> BreakerState {
        self.word().state().into()
    }

    /// What it has seen. A snapshot.
    pub fn metrics(&self) -> BreakerMetrics {
        let now = self.clock.now().ticks();
        let machine = self.machine.lock();
        let (state, period) = (machine.state(), machine.period());
        let counts = match state {
            _ if state.records() => self.window.recount(period, now),
            _ => machine.counts(),
        };
        let judge = match state {
            _ if state.records() => self.judge_of(counts.calls),
            _ => Judge {
                minimum: 1,
                ..self.judge_of(counts.calls)
            },
        };
        // Relaxed: a statistic.
        let refused = self.refused.load(Ordering::Relaxed);
        let metrics = BreakerMetrics::new(state, period, counts, refused, judge);
        match &self.config.learnt {
            Some(learnt) => metrics.with_usual(learnt.usual()),
            None => metrics,
        }
    }

    /// How long it is still open, rounded up to a nanosecond; zero when probes may go. `None` when it is not open, or
    /// open until it is told otherwise.
    pub fn retry_after(&self) -> Option<Duration> {
        let now = self.clock.now();
        let machine = self.machine.lock();
        (machine.state() == State::Open).then(|| self.clock.between(now, Instant::from_ticks(machine.until())))
    }

    /// The resource has said not to be asked again for so long, as in `Retry-After`. An open circuit stays open at least
    /// that long; one that opens before that is over will. Closing forgets it.
    pub fn hold_off(&self, time: Duration) {
        let now = self.clock.now();
        let until = self.clock.after(now, time).ticks();
        self.change(now.ticks(), |machine| machine.hold_off(until));
    }

    /// Opens now for `time`, whatever has been seen.
    pub fn trip(&self, time: Duration) {
        let now = self.clock.now().ticks();
        let open = self.clock.ticks_of(time);
        self.change(now, |machine| {
            let (period, counts) = (machine.period(), machine.counts());
            machine.open(period, counts, open, now)
        });
    }

    /// Refuses everything until it is told otherwise.
    pub fn force_open(&self) {
        self.go(State::ForcedOpen);
    }

    /// Admits everything, and records nothing, until it is told otherwise.
    pub fn disable(&self) {
        self.go(State::Disabled);
    }

    /// Admits everything, and records it without ever opening, until it is told otherwise: to see what thresholds would
    /// do.
    pub fn metrics_only(&self) {
        self.go(State::MetricsOnly);
    }

    /// Closes with an empty window, from whatever state.
    pub fn reset(&self) {
        self.go(State::Closed);
    }

    fn go(&self, state: State) {
        let now = self.clock.now().ticks();
        self.change(now, |machine| machine.go(state));
    }
}
