//! Groups of fallible tasks: the first error cancels the rest.

use super::cell::{Await as _, Queued as _};
use super::common::Pool;
use super::engine::group_limit::GroupLimit;
use super::engine::scheduler::PoolKind;
use super::error::{GroupError, PoolError, SubmitError, TaskError};
use super::handle::Handle;
use super::hooks::{opaque_debug, wake};
#[cfg(feature = "tokio")]
use super::tasks::Tasks;
use super::threads::kind::Threads;
use crate::sync::park::{block_on, run_blocking};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, VecDeque};
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
    set: TaskSet<MemberHandle<K, T, E>>,
    /// The task whose result is next, and ends within a few instructions.
    ending: Option<(usize, MemberHandle<K, T, E>)>,
}

/// The handle of a task of a group.
type MemberHandle<K, T, E> = Handle<K, Ran<T, E>>;

/// The number of a task and its outcome.
type Next<T, E> = (usize, Result<T, GroupError<E>>);

impl<K: PoolKind> Pool<K> {
    /// Creates a group of fallible tasks.
    pub fn group<T, E>(&self) -> Group<K, T, E> {
        let set = TaskSet::new();
        let is_gated = self.core().settings.admission.is_gated();
        let stop = is_gated.then(|| StopFlag(Arc::clone(&set.shared)));
        Group {
            pool: self.with(|options| options.task.stop = stop),
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
        self.set.stops = false;
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
        StopFlag(Arc::clone(&self.set.shared))
    }

    /// Returns the number of outstanding results.
    pub fn outstanding(&self) -> usize {
        self.set.left
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
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Result<T, GroupError<E>>)>> {
        let waker = cx.waker();
        while self.set.left > 0 {
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
                if K::THREADS {
                    if let Some(first) = self.set.handles.iter_mut().flatten().next() {
                        first.wait = None;
                    }
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
        let set = &mut self.set;
        set.helped = set.helped.max(set.first);
        while let Some(member) = set.handles.get(set.helped - set.first) {
            if let Some(handle) = member {
                if K::help(handle) {
                    return Poll::Ready(None);
                }
                if handle.task.is_queued() {
                    break;
                }
            }
            set.helped += 1;
        }
        let Some(at) = set.handles.iter().position(Option::is_some) else {
            return Poll::Pending;
        };
        let member = &mut set.handles[at];
        let Some(Poll::Ready(outcome)) = member.as_mut().map(|handle| handle.poll_join(waker)) else {
            return Poll::Pending;
        };
        let ended = member.take();
        if matches!(outcome, Err(TaskError::WouldDeadlock | TaskError::TooManyParked)) {
            ended.inspect(|handle| _ = handle.cancel());
        }
        Poll::Ready(Some((set.first + at, outcome)))
    }

    async fn next_ended(&mut self) -> Option<Next<T, E>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Returns every outcome, in the order of time.
    async fn outcomes(mut self) -> Vec<Next<T, E>> {
        let mut outcomes = Vec::new();
        while let Some(outcome) = self.next_ended().await {
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Enters a submitted task, or takes it back from the place that it shares with its wrapper.
    fn entered<F, W>(
        &mut self,
        id: usize,
        task: &Mutex<Option<F>>,
        submitted: Result<MemberHandle<K, T, E>, SubmitError<W>>,
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
        let (id, mut notice) = self.set.announce();
        let held = Arc::new(Mutex::new(Some(task)));
        let take = Arc::clone(&held);
        let submitted = self.pool.submit(move || {
            let task = take.lock().take()?;
            notice.begins()?;
            notice.ended(task())
        });
        self.entered(id, &held, submitted)
    }

    /// Waits for the next task that ends, and returns its number and result; `None` if none is outstanding.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        block_on(|waker| self.poll_next(&mut Context::from_waker(waker)))
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
        all_or_first(run_blocking(self.outcomes()))
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
        all_or_first(self.outcomes().await)
    }

    /// Waits until all have ended, and returns every outcome in the order of submission.
    pub fn join_all(self) -> Vec<Result<T, GroupError<E>>> {
        in_order(run_blocking(self.outcomes()))
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
            // A local: it is dropped when the future has ended, and in an unwinding.
            let mut notice = notice;
            let task = take.lock().take()?;
            notice.begins()?;
            notice.ended(task.await)
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
        all_or_first(self.outcomes().await)
    }

    /// Waits until all have ended, and returns every outcome in the order of submission.
    ///
    /// # Cancel safety
    /// As [`join`](Self::join).
    pub async fn join_all(self) -> Vec<Result<T, GroupError<E>>> {
        in_order(self.outcomes().await)
    }
}

opaque_debug!(
    [K: PoolKind, T, E] Group<K, T, E>, "Group", |this|
    left = this.set.left, stopped = this.set.shared.is_stopped()
);

/// Tells a running task whether its group has been stopped. A task may check it from time to time.
///
/// ```
/// # use tollgate::WorkerPool;
/// let pool = WorkerPool::builder().workers(2).build()?;
/// let mut group = pool.group();
/// let stop = group.stop_flag();
/// let search = stop.clone();
/// group.submit(move || {
///     while !search.is_stopped() {
///         // Searches a little further.
/// #       std::thread::yield_now();
///     }
///     Ok(())
/// })?;
/// group.submit(|| Err("the disk is gone"))?;
/// assert_eq!(group.join().unwrap_err().into_error(), Some("the disk is gone"));
/// assert!(stop.is_stopped());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct StopFlag(Arc<Shared>);

impl StopFlag {
    /// Returns true once a task of the group has failed, or the group was cancelled.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

opaque_debug!([] StopFlag, "StopFlag", |this| stopped = this.is_stopped());

/// The state that a group shares with its tasks.
struct Shared {
    stopped: AtomicBool,
    ended: Mutex<Ended>,
}

/// Ends a running task. Has no effect on a task that waits to start, because that checks the flag first.
pub(super) type Abort = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Ended {
    ids: VecDeque<usize>,
    waker: Option<Waker>,
    /// The callbacks that end tasks that have not ended, if running tasks can be ended. `None`: the task has not been
    /// entered yet.
    running: BTreeMap<usize, Option<Abort>>,
}

impl Shared {
    fn is_stopped(&self) -> bool {
        // Acquire: the reader sees the writes of the failed task. Pairs with the store in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    fn stop(&self) {
        // Release: pairs with the load in `is_stopped`.
        self.stopped.store(true, Ordering::Release);
    }
}

/// Travels with a task, and reports its end, with or without a run.
struct Notice {
    shared: Arc<Shared>,
    id: usize,
    /// True while an unwinding would be the task's failure.
    running: bool,
    /// True once the task has returned an error.
    failed: bool,
    stops: bool,
}

/// The result that a task of a group returns to its handle. `None`: the group was stopped before the task started.
type Ran<T, E> = Option<Result<T, E>>;

impl Notice {
    /// Begins the run of the task. Returns `None` if the group was stopped.
    fn begins(&mut self) -> Option<()> {
        self.running = !self.shared.is_stopped();
        self.running.then_some(())
    }

    fn ended<T, E>(mut self, result: Result<T, E>) -> Ran<T, E> {
        (self.running, self.failed) = (false, result.is_err());
        Some(result)
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        // A task that is dropped while it runs has not failed: the dropping code knows the reason.
        let panics = self.running && std::thread::panicking();
        let stops = self.stops && (self.failed || panics);
        let (waker, others) = {
            let mut ended = self.shared.ended.lock();
            ended.running.remove(&self.id);
            ended.ids.push_back(self.id);
            if stops {
                // After the push of its number: this task comes before all that end because of it.
                self.shared.stop();
            }
            let others = stops.then(|| std::mem::take(&mut ended.running));
            (ended.waker.take(), others)
        };
        wake(waker);
        for abort in others.into_iter().flat_map(BTreeMap::into_values).flatten() {
            abort();
        }
    }
}

/// The handle of a task of a group.
pub(super) trait Member {
    /// True if running tasks can be ended.
    const ABORTS: bool;
    fn cancel(&self);
    fn abort(&self) -> Option<Abort>;
}

/// The tasks of a group. Cancels the tasks that have not ended when dropped.
struct TaskSet<H: Member> {
    shared: Arc<Shared>,
    /// The handles by number, from `first` on. `None`: taken, or never accepted.
    handles: VecDeque<Option<H>>,
    first: usize,
    left: usize,
    /// The number below which no task needs help: each has started, has ended, or belongs to other code.
    helped: usize,
    stops: bool,
    /// True once the group has cancelled all its tasks.
    cancelled: bool,
}

impl<H: Member> TaskSet<H> {
    fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                stopped: AtomicBool::new(false),
                ended: Mutex::default(),
            }),
            handles: VecDeque::new(),
            first: 0,
            left: 0,
            helped: 0,
            stops: true,
            cancelled: false,
        }
    }

    /// Assigns the next task its number, and makes the notice that travels with it.
    fn announce(&mut self) -> (usize, Notice) {
        // An empty record in front is final: the caller enters a task before it announces the next one, or never.
        self.forget_the_first();
        let id = self.first + self.handles.len();
        self.handles.push_back(None);
        if H::ABORTS {
            self.shared.ended.lock().running.insert(id, None);
        }
        let notice = Notice {
            shared: Arc::clone(&self.shared),
            id,
            running: false,
            failed: false,
            stops: self.stops,
        };
        (id, notice)
    }

    /// Records the handle of an accepted task. If the group is cancelled, cancels the task.
    fn enter(&mut self, id: usize, handle: H) {
        if let Some(abort) = handle.abort() {
            if let Some(running) = self.shared.ended.lock().running.get_mut(&id) {
                *running = Some(abort);
            }
        }
        // Checked after the abort callback is set: a stop of the group before that has not seen the callback.
        if self.cancelled || self.shared.is_stopped() {
            handle.cancel();
        }
        self.handles[id - self.first] = Some(handle);
        self.left += 1;
    }

    /// Drops the records in front of tasks that are taken or were never accepted.
    fn forget_the_first(&mut self) {
        while let Some(None) = self.handles.front() {
            self.handles.pop_front();
            self.first += 1;
        }
    }

    fn cancel(&mut self) {
        self.cancelled = true;
        self.shared.stop();
        for handle in self.handles.iter().flatten() {
            handle.cancel();
        }
    }

    /// Returns the next ended task with its handle, `None` if it was never accepted. A task reported here may still
    /// have a few steps to go.
    fn poll_ended(&mut self, waker: &Waker) -> Poll<(usize, Option<H>)> {
        let waker = waker.clone();
        let mut ended = self.shared.ended.lock();
        if let Some(id) = ended.ids.pop_front() {
            drop(ended);
            let at = id.checked_sub(self.first);
            let handle = at.and_then(|at| self.handles.get_mut(at)?.take());
            return Poll::Ready((id, handle));
        }
        let old = ended.waker.replace(waker);
        drop(ended);
        drop(old);
        Poll::Pending
    }

    /// Settles an accepted task that has ended, and returns its result. The first failure cancels the rest, if the
    /// group stops on failure.
    fn ended<T, E>(&mut self, outcome: Result<Ran<T, E>, TaskError>) -> Result<T, GroupError<E>> {
        self.left -= 1;
        self.forget_the_first();
        let result = match outcome {
            Ok(Some(Ok(value))) => return Ok(value),
            Ok(Some(Err(error))) => GroupError::Error(error),
            Ok(None) => GroupError::Task(TaskError::Cancelled),
            // The group has dropped the task, not its pool.
            Err(TaskError::Aborted) if self.cancelled || self.shared.is_stopped() => {
                GroupError::Task(TaskError::Cancelled)
            }
            Err(why) => GroupError::Task(why),
        };
        // Only once: most later failures are themselves cancellations.
        if self.stops && !self.cancelled {
            self.cancel();
        }
        Err(result)
    }
}

impl<H: Member> Drop for TaskSet<H> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.cancel();
        }
    }
}

/// Returns all values in the order of submission, or the first failure in the order of time. A cancelled task is a first
/// failure only if all failures are cancelled tasks.
fn all_or_first<T, E>(outcomes: Vec<Next<T, E>>) -> Result<Vec<T>, GroupError<E>> {
    let (mut values, mut first) = (Vec::new(), None::<GroupError<E>>);
    for (id, outcome) in outcomes {
        match outcome {
            Ok(value) => values.push((id, value)),
            Err(why) => match &first {
                Some(first) if !first.is_cancelled() || why.is_cancelled() => {}
                _ => first = Some(why),
            },
        }
    }
    match first {
        Some(first) => {
            // Before the result is made: a drop that panics then drops the failure as well (rust-lang/rust#47949).
            drop(values);
            Err(first)
        }
        None => Ok(in_order(values)),
    }
}

/// Returns the results in the order of submission.
fn in_order<R>(mut results: Vec<(usize, R)>) -> Vec<R> {
    results.sort_by_key(|(id, _)| *id);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Counts the cancels of its tasks.
    struct Counting(Rc<Cell<usize>>);

    impl Member for Counting {
        const ABORTS: bool = true;

        fn cancel(&self) {
            self.0.set(self.0.get() + 1);
        }

        fn abort(&self) -> Option<Abort> {
            Some(Box::new(|| ()))
        }
    }

    /// Given a group of a thousand tasks that all fail, then each is cancelled once, and a later task at once.
    #[test]
    fn each_task_is_cancelled_once_when_many_fail() {
        let (count, mut set) = (Rc::new(Cell::new(0)), TaskSet::new());
        let enter = |set: &mut TaskSet<_>| {
            let (id, _notice) = set.announce();
            set.enter(id, Counting(Rc::clone(&count)));
        };
        for _ in 0..1_000 {
            enter(&mut set);
        }
        for _ in 0..1_000 {
            assert!(set.ended::<(), u8>(Err(TaskError::Cancelled)).is_err());
        }
        assert_eq!(count.get(), 1_000);
        enter(&mut set);
        assert_eq!(count.get(), 1_001);
        assert!(set.ended::<(), u8>(Ok(None)).is_err());
    }

    /// Returns the failure with which a group ends, of these failures.
    fn first_of(failures: [GroupError<u8>; 3]) -> GroupError<u8> {
        let outcomes = failures.into_iter().map(Err::<(), _>).enumerate();
        all_or_first(outcomes.collect()).expect_err("a failure")
    }

    /// Given a task that a failure has ended, when its end is reported before the failure, then it counts as cancelled,
    /// and not as the first failure.
    #[test]
    fn a_task_that_a_failure_ended_counts_as_cancelled() {
        let mut set = TaskSet::new();
        let (first, mut notice) = set.announce();
        set.enter(first, Counting(Rc::default()));
        let (second, _running) = set.announce();
        set.enter(second, Counting(Rc::default()));
        assert!(notice.begins().is_some());
        assert_eq!(notice.ended(Err::<(), _>(7)), Some(Err(7)));
        let ended = set.ended::<(), u8>(Err(TaskError::Aborted));
        assert!(matches!(ended, Err(GroupError::Task(TaskError::Cancelled))));
        assert_eq!(set.ended::<(), _>(Ok(Some(Err(7)))).unwrap_err().into_error(), Some(7));
    }

    /// Given one task that does not end, when later tasks start and end, then the group keeps records from the first
    /// unended task on. When all tasks have ended, it keeps none.
    #[test]
    fn a_group_drops_the_records_of_ended_tasks_in_front() {
        let mut set = TaskSet::new();
        let pass = |set: &mut TaskSet<_>| {
            let (id, mut notice) = set.announce();
            set.enter(id, Counting(Rc::default()));
            assert!(notice.begins().is_some());
            assert_eq!(notice.ended(Ok::<_, ()>(id)), Some(Ok(id)));
            let ended = set.poll_ended(Waker::noop());
            assert!(matches!(ended, Poll::Ready((ended, Some(_))) if ended == id));
            assert_eq!(set.ended(Ok(Some(Ok::<_, ()>(id)))).ok(), Some(id));
            (set.handles.len(), set.shared.ended.lock().running.len())
        };
        for _ in 0..100 {
            assert_eq!(pass(&mut set), (0, 0));
        }
        let (first, notice) = set.announce();
        set.enter(first, Counting(Rc::default()));
        assert_eq!((first, pass(&mut set)), (100, (2, 1)));
        assert_eq!(set.first, 100);
        drop(notice);
        assert!(matches!(set.poll_ended(Waker::noop()), Poll::Ready((100, Some(_)))));
        let ended = set.ended::<(), ()>(Err(TaskError::Aborted));
        assert!(matches!(ended, Err(GroupError::Task(TaskError::Aborted))));
        assert_eq!((set.handles.len(), set.left), (0, 0));
        // A task that was never accepted.
        drop(set.announce());
        assert!(matches!(set.poll_ended(Waker::noop()), Poll::Ready((102, None))));
        let (next, _notice) = set.announce();
        assert_eq!((next, set.handles.len()), (103, 1));
    }

    #[test]
    fn the_first_failure_is_of_a_task_that_was_not_cancelled() {
        let cancelled = || GroupError::Task(TaskError::Cancelled);
        assert_eq!(
            first_of([cancelled(), GroupError::Error(1), cancelled()]).into_error(),
            Some(1)
        );
        assert_eq!(
            first_of([GroupError::Error(1), GroupError::Error(2), cancelled()]).into_error(),
            Some(1)
        );
        let aborted = first_of([cancelled(), GroupError::Task(TaskError::Aborted), GroupError::Error(2)]);
        assert!(matches!(aborted, GroupError::Task(TaskError::Aborted)));
        assert!(first_of([cancelled(), cancelled(), cancelled()]).is_cancelled());
        assert!(!GroupError::Error(1).is_cancelled());
    }

    #[test]
    fn a_group_stops_its_tasks_when_it_is_dropped_with_some_outstanding() {
        for ends in [true, false] {
            let mut set = TaskSet::new();
            let (id, _notice) = set.announce();
            set.enter(id, Counting(Rc::default()));
            if ends {
                assert!(set.ended::<_, ()>(Ok(Some(Ok(())))).is_ok());
            }
            let shared = Arc::clone(&set.shared);
            drop(set);
            assert_eq!(shared.is_stopped(), !ends);
        }
    }

    #[test]
    fn the_outstanding_results_are_counted() {
        let pool = crate::WorkerPool::builder().workers(1).build().unwrap();
        let mut group = pool.group::<_, ()>();
        assert_eq!(group.outstanding(), 0);
        group.submit(|| Ok(1)).unwrap();
        assert_eq!(group.outstanding(), 1);
        assert!(matches!(group.next(), Some((0, Ok(1)))));
        assert_eq!(group.outstanding(), 0);
    }
}
