//! A version of a policy that has been built, of limiters that are kept and new ones.

use super::load::{InUse, Link, Measure, can_be_in_use};
use super::unit::{AnyUnit, Trial, Wrapped};
use crate::kind::{Around, LegKind};
use crate::spec::{LegSpec, PolicySpec, SpecError, When, check_legs};
use std::sync::Arc;
use std::time::Duration;
use tollgate::policy::ShadowStats;
use tollgate::policy::conditional::{LoadMetric, Meter};
use tollgate::status::State;
use tollgate::{Inherit, Legs, Policy, PolicyError};

/// The legs that hold permits and whose use is counted, at most.
pub(super) const MOST_COUNTED: usize = 2;

/// A leg of a version.
pub(crate) struct LiveLeg {
    pub(super) spec: LegSpec,
    pub(super) unit: Arc<dyn AnyUnit>,
    /// The numbers that it had in the version before, where they are to change in place.
    changes: bool,
    meters: Vec<Arc<Meter>>,
    /// Counts what is in use of it, where another leg depends on that.
    pub(super) in_use: Option<Arc<InUse>>,
    pub(super) link: Option<Arc<Link>>,
    trial: Option<Arc<dyn Trial>>,
    /// What it counted in shadow mode in versions before.
    counted: ShadowStats,
}

/// A version.
pub(crate) struct Built {
    pub(super) legs: Arc<Legs>,
    pub(super) live: Arc<[LiveLeg]>,
}

fn same_kind(one: &LegKind, other: &LegKind) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other) && one.name() == other.name()
}

impl LiveLeg {
    /// The limiter of `spec`: that of the leg `before`, if that is the same leg, else a fresh one.
    fn new(spec: &LegSpec, before: Option<&Self>, around: &Around<'_>) -> Result<Self, SpecError> {
        let before = before.filter(|leg| same_kind(&leg.spec.kind, &spec.kind) && leg.spec.per == spec.per);
        let (unit, changes, before) = match before {
            Some(leg) if leg.spec.kind == spec.kind => (Arc::clone(&leg.unit), false, Some(leg)),
            before => {
                // Numbers are checked by what they build, also where a limiter is kept.
                let fresh = spec.kind.unit(around)?;
                match before.filter(|leg| leg.unit.fits(&leg.spec.kind, &spec.kind)) {
                    Some(leg) => (Arc::clone(&leg.unit), true, Some(leg)),
                    None => (fresh, false, None),
                }
            }
        };
        if unit.has_other_clock(around.clock) {
            let fault = "its limiter decides by another clock than the policy waits by";
            return Err(SpecError::new("kind", fault));
        }
        Ok(Self {
            spec: spec.clone(),
            unit,
            changes,
            meters: before.map(|leg| leg.meters.clone()).unwrap_or_default(),
            in_use: before.and_then(|leg| leg.in_use.clone()),
            link: before.and_then(|leg| leg.link.clone()),
            trial: None,
            counted: before.map(Self::trial).unwrap_or_default(),
        })
    }

    /// What it has counted in shadow mode.
    pub(super) fn trial(&self) -> ShadowStats {
        let mut stats = self.counted;
        if let Some(trial) = &self.trial {
            let now = trial.stats();
            stats.admitted += now.admitted;
            stats.refused += now.refused;
            stats.refused_for_good += now.refused_for_good;
        }
        stats
    }

    /// Who measures this leg: the one that has done so before, if there was one.
    fn measure(&mut self, when: &When, around: &Around<'_>) -> Measure {
        if when.metric == LoadMetric::Use && matches!(self.unit.state(), State::Permits { .. }) {
            let in_use = self.in_use.get_or_insert_with(|| InUse::new(&self.unit));
            return Measure::InUse(Arc::clone(in_use));
        }
        let over = when.over;
        let known = self.meters.iter().find(|meter| meter.over() == over);
        let meter = known.map_or_else(|| Meter::new(around.clock, over), Arc::clone);
        if known.is_none() {
            self.meters.push(Arc::clone(&meter));
        }
        Measure::Meter(meter)
    }
}

impl Built {
    /// Builds a version after `before`. Nothing is changed yet.
    pub(crate) fn of(spec: &PolicySpec, before: &[LiveLeg], around: &Around<'_>) -> Result<Self, SpecError> {
        check_legs(spec)?;
        let mut live = Vec::with_capacity(spec.legs.len());
        for (row, leg) in spec.legs.iter().enumerate() {
            let known = before.iter().find(|known| known.spec.name == leg.name);
            let leg = LiveLeg::new(leg, known, around);
            live.push(leg.map_err(|error| error.within_row("leg", row))?);
        }
        // By leg, the spans that it is measured over, and zero where its use is counted.
        let mut spans = vec![Vec::new(); live.len()];
        for row in 0..live.len() {
            let Some(when) = live[row].spec.when.clone() else {
                live[row].link = None;
                continue;
            };
            let Some(other) = live.iter().position(|leg| leg.spec.name == when.load_of) else {
                unreachable!("the legs have been checked");
            };
            let measured = &mut live[other];
            if when.metric == LoadMetric::Use && !can_be_in_use(measured.unit.state()) {
                let (kind, leg) = (measured.spec.kind.name(), &when.load_of);
                let fault = format!(
                    "`use` was given, and a {kind} as `{leg}` is in no use; `rate`, `latency`, `refusals` are allowed"
                );
                return Err(SpecError::new("metric", fault).within("when").within_row("leg", row));
            }
            let measure = measured.measure(&when, around);
            spans[other].push(if let Measure::InUse(_) = measure {
                Duration::ZERO
            } else {
                when.over
            });
            let unit = Arc::clone(&measured.unit);
            let link = Link::new(&when, &unit, &measure, live[row].link.as_ref(), around.clock);
            live[row].link = Some(link);
        }
        let mut legs = Legs::new();
        for (leg, spans) in live.iter_mut().zip(spans) {
            leg.meters.retain(|meter| spans.contains(&meter.over()));
            leg.in_use = leg.in_use.take().filter(|_| spans.contains(&Duration::ZERO));
            let wrapped = Wrapped {
                spec: &leg.spec,
                meters: &leg.meters,
                when: leg.link.as_ref().map(|link| link.trigger.clone()),
            };
            leg.trial = leg.unit.add_to(&mut legs, wrapped);
        }
        let counted = live.iter().filter(|leg| leg.in_use.is_some()).count();
        if counted > MOST_COUNTED {
            let fault =
                format!("the use of {counted} legs that hold permits is asked for, and {MOST_COUNTED} are allowed");
            return Err(SpecError::new("leg", fault));
        }
        let built = Self {
            legs: Arc::new(legs),
            live: live.into(),
        };
        built.check_whole(spec, around)?;
        Ok(built)
    }

    /// Finds what no policy of these legs and settings could be.
    fn check_whole(&self, spec: &PolicySpec, around: &Around<'_>) -> Result<(), SpecError> {
        let policy = Policy::builder()
            .limit(Arc::clone(&self.legs))
            .order(spec.order.clone());
        match policy.on(around.clock).build() {
            Ok(_) => Ok(()),
            Err(PolicyError::Order(error)) => Err(SpecError::new("order", error.to_string())),
            Err(PolicyError::SameQueue { .. }) => {
                let fault = "one limiter stands in two legs, and no policy can wait for it twice";
                Err(SpecError::new("leg", fault))
            }
            Err(error) => Err(SpecError::new("leg", error.to_string())),
        }
    }

    /// Changes the numbers of the limiters that are kept. `latest` gives the version in force: another one may have come meanwhile, and
    /// changed them before this one did.
    pub(super) fn put_numbers_in_force(self, latest: impl Fn() -> Arc<[LiveLeg]>) {
        let changed = || self.live.iter().filter(|leg| leg.changes);
        changed().for_each(|leg| leg.unit.put_in_force(&leg.spec.kind, leg.spec.inherit));
        let mut known = Arc::clone(&self.live);
        loop {
            let now = latest();
            if Arc::ptr_eq(&now, &known) {
                return;
            }
            for leg in changed() {
                let later = now.iter().find(|later| Arc::ptr_eq(&later.unit, &leg.unit));
                later
                    .into_iter()
                    .for_each(|later| later.unit.put_in_force(&later.spec.kind, Inherit::AsIs));
            }
            known = now;
        }
    }
}
