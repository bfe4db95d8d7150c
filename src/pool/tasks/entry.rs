//! What stands in the queue of a task pool.

use super::cell::{Here, Run};
use crate::ask::Ask;
use crate::pool::cell::Ran;
use crate::pool::entry::Priority;
use crate::pool::error::TaskError;
use crate::pool::kin::Kin;
use crate::pool::lanes::Ranked;
use crate::pool::wishes::Spec;
use crate::time::Instant;
use std::fmt;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll};

pub(super) struct Entry {
    pub(super) task: Arc<dyn Run>,
    weight: u32,
    priority: Priority,
    pub(super) deadline: Option<Instant>,
    ask: Option<Box<Ask>>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It waits to be started, and takes room.
    Waiting,
    /// It has started before: whoever ran it in passing has left it, for a runner, or for whoever waits for it.
    Left,
}

impl Entry {
    pub(super) fn new(task: Arc<dyn Run>, spec: &Spec) -> Self {
        Self {
            task,
            weight: spec.weight,
            priority: spec.priority,
            deadline: spec.deadline,
            ask: (!spec.plain).then(|| Box::new(spec.ask)),
            kind: Kind::Waiting,
        }
    }

    pub(super) fn left(task: Arc<dyn Run>) -> Self {
        Self {
            task,
            weight: 0,
            priority: Priority::High,
            deadline: None,
            ask: None,
            kind: Kind::Left,
        }
    }

    /// True of a task that has not been taken by anybody yet, as far as the queue knows.
    pub(super) fn is_waiting(&self) -> bool {
        self.kind == Kind::Waiting
    }

    /// Takes the task of an entry that is not waiting. False when somebody else has.
    pub(super) fn claim_started(&self) -> bool {
        self.kind != Kind::Left || self.task.claim_left()
    }

    pub(super) fn weight(&self) -> u32 {
        self.weight
    }

    pub(super) fn ask(&self) -> Ask {
        self.ask.as_deref().copied().unwrap_or(Ask::one())
    }
}

impl Ranked for Entry {
    fn priority(&self) -> Priority {
        self.priority
    }
    fn is_common(&self) -> bool {
        self.priority == Priority::Normal && self.is_waiting()
    }
    fn is_evictable(&self) -> bool {
        self.is_waiting()
    }
    fn is_live(&self) -> bool {
        match self.kind {
            Kind::Waiting => self.task.is_queued(),
            Kind::Left => self.task.is_left(),
        }
    }
}

/// A task that a [`TaskPool`](super::TaskPool) did not start, handed back. Poll it with [`run`](Self::run), or drop it:
/// then its handle is told [`TaskError::Abandoned`], or why it was thrown out.
#[must_use = "a task that is dropped here will never run"]
pub struct UnstartedTask {
    entry: Option<Entry>,
    discarded: bool,
    pool: Kin,
}

impl UnstartedTask {
    /// One that has been set aside.
    pub(super) fn new(entry: Entry, discarded: bool, pool: Kin) -> Self {
        let entry = Some(entry);
        Self { entry, discarded, pool }
    }

    /// What it weighs.
    pub fn weight(&self) -> u32 {
        self.entry.as_ref().map_or(0, Entry::weight)
    }

    /// Its priority.
    pub fn priority(&self) -> Priority {
        self.entry.as_ref().map_or(Priority::Normal, Ranked::priority)
    }

    /// Runs it here. Whoever holds its handle gets the result. False when it was cancelled.
    ///
    /// # Cancel safety
    /// Dropping this future drops the task.
    ///
    /// # Panics
    /// When a task panics that has no handle, or none any more.
    pub async fn run(mut self) -> bool {
        let Some(entry) = self.entry.take() else { return false };
        if !entry.task.claim_aside() {
            return false;
        }
        let pool = self.pool;
        let poll = |task: &dyn Run, cx: &mut Context<'_>| {
            let orphan = &|payload| resume_unwind(payload);
            task.poll_run(Here { pool, orphan }, cx)
        };
        run_here(&*entry.task, poll).await != Ran::Gone
    }
}

impl Drop for UnstartedTask {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.task.refuse_aside(if self.discarded {
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
pub(super) async fn run_here(task: &dyn Run, poll: impl Fn(&dyn Run, &mut Context<'_>) -> Poll<Ran>) -> Ran {
    struct AbortOnDrop<'a>(&'a dyn Run);
    impl Drop for AbortOnDrop<'_> {
        fn drop(&mut self) {
            self.0.abort(TaskError::Aborted);
        }
    }
    // Of no effect once it has ended.
    let guard = AbortOnDrop(task);
    let ran = poll_fn(|cx| poll(guard.0, cx)).await;
    drop(guard);
    ran
}
