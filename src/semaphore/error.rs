//! Why permits were not acquired.

use crate::sync::queue::Key;
use std::fmt;

/// Why a wait for permits ended without them: the semaphore has been closed, or it was built with a bounded queue and
/// that was full.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AcquireError(Why);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Closed,
    QueueFull,
    Evicted,
}

impl AcquireError {
    /// What a wait that was not granted ended in.
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

    /// True when the queue was as long as it may be.
    pub fn is_queue_full(&self) -> bool {
        self.0 == Why::QueueFull
    }

    /// True when the waiter was sent away to make room for a newer one.
    pub fn is_evicted(&self) -> bool {
        self.0 == Why::Evicted
    }
}

impl fmt::Debug for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // As tokio's, which has nothing else to say.
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
            Why::Evicted => "sent away from the semaphore's queue to make room for a newer waiter",
        })
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
    /// The queue was as long as it may be.
    QueueFull,
    /// Sent away to make room for a newer waiter.
    Evicted,
}

impl AcquireTimeoutError {
    /// True when the time was over before the turn came.
    pub fn is_timed_out(&self) -> bool {
        *self == Self::TimedOut
    }

    /// True when the semaphore has been closed.
    pub fn is_closed(&self) -> bool {
        *self == Self::Closed
    }

    /// True when the queue was as long as it may be.
    pub fn is_queue_full(&self) -> bool {
        *self == Self::QueueFull
    }

    /// True when the waiter was sent away to make room for a newer one.
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
            Self::Evicted => "sent away from the semaphore's queue to make room for a newer waiter",
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
