//! Submission of futures.

use super::cell::{Run, TaskCell};
use super::kind::Tasks;
use crate::pool::caller::Caller;
use crate::pool::capacity::Verdict;
use crate::pool::cell::Await;
use crate::pool::common::Pool;
use crate::pool::engine::entry::Entry;
use crate::pool::engine::state::Phase;
use crate::pool::error::{RejectReason, SubmitError};
use crate::pool::handle::TaskHandle;
use crate::pool::threads::submit::BATCH;
use crate::sync::park::run_blocking;
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

type Shared<Fut> = Arc<TaskCell<Fut, <Fut as Future>::Output>>;
/// A task that has no cell, and the span of its submitter.
type Called<Fut> = (Fut, Caller);

/// The future of a task.
trait Work: Future<Output: Send> + Send + 'static {}

impl<Fut: Future<Output: Send> + Send + 'static> Work for Fut {}

impl Pool<Tasks> {
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
        let submitted = match self.submit_now(task, false) {
            Ok(made) => Ok(made),
            Err(called) => self.submit_decided(called, false, self.let_in().await),
        };
        submitted.map(|made| self.handle(made))
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
        let submitted = match self.submit_now(task, false) {
            Ok(made) => Ok(made),
            Err(called) => {
                let mut let_in = pin!(self.let_in());
                let poll = |waker: &Waker| let_in.as_mut().poll(&mut Context::from_waker(waker));
                let verdict = self.core().within(Some(patience), poll).await;
                self.submit_decided(called, false, verdict.unwrap_or(Err(RejectReason::TimedOut)))
            }
        };
        submitted.map(|made| self.handle(made))
    }

    /// Submits like [`submit`](Self::submit), but never waits: returns the task where the pool would wait.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn try_submit<Fut>(&self, task: Fut) -> Result<TaskHandle<Fut::Output>, SubmitError<Fut>>
    where
        Fut: Future<Output: Send> + Send + 'static,
    {
        let submitted = self.submit_now(task, false);
        let submitted = submitted.or_else(|called| self.submit_decided(called, false, self.let_in_now()));
        submitted.map(|made| self.handle(made))
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
    /// assert_eq!(runtime.block_on(task)?, 42);
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
        match self.submit_now(task, true) {
            Ok(_) => Ok(()),
            Err(called) => self.submit_decided(called, true, self.let_in().await).map(drop),
        }
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
        mut taken: impl FnMut(Shared<Fut>),
    ) -> Vec<SubmitError<Fut>> {
        let mut cells = tasks
            .into_iter()
            .map(|task| self.made((task, Caller::current()), detached));
        let mut rejected = Vec::new();
        loop {
            let mut chunk = cells.by_ref().take(BATCH).collect::<Vec<_>>().into_iter();
            if chunk.len() == 0 {
                return rejected;
            }
            while let [first, ..] = chunk.as_slice() {
                let queued = self.push(chunk.as_slice());
                if queued > 0 {
                    chunk.by_ref().take(queued).for_each(&mut taken);
                    continue;
                }
                let called = take_back(first);
                drop(chunk.next());
                match self.submit_decided(called, detached, self.let_in().await) {
                    Ok(made) => taken(made),
                    Err(error) => rejected.push(error),
                }
            }
        }
    }

    /// Queues a task, if there is capacity.
    fn submit_now<Fut: Work>(&self, task: Fut, detached: bool) -> Result<Shared<Fut>, Called<Fut>> {
        let caller = Caller::current();
        if self.core().seems_full() {
            return Err((task, caller));
        }
        let made = self.made((task, caller), detached);
        match self.push(slice::from_ref(&made)) {
            0 => Err(take_back(&made)),
            _ => Ok(made),
        }
    }

    /// Queues or discards a task, as decided.
    fn submit_decided<Fut: Work>(
        &self,
        (task, caller): Called<Fut>,
        detached: bool,
        verdict: Result<Verdict, RejectReason>,
    ) -> Result<Shared<Fut>, SubmitError<Fut>> {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(reason) => return Err(SubmitError { task, reason }),
        };
        let made = self.made((task, caller), detached);
        match self.core().carry_out(&made, entry, verdict) {
            Ok(()) => Ok(made),
            Err((made, reason)) => {
                let (task, _) = take_back(made);
                Err(SubmitError { task, reason })
            }
        }
    }

    /// Queues the first of these tasks, in order, as far as there is capacity. Returns their number.
    fn push<Fut: Work>(&self, made: &[Shared<Fut>]) -> usize {
        self.core().transition(|state, acts| {
            if state.phase != Phase::Running {
                return 0;
            }
            let n = state.capacity.take(made.len(), self.options.task.weight);
            made[..n].iter().for_each(|made| state.queue.push(entry(made)));
            state.came(n);
            state.call(acts);
            n
        })
    }

    /// Makes a task. `detached`: it has no handle.
    fn made<Fut: Work>(&self, (task, caller): Called<Fut>, detached: bool) -> Shared<Fut> {
        let cell = TaskCell::of(task, caller, self.options.of_task());
        if detached {
            cell.detach();
        }
        Arc::new(cell)
    }

    fn handle<Fut: Work>(&self, cell: Shared<Fut>) -> TaskHandle<Fut::Output> {
        TaskHandle::<Fut::Output>::new(cell, Arc::clone(self.core()))
    }
}

fn entry<Fut: Work>(cell: &Shared<Fut>) -> Entry<Tasks> {
    Entry::of(Arc::clone(cell) as Arc<dyn Run>)
}

/// Takes a task back from its cell, which the pool has not taken.
fn take_back<Fut: Work>(cell: &Shared<Fut>) -> Called<Fut> {
    let (task, caller) = cell.take().expect("no other thread has this task");
    (*task, caller)
}
