//! Errors of adaptive settings.

use std::fmt;
use std::time::Duration;

/// A setting of an [`Adaptive`](super::Adaptive) limit that is out of bounds.
///
/// ```
/// # use tollgate::Semaphore;
/// # use tollgate_resilience::adaptive::{Adaptive, AdaptiveError};
/// let error = Adaptive::builder(Semaphore::new(4)).percentile(200.0).build().unwrap_err();
/// assert_eq!(error, AdaptiveError::Percentile { given: 200.0 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum AdaptiveError {
    /// The floor must be at least 1 and at most the ceiling, and the ceiling at most 2^32.
    Bounds {
        /// The given floor.
        floor: usize,
        /// The given ceiling.
        ceiling: usize,
    },
    /// The percentile must be 0 to 100.
    Percentile {
        /// The given percentile.
        given: f64,
    },
    /// A window must be at most 365 days.
    Window {
        /// The given window.
        given: Duration,
    },
    /// The most latencies to keep must be 1 to 65,536.
    Samples {
        /// The given number.
        given: usize,
    },
    /// The factor must be at least the floor, the floor at least 1, the decay at least 0, all of them finite.
    Headroom {
        /// The given factor.
        factor: f64,
        /// The given decay.
        decay: f64,
        /// The given floor.
        floor: f64,
    },
}

impl fmt::Display for AdaptiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bounds { floor, ceiling } => write!(
                f,
                "a floor of {floor} and a ceiling of {ceiling} were given, and 1 <= floor <= ceiling <= 2^32 is allowed"
            ),
            Self::Percentile { given } => write!(f, "a percentile of {given} was given, and 0 to 100 is allowed"),
            Self::Window { given } => write!(f, "a window of {given:?} was given, and up to 365 days is allowed"),
            Self::Samples { given } => write!(f, "{given} samples were given, and 1 to 65536 are allowed"),
            Self::Headroom { factor, decay, floor } => write!(
                f,
                "a headroom of factor {factor}, decay {decay} and floor {floor} was given, and factor >= floor >= 1 with \
                 decay >= 0 is allowed"
            ),
        }
    }
}

impl std::error::Error for AdaptiveError {}
