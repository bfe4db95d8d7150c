//! Legs that depend on the load of another: when they apply, and by which numbers.

use super::leg_state::LegState;
use crate::core::conditional::{Gate, Load, Meter, Trigger};
use crate::policy::explain::MeasuredLoad;
use crate::policy::spec::{LegRule, LoadMetric, Peak, When};
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::time::{Clock, Instant};
use std::sync::Arc;
use std::time::Duration;

/// The load of a leg.
pub(super) struct LegLoad {
    pub(super) state: Arc<LegState>,
    pub(super) metric: LoadMetric,
    pub(super) over: Duration,
    /// `None` for the use of what is held, which is not measured over a time.
    pub(super) meter: Option<Arc<Meter>>,
}

impl LegLoad {
    /// True when the metric of such a leg is measured over a time.
    pub(super) fn is_measured(state: &LegState, metric: LoadMetric) -> bool {
        metric != LoadMetric::Use || !state.holds
    }

    /// True when both read the same number.
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state) && (self.metric, self.over) == (other.metric, other.over)
    }

    /// The rate that is a use of one, in units per second.
    fn full(&self) -> f64 {
        self.state.per_second().unwrap_or(f64::INFINITY)
    }
}

impl Load for LegLoad {
    fn read(&self, now: Instant) -> f64 {
        match (self.metric, &self.meter) {
            (LoadMetric::Use, Some(meter)) => match meter.measured(LoadMetric::Rate, now) {
                0.0 => 0.0,
                rate => rate / self.full(),
            },
            (metric, Some(meter)) => meter.measured(metric, now),
            (_, None) => match self.state.capacity() {
                None => 0.0,
                // Paused: no more can be in use.
                Some(0) => 1.0,
                Some(limit) => self.state.held() as f64 / limit as f64,
            },
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
pub(super) struct Condition {
    /// The text that identifies it.
    pub(super) key: String,
    when: When,
    load: Arc<LegLoad>,
    pub(super) gate: Gate,
}

impl Condition {
    pub(super) fn new(key: &str, when: &When, load: LegLoad, clock: &Clock) -> Self {
        let load = Arc::new(load);
        let trigger = Trigger::above(Arc::<LegLoad>::clone(&load), when.above)
            .below(when.below)
            .on(clock);
        Self {
            key: key.into(),
            when: when.clone(),
            load,
            gate: Gate::new(trigger),
        }
    }

    /// The load that it sees.
    pub(super) fn measured(&self, now: Instant) -> MeasuredLoad {
        MeasuredLoad {
            leg: self.when.leg.as_str().into(),
            metric: self.when.metric,
            load: self.load.read(now),
            above: self.when.above,
            below: self.when.below,
            exceeded: self.gate.is_exceeded(now),
        }
    }

    /// Takes over what the condition before knew of the same load. A load that was above a higher mark was above this one.
    pub(super) fn take_over(self: &Arc<Self>, before: Option<&Arc<Self>>) {
        if before.is_some_and(|before| Arc::ptr_eq(before, self)) {
            return;
        }
        let before = before.filter(|before| before.load.is_same(&self.load));
        let highest = before.and_then(|before| before.gate.was_above());
        self.gate.goes_on_from(highest);
    }
}

/// Which numbers a leg has.
pub(super) struct PeakTable {
    /// The text that identifies it.
    pub(super) key: String,
    peak: Peak,
    load: Arc<LegLoad>,
    /// The numbers below the lowest mark, then those of each row.
    rules: Vec<LegRule>,
    gates: Vec<Gate>,
    /// The row whose numbers are in force. Written under the lock of the registry.
    row: AtomicUsize,
}

impl PeakTable {
    pub(super) fn new(key: &str, peak: &Peak, base: &LegRule, load: LegLoad, clock: &Clock) -> Self {
        let load = Arc::new(load);
        let rows = peak.steps.iter().map(|step| base.at(step));
        let gate = |above, below| {
            let trigger = Trigger::above(Arc::<LegLoad>::clone(&load), above);
            Gate::new(trigger.below(below).on(clock))
        };
        Self {
            key: key.into(),
            rules: std::iter::once(base.clone()).chain(rows).collect(),
            gates: peak.steps.iter().map(|step| gate(step.above, step.below)).collect(),
            peak: peak.clone(),
            load,
            row: AtomicUsize::new(0),
        }
    }

    /// The most units that one ask can have under any of its rules.
    pub(super) fn most(&self) -> u64 {
        let most = self.rules.iter().map(|rule| rule.most().unwrap_or(u64::MAX));
        most.max().unwrap_or(u64::MAX)
    }

    /// Takes over what the table before knew of the same load, as [`Condition::take_over`] does.
    pub(super) fn take_over(self: &Arc<Self>, before: Option<&Arc<Self>>) {
        if before.is_some_and(|before| Arc::ptr_eq(before, self)) {
            return;
        }
        let before = before.filter(|before| before.load.is_same(&self.load));
        let above = before
            .iter()
            .flat_map(|before| &before.gates)
            .filter_map(Gate::was_above);
        let highest = above.reduce(f64::max);
        self.gates.iter().for_each(|gate| gate.goes_on_from(highest));
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
        // Relaxed: the holder of the lock looks again.
        self.row_at(now) != self.row.load(Ordering::Relaxed)
    }

    /// The numbers that apply at `now`, which the caller puts in force.
    pub(super) fn advance(&self, now: Instant) -> &LegRule {
        let row = self.row_at(now);
        self.row.store(row, Ordering::Relaxed);
        &self.rules[row]
    }

    /// The load that it sees, and the marks of the row in force, or of the lowest.
    pub(super) fn measured(&self, now: Instant) -> MeasuredLoad {
        let row = self.row();
        let step = &self.peak.steps[row.saturating_sub(1)];
        MeasuredLoad {
            leg: self.peak.leg.as_str().into(),
            metric: self.peak.metric,
            load: self.load.read(now),
            above: step.above,
            below: step.below,
            exceeded: row > 0,
        }
    }

    /// The row whose numbers are in force: zero below the lowest mark.
    pub(super) fn row(&self) -> usize {
        self.row.load(Ordering::Relaxed)
    }

    /// When the load will have fallen to the next lower row, if that is known.
    pub(super) fn ends(&self, now: Instant) -> Option<Instant> {
        self.gates.get(self.row().checked_sub(1)?)?.ends(now)
    }
}
