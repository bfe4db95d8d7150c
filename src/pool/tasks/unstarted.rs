//! A task that never started, handed back; and how a task is run by somebody who is no runner.

use super::cell::Run;
use super::core::Entry;
use crate::pool::cell::Ran;
use crate::pool::entry::Priority;
use crate::pool::error::TaskError;
use crate::pool::lanes::Ranked;
use std::fmt;

/// A task that a [`TaskPool`](super::TaskPool) did not start, handed back. Poll it with [`run`](Self::run), or drop it:
/// then its handle is told [`TaskError::Abandoned`], or why it was thrown out.
#[must_use = "a task that is dropped here will never run"]
pub struct UnstartedTask {
    entry: Option<Entry>,
    discarded: bool,
    pool: u64,
}

impl UnstartedTask {
    pub(super) fn new(entry: Entry, discarded: bool, pool: u64) -> Self {
        let entry = Some(entry);
        Self { entry, discarded, pool }
    }

    /// What it weighs.
    pub fn weight(&self) -> u32 {
        self.entry.as_ref().map_or(0, |entry| entry.weight)
    }

    /// Its priority.
    pub fn priority(&self) -> Priority {
        self.entry.as_ref().map_or(Priority::Normal, Ranked::priority)
    }

    /// Runs it here. Whoever holds its handle gets the result. False when it was cancelled.
    ///
    /// # Cancel safety
    /// Dropping this future drops the task.
    pub async fn run(mut self) -> bool {
        let Some(entry) = self.entry.take() else { return false };
        if !entry.task.claim() {
            return false;
        }
        run_here(&*entry.task, self.pool).await != Ran::Gone
    }
}

impl Drop for UnstartedTask {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.task.refuse(if self.discarded {
                TaskError::Discarded
            } else {
                TaskError::Abandoned
            });
        }
    }
}

impl fmt::Debug for UnstartedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnstartedTask")
            .field("priority", &self.priority())
            .field("weight", &self.weight())
            .finish_non_exhaustive()
    }
}

/// Polls a claimed task to its end. Dropped before that, it drops the task.
pub(super) async fn run_here(task: &dyn Run, pool: u64) -> Ran {
    struct AbortOnDrop<'a>(&'a dyn Run);
    impl Drop for AbortOnDrop<'_> {
        fn drop(&mut self) {
            self.0.abort(TaskError::Aborted);
        }
    }
    // Of no effect once it has ended.
    let guard = AbortOnDrop(task);
    let ran = std::future::poll_fn(|cx| guard.0.poll_run(pool, cx)).await;
    drop(guard);
    ran
}
