//! The handle to a task: its result, as a future or by blocking, and its cancellation.

use super::cell::{Job, Ran};
use super::core::Core;
use super::error::TaskError;
use super::gate::{Admitted, Waiter, finish};
use super::intake::Counted;
use super::park::block_on;
use super::passage::{Door, Inside, is_admitted};
use super::wishes::Spec;
use super::worker::is_worker;
use crate::time::Instant;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The result of a task, once it is there. Dropping the handle lets the task run all the same.
///
/// # Deadlock
/// A task that waits for a task of the same pool runs it on its own thread, if it has not started. So tasks may submit tasks and
/// wait for them, to any depth, with one worker.
///
/// **Deadlock**: tasks of two pools that wait for each other in a circle may wait for ever, and so may a task that waits for one of
/// another pool with the same slots.
///
/// Where the pool has a [policy](super::Builder::admit_by), what is run so is admitted first, as any other task. Only
/// where something would have to be given back first does it run under the permit of the task that waits: that may be
/// what is missing.
///
/// # Cancel safety
/// Polling can stop at any time: the result stays until it is taken. A handle that a task of a pool with a policy has polled
/// keeps its place in the line of the policy, and what it is granted there, until it is polled again, or dropped.
///
/// # Panics
/// A future that has been ready must not be polled again.
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct ScopedJoinHandle<'j, T> {
    cell: Arc<dyn Job<T> + 'j>,
    core: Arc<Core<'j>>,
    deadline: Option<Instant>,
    /// Where the pool has a policy.
    door: Option<Box<Door>>,
}

impl<'j, T: Send> ScopedJoinHandle<'j, T> {
    pub(super) fn new(cell: Arc<dyn Job<T> + 'j>, core: Arc<Core<'j>>, spec: &Spec) -> Self {
        Self {
            door: Door::new(core.settings.gate.as_ref(), spec.ask),
            cell,
            core,
            deadline: spec.deadline,
        }
    }

    /// Runs the task here, if it waits for this thread. False when it has not been touched; `waker` is woken when it may
    /// be worth another look.
    pub(super) fn help(&self, waker: &Waker) -> bool {
        if !(self.cell.is_queued() && is_worker(&self.core)) {
            self.leave_gate();
            return false;
        }
        if self
            .deadline
            .is_some_and(|deadline| self.core.settings.clock.now() > deadline)
        {
            self.leave_gate();
            self.end_queued(TaskError::Expired);
            return true;
        }
        let admitted = match self.admit(waker) {
            Poll::Ready(Ok(admitted)) => admitted,
            Poll::Ready(Err(why)) => {
                self.end_queued(why);
                return true;
            }
            // Without the slot: whoever has one may take the task meanwhile.
            Poll::Pending => return false,
        };
        if !self.core.let_guest_in(&*self.cell) {
            finish(admitted, Ran::Gone);
            return false;
        }
        let inside = Inside::enter(self.core.kin, &admitted);
        let ran = self.cell.run_aside(&mut |payload| self.core.orphan(payload));
        drop(inside);
        finish(admitted, ran);
        self.core.guest_ended(ran);
        true
    }

    fn admit(&self, waker: &Waker) -> Poll<Result<Admitted, TaskError>> {
        let Some(door) = &self.door else {
            return Poll::Ready(Ok(None));
        };
        let waiter = Waiter {
            is_admitted: is_admitted(self.core.kin),
        };
        door.poll(self.core.settings.gate.as_ref(), waiter, waker)
    }

    /// Nobody waits here for the admission any more.
    pub(super) fn leave_gate(&self) {
        if let Some(door) = &self.door {
            door.leave();
        }
    }

    pub(super) fn is_queued(&self) -> bool {
        self.cell.is_queued()
    }

    fn poll_or_help(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        self.help(waker);
        self.cell.poll_result(waker)
    }

    fn end_queued(&self, why: TaskError) -> bool {
        let counted = Counted::of(&why);
        let ended = self.cell.refuse(why);
        if ended {
            self.core.note_dead(&counted);
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
        let joined = block_on(Some(patience), |waker| self.poll_or_help(waker));
        self.leave_gate();
        joined.ok_or(self)
    }

    /// Takes the task back, if it has not started: its result is [`TaskError::Cancelled`] then. False when it is too
    /// late; a task that runs is not interrupted.
    pub fn cancel(&self) -> bool {
        let ended = self.cell.refuse_aside(TaskError::Cancelled);
        if ended {
            self.core.note_dead(&Counted::Cancelled);
        }
        ended
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

impl<T: Send> Future for ScopedJoinHandle<'_, T> {
    type Output = Result<T, TaskError>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_or_help(cx.waker())
    }
}

impl<T> Drop for ScopedJoinHandle<'_, T> {
    fn drop(&mut self) {
        self.cell.detach();
    }
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("finished", &self.cell.is_done())
            .finish_non_exhaustive()
    }
}
