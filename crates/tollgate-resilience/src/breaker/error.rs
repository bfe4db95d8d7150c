//! Errors of breaker settings.

use super::builder::BreakerBuilder;
use std::fmt;
use std::time::Duration;

/// A setting of a [`CircuitBreaker`](crate::CircuitBreaker) that is out of bounds.
///
/// ```
/// # use tollgate_resilience::{BreakerError, CircuitBreaker};
/// let error = CircuitBreaker::builder().failure_rate(1.5).build().unwrap_err();
/// assert!(matches!(error, BreakerError::Rate { given: 1.5, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum BreakerError {
    /// A rate must be above 0 and at most 1.
    Rate {
        /// The setting.
        setting: &'static str,
        /// The given value.
        given: f64,
    },
    /// A count must be within bounds.
    Count {
        /// The setting.
        setting: &'static str,
        /// The given value.
        given: u64,
        /// The greatest value allowed; the least is 1.
        most: u64,
    },
    /// A length of time must be above zero and at most 365 days.
    Time {
        /// The setting.
        setting: &'static str,
        /// The given value.
        given: Duration,
    },
    /// The factor by which the open time grows must be 1 to 100.
    Factor {
        /// The given factor.
        given: f64,
    },
    /// The standard deviations must be above 0 and at most 100.
    Deviations {
        /// The given number.
        given: f64,
    },
    /// The jitter must be 0 to 1.
    Jitter {
        /// The given jitter.
        given: f64,
    },
}

impl fmt::Display for BreakerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { setting, given } => write!(
                f,
                "{setting}: {given} was given, and above 0 (a millionth at least) to 1 is allowed"
            ),
            Self::Count { setting, given, most } => {
                write!(f, "{setting}: {given} was given, and 1 to {most} is allowed")
            }
            Self::Time { setting, given } => {
                write!(
                    f,
                    "{setting}: {given:?} was given, and above zero to 365 days is allowed"
                )
            }
            Self::Factor { given } => write!(f, "open time: a factor of {given} was given, and 1 to 100 is allowed"),
            Self::Deviations { given } => {
                write!(
                    f,
                    "history: {given} deviations were given, and above 0 to 100 is allowed"
                )
            }
            Self::Jitter { given } => write!(f, "open time: a jitter of {given} was given, and 0 to 1 is allowed"),
        }
    }
}

impl std::error::Error for BreakerError {}

/// The checks that settings share.
impl BreakerBuilder {
    pub(super) fn rate(setting: &'static str, given: f64) -> Result<u64, BreakerError> {
        // Rounded down, so that two of three reach two thirds.
        let millionths = (given * 1e6).floor();
        if (1.0..=1e6).contains(&millionths) {
            Ok(millionths as u64)
        } else {
            Err(BreakerError::Rate { setting, given })
        }
    }

    pub(super) fn count(setting: &'static str, given: u64, most: u64) -> Result<u64, BreakerError> {
        if (1..=most).contains(&given) {
            Ok(given)
        } else {
            Err(BreakerError::Count { setting, given, most })
        }
    }

    pub(super) fn time(setting: &'static str, given: Duration) -> Result<Duration, BreakerError> {
        if given.is_zero() || given > Duration::from_secs(365 * 86_400) {
            Err(BreakerError::Time { setting, given })
        } else {
            Ok(given)
        }
    }
}
