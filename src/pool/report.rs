//! What a pool returns: tasks that have not started, and the report of its end.

use super::common::Pool;
use super::engine::entry::Entry;
use super::engine::scheduler::{Engine, PoolKind};
use super::error::TaskError;
use super::hooks::opaque_debug;
use super::task_options::Priority;
#[cfg(feature = "tokio")]
use super::tasks::Tasks;
use super::termination::Until;
use super::threads::kind::Threads;
use std::sync::Arc;
use std::time::Duration;

/// A task that the pool returned without starting it. Run it, or drop it: then its handle gets [`TaskError::Abandoned`],
/// or [`TaskError::Discarded`] if a full queue discarded it.
///
/// ```
/// # use tollgate::Semaphore;
/// # use std::{sync::Arc, time::Duration};
/// # use tollgate::{WorkerPool, pool::Priority};
/// let slots = Arc::new(Semaphore::new(1));
/// let _slot = slots.try_acquire().unwrap();
/// // All slots are taken, so the task does not start.
/// let pool = WorkerPool::builder().workers(1).slots(slots.clone()).build()?;
/// let backup = pool.priority(Priority::Low).weight(5).submit(|| "backed up")?;
/// let report = pool.shutdown(Duration::ZERO);
/// for task in report.unstarted {
///     assert_eq!((task.priority(), task.weight()), (Priority::Low, 5));
///     task.run();
/// }
/// assert_eq!(backup.join()?, "backed up");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a task that is dropped here will never run"]
pub struct Unstarted<K: PoolKind> {
    entry: Option<Entry<K>>,
    discarded: bool,
}

impl<K: PoolKind> Unstarted<K> {
    /// Wraps an entry that was taken out of the queue, and claimed.
    pub(super) fn new(entry: Entry<K>, discarded: bool) -> Self {
        let entry = Some(entry);
        Self { entry, discarded }
    }

    pub(super) fn take(mut self) -> Option<Entry<K>> {
        self.entry.take()
    }

    /// Returns its weight.
    pub fn weight(&self) -> u32 {
        self.entry.as_ref().map_or(0, |entry| entry.weight())
    }

    /// Returns its priority.
    pub fn priority(&self) -> Priority {
        self.entry.as_ref().map_or(Priority::Normal, |entry| entry.priority())
    }
}

impl<K: PoolKind> Drop for Unstarted<K> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.refuse(if self.discarded {
                TaskError::Discarded
            } else {
                TaskError::Abandoned
            });
        }
    }
}

opaque_debug!(
    [K: PoolKind] Unstarted<K>, "Unstarted", |this|
    priority = this.priority(), weight = this.weight()
);

/// The tasks that were unstarted or running when a pool ended.
///
/// ```
/// # use std::{sync::mpsc, time::Duration};
/// # use tollgate::{WorkerPool, pool::TaskError};
/// let pool = WorkerPool::builder().workers(1).build()?;
/// let (start, has_started) = mpsc::channel();
/// let (end, ends) = mpsc::channel();
/// pool.execute(move || { start.send(()).unwrap(); ends.recv().unwrap() }).unwrap();
/// has_started.recv()?;
/// let waiting = pool.submit(|| "never started")?;
/// let report = pool.shutdown(Duration::ZERO);
/// assert_eq!((report.running, report.unstarted.len(), report.is_clean()), (1, 1, false));
/// drop(report);
/// assert!(matches!(waiting.join(), Err(TaskError::Abandoned)));
/// end.send(())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "tasks that are dropped with the report will never run"]
#[non_exhaustive]
pub struct ShutdownReport<K: PoolKind> {
    /// The tasks that have not started, in the order in which they would have started. Run or drop them:
    /// until then a join of their handles waits. To know which tasks they are, keep the handles: after the drop they end with
    /// [`TaskError::Abandoned`](super::TaskError::Abandoned).
    pub unstarted: Vec<Unstarted<K>>,
    /// The number of tasks that were running. Those on threads continue.
    pub running: usize,
    core: Arc<Engine<K>>,
}

impl<K: PoolKind> Pool<K> {
    /// Stops the pool, and returns the tasks that have not started.
    pub(super) fn report(&self) -> ShutdownReport<K> {
        let core = Arc::clone(self.core());
        let unstarted = core.stop().into_iter().map(|entry| Unstarted::new(entry, false));
        ShutdownReport {
            unstarted: unstarted.collect(),
            running: core.stats().unfinished,
            core,
        }
    }
}

impl<K: PoolKind> ShutdownReport<K> {
    /// Returns true if every accepted task had ended.
    pub fn is_clean(&self) -> bool {
        self.unstarted.is_empty() && self.running == 0
    }
}

impl ShutdownReport<Threads<'_>> {
    /// Waits until the running tasks and the threads have ended. Returns false at once in a task of the pool, which would wait
    /// for itself.
    ///
    /// ```
    /// # use std::{sync::mpsc, time::Duration};
    /// # use tollgate::WorkerPool;
    /// let pool = WorkerPool::builder().workers(1).build()?;
    /// let (start, has_started) = mpsc::channel();
    /// let (end, ends) = mpsc::channel();
    /// pool.execute(move || { start.send(()).unwrap(); ends.recv().unwrap() }).unwrap();
    /// has_started.recv().unwrap();
    /// let report = pool.shutdown(Duration::ZERO);
    /// assert_eq!((report.running, report.wait_timeout(Duration::ZERO)), (1, false));
    /// end.send(()).unwrap();
    /// assert!(report.wait());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(&self) -> bool {
        self.core.wait(None, Until::Gone)
    }

    /// Waits like [`wait`](Self::wait), for at most `patience`. Returns false on a timeout.
    pub fn wait_timeout(&self, patience: Duration) -> bool {
        self.core.wait(Some(patience), Until::Gone)
    }
}

#[cfg(feature = "tokio")]
impl ShutdownReport<Tasks> {
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
        self.core.wait(None, Until::Gone).await
    }

    /// Waits like [`wait`](Self::wait), for at most `patience` on the pool's clock. Returns false on a timeout.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the pool.
    pub async fn wait_timeout(&self, patience: Duration) -> bool {
        self.core.wait(Some(patience), Until::Gone).await
    }
}

opaque_debug!(
    [K: PoolKind] ShutdownReport<K>, "ShutdownReport", |this|
    unstarted = this.unstarted, running = this.running
);
