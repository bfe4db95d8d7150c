//! Errors of rates that space their admissions.

use super::quota::Quota;
use std::fmt;
use std::time::Duration;

/// Why a setting of a [`LeakyBucket`](crate::LeakyBucket) or a [`Warmup`](crate::Warmup) is refused.
///
/// ```
/// # use tollgate::{LeakyBucket, Quota, RateError, Warmup};
/// # use std::time::Duration;
/// let error = Warmup::new(Quota::per_second(1), Duration::ZERO).unwrap_err();
/// assert_eq!(error, RateError::Period { given: Duration::ZERO });
/// assert!(LeakyBucket::new(Quota::per_second(1)).slack(u64::MAX).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateError {
    /// The slack must be below [`Quota::MAX_BURST`], and flow out within 584 years at the rate.
    Slack {
        /// The given slack.
        given: u64,
    },
    /// The warm-up period must be above zero and at most 365 days.
    Period {
        /// The given period.
        given: Duration,
    },
    /// The cold factor must be 1 to 100.
    ColdFactor {
        /// The given factor.
        given: u32,
    },
    /// The rate must not yield more than 2^31 permits in the warm-up period.
    Permits {
        /// The given rate.
        quota: Quota,
        /// The given period.
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
