//! Pools of async tasks.

use super::builder::TaskPoolBuilder;
use super::entry::UnstartedTask;
use super::handle::TaskHandle;
use super::kind::Core;
use crate::pool::engine::waits::is_inside;
use crate::pool::error::{PoolError, SubmitError, TaskError};
use crate::pool::stats::PoolStats;
use crate::pool::task_options::Priority;
use crate::pool::task_options::{Clocked, SubmitBuilder};
use crate::pool::termination::TerminationWait;
use crate::pool::workers::Workers;
use crate::time::Clock;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

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
/// First come, first served, by [`Priority`]. Between tasks that are ready at once, a runner yields to other tasks of the runtime.
///
/// ```
/// # use tollgate::pool::TaskPool;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = TaskPool::builder(8).queue(100).build()?;
/// let answer = pool.submit(async { 6 * 7 }).await.unwrap();
/// assert_eq!(answer.await?, 42);
/// assert!(pool.shutdown(Duration::from_secs(5)).await.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TaskPool(Arc<Owner>);

/// Closes the pool when the last clone is dropped.
struct Owner {
    core: Arc<Core>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl TaskPool {
    /// Returns a builder of a pool that runs at most `limit` tasks at once.
    pub fn builder(limit: usize) -> TaskPoolBuilder {
        TaskPoolBuilder::with_limit(limit)
    }

    pub(super) fn new(core: Arc<Core>) -> Self {
        Self(Arc::new(Owner { core }))
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    fn plain(&self) -> SubmitBuilder<'_, Self> {
        SubmitBuilder::new(self)
    }

    /// Submits tasks with this priority.
    pub fn priority(&self, priority: Priority) -> SubmitBuilder<'_, Self> {
        self.plain().priority(priority)
    }

    /// Submits tasks with this weight, in a queue that is bounded by weight.
    pub fn weight(&self, weight: u32) -> SubmitBuilder<'_, Self> {
        self.plain().weight(weight)
    }

    /// Submits tasks that expire unless they start within this time from now.
    pub fn deadline(&self, within: Duration) -> SubmitBuilder<'_, Self> {
        self.plain().deadline(within)
    }

    /// Submits tasks with this ask of the pool's policy.
    pub fn ask(&self, ask: impl Into<crate::core::ask::Ask>) -> SubmitBuilder<'_, Self> {
        self.plain().ask(ask)
    }

    /// See [`SubmitBuilder::submit`].
    ///
    /// # Errors
    /// [`SubmitError`], with the task.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task.
    pub async fn submit<T, Fut>(&self, task: Fut) -> Result<TaskHandle<T>, SubmitError<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().submit(task).await
    }

    /// See [`SubmitBuilder::submit_timeout`].
    ///
    /// # Errors
    /// [`SubmitError`], with the task.
    pub async fn submit_timeout<T, Fut>(&self, task: Fut, patience: Duration) -> Result<TaskHandle<T>, SubmitError<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().submit_timeout(task, patience).await
    }

    /// See [`SubmitBuilder::try_submit`].
    ///
    /// # Errors
    /// [`SubmitError`], with the task.
    pub fn try_submit<T, Fut>(&self, task: Fut) -> Result<TaskHandle<T>, SubmitError<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().try_submit(task)
    }

    /// See [`SubmitBuilder::submit_all`].
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the tasks that have not been queued.
    pub async fn submit_all<T, Fut>(
        &self,
        tasks: impl IntoIterator<Item = Fut>,
    ) -> (Vec<TaskHandle<T>>, Vec<SubmitError<Fut>>)
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().submit_all(tasks).await
    }

    /// See [`SubmitBuilder::submit_blocking`].
    ///
    /// # Errors
    /// [`SubmitError`], with the task.
    pub fn submit_blocking<T, Fut>(&self, task: Fut) -> Result<TaskHandle<T>, SubmitError<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().submit_blocking(task)
    }

    /// See [`SubmitBuilder::execute`].
    ///
    /// # Errors
    /// [`SubmitError`], with the task.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task.
    pub async fn execute<Fut>(&self, task: Fut) -> Result<(), SubmitError<Fut>>
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.plain().execute(task).await
    }

    /// See [`SubmitBuilder::execute_all`].
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the tasks that have not been queued.
    pub async fn execute_all<Fut>(&self, tasks: impl IntoIterator<Item = Fut>) -> Vec<SubmitError<Fut>>
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.plain().execute_all(tasks).await
    }

    /// Runs `task` on the pool and waits for its result.
    ///
    /// # Errors
    /// [`TaskError`]: [`Abandoned`](TaskError::Abandoned) if the pool is closed.
    ///
    /// # Cancel safety
    /// Dropping the future drops a task that has not been queued. A queued task still runs.
    pub async fn run<T, Fut>(&self, task: Fut) -> Result<T, TaskError>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
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
        if is_inside(&**self.core()) {
            return false;
        }
        let mut wait = TerminationWait::of(self.core());
        poll_fn(|cx| wait.poll_idle(cx.waker())).await;
        true
    }

    /// Waits like [`wait_idle`](Self::wait_idle), for at most `patience` on the pool's clock. Returns false on a timeout.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the pool.
    pub async fn wait_idle_timeout(&self, patience: Duration) -> bool {
        if is_inside(&**self.core()) {
            return false;
        }
        let mut wait = TerminationWait::of(self.core());
        self.core().within(patience, |waker| wait.poll_idle(waker)).await
    }

    /// Closes the pool to new tasks. Queued tasks still run. Does not wait.
    pub fn close(&self) {
        self.core().close();
    }

    /// Closes the pool, and waits until all tasks have ended, for at most `deadline` on the pool's clock. Then returns exactly
    /// the tasks that have not started. Running tasks continue. Does not wait in a task of this pool.
    ///
    /// # Cancel safety
    /// Dropping the future while it waits leaves the pool closed, and has no other effect.
    pub async fn shutdown(&self, deadline: Duration) -> TaskShutdownReport {
        self.core().close();
        if !is_inside(&**self.core()) {
            let mut wait = TerminationWait::of(self.core());
            self.core().within(deadline, |waker| wait.poll(waker)).await;
        }
        self.report()
    }

    /// Stops the pool, aborts the running tasks, and returns the tasks that have not started. The handles of aborted tasks get
    /// [`TaskError::Aborted`](crate::pool::TaskError::Aborted).
    pub fn abort(&self) -> TaskShutdownReport {
        let report = self.report();
        self.core().abort_running();
        report
    }

    fn report(&self) -> TaskShutdownReport {
        let core = self.core();
        let unstarted = core.stop().into_iter().map(|entry| UnstartedTask::new(entry, false));
        let unstarted = unstarted.collect();
        TaskShutdownReport {
            unstarted,
            running: core.stats().unfinished,
            core: Arc::clone(core),
        }
    }

    /// Returns the pool's statistics. Runners count as threads.
    pub fn stats(&self) -> PoolStats {
        self.core().stats()
    }
}

impl Clocked for TaskPool {
    fn clock(&self) -> &Clock {
        &self.core().settings.clock
    }
}

impl fmt::Debug for TaskPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskPool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The tasks that were unstarted or running when a task pool ended.
#[must_use = "tasks that are dropped with the report will never run"]
#[non_exhaustive]
pub struct TaskShutdownReport {
    /// The tasks that have not started, in the order in which they would have started. Run or drop them.
    pub unstarted: Vec<UnstartedTask>,
    /// The number of tasks that were running.
    pub running: usize,
    core: Arc<Core>,
}

impl TaskShutdownReport {
    /// Returns true if every accepted task had ended.
    pub fn is_clean(&self) -> bool {
        self.unstarted.is_empty() && self.running == 0
    }

    /// Waits until the running tasks and the runners have ended. Returns false at once in a task of the pool, which would wait
    /// for itself.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the pool.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::pool::TaskPool;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = TaskPool::builder(1).build()?;
    /// let (end, ends) = tokio::sync::oneshot::channel::<()>();
    /// let task = pool.submit(ends).await.unwrap();
    /// tokio::task::yield_now().await;
    /// let report = pool.shutdown(Duration::ZERO).await;
    /// assert_eq!(report.running, 1);
    /// end.send(()).unwrap();
    /// assert!(report.wait().await && task.is_finished());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(&self) -> bool {
        if is_inside(&*self.core) {
            return false;
        }
        let mut wait = TerminationWait::of(&self.core);
        poll_fn(|cx| wait.poll(cx.waker())).await;
        true
    }

    /// Waits like [`wait`](Self::wait), for at most `patience` on the pool's clock. Returns false on a timeout.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the pool.
    pub async fn wait_timeout(&self, patience: Duration) -> bool {
        if is_inside(&*self.core) {
            return false;
        }
        let mut wait = TerminationWait::of(&self.core);
        self.core.within(patience, |waker| wait.poll(waker)).await
    }
}

impl fmt::Debug for TaskShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskShutdownReport")
            .field("unstarted", &self.unstarted)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}
