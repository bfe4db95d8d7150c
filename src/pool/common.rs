//! A pool of either kind, its statistics, and the methods that both kinds have.

use super::capacity::{CapacityWait, Verdict};
use super::engine::scheduler::{Engine, PoolKind};
use super::error::RejectReason;
use super::hooks::opaque_debug;
use super::task_options::{PoolOptions, Priority};
use crate::core::ask::Ask;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

/// A pool of [threads](super::WorkerPool) or of [async tasks](super::TaskPool). Cheap to clone; clones are the same pool.
///
/// A clone has options for the tasks that are submitted through it: [`priority`](Self::priority) and the methods after it
/// return one.
///
/// ```
/// # use tollgate::{WorkerPool, pool::Priority};
/// let pool = WorkerPool::builder().workers(1).build()?;
/// let urgent = pool.priority(Priority::High).weight(3);
/// assert_eq!(urgent.submit(|| 6 * 7)?.join()?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pool<K: PoolKind> {
    owner: Arc<Owner<K>>,
    pub(super) options: PoolOptions,
}

/// Closes the pool when the last clone is dropped.
struct Owner<K: PoolKind>(Arc<Engine<K>>);

impl<K: PoolKind> Drop for Owner<K> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<K: PoolKind> Clone for Pool<K> {
    fn clone(&self) -> Self {
        self.with(|_| ())
    }
}

impl<K: PoolKind> Pool<K> {
    pub(super) fn new(core: Arc<Engine<K>>) -> Self {
        let owner = Arc::new(Owner(core));
        let options = PoolOptions::DEFAULT;
        Self { owner, options }
    }

    #[inline]
    pub(super) fn core(&self) -> &Arc<Engine<K>> {
        &self.owner.0
    }

    pub(super) fn with(&self, change: impl FnOnce(&mut PoolOptions)) -> Self {
        Self {
            owner: Arc::clone(&self.owner),
            options: self.options.with(change),
        }
    }

    /// Submits tasks with this priority.
    pub fn priority(&self, priority: Priority) -> Self {
        self.with(|options| options.task.priority = priority)
    }

    /// Submits tasks with this weight, which counts against the [`max_queue_weight`](super::Builder::max_queue_weight); 0 counts as 1.
    pub fn weight(&self, weight: u32) -> Self {
        self.with(|options| options.task.weight = weight.max(1))
    }

    /// Submits tasks that expire unless they start within this time from now. A task that has not started by then ends with
    /// [`TaskError::Expired`](super::TaskError::Expired), when its turn comes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{ManualClock, WorkerPool};
    /// # use tollgate::pool::TaskError;
    /// let clock = ManualClock::new();
    /// let pool = WorkerPool::builder().workers(1).on(&clock).build()?;
    /// let (go, wait) = std::sync::mpsc::channel::<()>();
    /// let busy = pool.submit(move || wait.recv().is_ok())?;
    /// let late = pool.deadline(Duration::from_secs(1)).submit(|| 42)?;
    /// clock.advance(Duration::from_secs(2));
    /// go.send(())?;
    /// assert!(busy.join()?);
    /// assert!(matches!(late.join(), Err(TaskError::Expired)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn deadline(&self, within: Duration) -> Self {
        let clock = &self.core().settings.clock;
        self.with(|options| options.task.deadline = Some(clock.after(clock.now(), within)))
    }

    /// Submits tasks with this ask of the policy of [`admit_by`](super::Builder::admit_by); one call unless set.
    ///
    /// ```
    /// # use tollgate::{Ask, Cost, LimiterExt, ManualClock, Policy, Quota, TokenBucket, WorkerPool};
    /// const ROWS: Cost = Cost::new("rows");
    /// let rows = TokenBucket::new(Quota::per_hour(100)).on(&ManualClock::new()).per(ROWS);
    /// let pool = WorkerPool::builder().workers(1).admit_by(Policy::new(rows)).build()?;
    /// assert_eq!(pool.ask(Ask::one().cost(ROWS, 60)).submit(|| 60)?.join()?, 60);
    /// let refused = pool.ask(Ask::one().cost(ROWS, 101)).submit(|| 101)?.join();
    /// assert!(refused.is_err(), "more than the burst");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ask(&self, ask: impl Into<Ask>) -> Self {
        let ask = ask.into();
        self.with(|options| options.task.ask = ask)
    }

    /// Closes the pool to new tasks. Queued tasks still run. Does not wait.
    ///
    /// ```
    /// # use tollgate::WorkerPool;
    /// # use tollgate::pool::RejectReason;
    /// let pool = WorkerPool::builder().workers(1).build()?;
    /// let accepted = pool.submit(|| 1)?;
    /// pool.close();
    /// assert_eq!(pool.submit(|| 2).unwrap_err().reason, RejectReason::Closed);
    /// assert_eq!(accepted.join()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        self.core().close();
    }

    /// Returns the pool's statistics. The runners of a pool of async tasks count as threads.
    pub fn stats(&self) -> PoolStats {
        self.core().stats()
    }

    // ---- the capacity of a task that found the queue full ----

    /// Takes capacity for a task, unless its submitter would wait.
    #[cold]
    pub(super) fn let_in_now(&self) -> Result<Verdict, RejectReason> {
        let verdict = self.core().judge(self.options.task.weight)?;
        verdict.ok_or(RejectReason::Full)
    }

    /// Waits for capacity for a task, unless the pool decides otherwise. A task of the pool does not wait: it overdraws.
    pub(super) async fn let_in(&self) -> Result<Verdict, RejectReason> {
        let (core, weight) = (self.core(), self.options.task.weight);
        if let Some(verdict) = core.judge(weight)? {
            return Ok(verdict);
        }
        let mut wait = CapacityWait::new(core, weight);
        poll_fn(|cx| wait.poll(cx.waker())).await
    }
}

opaque_debug!([K: PoolKind] Pool<K>, "Pool", |this| stats = this.stats());

/// A snapshot of a pool. A worker reports its ended tasks when it next looks for work. So `finished` and the counts
/// below it lag by at most 16 tasks per worker, and are exact once the pool is idle.
///
/// ```
/// # use tollgate::WorkerPool;
/// let pool = WorkerPool::builder().workers(2).build()?;
/// pool.execute_all((0..5).map(|n| move || assert!(n != 3)));
/// pool.wait_idle();
/// let stats = pool.stats();
/// assert_eq!((stats.limit, stats.queued, stats.unfinished), (2, 0, 0));
/// assert_eq!((stats.submitted, stats.finished, stats.panicked), (5, 5, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Threads, including those that are starting.
    pub threads: usize,
    /// Threads that sleep.
    pub idle: usize,
    /// The most tasks that may run at once.
    pub limit: usize,
    /// Tasks that wait.
    pub queued: usize,
    /// Tasks that wait or run.
    pub unfinished: usize,
    /// The most threads at any one time.
    pub peak_threads: usize,
    /// Tasks that were accepted.
    pub submitted: u64,
    /// Tasks that have run, including those that panicked.
    pub finished: u64,
    /// Tasks that panicked, or whose result panicked when it was dropped without a handle that takes it.
    pub panicked: u64,
    /// Tasks that had not started at their deadline.
    pub expired: u64,
    /// Tasks that the policy in front of the workers has refused.
    pub refused: u64,
    /// Tasks that a full queue evicted or did not accept, without an error for the submitter.
    pub discarded: u64,
    /// Threads that could not be started.
    pub failed_starts: u64,
}
