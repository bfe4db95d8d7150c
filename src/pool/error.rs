//! What can go wrong: with a pool, with a submission, with a task.

use crate::core::refusal::Rejection;
use std::any::Any;
use std::fmt;
use std::io;

/// Why a task has no result.
#[non_exhaustive]
pub enum TaskError {
    /// It panicked: this is what it panicked with.
    Panicked(Box<dyn Any + Send>),
    /// It was cancelled before it started.
    Cancelled,
    /// It was thrown out of a full queue, or never let in, by the pool's [`Overflow`](super::Overflow).
    Discarded,
    /// Its future was dropped after it had started: tasks of a `TaskPool` can be cancelled while they
    /// run.
    Aborted,
    /// Its deadline passed before it started.
    Expired,
    /// The policy in front of the workers has refused it: it can never be admitted, or not within the bounds that the
    /// policy itself has on waiting.
    Refused(Rejection),
    /// The pool ended before it started.
    Abandoned,
    /// Waiting for the task may never end, whether it has ended by now or not: it needs a permit that the waiter holds, or a task that
    /// waits for the waiter; or it waits for the waiter itself. The task goes on, and its result stays.
    WouldDeadlock,
    /// Waiting for the task would leave no thread for the tasks that others wait for: a pool of threads has 256 beyond its limit for
    /// tasks that wait. The task goes on, and its result stays.
    TooManyParked,
}

impl TaskError {
    /// What the task panicked with, to be resumed or looked at.
    ///
    /// # Errors
    /// The error itself when the task did not panic.
    pub fn into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        match self {
            Self::Panicked(payload) => Ok(payload),
            other => Err(other),
        }
    }

    /// True when the task started: it may have had effects.
    pub fn has_started(&self) -> bool {
        matches!(self, Self::Panicked(_) | Self::Aborted)
    }
}

/// The message of a panic, where it has one.
pub(super) fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with a payload that is no text")
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(payload) => f.debug_tuple("Panicked").field(&message(&**payload)).finish(),
            Self::Cancelled => f.write_str("Cancelled"),
            Self::Discarded => f.write_str("Discarded"),
            Self::Aborted => f.write_str("Aborted"),
            Self::Expired => f.write_str("Expired"),
            Self::Refused(rejection) => f.debug_tuple("Refused").field(rejection).finish(),
            Self::Abandoned => f.write_str("Abandoned"),
            Self::WouldDeadlock => f.write_str("WouldDeadlock"),
            Self::TooManyParked => f.write_str("TooManyParked"),
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(payload) => write!(f, "the task panicked: {}", message(&**payload)),
            Self::Cancelled => f.write_str("the task was cancelled before it started"),
            Self::Discarded => f.write_str("the task was discarded by a full queue"),
            Self::Aborted => f.write_str("the task was dropped while it ran"),
            Self::Expired => f.write_str("the task did not start before its deadline"),
            Self::Refused(rejection) => write!(f, "the task was refused: {rejection}"),
            Self::Abandoned => f.write_str("the pool ended before the task started"),
            Self::WouldDeadlock => f.write_str("waiting for the task would deadlock"),
            Self::TooManyParked => f.write_str("too many tasks of the pool wait for others"),
        }
    }
}

impl std::error::Error for TaskError {}

/// Why a task that may fail has no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failed<E> {
    /// What the task itself returned.
    Error(E),
    /// It returned nothing.
    Task(TaskError),
}

impl<E> Failed<E> {
    /// What the task itself returned, if it did.
    pub fn into_error(self) -> Option<E> {
        match self {
            Self::Error(error) => Some(error),
            Self::Task(_) => None,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Task(TaskError::Cancelled))
    }
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Task(why) => why.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Failed<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Error(error) => error.source(),
            Self::Task(why) => why.source(),
        }
    }
}

/// Why a task was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Turned {
    /// The queue is full.
    Full,
    /// The queue was full for as long as the submission would wait.
    TimedOut,
    /// The pool takes no more tasks.
    Closed,
    /// The task weighs more than the whole queue may hold.
    Oversized {
        /// What it weighs.
        weight: u32,
        /// What all queued tasks together may weigh.
        allowed: u32,
    },
}

impl Turned {
    /// For a caller that waits for the task at once.
    pub(super) fn into_error(self) -> TaskError {
        match self {
            Self::Closed => TaskError::Abandoned,
            _ => TaskError::Discarded,
        }
    }
}

/// A task that was not taken, handed back.
pub struct Rejected<F> {
    /// The task.
    pub task: F,
    /// Why it was not taken.
    pub reason: Turned,
}

impl<F> fmt::Debug for Rejected<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Turned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the pool's queue is full"),
            Self::TimedOut => f.write_str("the pool's queue stayed full"),
            Self::Closed => f.write_str("the pool takes no more tasks"),
            Self::Oversized { weight, allowed } => {
                write!(f, "a task of weight {weight} does not fit a queue that holds {allowed}")
            }
        }
    }
}

impl<F> fmt::Display for Rejected<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

impl std::error::Error for Turned {}
impl<F> std::error::Error for Rejected<F> {}

/// Why a pool could not be built, or resized.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// A pool has at least one thread, and no more than [`MAX_WORKERS`](super::MAX_WORKERS); the least is no more than
    /// the most.
    Workers {
        /// The least that was given.
        least: usize,
        /// The most that was given.
        most: usize,
    },
    /// A queue holds at least one task, and no more than a semaphore has permits.
    Queue {
        /// What was given.
        given: usize,
    },
    /// A bound on the queue's weight is at least one.
    Weight,
    /// The limit of a group is at least one.
    GroupLimit,
    /// A pool of async tasks was built outside of a runtime, and was given none.
    NoRuntime,
    /// A thread could not be started.
    Spawn(io::Error),
    /// The name of a thread holds no zero byte.
    Name {
        /// What was given.
        given: String,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { least, most } => write!(
                f,
                "{least} to {most} workers were asked for, and 1 to {} are allowed, the least first",
                super::MAX_WORKERS
            ),
            Self::Queue { given } => write!(
                f,
                "a queue of {given} tasks was asked for, and 1 to {} are allowed",
                super::MAX_QUEUE
            ),
            Self::NoRuntime => f.write_str("a pool of async tasks needs a tokio runtime, and none is running"),
            Self::Weight => f.write_str("a queue was to hold a weight of 0, and at least 1 is needed"),
            Self::GroupLimit => f.write_str("a group was to run 0 tasks at once, and at least 1 is needed"),
            Self::Spawn(error) => write!(f, "a worker thread could not be started: {error}"),
            Self::Name { given } => write!(f, "threads were to be called {given:?}, and a name holds no zero byte"),
        }
    }
}

impl std::error::Error for PoolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Spawn(error) => Some(error),
            _ => None,
        }
    }
}
