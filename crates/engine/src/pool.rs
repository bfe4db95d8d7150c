//! The pools as their users see them.

use crate::admission::{Gate, Gated};
use crate::engine::{Engine, Entry, Numbers, RejectReason, Room, Runner, Running, Target, current, thread_waker};
use crate::queue::{GroupId, Key, Priority};
use crate::task::{Cell, Closure, Completer, Futured, TaskError, quietly};
use crate::tasks::Tasks;
use crate::threads::Threads;
use crate::waits::{Link, Wait};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::{Ask, Limiter, Policy, Semaphore};

/// Why a join has no result.
#[non_exhaustive]
pub enum JoinError<T> {
    /// The task has none.
    Task(TaskError),
    /// The task needs a permit that the waiter, or a task that waits for it, holds and cannot lend; or one whose holders wait for such
    /// a permit. Or it waits for the waiter itself.
    WouldDeadlock(JoinHandle<T>),
    /// All threads but one of the waiter's pool wait.
    TooManyParked(JoinHandle<T>),
    /// The time is over.
    TimedOut(JoinHandle<T>),
}

impl<T> fmt::Debug for JoinError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(why) => f.debug_tuple("Task").field(why).finish(),
            Self::WouldDeadlock(_) => f.write_str("WouldDeadlock"),
            Self::TooManyParked(_) => f.write_str("TooManyParked"),
            Self::TimedOut(_) => f.write_str("TimedOut"),
        }
    }
}

/// The handle to a task. As a future it is ready with the result.
#[must_use = "dropping the handle lets the task run on"]
pub struct JoinHandle<T> {
    cell: Arc<Cell<T>>,
    pool: Arc<dyn Target>,
    key: Key,
    /// The task that awaits it.
    waiter: Option<Arc<Running>>,
    wait: Option<Wait>,
    link: Option<Arc<Link>>,
}

impl<T> JoinHandle<T> {
    /// True when the task has ended.
    pub fn is_finished(&self) -> bool {
        self.cell.is_done()
    }

    /// Ends the task, if it has not started.
    pub fn cancel(&self) -> bool {
        self.pool.cancel(self.key)
    }

    /// The task is about to wait. False when that would deadlock.
    fn begin_to_wait(&mut self, waiter: &Arc<Running>) -> bool {
        if self.wait.is_some() && self.waiter.as_ref().is_some_and(|known| Arc::ptr_eq(known, waiter)) {
            return true;
        }
        self.wait = None;
        self.wait = Wait::for_task(waiter, self.link.as_ref(), &*self.pool);
        self.wait.is_some()
    }

    /// The task awaits it until it is ready, dropped, or awaited by another.
    fn await_it(&mut self, waiter: Arc<Running>) {
        // Relaxed: a number that the polls of the waiter read.
        waiter.awaits.fetch_add(1, Ordering::Relaxed);
        match self.waiter.replace(waiter) {
            Some(old) => _ = old.awaits.fetch_sub(1, Ordering::Relaxed),
            None => self.pool.await_it(self.key),
        }
    }

    fn await_no_more(&mut self) {
        self.wait = None;
        if let Some(waiter) = self.waiter.take() {
            waiter.awaits.fetch_sub(1, Ordering::Relaxed);
            self.pool.await_no_more(self.key);
        }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(self) -> Result<T, JoinError<T>> {
        self.join_until(None)
    }

    /// The same for at most `patience`.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join_timeout(self, patience: Duration) -> Result<T, JoinError<T>> {
        // Beyond what an instant can hold there is no deadline.
        self.join_until(Instant::now().checked_add(patience))
    }

    fn join_until(mut self, until: Option<Instant>) -> Result<T, JoinError<T>> {
        let waiter = current();
        if let Some(waiter) = &waiter {
            // Asked first: the answer does not depend on how far the task is.
            if !self.begin_to_wait(waiter) {
                return Err(JoinError::WouldDeadlock(self));
            }
            if until.is_none() {
                self.pool.run_inline(self.key, waiter);
            }
        }
        let waker = thread_waker();
        if let Poll::Ready(result) = self.cell.poll(&waker) {
            return result.map_err(JoinError::Task);
        }
        if let Some(waiter) = &waiter {
            if !waiter.engine.park(waiter.group) {
                self.wait = None;
                return Err(JoinError::TooManyParked(self));
            }
            self.await_it(Arc::clone(waiter));
        }
        let result = loop {
            if let Poll::Ready(result) = self.cell.poll(&waker) {
                break Some(result);
            }
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => break None,
                Some(left) => thread::park_timeout(left),
            }
        };
        if let Some(waiter) = &waiter {
            waiter.engine.resume(waiter.group);
            self.await_no_more();
        }
        match result {
            Some(result) => result.map_err(JoinError::Task),
            None => Err(JoinError::TimedOut(self)),
        }
    }
}

impl<T> Future for JoinHandle<T> {
    /// The inner error is true when waiting for the task would deadlock: nothing is cancelled then.
    type Output = Result<Result<T, TaskError>, WouldDeadlock>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waiter = current();
        if let Some(waiter) = &waiter
            && !self.begin_to_wait(waiter)
        {
            return Poll::Ready(Err(WouldDeadlock));
        }
        if let Poll::Ready(result) = self.cell.poll(cx.waker()) {
            self.await_no_more();
            return Poll::Ready(Ok(result));
        }
        if let Some(waiter) = waiter {
            self.await_it(waiter);
        }
        Poll::Pending
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        self.await_no_more();
        if let Some(link) = &self.link {
            link.cut();
        }
    }
}

/// The wait would end only after the waiter has ended, or given back a permit that it holds and cannot lend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WouldDeadlock;

/// A limit for some tasks of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    number: GroupId,
    /// Its pool.
    of: u64,
}

struct Owner<R: Runner>(Arc<Engine<R>>);

impl<R: Runner> Drop for Owner<R> {
    fn drop(&mut self) {
        for entry in self.0.close_for_good() {
            R::refuse(entry.job, TaskError::Abandoned);
        }
    }
}

/// A pool.
pub struct Pool<R: Runner>(Arc<Owner<R>>);

/// Runs closures on threads.
pub type WorkerPool = Pool<Threads>;
/// Runs futures on a tokio runtime.
pub type TaskPool = Pool<Tasks>;

impl<R: Runner> Clone for Pool<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Runner> Pool<R> {
    fn with(runner: R, limit: usize, queue: usize, gate: Option<Arc<dyn Gate>>) -> Self {
        Self(Arc::new(Owner(Engine::new(runner, limit, queue, gate))))
    }

    fn engine(&self) -> &Arc<Engine<R>> {
        &self.0.0
    }

    /// Changes the number of slots.
    pub fn set_limit(&self, limit: usize) {
        self.engine().set_limit(limit);
    }

    /// Adds a group of at most `limit` tasks at once.
    pub fn group(&self, limit: usize) -> Group {
        Group {
            number: self.engine().add_group(limit),
            of: self.engine().id,
        }
    }

    /// The numbers of the pool.
    pub fn numbers(&self) -> Numbers {
        self.engine().numbers()
    }

    /// All of its state that is a number, for a program that hangs.
    pub fn describe(&self) -> String {
        self.engine().describe()
    }

    /// Waits until no task is left. A task of another pool lends its slot meanwhile.
    ///
    /// # Errors
    /// [`WouldDeadlock`] in a task of this pool, or in one for which such a task waits.
    pub fn wait_idle(&self) -> Result<(), WouldDeadlock> {
        if self.engine().wait_idle() {
            Ok(())
        } else {
            Err(WouldDeadlock)
        }
    }

    /// Takes out what has not started, and ends it. Returns how many tasks that were.
    pub fn abort(&self) -> usize {
        let entries = self.engine().abort();
        let n = entries.len();
        for entry in entries {
            R::refuse(entry.job, TaskError::Abandoned);
        }
        n
    }

    fn push<T>(
        &self,
        job: R::Job,
        cell: Arc<Cell<T>>,
        wishes: &Wishes,
        room: Room,
        detached: bool,
    ) -> Result<JoinHandle<T>, (R::Job, RejectReason)> {
        let parent = current();
        let number = parent.as_ref().map_or(0, |task| task.id);
        let link = (!detached).then(|| Link::to(parent));
        let entry = Entry {
            job,
            ask: wishes.ask,
            parent: number,
            link: link.clone(),
        };
        let group = wishes.group.map(|group| {
            assert_eq!(group.of, self.engine().id, "the group belongs to another pool");
            group.number
        });
        match self.engine().submit(entry, wishes.priority, group, room) {
            Ok(key) => Ok(JoinHandle {
                cell,
                pool: Arc::clone(self.engine()) as _,
                key,
                waiter: None,
                wait: None,
                link,
            }),
            Err((entry, reason)) => Err((entry.job, reason)),
        }
    }
}

/// How a task wants to be treated.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Its priority.
    pub priority: Priority,
    /// Its group. A submission panics when it belongs to another pool.
    pub group: Option<Group>,
    /// What the policy is asked for.
    pub ask: Ask,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            priority: Priority::Normal,
            group: None,
            ask: Ask::one(),
        }
    }
}

fn gate<L>(policy: Policy<L>, semaphores: Vec<Arc<Semaphore>>) -> Arc<dyn Gate>
where
    L: Limiter + 'static,
    L::Ticket: Send,
{
    Arc::new(Gated(policy, semaphores))
}

impl WorkerPool {
    /// A pool of `limit` threads, with a queue of `queue` tasks. It has at most `limit + max_spare` threads: those of tasks
    /// that wait count.
    pub fn new(limit: usize, queue: usize, max_spare: usize) -> Self {
        Self::with(Threads { max_spare }, limit, queue, None)
    }

    /// The same behind a policy; `semaphores` are those among its legs.
    pub fn gated<L>(
        limit: usize,
        queue: usize,
        max_spare: usize,
        policy: Policy<L>,
        semaphores: Vec<Arc<Semaphore>>,
    ) -> Self
    where
        L: Limiter + 'static,
        L::Ticket: Send,
    {
        Self::with(Threads { max_spare }, limit, queue, Some(gate(policy, semaphores)))
    }

    /// Submits a task. Waits for room; a task of this pool does not, and exceeds the bound of the queue.
    ///
    /// # Errors
    /// See [`RejectReason`].
    pub fn submit<T, F>(&self, task: F) -> Result<JoinHandle<T>, RejectReason>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.submit_with(&Wishes::default(), true, task)
    }

    /// The same with wishes; without waiting when `waits` is false.
    ///
    /// # Errors
    /// See [`RejectReason`].
    pub fn submit_with<T, F>(&self, wishes: &Wishes, waits: bool, task: F) -> Result<JoinHandle<T>, RejectReason>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let cell = Arc::new(Cell::new());
        let job = Box::new(Closure {
            task,
            completer: Completer::of(&cell),
        });
        let room = if waits { Room::Wait } else { Room::Refuse };
        self.push(job, cell, wishes, room, false).map_err(|(_, reason)| reason)
    }

    /// Submits a task that nothing awaits.
    ///
    /// # Errors
    /// See [`RejectReason`].
    pub fn execute(&self, task: impl FnOnce() + Send + 'static) -> Result<(), RejectReason> {
        let cell = Arc::new(Cell::new());
        let job = Box::new(Closure {
            task,
            completer: Completer::of(&cell),
        });
        let pushed = self.push(job, cell, &Wishes::default(), Room::Wait, true);
        // The result goes with the handle, and its drop may panic.
        pushed
            .map(|handle| quietly(|| drop(handle)))
            .map_err(|(_, reason)| reason)
    }
}

impl TaskPool {
    /// A pool of `limit` tasks at once on the current runtime, with a queue of `queue` tasks.
    pub fn new(limit: usize, queue: usize) -> Self {
        let runtime = tokio::runtime::Handle::current();
        Self::with(Tasks { runtime }, limit, queue, None)
    }

    /// The same behind a policy; `semaphores` are those among its legs.
    pub fn gated<L>(limit: usize, queue: usize, policy: Policy<L>, semaphores: Vec<Arc<Semaphore>>) -> Self
    where
        L: Limiter + 'static,
        L::Ticket: Send,
    {
        let runtime = tokio::runtime::Handle::current();
        Self::with(Tasks { runtime }, limit, queue, Some(gate(policy, semaphores)))
    }

    /// Submits a task without waiting. A task of this pool may exceed the bound of its queue.
    ///
    /// # Errors
    /// See [`RejectReason`].
    pub fn submit<F>(&self, task: F) -> Result<JoinHandle<F::Output>, RejectReason>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.submit_with(&Wishes::default(), task)
    }

    /// The same with wishes.
    ///
    /// # Errors
    /// See [`RejectReason`].
    pub fn submit_with<F>(&self, wishes: &Wishes, task: F) -> Result<JoinHandle<F::Output>, RejectReason>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let cell = Arc::new(Cell::new());
        let job = Box::new(Futured {
            task: Some(Box::pin(task)),
            completer: Completer::of(&cell),
        });
        let mine =
            current().is_some_and(|task| std::ptr::addr_eq(Arc::as_ptr(&task.engine), Arc::as_ptr(self.engine())));
        let room = if mine { Room::Wait } else { Room::Refuse };
        self.push(job, cell, wishes, room, false).map_err(|(_, reason)| reason)
    }
}
