//! Submitting futures.

use super::cell::{Job, Progress, Run};
use super::core::Core;
use super::entry::Entry;
use super::face::TaskPool;
use super::handle::AsyncHandle;
use super::polled::is_inside;
use crate::pool::cell::{Await, Cell};
use crate::pool::error::{Rejected, Turned};
use crate::pool::overflow::{Crowded, Verdict};
use crate::pool::park::run_blocking;
use crate::pool::submit::next_chunk;
use crate::pool::wishes::Submit;
use crate::time::Sleep;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

type Shared<Fut, T> = Arc<Cell<Fut, Progress<Fut>, T>>;

impl<'p> Submit<'p, TaskPool> {
    fn core(&self) -> &'p Arc<Core> {
        self.pool.core()
    }

    fn judge(&self, turned: Turned) -> Result<Verdict, Turned> {
        self.core().sweep();
        self.core().judge(self.spec.weight, turned)
    }

    fn let_in_now(&self) -> Result<Verdict, Turned> {
        match self.core().room.try_take(self.spec.weight) {
            Ok(()) => Ok(Verdict::In),
            Err(turned) => self.judge(turned),
        }
    }

    async fn let_in(&self, patience: Option<Duration>) -> Result<Verdict, Turned> {
        let core = self.core();
        let Err(turned) = core.room.try_take(self.spec.weight) else {
            return Ok(Verdict::In);
        };
        // What is cancelled from now on is taken out at once.
        let _pressing = core.room.press();
        match self.judge(turned)? {
            Verdict::Wait => {}
            verdict => return Ok(verdict),
        }
        let mut room = pin!(core.room.take(self.spec.weight));
        let mut room = pin!(poll_fn(|cx| match room.as_mut().poll(cx) {
            // The slot of a task of the pool may be the one that would make room. Asked at each poll: a future can be moved into
            // a task.
            Poll::Pending if is_inside(core.kin) => {
                core.room.overdraw(self.spec.weight);
                Poll::Ready(Ok(Verdict::In))
            }
            taken => taken.map_ok(|()| Verdict::In),
        }));
        let Some(patience) = patience else {
            return room.await;
        };
        let clock = &core.settings.clock;
        let mut sleep = pin!(Sleep::until(clock, clock.after(clock.now(), patience)));
        poll_fn(|cx| match room.as_mut().poll(cx) {
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| Err(Turned::TimedOut)),
            taken => taken,
        })
        .await
    }

    /// Submits a task and returns its handle. A full queue is dealt with by the pool's
    /// [`Overflow`](crate::pool::Overflow). A task of the pool itself does not wait for room: see
    /// [`Overflow::Block`](crate::pool::Overflow::Block).
    ///
    /// # Errors
    /// [`Rejected`], with the task: the pool is closed, the queue full, or the task too heavy for it.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task.
    pub async fn submit<T, Fut>(self, task: Fut) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let verdict = self.let_in(None).await;
        self.carry_out(task, verdict, false).map(|cell| self.handle(cell))
    }

    /// As [`submit`](Self::submit), and waits for room for at most `patience` on the pool's clock.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), and [`Turned::TimedOut`].
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit).
    pub async fn submit_timeout<T, Fut>(self, task: Fut, patience: Duration) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let verdict = self.let_in(Some(patience)).await;
        self.carry_out(task, verdict, false).map(|cell| self.handle(cell))
    }

    /// As [`submit`](Self::submit), but never waits: where the pool would, the task is handed back.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn try_submit<T, Fut>(self, task: Fut) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let verdict = match self.let_in_now() {
            Ok(Verdict::Wait) => Err(Turned::Full),
            verdict => verdict,
        };
        if let Err(reason) = verdict {
            return Err(Rejected { task, reason });
        }
        let cell = made(task, false);
        match verdict.and_then(|verdict| self.settle(&cell, verdict)) {
            Ok(()) => Ok(self.handle(cell)),
            Err(reason) => Err(take_back(&cell, reason)),
        }
    }

    /// As [`submit`](Self::submit), and blocks the thread while it waits: for threads that are none of a runtime's.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_blocking<T, Fut>(self, task: Fut) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        run_blocking(self.submit(task))
    }

    /// Submits a task that nobody waits for. What it panics with is given to the pool's
    /// [`on_panic`](crate::pool::Builder::on_panic).
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit).
    pub async fn execute<Fut>(self, task: Fut) -> Result<(), Rejected<Fut>>
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let verdict = self.let_in(None).await;
        self.carry_out(task, verdict, true).map(drop)
    }

    /// Submits many tasks, in order, and queues up to 64 at once: cheaper than one by one. Returns the handles of those
    /// that were taken, in order, and hands back the others, each with its reason. What finds the queue full is dealt
    /// with as in [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the tasks that have not been queued; those that have run all the
    /// same.
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
    pub async fn submit_all<T, Fut>(
        self,
        tasks: impl IntoIterator<Item = Fut>,
    ) -> (Vec<AsyncHandle<T>>, Vec<Rejected<Fut>>)
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let mut handles = Vec::new();
        let rejected = self.all(tasks, false, |cell| handles.push(self.handle(cell))).await;
        (handles, rejected)
    }

    /// [`execute`](Self::execute) for many tasks: as [`submit_all`](Self::submit_all), without handles.
    ///
    /// # Cancel safety
    /// As [`submit_all`](Self::submit_all).
    pub async fn execute_all<Fut>(self, tasks: impl IntoIterator<Item = Fut>) -> Vec<Rejected<Fut>>
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.all(tasks, true, drop).await
    }

    /// Tasks are made before room is taken for them: making them is the user's code.
    async fn all<T, Fut>(
        &self,
        tasks: impl IntoIterator<Item = Fut>,
        detached: bool,
        mut taken: impl FnMut(Shared<Fut, T>),
    ) -> Vec<Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let mut cells = tasks.into_iter().map(|task| made(task, detached));
        let mut rejected = Vec::new();
        while let Some(chunk) = next_chunk(&mut cells) {
            let mut chunk = chunk.into_iter();
            while !chunk.as_slice().is_empty() {
                let room = self.core().room.try_take_some(chunk.len(), self.spec.weight);
                let (batch, queued) = if room == 0 {
                    let verdict = self.let_in(None).await;
                    (
                        1,
                        verdict.and_then(|verdict| self.settle(&chunk.as_slice()[0], verdict)),
                    )
                } else {
                    let entries = chunk.as_slice()[..room].iter().map(|cell| self.entry(cell));
                    let queued = self.core().push(entries);
                    (room, queued.then_some(()).ok_or(Turned::Closed))
                };
                for cell in chunk.by_ref().take(batch) {
                    match queued {
                        Ok(()) => taken(cell),
                        Err(reason) => rejected.push(take_back(&cell, reason)),
                    }
                }
            }
        }
        rejected
    }

    fn carry_out<T, Fut>(
        &self,
        task: Fut,
        verdict: Result<Verdict, Turned>,
        detached: bool,
    ) -> Result<Shared<Fut, T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let cell = made(task, detached);
        match verdict.and_then(|verdict| self.settle(&cell, verdict)) {
            Ok(()) => Ok(cell),
            Err(reason) => Err(take_back(&cell, reason)),
        }
    }

    /// Does as was decided. Refused, the task is still in its cell.
    fn settle<T, Fut>(&self, cell: &Shared<Fut, T>, verdict: Verdict) -> Result<(), Turned>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        match verdict {
            Verdict::In if self.core().push(std::iter::once(self.entry(cell))) => {}
            Verdict::In => return Err(Turned::Closed),
            Verdict::Out => self.core().discard(self.entry(cell)),
            Verdict::Wait => unreachable!("it has waited"),
        }
        Ok(())
    }

    fn handle<T: Send + 'static>(&self, task: Arc<dyn Job<T>>) -> AsyncHandle<T> {
        AsyncHandle::new(task, Arc::clone(self.core()), &self.spec)
    }

    fn entry<T, Fut>(&self, cell: &Shared<Fut, T>) -> Entry
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        Entry::new(Arc::clone(cell) as Arc<dyn Run>, &self.spec)
    }
}

fn made<T, Fut>(task: Fut, detached: bool) -> Shared<Fut, T>
where
    Fut: Future<Output = T> + Send,
    T: Send,
{
    let cell = Arc::new(Cell::new(task));
    if detached {
        cell.detach();
    }
    cell
}

/// Gets a task back that the pool has not taken.
fn take_back<T, Fut>(cell: &Shared<Fut, T>, reason: Turned) -> Rejected<Fut> {
    Rejected {
        task: cell.start().expect("nobody else has seen this task"),
        reason,
    }
}
