//! Explains decisions: what each leg answers to a request, and by which numbers.

mod leg_order;

pub use leg_order::LegOrder;

use super::boxed::Erased;
use super::legs::Legs;
use super::policy::Policy;
use super::reload::ReloadableLegs;
use super::spec::LoadMetric;
use crate::core::ask::{Ask, Demand};
use crate::core::refusal::ReadyAt;
use crate::core::status::{State, Status};
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::time::Duration;

/// The answer of each leg to a request at one instant. Made by [`Policy::explain`](crate::Policy#method.explain), of a policy
/// that is data as of one that was [built](crate::PolicyBuilder).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// Every leg, in order, also those behind the first that refuses.
    pub legs: Vec<LegDecision>,
}

/// The answer of one leg.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LegDecision {
    /// Its name.
    pub leg: Box<str>,
    /// Units that it is asked for; `None` when the request does not name its cost.
    pub units: Option<u64>,
    /// Units that it could give.
    pub available: Option<u64>,
    /// Units that it can give at most: its limit, or its burst.
    pub capacity: Option<u64>,
    /// Its answer.
    pub verdict: LegVerdict,
    /// It is in shadow mode: its answer is not obeyed.
    pub shadow: bool,
    /// The load by which it applies or not, where it is conditional.
    pub when: Option<MeasuredLoad>,
    /// The load by which it has its numbers, where they depend on one.
    pub peak: Option<MeasuredLoad>,
}

/// The load of another leg, as a leg that depends on it sees it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MeasuredLoad {
    /// The leg whose load it is.
    pub leg: Box<str>,
    /// The metric of it.
    pub metric: LoadMetric,
    /// The load; latency in seconds.
    pub load: f64,
    /// The mark above which it counts as exceeded: of a table, that of the row in force, or else of the lowest.
    pub above: f64,
    /// The mark at or below which it does not any more.
    pub below: f64,
    /// True while it counts as exceeded.
    pub exceeded: bool,
}

/// The answer of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LegVerdict {
    /// It agrees.
    Admits,
    /// It does not apply, since the load that it depends on is low.
    Idle,
    /// It agrees after this time, if no other caller is admitted meanwhile.
    After(Duration),
    /// It agrees after something has happened: a permit comes back, a number is raised.
    OnEvent,
    /// It never agrees to such a request.
    Never,
}

impl LegVerdict {
    /// The answer of a leg at `now`.
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
    /// Units that are missing: a request smaller by that, or a limit higher by that, would be admitted now. `None` when the leg
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

impl Policy<ReloadableLegs> {
    /// Explains the decision on `ask` now, leg by leg: which one refuses, the units that are missing, the limit that would have
    /// sufficed. Nothing is taken, and an admission that is not explained pays nothing for it.
    ///
    /// It looks at the legs, past the queue. Taken right after a refusal it says why, unless others were admitted in
    /// between.
    ///
    /// ```
    /// # use tollgate::policy::explain::LegVerdict;
    /// # use tollgate::policy::spec::{LegSpec, PolicySpec, LegRule};
    /// # use tollgate::{Ask, LimiterExt, ManualClock};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = PolicySpec::new([
    ///     LegSpec::new("requests", LegRule::token_bucket("10/s burst 5".parse()?)),
    ///     LegSpec::new("in flight", LegRule::semaphore(3)),
    /// ])
    /// .build(&clock)?;
    /// let held = policy.try_admit(1)?;
    /// let decision = policy.explain(Ask::many(3));
    /// let refused = decision.refused_by().unwrap();
    /// assert_eq!((&*refused.leg, refused.available, refused.missing()), ("in flight", Some(2), Some(1)));
    /// assert_eq!(refused.verdict, LegVerdict::OnEvent);
    /// drop(held);
    /// assert_eq!(policy.explain(Ask::many(3)).admits(), true);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, ask: impl Into<Ask>) -> Decision {
        self.limiter().explain(&ask.into())
    }
}

impl Policy<Legs> {
    /// Explains the decision on `ask` now, leg by leg: which one refuses, the units that are missing, the limit that would have
    /// sufficed. Nothing is taken, and an admission that is not explained pays nothing for it. Decisions add up to an
    /// [advice](LegOrder) on the order of the legs.
    ///
    /// A leg has the name that it was [given](crate::LimiterExt::named), else that of the limiter, else its position, as `leg
    /// 2`. One that is made of several, by [`and`](crate::LimiterExt::and) or as a policy of its own, is one leg here, with the
    /// numbers of its first. One in shadow mode agrees to everything; a conditional one that does not apply agrees.
    ///
    /// It looks at the legs, past the queue. Taken right after a refusal it says why, unless others were admitted in between.
    ///
    /// ```
    /// # use tollgate::policy::explain::{LegOrder, LegVerdict};
    /// # use tollgate::{Ask, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder()
    ///     .limit(TokenBucket::new(Quota::per_second(10).burst(5)).on(&clock).named("requests"))
    ///     .limit(Semaphore::new(3).named("in flight"))
    ///     .build()?;
    /// let held = policy.try_admit(1)?;
    /// let decision = policy.explain(Ask::many(3));
    /// let refused = decision.refused_by().unwrap();
    /// assert_eq!((&*refused.leg, refused.available, refused.missing()), ("in flight", Some(2), Some(1)));
    /// assert_eq!(refused.verdict, LegVerdict::OnEvent);
    ///
    /// let mut advice = LegOrder::new();
    /// advice.count(&decision);
    /// assert_eq!(advice.order(), ["in flight", "requests"]);
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, ask: impl Into<Ask>) -> Decision {
        let ask = ask.into();
        let now = self.clock().now();
        let reading = ClockReading::at(self.clock(), now);
        let demand = Demand::new(&ask, &reading);
        let say = |(position, leg): (usize, &dyn Erased)| {
            let ready = leg.ready_at(demand);
            let (own, units, available, capacity) = numbers(leg, &ask);
            let name = match (leg.name(), own, ready.leg(), ready.event_leg()) {
                (Some(name), ..) => name.into(),
                (None, Some(own), ..) => own,
                (None, None, "", "") => format!("leg {}", position + 1).into(),
                (None, None, "", event) => event.into(),
                (None, None, by, _) => by.into(),
            };
            LegDecision {
                leg: name,
                units,
                available,
                capacity,
                verdict: LegVerdict::of(ready, self.clock(), now),
                shadow: false,
                when: None,
                peak: None,
            }
        };
        Decision {
            legs: self.limiter().iter().enumerate().map(say).collect(),
        }
    }
}

/// Of the first of a leg's limiters: its name, the units that it is asked for, those it has, and those it can have at most.
fn numbers(leg: &dyn Erased, ask: &Ask) -> (Option<Box<str>>, Option<u64>, Option<u64>, Option<u64>) {
    let mut first = None;
    leg.visit_status(&mut |status: Status<'_>| {
        first.get_or_insert_with(|| {
            let units = match status.cost {
                Some(cost) => ask.of(cost),
                None => Some(ask.count()),
            };
            let (available, capacity) = match status.state {
                State::Permits { limit, in_use, .. } => (Some(limit.saturating_sub(in_use)), Some(limit)),
                State::Rate { limit, available, .. } => (Some(available), Some(limit)),
                _ => (None, None),
            };
            (Some(status.leg.into()), units, available, capacity)
        });
    });
    first.unwrap_or_default()
}

impl fmt::Display for LegDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ", self.leg)?;
        match self.verdict {
            LegVerdict::Admits => f.write_str("admits")?,
            LegVerdict::Idle => f.write_str("does not apply")?,
            LegVerdict::After(wait) => write!(f, "admits after {wait:?}")?,
            LegVerdict::OnEvent => f.write_str("waits for an event")?,
            LegVerdict::Never => f.write_str("never admits")?,
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
