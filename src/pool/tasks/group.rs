//! Groups of fallible async tasks: the first error cancels the rest.

use super::handle::TaskHandle;
use super::pool::TaskPool;
use crate::pool::engine::group_limit::GroupLimit;
use crate::pool::error::{GroupError, PoolError, SubmitError, TaskError};
use crate::pool::task_options::SubmitBuilder;
use crate::pool::task_set::{Abort, Member, Ran, Results, StopFlag, TaskSet, in_order};
use crate::sync::shim::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Runs fallible tasks of one [`TaskPool`] that end together. The first failure cancels the rest, even if no caller polls the
/// group: queued tasks do not start, and the futures of running tasks are dropped.
///
/// Dropping a group cancels all its tasks.
///
/// **Memory**: a group keeps a few words for each task, beginning with the first task whose result it has not returned.
///
/// # Cancel safety
/// [`next`](Self::next) can be dropped and called again; no result is lost. Dropping the future of [`join`](Self::join) or
/// [`join_all`](Self::join_all) drops the group.
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
    submit: SubmitBuilder<'p, TaskPool>,
    limit: Option<Arc<GroupLimit>>,
    set: TaskSet<TaskHandle<Ran<T, E>>>,
    /// The task whose result is next, and ends within a few instructions.
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
    /// Creates a group of fallible tasks.
    pub fn group<T: Send + 'static, E: Send + 'static>(&self) -> TaskGroup<'_, T, E> {
        SubmitBuilder::new(self).group()
    }
}

impl<'p> SubmitBuilder<'p, TaskPool> {
    /// Creates a group of fallible tasks with these options.
    pub fn group<T: Send + 'static, E: Send + 'static>(self) -> TaskGroup<'p, T, E> {
        TaskGroup {
            submit: self,
            limit: None,
            set: TaskSet::new(),
            ending: None,
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> TaskGroup<'_, T, E> {
    /// Keeps an error of a task submitted from now on from cancelling other tasks.
    pub fn keep_going(mut self) -> Self {
        self.set.keep_going();
        self
    }

    /// Runs at most `limit` tasks of the group at once, of those submitted from now on. The others wait in the queue, and the
    /// tasks behind them overtake them. A task counts against the limit until it ends, even while it waits for another task.
    ///
    /// **Deadlock**: a task of the group that waits for another task of the group may itself fill the limit that the other needs.
    ///
    /// # Errors
    /// [`PoolError::GroupLimit`]: a limit of 0.
    ///
    /// # Fairness
    /// Tasks of the group start in the order of submission. When the limit admits a waiting task, it is the first of its
    /// priority.
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
        // Entries must keep their membership.
        self.submit.options.plain = false;
        Ok(self)
    }

    /// Returns a flag by which tasks see that they should stop.
    pub fn stop_flag(&self) -> StopFlag {
        self.set.stop_flag()
    }

    /// Submits a task, and returns its number, counted from zero. Handles a full queue like [`SubmitBuilder::submit`].
    ///
    /// # Errors
    /// [`SubmitError`], with the task. Its number is not used again.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task.
    pub async fn submit<Fut>(&mut self, task: Fut) -> Result<usize, SubmitError<Fut>>
    where
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (id, notice) = self.set.announce();
        // Shared, to return the task if the pool does not take it.
        let held = Arc::new(Mutex::new(Some(task)));
        let take = Arc::clone(&held);
        let limit = self.limit.as_ref();
        let submitted = SubmitBuilder { limit, ..self.submit }.submit(async move {
            let task = take.lock().take()?;
            notice.run_async(task).await
        });
        match submitted.await {
            Ok(handle) => {
                self.set.enter(id, handle);
                Ok(id)
            }
            Err(SubmitError { reason, .. }) => {
                let task = held.lock().take().expect("the task has not run");
                Err(SubmitError { task, reason })
            }
        }
    }

    /// Returns the number of outstanding results.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Returns true when no result is outstanding.
    pub fn is_empty(&self) -> bool {
        self.set.len() == 0
    }

    /// Cancels the tasks that have not ended.
    pub fn cancel(&mut self) {
        self.set.cancel();
    }

    /// Polls for the next task that has ended, and returns its number and result; `Ready(None)` if none is outstanding.
    #[allow(clippy::type_complexity)]
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Result<T, GroupError<E>>)>> {
        while self.set.len() > 0 {
            if let Some((id, handle)) = &mut self.ending {
                let id = *id;
                let Poll::Ready(outcome) = Pin::new(&mut *handle).poll(cx) else {
                    return Poll::Pending;
                };
                self.ending = None;
                return Poll::Ready(Some((id, self.set.ended(outcome))));
            }
            if let Poll::Ready((id, handle)) = self.set.poll_ended(cx.waker()) {
                self.ending = handle.map(|handle| (id, handle));
                continue;
            }
            match self.help(cx) {
                Some((id, outcome)) => return Poll::Ready(Some((id, self.set.ended(outcome)))),
                None => return Poll::Pending,
            }
        }
        Poll::Ready(None)
    }

    /// Polls the first task that has not ended. A task of a pool lends its slot while it waits.
    #[allow(clippy::type_complexity)]
    fn help(&mut self, cx: &mut Context<'_>) -> Option<(usize, Result<Ran<T, E>, TaskError>)> {
        while let Some((id, member)) = self.set.first_to_help() {
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
            self.set.pass();
        }
        None
    }

    /// Waits for the next task that ends, and returns its number and result; `None` if none is outstanding.
    ///
    /// # Cancel safety
    /// No result is lost.
    pub async fn next(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits until all have ended, and returns the results in the order of submission.
    ///
    /// # Errors
    /// The first failure, in order of time. It cancelled the rest, which have ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the group, which cancels the tasks that have not ended.
    pub async fn join(mut self) -> Result<Vec<T>, GroupError<E>> {
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
    pub async fn join_all(mut self) -> Vec<Result<T, GroupError<E>>> {
        let mut results = Vec::new();
        while let Some(result) = self.next().await {
            results.push(result);
        }
        in_order(results)
    }
}

impl<T: Send + 'static, E: Send + 'static> fmt::Debug for TaskGroup<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.set.fmt(f)
    }
}
