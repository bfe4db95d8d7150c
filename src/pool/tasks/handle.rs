//! Handles of async tasks.

use super::cell::Job;
use super::kind::Core;
use crate::pool::engine::queue::Key;
use crate::pool::engine::waits::{Wait, Waiter};
use crate::pool::error::TaskError;
use crate::pool::hooks::drop_quietly;
use crate::pool::park::run_blocking;
use crate::pool::task_set::Abort;
use crate::time::Sleep;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Waits for an async task's result, and cancels the task. Dropping the handle does not cancel the task.
///
/// # Tasks that wait for tasks
/// A task of a pool that polls the handle of another task lends its slot until the handle is ready or dropped. It lends the slot only while
/// it is not polled itself. Awaited tasks may start on the lent slot. So tasks may submit tasks and wait for them, to any depth, across
/// pools, and in pools of one runner.
///
/// A pool does not lend permits: those of a [policy](crate::pool::Builder::admit_by), and [slots](crate::pool::Builder::slots) that the
/// pool was given. A wait ends at once with [`TaskError::WouldDeadlock`] if it needs a permit that one of these tasks holds: the waiter, a
/// task that waits for the waiter, or a task that may do so since it has the waiter's handle. It does so whether a permit is free or not,
/// and whether the awaited task has ended or not. A wait that closes a cycle of waits ends the same way. The awaited task continues, and a
/// handle that was polled by reference is unchanged.
///
/// **Deadlock**: a pool detects only waits for handles. It does not detect a wait for a channel, for capacity in another pool, or for
/// another pool to be idle. Nor does it detect a wait in a task that the waiter has spawned, or one that blocks the thread. It does not
/// know permits that a task acquired itself, or permits of a policy that was reloaded during the wait. Nor does it know permits of a
/// limiter without a queue, such as the probe of a breaker.
///
/// # Cancel safety
/// Polling can stop at any time: the task keeps its result until a caller takes it.
///
/// # Panics
/// Polling again after the result was returned panics.
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct TaskHandle<T: Send + 'static> {
    task: Arc<dyn Job<T>>,
    core: Arc<Core>,
    /// None: the task was never queued.
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

    /// Termination the task. A task that was never polled ends with [`TaskError::Cancelled`]. A running task ends with
    /// [`TaskError::Aborted`]: its future is dropped, at once or when it is next pending. Returns false when the task had ended.
    pub fn cancel(&self) -> bool {
        self.key.is_some_and(|key| self.core.cancel(key)) || self.task.abort(TaskError::Cancelled)
    }

    /// Returns true once the task has a result.
    pub fn is_finished(&self) -> bool {
        self.task.is_done()
    }

    /// Returns the result, if the task has one.
    ///
    /// # Errors
    /// The handle itself if it has none yet.
    pub fn try_join(self) -> Result<Result<T, TaskError>, Self> {
        match self.task.poll_result(Waker::noop()) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(self),
        }
    }

    /// Waits for the result for at most `patience` on the pool's clock.
    ///
    /// # Errors
    /// The handle itself on a timeout: the task continues.
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

    /// Waits for the result and blocks the thread. Not for async code.
    ///
    /// # Errors
    /// [`TaskError`]: the task panicked, was dropped, or never started.
    pub fn join_blocking(self) -> Result<T, TaskError> {
        run_blocking(self)
    }

    /// Returns a function that ends the task, if it is running then.
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

    /// Begins the wait of a task of a pool. Returns false when the wait would deadlock.
    fn begin_to_wait(&mut self) -> bool {
        let waiter = Waiter::current(&*self.core);
        if waiter.as_ref().is_none_or(Waiter::holds_nothing) {
            // The submitter has passed the handle on.
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
