//! The handle to an async task.

use super::cell::{Job, Run};
use super::core::Core;
use super::polled::{is_admitted, is_inside, turn_of};
use super::turn::Turn;
use crate::pool::cell::Ran;
use crate::pool::error::TaskError;
use crate::pool::gate::{Admitted, Waiter, finish};
use crate::pool::hooks::drop_quietly;
use crate::pool::intake::Counted;
use crate::pool::members::Abort;
use crate::pool::park::run_blocking;
use crate::pool::passage::Door;
use crate::pool::wishes::Spec;
use crate::time::{Instant, Sleep};
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The result of an async task, once it is there. Dropping the handle lets the task run all the same.
///
/// # Deadlock
/// A task that awaits one of the same pool that no runner has takes it in: it runs it itself, on the slot that it has, one at a
/// time. So tasks may submit tasks and wait for them, to any depth, in a pool of
/// one. That is so where the handle is polled by the task itself, not by another task that it has spawned.
///
/// Where the pool has a [policy](crate::pool::Builder::admit_by), what is taken in is admitted first, as any other task. Only
/// where something would have to be given back first does it run under the permit of the task that waits: that may be
/// what is missing.
///
/// # Cancel safety
/// Polling can stop at any time: the result stays until it is taken. A task that was taken in goes on with the one that
/// took it in, also where the handle is polled no more. A runner goes on with it once that one has ended, has dropped
/// the handle or has waited long enough in [`join_timeout`](Self::join_timeout), or awaits others and this one no more.
/// Until a runner is free it then waits, and whoever awaits it may take it in again. A handle that a task of a pool with a
/// policy has polled keeps its place in the line of the policy, and what it is granted there, until it is polled again, or
/// dropped.
///
/// # Panics
/// A future that has been ready must not be polled again.
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct AsyncHandle<T: Send + 'static> {
    task: Arc<dyn Job<T>>,
    core: Arc<Core>,
    deadline: Option<Instant>,
    /// The turn that took it in, or was to, last; and in which round of it this came to wait.
    turn: Option<Arc<Turn>>,
    round: u64,
    /// Where the pool has a policy.
    door: Option<Box<Door>>,
}

impl<T: Send + 'static> AsyncHandle<T> {
    pub(super) fn new(task: Arc<dyn Job<T>>, core: Arc<Core>, spec: &Spec) -> Self {
        Self {
            door: Door::new(core.settings.gate.as_ref(), spec.ask),
            task,
            core,
            deadline: spec.deadline,
            turn: None,
            round: 0,
        }
    }

    /// Ends the task. One that has never been polled ends with [`TaskError::Cancelled`]; one that runs has its future
    /// dropped, at once or when it is next pending, and ends with [`TaskError::Aborted`]. False when it had ended.
    pub fn cancel(&self) -> bool {
        if self.end_queued(TaskError::Cancelled) {
            return true;
        }
        // It stands in the queue again.
        let left = self.task.is_left();
        let ended = self.task.abort(TaskError::Cancelled);
        if ended && left {
            self.core.note_dead(&Counted::Cancelled);
        }
        ended
    }

    /// True once the result is there.
    pub fn is_finished(&self) -> bool {
        self.task.is_done()
    }

    /// The result, if it is there.
    ///
    /// # Errors
    /// The handle itself when it is not.
    pub fn try_join(self) -> Result<Result<T, TaskError>, Self> {
        match self.task.poll_result(Waker::noop()) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(self),
        }
    }

    /// Waits for the result for at most `patience` on the pool's clock.
    ///
    /// # Errors
    /// The handle itself when the time is over: the task goes on.
    pub async fn join_timeout(mut self, patience: Duration) -> Result<Result<T, TaskError>, Self> {
        let core = Arc::clone(&self.core);
        let clock = &core.settings.clock;
        let mut sleep = pin!(Sleep::until(clock, clock.after(clock.now(), patience)));
        let joined = poll_fn(|cx| match Pin::new(&mut self).poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
        });
        match joined.await {
            Some(result) => Ok(result),
            None => {
                self.leave();
                Err(self)
            }
        }
    }

    /// Waits for the result and blocks the thread meanwhile: not for async code.
    ///
    /// # Errors
    /// [`TaskError`]: it panicked, was dropped, or never started.
    pub fn join_blocking(self) -> Result<T, TaskError> {
        run_blocking(self)
    }

    /// Ends the task, later, if it has started and not ended by then.
    pub(super) fn abort_if_started(&self) -> Abort {
        let task = Arc::downgrade(&self.task);
        Box::new(move || {
            let Some(task) = task.upgrade() else { return };
            if !task.is_queued() {
                task.abort(TaskError::Cancelled);
            }
            drop_quietly(task);
        })
    }

    /// True while polling it here would be of use to a task of the pool that waits for it.
    pub(super) fn can_help(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.is_helping(&self.task)) || self.task.is_claimable()
    }

    /// Goes on with the task where it is run in passing by whoever polls this, and has it so if it can. True when somebody
    /// else has it, who may leave it to the caller.
    fn help(&mut self, cx: &mut Context<'_>) -> bool {
        let (elsewhere, at_gate) = match self.take_in(cx) {
            Some(elsewhere) => (elsewhere, false),
            None => (false, true),
        };
        if !at_gate {
            self.leave_gate();
        }
        elsewhere
    }

    /// None while it waits for its admission.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Option<bool> {
        if self.turn.is_none() && !self.task.is_claimable() {
            return Some(is_inside(self.core.kin));
        }
        let Some(turn) = turn_of(self.core.kin) else {
            return Some(false);
        };
        if turn.see(&self.task) {
            return Some(false);
        }
        if !self.task.is_claimable() {
            self.turn.take_if(|asked| !asked.is_helping(&self.task));
            return Some(true);
        }
        if self.expires() {
            return Some(false);
        }
        if !self.turn.as_ref().is_some_and(|asked| Arc::ptr_eq(asked, &turn)) {
            self.turn = Some(Arc::clone(&turn));
            self.round = 0;
        }
        if !turn.is_free(cx.waker(), &mut self.round) {
            return Some(false);
        }
        let mut admitted = match self.admit(cx.waker()) {
            Poll::Ready(Ok(admitted)) => admitted,
            Poll::Ready(Err(why)) => {
                self.end_queued(why);
                return Some(false);
            }
            // Without the slot: whoever has one may take the task meanwhile.
            Poll::Pending => return None,
        };
        if !self.core.let_guest_in(&*self.task, &mut admitted) {
            finish(admitted, Ran::Gone);
            return Some(!self.core.is_stopped());
        }
        // One that had been left has what it was admitted by.
        finish(admitted, Ran::Gone);
        turn.take_in(Arc::clone(&self.task) as Arc<dyn Run>, &self.core);
        turn.see(&self.task);
        Some(false)
    }

    fn admit(&self, waker: &Waker) -> Poll<Result<Admitted, TaskError>> {
        let Some(door) = self.door.as_ref().filter(|_| self.task.is_queued()) else {
            return Poll::Ready(Ok(None));
        };
        let waiter = Waiter {
            is_admitted: is_admitted(self.core.kin),
        };
        door.poll(self.core.settings.gate.as_ref(), waiter, waker)
    }

    fn leave_gate(&self) {
        if let Some(door) = &self.door {
            door.leave();
        }
    }

    fn end_queued(&self, why: TaskError) -> bool {
        let counted = Counted::of(&why);
        let ended = self.task.refuse(why);
        if ended {
            self.core.note_dead(&counted);
        }
        ended
    }

    /// Ends the task if it is too late for it to start.
    fn expires(&self) -> bool {
        let late = |deadline| self.core.settings.clock.now() > deadline;
        if !(self.deadline.is_some_and(late) && self.task.is_queued()) {
            return false;
        }
        self.end_queued(TaskError::Expired);
        true
    }

    /// Nobody waits for it here any more: a runner goes on with it.
    fn leave(&self) {
        self.leave_gate();
        if let Some(turn) = &self.turn {
            turn.loosen(&self.task);
        }
    }
}

impl<T: Send + 'static> Future for AsyncHandle<T> {
    type Output = Result<T, TaskError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let elsewhere = this.help(cx);
            match this.task.poll_result(cx.waker()) {
                // It was left before there was a waker to call.
                Poll::Pending if elsewhere && this.task.is_claimable() => {}
                polled => return polled,
            }
        }
    }
}

impl<T: Send + 'static> Drop for AsyncHandle<T> {
    fn drop(&mut self) {
        self.leave();
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
