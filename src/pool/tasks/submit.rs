//! Submission of futures.

use super::cell::{Run, TaskCell};
use super::kind::Tasks;
use crate::pool::caller::Caller;
use crate::pool::capacity::Verdict;
use crate::pool::cell::Await;
use crate::pool::common::Pool;
use crate::pool::engine::entry::Entry;
use crate::pool::engine::group_limit::Membership;
use crate::pool::error::{RejectReason, SubmitError};
use crate::pool::handle::TaskHandle;
use crate::pool::park::run_blocking;
use crate::pool::threads::submit::BATCH;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

type Shared<Fut> = Arc<TaskCell<Fut, <Fut as Future>::Output>>;
/// An accepted task, and its membership if its group has a limit.
type Taken<Fut> = (Shared<Fut>, Option<Arc<Membership>>);

/// The future of a task.
trait Work: Future<Output: Send> + Send + 'static {}

impl<Fut: Future<Output: Send> + Send + 'static> Work for Fut {}

impl Pool<Tasks> {
    fn try_take(&self) -> Result<(), RejectReason> {
        self.core().try_take(self.options.rare.weight)
    }

    async fn admit(&self) -> Result<Verdict, RejectReason> {
        match self.try_take() {
            Ok(()) => Ok(Verdict::In),
            Err(turned) => self.let_in(turned).await,
        }
    }

    /// Submits a task and returns its handle. The pool's [`Overflow`](crate::pool::Overflow) decides what happens if the queue
    /// is full. A task of the pool itself does not wait for capacity: see [`Overflow::Block`](crate::pool::Overflow::Block).
    ///
    /// # Errors
    /// [`SubmitError`], with the task: the pool is closed, the queue is full, or the task is too heavy for it.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task.
    pub async fn submit<Fut>(&self, task: Fut) -> Result<TaskHandle<Fut::Output>, SubmitError<Fut>>
    where
        Fut: Future<Output: Send> + Send + 'static,
    {
        let caller = Caller::current();
        let verdict = self.admit().await;
        Ok(self.handle(self.carry_out(task, caller, false, verdict)?))
    }

    /// Submits like [`submit`](Self::submit), and waits for capacity for at most `patience` on the pool's clock.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), and [`RejectReason::TimedOut`].
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit).
    pub async fn submit_timeout<Fut>(
        &self,
        task: Fut,
        patience: Duration,
    ) -> Result<TaskHandle<Fut::Output>, SubmitError<Fut>>
    where
        Fut: Future<Output: Send> + Send + 'static,
    {
        let caller = Caller::current();
        let mut admit = pin!(self.admit());
        let poll = |waker: &Waker| admit.as_mut().poll(&mut Context::from_waker(waker));
        let verdict = self.core().within(Some(patience), poll).await;
        let verdict = verdict.unwrap_or(Err(RejectReason::TimedOut));
        Ok(self.handle(self.carry_out(task, caller, false, verdict)?))
    }

    /// Submits like [`submit`](Self::submit), but never waits: returns the task where the pool would wait.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn try_submit<Fut>(&self, task: Fut) -> Result<TaskHandle<Fut::Output>, SubmitError<Fut>>
    where
        Fut: Future<Output: Send> + Send + 'static,
    {
        let caller = Caller::current();
        let verdict = match self.try_take() {
            Ok(()) => Ok(Verdict::In),
            Err(turned) => self.let_in_now(turned),
        };
        Ok(self.handle(self.carry_out(task, caller, false, verdict)?))
    }

    /// Submits like [`submit`](Self::submit), and blocks the thread while it waits. For threads outside of a runtime.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// ```
    /// # use tollgate::pool::TaskPool;
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let pool = TaskPool::builder(2).runtime(runtime.handle()).build()?;
    /// // From a thread that drives no tasks.
    /// let task = pool.submit_blocking(async { 6 * 7 }).map_err(|rejected| rejected.reason.to_string())?;
    /// assert_eq!(task.join_blocking()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_blocking<Fut>(&self, task: Fut) -> Result<TaskHandle<Fut::Output>, SubmitError<Fut>>
    where
        Fut: Future<Output: Send> + Send + 'static,
    {
        run_blocking(self.submit(task))
    }

    /// Submits a task without a handle. The pool's [`on_panic`](crate::pool::Builder::on_panic) gets the payload of a panic.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit).
    pub async fn execute<Fut>(&self, task: Fut) -> Result<(), SubmitError<Fut>>
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let caller = Caller::current();
        let verdict = self.admit().await;
        self.carry_out(task, caller, true, verdict).map(drop)
    }

    /// Submits many tasks, in order, and queues up to 64 at once: cheaper than one by one. Returns the handles of the accepted
    /// tasks, in order, and the rejected tasks, each with its reason. Handles a full queue like [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the tasks that have not been queued. Queued tasks still run.
    ///
    /// ```
    /// # use tollgate::pool::TaskPool;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let pool = TaskPool::builder(4).build().unwrap();
    /// let (handles, rejected) = pool.submit_all((0..100).map(|n| async move { 2 * n })).await;
    /// assert!(rejected.is_empty());
    /// for (n, handle) in handles.into_iter().enumerate() {
    ///     assert_eq!(handle.await.unwrap(), 2 * n);
    /// }
    /// # }
    /// ```
    pub async fn submit_all<Fut>(
        &self,
        tasks: impl IntoIterator<Item = Fut>,
    ) -> (Vec<TaskHandle<Fut::Output>>, Vec<SubmitError<Fut>>)
    where
        Fut: Future<Output: Send> + Send + 'static,
    {
        let mut handles = Vec::new();
        let taken = |taken| handles.push(self.handle(taken));
        let rejected = self.all(tasks, false, taken).await;
        (handles, rejected)
    }

    /// Submits many tasks like [`submit_all`](Self::submit_all), without handles.
    ///
    /// # Cancel safety
    /// As [`submit_all`](Self::submit_all).
    pub async fn execute_all<Fut>(&self, tasks: impl IntoIterator<Item = Fut>) -> Vec<SubmitError<Fut>>
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.all(tasks, true, drop).await
    }

    /// Submits the tasks, and returns the rejected ones.
    async fn all<Fut: Work>(
        &self,
        tasks: impl IntoIterator<Item = Fut>,
        detached: bool,
        mut taken: impl FnMut(Taken<Fut>),
    ) -> Vec<SubmitError<Fut>> {
        let mut cells = tasks
            .into_iter()
            .map(|task| self.made(task, Caller::current(), detached));
        let mut rejected = Vec::new();
        loop {
            let mut chunk = cells.by_ref().take(BATCH).collect::<Vec<_>>().into_iter();
            if chunk.len() == 0 {
                return rejected;
            }
            while let [first, ..] = chunk.as_slice() {
                let capacity = self.try_take_some(chunk.len());
                let queued = if capacity == 0 {
                    let verdict = self.admit().await;
                    verdict.and_then(|verdict| self.settle(first, verdict))
                } else {
                    let entries = chunk.as_slice()[..capacity]
                        .iter()
                        .map(|(cell, member)| self.entry(cell, member));
                    self.push(entries)
                };
                let batch = chunk.by_ref().take(capacity.max(1));
                match queued {
                    Ok(()) => batch.for_each(&mut taken),
                    Err(reason) => rejected.extend(batch.map(|made| take_back(&made, reason))),
                }
            }
        }
    }

    /// Queues or discards the task, as decided. Its cell is made now, since a refused task needs none.
    fn carry_out<Fut: Work>(
        &self,
        task: Fut,
        caller: Caller,
        detached: bool,
        verdict: Result<Verdict, RejectReason>,
    ) -> Result<Taken<Fut>, SubmitError<Fut>> {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(reason) => return Err(SubmitError { task, reason }),
        };
        let made = self.made(task, caller, detached);
        match self.settle(&made, verdict) {
            Ok(()) => Ok(made),
            Err(reason) => Err(take_back(&made, reason)),
        }
    }

    /// Queues or discards the task, as decided. After an error the task is still in its cell.
    fn settle<Fut: Work>(&self, (cell, member): &Taken<Fut>, verdict: Verdict) -> Result<(), RejectReason> {
        match verdict {
            Verdict::In => self.push([self.entry(cell, member)].into_iter()),
            Verdict::Out => {
                self.core().discard_new(self.entry(cell, &None));
                Ok(())
            }
        }
    }

    fn push(&self, entries: impl Iterator<Item = Entry<Tasks>>) -> Result<(), RejectReason> {
        self.core().push_all(entries).then_some(()).ok_or(RejectReason::Closed)
    }

    /// Makes the cell of a task. The caller was captured before capacity was taken: the tracing subscriber is called, and may panic.
    fn made<Fut: Work>(&self, task: Fut, caller: Caller, detached: bool) -> Taken<Fut> {
        let cell = Arc::new(TaskCell::of(task, caller));
        if detached {
            cell.detach();
        }
        (cell, self.options.member())
    }

    fn handle<Fut: Work>(&self, (cell, member): Taken<Fut>) -> TaskHandle<Fut::Output> {
        TaskHandle::<Fut::Output>::new(cell, Arc::clone(self.core()), self.options.rare_for(member.as_ref()))
    }

    fn entry<Fut: Work>(&self, cell: &Shared<Fut>, member: &Option<Arc<Membership>>) -> Entry<Tasks> {
        Entry::held(Arc::clone(cell) as Arc<dyn Run>, &self.options, member.as_ref())
    }
}

/// Takes a task back from its cell, after the pool has refused it.
fn take_back<Fut: Work>((cell, _): &Taken<Fut>, reason: RejectReason) -> SubmitError<Fut> {
    let (task, _) = cell.take().expect("no other thread has this task");
    SubmitError { task: *task, reason }
}
