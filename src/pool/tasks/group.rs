//! Async tasks that end together.

use super::face::TaskPool;
use super::handle::AsyncHandle;
use super::submit::SubmitTask;
use crate::pool::error::{Failed, Rejected, TaskError};
use crate::pool::group::{Notice, Results, Shared, StopFlag};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// Fallible tasks of one [`TaskPool`] that end together. The first that fails cancels the rest: those that wait do not
/// start, and those that run are dropped.
///
/// Dropping a group cancels all of it.
///
/// # Cancel safety
/// Every waiting method can be dropped and called again; no result is lost.
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
    submit: SubmitTask<'p>,
    shared: Arc<Shared>,
    /// By id. None: taken, or never let in.
    handles: Vec<Option<Member<T, E>>>,
    left: usize,
    /// Those below have started, or ended, or are none of ours.
    helped: usize,
    /// The one whose result is next, but for a few moves.
    ending: Option<(usize, Member<T, E>)>,
    stops: bool,
}

/// `None`: the group was stopped before the task started.
type Member<T, E> = AsyncHandle<Option<Result<T, E>>>;

impl TaskPool {
    /// A group of fallible tasks.
    pub fn group<T: Send + 'static, E: Send + 'static>(&self) -> TaskGroup<'_, T, E> {
        self.plain().group()
    }
}

impl<'p> SubmitTask<'p> {
    /// A group of fallible tasks with these wishes.
    pub fn group<T: Send + 'static, E: Send + 'static>(self) -> TaskGroup<'p, T, E> {
        TaskGroup {
            submit: self,
            shared: Shared::new(),
            handles: Vec::new(),
            left: 0,
            helped: 0,
            ending: None,
            stops: true,
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> TaskGroup<'_, T, E> {
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
    /// [`SubmitTask::submit`].
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
        let id = self.handles.len();
        self.handles.push(None);
        // Held here as well, to be handed back when the pool does not take it.
        let held = Arc::new(Mutex::new(Some(task)));
        let mut notice = Notice::new(&self.shared, id, self.stops);
        let take = Arc::clone(&held);
        let submitted = self.submit.submit(async move {
            let task = take.lock().unwrap_or_else(PoisonError::into_inner).take()?;
            if notice.shared.is_stopped() {
                return None;
            }
            notice.running = true;
            let result = task.await;
            notice.running = result.is_err();
            drop(notice);
            Some(result)
        });
        match submitted.await {
            Ok(handle) => {
                self.handles[id] = Some(handle);
                self.left += 1;
                Ok(id)
            }
            Err(Rejected { reason, .. }) => {
                let task = held.lock().unwrap_or_else(PoisonError::into_inner).take();
                let task = task.expect("it has not run");
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

    /// Cancels all that have not ended.
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
            if let Some((id, handle)) = &mut self.ending {
                let id = *id;
                let Poll::Ready(outcome) = Pin::new(handle).poll(cx) else {
                    return Poll::Pending;
                };
                self.ending = None;
                return Poll::Ready(Some((id, self.note(outcome))));
            }
            if let Poll::Ready(id) = self.shared.pop_or_wait(cx.waker()) {
                let handle = self.handles.get_mut(id).and_then(Option::take);
                self.ending = handle.map(|handle| (id, handle));
                continue;
            }
            match self.help(cx) {
                Some((id, outcome)) => return Poll::Ready(Some((id, self.note(outcome)))),
                None => return Poll::Pending,
            }
        }
    }

    /// Polls the first that has not started, or that is polled here: of use where a task of the pool waits.
    #[allow(clippy::type_complexity)]
    fn help(&mut self, cx: &mut Context<'_>) -> Option<(usize, Result<Option<Result<T, E>>, TaskError>)> {
        while let Some(member) = self.handles.get_mut(self.helped) {
            if let Some(handle) = member
                && handle.can_help()
            {
                let Poll::Ready(outcome) = Pin::new(handle).poll(cx) else {
                    return None;
                };
                *member = None;
                return Some((self.helped, outcome));
            }
            self.helped += 1;
        }
        None
    }

    fn note(&mut self, outcome: Result<Option<Result<T, E>>, TaskError>) -> Result<T, Failed<E>> {
        self.left -= 1;
        let result = match outcome {
            Ok(Some(Ok(value))) => return Ok(value),
            Ok(Some(Err(error))) => Failed::Error(error),
            Ok(None) => Failed::Task(TaskError::Cancelled),
            // The group itself has dropped it.
            Err(TaskError::Aborted) if self.shared.is_stopped() => Failed::Task(TaskError::Cancelled),
            Err(why) => Failed::Task(why),
        };
        if self.stops {
            self.cancel();
        }
        Err(result)
    }

    /// Waits for the next task that ends, and returns its number and result; `None` when none is to come.
    pub async fn next(&mut self) -> Option<(usize, Result<T, Failed<E>>)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits until all have ended, and returns the results in the order of submission.
    ///
    /// # Errors
    /// The first failure, in order of time. The rest was cancelled, and has ended.
    pub async fn join(mut self) -> Result<Vec<T>, Failed<E>> {
        let mut results = Results::default();
        while let Some((id, result)) = self.next().await {
            results.note(id, result);
        }
        results.all_or_first()
    }

    /// Waits until all have ended, and returns every outcome in the order of submission.
    pub async fn join_all(mut self) -> Vec<Result<T, Failed<E>>> {
        let mut results = Vec::new();
        while let Some(result) = self.next().await {
            results.push(result);
        }
        results.sort_by_key(|(id, _)| *id);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

impl<T: Send + 'static, E: Send + 'static> Drop for TaskGroup<'_, T, E> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.cancel();
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> fmt::Debug for TaskGroup<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskGroup")
            .field("left", &self.left)
            .field("stopped", &self.shared.is_stopped())
            .finish_non_exhaustive()
    }
}
