//! One leg as data: its rule, and when and how that applies.

use super::LegRule;
use crate::core::decision::LoadMetric;
use crate::rate::{Inherit, Quota};

use std::time::Duration;

/// One leg of a policy.
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
