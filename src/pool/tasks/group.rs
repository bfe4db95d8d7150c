//! Async tasks that end together.

use super::face::TaskPool;
use super::handle::TaskHandle;
use crate::pool::engine::group_limit::GroupLimit;
use crate::pool::error::{Failed, PoolError, Rejected, TaskError};
use crate::pool::members::{Abort, Member, Members, Ran, Results, StopFlag, in_order};
use crate::pool::wishes::Submit;
use crate::sync::shim::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Fallible tasks of one [`TaskPool`] that end together. The first that fails cancels the rest, whether the group is polled
/// or not: those that wait do not start, and those that run are dropped.
///
/// Dropping a group cancels all of it. Until then it keeps a few words for each task, from the first whose result has not been
/// given out on.
///
/// # Cancel safety
/// [`next`](Self::next) can be dropped and called again; no result is lost. [`join`](Self::join) and
/// [`join_all`](Self::join_all) take the group: dropped, they drop that.
///
/// ```
/// # use tollgate::pool::TaskPool;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let pool = TaskPool::builder(4).build().unwrap();
/// let mut group = pool.group();
/// for word in ["1", "2", "3"] {
///     group.submit(async move { word.parse::<i32>() }).await.unwrap();
/// }
/// assert_eq!(group.join().await.unwrap(), [1, 2, 3]);
/// # }
/// ```
#[must_use = "a group that is dropped cancels its tasks"]
pub struct TaskGroup<'p, T: Send + 'static, E: Send + 'static> {
    submit: Submit<'p, TaskPool>,
    limit: Option<Arc<GroupLimit>>,
    members: Members<TaskHandle<Ran<T, E>>>,
    /// The one whose result is next, but for a few moves.
    ending: Option<(usize, TaskHandle<Ran<T, E>>)>,
}

impl<T: Send + 'static> Member for TaskHandle<T> {
    const ABORTS: bool = true;

    fn cancel(&self) {
        TaskHandle::cancel(self);
    }

    fn abort(&self) -> Option<Abort> {
        Some(self.abort_if_started())
    }
}

impl TaskPool {
    /// A group of fallible tasks.
    pub fn group<T: Send + 'static, E: Send + 'static>(&self) -> TaskGroup<'_, T, E> {
        Submit::new(self).group()
    }
}

impl<'p> Submit<'p, TaskPool> {
    /// A group of fallible tasks with these wishes.
    pub fn group<T: Send + 'static, E: Send + 'static>(self) -> TaskGroup<'p, T, E> {
        TaskGroup {
            submit: self,
            limit: None,
            members: Members::new(),
            ending: None,
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> TaskGroup<'_, T, E> {
    /// An error does not stop the others, of those that are submitted from now on.
    pub fn keep_going(mut self) -> Self {
        self.members.keep_going();
        self
    }

    /// Runs at most `limit` tasks of the group at once, of those that are submitted from now on. The others wait in the queue, and let the
    /// tasks behind them pass. A task keeps its place in the group until it ends, also while it waits for another task.
    ///
    /// **Deadlock**: a task of the group that waits for another task of the group may wait for its own place.
    ///
    /// # Errors
    /// [`PoolError::GroupLimit`]: a limit of 0.
    ///
    /// # Fairness
    /// Tasks of the group start in the order of submission. A task that gets a place is the first of its priority.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// # use tollgate::pool::TaskPool;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = TaskPool::builder(4).build()?;
    /// let connections = Arc::new(AtomicUsize::new(0));
    /// let mut group = pool.group::<_, ()>().limit(2)?;
    /// for _ in 0..100 {
    ///     let connections = Arc::clone(&connections);
    ///     let query = async move {
    ///         let others = connections.fetch_add(1, Ordering::SeqCst);
    ///         tokio::task::yield_now().await;
    ///         connections.fetch_sub(1, Ordering::SeqCst);
    ///         Ok(others)
    ///     };
    ///     group.submit(query).await.unwrap();
    /// }
    /// assert!(group.join().await.unwrap().into_iter().all(|others| others < 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn limit(mut self, limit: usize) -> Result<Self, PoolError> {
        if limit == 0 {
            return Err(PoolError::GroupLimit);
        }
        self.limit = Some(GroupLimit::new(limit));
        // Entries have to keep it.
        self.submit.spec.plain = false;
        Ok(self)
    }

    /// For tasks that look whether to go on.
    pub fn stop_flag(&self) -> StopFlag {
        self.members.stop_flag()
    }

    /// Submits a task, and returns its number: they count from zero. A full queue is dealt with as by
    /// [`Submit::submit`].
    ///
    /// # Errors
    /// [`Rejected`], with the task. It leaves a gap in the numbers.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task.
    pub async fn submit<Fut>(&mut self, task: Fut) -> Result<usize, Rejected<Fut>>
    where
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (id, notice) = self.members.announce();
        // Held here as well, to be handed back when the pool does not take it.
        let held = Arc::new(Mutex::new(Some(task)));
        let take = Arc::clone(&held);
        let limit = self.limit.as_ref();
        let submitted = Submit { limit, ..self.submit }.submit(async move {
            let task = take.lock().take()?;
            notice.run_async(task).await
        });
        match submitted.await {
            Ok(handle) => {
                self.members.enter(id, handle);
                Ok(id)
            }
            Err(Rejected { reason, .. }) => {
                let task = held.lock().take().expect("it has not run");
                Err(Rejected { task, reason })
            }
        }
    }

    /// How many results are to come.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// True when no result is to come.
    pub fn is_empty(&self) -> bool {
        self.members.len() == 0
    }

    /// Cancels all that have not ended.
    pub fn cancel(&mut self) {
        self.members.cancel();
    }

    /// The number and the result of the next task that has ended; `Ready(None)` when none is to come.
    #[allow(clippy::type_complexity)]
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Result<T, Failed<E>>)>> {
        while self.members.len() > 0 {
            if let Some((id, handle)) = &mut self.ending {
                let id = *id;
                let Poll::Ready(outcome) = Pin::new(&mut *handle).poll(cx) else {
                    return Poll::Pending;
                };
                self.ending = None;
                return Poll::Ready(Some((id, self.members.ended(outcome))));
            }
            if let Poll::Ready((id, handle)) = self.members.poll_ended(cx.waker()) {
                self.ending = handle.map(|handle| (id, handle));
                continue;
            }
            match self.help(cx) {
                Some((id, outcome)) => return Poll::Ready(Some((id, self.members.ended(outcome)))),
                None => return Poll::Pending,
            }
        }
        Poll::Ready(None)
    }

    /// Awaits the first that has not ended: a task of a pool that waits lends its slot.
    #[allow(clippy::type_complexity)]
    fn help(&mut self, cx: &mut Context<'_>) -> Option<(usize, Result<Ran<T, E>, TaskError>)> {
        while let Some((id, member)) = self.members.first_to_help() {
            if let Some(handle) = member {
                let Poll::Ready(outcome) = Pin::new(&mut *handle).poll(cx) else {
                    return None;
                };
                if matches!(outcome, Err(TaskError::WouldDeadlock | TaskError::TooManyParked)) {
                    handle.cancel();
                }
                *member = None;
                return Some((id, outcome));
            }
            self.members.pass();
        }
        None
    }

    /// Waits for the next task that ends, and returns its number and result; `None` when none is to come.
    ///
    /// # Cancel safety
    /// No result is lost.
    pub async fn next(&mut self) -> Option<(usize, Result<T, Failed<E>>)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits until all have ended, and returns the results in the order of submission.
    ///
    /// # Errors
    /// The first failure, in order of time. The rest was cancelled, and has ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the group, which cancels all that have not ended.
    pub async fn join(mut self) -> Result<Vec<T>, Failed<E>> {
        let mut results = Results::default();
        while let Some((id, result)) = self.next().await {
            results.note(id, result);
        }
        results.all_or_first()
    }

    /// Waits until all have ended, and returns every outcome in the order of submission.
    ///
    /// # Cancel safety
    /// As [`join`](Self::join).
    pub async fn join_all(mut self) -> Vec<Result<T, Failed<E>>> {
        let mut results = Vec::new();
        while let Some(result) = self.next().await {
            results.push(result);
        }
        in_order(results)
    }
}

impl<T: Send + 'static, E: Send + 'static> fmt::Debug for TaskGroup<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.members.fmt(f)
    }
}
