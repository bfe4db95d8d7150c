//! The load of a leg, and the condition of another that depends on it.

use super::leg::{AnyUnit, LiveLeg};
use super::status::per_second;
use crate::spec::{ConfigError, When};
use std::sync::{Arc, Weak};
use tollgate::policy::conditional::{Load, LoadMetric, Meter, Trigger};
use tollgate::status::State;
use tollgate::sync::{Watch, Watchers};
use tollgate::{Clock, Instant};

/// A number of a leg.
pub(super) struct LegLoad {
    when: When,
    unit: Arc<dyn AnyUnit>,
    /// The meter of the leg, and the measured number: for the use of a rate, the rate. `None` for the use of permits, which the
    /// limiter knows.
    measured: Option<(Arc<Meter>, Arc<dyn Load>)>,
    watchers: Watchers,
}

impl LegLoad {
    /// Permits may have come back.
    pub(super) fn changed(&self) {
        self.watchers.changed();
    }

    /// The number that counts as one: for the use of a rate, its units per second.
    fn whole(&self) -> Option<f64> {
        match self.when.metric {
            LoadMetric::Use => per_second(self.unit.state()),
            _ => Some(1.0),
        }
    }
}

impl Load for LegLoad {
    fn read(&self, now: Instant) -> f64 {
        if let Some((_, measured)) = &self.measured {
            let number = measured.read(now);
            return self
                .whole()
                .filter(|_| number > 0.0)
                .map_or(0.0, |whole| number / whole);
        }
        match self.unit.state() {
            // Paused: no more can be in use.
            State::Permits { limit: 0, .. } => 1.0,
            State::Permits { limit, in_use, .. } => in_use as f64 / limit as f64,
            _ => 0.0,
        }
    }

    fn falls_to(&self, mark: f64, now: Instant) -> Option<Instant> {
        let (_, measured) = self.measured.as_ref()?;
        measured.falls_to(mark * self.whole()?, now)
    }

    fn measures(&self) -> Option<(&str, LoadMetric)> {
        Some((&self.when.load_of, self.when.metric))
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        match &self.measured {
            Some((_, measured)) => measured.watch(watcher),
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
    pub(super) fn new(when: &When, of: &LiveLeg, before: Option<&Self>, clock: &Clock) -> Result<Self, ConfigError> {
        when.check()?;
        let before = before.filter(|before| Arc::ptr_eq(&before.load.unit, &of.built.unit));
        if let Some(before) = before.filter(|before| before.load.when == *when) {
            return Ok(before.clone());
        }
        let state = of.built.unit.state();
        let is_of_permits = when.metric == LoadMetric::Use && matches!(state, State::Permits { .. });
        if when.metric == LoadMetric::Use && !is_of_permits && per_second(state).is_none() {
            let (kind, leg) = (of.spec.kind.name(), &when.load_of);
            let fault = format!(
                "`use` was given, and a {kind} as `{leg}` is in no use; `rate`, `latency`, `refusals` are allowed"
            );
            return Err(ConfigError::new("metric", fault));
        }
        let measured = (!is_of_permits).then(|| {
            let known = before.and_then(|before| Some(&before.load.measured.as_ref()?.0));
            let known = known.filter(|meter| meter.over() == when.over);
            let meter = known.map_or_else(|| Meter::new(clock, when.over), Arc::clone);
            let metric = match when.metric {
                LoadMetric::Use => LoadMetric::Rate,
                metric => metric,
            };
            let load = meter.load(metric, 1.0);
            (meter, load)
        });
        let load = Arc::new(LegLoad {
            when: when.clone(),
            unit: Arc::clone(&of.built.unit),
            measured,
            watchers: Watchers::new(),
        });
        let trigger = Trigger::above(Arc::clone(&load) as Arc<dyn Load>, when.above);
        let trigger = trigger.below(when.below.unwrap_or(when.above)).on(clock);
        Ok(Self { load, trigger })
    }

    /// The meter that measures `leg` for this condition.
    pub(super) fn meter_of(&self, leg: &LiveLeg) -> Option<Arc<Meter>> {
        let (meter, _) = self.load.measured.as_ref()?;
        Arc::ptr_eq(&self.load.unit, &leg.built.unit).then(|| Arc::clone(meter))
    }
}
