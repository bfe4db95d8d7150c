//! The errors of pools, of submissions and of tasks.

use super::hooks::opaque_debug;
use crate::core::refusal::Refusal;
use parking_lot::Mutex;
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;

/// Why a task has no result.
///
/// ```
/// # use tollgate::{WorkerPool, pool::TaskError};
/// let pool = WorkerPool::builder().workers(1).build()?;
/// let error = pool.submit(|| panic!("out of paper"))?.join().unwrap_err();
/// assert!(matches!(error, TaskError::Panicked(_)) && error.has_started());
/// assert_eq!(error.to_string(), "the task panicked: out of paper");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TaskError {
    /// The task panicked with this payload.
    Panicked(PanicPayload),
    /// The task was cancelled before it started.
    Cancelled,
    /// The task was evicted from a full queue, or never accepted, by the pool's [`Overflow`](super::Overflow).
    Discarded,
    /// The future of the task was dropped after it had started: a running task of a `TaskPool` can be cancelled.
    Aborted,
    /// The deadline of the task passed before it started.
    Expired,
    /// The policy refused the task: it can never be admitted, or not within the policy's own bounds on waiting.
    Refused(Refusal),
    /// The pool ended before the task started.
    Abandoned,
    /// **Deadlock**: waiting for the task may never end, even if the task has ended by now. The task needs a permit
    /// that the waiter holds, needs a task that waits for the waiter, or waits for the waiter itself. The task
    /// continues, and its result stays.
    WouldDeadlock,
    /// Waiting for the task would leave no thread for the tasks that others wait for. A pool of threads has 256 threads
    /// beyond its limit for waiting tasks. The task continues, and its result stays.
    TooManyParked,
}

/// The payload of a panic. It is `Sync`, so that a [`TaskError`] converts into every kind of boxed error.
///
/// ```
/// # use tollgate::{WorkerPool, pool::TaskError};
/// let pool = WorkerPool::builder().workers(1).build()?;
/// let result = pool.run(|| std::panic::panic_any(404_u16));
/// assert!(matches!(result, Err(TaskError::Panicked(_))));
/// assert_eq!(result.unwrap_err().into_panic().unwrap().downcast_ref(), Some(&404_u16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PanicPayload(Mutex<Box<dyn Any + Send>>);

impl PanicPayload {
    pub(super) fn into_inner(self) -> Box<dyn Any + Send> {
        self.0.into_inner()
    }
}

/// The message, if the payload is text.
impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(message(&**self.0.lock()), f)
    }
}

impl fmt::Display for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(message(&**self.0.lock()))
    }
}

impl TaskError {
    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Self {
        Self::Panicked(PanicPayload(Mutex::new(payload)))
    }

    /// Returns the payload of the task's panic, to be resumed or inspected.
    ///
    /// # Errors
    /// The error itself, if the task did not panic.
    pub fn into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        match self {
            Self::Panicked(payload) => Ok(payload.into_inner()),
            other => Err(other),
        }
    }

    /// Returns true if the task started: it may have had effects.
    pub fn has_started(&self) -> bool {
        matches!(self, Self::Panicked(_) | Self::Aborted)
    }
}

/// Returns the message of a panic, if its payload is text.
pub(super) fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with a payload that is no text")
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(payload) => write!(f, "the task panicked: {payload}"),
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

impl Error for TaskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(rejection) => Some(rejection),
            _ => None,
        }
    }
}

/// Why a fallible task has no value.
///
/// ```
/// # use tollgate::{WorkerPool, pool::GroupError};
/// let pool = WorkerPool::builder().workers(1).build()?;
/// let mut group = pool.group().keep_going();
/// group.submit(|| "12".parse::<u8>())?;
/// group.submit(|| "dozen".parse::<u8>())?;
/// group.submit(|| panic!("no more"))?;
/// let results = group.join_all();
/// assert_eq!(*results[0].as_ref().unwrap(), 12);
/// assert!(matches!(&results[1], Err(GroupError::Error(error)) if error.to_string().contains("invalid digit")));
/// assert!(matches!(&results[2], Err(GroupError::Task(why)) if why.has_started()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError<E> {
    /// The error that the task returned.
    Error(E),
    /// The task returned nothing.
    Task(TaskError),
}

impl<E> GroupError<E> {
    /// Returns the error that the task returned, if any.
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

impl<E: fmt::Display> fmt::Display for GroupError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Task(why) => why.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for GroupError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Error(error) => error.source(),
            Self::Task(why) => why.source(),
        }
    }
}

/// Why a pool did not accept a task.
///
/// ```
/// # use tollgate::{WorkerPool, pool::RejectReason};
/// let pool = WorkerPool::builder().workers(1).max_queue_weight(8).build()?;
/// let rejected = pool.weight(9).try_submit(|| "a large file").unwrap_err();
/// assert_eq!(rejected.reason, RejectReason::Oversized { weight: 9, allowed: 8 });
/// assert_eq!((rejected.task)(), "a large file");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectReason {
    /// The queue is full.
    Full,
    /// The queue was full for as long as the submission would wait.
    TimedOut,
    /// The pool accepts no more tasks.
    Closed,
    /// The weight of the task exceeds that of a full queue.
    Oversized {
        /// The weight of the task.
        weight: u32,
        /// The most weight that all queued tasks may have together.
        allowed: u32,
    },
}

impl RejectReason {
    /// Converts the reason for a caller that would wait for the task at once.
    pub(super) fn into_error(self) -> TaskError {
        match self {
            Self::Closed => TaskError::Abandoned,
            _ => TaskError::Discarded,
        }
    }
}

/// A task that was not accepted, handed back.
///
/// It holds the task, which may be neither `Send` nor `'static`, and is no [`Error`] itself. The operator `?` drops the task and
/// turns the [`RejectReason`] into a boxed error. For other kinds of errors: `.map_err(|rejected| rejected.reason)?`.
///
/// ```
/// # use tollgate::WorkerPool;
/// # use tollgate::pool::RejectReason;
/// fn work() -> Result<u32, Box<dyn std::error::Error>> {
///     let pool = WorkerPool::builder().workers(1).build()?;
///     pool.close();
///     Ok(pool.submit(|| 1)?.join()?)
/// }
/// let error = work().unwrap_err();
/// assert_eq!(error.downcast_ref(), Some(&RejectReason::Closed));
/// ```
pub struct SubmitError<F> {
    /// The task.
    pub task: F,
    /// Why the pool did not accept it.
    pub reason: RejectReason,
}

opaque_debug!([F] SubmitError<F>, "SubmitError", |this| reason = this.reason);

impl fmt::Display for RejectReason {
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

impl<F> fmt::Display for SubmitError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

impl Error for RejectReason {}

macro_rules! into_boxed_error {
    ($($error:ty),*) => {$(
        impl<F> From<SubmitError<F>> for Box<$error> {
            fn from(error: SubmitError<F>) -> Self {
                error.reason.into()
            }
        }
    )*};
}
into_boxed_error!(dyn Error, dyn Error + Send + Sync);

/// Why a pool could not be built or resized.
///
/// ```
/// # use tollgate::{WorkerPool, pool::PoolError};
/// let error = WorkerPool::builder().workers(8..=4).build().unwrap_err();
/// assert!(matches!(error, PoolError::Workers { least: 8, most: 4 }));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// The number of threads is out of bounds. A pool has at least one thread and at most
    /// [`MAX_WORKERS`](super::MAX_WORKERS), and the minimum is at most the maximum.
    Workers {
        /// The given minimum.
        least: usize,
        /// The given maximum.
        most: usize,
    },
    /// The bound on the queue is out of bounds. A queue holds at least one task, and at most the permits of a
    /// semaphore.
    Queue {
        /// The given bound.
        given: usize,
    },
    /// The bound on the queue's weight is zero; it must be at least one.
    Weight,
    /// The limit of a group is zero; it must be at least one.
    GroupLimit,
    /// A pool of async tasks was built outside a runtime, and was given none.
    NoRuntime,
    /// A thread could not be started.
    Spawn(io::Error),
    /// The name of a thread contains a zero byte.
    Name {
        /// The given name.
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

impl Error for PoolError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Spawn(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TaskError::{Abandoned, Aborted, Cancelled, Discarded, Expired, TooManyParked, WouldDeadlock};

    #[test]
    fn an_error_says_whether_its_task_has_started() {
        assert!(Aborted.has_started() && TaskError::panicked(Box::new(1)).has_started());
        let others = [Cancelled, Discarded, Expired, Abandoned, WouldDeadlock, TooManyParked];
        assert!(!others.iter().any(TaskError::has_started));
    }

    #[test]
    fn a_group_error_reads_as_what_it_holds() {
        assert_eq!(GroupError::Error("no disk").to_string(), "no disk");
        assert_eq!(GroupError::<&str>::Task(Expired).to_string(), Expired.to_string());
    }
}
