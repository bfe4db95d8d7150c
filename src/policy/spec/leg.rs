//! One leg as data: its rule, and when and how that applies.

use super::LegRule;
use crate::core::decision::LoadMetric;
use crate::rate::{Inherit, Quota};

use std::time::Duration;

/// One leg of a policy.
///
/// ```
/// # use tollgate::Inherit;
/// # use tollgate::policy::spec::{LegRule, LegSpec};
/// let leg = LegSpec::new("tokens", LegRule::token_bucket("90000/min".parse()?))
///     .per("tokens")
///     .inherit(Inherit::Proportional)
///     .shadow();
/// assert_eq!((&*leg.name, leg.rule.kind(), leg.per.as_deref(), leg.shadow), ("tokens", "token-bucket", Some("tokens"), true));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LegSpec {
    /// Its name, unique in its policy. The leg of the same name, kind and cost in the next version is the same leg.
    pub name: String,
    /// Its kind and its numbers.
    pub rule: LegRule,
    /// The name of the cost that it counts; without it, calls.
    pub per: Option<String>,
    /// The transition of its state when a version changes its numbers. A load that changes them, by [`peak`](Self::peak), gives
    /// nothing, whatever this says.
    pub inherit: Inherit,
    /// It is counted, and refuses nothing.
    pub shadow: bool,
    /// It applies only while another leg is under load.
    pub when: Option<When>,
    /// Its numbers depend on the load of another leg.
    pub peak: Option<Peak>,
}

impl LegSpec {
    /// A leg that counts calls.
    pub fn new(name: impl Into<String>, rule: impl Into<LegRule>) -> Self {
        Self {
            name: name.into(),
            rule: rule.into(),
            per: None,
            inherit: Inherit::AsIs,
            shadow: false,
            when: None,
            peak: None,
        }
    }

    /// The same leg, counting `cost`.
    #[must_use]
    pub fn per(mut self, cost: impl Into<String>) -> Self {
        self.per = Some(cost.into());
        self
    }

    /// The same leg with another transition of its state.
    #[must_use]
    pub fn inherit(mut self, inherit: Inherit) -> Self {
        self.inherit = inherit;
        self
    }

    /// The same leg in shadow mode.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// The same leg, applying only when `when` says so.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = Some(when);
        self
    }

    /// The same leg with a table of other numbers at peak.
    #[must_use]
    pub fn peak(mut self, peak: Peak) -> Self {
        self.peak = Some(peak);
        self
    }
}

/// A leg that applies only while a metric of another is above a mark.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, LegSpec, LoadMetric, PolicySpec, When};
/// # use tollgate::{LimiterExt, ManualClock};
/// let busy = When::above("slots", LoadMetric::Use, 0.8).below(0.5);
/// let slots = LegSpec::new("slots", LegRule::semaphore(10));
/// let calls = LegSpec::new("calls", LegRule::token_bucket("1/s".parse()?)).when(busy);
/// let policy = PolicySpec::new([slots, calls]).build(&ManualClock::new())?;
/// let _held = policy.try_admit(9)?; // No rate while the slots are idle.
/// assert!(policy.try_admit(1).is_ok());
/// assert_eq!(policy.limiter().leg("calls").map(|leg| leg.applies), Some(true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct When {
    /// The name of the other leg.
    pub leg: String,
    /// The metric of it.
    pub metric: LoadMetric,
    /// It starts to apply above this (latency in seconds).
    pub above: f64,
    /// It stops to apply at or below this.
    pub below: f64,
    /// The span that rates and latencies are measured over.
    pub over: Duration,
}

impl When {
    /// The default span that rates and latencies are measured over.
    pub const OVER: Duration = Duration::from_secs(1);

    /// While `metric` of `leg` is above `above`, measured over a second.
    pub fn above(leg: impl Into<String>, metric: LoadMetric, above: f64) -> Self {
        Self {
            leg: leg.into(),
            metric,
            above,
            below: above,
            over: Self::OVER,
        }
    }

    /// The same, until it is at or below `below`.
    #[must_use]
    pub fn below(self, below: f64) -> Self {
        Self { below, ..self }
    }
}

/// A table from a measured load to the numbers that apply.
///
/// A load that crosses a mark gives nothing, however often it does: a bucket keeps the tokens it has, up to the burst, and a
/// window keeps its count. Tables that look at each other's [use](LoadMetric::Use) in a circle are refused, since
/// each could change the load of the other for ever.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, LegSpec, LoadMetric, Peak, PeakStep, PolicySpec, When};
/// # use tollgate::{LimiterExt, ManualClock};
/// // Ten slots for batches, two while more than half of the pages' slots are in use.
/// let step = PeakStep { above: 0.5, below: 0.4, quota: None, limit: Some(2) };
/// let peak = Peak { leg: "pages".into(), metric: LoadMetric::Use, over: When::OVER, steps: vec![step] };
/// let pages = LegSpec::new("pages", LegRule::semaphore(8)).per("page");
/// let batches = LegSpec::new("batches", LegRule::semaphore(10)).peak(peak);
/// let policy = PolicySpec::new([pages, batches]).build(&ManualClock::new())?;
/// assert_eq!(policy.limiter().leg("batches").and_then(|leg| leg.capacity), Some(10));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// The name of the leg that is measured.
    pub leg: String,
    /// The metric of it.
    pub metric: LoadMetric,
    /// The span that rates and latencies are measured over.
    pub over: Duration,
    /// From the lowest mark to the highest. Below the lowest the leg's own numbers apply.
    pub steps: Vec<PeakStep>,
}

/// One row of a [`Peak`] table.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, PeakStep};
/// let step = PeakStep { above: 0.8, below: 0.6, quota: None, limit: Some(3) };
/// assert_eq!(LegRule::semaphore(10).at(&step).most(), Some(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakStep {
    /// It applies above this.
    pub above: f64,
    /// It stops to apply at or below this.
    pub below: f64,
    /// The rate then, of a bucket.
    pub quota: Option<Quota>,
    /// The limit then, of a window or a semaphore.
    pub limit: Option<u64>,
}
