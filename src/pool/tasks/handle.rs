//! The handle to an async task.

use super::cell::Job;
use super::core::Core;
use crate::pool::engine::queue::Key;
use crate::pool::engine::waits::{Wait, Waiter};
use crate::pool::error::TaskError;
use crate::pool::hooks::drop_quietly;
use crate::pool::members::Abort;
use crate::pool::park::run_blocking;
use crate::time::Sleep;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The result of an async task, once it is there. Dropping the handle lets the task run all the same.
///
/// # Tasks that wait for tasks
/// A task of a pool that polls the handle of another lends its slot from then on until the handle is ready or dropped, while it is
/// not polled itself: tasks that are awaited may start on the slot. So tasks may submit tasks and wait for them, to any depth, across
/// pools, in pools of one.
///
/// Permits are not lent: those of a [policy](crate::pool::Builder::admit_by), and [slots](crate::pool::Builder::slots) that the pool
/// was given. A wait that needs a permit which the waiter holds, or a task that waits for the waiter or may, since it has its handle,
/// ends at once with [`TaskError::WouldDeadlock`], whether a permit is free or not, and whether the task has ended or not; so does one
/// that closes a cycle of waits. The task goes on, and a handle that was polled by reference is as before.
///
/// **Deadlock**: a pool sees no wait for anything else than a handle: for a channel, for room in another pool, for another pool to be
/// idle; none in a task that the waiter has spawned; none that blocks the thread. And it sees no permit that a task took itself, or that
/// a limiter without a queue has given, as the trial of a breaker, or for which a policy was reloaded while the wait lasted.
///
/// # Cancel safety
/// Polling can stop at any time: the result stays until it is taken.
///
/// # Panics
/// A future that has been ready with a result must not be polled again.
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct TaskHandle<T: Send + 'static> {
    task: Arc<dyn Job<T>>,
    core: Arc<Core>,
    /// None: it was never queued.
    key: Option<Key>,
    wait: Option<Wait<Core>>,
}

impl<T: Send + 'static> TaskHandle<T> {
    pub(super) fn new(task: Arc<dyn Job<T>>, core: Arc<Core>, key: Option<Key>) -> Self {
        Self {
            task,
            core,
            key,
            wait: None,
        }
    }

    /// Ends the task. One that has never been polled ends with [`TaskError::Cancelled`]; one that runs has its future
    /// dropped, at once or when it is next pending, and ends with [`TaskError::Aborted`]. False when it had ended.
    pub fn cancel(&self) -> bool {
        self.key.is_some_and(|key| self.core.cancel(key)) || self.task.abort(TaskError::Cancelled)
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
                self.wait = None;
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
        let (task, core, key) = (Arc::downgrade(&self.task), Arc::downgrade(&self.core), self.key);
        Box::new(move || {
            let (Some(task), Some(core)) = (task.upgrade(), core.upgrade()) else {
                return;
            };
            if !key.is_some_and(|key| core.is_queued(key)) {
                task.abort(TaskError::Cancelled);
            }
            drop_quietly((task, core));
        })
    }

    /// A task of a pool is about to wait. False when that would never end.
    fn begin_to_wait(&mut self) -> bool {
        let waiter = Waiter::current(&*self.core);
        if waiter.as_ref().is_none_or(Waiter::holds_nothing) {
            // Its submitter has given it away.
            self.task.record().cut();
        }
        let Some(waiter) = waiter else {
            self.wait = None;
            return true;
        };
        if self.wait.as_ref().is_some_and(|wait| wait.is_by(&waiter)) {
            return true;
        }
        self.wait = None;
        self.wait = Wait::begin(waiter, Some(&*self.task), &*self.core);
        self.wait.is_some()
    }
}

impl<T: Send + 'static> Future for TaskHandle<T> {
    type Output = Result<T, TaskError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.begin_to_wait() {
            return Poll::Ready(Err(TaskError::WouldDeadlock));
        }
        let polled = this.task.poll_result(cx.waker());
        if polled.is_ready() {
            this.wait = None;
        } else if let (Some(wait), Some(key)) = (&mut this.wait, this.key)
            && !wait.list(&this.core, || key)
        {
            this.wait = None;
            return Poll::Ready(Err(TaskError::TooManyParked));
        }
        polled
    }
}

impl<T: Send + 'static> Drop for TaskHandle<T> {
    fn drop(&mut self) {
        self.wait = None;
        self.task.record().cut();
        self.task.detach();
    }
}

impl<T: Send + 'static> fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHandle")
            .field("finished", &self.task.is_done())
            .finish_non_exhaustive()
    }
}
