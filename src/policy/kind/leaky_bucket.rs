//! A leaky bucket as a leg.

use super::*;
use super::shared::{fault, quota_rule, tighter};
use crate::rate::{LeakyBucket, Quota};

/// A [`LeakyBucket`](crate::LeakyBucket).
///
/// ```
/// # use tollgate::policy::spec::{LeakyBucketRule, LegRule, LegSpec};
/// # use tollgate::Quota;
/// let leg = LegSpec::new("spaced", LeakyBucketRule { quota: Quota::per_second(5), slack: 2 });
/// assert_eq!(leg.rule.kind(), "leaky-bucket");
/// assert_eq!(LegRule::leaky_bucket(Quota::per_second(5)).get::<LeakyBucketRule>().map(|rule| rule.slack), Some(0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucketRule {
    /// The rate.
    pub quota: Quota,
    /// Units that may catch up with the spacing.
    pub slack: u64,
}

impl LeakyBucketRule {
    fn limiter(&self) -> Result<LeakyBucket, SpecError> {
        let bucket = LeakyBucket::new(self.quota);
        bucket.slack(self.slack).map_err(fault("slack"))
    }
}

impl Rule for LeakyBucketRule {
    type Limiter = LeakyBucket;
    const KIND: &'static str = "leaky-bucket";
    quota_rule!();

    fn text(&self) -> String {
        format!("{}, slack {}", self.quota, self.slack)
    }

    fn fixed(&self) -> String {
        String::new()
    }

    fn change(&self, bucket: &LeakyBucket, to: &Self, inherit: Inherit) {
        // First the number that shrinks, so that no step between has a slack that the rate cannot carry. Numbers that have been
        // checked are not refused; a refused one would leave the old in force.
        if to.slack < self.slack {
            let _ = bucket.set_slack(to.slack, inherit);
        }
        if to.quota != self.quota {
            let _ = bucket.set_quota(to.quota, inherit);
        }
        if to.slack > self.slack {
            let _ = bucket.set_slack(to.slack, inherit);
        }
        bucket.adopt_settings();
    }

    fn tighter(&self, other: &Self) -> Self {
        Self {
            quota: tighter(self.quota, other.quota),
            slack: self.slack.min(other.slack),
        }
    }

    fn most(&self) -> Option<u64> {
        (!self.is_unlimited()).then_some(self.slack.saturating_add(1))
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for LeakyBucketRule {
    const KEYS: &'static [&'static str] = &["quota", "slack"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        Ok(Self {
            quota: super::shared::quota(table)?,
            slack: table.whole("slack", 0, Quota::MAX_BURST - 1)?.unwrap_or(0),
        })
    }
}

impl LegRule {
    /// A leaky bucket of `quota` without slack.
    pub fn leaky_bucket(quota: Quota) -> Self {
        LeakyBucketRule { quota, slack: 0 }.into()
    }
}
