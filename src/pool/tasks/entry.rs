//! The queue entries of a task pool.

use super::cell::Run;
use super::kind::Tasks;
use crate::core::ask::Ask;
use crate::pool::cell::Ran;
use crate::pool::engine::group_limit::Membership;
use crate::pool::engine::scheduler;
use crate::pool::engine::waits::{Inside, current};
use crate::pool::error::TaskError;
use crate::pool::report::Unstarted;
use crate::pool::task_options::{Priority, RareOptions, TaskOptions};
use crate::time::Instant;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::sync::Arc;

pub(in crate::pool) struct Entry {
    pub(super) task: Arc<dyn Run>,
    pub(super) weight: u32,
    pub(super) priority: Priority,
    rare: Option<Box<RareOptions>>,
}

impl scheduler::Entry for Entry {
    fn weight(&self) -> u32 {
        self.weight
    }

    fn priority(&self) -> Priority {
        self.priority
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
            rare: options.rare(member),
        }
    }
}

impl Unstarted<Tasks> {
    /// Runs the task in this future. Its handle gets the result. Returns false when the task was cancelled.
    ///
    /// # Cancel safety
    /// Dropping this future drops the task.
    ///
    /// # Panics
    /// When the task panics and its handle is gone, or it never had one.
    pub async fn run(self) -> bool {
        let Some(entry) = self.take() else { return false };
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
