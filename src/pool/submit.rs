//! Submitting closures.

use super::caller::Caller;
use super::cell::Cell;
use super::core::Core;
use super::engine::group_limit::Membership;
use super::entry::Entry;
use super::error::{Rejected, Turned};
use super::face::Pool;
use super::handle::ScopedJoinHandle;
use super::overflow::{Crowded, Verdict};
use super::turned_away::Patience;
use super::wishes::Submit;
use std::sync::Arc;
use std::time::Duration;

/// How many tasks of a batch are queued at once.
const BATCH: usize = 64;

impl<'p, 'j> Submit<'p, Pool<'j>> {
    #[inline]
    pub(super) fn core(&self) -> &'p Arc<Core<'j>> {
        self.pool.core()
    }

    #[inline]
    fn try_take(&self) -> Result<(), Turned> {
        self.core().room.try_take(self.spec.weight)
    }

    /// Submits a task and returns its handle. A full queue is dealt with by the pool's
    /// [`Overflow`](super::Overflow).
    ///
    /// # Errors
    /// [`Rejected`], with the task: the pool is closed, the queue full, or the task too heavy for it.
    #[inline]
    pub fn submit<T, F>(self, task: F) -> Result<ScopedJoinHandle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        self.submit_within(task, Patience::Endless)
    }

    /// As [`submit`](Self::submit), but never waits: where the pool would, the task is handed back.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// ```
    /// # use tollgate::{WorkerPool, pool::Turned};
    /// # use std::sync::mpsc;
    /// let pool = WorkerPool::builder().workers(1).queue(1).build().unwrap();
    /// let (started, has_started) = mpsc::channel();
    /// let (release, released) = mpsc::channel::<()>();
    /// let first = pool.submit(move || { started.send(()).unwrap(); released.recv() }).unwrap();
    /// has_started.recv().unwrap();
    /// let second = pool.try_submit(|| 2).unwrap();
    /// let third = pool.try_submit(|| 3).unwrap_err();
    /// assert_eq!(third.reason, Turned::Full);
    /// assert_eq!((third.task)(), 3);
    /// release.send(()).unwrap();
    /// assert_eq!(second.join().unwrap(), 2);
    /// # drop(first);
    /// ```
    #[inline]
    pub fn try_submit<T, F>(self, task: F) -> Result<ScopedJoinHandle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        self.submit_within(task, Patience::None)
    }

    /// As [`submit`](Self::submit), and waits for room for at most `patience`.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), and [`Turned::TimedOut`].
    pub fn submit_timeout<T, F>(self, task: F, patience: Duration) -> Result<ScopedJoinHandle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        self.submit_within(task, Patience::For(patience))
    }

    /// As [`submit`](Self::submit), and waits for room without blocking the thread.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the task; it has not run.
    pub async fn submit_async<T, F>(self, task: F) -> Result<ScopedJoinHandle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let verdict = match self.try_take() {
            Ok(()) => Ok(Verdict::In),
            Err(turned) => self.let_in_async(turned).await,
        };
        self.carry_out(task, verdict)
    }

    #[inline]
    fn submit_within<T, F>(self, task: F, patience: Patience) -> Result<ScopedJoinHandle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        match self.try_take() {
            Ok(()) => self.submit_in(task),
            Err(turned) => self.carry_out(task, self.let_in(turned, patience)),
        }
    }

    /// Submits a task for which there is room.
    #[inline]
    fn submit_in<T, F>(self, task: F) -> Result<ScopedJoinHandle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let (cell, member) = (Arc::new(Cell::new(task, Caller::waits())), self.member());
        match self
            .core()
            .push(Arc::clone(&cell), |cell| self.entry_of(cell, member.as_ref()))
        {
            Ok(()) => Ok(self.handle(cell, member.as_ref())),
            Err(cell) => Err(take_back(&*cell)),
        }
    }

    #[cold]
    fn carry_out<T, F>(self, task: F, verdict: Result<Verdict, Turned>) -> Result<ScopedJoinHandle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(reason) => return Err(Rejected { task, reason }),
        };
        let cell = match verdict {
            Verdict::In => return self.submit_in(task),
            Verdict::Out => {
                let cell = Arc::new(Cell::new(task, Caller::waits()));
                self.core().discard(self.entry_of(Arc::clone(&cell), None));
                cell
            }
            Verdict::Wait => unreachable!("it has waited"),
        };
        Ok(self.handle(cell, None))
    }

    #[inline]
    fn handle<T, F>(&self, cell: Arc<Cell<F, (), T>>, member: Option<&Arc<Membership>>) -> ScopedJoinHandle<'j, T>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        ScopedJoinHandle::new(cell, Arc::clone(self.core()), &self.spec, member)
    }

    fn entry_of<T, F>(&self, cell: Arc<Cell<F, (), T>>, member: Option<&Arc<Membership>>) -> Entry<'j>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        Entry::held(cell, &self.spec, member)
    }

    /// Submits a task without a handle: cheaper than dropping the handle of [`submit`](Self::submit).
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    #[inline]
    pub fn execute<F>(self, task: F) -> Result<(), Rejected<F>>
    where
        F: FnOnce() + Send + 'j,
    {
        match self.try_take() {
            Ok(()) => self.execute_in(task),
            Err(turned) => self.execute_slow(task, turned),
        }
    }

    /// Queues a task for which there is room.
    #[inline]
    fn execute_in<F>(self, task: F) -> Result<(), Rejected<F>>
    where
        F: FnOnce() + Send + 'j,
    {
        let caller = Caller::current();
        let pushed = self.core().push(task, |task| Entry::own(caller, task, &self.spec));
        pushed.map_err(|task| Rejected {
            task,
            reason: Turned::Closed,
        })
    }

    #[cold]
    fn execute_slow<F>(self, task: F, turned: Turned) -> Result<(), Rejected<F>>
    where
        F: FnOnce() + Send + 'j,
    {
        let verdict = match self.let_in(turned, Patience::Endless) {
            Ok(verdict) => verdict,
            Err(reason) => return Err(Rejected { task, reason }),
        };
        let entry = |task| Entry::own(Caller::current(), task, &self.spec);
        match verdict {
            Verdict::In => return self.execute_in(task),
            Verdict::Out => self.core().discard(entry(task)),
            Verdict::Wait => unreachable!("it has waited"),
        }
        Ok(())
    }

    /// Submits many tasks, in order, and queues up to 64 at once: cheaper than one by one. Returns the handles of
    /// those that were taken, in order, and hands back the others, each with its reason.
    pub fn submit_all<T, F>(
        self,
        tasks: impl IntoIterator<Item = F>,
    ) -> (Vec<ScopedJoinHandle<'j, T>>, Vec<Rejected<F>>)
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let (mut handles, mut rejected) = (Vec::new(), Vec::new());
        let mut spent = Vec::new();
        let made = |task| Arc::new(Cell::new(task, Caller::waits()));
        in_chunks(tasks.into_iter().map(made), |cells| {
            let room = self.try_take_some(cells.len());
            if room == 0 {
                match self.submit(take_back(&cells.remove(0)).task) {
                    Ok(handle) => handles.push(handle),
                    Err(turned) => rejected.push(turned),
                }
                return;
            }
            let mut queue: Vec<_> = cells[..room].iter().map(Arc::clone).collect();
            let queued = self
                .core()
                .push_all(&mut queue, room, |cell| self.entry_of(cell, None), &mut spent);
            drop(queue);
            for cell in cells.drain(..room) {
                if queued {
                    handles.push(self.handle(cell, None));
                } else {
                    rejected.push(take_back(&cell));
                }
            }
        });
        (handles, rejected)
    }

    /// [`execute`](Self::execute) for many tasks: as [`submit_all`](Self::submit_all), without handles.
    pub fn execute_all<F>(self, tasks: impl IntoIterator<Item = F>) -> Vec<Rejected<F>>
    where
        F: FnOnce() + Send + 'j,
    {
        let (mut rejected, mut spent) = (Vec::new(), Vec::new());
        let caller = Caller::current();
        in_chunks(tasks.into_iter(), |tasks| {
            let room = self.try_take_some(tasks.len());
            if room == 0 {
                return rejected.extend(self.execute(tasks.remove(0)).err());
            }
            let entry = |task| Entry::own(caller.clone(), task, &self.spec);
            if !self.core().push_all(tasks, room, entry, &mut spent) {
                rejected.extend(tasks.drain(..room).map(|task| Rejected {
                    task,
                    reason: Turned::Closed,
                }));
            }
        });
        rejected
    }

    fn try_take_some(&self, n: usize) -> usize {
        self.core().room.try_take_some(n, self.spec.weight)
    }
}

/// Has `queue` take tasks from the front of so many at a time until all are gone. They are made before room is taken for
/// them: making them is the user's code. One buffer for all: an allocation of more than a thousand bytes has the
/// allocator put all small ones in order, which costs as much as queueing does.
fn in_chunks<T>(mut tasks: impl Iterator<Item = T>, mut queue: impl FnMut(&mut Vec<T>)) {
    let mut chunk = Vec::new();
    loop {
        chunk.extend(tasks.by_ref().take(BATCH));
        if chunk.is_empty() {
            return;
        }
        while !chunk.is_empty() {
            queue(&mut chunk);
        }
    }
}

/// The same for those who await in between.
#[cfg(feature = "tokio")]
pub(super) fn next_chunk<F>(tasks: &mut impl Iterator<Item = F>) -> Option<Vec<F>> {
    let chunk: Vec<_> = tasks.by_ref().take(BATCH).collect();
    (!chunk.is_empty()).then_some(chunk)
}

/// Gets a task back that the pool, closed meanwhile, has not taken.
fn take_back<T, F>(cell: &Cell<F, (), T>) -> Rejected<F>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    Rejected {
        task: cell.start().expect("nothing else has seen this task"),
        reason: Turned::Closed,
    }
}
