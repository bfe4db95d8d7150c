//! Submitting futures, with wishes.

use super::cell::{Await, Cell, Run, turn_of};
use super::core::{Core, Entry};
use super::face::TaskPool;
use super::handle::AsyncHandle;
use super::unstarted::{UnstartedTask, run_here};
use crate::ask::Ask;
use crate::pool::builder::Overflow;
use crate::pool::cell::forget_panic;
use crate::pool::entry::{Priority, Spec};
use crate::pool::error::{Rejected, Turned};
use crate::pool::lanes::Ranked;
use crate::pool::submit::next_chunk;
use crate::time::Sleep;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Submits tasks with wishes: [`TaskPool::priority`], [`weight`](TaskPool::weight), [`deadline`](TaskPool::deadline) and
/// so on. Copyable: make one for each kind of task.
#[derive(Clone, Copy)]
#[must_use = "it submits nothing by itself"]
pub struct SubmitTask<'p> {
    pool: &'p TaskPool,
    spec: Spec,
}

/// What becomes of a task that is submitted.
enum Verdict {
    /// There is room for it, which is taken.
    In,
    /// The submitter awaits it.
    Here,
    /// It is thrown out.
    Out,
    /// The submitter waits for room.
    Wait,
}

impl<'p> SubmitTask<'p> {
    pub(super) fn new(pool: &'p TaskPool) -> Self {
        Self {
            pool,
            spec: Spec::DEFAULT,
        }
    }

    /// Tasks of this priority.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.spec.priority = priority;
        self
    }

    /// Tasks of this weight in a queue that is bounded by weight; 0 counts as 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.spec.weight = weight.max(1);
        self
    }

    /// Tasks that end with [`TaskError::Expired`](crate::pool::TaskError::Expired) when they have not started so long
    /// from now.
    pub fn deadline(mut self, within: Duration) -> Self {
        let clock = &self.core().settings.clock;
        self.spec.deadline = Some(clock.after(clock.now(), within));
        self
    }

    /// Tasks that the policy of the pool is asked this for; one call unless set.
    pub fn ask(mut self, ask: impl Into<Ask>) -> Self {
        self.spec.ask = ask.into();
        self.spec.plain = false;
        self
    }

    pub(super) fn core(&self) -> &'p Arc<Core> {
        self.pool.core()
    }

    fn let_in(&self) -> Result<Verdict, Turned> {
        let (core, weight) = (self.core(), self.spec.weight);
        let Err(turned) = core.room.try_take(weight) else {
            return Ok(Verdict::In);
        };
        core.room.fits(weight)?;
        if turned == Turned::Closed {
            return Err(turned);
        }
        match core.settings.overflow {
            Overflow::Reject => Err(Turned::Full),
            Overflow::DropNewest => Ok(Verdict::Out),
            Overflow::CallerRuns => Ok(Verdict::Here),
            Overflow::DropOldest => self.make_room(),
            // Were it to wait, nobody might make room.
            Overflow::Block if turn_of(core.id).is_some() => Ok(Verdict::Here),
            Overflow::Block => Ok(Verdict::Wait),
        }
    }

    fn make_room(&self) -> Result<Verdict, Turned> {
        loop {
            match self.core().evict() {
                Some(entry) if entry.is_live() => self.discard(entry),
                Some(_) => {}
                // All room is with submitters that have not queued their tasks yet.
                None => std::thread::yield_now(),
            }
            match self.core().room.try_take(self.spec.weight) {
                Ok(()) => return Ok(Verdict::In),
                Err(Turned::Full) => {}
                Err(turned) => return Err(turned),
            }
        }
    }

    fn discard(&self, entry: Entry) {
        let core = self.core();
        core.state.lock().stats.discarded += 1;
        let task = UnstartedTask::new(entry, true, core.id);
        match &core.settings.on_discard {
            Some(hook) => forget_panic(catch_unwind(AssertUnwindSafe(|| hook(task)))),
            None => drop(task),
        }
    }

    /// Submits a task and returns its handle. A full queue is dealt with by the pool's overflow. A task of the pool that
    /// would wait for room runs what it submits itself.
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
        let verdict = match self.let_in() {
            Ok(Verdict::Wait) => self.core().room.take(self.spec.weight).await.map(|()| Verdict::In),
            verdict => verdict,
        };
        self.carry_out(task, verdict).await
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
        let verdict = match self.let_in() {
            Ok(Verdict::Wait) => self.wait(patience).await.map(|()| Verdict::In),
            verdict => verdict,
        };
        self.carry_out(task, verdict).await
    }

    async fn wait(&self, patience: Duration) -> Result<(), Turned> {
        let clock = &self.core().settings.clock;
        let mut sleep = pin!(Sleep::until(clock, clock.after(clock.now(), patience)));
        let mut room = pin!(self.core().room.take(self.spec.weight));
        poll_fn(|cx| match room.as_mut().poll(cx) {
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| Err(Turned::TimedOut)),
            ready => ready,
        })
        .await
    }

    /// As [`submit`](Self::submit), but never waits, nor runs the task here: where the pool would, the task is handed
    /// back.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn try_submit<T, Fut>(self, task: Fut) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        match self.let_in() {
            Ok(Verdict::In) => self.queue(task),
            Ok(Verdict::Out) => Ok(self.throw_out(task)),
            Ok(Verdict::Wait | Verdict::Here) => Err(Rejected {
                task,
                reason: Turned::Full,
            }),
            Err(reason) => Err(Rejected { task, reason }),
        }
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
        let mut tasks = tasks.into_iter();
        let (mut handles, mut rejected) = (Vec::with_capacity(tasks.size_hint().0), Vec::new());
        while let Some(mut chunk) = next_chunk(&mut tasks) {
            while let Some(task) = chunk.next() {
                let room = self.try_take_some(chunk.len() + 1);
                if room == 0 {
                    match self.submit(task).await {
                        Ok(handle) => handles.push(handle),
                        Err(turned) => rejected.push(turned),
                    }
                    continue;
                }
                let batch = std::iter::once(task).chain(chunk.by_ref().take(room - 1));
                let cells: Vec<_> = batch.map(|task| Arc::new(Cell::new(task))).collect();
                let entries = cells.iter().map(|cell| self.entry(Arc::clone(cell) as Arc<dyn Run>));
                let queued = self.core().push_all(entries.collect());
                for cell in cells {
                    if queued {
                        handles.push(self.handle(cell));
                    } else {
                        rejected.push(take_back(&cell));
                    }
                }
            }
        }
        (handles, rejected)
    }

    fn try_take_some(&self, n: usize) -> usize {
        if self.spec.weight == 1 {
            self.core().room.try_take_some(n)
        } else {
            0
        }
    }

    async fn carry_out<T, Fut>(
        self,
        task: Fut,
        verdict: Result<Verdict, Turned>,
    ) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        match verdict {
            Err(reason) => Err(Rejected { task, reason }),
            Ok(Verdict::Out) => Ok(self.throw_out(task)),
            Ok(Verdict::Here | Verdict::Wait) => {
                let cell = Arc::new(Cell::new(task));
                cell.claim();
                let ran = run_here(&*cell, self.core().id).await;
                self.core().ran_elsewhere(ran, true);
                Ok(self.handle(cell))
            }
            Ok(Verdict::In) => self.queue(task),
        }
    }

    fn queue<T, Fut>(self, task: Fut) -> Result<AsyncHandle<T>, Rejected<Fut>>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let cell = Arc::new(Cell::new(task));
        if self.core().push(self.entry(Arc::clone(&cell) as Arc<dyn Run>)) {
            return Ok(self.handle(cell));
        }
        Err(take_back(&cell))
    }

    fn throw_out<T, Fut>(self, task: Fut) -> AsyncHandle<T>
    where
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let cell = Arc::new(Cell::new(task));
        self.discard(self.entry(Arc::clone(&cell) as Arc<dyn Run>));
        self.handle(cell)
    }

    fn handle<T: Send + 'static>(&self, cell: Arc<dyn Await<T>>) -> AsyncHandle<T> {
        AsyncHandle::new(cell, Arc::clone(self.core()), self.spec.deadline)
    }

    fn entry(&self, task: Arc<dyn Run>) -> Entry {
        Entry {
            task,
            weight: self.spec.weight,
            priority: self.spec.priority,
            deadline: self.spec.deadline,
            ask: (!self.spec.plain).then(|| Box::new(self.spec.ask)),
            started: false,
        }
    }
}

/// Gets a task back that the pool, closed meanwhile, has not taken.
fn take_back<T, Fut>(cell: &Cell<Fut, T>) -> Rejected<Fut>
where
    Fut: Future<Output = T> + Send,
    T: Send,
{
    Rejected {
        task: cell.take_back().expect("nobody else has seen this task"),
        reason: Turned::Closed,
    }
}
