//! Errors of shedding.

use std::fmt;
use std::time::Duration;

/// A setting of a [`Throttler`](super::Throttler) or a [`RetryBudget`](super::RetryBudget) that is out of bounds.
///
/// ```
/// # use tollgate_resilience::shed::{RetryBudget, ShedError};
/// let error = RetryBudget::new(-0.1, 10).unwrap_err();
/// assert!(matches!(error, ShedError::Number { .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ShedError {
    /// A number must be within bounds.
    Number {
        /// The setting.
        setting: &'static str,
        /// The given number.
        given: f64,
        /// The least allowed.
        least: f64,
        /// The most allowed.
        most: f64,
    },
    /// A window must be above zero and at most 365 days.
    Window {
        /// The given window.
        given: Duration,
    },
}

impl fmt::Display for ShedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number {
                setting,
                given,
                least,
                most,
            } => write!(f, "{setting}: {given} was given, and {least} to {most} is allowed"),
            Self::Window { given } => {
                write!(
                    f,
                    "a window of {given:?} was given, and above zero to 365 days is allowed"
                )
            }
        }
    }
}

impl std::error::Error for ShedError {}

/// `given`, if it lies within the bounds.
pub(super) fn within(setting: &'static str, given: f64, least: f64, most: f64) -> Result<f64, ShedError> {
    if (least..=most).contains(&given) {
        Ok(given)
    } else {
        Err(ShedError::Number {
            setting,
            given,
            least,
            most,
        })
    }
}
