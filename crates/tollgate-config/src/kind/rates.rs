//! Legs with a quota.

use super::{Around, Kind, LegKind, fault, is_full};
use crate::spec::SpecError;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tollgate::{Inherit, LeakyBucket, Quota, TokenBucket, Warmup};

/// A [`TokenBucket`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenBucketSpec {
    /// The rate and the burst.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub quota: Quota,
}

impl Kind for TokenBucketSpec {
    type Limiter = TokenBucket;

    fn build(&self, around: &Around<'_>) -> Result<TokenBucket, SpecError> {
        Ok(TokenBucket::new(self.quota).on(around.clock))
    }

    fn fits(&self, _: &Self) -> bool {
        true
    }

    is_full!();

    fn put_in_force(&self, bucket: &TokenBucket, inherit: Inherit) {
        bucket.set_quota(self.quota, inherit);
    }
}

/// A [`LeakyBucket`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeakyBucketSpec {
    /// The rate.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub quota: Quota,
    /// Units that may catch up with the spacing.
    #[serde(default)]
    pub slack: u64,
}

impl Kind for LeakyBucketSpec {
    type Limiter = LeakyBucket;

    fn build(&self, around: &Around<'_>) -> Result<LeakyBucket, SpecError> {
        let bucket = LeakyBucket::new(self.quota).slack(self.slack);
        Ok(bucket.map_err(fault("slack"))?.on(around.clock))
    }

    fn fits(&self, _: &Self) -> bool {
        true
    }

    is_full!();

    fn put_in_force(&self, bucket: &LeakyBucket, inherit: Inherit) {
        // Numbers that have been checked are not refused; refused ones would leave the old in force.
        let _ = bucket.set_quota(self.quota, self.slack, inherit);
    }
}

/// A [`Warmup`]. The `period` and the `cold_factor` cannot be changed in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WarmupSpec {
    /// The rate when it is warm.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub quota: Quota,
    /// How long it takes to get warm.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub period: Duration,
    /// How many times longer the interval is when it is cold.
    #[serde(default = "WarmupSpec::cold_factor")]
    pub cold_factor: u32,
}

impl WarmupSpec {
    fn cold_factor() -> u32 {
        3
    }
}

impl Kind for WarmupSpec {
    type Limiter = Warmup;

    fn build(&self, around: &Around<'_>) -> Result<Warmup, SpecError> {
        let warmup = Warmup::new(self.quota, self.period).map_err(fault("period"))?;
        Ok(warmup
            .cold_factor(self.cold_factor)
            .map_err(fault("cold_factor"))?
            .on(around.clock))
    }

    fn fits(&self, before: &Self) -> bool {
        (self.period, self.cold_factor) == (before.period, before.cold_factor)
    }

    is_full!();

    fn put_in_force(&self, warmup: &Warmup, inherit: Inherit) {
        // Numbers that have been checked are not refused; refused ones would leave the old in force.
        let _ = warmup.set_quota(self.quota, inherit);
    }
}

impl LegKind {
    /// A token bucket.
    pub fn token_bucket(quota: Quota) -> Self {
        TokenBucketSpec { quota }.into()
    }

    /// A leaky bucket without slack.
    pub fn leaky_bucket(quota: Quota) -> Self {
        LeakyBucketSpec { quota, slack: 0 }.into()
    }
}
