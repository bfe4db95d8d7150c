//! Pools of threads.

use super::builder::PoolBuilder;
use super::kind::Threads;
use crate::pool::common::Pool;
use crate::pool::error::{PoolError, TaskError};
use crate::pool::park::block_on;
use crate::pool::report::ShutdownReport;
use crate::pool::termination::TerminationWait;
use crate::pool::workers::Workers;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

/// Runs tasks on worker threads, with a bounded queue. Cheap to clone; clones are the same pool.
///
/// Its tasks own what they use. Those of a [pool of a scope](PoolBuilder::scope) may borrow.
///
/// Dropping the last clone closes the pool and does not wait. Queued tasks still run, and then the threads end.
/// [`shutdown`](Pool::shutdown) waits, and [`abort`](Pool::abort) returns the tasks that have not started.
///
/// # Panics
/// A panic of a task does not end its worker. The handle of the task gets the payload.
///
/// # Fairness
/// First come, first served, by [`Priority`](crate::pool::Priority). A worker of a pool with a long queue takes up to 16 tasks of normal priority
/// at once, unless tasks with options wait. Other workers take these tasks over while it is busy, so none waits behind a
/// long task: each is next at the latest when 128 tasks per worker have been taken since.
///
/// # Memory ordering
/// Writes before a submission are visible to the task. Writes of the task are visible to the reader of its result.
///
/// ```
/// # use tollgate::WorkerPool;
/// # use std::time::Duration;
/// let pool = WorkerPool::builder().workers(2).max_queue(100).build()?;
/// let sum = pool.submit(|| (1..=10).sum::<u32>())?;
/// assert_eq!(sum.join()?, 55);
///
/// let report = pool.shutdown(Duration::from_secs(5));
/// assert!(report.is_clean());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type WorkerPool = Pool<Threads<'static>>;

impl WorkerPool {
    /// Returns a builder with the defaults: one worker per processor, a queue of 1,024 tasks, and submitters that wait while
    /// the queue is full.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }
}

impl<'j> Pool<Threads<'j>> {
    /// Runs `task` on the pool and waits for its result.
    ///
    /// # Errors
    /// [`TaskError`]: [`Abandoned`](TaskError::Abandoned) if the pool is closed.
    pub fn run<T, F>(&self, task: F) -> Result<T, TaskError>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        match self.submit(task) {
            Ok(handle) => handle.join(),
            Err(rejected) => Err(rejected.reason.into_error()),
        }
    }

    /// Changes the number of tasks that run at once, immediately: a number, or a range for an elastic pool. If more tasks
    /// run than the new limit, no task starts until enough have ended. Also sets the limit of the
    /// [slots](crate::pool::Builder::slots) that the pool was given.
    ///
    /// # Errors
    /// [`PoolError`]: an invalid number changes nothing. If a thread could not be started, the new bounds hold, and the next
    /// submission tries again.
    pub fn set_limit(&self, workers: impl Into<Workers>) -> Result<(), PoolError> {
        let (least, most) = workers.into().check()?;
        self.core().set_workers(least, most).map_err(PoolError::Spawn)
    }

    /// Waits for one moment at which every accepted task has ended. Returns false at once on a worker of this pool, whose
    /// own task would never end, and in the drop of a task of this pool that is cancelled.
    pub fn wait_idle(&self) -> bool {
        self.wait_idle_for(None)
    }

    /// Waits like [`wait_idle`](Self::wait_idle), for at most `patience`. Returns false on a timeout.
    pub fn wait_idle_timeout(&self, patience: Duration) -> bool {
        self.wait_idle_for(Some(patience))
    }

    fn wait_idle_for(&self, patience: Option<Duration>) -> bool {
        let wait = TerminationWait::of(self.core());
        wait.is_some_and(|mut wait| block_on(patience, |waker| wait.poll_idle(waker)).is_some())
    }

    /// Closes the pool, and waits until all tasks and threads have ended, for at most `deadline`. Then returns exactly the
    /// tasks that have not started.
    ///
    /// Does not wait on a worker of this pool, whose own task would never end, nor in the drop of a cancelled task of this pool.
    pub fn shutdown(&self, deadline: Duration) -> ShutdownReport<Threads<'j>> {
        self.core().close();
        if let Some(mut wait) = TerminationWait::of(self.core()) {
            let _ = block_on(Some(deadline), |waker| wait.poll(waker));
        }
        self.abort()
    }

    /// Stops the pool, and returns the tasks that have not started. Running tasks continue.
    pub fn abort(&self) -> ShutdownReport<Threads<'j>> {
        self.report()
    }
}

/// A [`Pool`] whose tasks may borrow from `'env`. [`PoolBuilder::scope`] passes it to its body. Cheap to clone; clones are
/// the same pool.
///
/// ```
/// # use tollgate::WorkerPool;
/// # use std::sync::atomic::{AtomicU32, Ordering};
/// let sum = AtomicU32::new(0);
/// WorkerPool::builder().workers(2).scope(|pool| {
///     let (inner, sum) = (pool.clone(), &sum);
///     let outer = pool.submit(move || {
///         let parts = [1, 2, 3].map(|n| inner.submit(move || sum.fetch_add(n, Ordering::Relaxed)).unwrap());
///         parts.into_iter().for_each(|part| drop(part.join().unwrap()));
///     });
///     outer.unwrap().join().unwrap();
/// })?;
/// assert_eq!(sum.into_inner(), 6);
/// # Ok::<(), tollgate::pool::PoolError>(())
/// ```
pub struct Scoped<'scope, 'env: 'scope> {
    pool: Pool<Threads<'scope>>,
    // Invariant, like the standard library's scope: otherwise `'env` could be shortened.
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env> Scoped<'scope, 'env> {
    pub(in crate::pool) fn new(pool: Pool<Threads<'scope>>) -> Self {
        Self { pool, env: PhantomData }
    }

    /// Runs the body, and ends the pool even if the body panics: otherwise its threads would never end.
    pub(in crate::pool) fn run<R>(&self, body: impl FnOnce(&Self) -> R) -> R {
        struct EndOnPanic<'a, 'j>(&'a Pool<Threads<'j>>);
        impl Drop for EndOnPanic<'_, '_> {
            fn drop(&mut self) {
                drop(self.0.abort());
            }
        }
        let guard = EndOnPanic(&self.pool);
        let result = body(self);
        std::mem::forget(guard);
        self.pool.close();
        result
    }
}

impl Clone for Scoped<'_, '_> {
    fn clone(&self) -> Self {
        Self::new(self.pool.clone())
    }
}

impl<'scope> Deref for Scoped<'scope, '_> {
    type Target = Pool<Threads<'scope>>;
    fn deref(&self) -> &Pool<Threads<'scope>> {
        &self.pool
    }
}

impl fmt::Debug for Scoped<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}
