//! A token bucket with an adaptive rate as a leg.

use super::adaptive::{AdaptiveLaw, check_start, fault};
use crate::adaptive::{Adaptive, Cubic};
use std::time::Duration;
#[cfg(feature = "policy-file")]
use tollgate::policy::file::{FromTable, PolicyFileError, Table};
use tollgate::policy::spec::{Rule, SpecError};
use tollgate::{Clock, Quota, TokenBucket};

/// A [`TokenBucket`](tollgate::TokenBucket) whose rate [adapts](crate::adaptive::Adaptive#rates): it finds the rate that an upstream
/// allows. See [`AdaptiveBuilder`](crate::adaptive::AdaptiveBuilder) for the meaning of its numbers. None can be changed in place.
///
/// Report a refusal of the upstream as [`Outcome::Overload`](tollgate::Outcome::Overload).
///
/// ```
/// # use tollgate::policy::spec::{LegSpec, PolicySpec};
/// # use tollgate_resilience::policy::AdaptiveRateRule;
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// let rule = AdaptiveRateRule::new("100/s burst 10".parse()?, 500);
/// let policy = PolicySpec::new([LegSpec::new("upstream", rule)]).build(&ManualClock::new())?;
/// policy.try_admit(1)?.finish(Outcome::Overload);
/// assert_eq!(policy.limiter().leg("upstream").unwrap().per_second, Some(70.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdaptiveRateRule {
    /// The law that sets the rate, with its numbers.
    pub law: AdaptiveLaw,
    /// The rate at the start. Its period and its burst stay.
    pub quota: Quota,
    /// The lowest count per period.
    pub floor: usize,
    /// The highest count per period.
    pub ceiling: usize,
    /// The law is asked once per window, and at the first refusal of the upstream.
    pub window: Duration,
    /// The number of requests that must have finished before it is asked again.
    pub samples: u64,
}

impl AdaptiveRateRule {
    /// A rate that starts at `quota` and finds itself between one and `ceiling` units per period, by [`Cubic`].
    pub fn new(quota: Quota, ceiling: usize) -> Self {
        Self {
            law: AdaptiveLaw::Cubic(Cubic::new()),
            quota,
            floor: 1,
            ceiling,
            window: Duration::from_secs(1),
            samples: 10,
        }
    }
}

impl Rule for AdaptiveRateRule {
    type Limiter = Adaptive<TokenBucket>;
    const KIND: &'static str = "adaptive-rate";

    fn build(&self, clock: &Clock) -> Result<Self::Limiter, SpecError> {
        let builder = Adaptive::builder(TokenBucket::new(self.quota).on(clock))
            .bounds(self.floor, self.ceiling)
            .window(self.window, self.samples)
            .on(clock);
        let adaptive = self.law.drives(builder).build().map_err(fault)?;
        check_start("quota", self.quota.count(), self.floor, self.ceiling)?;
        if Quota::new(self.ceiling as u64, self.quota.period()).is_err() {
            let fault = format!(
                "{} in {:?} is above one per nanosecond",
                self.ceiling,
                self.quota.period()
            );
            return Err(SpecError::new("ceiling", fault));
        }
        Ok(adaptive)
    }

    fn check(&self) -> Result<(), SpecError> {
        self.build(&Clock::real()).map(drop)
    }

    fn reset(adaptive: &Self::Limiter) {
        adaptive.limiter().reset();
    }

    fn available(adaptive: &Self::Limiter) -> Option<u64> {
        Some(adaptive.limiter().available())
    }

    fn most(&self) -> Option<u64> {
        Some(self.quota.burst_size())
    }

    fn per_second(&self) -> Option<f64> {
        Some(self.quota.count() as f64 / self.quota.period().as_secs_f64())
    }

    fn rate(&self, adaptive: &Self::Limiter) -> Option<f64> {
        Some(adaptive.limit() as f64 / self.quota.period().as_secs_f64())
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for AdaptiveRateRule {
    const KEYS: &'static [&'static str] = &["law", "quota", "floor", "ceiling", "window", "samples"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let units = |key| super::adaptive::bound(table, key);
        let quota = table.quota("quota")?;
        let quota = quota.ok_or_else(|| table.missing("quota", "the rate, such as \"100/s burst 20\""))?;
        let ceiling = units("ceiling")?;
        let ceiling = ceiling.ok_or_else(|| table.missing("ceiling", "the highest count per period of `quota`"))?;
        let rule = Self::new(quota, ceiling);
        Ok(Self {
            law: table.table("law")?.map_or(Ok(rule.law), super::adaptive::law)?,
            floor: units("floor")?.unwrap_or(rule.floor),
            window: table.time("window")?.unwrap_or(rule.window),
            samples: table.whole("samples", 1, u64::MAX)?.unwrap_or(rule.samples),
            ..rule
        })
    }
}
