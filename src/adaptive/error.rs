//! Why numbers do not make an adaptive limit.

use std::fmt;
use std::time::Duration;

/// A setting of an [`Adaptive`](super::Adaptive) limit that cannot be.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum AdaptiveError {
    /// The floor must be at least 1 and at most the ceiling, and the ceiling at most 2^32.
    Bounds {
        /// The floor that was given.
        floor: usize,
        /// The ceiling that was given.
        ceiling: usize,
    },
    /// The percentile must be 0 to 100.
    Percentile {
        /// What was given.
        given: f64,
    },
    /// A window must be at most 365 days.
    Window {
        /// What was given.
        given: Duration,
    },
    /// The most latencies to keep must be 1 to 65,536.
    Samples {
        /// What was given.
        given: usize,
    },
    /// The factor must be at least the floor, the floor at least 1, the decay at least 0, all of them finite.
    Headroom {
        /// The factor that was given.
        factor: f64,
        /// The decay that was given.
        decay: f64,
        /// The floor that was given.
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
