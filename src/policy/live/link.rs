//! Legs that depend on the load of another: when they apply, and with which numbers.

use super::node::{Body, Node};
use crate::policy::linked::{Gate, Load, Mark, Meter};
use crate::policy::spec::{LoadMetric, Peak, Rule, When};
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::time::{Clock, Instant};
use std::sync::Arc;

/// The load of a leg.
pub(super) struct LegLoad {
    pub(super) node: Arc<Node>,
    pub(super) metric: LoadMetric,
    /// None for what is not measured over a time: the use of a semaphore.
    pub(super) meter: Option<Arc<Meter>>,
}

impl LegLoad {
    /// True when the metric of such a leg is measured over a time.
    pub(super) fn is_measured(node: &Node, metric: LoadMetric) -> bool {
        metric != LoadMetric::Use || !matches!(node.body, Body::Semaphore(_))
    }

    /// What a use of one is in the meter's measure, units per second.
    fn full(&self) -> f64 {
        self.node.in_force().per_second().unwrap_or(f64::INFINITY)
    }
}

impl Load for LegLoad {
    fn read(&self, now: Instant) -> f64 {
        match (&self.node.body, self.metric, &self.meter) {
            (Body::Semaphore(semaphore), LoadMetric::Use, _) => match semaphore.limit() {
                // Paused: no more can be in use.
                0 => 1.0,
                limit => semaphore.in_use() as f64 / limit as f64,
            },
            (_, LoadMetric::Use, Some(meter)) => match meter.measured(LoadMetric::Rate, now) {
                0.0 => 0.0,
                rate => rate / self.full(),
            },
            (_, metric, Some(meter)) => meter.measured(metric, now),
            (_, _, None) => 0.0,
        }
    }

    fn falls_to(&self, mark: f64, now: Instant) -> Option<Instant> {
        let meter = self.meter.as_ref()?;
        match self.metric {
            LoadMetric::Use => meter.falls_to(LoadMetric::Rate, mark * self.full(), now),
            metric => meter.falls_to(metric, mark, now),
        }
    }
}

/// When a leg applies.
pub(super) struct Link {
    pub(super) when: When,
    pub(super) of: Arc<Node>,
    pub(super) gate: Gate,
}

impl Link {
    pub(super) fn new(when: &When, load: LegLoad, clock: &Clock) -> Self {
        let of = Arc::clone(&load.node);
        let mark = Mark::above(Arc::new(load), when.above).below(when.below).on(clock);
        Self {
            when: when.clone(),
            of,
            gate: Gate::new(mark),
        }
    }
}

/// Which numbers a leg has.
pub(super) struct PeakTable {
    pub(super) peak: Peak,
    pub(super) of: Arc<Node>,
    /// The numbers below the lowest mark, then those of each row.
    rules: Vec<Rule>,
    gates: Vec<Gate>,
    /// Whose numbers are in force. Written by whoever has the turn to change legs.
    row: AtomicUsize,
}

impl PeakTable {
    pub(super) fn new(peak: &Peak, base: &Rule, load: LegLoad, clock: &Clock) -> Self {
        let of = Arc::clone(&load.node);
        let load: Arc<dyn Load> = Arc::new(load);
        let rows = peak.steps.iter().map(|step| base.at(step));
        let gate = |above, below| Gate::new(Mark::above(Arc::clone(&load), above).below(below).on(clock));
        Self {
            rules: std::iter::once(base.clone()).chain(rows).collect(),
            gates: peak.steps.iter().map(|step| gate(step.above, step.below)).collect(),
            peak: peak.clone(),
            of,
            row: AtomicUsize::new(0),
        }
    }

    /// The numbers below the lowest mark.
    pub(super) fn base(&self) -> &Rule {
        &self.rules[0]
    }

    /// The row that applies at `now`: zero below the lowest mark.
    fn row_at(&self, now: Instant) -> usize {
        // Each gate is looked at, so that each keeps its own hysteresis.
        let mut row = 0;
        for (position, gate) in self.gates.iter().enumerate() {
            if gate.is_exceeded(now) {
                row = position + 1;
            }
        }
        row
    }

    /// True when other numbers than those in force apply at `now`.
    #[inline]
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        // Relaxed: who has the turn looks again.
        self.row_at(now) != self.row.load(Ordering::Relaxed)
    }

    /// The numbers that apply at `now`, which the caller puts in force.
    pub(super) fn advance(&self, now: Instant) -> &Rule {
        let row = self.row_at(now);
        self.row.store(row, Ordering::Relaxed);
        &self.rules[row]
    }

    /// When the load will have fallen to the next lower row, if that is known.
    pub(super) fn ends(&self, now: Instant) -> Option<Instant> {
        let row = self.row.load(Ordering::Relaxed);
        self.gates.get(row.checked_sub(1)?)?.ends(now)
    }
}
