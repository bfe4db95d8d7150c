//! Errors of windows, and of rates that warm up.

use super::quota::Quota;
use std::fmt;
use std::time::Duration;

/// Why a setting of a window or of a [`Warmup`](crate::Warmup) is refused.
///
/// ```
/// # use tollgate::{Quota, RateError, SlidingWindow, Warmup};
/// # use std::time::Duration;
/// let error = Warmup::new(Quota::per_second(1), Duration::ZERO).unwrap_err();
/// assert_eq!(error, RateError::Length { given: Duration::ZERO });
/// let window = SlidingWindow::new(2, Duration::from_secs(1))?;
/// assert_eq!(window.segments(0).unwrap_err(), RateError::Segments { given: 0 });
/// # Ok::<(), RateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateError {
    /// The length of a window, or of a warm-up, must be above zero and at most 365 days.
    Length {
        /// The given length.
        given: Duration,
    },
    /// The segments must be 1 to [`SlidingWindow::MAX_SEGMENTS`](crate::SlidingWindow::MAX_SEGMENTS).
    Segments {
        /// The given number.
        given: usize,
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
            Self::Length { given } => write!(
                f,
                "a length of {given:?} was given, and above zero to 365 days is allowed"
            ),
            Self::Segments { given } => write!(
                f,
                "{given} segments were given, and 1 to {} are allowed",
                super::SlidingWindow::MAX_SEGMENTS
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

/// `length`, if a window or a warm-up can be so long.
pub(super) fn check_length(length: Duration) -> Result<Duration, RateError> {
    if length.is_zero() || length > Duration::from_secs(365 * 86_400) {
        return Err(RateError::Length { given: length });
    }
    Ok(length)
}
