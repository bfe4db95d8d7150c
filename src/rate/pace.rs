//! A rate that may also be none, or no limit.

use super::quota::Quota;
use std::fmt;
use std::time::Duration;

/// How fast a limiter lets through: by a quota, not at all, or without a limit. The two extremes have names, so that no
/// number stands for them.
///
/// ```
/// # use tollgate::{Inherit, LeakyBucket, ManualClock, Quota, Rate};
/// let clock = ManualClock::new();
/// let bucket = LeakyBucket::new(Quota::per_second(10)).on(&clock);
/// assert_eq!(bucket.rate(), Rate::Of(Quota::per_second(10)));
/// bucket.set_quota(Rate::Unlimited, Inherit::AsIs).unwrap();
/// assert!(bucket.try_acquire(1_000_000).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rate {
    /// Nothing comes back as time passes.
    Zero,
    /// As the quota says.
    Of(Quota),
    /// Everything is admitted, and nothing is counted.
    Unlimited,
}

impl From<Quota> for Rate {
    fn from(quota: Quota) -> Self {
        Self::Of(quota)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zero"),
            Self::Of(quota) => quota.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// Why a number is none for a [`LeakyBucket`](crate::LeakyBucket) or a [`Warmup`](crate::Warmup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateError {
    /// The slack must be below [`Quota::MAX_BURST`], and flow out within 584 years at the rate.
    Slack {
        /// What was given.
        given: u64,
    },
    /// The warm-up period must be above zero and at most 365 days.
    Period {
        /// What was given.
        given: Duration,
    },
    /// The cold factor must be 1 to 100.
    ColdFactor {
        /// What was given.
        given: u32,
    },
    /// The rate must not yield more than 2^31 permits in the warm-up period.
    Permits {
        /// The rate that was given.
        quota: Quota,
        /// The period that was given.
        period: Duration,
    },
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slack { given } => write!(
                f,
                "a slack of {given} was given, and less than 2^40 that flows out within 584 years is allowed"
            ),
            Self::Period { given } => write!(
                f,
                "a warm-up of {given:?} was given, and above zero to 365 days is allowed"
            ),
            Self::ColdFactor { given } => write!(f, "a cold factor of {given} was given, and 1 to 100 is allowed"),
            Self::Permits { quota, period } => write!(
                f,
                "{quota} and a warm-up of {period:?} were given, and at most 2^31 permits in that time are allowed"
            ),
        }
    }
}

impl std::error::Error for RateError {}
