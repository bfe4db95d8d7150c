//! The face of a task pool.

use super::builder::TaskPoolBuilder;
use super::cell::turn_of;
use super::core::Core;
use super::handle::AsyncHandle;
use super::submit::SubmitTask;
use super::unstarted::UnstartedTask;
use crate::pool::builder::Workers;
use crate::pool::entry::Priority;
use crate::pool::error::{PoolError, Rejected};
use crate::pool::stats::PoolStats;
use crate::semaphore::Semaphore;
use crate::time::Sleep;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// So many async tasks at once, behind a bounded queue. Cheap to clone; clones are the same pool.
///
/// Runners, at most as many as may run at once, are tasks of a tokio runtime that take one task after the other: there
/// is no spawn per task. Where the runtime is shut down, what it had is told [`TaskError::Abandoned`](crate::pool::TaskError::Abandoned) or
/// [`TaskError::Aborted`](crate::pool::TaskError::Aborted).
///
/// Dropping the last clone takes no more tasks in; those that are queued still run.
///
/// A pool within another has a bound of its own, and takes a permit of the other's [`slots`](Self::slots) for each task:
/// `TaskPool::builder(3).admit_by(Policy::new(Arc::clone(outer.slots())))`. A task of the outer one must not wait for one
/// of the inner, unless there are permits for both.
///
/// # Panics
/// A task that panics takes nothing with it: its handle is given the payload, and the runner goes on.
///
/// # Fairness
/// First come, first served, by [`Priority`]. Tasks that are ready at once yield to others of the runtime in between.
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

/// The last to go closes the pool.
struct Owner(Arc<Core>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl TaskPool {
    /// A builder for a pool that runs at most `limit` tasks at once.
    pub fn builder(limit: usize) -> TaskPoolBuilder {
        TaskPoolBuilder::new(limit)
    }

    pub(super) fn new(core: Core) -> Self {
        Self(Arc::new(Owner(Arc::new(core))))
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.0.0
    }

    pub(super) fn plain(&self) -> SubmitTask<'_> {
        SubmitTask::new(self)
    }

    /// Tasks of this priority.
    pub fn priority(&self, priority: Priority) -> SubmitTask<'_> {
        self.plain().priority(priority)
    }

    /// Tasks of this weight in a queue that is bounded by weight.
    pub fn weight(&self, weight: u32) -> SubmitTask<'_> {
        self.plain().weight(weight)
    }

    /// Tasks that are given up when they have not started so long from now.
    pub fn deadline(&self, within: Duration) -> SubmitTask<'_> {
        self.plain().deadline(within)
    }

    /// Tasks that the policy of the pool is asked this for.
    pub fn ask(&self, ask: impl Into<crate::Ask>) -> SubmitTask<'_> {
        self.plain().ask(ask)
    }

    /// See [`SubmitTask::submit`].
    ///
    /// # Errors
    /// [`Rejected`], with the task.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task.
    pub async fn submit<T, Fut>(&self, task: Fut) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().submit(task).await
    }

    /// See [`SubmitTask::submit_timeout`].
    ///
    /// # Errors
    /// [`Rejected`], with the task.
    pub async fn submit_timeout<T, Fut>(&self, task: Fut, patience: Duration) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().submit_timeout(task, patience).await
    }

    /// See [`SubmitTask::try_submit`].
    ///
    /// # Errors
    /// [`Rejected`], with the task.
    pub fn try_submit<T, Fut>(&self, task: Fut) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().try_submit(task)
    }

    /// See [`SubmitTask::submit_all`].
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the tasks that have not been queued.
    pub async fn submit_all<T, Fut>(
        &self,
        tasks: impl IntoIterator<Item = Fut>,
    ) -> (Vec<AsyncHandle<T>>, Vec<Rejected<Fut>>)
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.plain().submit_all(tasks).await
    }

    /// The slots: permits of this semaphore are what running tasks hold.
    pub fn slots(&self) -> &Arc<Semaphore> {
        &self.core().slots
    }

    /// Changes how many tasks run at once. Effective at once: below what runs, nothing more starts until enough have
    /// ended.
    ///
    /// # Errors
    /// [`PoolError`]: a number that makes no sense changes nothing.
    pub fn resize(&self, limit: usize) -> Result<(), PoolError> {
        let (_, limit) = Workers::from(limit).check()?;
        self.core().slots.set_limit(limit);
        self.core().resized();
        Ok(())
    }

    /// Waits until no task that was let in is unfinished: for one moment at which that is so. False, at once, in a task
    /// of this pool, which would wait for itself.
    pub async fn wait_idle(&self) -> bool {
        if turn_of(self.core().id).is_some() {
            return false;
        }
        let mut since = None;
        poll_fn(|cx| self.core().poll_quiet(&mut since, false, cx.waker())).await;
        true
    }

    /// Takes no more tasks in. What is queued still runs; nobody waits.
    pub fn close(&self) {
        self.core().close();
    }

    /// Takes no more tasks in, waits until all have ended, for at most `deadline` on the pool's clock, and then hands
    /// back exactly the tasks that have not started. Those that run go on. In a task of this pool it does not wait.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it has closed the pool and done nothing else.
    pub async fn shutdown(&self, deadline: Duration) -> TaskReport {
        let core = self.core();
        core.close();
        if turn_of(core.id).is_none() {
            let clock = &core.settings.clock;
            let mut sleep = pin!(Sleep::until(clock, clock.after(clock.now(), deadline)));
            let mut since = None;
            poll_fn(|cx| match core.poll_quiet(&mut since, true, cx.waker()) {
                Poll::Pending => sleep.as_mut().poll(cx),
                ready => ready,
            })
            .await;
        }
        self.report()
    }

    /// Starts nothing more, drops the futures that run, whose handles are told
    /// [`TaskError::Aborted`](crate::pool::TaskError::Aborted), and hands back the tasks that have not started.
    pub fn abort(&self) -> TaskReport {
        let report = self.report();
        self.core().abort_running();
        report
    }

    fn report(&self) -> TaskReport {
        let core = self.core();
        let unstarted = core.stop().into_iter();
        let unstarted = unstarted
            .map(|entry| UnstartedTask::new(entry, false, core.id))
            .collect();
        TaskReport {
            unstarted,
            running: core.stats().unfinished,
        }
    }

    /// The numbers of this pool; its runners count as threads.
    pub fn stats(&self) -> PoolStats {
        self.core().stats()
    }
}

impl fmt::Debug for TaskPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskPool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// What was left when a task pool ended.
#[derive(Debug)]
#[must_use = "tasks that are dropped with the report will never run"]
#[non_exhaustive]
pub struct TaskReport {
    /// The tasks that have not started, in the order in which they would have. Run them, or drop them.
    pub unstarted: Vec<UnstartedTask>,
    /// How many tasks were running.
    pub running: usize,
}

impl TaskReport {
    /// True when every task that was let in has ended.
    pub fn is_clean(&self) -> bool {
        self.unstarted.is_empty() && self.running == 0
    }
}
