//! Groups of fallible tasks: the first error cancels the rest.

use super::cell::{Await as _, Queued as _};
use super::common::Pool;
use super::engine::group_limit::GroupLimit;
use super::engine::scheduler::PoolKind;
use super::error::{GroupError, PoolError, SubmitError, TaskError};
use super::handle::Handle;
use super::park::{block_on, run_blocking};
use super::task_set::{Ran, Results, StopFlag, TaskSet, in_order};
#[cfg(feature = "tokio")]
use super::tasks::Tasks;
use super::threads::kind::Threads;
use crate::sync::shim::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Runs fallible tasks of one pool that end together. The first failure cancels the rest: tasks that have not started do not start, and take
/// no token of the pool's policy. The futures of running async tasks are dropped. Both hold even if no caller polls the group. Running
/// closures can poll the [`StopFlag`].
///
/// Returns results in the order of submission (`join`) or as tasks end (`next`). A task of a pool that waits for a group lends its slot,
/// or runs closures of the group meanwhile.
///
/// Dropping a group cancels its tasks, and does not wait.
///
/// **Memory**: a group keeps a few words for each task, beginning with the first task whose result it has not returned.
///
/// # Cancel safety
/// The future of `next` can be dropped and called again; no result is lost. Dropping the future of `join` drops the group.
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
/// Of async tasks:
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
pub struct Group<K: PoolKind, T, E> {
    pool: Pool<K>,
    set: TaskSet<Member<K, T, E>>,
    /// The task whose result is next, and ends within a few instructions.
    ending: Option<(usize, Member<K, T, E>)>,
}

/// The handle of a task of a group.
type Member<K, T, E> = Handle<K, Ran<T, E>>;

/// The number of a task and its outcome.
type Next<T, E> = (usize, Result<T, GroupError<E>>);

impl<K: PoolKind> Pool<K> {
    /// Creates a group of fallible tasks.
    pub fn group<T, E>(&self) -> Group<K, T, E> {
        let set = TaskSet::new();
        let is_gated = self.core().settings.admission.is_gated();
        let stop = is_gated.then(|| set.stop_flag());
        Group {
            pool: self.with(|options| options.stop = stop),
            set,
            ending: None,
        }
    }
}

impl<K: PoolKind, T, E> Group<K, T, E> {
    /// Keeps an error of a task submitted from now on from cancelling other tasks.
    ///
    /// ```
    /// # use tollgate::WorkerPool;
    /// let pool = WorkerPool::builder().workers(1).build()?;
    /// let mut group = pool.group().keep_going();
    /// for word in ["1", "two", "3"] {
    ///     group.submit(move || word.parse::<i32>())?;
    /// }
    /// let (first, result) = group.next().expect("three were submitted");
    /// assert!(result.is_ok() == (first != 1));
    /// let rest = group.join_all();
    /// assert_eq!(rest.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_going(mut self) -> Self {
        self.set.keep_going();
        self
    }

    /// Runs at most `limit` tasks of the group at once, of those submitted from now on. The others wait in the queue, and the
    /// tasks behind them overtake them. A task counts against the limit until it ends, even while it waits for another task.
    /// The limit does not bind a task that the pool has returned as [`Unstarted`](super::Unstarted).
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
        self.pool = self.pool.with(|options| options.limit = Some(GroupLimit::new(limit)));
        Ok(self)
    }

    /// Returns a flag by which tasks see that they should stop.
    pub fn stop_flag(&self) -> StopFlag {
        self.set.stop_flag()
    }

    /// Returns the number of outstanding results.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Returns true when no result is outstanding.
    pub fn is_empty(&self) -> bool {
        self.set.len() == 0
    }

    /// Cancels the tasks that have not started, and the futures that have not ended.
    ///
    /// ```
    /// # use tollgate::WorkerPool;
    /// let pool = WorkerPool::builder().workers(1).build()?;
    /// let mut group = pool.group::<u32, std::io::Error>();
    /// let stop = group.stop_flag();
    /// group.cancel();
    /// assert!(stop.is_stopped());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&mut self) {
        self.set.cancel();
    }

    /// Polls for the next task that has ended, and returns its number and result; `Ready(None)` if none is outstanding.
    #[allow(clippy::type_complexity)]
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Result<T, GroupError<E>>)>> {
        let waker = cx.waker();
        while self.set.len() > 0 {
            if let Some((id, handle)) = &mut self.ending {
                // On a thread, the wait is too short to lend the slot.
                let polled = match K::THREADS {
                    true => handle.task.poll_result(waker),
                    false => handle.poll_join(waker),
                };
                let (id, Poll::Ready(outcome)) = (*id, polled) else {
                    return Poll::Pending;
                };
                self.ending = None;
                if K::THREADS
                    && let Some((_, Some(first))) = self.set.first()
                {
                    first.leave();
                }
                return Poll::Ready(Some((id, self.set.ended(outcome))));
            }
            match self.set.poll_ended(waker) {
                Poll::Ready((id, handle)) => self.ending = handle.map(|handle| (id, handle)),
                Poll::Pending => match self.help(waker) {
                    Poll::Ready(Some((id, outcome))) => return Poll::Ready(Some((id, self.set.ended(outcome)))),
                    Poll::Ready(None) => {}
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
        Poll::Ready(None)
    }

    /// Runs one task of the group inline, or waits for it. A task of a pool lends its slot while it waits. `Ready(None)`: one more task
    /// may have ended.
    #[allow(clippy::type_complexity)]
    fn help(&mut self, waker: &Waker) -> Poll<Option<(usize, Result<Ran<T, E>, TaskError>)>> {
        while let Some((_, member)) = self.set.first_to_help() {
            if let Some(handle) = member {
                if K::help(handle) {
                    return Poll::Ready(None);
                }
                if handle.task.is_queued() {
                    break;
                }
            }
            self.set.pass();
        }
        let Some((id, member)) = self.set.first() else {
            return Poll::Pending;
        };
        let Some(Poll::Ready(outcome)) = member.as_mut().map(|handle| handle.poll_join(waker)) else {
            return Poll::Pending;
        };
        let ended = member.take();
        if matches!(outcome, Err(TaskError::WouldDeadlock | TaskError::TooManyParked)) {
            ended.inspect(|handle| _ = handle.cancel());
        }
        Poll::Ready(Some((id, outcome)))
    }

    async fn next_ended(&mut self) -> Option<Next<T, E>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    async fn results(mut self) -> Result<Vec<T>, GroupError<E>> {
        let mut results = Results::default();
        while let Some((id, result)) = self.next_ended().await {
            results.note(id, result);
        }
        results.all_or_first()
    }

    async fn outcomes(mut self) -> Vec<Result<T, GroupError<E>>> {
        let mut outcomes = Vec::new();
        while let Some(outcome) = self.next_ended().await {
            outcomes.push(outcome);
        }
        in_order(outcomes)
    }

    /// Enters a submitted task, or takes it back from the place that it shares with its wrapper.
    fn entered<F, W>(
        &mut self,
        id: usize,
        task: &Mutex<Option<F>>,
        submitted: Result<Member<K, T, E>, SubmitError<W>>,
    ) -> Result<usize, SubmitError<F>> {
        match submitted {
            Ok(handle) => {
                self.set.enter(id, handle);
                Ok(id)
            }
            Err(SubmitError { task: wrapper, reason }) => {
                let task = task.lock().take().expect("the task has not run");
                drop(wrapper);
                Err(SubmitError { task, reason })
            }
        }
    }
}

/// Groups of closures.
impl<'j, T: Send, E: Send> Group<Threads<'j>, T, E> {
    /// Submits a task, and returns its number, counted from zero. Handles a full queue like [`Pool::submit`].
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
        let held = Arc::new(Mutex::new(Some(task)));
        let take = Arc::clone(&held);
        let submitted = self.pool.submit(move || {
            let task = take.lock().take()?;
            notice.run(task)
        });
        self.entered(id, &held, submitted)
    }

    /// Waits for the next task that ends, and returns its number and result; `None` if none is outstanding.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        block_on(None, |waker| self.poll_next(&mut Context::from_waker(waker))).flatten()
    }

    /// Waits like [`next`](Self::next), without blocking the thread.
    pub async fn next_async(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        self.next_ended().await
    }

    /// Waits until all have ended, and returns the results in the order of submission.
    ///
    /// # Errors
    /// The first failure, in order of time. It cancelled the tasks that had not started.
    pub fn join(self) -> Result<Vec<T>, GroupError<E>> {
        run_blocking(self.results())
    }

    /// Waits like [`join`](Self::join), without blocking the thread.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    ///
    /// # Cancel safety
    /// Dropping the future drops the group.
    ///
    /// ```
    /// # use tollgate::WorkerPool;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = WorkerPool::builder().workers(2).build()?;
    /// let mut group = pool.group();
    /// for word in ["1", "2", "3"] {
    ///     group.submit(move || word.parse::<i32>())?;
    /// }
    /// assert!(group.next_async().await.is_some());
    /// assert_eq!(group.join_async().await?.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn join_async(self) -> Result<Vec<T>, GroupError<E>> {
        self.results().await
    }

    /// Waits until all have ended, and returns every outcome in the order of submission.
    pub fn join_all(self) -> Vec<Result<T, GroupError<E>>> {
        run_blocking(self.outcomes())
    }
}

/// Groups of async tasks.
#[cfg(feature = "tokio")]
impl<T: Send + 'static, E: Send + 'static> Group<Tasks, T, E> {
    /// Submits a task, and returns its number, counted from zero. Handles a full queue like [`Pool::submit`].
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
        let held = Arc::new(Mutex::new(Some(task)));
        let take = Arc::clone(&held);
        let submitted = self.pool.submit(async move {
            let task = take.lock().take()?;
            notice.run_async(task).await
        });
        let submitted = submitted.await;
        self.entered(id, &held, submitted)
    }

    /// Waits for the next task that ends, and returns its number and result; `None` if none is outstanding.
    ///
    /// # Cancel safety
    /// No result is lost.
    pub async fn next(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        self.next_ended().await
    }

    /// Waits until all have ended, and returns the results in the order of submission.
    ///
    /// # Errors
    /// The first failure, in order of time. It cancelled the rest, which have ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the group, which cancels the tasks that have not ended.
    pub async fn join(self) -> Result<Vec<T>, GroupError<E>> {
        self.results().await
    }

    /// Waits until all have ended, and returns every outcome in the order of submission.
    ///
    /// # Cancel safety
    /// As [`join`](Self::join).
    pub async fn join_all(self) -> Vec<Result<T, GroupError<E>>> {
        self.outcomes().await
    }
}

impl<K: PoolKind, T, E> fmt::Debug for Group<K, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.set.fmt(f)
    }
}
