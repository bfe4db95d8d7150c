//! Task handles: the result, as a future or by blocking, and cancellation.

use super::cell::Await;
use super::engine::scheduler::{Engine, Kind as _, PoolKind};
use super::engine::waits::{Wait, Waiter};
use super::error::TaskError;
use super::group::{Abort, Member};
use super::hooks::opaque_debug;
#[cfg(feature = "tokio")]
use super::tasks::Tasks;
use super::threads::kind::Threads;
use crate::sync::park::{block_on, block_on_timeout};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Waits for a task's result, and cancels the task. Dropping the handle does not cancel the task.
///
/// # Tasks that wait for tasks
/// A task of a pool lends its slot while it waits for another task. An async task waits from its poll of a handle until the handle is
/// ready or dropped. It lends the slot only while it is not polled itself. Awaited tasks may start on the lent slot: on threads, on one
/// of at most 256 beyond the limit. [`join`](Self::join) runs a queued task of the same pool inline, on the waiter's thread, at most 16
/// deep, unless the task's group has a limit. So tasks may submit tasks and wait for them, across pools, and in pools of one worker.
///
/// A pool does not lend permits: those of a [policy](super::Builder::admit_by), and [slots](super::Builder::slots) that the pool was
/// given. A wait ends at once with [`TaskError::WouldDeadlock`] if it needs a permit that one of these tasks holds: the waiter, a task
/// that waits for the waiter, or an async task that may do so since it has the waiter's handle. It does so whether a permit is free or
/// not. A wait of an async task that closes a cycle of waits ends the same way. If as many tasks wait on threads as there are slots and
/// 255 more, the next wait ends with [`TaskError::TooManyParked`]. In all these cases the awaited task continues, and a handle that was
/// polled, or [joined](Self::join_by_ref), by reference is unchanged.
///
/// **Deadlock**: a pool detects only waits for handles. It does not detect a cycle of tasks on threads that wait for each other by
/// handles that were passed on. A task of a [scope](super::PoolBuilder::scope) keeps its slot while it waits for a task of another pool.
/// A pool does not detect a wait for a channel, for capacity in another pool, or for another pool to be idle. Nor does it detect a wait
/// in a task that the waiter has spawned, or one that blocks the thread of an async task. It does not know permits that a task acquired
/// itself, or permits of a policy that was reloaded during the wait. Nor does it know permits of a limiter without a queue, such as the
/// probe of a breaker.
///
/// # Cancel safety
/// Polling can stop at any time: the task keeps its result until a caller takes it.
///
/// # Panics
/// Polling again after the result was returned panics.
///
/// ```
/// # use tollgate::WorkerPool;
/// let pool = WorkerPool::builder().workers(1).build()?;
/// // A task waits for another one: its slot is lent, so one worker is enough.
/// let inner = pool.clone();
/// let sum = pool.submit(move || {
///     let parts = [1..=50, 51..=100].map(|part| inner.submit(move || part.sum::<u32>()).unwrap());
///     parts.into_iter().map(|part| part.join().unwrap()).sum::<u32>()
/// })?;
/// assert_eq!(sum.join()?, 5050);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct Handle<K: PoolKind, T> {
    pub(super) task: Arc<K::Job<T>>,
    pub(super) core: Arc<Engine<K>>,
    /// Its slot is lent while this is kept. Boxed: few handles are awaited by tasks.
    pub(super) wait: Option<Box<Wait<K>>>,
}

/// The handle to a task on threads that may borrow.
///
/// ```
/// # use tollgate::{WorkerPool, pool::ScopedJoinHandle};
/// let mut halves = [3, 1, 4, 2];
/// WorkerPool::builder().workers(2).scope(|pool| {
///     let (left, right) = halves.split_at_mut(2);
///     let sorting: ScopedJoinHandle<'_, ()> = pool.submit(|| left.sort()).unwrap();
///     right.sort();
///     sorting.join().unwrap();
/// })?;
/// assert_eq!(halves, [1, 3, 2, 4]);
/// # Ok::<(), tollgate::pool::PoolError>(())
/// ```
pub type ScopedJoinHandle<'j, T> = Handle<Threads<'j>, T>;

/// The handle to a task of a [`WorkerPool`](super::WorkerPool).
///
/// ```
/// # use tollgate::{WorkerPool, pool::JoinHandle};
/// struct Report { text: JoinHandle<String> }
/// let pool = WorkerPool::builder().workers(1).build()?;
/// let report = Report { text: pool.submit(|| "all is well".to_string())? };
/// assert_eq!(report.text.join()?, "all is well");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type JoinHandle<T> = ScopedJoinHandle<'static, T>;

/// The handle to a task of a [`TaskPool`](super::TaskPool).
///
/// ```
/// # use tollgate::pool::{TaskError, TaskHandle, TaskPool};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = TaskPool::builder(1).build()?;
/// let request: TaskHandle<()> = pool.submit(std::future::pending()).await.unwrap();
/// tokio::task::yield_now().await;
/// // Unlike a closure on a thread, a running future can be cancelled.
/// assert!(request.cancel());
/// assert!(matches!(request.await, Err(TaskError::Aborted)));
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "tokio")]
pub type TaskHandle<T> = Handle<Tasks, T>;

impl<K: PoolKind, T> Handle<K, T> {
    #[inline]
    pub(super) fn new(task: Arc<K::Job<T>>, core: Arc<Engine<K>>) -> Self {
        let wait = None;
        Self { task, core, wait }
    }

    /// Cancels the task: it ends with [`TaskError::Cancelled`], if it has not started. A running async task ends with
    /// [`TaskError::Aborted`]: its future is dropped, at once or when it is next pending. A running closure is not interrupted. Returns
    /// false when it is too late.
    pub fn cancel(&self) -> bool {
        Engine::cancel(self)
    }

    /// Returns true once the task has a result.
    pub fn is_finished(&self) -> bool {
        self.task.is_done()
    }

    /// Returns the result, if the task has one.
    ///
    /// # Errors
    /// The handle itself if it has none yet.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::WorkerPool;
    /// let pool = WorkerPool::builder().workers(1).build()?;
    /// let (go, wait) = std::sync::mpsc::channel::<()>();
    /// let task = pool.submit(move || wait.recv().is_ok())?;
    /// let task = task.try_join().expect_err("it has not ended");
    /// go.send(())?;
    /// let mut task = task.join_timeout(Duration::ZERO).err().unwrap_or(pool.submit(|| true)?);
    /// assert!(task.join_by_ref()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_join(self) -> Result<Result<T, TaskError>, Self> {
        match self.task.poll_result(Waker::noop()) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(self),
        }
    }

    /// Polls for the result. A task of a pool lends its slot while it waits.
    pub(super) fn poll_join(&mut self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        let (waiter, task) = (Waiter::current(&*self.core), self.task.record());
        if let Some(task) = task {
            if waiter.as_ref().is_none_or(Waiter::holds_nothing) {
                // The submitter has passed the handle on.
                task.cut();
            }
        }
        match waiter {
            Some(waiter) if self.wait.as_ref().is_some_and(|wait| wait.is_by(&waiter)) => {}
            Some(waiter) => {
                self.wait = None;
                self.wait = Wait::begin(waiter, task, &self.core).map(Box::new);
                if self.wait.is_none() {
                    return Poll::Ready(Err(TaskError::WouldDeadlock));
                }
            }
            None => self.wait = None,
        }
        let polled = self.task.poll_result(waker);
        if polled.is_ready() {
            self.wait = None;
            return polled;
        }
        let mut wait = self.wait.take();
        let waits = wait
            .as_mut()
            .is_none_or(|wait| wait.list(&self.core, || Engine::awaited(self)));
        self.wait = wait;
        if waits {
            return Poll::Pending;
        }
        self.wait = None;
        Poll::Ready(Err(TaskError::TooManyParked))
    }
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the result, and blocks this thread.
    ///
    /// # Errors
    /// [`TaskError`]: the task panicked, or never started.
    pub fn join(mut self) -> Result<T, TaskError> {
        self.join_by_ref()
    }

    /// Waits for the result, and keeps the handle, so that a caller can join again after a refused wait. See
    /// [`TaskError::WouldDeadlock`].
    ///
    /// # Errors
    /// As [`join`](Self::join).
    ///
    /// # Panics
    /// If the result was taken before.
    pub fn join_by_ref(&mut self) -> Result<T, TaskError> {
        Threads::help(self);
        block_on(|waker| self.poll_join(waker))
    }

    /// Waits for the result for at most `patience`, and blocks this thread.
    ///
    /// # Errors
    /// The handle itself on a timeout: the task continues.
    pub fn join_timeout(mut self, patience: Duration) -> Result<Result<T, TaskError>, Self> {
        let joined = block_on_timeout(Some(patience), |waker| self.poll_join(waker));
        self.wait = None;
        joined.ok_or(self)
    }
}

#[cfg(feature = "tokio")]
impl<T> TaskHandle<T> {
    /// Waits for the result for at most `patience` on the pool's clock.
    ///
    /// # Errors
    /// The handle itself on a timeout: the task continues.
    pub async fn join_timeout(mut self, patience: Duration) -> Result<Result<T, TaskError>, Self> {
        let core = Arc::clone(&self.core);
        let joined = core.within(Some(patience), |waker| self.poll_join(waker)).await;
        self.wait = None;
        joined.ok_or(self)
    }
}

impl<K: PoolKind, T> Unpin for Handle<K, T> {}

impl<K: PoolKind, T> Future for Handle<K, T> {
    type Output = Result<T, TaskError>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_join(cx.waker())
    }
}

impl<K: PoolKind, T> Drop for Handle<K, T> {
    fn drop(&mut self) {
        self.wait = None;
        if let Some(payload) = self.task.detach() {
            self.core.result_panicked(payload);
        }
    }
}

impl<K: PoolKind, T> Member for Handle<K, T> {
    const ABORTS: bool = !K::THREADS;

    fn cancel(&self) {
        Engine::cancel(self);
    }

    fn abort(&self) -> Option<Abort> {
        K::abort(self)
    }
}

opaque_debug!([K: PoolKind, T] Handle<K, T>, "Handle", |this| finished = this.task.is_done());
