//! The handle to an async task.

use super::cell::{Job, Run};
use super::core::Core;
use super::guest::Guest;
use super::turn::{Turn, turn_of};
use crate::pool::error::TaskError;
use crate::pool::park::run_blocking;
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
/// A task that awaits one of the same pool, or of a pool above or below it, that has not started polls it itself, one at
/// a time. So tasks may submit tasks and wait for them, to any depth, in a pool of one. That is so where the handle is
/// polled by the task itself, not by another task that it has spawned.
///
/// # Cancel safety
/// Polling can stop at any time: the result stays until it is taken, and a runner goes on with a task that was polled
/// here.
///
/// # Panics
/// A future that has been ready must not be polled again.
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct AsyncHandle<T: Send + 'static> {
    task: Arc<dyn Job<T>>,
    core: Arc<Core>,
    deadline: Option<Instant>,
    /// It is polled here, in the turn of the task that waits.
    helping: Option<(Arc<Turn>, Guest)>,
}

impl<T: Send + 'static> AsyncHandle<T> {
    pub(super) fn new(task: Arc<dyn Job<T>>, core: Arc<Core>, deadline: Option<Instant>) -> Self {
        Self {
            task,
            core,
            deadline,
            helping: None,
        }
    }

    /// Ends the task. One that has never been polled ends with [`TaskError::Cancelled`]; one that runs has its future
    /// dropped, at once or when it is next pending, and ends with [`TaskError::Aborted`]. False when it had ended.
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

    /// True while polling it here would be of use to a task of the pool that waits for it.
    pub(super) fn can_help(&self) -> bool {
        self.helping.is_some() || self.task.is_queued()
    }

    /// Takes the task, if this is polled by a task of its pool and has not started.
    fn begin_help(&mut self, cx: &mut Context<'_>) {
        if self.helping.is_some() || !self.task.is_queued() {
            return;
        }
        let Some(turn) = turn_of(self.core.kin) else { return };
        if self
            .deadline
            .is_some_and(|deadline| self.core.settings.clock.now() > deadline)
        {
            if self.task.refuse(TaskError::Expired) {
                self.core.note_dead(true);
            }
        } else if turn.take(cx.waker()) {
            match Guest::enter(&self.core, cx.waker()) {
                Some(guest) if self.task.claim() => {
                    self.core.guest_started();
                    self.helping = Some((turn, guest));
                }
                _ => turn.give_back(),
            }
        }
    }

    /// It is polled here no more: a runner goes on with it.
    fn leave(&mut self) {
        if let Some((turn, guest)) = self.helping.take() {
            drop(guest);
            self.core.push_started(Arc::clone(&self.task) as Arc<dyn Run>);
            turn.give_back();
        }
    }
}

impl<T: Send + 'static> Future for AsyncHandle<T> {
    type Output = Result<T, TaskError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.begin_help(cx);
        if this.helping.is_some()
            && let Poll::Ready(ran) = this.core.poll(&*this.task, cx)
        {
            let helped = this.helping.take();
            this.core.ended(ran);
            if let Some((turn, guest)) = helped {
                drop(guest);
                turn.give_back();
            }
        }
        this.task.poll_result(cx.waker())
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
