//! The queue entries of a task pool.

use super::cell::Run;
use crate::core::ask::Ask;
use crate::pool::cell::Ran;
use crate::pool::engine::group_limit::Membership;
use crate::pool::engine::scheduler;
use crate::pool::engine::waits::{Inside, current};
use crate::pool::error::TaskError;
use crate::pool::task_options::TaskOptions;
use crate::pool::task_options::{Priority, RareOptions};
use crate::time::Instant;
use std::fmt;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::sync::Arc;

pub(super) struct Entry {
    pub(super) task: Arc<dyn Run>,
    pub(super) weight: u32,
    pub(super) priority: Priority,
    rare: Option<Box<RareOptions>>,
}

impl scheduler::Entry for Entry {
    fn capacity(&self) -> (usize, u64) {
        (1, u64::from(self.weight))
    }

    fn ask(&self) -> Ask {
        self.rare.as_ref().map_or(Ask::one(), |rare| rare.ask)
    }

    fn deadline(&self) -> Option<Instant> {
        self.rare.as_ref().and_then(|rare| rare.deadline)
    }

    fn member(&self) -> Option<&Arc<Membership>> {
        self.rare.as_ref().and_then(|rare| rare.member.as_ref())
    }

    fn refuse(self, why: TaskError) -> bool {
        self.task.refuse(why)
    }
}

impl Entry {
    pub(super) fn new(task: Arc<dyn Run>, options: &TaskOptions, member: Option<&Arc<Membership>>) -> Self {
        Self {
            task,
            weight: options.weight,
            priority: options.priority,
            rare: (!options.plain).then(|| Box::new(RareOptions::of(options, member))),
        }
    }
}

/// A task that a [`TaskPool`](super::TaskPool) returned without starting it. Poll it with [`run`](Self::run), or drop it:
/// then its handle gets [`TaskError::Abandoned`], or [`TaskError::Discarded`] if a full queue discarded it.
#[must_use = "a task that is dropped here will never run"]
pub struct UnstartedTask {
    entry: Option<Entry>,
    discarded: bool,
}

impl UnstartedTask {
    /// Wraps an entry that was taken out of the queue.
    pub(super) fn new(entry: Entry, discarded: bool) -> Self {
        let entry = Some(entry);
        Self { entry, discarded }
    }

    /// Returns its weight.
    pub fn weight(&self) -> u32 {
        self.entry.as_ref().map_or(0, |entry| entry.weight)
    }

    /// Returns its priority.
    pub fn priority(&self) -> Priority {
        self.entry.as_ref().map_or(Priority::Normal, |entry| entry.priority)
    }

    /// Runs the task in this future. Its handle gets the result. Returns false when the task was cancelled.
    ///
    /// # Cancel safety
    /// Dropping this future drops the task.
    ///
    /// # Panics
    /// When the task panics and its handle is gone, or it never had one.
    pub async fn run(mut self) -> bool {
        let Some(entry) = self.entry.take() else { return false };
        if !entry.task.start() {
            return false;
        }
        // The abort has no effect once the task has ended.
        let task = AbortOnDrop(entry.task);
        let orphan = |payload| resume_unwind(payload);
        let ran = poll_fn(|cx| {
            // Inside another task, its waits count as waits of that task.
            let _inside = current()
                .is_none()
                .then(|| Inside::enter_aside(Arc::clone(&task.0) as _));
            task.0.poll_run(&orphan, cx)
        });
        ran.await != Ran::Gone
    }
}

struct AbortOnDrop(Arc<dyn Run>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort(TaskError::Aborted);
        self.0.record().end();
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
