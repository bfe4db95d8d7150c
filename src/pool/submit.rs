//! Submitting closures.

use super::cell::{Cell, Queued, Ran, Run};
use super::core::Core;
use super::entry::Entry;
use super::error::{Rejected, TaskError, Turned};
use super::face::Pool;
use super::gate::{Admitted, Waiter, finish};
use super::handle::Handle;
use super::kin::Standing;
use super::overflow::Crowded;
use super::park::block_on;
use super::passage::{self, Inside, Passage, is_admitted};
use super::wishes::Submit;
use super::worker::{Guest, standing};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How many tasks of a batch are queued at once.
const BATCH: usize = 64;

type Verdict<'p> = super::overflow::Verdict<Passing<'p>>;

/// What a submitter holds that runs its task itself.
struct Passing<'p> {
    guest: Option<Guest<'p>>,
    admitted: Admitted,
}

impl Passing<'_> {
    fn run(self, core: &Arc<Core<'_>>, task: impl FnOnce() -> Ran) {
        let inside = Inside::enter(core.kin, &self.admitted);
        let ran = task();
        drop(inside);
        drop(self.guest);
        finish(self.admitted, ran);
        core.ran_by_caller(ran);
    }
}

/// How long a submitter waits for room, where the pool's overflow says that it waits.
#[derive(Clone, Copy)]
enum Patience {
    None,
    For(Duration),
    Endless,
}

impl<'p, 'j> Submit<'p, Pool<'j>> {
    #[inline]
    fn core(&self) -> &'p Arc<Core<'j>> {
        self.pool.core()
    }

    #[inline]
    fn try_take(&self) -> Result<(), Turned> {
        self.core().room.try_take(self.spec.weight)
    }

    /// What becomes of a task that has been turned away.
    #[cold]
    fn let_in(&self, turned: Turned, patience: Patience) -> Result<Verdict<'p>, Turned> {
        let (core, weight) = (self.core(), self.spec.weight);
        // Workers may owe places.
        let _pressing = core.press();
        let by_caller = match self.judge(turned)? {
            Verdict::Wait => false,
            Verdict::Caller => true,
            verdict => return Ok(verdict),
        };
        let patience = match patience {
            Patience::None if by_caller => return self.pass_now().map(Verdict::Here),
            Patience::None => return Err(Turned::Full),
            Patience::For(patience) => Some(patience),
            Patience::Endless => None,
        };
        if !by_caller && standing(core) == Standing::Stranger && !is_admitted(core.kin) {
            return core.room.take_blocking(weight, patience).map(|()| Verdict::In);
        }
        let mut verdict = pin!(self.room_or_passage(by_caller));
        let poll = |waker: &Waker| verdict.as_mut().poll(&mut Context::from_waker(waker));
        block_on(patience, poll).unwrap_or(Err(Turned::TimedOut))
    }

    fn judge(&self, turned: Turned) -> Result<Verdict<'p>, Turned> {
        self.core().sweep();
        self.core().judge(self.spec.weight, turned)
    }

    fn waiter(&self) -> Waiter {
        Waiter {
            blocks: true,
            is_admitted: is_admitted(self.core().kin),
        }
    }

    /// For a submitter that runs the task itself, if it need not wait for that.
    fn pass_now(&self) -> Result<Passing<'p>, Turned> {
        let admitted = match &self.core().settings.gate {
            Some(gate) if !seeded!("pool_passes_by_the_policy") => gate.try_admit(self.spec.ask, self.waiter()),
            _ => Ok(None),
        };
        let turned = |rejection| passage::turned(TaskError::Refused(rejection));
        Ok(Passing {
            guest: None,
            admitted: admitted.map_err(turned)?,
        })
    }

    /// Waits for room, or until the submitter may run the task itself: it is to be admitted, and whoever works for the
    /// family needs a slot. Were that one to wait for room alone, nobody might make it.
    async fn room_or_passage(self, by_caller: bool) -> Result<Verdict<'p>, Turned> {
        let core = self.core();
        let mut room = pin!(core.room.take(self.spec.weight));
        let mut passage = Passage::default();
        poll_fn(|cx| {
            let guest = if by_caller {
                None
            } else {
                let guest = Guest::enter(core, cx.waker());
                if guest.is_none() {
                    passage.leave();
                    return room.as_mut().poll(cx).map_ok(|()| Verdict::In);
                }
                guest
            };
            let gate = core.settings.gate.as_ref();
            match passage.poll(gate, || self.spec.ask, || self.waiter(), cx.waker()) {
                Poll::Ready(Ok(admitted)) => Poll::Ready(Ok(Verdict::Here(Passing { guest, admitted }))),
                Poll::Ready(Err(why)) => Poll::Ready(Err(passage::turned(why))),
                Poll::Pending => {
                    // Without the slot: whoever has one may make room meanwhile.
                    drop(guest);
                    room.as_mut().poll(cx).map_ok(|()| Verdict::In)
                }
            }
        })
        .await
    }

    /// Submits a task and returns its handle. A full queue is dealt with by the pool's [`Overflow`].
    ///
    /// # Errors
    /// [`Rejected`], with the task: the pool is closed, the queue full, or the task too heavy for it; or the submitter was
    /// to run it, and the policy of the pool has refused it.
    #[inline]
    pub fn submit<T, F>(self, task: F) -> Result<Handle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        self.submit_within(task, Patience::Endless)
    }

    /// As [`submit`](Self::submit), but never waits: where the pool would, the task is handed back. That goes for the pool's
    /// policy as well, where the submitter is to run the task: it is admitted at once or not at all.
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
    pub fn try_submit<T, F>(self, task: F) -> Result<Handle<'j, T>, Rejected<F>>
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
    pub fn submit_timeout<T, F>(self, task: F, patience: Duration) -> Result<Handle<'j, T>, Rejected<F>>
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
    pub async fn submit_async<T, F>(self, task: F) -> Result<Handle<'j, T>, Rejected<F>>
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

    /// As [`let_in`](Self::let_in), without blocking the thread.
    async fn let_in_async(self, turned: Turned) -> Result<Verdict<'p>, Turned> {
        let _pressing = self.core().press();
        match self.judge(turned)? {
            Verdict::Wait => self.room_or_passage(false).await,
            Verdict::Caller => self.room_or_passage(true).await,
            verdict => Ok(verdict),
        }
    }

    #[inline]
    fn submit_within<T, F>(self, task: F, patience: Patience) -> Result<Handle<'j, T>, Rejected<F>>
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
    fn submit_in<T, F>(self, task: F) -> Result<Handle<'j, T>, Rejected<F>>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let cell = Arc::new(Cell::new(task));
        match self.core().push(Arc::clone(&cell), |cell| self.entry_of(cell)) {
            Ok(()) => Ok(self.handle(cell)),
            Err(cell) => Err(take_back(&*cell)),
        }
    }

    #[cold]
    fn carry_out<T, F>(self, task: F, verdict: Result<Verdict<'p>, Turned>) -> Result<Handle<'j, T>, Rejected<F>>
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
            Verdict::Here(passing) => {
                let cell = Arc::new(Cell::new(task));
                passing.run(self.core(), || {
                    if self.is_late() {
                        cell.refuse(TaskError::Expired);
                    }
                    cell.run(&mut |payload| self.core().orphan(payload))
                });
                cell
            }
            Verdict::Out => {
                let cell = Arc::new(Cell::new(task));
                self.core().discard(self.entry_of(Arc::clone(&cell)));
                cell
            }
            Verdict::Wait | Verdict::Caller => unreachable!("it has waited"),
        };
        Ok(self.handle(cell))
    }

    /// True when it is too late for the task to start: it may have waited until its submitter could run it.
    fn is_late(&self) -> bool {
        let late = |deadline| self.core().settings.clock.now() > deadline;
        self.spec.deadline.is_some_and(late)
    }

    #[inline]
    fn handle<T, F>(&self, cell: Arc<Cell<F, (), T>>) -> Handle<'j, T>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        Handle::new(cell, Arc::clone(self.core()), &self.spec)
    }

    fn entry_of<T, F>(&self, cell: Arc<Cell<F, (), T>>) -> Entry<'j>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        Entry::held(cell, &self.spec)
    }

    /// Submits a task that nobody waits for: cheaper than dropping the handle of [`submit`](Self::submit).
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
        let pushed = self.core().push(task, |task| Entry::own(task, &self.spec));
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
        let entry = |task| Entry::own(task, &self.spec);
        match verdict {
            Verdict::In => return self.execute_in(task),
            Verdict::Here(passing) => passing.run(self.core(), || {
                let entry = entry(task);
                if self.is_late() {
                    entry.refuse(TaskError::Expired);
                    return Ran::Gone;
                }
                entry.run(|payload| self.core().orphan(payload))
            }),
            Verdict::Out => self.core().discard(entry(task)),
            Verdict::Wait | Verdict::Caller => unreachable!("it has waited"),
        }
        Ok(())
    }

    /// Submits many tasks, in order, and queues up to 64 at once: cheaper than one by one. Returns the handles of
    /// those that were taken, in order, and hands back the others, each with its reason.
    pub fn submit_all<T, F>(self, tasks: impl IntoIterator<Item = F>) -> (Vec<Handle<'j, T>>, Vec<Rejected<F>>)
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        let (mut handles, mut rejected) = (Vec::new(), Vec::new());
        let mut spent = Vec::new();
        let made = |task| Arc::new(Cell::new(task));
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
                .push_all(&mut queue, room, |cell| self.entry_of(cell), &mut spent);
            drop(queue);
            for cell in cells.drain(..room) {
                if queued {
                    handles.push(self.handle(cell));
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
        in_chunks(tasks.into_iter(), |tasks| {
            let room = self.try_take_some(tasks.len());
            if room == 0 {
                return rejected.extend(self.execute(tasks.remove(0)).err());
            }
            let entry = |task| Entry::own(task, &self.spec);
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
        task: cell.start().expect("nobody else has seen this task"),
        reason: Turned::Closed,
    }
}
