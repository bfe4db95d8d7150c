//! Why permits were not acquired.

use super::atomic::Closed;
use std::fmt;

/// Why a wait for permits ended without them: the semaphore has been closed.
///
/// ```
/// # use tollgate::Semaphore;
/// let semaphore = Semaphore::new(1);
/// semaphore.close();
/// let error = semaphore.blocking_acquire().unwrap_err();
/// assert_eq!(error.to_string(), "semaphore closed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// The unit is what tokio's has, and shows.
pub struct AcquireError(pub(super) ());

impl From<Closed> for AcquireError {
    #[cold]
    fn from(_: Closed) -> Self {
        Self(())
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("semaphore closed")
    }
}

impl std::error::Error for AcquireError {}

/// Why `try_acquire` refused.
///
/// ```
/// # use tollgate::{Semaphore, TryAcquireError};
/// let semaphore = Semaphore::new(1);
/// let permit = semaphore.try_acquire().unwrap();
/// assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::NoPermits);
/// semaphore.close();
/// assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::Closed);
/// # drop(permit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    /// The semaphore has been closed.
    Closed,
    /// Not enough permits are free, or there are waiters for them.
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
///
/// ```
/// # use tollgate::{AcquireTimeoutError, Semaphore};
/// # use std::time::Duration;
/// let semaphore = Semaphore::new(1);
/// let permit = semaphore.try_acquire().unwrap();
/// let error = semaphore.blocking_acquire_timeout(Duration::ZERO).unwrap_err();
/// assert_eq!(error, AcquireTimeoutError::TimedOut);
/// assert_eq!(error.to_string(), "no permits in time");
/// # drop(permit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireTimeoutError {
    /// The semaphore has been closed.
    Closed,
    /// The time was over before the permits were granted.
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
