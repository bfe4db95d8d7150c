//! A rate with a warm-up as a leg.

use super::*;
use super::shared::{fault, quota_rule, tighter};
use crate::rate::{Quota, Warmup};

/// A [`Warmup`](crate::Warmup).
///
/// ```
/// # use tollgate::policy::spec::{LegSpec, PolicySpec, WarmupRule};
/// # use tollgate::{LimiterExt, ManualClock, Quota};
/// # use std::time::Duration;
/// let rule = WarmupRule { quota: Quota::per_second(10), period: Duration::from_secs(3), cold_factor: 3 };
/// let policy = PolicySpec::new([LegSpec::new("cache", rule)]).build(&ManualClock::new())?;
/// assert!(policy.try_admit(1).is_ok());
/// assert!(policy.try_admit(1).unwrap_err().retry_after() > Some(Duration::from_millis(100)));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WarmupRule {
    /// The rate when it is warm.
    pub quota: Quota,
    /// The time to get warm. It cannot be changed in place.
    pub period: Duration,
    /// The factor of the interval when it is cold. It cannot be changed in place.
    pub cold_factor: u32,
}

impl WarmupRule {
    fn limiter(&self) -> Result<Warmup, SpecError> {
        let warmup = Warmup::new(self.quota, self.period).map_err(fault("period"))?;
        warmup.cold_factor(self.cold_factor).map_err(fault("cold_factor"))
    }
}

impl Rule for WarmupRule {
    type Limiter = Warmup;
    const KIND: &'static str = "warmup";
    quota_rule!();

    fn text(&self) -> String {
        let (quota, period, factor) = (self.quota, self.period, self.cold_factor);
        format!("{quota}, warm after {period:?}, cold factor {factor}")
    }

    fn fixed(&self) -> String {
        format!("{:?} {}", self.period, self.cold_factor)
    }

    fn change(&self, warmup: &Warmup, to: &Self, inherit: Inherit) {
        // A quota that has been checked is not refused; a refused one would leave the old in force.
        let _ = warmup.set_quota(to.quota, inherit);
        warmup.adopt_settings();
    }

    fn tighter(&self, other: &Self) -> Self {
        let quota = tighter(self.quota, other.quota);
        Self { quota, ..*self }
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for WarmupRule {
    const KEYS: &'static [&'static str] = &["quota", "period", "cold_factor"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let quota = super::shared::quota(table)?;
        let period = table.time("period")?;
        Ok(Self {
            quota,
            period: period.ok_or_else(|| table.missing("period", "how long it takes to get warm, such as \"10s\""))?,
            cold_factor: table.whole("cold_factor", 1, 100)?.unwrap_or(3) as u32,
        })
    }
}
