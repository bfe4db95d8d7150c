//! The handle to a task: its result, as a future or by blocking, and its cancellation.

use super::cell::{Job, Ran};
use super::core::Core;
use super::error::TaskError;
use super::park::block_on;
use super::worker::Guest;
use crate::time::Instant;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The result of a task, once it is there. Dropping the handle lets the task run all the same.
///
/// # Deadlock
/// Whoever waits on a worker's thread, for a task of the same pool that has not started, runs it right there. So tasks
/// may submit tasks and wait for them, to any depth, with one worker. Pools of no relation whose tasks wait for each
/// other in a circle have no such promise.
///
/// # Cancel safety
/// Polling can stop at any time: the result stays until it is taken.
///
/// # Panics
/// A future that has been ready must not be polled again.
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct Handle<'j, T> {
    cell: Arc<dyn Job<T> + 'j>,
    core: Arc<Core<'j>>,
    deadline: Option<Instant>,
}

impl<'j, T: Send> Handle<'j, T> {
    pub(super) fn new(cell: Arc<dyn Job<T> + 'j>, core: Arc<Core<'j>>, deadline: Option<Instant>) -> Self {
        Self { cell, core, deadline }
    }

    /// Runs the task here, if it waits for this thread. False when it has not been touched; `waker` is woken when it may
    /// be worth another look.
    pub(super) fn help(&self, waker: &Waker) -> bool {
        if !self.cell.is_queued() {
            return false;
        }
        let Some(guest) = Guest::enter(&self.core, waker) else {
            return false;
        };
        if self
            .deadline
            .is_some_and(|deadline| self.core.settings.clock.now() > deadline)
        {
            self.end_queued(TaskError::Expired);
            return true;
        }
        let ran = self.cell.run(&mut || self.core.guest_started(), &mut |payload| {
            self.core.orphan(payload);
        });
        drop(guest);
        if ran != Ran::Gone {
            self.core.guest_ended(ran);
        }
        true
    }

    pub(super) fn is_queued(&self) -> bool {
        self.cell.is_queued()
    }

    fn poll_or_help(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        self.help(waker);
        self.cell.poll_result(waker)
    }

    fn end_queued(&self, why: TaskError) -> bool {
        let expired = matches!(why, TaskError::Expired);
        let ended = self.cell.refuse(why);
        if ended {
            self.core.note_dead(expired);
        }
        ended
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`TaskError`]: it panicked, or never started.
    pub fn join(self) -> Result<T, TaskError> {
        let result = block_on(None, |waker| self.poll_or_help(waker));
        // Without a bound it waits until there is one.
        result.unwrap_or(Err(TaskError::Abandoned))
    }

    /// Waits for the result for at most `patience`.
    ///
    /// # Errors
    /// The handle itself when the time is over: the task goes on.
    pub fn join_timeout(self, patience: Duration) -> Result<Result<T, TaskError>, Self> {
        block_on(Some(patience), |waker| self.poll_or_help(waker)).ok_or(self)
    }

    /// Takes the task back, if it has not started: its result is [`TaskError::Cancelled`] then. False when it is too
    /// late; a task that runs is not interrupted.
    pub fn cancel(&self) -> bool {
        self.end_queued(TaskError::Cancelled)
    }

    /// True once the result is there.
    pub fn is_finished(&self) -> bool {
        self.cell.is_done()
    }

    /// The result, if it is there.
    ///
    /// # Errors
    /// The handle itself when it is not.
    pub fn try_join(self) -> Result<Result<T, TaskError>, Self> {
        match self.cell.poll_result(Waker::noop()) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(self),
        }
    }
}

impl<T: Send> Future for Handle<'_, T> {
    type Output = Result<T, TaskError>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_or_help(cx.waker())
    }
}

impl<T> Drop for Handle<'_, T> {
    fn drop(&mut self) {
        self.cell.detach();
    }
}

impl<T> fmt::Debug for Handle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("finished", &self.cell.is_done())
            .finish_non_exhaustive()
    }
}
