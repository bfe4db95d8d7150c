//! The entries of closures.

use super::inline_task::InlineTask;
use super::kind::Threads;
use crate::pool::caller::Caller;
use crate::pool::cell::{Ran, Run};
use crate::pool::engine::entry::{self, Body, Boxed};
use crate::pool::engine::waits;
use crate::pool::hooks::{Payload, drop_quietly};
use crate::pool::report::Unstarted;
use crate::pool::task_options::TaskOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A type-erased task without a handle.
pub(in crate::pool) trait Task: Send {
    /// Runs the task, once, and drops the user's closure.
    fn run(&mut self, orphan: &mut dyn FnMut(Payload)) -> Ran;
}

/// A closure that has not run.
struct Plain<F>(Option<F>);

/// Runs a task without a handle. Catches a panic, and passes its payload to `orphan`.
#[inline]
pub(in crate::pool) fn run_quietly(task: impl FnOnce(), orphan: &mut dyn FnMut(Payload)) -> Ran {
    match catch_unwind(AssertUnwindSafe(task)) {
        Ok(()) => Ran::Done,
        Err(payload) => {
            orphan(payload);
            Ran::Panicked
        }
    }
}

impl<F: FnOnce() + Send> Task for Plain<F> {
    #[inline]
    fn run(&mut self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        self.0.take().map_or(Ran::Gone, |task| run_quietly(task, orphan))
    }
}

pub(in crate::pool) type Entry<'j> = entry::Entry<Threads<'j>>;

impl<'j> Entry<'j> {
    /// Creates the entry of a task without a handle.
    #[inline]
    pub(in crate::pool) fn own<F: FnOnce() + Send + 'j>(caller: Caller, task: F, options: &TaskOptions) -> Self {
        if caller.is_nothing() {
            Self::own_of_none(task, options)
        } else {
            Self::own_of_none(move || caller.within(task), options)
        }
    }

    #[inline]
    fn own_of_none<F: FnOnce() + Send + 'j>(task: F, options: &TaskOptions) -> Self {
        let entry = if InlineTask::fits::<F>() {
            Self(Body::Inline(InlineTask::new(task)))
        } else {
            Self::boxed(Boxed::Own(Box::new(Plain(Some(task))) as _))
        };
        entry.with(options, None)
    }

    /// Returns the task that may wait for this one, if that task holds permits.
    #[inline]
    pub(in crate::pool) fn waiter(&self) -> Option<Arc<dyn waits::Task>> {
        self.task().and_then(|task| task.waiter())
    }

    /// Runs the task. Catches a panic; without a handle, its payload goes to `orphan`.
    pub(in crate::pool) fn run(self, mut orphan: impl FnMut(Payload)) -> Ran {
        let (ran, left) = self.run_and_leave(&mut orphan);
        drop_quietly(left);
        ran
    }

    /// Runs the task like [`run`](Self::run), and returns its memory to the caller. Only memory is left: the closure is
    /// consumed, and the result belongs to the handle or was dropped.
    #[inline]
    pub(in crate::pool) fn run_and_leave(self, orphan: &mut dyn FnMut(Payload)) -> (Ran, Option<DeferredFree<'j>>) {
        match self.0 {
            Body::Inline(small) => (small.run(orphan), None),
            Body::Boxed(boxed, _) => boxed.run_and_leave(orphan),
        }
    }
}

impl<'j> Boxed<Threads<'j>> {
    fn run_and_leave(self, orphan: &mut dyn FnMut(Payload)) -> (Ran, Option<DeferredFree<'j>>) {
        match self {
            Self::Own(mut own) => (own.run(orphan), Some(DeferredFree::Own(own))),
            Self::Held(cell) => (cell.run(orphan), Some(DeferredFree::Held(cell))),
            Self::Special(special) | Self::Awaited(special) => special.entry.run_and_leave(orphan),
        }
    }
}

/// The memory of a task that has run.
pub(in crate::pool) enum DeferredFree<'j> {
    Own(Box<dyn Task + 'j>),
    Held(Arc<dyn Run + 'j>),
}

impl DeferredFree<'_> {
    /// Returns its size in bytes.
    #[inline]
    pub(in crate::pool) fn size(&self) -> usize {
        match self {
            Self::Own(task) => size_of_val(&**task),
            Self::Held(cell) => size_of_val(&**cell),
        }
    }
}

impl Unstarted<Threads<'_>> {
    /// Runs the task on this thread. Its handle gets the result. Returns false when the task was cancelled meanwhile.
    ///
    /// # Panics
    /// When the task panics and its handle is gone, or it never had one.
    pub fn run(self) -> bool {
        let entry = self.take();
        entry.is_some_and(|entry| entry.run(|payload| std::panic::resume_unwind(payload)) != Ran::Gone)
    }
}
