//! The decision on a request as data, leg by leg, for explanations.

use super::ask::Demand;
use super::legs::Erased;
use super::refusal::{Refusal, Wait};
use super::status::State;
use std::fmt;
use std::time::Duration;

/// The answer of each leg to a request at one instant. Made by [`Policy::explain`](crate::Policy::explain).
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Policy, Semaphore};
/// let policy = Policy::builder().on(&ManualClock::new()).limit(Semaphore::new(1).named("slots")).build()?;
/// assert_eq!(policy.explain(1).refused_by(), None);
/// let decision = policy.explain(3);
/// assert_eq!(decision.refused_by().map(|leg| &*leg.leg), Some("slots"));
/// assert_eq!(decision.legs.len(), 1);
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// Every leg, in order, also those behind the first that refuses.
    pub legs: Vec<LegDecision>,
}

/// The answer of one leg.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Policy, Semaphore};
/// let policy = Policy::builder().on(&ManualClock::new()).limit(Semaphore::new(2).named("slots")).build()?;
/// let _held = policy.try_admit(1).unwrap();
/// let leg = &policy.explain(2).legs[0];
/// assert_eq!((&*leg.leg, leg.units, leg.available, leg.capacity), ("slots", Some(2), Some(1), Some(2)));
/// assert_eq!(leg.missing(), Some(1));
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
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
    /// The answer of each source, in order, of a leg that takes from the [first](crate::FirstOf) that admits.
    pub sources: Vec<LegDecision>,
}

/// The load of another leg, as a leg that depends on it sees it.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::policy::conditional::{Load, LoadMetric, Trigger};
/// # use tollgate::{Instant, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};
/// /// The part of the slots that is in use.
/// struct Slots(Arc<Semaphore>);
/// impl Load for Slots {
///     fn read(&self, _: Instant) -> f64 {
///         self.0.in_use() as f64 / self.0.limit() as f64
///     }
///     fn measures(&self) -> Option<(&str, LoadMetric)> {
///         Some(("slots", LoadMetric::Use))
///     }
/// }
/// let (clock, slots) = (ManualClock::new(), Arc::new(Semaphore::new(4)));
/// let busy = Trigger::above(Arc::new(Slots(Arc::clone(&slots))), 0.5).on(&clock);
/// let calls = TokenBucket::new(Quota::per_second(1)).on(&clock).when(busy);
/// let policy = Policy::new(calls);
/// let _held = slots.try_acquire_many(3)?;
/// let decision = policy.explain(1);
/// let load = decision.legs[0].when.as_ref().expect("it depends on a load");
/// assert_eq!((&*load.leg, load.load, load.exceeded), ("slots", 0.75, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MeasuredLoad {
    /// The leg whose load it is.
    pub leg: Box<str>,
    /// The metric of it.
    pub metric: LoadMetric,
    /// The load; latency in seconds.
    pub load: f64,
    /// The mark above which it counts as exceeded.
    pub above: f64,
    /// The mark at or below which it does not any more.
    pub below: f64,
    /// True while it counts as exceeded.
    pub exceeded: bool,
}

/// The answer of a leg.
///
/// ```
/// # use tollgate::policy::explain::LegVerdict;
/// # use tollgate::{LimiterExt, ManualClock, Policy, Quota, TokenBucket};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let policy = Policy::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
/// assert_eq!(policy.explain(1).legs[0].verdict, LegVerdict::Admits);
/// drop(policy.try_admit(1));
/// assert_eq!(policy.explain(1).legs[0].verdict, LegVerdict::After(Duration::from_secs(1)));
/// assert!(policy.explain(2).legs[0].verdict.refuses());
/// ```
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
    /// The verdict of a leg that was looked at.
    pub(crate) fn of(looked: Result<(), Refusal>) -> Self {
        match looked.map_err(|refusal| refusal.wait()) {
            Ok(()) => Self::Admits,
            Err(Wait::Never) => Self::Never,
            Err(Wait::Event { .. }) => Self::OnEvent,
            Err(Wait::Until { nanos, .. }) => Self::After(Duration::from_nanos(nanos)),
        }
    }

    /// True when it would refuse now.
    pub fn refuses(self) -> bool {
        !matches!(self, Self::Admits | Self::Idle)
    }
}

impl LegDecision {
    /// Of a leg without a limit.
    fn admits() -> Self {
        Self {
            leg: Box::default(),
            units: None,
            available: None,
            capacity: None,
            verdict: LegVerdict::Admits,
            shadow: false,
            when: None,
            sources: Vec::new(),
        }
    }

    /// The numbers of `leg` for `demand`; the verdict is still to be set.
    pub(crate) fn of(leg: &dyn Erased, demand: &Demand<'_>) -> Self {
        let (ask, mut decision, mut first) = (*demand.ask(), Self::admits(), true);
        leg.describe(&mut |own| {
            if !std::mem::take(&mut first) {
                return;
            }
            decision.leg = own.leg.into();
            decision.units = match own.cost {
                Some(cost) => ask.of(cost),
                None => Some(ask.count()),
            };
            (decision.available, decision.capacity) = match own.state {
                State::Permits { limit, in_use, .. } => (Some(limit.saturating_sub(in_use)), Some(limit)),
                State::Rate { limit, available, .. } => (Some(available), Some(limit)),
                _ => (None, None),
            };
        });
        decision
    }

    /// The answer of `leg` to `demand`.
    pub(crate) fn of_leg(leg: &dyn Erased, demand: &Demand<'_>, looked: Result<(), Refusal>) -> Self {
        let verdict = LegVerdict::of(looked);
        Self {
            verdict,
            ..Self::of(leg, demand)
        }
    }

    /// The answer of a source, with that of the first of its legs that refuses.
    pub(crate) fn of_source(name: &str, mut legs: Vec<Self>) -> Self {
        let refuses = |leg: &Self| leg.verdict.refuses() && !leg.shadow;
        let binding = legs.iter().position(refuses).unwrap_or(0);
        let decision = match binding < legs.len() {
            true => legs.swap_remove(binding),
            false => Self::admits(),
        };
        Self {
            leg: name.into(),
            ..decision
        }
    }

    /// The answer of a leg that takes from the first of `sources` that admits: that of the one which does so first.
    pub(crate) fn of_first(sources: Vec<Self>) -> Self {
        let rank = |source: &&Self| match source.verdict {
            LegVerdict::Admits | LegVerdict::Idle => (0, Duration::ZERO),
            LegVerdict::After(wait) => (1, wait),
            LegVerdict::OnEvent => (2, Duration::ZERO),
            LegVerdict::Never => (3, Duration::ZERO),
        };
        let first = sources.iter().min_by_key(rank).cloned().unwrap_or_else(Self::admits);
        Self { sources, ..first }
    }

    /// The source that it would be taken from, of a leg that takes from the [first](crate::FirstOf) that admits. `None` while all refuse.
    pub fn source(&self) -> Option<&str> {
        let source = self.sources.iter().find(|source| !source.verdict.refuses())?;
        Some(&source.leg)
    }

    /// Units that are missing: a request smaller by that, or a limit higher by that, would be admitted now. `None` when the leg
    /// does not refuse, or not for want of units.
    pub fn missing(&self) -> Option<u64> {
        let missing = self.units?.checked_sub(self.available?)?;
        (self.verdict.refuses() && missing > 0).then_some(missing)
    }
}

impl Decision {
    /// The leg that a refusal names: of those that refuse and are obeyed the first that never admits, or else the first.
    pub fn refused_by(&self) -> Option<&LegDecision> {
        let mut refuse = self.legs.iter().filter(|leg| leg.verdict.refuses() && !leg.shadow);
        let first = refuse.clone().next();
        refuse.find(|leg| leg.verdict == LegVerdict::Never).or(first)
    }
}

/// A measured number of a leg.
///
/// ```
/// # use tollgate::policy::conditional::LoadMetric;
/// assert_eq!(LoadMetric::ALL.map(|metric| metric.to_string()), ["use", "rate", "latency", "refusals"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum LoadMetric {
    /// The part of it that is in use: of a semaphore, the part of its limit that is held now; of a rate, the units admitted per
    /// second, divided by its quota.
    Use,
    /// Units that it admitted per second.
    Rate,
    /// The mean time from start to end of its admissions, in seconds, by all legs.
    Latency,
    /// Requests that it refused per second.
    Refusals,
}

impl LoadMetric {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Use, Self::Rate, Self::Latency, Self::Refusals];
}

/// Its name in a file.
impl fmt::Display for LoadMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Use => "use",
            Self::Rate => "rate",
            Self::Latency => "latency",
            Self::Refusals => "refusals",
        })
    }
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
        if let Some(source) = self.source().filter(|source| **source != *self.leg) {
            write!(f, ", from `{source}`")?;
        }
        if let Some(when) = &self.when {
            write!(f, ", while {when}")?;
        }
        Ok(())
    }
}

impl fmt::Display for MeasuredLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = if self.exceeded { "was above" } else { "is not above" };
        let (metric, leg) = (self.metric, &self.leg);
        write!(f, "the {metric} of `{leg}`, {}, {is} {}", self.load, self.above)
    }
}
