//! Why permits were not acquired.

use crate::semaphore::queue::Key;
use std::fmt;

/// Why a wait for permits ended without them: the semaphore has been closed, its bounded queue was full, or the waiter was
/// evicted from it.
///
/// ```
/// # use tollgate::Semaphore;
/// let semaphore = Semaphore::new(1);
/// semaphore.close();
/// let error = semaphore.blocking_acquire().unwrap_err();
/// assert!(error.is_closed());
/// assert_eq!(error.to_string(), "semaphore closed");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AcquireError(Why);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Closed,
    QueueFull,
    Evicted,
}

impl AcquireError {
    /// The error of a wait that ended with this key.
    #[cold]
    pub(super) fn of(ended: Key) -> Self {
        Self(match ended {
            Key::FULL => Why::QueueFull,
            Key::EVICTED => Why::Evicted,
            _ => Why::Closed,
        })
    }

    /// True when the semaphore has been closed. Without a bounded queue it always is.
    pub fn is_closed(&self) -> bool {
        self.0 == Why::Closed
    }

    /// True when the bounded queue was full.
    pub fn is_queue_full(&self) -> bool {
        self.0 == Why::QueueFull
    }

    /// True when the waiter was evicted for a newer one.
    pub fn is_evicted(&self) -> bool {
        self.0 == Why::Evicted
    }
}

impl fmt::Debug for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // As tokio's.
            Why::Closed => f.write_str("AcquireError(())"),
            why => write!(f, "AcquireError({why:?})"),
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Why::Closed => "semaphore closed",
            Why::QueueFull => "the semaphore's queue is full",
            Why::Evicted => "evicted from the semaphore's queue for a newer waiter",
        })
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
    /// The bounded queue was full.
    QueueFull,
    /// The waiter was evicted for a newer one.
    Evicted,
}

impl AcquireTimeoutError {
    /// True when the time was over before the permits were granted.
    pub fn is_timed_out(&self) -> bool {
        *self == Self::TimedOut
    }

    /// True when the semaphore has been closed.
    pub fn is_closed(&self) -> bool {
        *self == Self::Closed
    }

    /// True when the bounded queue was full.
    pub fn is_queue_full(&self) -> bool {
        *self == Self::QueueFull
    }

    /// True when the waiter was evicted for a newer one.
    pub fn is_evicted(&self) -> bool {
        *self == Self::Evicted
    }
}

impl fmt::Display for AcquireTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "semaphore closed",
            Self::TimedOut => "no permits in time",
            Self::QueueFull => "the semaphore's queue is full",
            Self::Evicted => "evicted from the semaphore's queue for a newer waiter",
        })
    }
}

impl std::error::Error for AcquireTimeoutError {}

impl From<AcquireError> for AcquireTimeoutError {
    fn from(error: AcquireError) -> Self {
        match error.0 {
            Why::Closed => Self::Closed,
            Why::QueueFull => Self::QueueFull,
            Why::Evicted => Self::Evicted,
        }
    }
}
