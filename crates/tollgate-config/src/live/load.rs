//! The load of a leg, and the condition of another that depends on it.

use super::built::LiveLeg;
use super::unit::AnyUnit;
use crate::spec::{SpecError, When};
use std::sync::{Arc, Weak};
use tollgate::policy::conditional::{Load, LoadMetric, Meter, Trigger};
use tollgate::status::State;
use tollgate::sync::{Watch, Watchers};
use tollgate::{Clock, Instant};

/// A number of a leg.
pub(super) struct LegLoad {
    when: When,
    unit: Arc<dyn AnyUnit>,
    /// None where the use of permits is asked for, which the limiter knows.
    meter: Option<Arc<Meter>>,
    /// The rate where the use of a rate is asked for.
    measured: Option<Arc<dyn Load>>,
    watchers: Watchers,
}

/// The units per second of a rate.
fn full(state: State) -> Option<f64> {
    match state {
        State::Rate { limit, window, .. } if !window.is_zero() => Some(limit as f64 / window.as_secs_f64()),
        _ => None,
    }
}

impl LegLoad {
    /// Permits may have come back.
    pub(super) fn changed(&self) {
        self.watchers.changed();
    }

    fn is_of_rate(&self) -> bool {
        self.when.metric == LoadMetric::Use
    }
}

impl Load for LegLoad {
    fn read(&self, now: Instant) -> f64 {
        let measured = self.measured.as_ref().map(|measured| measured.read(now));
        match (measured, self.unit.state()) {
            (Some(rate), state) if self.is_of_rate() => {
                full(state).filter(|_| rate > 0.0).map_or(0.0, |full| rate / full)
            }
            (Some(measured), _) => measured,
            // Paused: no more can be in use.
            (None, State::Permits { limit: 0, .. }) => 1.0,
            (None, State::Permits { limit, in_use, .. }) => in_use as f64 / limit as f64,
            _ => 0.0,
        }
    }

    fn falls_to(&self, mark: f64, now: Instant) -> Option<Instant> {
        let full = if self.is_of_rate() {
            full(self.unit.state())?
        } else {
            1.0
        };
        self.measured.as_ref()?.falls_to(mark * full, now)
    }

    fn measures(&self) -> Option<(&str, LoadMetric)> {
        Some((&self.when.load_of, self.when.metric))
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        match &self.measured {
            Some(measured) => measured.watch(watcher),
            None => self.watchers.watch(watcher),
        }
        self.unit.watch(watcher);
    }
}

/// The condition of a leg. It lasts from version to version, as long as they do not change it.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) load: Arc<LegLoad>,
    pub(super) trigger: Trigger,
}

impl Link {
    /// The condition `when` on the load of the leg `of`, which goes on from what the one before knew of the same load.
    pub(super) fn new(when: &When, of: &LiveLeg, before: Option<&Self>, clock: &Clock) -> Result<Self, SpecError> {
        let before = before.filter(|before| Arc::ptr_eq(&before.load.unit, &of.unit));
        if let Some(before) = before.filter(|before| before.load.when == *when) {
            return Ok(before.clone());
        }
        let state = of.unit.state();
        let is_of_permits = matches!(state, State::Permits { .. });
        if when.metric == LoadMetric::Use && !is_of_permits && full(state).is_none() {
            let (kind, leg) = (of.spec.kind.name(), &when.load_of);
            let fault = format!(
                "`use` was given, and a {kind} as `{leg}` is in no use; `rate`, `latency`, `refusals` are allowed"
            );
            return Err(SpecError::new("metric", fault));
        }
        let meter = (when.metric != LoadMetric::Use || !is_of_permits).then(|| {
            let known = before.and_then(|before| before.load.meter.as_ref());
            let known = known.filter(|meter| meter.over() == when.over);
            known.map_or_else(|| Meter::new(clock, when.over), Arc::clone)
        });
        let metric = match when.metric {
            LoadMetric::Use => LoadMetric::Rate,
            metric => metric,
        };
        let load = Arc::new(LegLoad {
            when: when.clone(),
            unit: Arc::clone(&of.unit),
            measured: meter.as_ref().map(|meter| meter.load(metric, 1.0)),
            meter,
            watchers: Watchers::new(),
        });
        let trigger = Trigger::above(Arc::clone(&load) as Arc<dyn Load>, when.above);
        let trigger = trigger.below(when.below.unwrap_or(when.above)).on(clock);
        Ok(Self { load, trigger })
    }

    /// The meter that measures `leg` for this condition.
    pub(super) fn meter_of(&self, leg: &LiveLeg) -> Option<Arc<Meter>> {
        self.load
            .meter
            .clone()
            .filter(|_| Arc::ptr_eq(&self.load.unit, &leg.unit))
    }
}
