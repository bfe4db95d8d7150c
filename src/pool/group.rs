//! Tasks that end together: the first error keeps the rest from starting.

use super::entry::Spec;
use super::error::{Failed, Rejected, TaskError};
use super::face::Pool;
use super::handle::Handle;
use super::park::block_on;
use super::submit::Submit;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Whether a [`Group`] has been stopped: for tasks that look, from time to time, whether to go on.
#[derive(Clone)]
pub struct StopFlag(pub(super) Arc<Shared>);

impl StopFlag {
    /// True once a task of the group has failed, or the group was cancelled.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

impl fmt::Debug for StopFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StopFlag").field(&self.is_stopped()).finish()
    }
}

/// What tasks tell the group.
pub(super) struct Shared {
    stopped: AtomicBool,
    ended: Mutex<Ended>,
}

#[derive(Default)]
struct Ended {
    ids: VecDeque<usize>,
    waker: Option<Waker>,
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            stopped: AtomicBool::new(false),
            ended: Mutex::new(Ended::default()),
        })
    }

    pub(super) fn is_stopped(&self) -> bool {
        // Acquire: whoever stops sees what the task did that failed. Pairs with the store in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        // Release: pairs with the load in `is_stopped`.
        self.stopped.store(true, Ordering::Release);
    }

    pub(super) fn pop_or_wait(&self, waker: &Waker) -> Poll<usize> {
        let waker = waker.clone();
        let mut ended = self.ended.lock();
        if let Some(id) = ended.ids.pop_front() {
            return Poll::Ready(id);
        }
        let old = ended.waker.replace(waker);
        drop(ended);
        drop(old);
        Poll::Pending
    }
}

/// Travels with the task, and tells when that has ended, run or not.
pub(super) struct Notice {
    pub(super) shared: Arc<Shared>,
    id: usize,
    /// True while an unwinding would be the task's failure.
    pub(super) running: bool,
    stops: bool,
}

impl Notice {
    pub(super) fn new(shared: &Arc<Shared>, id: usize, stops: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            running: false,
            stops,
        }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if self.running && self.stops {
            self.shared.stop();
        }
        let waker = {
            let mut ended = self.shared.ended.lock();
            ended.ids.push_back(self.id);
            ended.waker.take()
        };
        super::cell::wake(waker);
    }
}

/// Fallible tasks of one pool that end together. The first that fails keeps those from running that have not started;
/// those that run are told by the [`StopFlag`], where they look.
///
/// Results come in the order of submission ([`join`](Self::join)) or as they end ([`next`](Self::next)), blocking or
/// async. Where the waiting thread is a worker of the pool it runs tasks of the group meanwhile.
///
/// Dropping a group cancels what has not started, and waits for nobody. Until then it keeps a few words for each task.
///
/// # Cancel safety
/// Every waiting method can be dropped and called again; no result is lost.
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
    submit: Submit<'p, 'j>,
    shared: Arc<Shared>,
    /// By id. None: taken, or never let in.
    handles: Vec<Option<Member<'j, T, E>>>,
    /// How many are to come.
    left: usize,
    /// Those below have started, or ended, or are none of ours.
    helped: usize,
    stops: bool,
}

/// `None`: the group was stopped before the task started.
type Member<'j, T, E> = Handle<'j, Option<Result<T, E>>>;

impl<'j> Pool<'j> {
    /// A group of fallible tasks.
    pub fn group<T: Send, E: Send>(&self) -> Group<'_, 'j, T, E> {
        Submit::new(self, Spec::DEFAULT).group()
    }
}

impl<'p, 'j> Submit<'p, 'j> {
    /// A group of fallible tasks with these wishes.
    pub fn group<T: Send, E: Send>(self) -> Group<'p, 'j, T, E> {
        Group {
            submit: self,
            shared: Shared::new(),
            handles: Vec::new(),
            left: 0,
            helped: 0,
            stops: true,
        }
    }
}

impl<'j, T: Send, E: Send> Group<'_, 'j, T, E> {
    /// An error does not stop the others, of those that are submitted from now on.
    pub fn keep_going(mut self) -> Self {
        self.stops = false;
        self
    }

    /// For tasks that look whether to go on.
    pub fn stop_flag(&self) -> StopFlag {
        StopFlag(Arc::clone(&self.shared))
    }

    /// Submits a task, and returns its number: they count from zero. A full queue is dealt with as by
    /// [`Submit::submit`].
    ///
    /// # Errors
    /// [`Rejected`], with the task. It leaves a gap in the numbers.
    pub fn submit<F>(&mut self, task: F) -> Result<usize, Rejected<F>>
    where
        F: FnOnce() -> Result<T, E> + Send + 'j,
        T: 'j,
        E: 'j,
    {
        let id = self.handles.len();
        // Held here as well, to be handed back when the pool does not take it.
        let held = Arc::new(Mutex::new(Some(task)));
        let mut notice = Notice::new(&self.shared, id, self.stops);
        let take = Arc::clone(&held);
        let submitted = self.submit.submit(move || {
            let task = take.lock().take()?;
            if notice.shared.is_stopped() {
                return None;
            }
            notice.running = true;
            let result = task();
            notice.running = result.is_err();
            drop(notice);
            Some(result)
        });
        match submitted {
            Ok(handle) => {
                self.handles.push(Some(handle));
                self.left += 1;
                Ok(id)
            }
            Err(Rejected { task: wrapper, reason }) => {
                self.handles.push(None);
                let task = held.lock().take().expect("it has not run");
                drop(wrapper);
                Err(Rejected { task, reason })
            }
        }
    }

    /// How many results are to come.
    pub fn len(&self) -> usize {
        self.left
    }

    /// True when no result is to come.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Cancels what has not started.
    pub fn cancel(&mut self) {
        self.shared.stop();
        for handle in self.handles.iter().flatten() {
            handle.cancel();
        }
    }

    /// The number and the result of the next task that has ended; `Ready(None)` when none is to come.
    #[allow(clippy::type_complexity)]
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Result<T, Failed<E>>)>> {
        loop {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            let Poll::Ready(id) = self.shared.pop_or_wait(cx.waker()) else {
                if self.help() {
                    continue;
                }
                return Poll::Pending;
            };
            let Some(handle) = self.handles.get_mut(id).and_then(Option::take) else {
                continue;
            };
            self.left -= 1;
            // It has ended but for a few moves.
            let result = match handle.join() {
                Ok(Some(Ok(value))) => Ok(value),
                Ok(Some(Err(error))) => Err(Failed::Error(error)),
                Ok(None) => Err(Failed::Task(TaskError::Cancelled)),
                Err(why) => Err(Failed::Task(why)),
            };
            if result.is_err() && self.stops {
                self.cancel();
            }
            return Poll::Ready(Some((id, result)));
        }
    }

    /// Runs one task of the group here, if this thread is a worker and there is one left.
    fn help(&mut self) -> bool {
        while let Some(member) = self.handles.get(self.helped) {
            let helped = member.as_ref().is_some_and(Handle::help);
            let waits = member.as_ref().is_some_and(Handle::is_queued);
            if helped {
                return true;
            }
            if waits {
                return false;
            }
            self.helped += 1;
        }
        false
    }

    /// Waits for the next task that ends, and returns its number and result; `None` when none is to come.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<(usize, Result<T, Failed<E>>)> {
        block_on(None, |waker| self.poll_next(&mut Context::from_waker(waker))).flatten()
    }

    /// [`next`](Self::next) without blocking the thread.
    pub async fn next_async(&mut self) -> Option<(usize, Result<T, Failed<E>>)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits until all have ended, and returns the results in the order of submission.
    ///
    /// # Errors
    /// The first failure, in order of time. Those that had not started were cancelled.
    pub fn join(mut self) -> Result<Vec<T>, Failed<E>> {
        let mut results = Results::default();
        while let Some((id, result)) = self.next() {
            results.note(id, result);
        }
        results.all_or_first()
    }

    /// [`join`](Self::join) without blocking the thread.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn join_async(mut self) -> Result<Vec<T>, Failed<E>> {
        let mut results = Results::default();
        while let Some((id, result)) = self.next_async().await {
            results.note(id, result);
        }
        results.all_or_first()
    }

    /// Waits until all have ended, and returns every outcome in the order of submission.
    pub fn join_all(mut self) -> Vec<Result<T, Failed<E>>> {
        let mut results: Vec<_> = std::iter::from_fn(|| self.next()).collect();
        results.sort_by_key(|(id, _)| *id);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

impl<T: Send, E: Send> Drop for Group<'_, '_, T, E> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.cancel();
        }
    }
}

impl<T: Send, E: Send> fmt::Debug for Group<'_, '_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("left", &self.left)
            .field("stopped", &self.shared.is_stopped())
            .finish_non_exhaustive()
    }
}

/// What has come, by number, and the first failure.
pub(super) struct Results<T, E> {
    values: Vec<(usize, T)>,
    first: Option<Failed<E>>,
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
    pub(super) fn note(&mut self, id: usize, result: Result<T, Failed<E>>) {
        match result {
            Ok(value) => self.values.push((id, value)),
            // A task that was kept from running is nobody's first failure.
            Err(why) => match &self.first {
                Some(first) if !first.is_cancelled() || why.is_cancelled() => {}
                _ => self.first = Some(why),
            },
        }
    }

    pub(super) fn all_or_first(mut self) -> Result<Vec<T>, Failed<E>> {
        if let Some(first) = self.first {
            return Err(first);
        }
        self.values.sort_by_key(|(id, _)| *id);
        Ok(self.values.into_iter().map(|(_, value)| value).collect())
    }
}
