//! The state of the legs, and their answers to a request.

use super::leg_set::VersionLeg;
use super::legs::ReloadableLegs;
use crate::core::ask::Demand;
use crate::core::decision::{LegDecision, LegVerdict};
use crate::policy::ShadowStats;
use crate::policy::spec::LegRule;

/// The state of a leg. A snapshot.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
/// # use tollgate::{LimiterExt, ManualClock};
/// let policy = PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(4))]).build(&ManualClock::new())?;
/// let _held = policy.try_admit(1).unwrap();
/// let status = policy.limiter().leg("slots").expect("it is a leg");
/// assert_eq!((status.kind(), status.available, status.capacity), ("semaphore", Some(3), Some(4)));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LegStatus {
    /// Its name.
    pub name: Box<str>,
    /// Its rule, with the numbers in force now.
    pub rule: LegRule,
    /// Units that it could give now, where it counts units.
    pub available: Option<u64>,
    /// Units that it can give at most: its limit, or its burst.
    pub capacity: Option<u64>,
    /// Units per second, of a rate: those of its quota, or those that an adaptive one has found.
    pub per_second: Option<f64>,
    /// True while it is asked: always, unless it is conditional and the load is low.
    pub applies: bool,
    /// True in shadow mode.
    pub shadow: bool,
    /// Its decisions while it was in shadow mode.
    pub trial: ShadowStats,
}

impl LegStatus {
    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        self.rule.kind()
    }
}

impl ReloadableLegs {
    /// The state of the legs in force, in order.
    pub fn status(&self) -> Vec<LegStatus> {
        let now = self.clock.now();
        let (_, set) = self.in_force();
        self.follow_peaks(set, now);
        let status = |leg: &VersionLeg| LegStatus {
            name: leg.state.name.clone(),
            rule: leg.state.in_force(),
            available: leg.state.available(),
            capacity: leg.state.capacity(),
            per_second: leg.state.per_second(),
            applies: leg
                .condition
                .as_ref()
                .is_none_or(|condition| condition.gate.is_exceeded(now)),
            shadow: leg.shadow,
            trial: leg.state.trial.stats(),
        };
        set.legs().iter().map(status).collect()
    }

    /// The state of the leg called `name`, if there is one in force.
    pub fn leg(&self, name: &str) -> Option<LegStatus> {
        self.status().into_iter().find(|leg| &*leg.name == name)
    }

    /// Units of the leg called `name` that are in use, where units are held until the work ends.
    pub fn in_use(&self, name: &str) -> Option<u64> {
        let (_, set) = self.in_force();
        let leg = set.legs().iter().find(|leg| &*leg.state.name == name)?;
        match leg.state.semaphore() {
            Some(semaphore) => Some(semaphore.in_use() as u64),
            None => leg.state.holds.then(|| leg.state.held()),
        }
    }
}

impl ReloadableLegs {
    pub(super) fn explain(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
        let now = demand.now(&self.clock);
        let (_, set) = self.in_force();
        self.follow_peaks(set, now);
        for leg in set.legs() {
            let ready = set.leg_ready_at(leg, demand);
            let verdict = |ready| LegVerdict::of(ready, Some(&self.clock), demand);
            visit(LegDecision {
                leg: leg.state.name.clone(),
                units: leg.state.units(demand.ask()),
                available: leg.state.available(),
                capacity: leg.state.capacity(),
                verdict: ready.map_or(LegVerdict::Idle, verdict),
                shadow: leg.shadow,
                when: leg.condition.as_ref().map(|condition| condition.measured(now)),
                peak: leg.peak.as_ref().map(|table| table.measured(now)),
                sources: Vec::new(),
            });
        }
    }
}
