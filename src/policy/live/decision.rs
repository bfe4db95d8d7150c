//! What would be decided about a request, leg by leg, and on what numbers.

use super::LiveLegs;
use super::set::SetLeg;
use super::status::numbers;
use crate::core::ask::{Ask, Demand};
use crate::core::refusal::ReadyAt;
use crate::policy::spec::LoadMetric;
use crate::policy::{LiveLegs as Legs, Policy};
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::time::Duration;

/// What each leg says of a request at one instant. Made by `explain` of a policy that
/// is [data](crate::Policy#method.explain), or of one that was [built](crate::PolicyBuilder).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// Every leg, in order, also those behind the first that refuses.
    pub legs: Vec<LegDecision>,
}

/// What one leg says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LegDecision {
    /// Its name.
    pub leg: Box<str>,
    /// How many units it is asked for; `None` when the request does not name its cost.
    pub units: Option<u64>,
    /// How many it could give.
    pub available: Option<u64>,
    /// How many it can give at most: its limit, or its burst.
    pub capacity: Option<u64>,
    /// What it says.
    pub verdict: Verdict,
    /// It is in shadow mode: what it says is not obeyed.
    pub shadow: bool,
    /// The load by which it applies or not, where it is linked.
    pub when: Option<MeasuredLoad>,
    /// The load by which it has its numbers, where they depend on one.
    pub peak: Option<MeasuredLoad>,
}

/// The load of another leg, as a leg that depends on it sees it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MeasuredLoad {
    /// Whose load.
    pub leg: Box<str>,
    /// What of it.
    pub metric: LoadMetric,
    /// How much it is; latency in seconds.
    pub load: f64,
    /// The mark above which it counts as exceeded: of a table, that of the row in force, or else of the lowest.
    pub above: f64,
    /// The mark at or below which it does not any more.
    pub below: f64,
    /// True while it counts as exceeded.
    pub exceeded: bool,
}

/// What a leg says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It agrees.
    Admits,
    /// It does not apply, since the load that it is linked to is low.
    Idle,
    /// It agrees after so long, if nobody else is admitted meanwhile.
    After(Duration),
    /// It agrees after something has happened: a permit comes back, a number is raised.
    OnEvent,
    /// It never agrees to such a request.
    Never,
}

impl Verdict {
    /// What a leg has said at `now`.
    pub(in super::super) fn of(ready: ReadyAt<'_>, clock: &Clock, now: Instant) -> Self {
        match ready.not_before() {
            _ if ready.is_never() => Self::Never,
            _ if ready.is_event() => Self::OnEvent,
            Some(at) if at > now => Self::After(clock.between(now, at)),
            _ => Self::Admits,
        }
    }

    /// True when it would refuse now.
    pub fn refuses(self) -> bool {
        !matches!(self, Self::Admits | Self::Idle)
    }
}

impl LegDecision {
    /// How many units fewer would have been admitted now, or how much higher a limit would have sufficed. `None` when it
    /// does not refuse, or not for want of units.
    pub fn missing(&self) -> Option<u64> {
        let missing = self.units?.checked_sub(self.available?)?;
        (self.verdict.refuses() && missing > 0).then_some(missing)
    }
}

impl Decision {
    /// The first leg that refuses and is obeyed: the one that a refusal names.
    pub fn refused_by(&self) -> Option<&LegDecision> {
        self.legs.iter().find(|leg| leg.verdict.refuses() && !leg.shadow)
    }

    /// True when it would be admitted now.
    pub fn admits(&self) -> bool {
        self.refused_by().is_none()
    }
}

impl Policy<Legs> {
    /// What each leg says of `ask` now, and on what numbers: which one refuses, how much is missing, what would have
    /// sufficed. Nothing is taken, and an admission that is not explained pays nothing for it.
    ///
    /// It looks at the legs, past the line. Taken right after a refusal it says why, unless others were admitted in
    /// between.
    ///
    /// ```
    /// # use tollgate::policy::live::Verdict;
    /// # use tollgate::policy::spec::{LegSpec, PolicySpec, Rule};
    /// # use tollgate::{Ask, LimiterExt, ManualClock};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = PolicySpec::new([
    ///     LegSpec::new("requests", Rule::token_bucket("10/s burst 5".parse()?)),
    ///     LegSpec::new("in flight", Rule::semaphore(3)),
    /// ])
    /// .build(&clock)?;
    /// let held = policy.try_admit(1)?;
    /// let decision = policy.explain(Ask::many(3));
    /// let refused = decision.refused_by().unwrap();
    /// assert_eq!((&*refused.leg, refused.available, refused.missing()), ("in flight", Some(2), Some(1)));
    /// assert_eq!(refused.verdict, Verdict::OnEvent);
    /// drop(held);
    /// assert_eq!(policy.explain(Ask::many(3)).admits(), true);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, ask: impl Into<Ask>) -> Decision {
        self.limiter().explain(&ask.into())
    }
}

impl LiveLegs {
    fn explain(&self, ask: &Ask) -> Decision {
        let reading = ClockReading::new();
        let demand = Demand::new(ask, &reading);
        let now = demand.now(&self.clock);
        let (_, set) = self.in_force();
        self.follow_peaks(set, now);
        let say = |leg: &SetLeg| {
            let ready = set.leg_says(leg, demand);
            let verdict = ready.map_or(Verdict::Idle, |ready| Verdict::of(ready, &self.clock, now));
            let (available, capacity) = numbers(&leg.node.body, &leg.node.in_force());
            LegDecision {
                leg: leg.node.name.clone(),
                units: leg.node.units(ask),
                available,
                capacity,
                verdict,
                shadow: leg.shadow,
                when: leg.link.as_ref().map(|link| link.measured(now)),
                peak: leg.peak.as_ref().map(|table| table.measured(now)),
            }
        };
        Decision {
            legs: set.legs().iter().map(say).collect(),
        }
    }
}

impl fmt::Display for LegDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ", self.leg)?;
        match self.verdict {
            Verdict::Admits => f.write_str("admits")?,
            Verdict::Idle => f.write_str("does not apply")?,
            Verdict::After(wait) => write!(f, "admits after {wait:?}")?,
            Verdict::OnEvent => f.write_str("waits for an event")?,
            Verdict::Never => f.write_str("never admits")?,
        }
        if let (Some(units), Some(available)) = (self.units, self.available) {
            write!(f, ", asked for {units} of {available}")?;
        }
        if let Some(when) = &self.when {
            write!(f, ", while {when}")?;
        }
        if let Some(peak) = &self.peak {
            write!(f, ", with the numbers for {peak}")?;
        }
        Ok(())
    }
}

impl fmt::Display for MeasuredLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            leg,
            metric,
            load,
            above,
            ..
        } = self;
        let is = if self.exceeded { "was above" } else { "is not above" };
        write!(f, "the {metric} of `{leg}`, {load}, {is} {above}")
    }
}
