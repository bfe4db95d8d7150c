//! A token bucket as a leg.

use super::*;
use super::shared::{quota_rule, tighter};
use crate::rate::{Quota, TokenBucket};

/// A [`TokenBucket`](crate::TokenBucket).
///
/// ```
/// # use tollgate::policy::spec::{LegRule, TokenBucketRule};
/// # use tollgate::Quota;
/// let rule = LegRule::token_bucket(Quota::per_second(5).burst(20));
/// assert_eq!(rule.get(), Some(&TokenBucketRule { quota: Quota::per_second(5).burst(20) }));
/// assert_eq!((rule.most(), rule.per_second()), (Some(20), Some(5.0)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucketRule {
    /// The rate and the burst.
    pub quota: Quota,
}

impl TokenBucketRule {
    fn limiter(&self) -> Result<TokenBucket, SpecError> {
        Ok(TokenBucket::new(self.quota))
    }
}

impl Rule for TokenBucketRule {
    type Limiter = TokenBucket;
    const KIND: &'static str = "token-bucket";
    quota_rule!();

    fn text(&self) -> String {
        self.quota.to_string()
    }

    fn fixed(&self) -> String {
        String::new()
    }

    fn change(&self, bucket: &TokenBucket, to: &Self, inherit: Inherit) {
        bucket.set_quota(to.quota, inherit);
        bucket.adopt_settings();
    }

    fn tighter(&self, other: &Self) -> Self {
        Self {
            quota: tighter(self.quota, other.quota),
        }
    }

    fn most(&self) -> Option<u64> {
        (!self.is_unlimited()).then_some(self.quota.burst_size())
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for TokenBucketRule {
    const KEYS: &'static [&'static str] = &["quota"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let quota = super::shared::quota(table)?;
        Ok(Self { quota })
    }
}

impl LegRule {
    /// A token bucket of `quota`.
    ///
    /// ```
    /// # use tollgate::CalendarPeriod;
    /// # use tollgate::policy::spec::LegRule;
    /// # use std::time::Duration;
    /// let (quota, minute) = ("100/s burst 20".parse()?, Duration::from_secs(60));
    /// let rules = [
    ///     LegRule::token_bucket(quota),
    ///     LegRule::leaky_bucket(quota),
    ///     LegRule::fixed_window(60, minute),
    ///     LegRule::calendar_window(1_000, CalendarPeriod::Day),
    ///     LegRule::sliding_window(60, minute),
    ///     LegRule::sliding_log(60, minute),
    ///     LegRule::semaphore(8),
    ///     LegRule::partition("shared", "batch"),
    /// ];
    /// let kinds = rules.map(|rule| rule.kind());
    /// assert_eq!(kinds[..3], ["token-bucket", "leaky-bucket", "fixed-window"]);
    /// assert_eq!(kinds[3..], ["calendar-window", "sliding-window", "sliding-log", "semaphore", "partition"]);
    /// # Ok::<(), tollgate::QuotaError>(())
    /// ```
    pub fn token_bucket(quota: Quota) -> Self {
        TokenBucketRule { quota }.into()
    }
}
