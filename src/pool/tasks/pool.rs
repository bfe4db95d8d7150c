//! Pools of async tasks, and their builder.

use super::kind::Tasks;
use crate::pool::builder::{Builder, Workers};
use crate::pool::common::Pool;
use crate::pool::engine::scheduler::DiscardHook;
use crate::pool::engine::scheduler::Engine;
use crate::pool::error::{PoolError, TaskError};
use crate::pool::hooks::opaque_debug;
use crate::pool::report::{ShutdownReport, Unstarted};
use crate::pool::termination::Until;
use crate::sync::runtime::Runtime;
use std::time::Duration;
use tokio::runtime::Handle;

/// Runs at most `limit` async tasks concurrently, with a bounded queue. Cheap to clone; clones are the same pool.
///
/// Its runners, at most `limit`, are tasks of a tokio runtime. Each takes one task after another, so the pool does not spawn
/// per task. If the runtime shuts down, unfinished tasks end with [`TaskError::Abandoned`](crate::pool::TaskError::Abandoned)
/// or [`TaskError::Aborted`](crate::pool::TaskError::Aborted).
///
/// Dropping the last clone closes the pool. Queued tasks still run.
///
/// A `TaskPool` does all that a [`WorkerPool`](crate::WorkerPool) does, except for threads: it has no names, stacks and hooks
/// of threads, and no scope whose tasks borrow. Where a `WorkerPool` blocks the caller, the caller awaits a `TaskPool`.
///
/// # Panics
/// A panic of a task does not end its runner. The handle of the task gets the payload.
///
/// # Fairness
/// First come, first served, by [`Priority`](crate::pool::Priority). Between tasks that are ready at once, a runner yields to other tasks of the runtime.
///
/// ```
/// # use tollgate::pool::TaskPool;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = TaskPool::builder(8).max_queue(100).build()?;
/// let answer = pool.submit(async { 6 * 7 }).await.unwrap();
/// assert_eq!(answer.await?, 42);
/// assert!(pool.shutdown(Duration::from_secs(5)).await.is_clean());
/// # Ok(())
/// # }
/// ```
pub type TaskPool = Pool<Tasks>;

impl TaskPool {
    /// Returns a builder of a pool that runs at most `limit` tasks at once.
    pub fn builder(limit: usize) -> TaskPoolBuilder {
        TaskPoolBuilder::with_limit(limit)
    }

    /// Runs `task` on the pool and waits for its result.
    ///
    /// # Errors
    /// [`TaskError`]: [`Abandoned`](TaskError::Abandoned) if the pool is closed.
    ///
    /// # Cancel safety
    /// Dropping the future drops a task that has not been queued. A queued task still runs.
    pub async fn run<Fut>(&self, task: Fut) -> Result<Fut::Output, TaskError>
    where
        Fut: Future<Output: Send> + Send + 'static,
    {
        match self.submit(task).await {
            Ok(handle) => handle.await,
            Err(rejected) => Err(rejected.reason.into_error()),
        }
    }

    /// Changes the number of tasks that run at once, immediately. If more tasks run than the new limit, no task starts until
    /// enough have ended.
    ///
    /// # Errors
    /// [`PoolError`]: an invalid number changes nothing.
    pub fn set_limit(&self, limit: usize) -> Result<(), PoolError> {
        let (_, limit) = Workers::from(limit).check()?;
        self.core().resize(limit);
        Ok(())
    }

    /// Waits for one moment at which every accepted task has ended. Returns false at once in a task of this pool, which would
    /// wait for itself.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the pool.
    pub async fn wait_idle(&self) -> bool {
        self.core().wait(None, Until::Idle).await
    }

    /// Waits like [`wait_idle`](Self::wait_idle), for at most `patience` on the pool's clock. Returns false on a timeout.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the pool.
    pub async fn wait_idle_timeout(&self, patience: Duration) -> bool {
        self.core().wait(Some(patience), Until::Idle).await
    }

    /// Closes the pool, and waits until all tasks have ended, for at most `deadline` on the pool's clock. Then returns exactly
    /// the tasks that have not started. Running tasks continue. Does not wait in a task of this pool.
    ///
    /// # Cancel safety
    /// Dropping the future while it waits leaves the pool closed, and has no other effect.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport<Tasks> {
        self.core().close();
        self.core().wait(Some(deadline), Until::Gone).await;
        self.report()
    }

    /// Stops the pool, aborts the running tasks, and returns the tasks that have not started. The handles of aborted tasks get
    /// [`TaskError::Aborted`](crate::pool::TaskError::Aborted).
    pub fn abort(&self) -> ShutdownReport<Tasks> {
        let report = self.report();
        self.core().abort_running();
        report
    }
}

/// Builds a [`TaskPool`].
///
/// ```
/// # use tollgate::pool::TaskPool;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = tokio::runtime::Runtime::new()?;
/// // Outside the runtime, the builder needs its handle.
/// let pool = TaskPool::builder(8).max_queue(1_000).runtime(runtime.handle()).build()?;
/// let answer = pool.submit_blocking(async { 6 * 7 })?;
/// assert_eq!((runtime.block_on(answer)?, pool.stats().limit), (42, 8));
/// # Ok(())
/// # }
/// ```
pub type TaskPoolBuilder = Builder<Runners>;

/// The settings of a pool of async tasks, beyond those of every [`Builder`].
///
/// ```
/// # use tollgate::pool::{PoolError, TaskPool};
/// assert!(matches!(TaskPool::builder(8).build(), Err(PoolError::NoRuntime)));
/// ```
pub struct Runners {
    limit: usize,
    on_discard: Option<Box<DiscardHook<Tasks>>>,
    runtime: Option<Runtime>,
}

impl Builder<Runners> {
    pub(super) fn with_limit(limit: usize) -> Self {
        Self::of(Runners {
            limit,
            on_discard: None,
            runtime: None,
        })
    }

    /// Passes each task that a full queue discards to `hook`. Without a hook, the pool drops them.
    pub fn on_discard(mut self, hook: impl Fn(Unstarted<Tasks>) + Send + Sync + 'static) -> Self {
        self.kind.on_discard = Some(Box::new(hook));
        self
    }

    /// Sets the runtime on which the runners are spawned; the current one unless set.
    pub fn runtime(mut self, runtime: &Handle) -> Self {
        self.kind.runtime = Some(Runtime::of(runtime));
        self
    }

    /// Builds the pool. It starts runners as tasks arrive.
    ///
    /// # Errors
    /// [`PoolError`]: an invalid number, or no runtime.
    pub fn build(mut self) -> Result<TaskPool, PoolError> {
        let runtime = self.kind.runtime.take().or_else(Runtime::current);
        let Self { settings, kind } = self;
        let (_, limit) = Workers::from(kind.limit).check()?;
        let runtime = runtime.ok_or(PoolError::NoRuntime)?;
        Ok(Pool::new(Engine::build(
            limit,
            settings,
            kind.on_discard,
            Tasks { runtime },
        )?))
    }
}

opaque_debug!([] Runners, "Runners", |this| limit = this.limit);
