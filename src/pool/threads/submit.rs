//! Submission of closures.

use super::entry::Entry;
use super::injector::Tray;
use super::kind::Threads;
use crate::pool::caller::Caller;
use crate::pool::capacity::Verdict;
use crate::pool::cell::{ClosureCell, Run};
use crate::pool::common::Pool;
use crate::pool::error::{RejectReason, SubmitError};
use crate::pool::handle::ScopedJoinHandle;
use crate::sync::park::block_on_timeout;
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

/// The maximum number of tasks of a batch that are queued at once.
pub(in crate::pool) const BATCH: usize = 64;

/// A task that has no cell, and the span of its submitter.
type Called<F> = (F, Caller);

/// The closure of a task.
trait Closure<'j, T>: FnOnce() -> T + Send + 'j {}

impl<'j, T, F: FnOnce() -> T + Send + 'j> Closure<'j, T> for F {}

/// Submission. A submitter waits for capacity if the pool's [`Overflow`](crate::pool::Overflow) makes it wait.
impl<'j> Pool<Threads<'j>> {
    /// Decides what happens to a task that found the queue full, and blocks this thread if need be, for at most `patience`.
    #[cold]
    fn let_in_blocking(&self, patience: Option<Duration>) -> Result<Verdict, RejectReason> {
        let mut let_in = pin!(self.let_in());
        let verdict = block_on_timeout(patience, |waker| let_in.as_mut().poll(&mut Context::from_waker(waker)));
        verdict.unwrap_or(Err(RejectReason::TimedOut))
    }

    /// Submits a task and returns its handle. The pool's [`Overflow`](crate::pool::Overflow) decides what happens if the queue is
    /// full.
    ///
    /// # Errors
    /// [`SubmitError`], with the task: the pool is closed, the queue is full, or the task is too heavy for it.
    #[inline]
    pub fn submit<T, F>(&self, task: F) -> Result<ScopedJoinHandle<'j, T>, SubmitError<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let submitted = self.submit_now(task);
        submitted.or_else(|called| self.submit_decided(called, self.let_in_blocking(None)))
    }

    /// Submits like [`submit`](Self::submit), but never waits: returns the task where the pool would wait.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// ```
    /// # use tollgate::{WorkerPool, pool::RejectReason};
    /// # use std::sync::mpsc;
    /// let pool = WorkerPool::builder().workers(1).max_queue(1).build().unwrap();
    /// let (started, has_started) = mpsc::channel();
    /// let (release, released) = mpsc::channel::<()>();
    /// let first = pool.submit(move || { started.send(()).unwrap(); released.recv() }).unwrap();
    /// has_started.recv().unwrap();
    /// let second = pool.try_submit(|| 2).unwrap();
    /// let third = pool.try_submit(|| 3).unwrap_err();
    /// assert_eq!(third.reason, RejectReason::Full);
    /// assert_eq!((third.task)(), 3);
    /// release.send(()).unwrap();
    /// assert_eq!(second.join().unwrap(), 2);
    /// # drop(first);
    /// ```
    #[inline]
    pub fn try_submit<T, F>(&self, task: F) -> Result<ScopedJoinHandle<'j, T>, SubmitError<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let submitted = self.submit_now(task);
        submitted.or_else(|called| self.submit_decided(called, self.let_in_now()))
    }

    /// Submits like [`submit`](Self::submit), and waits for capacity for at most `patience`.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), and [`RejectReason::TimedOut`].
    pub fn submit_timeout<T, F>(&self, task: F, patience: Duration) -> Result<ScopedJoinHandle<'j, T>, SubmitError<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let submitted = self.submit_now(task);
        submitted.or_else(|called| self.submit_decided(called, self.let_in_blocking(Some(patience))))
    }

    /// Submits like [`submit`](Self::submit), and waits for capacity without blocking the thread.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task, which has not run.
    ///
    /// ```
    /// # use tollgate::WorkerPool;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = WorkerPool::builder().workers(1).build()?;
    /// // Waits for room in the queue without blocking the thread.
    /// let task = pool.submit_async(|| 6 * 7).await?;
    /// assert_eq!(task.await?, 42);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn submit_async<T, F>(&self, task: F) -> Result<ScopedJoinHandle<'j, T>, SubmitError<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        match self.submit_now(task) {
            Ok(handle) => Ok(handle),
            Err(called) => self.submit_decided(called, self.let_in().await),
        }
    }

    /// Queues a task, if there is a place, and returns its handle. Otherwise returns the task, which probably has had no cell.
    #[inline]
    fn submit_now<T: Send + 'j, F: Closure<'j, T>>(&self, task: F) -> Result<ScopedJoinHandle<'j, T>, Called<F>> {
        // Before capacity is taken: the tracing subscriber is called, and may panic.
        let (core, caller) = (self.core(), Caller::current());
        // The injector has no places while weights are bounded.
        if core.seems_full() || core.settings.max_queue_weight.is_some() {
            return Err((task, caller));
        }
        let cell = self.made((task, caller));
        match core.push(Arc::clone(&cell) as Arc<dyn Run + 'j>, Tray::put_cell) {
            Ok(()) => Ok(self.handle(cell)),
            Err(_) => Err(take_back(&cell)),
        }
    }

    /// Queues or discards a task, as decided.
    #[cold]
    fn submit_decided<T: Send + 'j, F: Closure<'j, T>>(
        &self,
        (task, caller): Called<F>,
        verdict: Result<Verdict, RejectReason>,
    ) -> Result<ScopedJoinHandle<'j, T>, SubmitError<F>> {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(reason) => return Err(SubmitError { task, reason }),
        };
        let cell = self.made((task, caller));
        match self
            .core()
            .carry_out(Arc::clone(&cell) as Arc<dyn Run + 'j>, Entry::of, verdict)
        {
            Ok(()) => Ok(self.handle(cell)),
            Err((_, reason)) => {
                let (task, _) = take_back(&cell);
                Err(SubmitError { task, reason })
            }
        }
    }

    #[inline]
    fn made<T: Send + 'j, F: Closure<'j, T>>(&self, (task, caller): Called<F>) -> Arc<ClosureCell<F, T>> {
        ClosureCell::of(task, caller, self.options.of_task())
    }

    #[inline]
    fn handle<T: Send + 'j, F: Closure<'j, T>>(&self, cell: Arc<ClosureCell<F, T>>) -> ScopedJoinHandle<'j, T> {
        ScopedJoinHandle::<T>::new(cell, Arc::clone(self.core()))
    }

    /// Submits a task without a handle: cheaper than dropping the handle of [`submit`](Self::submit).
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    #[inline]
    pub fn execute<F>(&self, task: F) -> Result<(), SubmitError<F>>
    where
        F: FnOnce() + Send + 'j,
    {
        let caller = Caller::current();
        let put = |tray: &mut Tray<'j>, task| self.put_own(tray, task, &caller);
        let pushed = self.core().push(task, put);
        pushed.or_else(|task| self.execute_slow(task, caller))
    }

    /// Without a handle, whose drop would take the payload of a task that has panicked by then.
    #[cold]
    fn execute_slow<F: Closure<'j, ()>>(&self, task: F, caller: Caller) -> Result<(), SubmitError<F>> {
        let entry = |task| Entry::own(caller, task, &self.options);
        let carried_out = match self.let_in_blocking(None) {
            Ok(verdict) => self.core().carry_out(task, entry, verdict),
            Err(reason) => Err((task, reason)),
        };
        carried_out.map_err(|(task, reason)| SubmitError { task, reason })
    }

    #[inline]
    fn put_own<F: Closure<'j, ()>>(&self, tray: &mut Tray<'j>, task: F, caller: &Caller) {
        match caller.is_nothing() && self.options.is_common {
            true => tray.put_inline(task),
            false => tray.put(Entry::own(caller.clone(), task, &self.options)),
        }
    }

    /// Submits many tasks, in order, and queues up to 64 at once: cheaper than one by one. Returns the handles of the
    /// accepted tasks, in order, and the rejected tasks, each with its reason.
    pub fn submit_all<T, F>(
        &self,
        tasks: impl IntoIterator<Item = F>,
    ) -> (Vec<ScopedJoinHandle<'j, T>>, Vec<SubmitError<F>>)
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let made = |task| self.made((task, Caller::current()));
        let put = |tray: &mut Tray<'j>, cell: Arc<ClosureCell<F, T>>| {
            tray.put_cell(Arc::clone(&cell) as _);
            self.handle(cell)
        };
        let one = |cell: Arc<ClosureCell<F, T>>| self.submit_decided(take_back(&cell), self.let_in_blocking(None));
        self.all(tasks.into_iter().map(made), put, one)
    }

    /// Submits many tasks like [`submit_all`](Self::submit_all), without handles.
    pub fn execute_all<F>(&self, tasks: impl IntoIterator<Item = F>) -> Vec<SubmitError<F>>
    where
        F: FnOnce() + Send + 'j,
    {
        let caller = Caller::current();
        let put = |tray: &mut Tray<'j>, task| self.put_own(tray, task, &caller);
        self.all(tasks.into_iter(), put, |task| self.execute(task)).1
    }

    /// Queues tasks by `put` in chunks of up to [`BATCH`], or by `one` where there is no capacity. Returns what both return. Tasks are made
    /// before capacity is taken for them: making them runs the user's code. All chunks share one buffer: an allocation of more than a
    /// thousand bytes makes the allocator consolidate all small ones, which costs as much as queueing does.
    fn all<J, R, E>(
        &self,
        mut jobs: impl Iterator<Item = J>,
        put: impl Fn(&mut Tray<'j>, J) -> R,
        one: impl Fn(J) -> Result<R, E>,
    ) -> (Vec<R>, Vec<E>) {
        let (mut taken, mut rejected) = (Vec::new(), Vec::new());
        let (mut chunk, mut deferred) = (Vec::new(), Vec::new());
        loop {
            chunk.extend(jobs.by_ref().take(BATCH));
            if chunk.is_empty() {
                return (taken, rejected);
            }
            while !chunk.is_empty() {
                if !self.core().push_all(&mut chunk, &put, &mut taken, &mut deferred) {
                    match one(chunk.remove(0)) {
                        Ok(job) => taken.push(job),
                        Err(why) => rejected.push(why),
                    }
                }
            }
        }
    }
}

/// Takes a task back from its cell, which the pool has not taken.
fn take_back<T: Send, F: FnOnce() -> T + Send>(cell: &ClosureCell<F, T>) -> Called<F> {
    cell.take().expect("no other thread has this task")
}
