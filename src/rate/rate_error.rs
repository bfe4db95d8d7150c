//! Why numbers do not make a paced rate.

use super::quota::Quota;
use std::fmt;
use std::time::Duration;

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
