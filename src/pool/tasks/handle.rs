//! The handle to an async task.

use super::cell::{Await, Turn, turn_of};
use super::core::Core;
use crate::pool::error::TaskError;
use crate::time::Instant;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The result of an async task, once it is there. Dropping the handle lets the task run all the same.
///
/// # Deadlock
/// A task that awaits one of the same pool that has not started polls it itself, one at a time. So tasks may submit
/// tasks and wait for them, to any depth, in a pool of one. That is so where the handle is polled by the task itself,
/// not by another task that it has spawned.
///
/// # Cancel safety
/// Polling can stop at any time: the result stays until it is taken, and a runner goes on with a task that was polled
/// here.
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct AsyncHandle<T: Send + 'static> {
    task: Arc<dyn Await<T>>,
    core: Arc<Core>,
    deadline: Option<Instant>,
    /// It is polled here, in the turn of the task that waits.
    helping: Option<Arc<Turn>>,
}

impl<T: Send + 'static> AsyncHandle<T> {
    pub(super) fn new(task: Arc<dyn Await<T>>, core: Arc<Core>, deadline: Option<Instant>) -> Self {
        Self {
            task,
            core,
            deadline,
            helping: None,
        }
    }

    /// Ends the task. One that has not started ends with [`TaskError::Cancelled`]; one that runs has its future dropped,
    /// at once or when it is next pending, and ends with [`TaskError::Aborted`]. False when it had ended.
    pub fn cancel(&self) -> bool {
        if self.task.refuse(TaskError::Cancelled) {
            self.core.note_dead(false);
            return true;
        }
        self.task.abort(TaskError::Cancelled)
    }

    /// True once the result is there.
    pub fn is_finished(&self) -> bool {
        self.task.is_done()
    }

    /// True while polling it here would be of use to a task of the pool that waits for it.
    pub(super) fn can_help(&self) -> bool {
        self.helping.is_some() || self.task.is_queued()
    }

    /// Takes the task, if this is polled by a task of its pool and has not started.
    fn begin_help(&mut self, cx: &mut Context<'_>) {
        if self.helping.is_some() || !self.task.is_queued() {
            return;
        }
        let Some(turn) = turn_of(self.core.id) else { return };
        if self
            .deadline
            .is_some_and(|deadline| self.core.settings.clock.now() > deadline)
        {
            if self.task.refuse(TaskError::Expired) {
                self.core.note_dead(true);
            }
        } else if turn.take(cx.waker()) {
            if self.task.claim() {
                self.core.guest_started();
                self.helping = Some(turn);
            } else {
                turn.give_back();
            }
        }
    }
}

impl<T: Send + 'static> Future for AsyncHandle<T> {
    type Output = Result<T, TaskError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.begin_help(cx);
        if this.helping.is_some()
            && let Poll::Ready(ran) = this.task.poll_run(this.core.id, cx)
        {
            this.core.ended(ran);
            if let Some(turn) = this.helping.take() {
                turn.give_back();
            }
        }
        this.task.poll_result(cx.waker())
    }
}

impl<T: Send + 'static> Drop for AsyncHandle<T> {
    fn drop(&mut self) {
        if let Some(turn) = self.helping.take() {
            self.core
                .push_started(Arc::clone(&self.task) as Arc<dyn super::cell::Run>);
            turn.give_back();
        }
        self.task.detach();
    }
}

impl<T: Send + 'static> fmt::Debug for AsyncHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncHandle")
            .field("finished", &self.task.is_done())
            .finish_non_exhaustive()
    }
}
