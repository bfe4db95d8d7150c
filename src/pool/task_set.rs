//! The tasks of a group, in both kinds of pools: those that are queued or run, those that have ended, and their
//! results.

use super::error::{GroupError, TaskError};
use super::hooks::wake;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

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

impl fmt::Debug for StopFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StopFlag").field(&self.is_stopped()).finish()
    }
}

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
pub(super) struct Notice {
    shared: Arc<Shared>,
    id: usize,
    /// True while an unwinding would be the task's failure.
    running: bool,
    /// True once the task has returned an error.
    failed: bool,
    stops: bool,
}

/// The result that a task of a group returns to its handle. `None`: the group was stopped before the task started.
pub(super) type Ran<T, E> = Option<Result<T, E>>;

impl Notice {
    pub(super) fn run<T, E>(mut self, task: impl FnOnce() -> Result<T, E>) -> Ran<T, E> {
        if self.shared.is_stopped() {
            return None;
        }
        self.running = true;
        let result = task();
        (self.running, self.failed) = (false, result.is_err());
        Some(result)
    }

    #[cfg(feature = "tokio")]
    pub(super) async fn run_async<T, E>(mut self, task: impl Future<Output = Result<T, E>>) -> Ran<T, E> {
        if self.shared.is_stopped() {
            return None;
        }
        self.running = true;
        let result = task.await;
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
pub(super) struct TaskSet<H: Member> {
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
    pub(super) fn new() -> Self {
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

    pub(super) fn keep_going(&mut self) {
        self.stops = false;
    }

    pub(super) fn stop_flag(&self) -> StopFlag {
        StopFlag(Arc::clone(&self.shared))
    }

    /// Assigns the next task its number, and makes the notice that travels with it.
    pub(super) fn announce(&mut self) -> (usize, Notice) {
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
    pub(super) fn enter(&mut self, id: usize, handle: H) {
        if let Some(abort) = handle.abort()
            && let Some(running) = self.shared.ended.lock().running.get_mut(&id)
        {
            *running = Some(abort);
        }
        // Checked after the abort callback is set: a stop of the group before that has not seen the callback.
        if self.cancelled || (self.shared.is_stopped() && !seeded!("group_enters_blindly")) {
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

    pub(super) fn len(&self) -> usize {
        self.left
    }

    pub(super) fn cancel(&mut self) {
        self.cancelled = true;
        self.shared.stop();
        for handle in self.handles.iter().flatten() {
            handle.cancel();
        }
    }

    /// Returns the next ended task with its handle, `None` if it was never accepted. A task reported here may still
    /// have a few steps to go.
    pub(super) fn poll_ended(&mut self, waker: &Waker) -> Poll<(usize, Option<H>)> {
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

    /// Returns the first task that may still have to start, for a caller that can help. `pass` skips it for good.
    pub(super) fn first_to_help(&mut self) -> Option<(usize, &mut Option<H>)> {
        self.helped = self.helped.max(self.first);
        let id = self.helped;
        self.handles.get_mut(id - self.first).map(|handle| (id, handle))
    }

    /// Returns the first task that has not ended.
    pub(super) fn first(&mut self) -> Option<(usize, &mut Option<H>)> {
        let at = self.handles.iter().position(Option::is_some)?;
        Some((self.first + at, &mut self.handles[at]))
    }

    pub(super) fn pass(&mut self) {
        self.helped += 1;
    }

    /// Settles an accepted task that has ended, and returns its result. The first failure cancels the rest, if the
    /// group stops on failure.
    pub(super) fn ended<T, E>(&mut self, outcome: Result<Ran<T, E>, TaskError>) -> Result<T, GroupError<E>> {
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

impl<H: Member> fmt::Debug for TaskSet<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("left", &self.left)
            .field("stopped", &self.shared.is_stopped())
            .finish_non_exhaustive()
    }
}

/// The values by number, and the first failure.
pub(super) struct Results<T, E> {
    values: Vec<(usize, T)>,
    first: Option<GroupError<E>>,
}

impl<T, E> Default for Results<T, E> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            first: None,
        }
    }
}

impl<T, E> Results<T, E> {
    pub(super) fn note(&mut self, id: usize, result: Result<T, GroupError<E>>) {
        match result {
            Ok(value) => self.values.push((id, value)),
            // A cancelled task is a first failure only if all are cancelled.
            Err(why) => match &self.first {
                Some(first) if !first.is_cancelled() || why.is_cancelled() => {}
                _ => self.first = Some(why),
            },
        }
    }

    pub(super) fn all_or_first(mut self) -> Result<Vec<T>, GroupError<E>> {
        if let Some(first) = self.first {
            return Err(first);
        }
        self.values.sort_by_key(|(id, _)| *id);
        Ok(self.values.into_iter().map(|(_, value)| value).collect())
    }
}

/// Returns every outcome, in the order of submission.
pub(super) fn in_order<R>(mut results: Vec<(usize, R)>) -> Vec<R> {
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
        let mut results = Results::<(), u8>::default();
        for (id, failure) in failures.into_iter().enumerate() {
            results.note(id, Err(failure));
        }
        results.all_or_first().expect_err("a failure")
    }

    /// Given a task that a failure has ended, when its end is reported before the failure, then it counts as cancelled,
    /// and not as the first failure.
    #[test]
    fn a_task_that_a_failure_ended_counts_as_cancelled() {
        let mut set = TaskSet::new();
        let (first, notice) = set.announce();
        set.enter(first, Counting(Rc::default()));
        let (second, _running) = set.announce();
        set.enter(second, Counting(Rc::default()));
        assert_eq!(notice.run(|| Err::<(), _>(7)), Some(Err(7)));
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
            let (id, notice) = set.announce();
            set.enter(id, Counting(Rc::default()));
            assert_eq!(notice.run(|| Ok::<_, ()>(id)), Some(Ok(id)));
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
        assert_eq!(set.first_to_help().map(|(id, _)| id), Some(100));
        drop(notice);
        assert!(matches!(set.poll_ended(Waker::noop()), Poll::Ready((100, Some(_)))));
        let ended = set.ended::<(), ()>(Err(TaskError::Aborted));
        assert!(matches!(ended, Err(GroupError::Task(TaskError::Aborted))));
        assert_eq!((set.handles.len(), set.len()), (0, 0));
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
}
