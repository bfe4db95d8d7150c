//! The load of a leg, and the condition of another that depends on it.

use super::unit::AnyUnit;
use crate::spec::When;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tollgate::policy::conditional::{Load, LoadMetric, Meter, Trigger};
use tollgate::status::State;
use tollgate::sync::{Watch, Watchers};
use tollgate::{Clock, Instant};

/// The units of a leg that requests hold which all legs have admitted. What an attempt takes, and gives back since a later leg refuses,
/// is no use.
pub(super) struct InUse {
    unit: Arc<dyn AnyUnit>,
    held: AtomicU64,
    /// False while permits are out that were not counted: then the limiter's own count is read.
    is_whole: AtomicBool,
    watchers: Watchers,
}

// Relaxed throughout: a waiter that must see a number fall is told after it has, and that orders the two.
impl InUse {
    pub(super) fn new(unit: &Arc<dyn AnyUnit>) -> Arc<Self> {
        Arc::new(Self {
            unit: Arc::clone(unit),
            held: AtomicU64::new(0),
            is_whole: AtomicBool::new(false),
            watchers: Watchers::new(),
        })
    }

    pub(super) fn take(&self, units: u64) {
        self.held.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, units: u64) {
        self.held.fetch_sub(units, Ordering::Relaxed);
        self.watchers.changed();
    }

    /// No permit is out any more that was not counted.
    pub(super) fn becomes_whole(&self) {
        self.is_whole.store(true, Ordering::Relaxed);
    }

    /// A permit has come back that was not counted.
    pub(super) fn changed(&self) {
        self.watchers.changed();
    }

    /// The part of the limit.
    fn part(&self) -> f64 {
        let State::Permits { limit, in_use, .. } = self.unit.state() else {
            return 0.0;
        };
        let held = match self.is_whole.load(Ordering::Relaxed) {
            true => self.held.load(Ordering::Relaxed),
            false => in_use,
        };
        match limit {
            // Paused: no more can be in use.
            0 => 1.0,
            limit => held as f64 / limit as f64,
        }
    }
}

/// Who measures a leg.
pub(super) enum Measure {
    InUse(Arc<InUse>),
    Meter(Arc<Meter>),
}

/// A number of a leg.
struct LegLoad {
    leg: String,
    metric: LoadMetric,
    unit: Arc<dyn AnyUnit>,
    measured: Measured,
    /// Reads as exceeded.
    is_forced: AtomicBool,
}

enum Measured {
    InUse(Arc<InUse>),
    /// The rate where the use of a rate is asked for, else the metric itself.
    Metric(Arc<dyn Load>),
}

impl LegLoad {
    fn new(when: &When, unit: &Arc<dyn AnyUnit>, measure: &Measure) -> Arc<Self> {
        let metric = match when.metric {
            LoadMetric::Use => LoadMetric::Rate,
            metric => metric,
        };
        Arc::new(Self {
            leg: when.load_of.clone(),
            metric: when.metric,
            unit: Arc::clone(unit),
            measured: match measure {
                Measure::InUse(in_use) => Measured::InUse(Arc::clone(in_use)),
                Measure::Meter(meter) => Measured::Metric(meter.load(metric, 1.0)),
            },
            is_forced: AtomicBool::new(false),
        })
    }
}

/// True for a leg of which a part can be in use.
pub(super) fn can_be_in_use(state: State) -> bool {
    matches!(state, State::Permits { .. }) || full(state).is_some()
}

/// The units per second of a rate.
fn full(state: State) -> Option<f64> {
    match state {
        State::Rate { limit, window, .. } if !window.is_zero() => Some(limit as f64 / window.as_secs_f64()),
        _ => None,
    }
}

impl Load for LegLoad {
    fn read(&self, now: Instant) -> f64 {
        // Relaxed: written and read by the thread that builds the trigger, before others see it.
        if self.is_forced.load(Ordering::Relaxed) {
            return f64::INFINITY;
        }
        match &self.measured {
            Measured::InUse(in_use) => in_use.part(),
            Measured::Metric(measured) if self.metric != LoadMetric::Use => measured.read(now),
            Measured::Metric(rate) => match (rate.read(now), full(self.unit.state())) {
                (rate, Some(full)) if rate > 0.0 => rate / full,
                _ => 0.0,
            },
        }
    }

    fn falls_to(&self, mark: f64, now: Instant) -> Option<Instant> {
        match &self.measured {
            Measured::InUse(_) => None,
            Measured::Metric(measured) if self.metric != LoadMetric::Use => measured.falls_to(mark, now),
            Measured::Metric(rate) => rate.falls_to(mark * full(self.unit.state())?, now),
        }
    }

    fn measures(&self) -> Option<(&str, LoadMetric)> {
        Some((&self.leg, self.metric))
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        match &self.measured {
            Measured::InUse(in_use) => in_use.watchers.watch(watcher),
            Measured::Metric(measured) => measured.watch(watcher),
        }
        self.unit.watch(watcher);
    }
}

/// The condition of a leg, which lasts from version to version.
pub(super) struct Link {
    when: When,
    unit: Arc<dyn AnyUnit>,
    pub(super) trigger: Trigger,
}

impl Link {
    /// The condition `when` on the load of `unit`. It takes over what the one before knew of the same load: one that was above a
    /// higher mark was above this one.
    pub(super) fn new(
        when: &When,
        unit: &Arc<dyn AnyUnit>,
        measure: &Measure,
        before: Option<&Arc<Self>>,
        clock: &Clock,
    ) -> Arc<Self> {
        let same_load = before.filter(|before| {
            Arc::ptr_eq(&before.unit, unit) && (before.when.metric, before.when.over) == (when.metric, when.over)
        });
        if let Some(before) = same_load.filter(|before| before.when == *when) {
            return Arc::clone(before);
        }
        let load = LegLoad::new(when, unit, measure);
        let trigger = Trigger::above(Arc::clone(&load) as Arc<dyn Load>, when.above);
        let trigger = trigger.below(when.below.unwrap_or(when.above)).on(clock);
        if same_load.is_some_and(|before| before.when.above >= when.above && before.trigger.is_exceeded()) {
            load.is_forced.store(true, Ordering::Relaxed);
            trigger.is_exceeded();
            load.is_forced.store(false, Ordering::Relaxed);
        }
        Arc::new(Self {
            when: when.clone(),
            unit: Arc::clone(unit),
            trigger,
        })
    }
}
