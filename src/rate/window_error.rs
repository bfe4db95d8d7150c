//! Errors of windows.

use std::fmt;
use std::time::Duration;

/// Why a length, a number of segments or a number of entries is refused.
///
/// ```
/// # use tollgate::{SlidingWindow, WindowError};
/// # use std::time::Duration;
/// let error = SlidingWindow::new(2, Duration::ZERO).unwrap_err();
/// assert_eq!(error, WindowError::Length { given: Duration::ZERO });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowError {
    /// The length must be above zero and at most 365 days.
    Length {
        /// The given value.
        given: Duration,
    },
    /// The segments must be 1 to [`SlidingWindow::MAX_SEGMENTS`](crate::SlidingWindow::MAX_SEGMENTS).
    Segments {
        /// The given value.
        given: usize,
    },
    /// A log needs at least one entry.
    Entries {
        /// The given value.
        given: usize,
    },
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { given } => {
                write!(
                    f,
                    "a window of {given:?} was given, and above zero to 365 days is allowed"
                )
            }
            Self::Segments { given } => write!(
                f,
                "{given} segments were given, and 1 to {} are allowed",
                super::SlidingWindow::MAX_SEGMENTS
            ),
            Self::Entries { given } => write!(f, "{given} entries were given, and at least 1 is allowed"),
        }
    }
}

impl std::error::Error for WindowError {}

/// `length`, if a window can be so long.
pub(super) fn check_length(length: Duration) -> Result<Duration, WindowError> {
    if length.is_zero() || length > Duration::from_secs(365 * 86_400) {
        return Err(WindowError::Length { given: length });
    }
    Ok(length)
}
