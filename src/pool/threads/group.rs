//! Groups of fallible tasks: the first error keeps the rest from starting.

use super::handle::ScopedJoinHandle;
use super::pool::Pool;
use crate::pool::engine::group_limit::GroupLimit;
use crate::pool::error::{GroupError, PoolError, SubmitError, TaskError};
use crate::pool::park::block_on;
use crate::pool::task_options::SubmitBuilder;
use crate::pool::task_set::{Abort, Member, Ran, Results, StopFlag, TaskSet, in_order};
use crate::sync::shim::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Runs fallible tasks of one pool that end together. The first failure cancels the tasks that have not started. Running
/// tasks can poll the [`StopFlag`].
///
/// Returns results in the order of submission ([`join`](Self::join)) or as tasks end ([`next`](Self::next)), blocking or
/// async. A task of a pool that waits for a group runs tasks of the group meanwhile, or lends its slot.
///
/// Dropping a group cancels the tasks that have not started, and does not wait.
///
/// **Memory**: a group keeps a few words for each task, beginning with the first task whose result it has not returned.
///
/// # Cancel safety
/// [`next_async`](Self::next_async) can be dropped and called again; no result is lost. Dropping the future of
/// [`join_async`](Self::join_async) drops the group.
///
/// ```
/// # use tollgate::WorkerPool;
/// let pool = WorkerPool::builder().workers(2).build()?;
/// let mut group = pool.group();
/// for word in ["1", "2", "3"] {
///     group.submit(move || word.parse::<i32>())?;
/// }
/// assert_eq!(group.join()?, [1, 2, 3]);
///
/// let mut group = pool.group();
/// for word in ["1", "two", "3"] {
///     group.submit(move || word.parse::<i32>())?;
/// }
/// assert!(group.join().unwrap_err().into_error().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a group that is dropped cancels its tasks"]
pub struct Group<'p, 'j, T: Send, E: Send> {
    submit: SubmitBuilder<'p, Pool<'j>>,
    limit: Option<Arc<GroupLimit>>,
    set: TaskSet<ScopedJoinHandle<'j, Ran<T, E>>>,
}

enum Help<T, E> {
    /// One more task may have ended.
    Again,
    Ended(usize, Result<Ran<T, E>, TaskError>),
    Wait,
}

impl<T: Send> Member for ScopedJoinHandle<'_, T> {
    const ABORTS: bool = false;

    fn cancel(&self) {
        ScopedJoinHandle::cancel(self);
    }

    fn abort(&self) -> Option<Abort> {
        None
    }
}

impl<'j> Pool<'j> {
    /// Creates a group of fallible tasks.
    pub fn group<T: Send, E: Send>(&self) -> Group<'_, 'j, T, E> {
        SubmitBuilder::new(self).group()
    }
}

impl<'p, 'j> SubmitBuilder<'p, Pool<'j>> {
    /// Creates a group of fallible tasks with these options.
    pub fn group<T: Send, E: Send>(self) -> Group<'p, 'j, T, E> {
        Group {
            submit: self,
            limit: None,
            set: TaskSet::new(),
        }
    }
}

impl<'j, T: Send, E: Send> Group<'_, 'j, T, E> {
    /// Keeps an error of a task submitted from now on from cancelling other tasks.
    pub fn keep_going(mut self) -> Self {
        self.set.keep_going();
        self
    }

    /// Runs at most `limit` tasks of the group at once, of those submitted from now on. The others wait in the queue, and the
    /// tasks behind them overtake them. A task counts against the limit until it ends, even while it waits for another task.
    /// The limit does not bind a task that the pool has returned as [`Unstarted`](crate::pool::Unstarted).
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
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// # use tollgate::WorkerPool;
    /// let pool = WorkerPool::builder().workers(4).build()?;
    /// static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    /// let mut group = pool.group::<_, ()>().limit(2)?;
    /// for _ in 0..100 {
    ///     group.submit(|| {
    ///         let others = CONNECTIONS.fetch_add(1, Ordering::SeqCst);
    ///         CONNECTIONS.fetch_sub(1, Ordering::SeqCst);
    ///         Ok(others)
    ///     })?;
    /// }
    /// assert!(group.join().unwrap().into_iter().all(|others| others < 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
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
    pub fn submit<F>(&mut self, task: F) -> Result<usize, SubmitError<F>>
    where
        F: FnOnce() -> Result<T, E> + Send + 'j,
        T: 'j,
        E: 'j,
    {
        let (id, notice) = self.set.announce();
        // Shared, to return the task if the pool does not take it.
        let held = Arc::new(Mutex::new(Some(task)));
        let take = Arc::clone(&held);
        let limit = self.limit.as_ref();
        let submitted = SubmitBuilder { limit, ..self.submit }.submit(move || {
            let task = take.lock().take()?;
            notice.run(task)
        });
        match submitted {
            Ok(handle) => {
                self.set.enter(id, handle);
                Ok(id)
            }
            Err(SubmitError { task: wrapper, reason }) => {
                let task = held.lock().take().expect("the task has not run");
                drop(wrapper);
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

    /// Cancels the tasks that have not started.
    pub fn cancel(&mut self) {
        self.set.cancel();
    }

    /// Polls for the next task that has ended, and returns its number and result; `Ready(None)` if none is outstanding.
    #[allow(clippy::type_complexity)]
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Result<T, GroupError<E>>)>> {
        while self.set.len() > 0 {
            match self.set.poll_ended(cx.waker()) {
                // It ends within a few instructions.
                Poll::Ready((id, Some(handle))) => {
                    if let Some((_, Some(first))) = self.set.first() {
                        first.leave();
                    }
                    return Poll::Ready(Some((id, self.set.ended(handle.take_result()))));
                }
                Poll::Ready((_, None)) => {}
                Poll::Pending => match self.help(cx.waker()) {
                    Help::Again => {}
                    Help::Ended(id, outcome) => return Poll::Ready(Some((id, self.set.ended(outcome)))),
                    Help::Wait => return Poll::Pending,
                },
            }
        }
        Poll::Ready(None)
    }

    /// Runs one task of the group inline, or waits for it. A task of a pool lends its slot while it waits.
    fn help(&mut self, waker: &Waker) -> Help<T, E> {
        while let Some((_, member)) = self.set.first_to_help() {
            if let Some(handle) = member {
                if handle.help() {
                    return Help::Again;
                }
                if handle.is_queued() {
                    break;
                }
            }
            self.set.pass();
        }
        let Some((id, member)) = self.set.first() else {
            return Help::Wait;
        };
        let Some(Poll::Ready(outcome)) = member.as_mut().map(|handle| handle.poll_join(waker)) else {
            return Help::Wait;
        };
        let ended = member.take();
        if matches!(outcome, Err(TaskError::WouldDeadlock | TaskError::TooManyParked)) {
            ended.inspect(|handle| _ = handle.cancel());
        }
        Help::Ended(id, outcome)
    }

    /// Waits for the next task that ends, and returns its number and result; `None` if none is outstanding.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        block_on(None, |waker| self.poll_next(&mut Context::from_waker(waker))).flatten()
    }

    /// Waits like [`next`](Self::next), without blocking the thread.
    pub async fn next_async(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits until all have ended, and returns the results in the order of submission.
    ///
    /// # Errors
    /// The first failure, in order of time. It cancelled the tasks that had not started.
    pub fn join(mut self) -> Result<Vec<T>, GroupError<E>> {
        let mut results = Results::default();
        while let Some((id, result)) = self.next() {
            results.note(id, result);
        }
        results.all_or_first()
    }

    /// Waits like [`join`](Self::join), without blocking the thread.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    ///
    /// # Cancel safety
    /// Dropping the future drops the group.
    pub async fn join_async(mut self) -> Result<Vec<T>, GroupError<E>> {
        let mut results = Results::default();
        while let Some((id, result)) = self.next_async().await {
            results.note(id, result);
        }
        results.all_or_first()
    }

    /// Waits until all have ended, and returns every outcome in the order of submission.
    pub fn join_all(mut self) -> Vec<Result<T, GroupError<E>>> {
        in_order(std::iter::from_fn(|| self.next()).collect())
    }
}

impl<T: Send, E: Send> fmt::Debug for Group<'_, '_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.set.fmt(f)
    }
}
