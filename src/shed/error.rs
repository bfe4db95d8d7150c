//! Errors of shedding.

use super::WaitingRoom;
use std::fmt;
use std::time::Duration;

/// A setting of a [`Partitions`](super::Partitions), a [`Throttler`](super::Throttler), a
/// [`RetryBudget`](super::RetryBudget) or a [`WaitingRoom`] that is out of bounds.
///
/// ```
/// # use tollgate::shed::{Partitions, ShedError};
/// let error = Partitions::guaranteed(10, &[0.7, 0.7]).unwrap_err();
/// assert!(matches!(error, ShedError::Parts { .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ShedError {
    /// There must be 1 to 256 classes.
    Classes {
        /// The given number.
        given: usize,
    },
    /// Classes stay: there must be a part for each.
    OtherClasses {
        /// The given number of parts.
        given: usize,
        /// The number of classes.
        classes: usize,
    },
    /// A part must be 0 to 1.
    Part {
        /// The class.
        class: usize,
        /// The given part.
        given: f64,
    },
    /// Guaranteed parts may not exceed 1 in all.
    Parts {
        /// Their sum.
        sum: f64,
    },
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
            Self::Classes { given } => write!(f, "{given} classes were given, and 1 to 256 are allowed"),
            Self::OtherClasses { given, classes } => {
                write!(f, "{given} parts were given, and there are {classes} classes")
            }
            Self::Part { class, given } => {
                write!(f, "class {class}: a part of {given} was given, and 0 to 1 is allowed")
            }
            Self::Parts { sum } => write!(f, "parts of {sum} in all were given, and up to 1 is allowed"),
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
