//! The report of a shutdown.

use super::entry::Unstarted;
use super::kind::Core;
use crate::pool::engine::waits::is_inside;
use crate::pool::park::block_on;
use crate::pool::termination::TerminationWait;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The tasks that were unstarted or running when a pool ended.
#[must_use = "tasks that are dropped with the report will never run"]
#[non_exhaustive]
pub struct ShutdownReport<'j> {
    /// The tasks that have not started, in the order in which they would have started. Run or drop them.
    pub unstarted: Vec<Unstarted<'j>>,
    /// The number of tasks that were running. They continue.
    pub running: usize,
    core: Arc<Core<'j>>,
}

impl<'j> ShutdownReport<'j> {
    pub(in crate::pool) fn new(core: &Arc<Core<'j>>) -> Self {
        let unstarted = core.unstarted().into_iter().map(|entry| Unstarted::new(entry, false));
        let unstarted = unstarted.collect();
        Self {
            unstarted,
            running: core.numbers().unfinished,
            core: Arc::clone(core),
        }
    }

    /// Returns true if every accepted task had ended.
    pub fn is_clean(&self) -> bool {
        self.unstarted.is_empty() && self.running == 0
    }

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
        self.wait_within(None)
    }

    /// Waits like [`wait`](Self::wait), for at most `patience`. Returns false on a timeout.
    pub fn wait_timeout(&self, patience: Duration) -> bool {
        self.wait_within(Some(patience))
    }

    fn wait_within(&self, patience: Option<Duration>) -> bool {
        let mut wait = TerminationWait::of(&self.core);
        !is_inside(&*self.core) && block_on(patience, |waker| wait.poll(waker)).is_some()
    }
}

impl fmt::Debug for ShutdownReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownReport")
            .field("unstarted", &self.unstarted)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}
