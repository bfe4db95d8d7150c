//! Errors of shedding.

use super::WaitingRoom;
use std::fmt;
use std::time::Duration;

/// A setting of a [`Throttler`](super::Throttler), a [`RetryBudget`](super::RetryBudget) or a [`WaitingRoom`] that is
/// out of bounds.
///
/// ```
/// # use tollgate::shed::{RetryBudget, ShedError};
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
    /// A waiting room needs a rate above zero.
    NoRate,
    /// The grace of an appointment must be neither too short nor too long.
    Grace {
        /// The given grace.
        given: Duration,
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
            Self::NoRate => f.write_str("a rate of zero was given, and a waiting room needs one above"),
            Self::Grace { given } => {
                let (least, most) = (WaitingRoom::LEAST_GRACE, WaitingRoom::MOST_GRACE);
                write!(
                    f,
                    "a grace of {given:?} was given, and {least:?} to {most:?} is allowed"
                )
            }
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
