//! Why permits were not acquired.

use std::fmt;

/// The semaphore has been closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireError(pub(super) ());

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("semaphore closed")
    }
}

impl std::error::Error for AcquireError {}

/// Why `try_acquire` refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    /// The semaphore has been closed.
    Closed,
    /// Not enough permits are free, or somebody is waiting for them.
    NoPermits,
}

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "semaphore closed",
            Self::NoPermits => "no permits available",
        })
    }
}

impl std::error::Error for TryAcquireError {}

/// Why a wait with a time-out ended without permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireTimeoutError {
    /// The semaphore has been closed.
    Closed,
    /// The time was over before the turn came.
    TimedOut,
}

impl fmt::Display for AcquireTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "semaphore closed",
            Self::TimedOut => "no permits in time",
        })
    }
}

impl std::error::Error for AcquireTimeoutError {}

impl From<AcquireError> for AcquireTimeoutError {
    fn from(_: AcquireError) -> Self {
        Self::Closed
    }
}
