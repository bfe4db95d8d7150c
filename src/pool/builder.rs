//! How a pool is to be: threads, queue, overflow, hooks.

use super::core::{Core, DiscardHook, PanicHook, Settings, Spawner};
use super::entry::Unstarted;
use super::error::PoolError;
use super::face::{MAX_WORKERS, Owner, Pool, Scoped, WorkerPool, next_id};
use super::gate::Gate;
use super::room::Room;
use super::worker::WorkerThread;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::rate::{Quota, TokenBucket};
use crate::semaphore::Semaphore;
use crate::time::Clock;
use std::any::Any;
use std::fmt;
use std::io;
use std::ops::{RangeInclusive, RangeToInclusive};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

/// After so many tasks a sub-pool lets the other tasks of its parent have the thread.
const QUANTUM: u32 = 16;

/// What happens to a task that is submitted while the queue is full.
///
/// [`try_submit`](super::Submit::try_submit) never waits: where it would, it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// The submitter waits for room. A worker of the pool itself runs the task at once instead: were it to wait, nobody
    /// might make room.
    #[default]
    Block,
    /// The task is handed back.
    Reject,
    /// The task that has waited longest, among those of the lowest priority, is thrown out.
    DropOldest,
    /// The new task is thrown out.
    DropNewest,
    /// The submitter runs the task itself.
    CallerRuns,
}

/// How many workers: a number, or a range of which the least are always there.
#[derive(Clone, Debug)]
pub struct Workers(RangeInclusive<usize>);

impl From<usize> for Workers {
    fn from(workers: usize) -> Self {
        Self(workers..=workers)
    }
}

impl From<RangeInclusive<usize>> for Workers {
    fn from(range: RangeInclusive<usize>) -> Self {
        Self(range)
    }
}

impl From<RangeToInclusive<usize>> for Workers {
    fn from(range: RangeToInclusive<usize>) -> Self {
        Self(1..=range.end)
    }
}

impl Workers {
    pub(super) fn check(self) -> Result<(usize, usize), PoolError> {
        let (least, most) = self.0.into_inner();
        if least == 0 || least > most || most > MAX_WORKERS {
            return Err(PoolError::Workers { least, most });
        }
        Ok((least, most))
    }
}

/// Builds a [`WorkerPool`], or a pool for a scope.
#[must_use = "a builder builds nothing by itself"]
pub struct PoolBuilder {
    pub(super) workers: Workers,
    queue: usize,
    queue_weight: Option<u32>,
    overflow: Overflow,
    keep_alive: Duration,
    growth: Quota,
    clock: Option<Clock>,
    slots: Option<Arc<Semaphore>>,
    gate: Option<Arc<dyn Gate>>,
    name: String,
    stack_size: Option<usize>,
    on_start: Option<Arc<dyn Fn() + Send + Sync>>,
    on_panic: Option<Box<PanicHook>>,
    on_discard: Option<Box<DiscardHook>>,
    spawner: Option<Box<Spawner<'static>>>,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        Self {
            workers: thread::available_parallelism().map_or(1, |n| n.get()).into(),
            queue: 1024,
            queue_weight: None,
            overflow: Overflow::Block,
            keep_alive: Duration::from_secs(10),
            growth: Quota::per_second(100).burst(16),
            clock: None,
            slots: None,
            gate: None,
            name: "worker".into(),
            stack_size: None,
            on_start: None,
            on_panic: None,
            on_discard: None,
            spawner: None,
        }
    }
}

impl PoolBuilder {
    /// How many tasks run at once: as many as the machine has processors unless set. A number makes a fixed pool, a
    /// range an elastic one: it starts a thread when a task finds nobody idle, and lets those above the least go when
    /// they have been idle for [`keep_alive`](Self::keep_alive).
    pub fn workers(mut self, workers: impl Into<Workers>) -> Self {
        self.workers = workers.into();
        self
    }

    /// How many tasks may wait, at most; 1,024 unless set.
    pub fn queue(mut self, tasks: usize) -> Self {
        self.queue = tasks;
        self
    }

    /// How much all waiting tasks may weigh together; not bounded unless set.
    pub fn queue_weight(mut self, weight: u32) -> Self {
        self.queue_weight = Some(weight);
        self
    }

    /// What happens to a task that finds the queue full.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// How long a thread above the least stays without work; 10 s unless set.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// How fast an elastic pool starts threads above its least: 100 a second after a burst of 16 unless set. A pool
    /// for a scope that has been refused a thread asks again when a task is submitted or taken; others do by a timer
    /// as well.
    pub fn growth(mut self, quota: Quota) -> Self {
        self.growth = quota;
        self
    }

    /// The clock of deadlines, growth and keep-alive.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// The slots: a task runs while it holds a permit of this semaphore. Without, the pool makes one with as many
    /// permits as it may have workers.
    ///
    /// Share it to bound several pools together, or let something else set its limit: no more tasks start than it has
    /// permits, at any moment, and an elastic pool grows no further. Closing it closes the pool.
    pub fn slots(mut self, slots: Arc<Semaphore>) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Each task is admitted by `policy` before it starts, in turn, for what its
    /// [`ask`](super::Submit::ask) says. A task that can never be admitted ends with
    /// [`TaskError::Refused`](super::TaskError::Refused). The permit ends as a success, or as a failure when the task
    /// panics.
    ///
    /// A worker that waits for a task that has not started runs it under the permit that it has.
    pub fn admit_by<L>(mut self, policy: Policy<L>) -> Self
    where
        L: Limiter + 'static,
        L::Ticket: Send,
    {
        self.gate = Some(Arc::new(policy));
        self
    }

    /// What threads are called: `worker` unless set, followed by a dash and the worker's number.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many bytes of stack a thread has.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Runs in each thread before its first task. A panic of it is ignored.
    pub fn on_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_start = Some(Arc::new(hook));
        self
    }

    /// Is given what a task panicked with that has no handle.
    pub fn on_panic(mut self, hook: impl Fn(Box<dyn Any + Send>) + Send + Sync + 'static) -> Self {
        self.on_panic = Some(Box::new(hook));
        self
    }

    /// Is given each task that a full queue throws out. Without, they are dropped.
    pub fn on_discard(mut self, hook: impl Fn(Unstarted<'_>) + Send + Sync + 'static) -> Self {
        self.on_discard = Some(Box::new(hook));
        self
    }

    /// Starts threads by `spawn` instead of the standard library: it is to run [`WorkerThread::run`] on a thread of
    /// its own. Name and stack size are its business then. Scopes start their own threads.
    pub fn spawn_with(
        mut self,
        spawn: impl Fn(WorkerThread<'static>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.spawner = Some(Box::new(spawn));
        self
    }

    /// Builds the pool and starts the least of its threads.
    ///
    /// # Errors
    /// [`PoolError`]: numbers that make no sense, or a thread that could not be started. Nothing is left behind then.
    pub fn build(mut self) -> Result<WorkerPool, PoolError> {
        let spawner = self.spawner.take().unwrap_or_else(|| {
            let (name, stack_size) = (std::mem::take(&mut self.name), self.stack_size);
            Box::new(move |worker| named(&name, stack_size, &worker).spawn(|| worker.run()).map(drop))
        });
        let on_discard = self.on_discard.take();
        let (core, overflow) = self.core(spawner, on_discard, None)?;
        let weak = Arc::downgrade(&core);
        let _ = core.regrow_waker.set(Waker::from(Arc::new(Regrow(weak))));
        let pool = Pool::new(Owner::of(core, None), overflow);
        pool.core().start_least().map_err(PoolError::Spawn)?;
        Ok(pool)
    }

    /// A pool on the threads of another.
    pub(super) fn below<'j>(mut self, parent: &Pool<'j>) -> Result<Pool<'j>, PoolError> {
        let (host, on_discard) = (Arc::clone(parent.core()), self.on_discard.take());
        let spawner: Box<Spawner<'j>> = Box::new(move |worker| {
            let started = host.push_errand(Box::new(move || worker.run()));
            started.then_some(()).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
        });
        let (core, overflow) = self.core(spawner, on_discard, Some(parent.core()))?;
        parent.core().adopt(&core);
        Ok(Pool::new(Owner::of(core, Some(parent)), overflow))
    }

    /// Runs `body` with a pool whose tasks may borrow whatever outlives this call. All tasks have ended when it
    /// returns.
    ///
    /// # Errors
    /// [`PoolError`]: numbers that make no sense, or a thread that could not be started; `body` has not been called.
    ///
    /// # Panics
    /// When `body` does; tasks that have not started are dropped then.
    ///
    /// ```
    /// # use tollgate::WorkerPool;
    /// let words = vec!["to", "be", "or", "not"];
    /// let letters = WorkerPool::builder().workers(2).scope(|pool| {
    ///     let lengths: Vec<_> = words.iter().map(|word| pool.submit(|| word.len()).unwrap()).collect();
    ///     lengths.into_iter().map(|length| length.join().unwrap()).sum::<usize>()
    /// })?;
    /// assert_eq!(letters, 9);
    /// # Ok::<(), tollgate::pool::PoolError>(())
    /// ```
    pub fn scope<'env, R>(mut self, body: impl for<'scope> FnOnce(&Scoped<'scope, 'env>) -> R) -> Result<R, PoolError> {
        let (name, stack_size) = (std::mem::take(&mut self.name), self.stack_size);
        let on_discard = self.on_discard.take();
        thread::scope(|scope| {
            let spawner: Box<Spawner<'_>> = Box::new(move |worker| {
                named(&name, stack_size, &worker)
                    .spawn_scoped(scope, || worker.run())
                    .map(drop)
            });
            let (core, overflow) = self.core(spawner, on_discard, None)?;
            let pool = Scoped::new(Pool::new(Owner::of(core, None), overflow));
            pool.core().start_least().map_err(PoolError::Spawn)?;
            Ok(pool.run(body))
        })
    }

    fn core<'j>(
        self,
        spawner: Box<Spawner<'j>>,
        on_discard: Option<Box<DiscardHook>>,
        parent: Option<&Arc<Core<'j>>>,
    ) -> Result<(Arc<Core<'j>>, Overflow), PoolError> {
        let (least, most) = self.workers.check()?;
        let room = Room::checked(self.queue, self.queue_weight)?;
        // A sub-pool borrows a thread when it has work, and gives it back when it has none.
        let (least, keep_alive) = match parent {
            Some(_) => (0, Duration::ZERO),
            None => (least, self.keep_alive),
        };
        let elastic = least < most && parent.is_none();
        let clock = self.clock.unwrap_or_default();
        let growth = elastic.then(|| TokenBucket::new(self.growth).on(&clock));
        let settings = Settings {
            keep_alive,
            growth,
            clock,
            gate: self.gate,
            spawner,
            on_start: self.on_start,
            on_panic: self.on_panic,
            on_discard,
            quantum: parent.map(|_| QUANTUM),
            shared_slots: self.slots.is_some(),
        };
        let slots = self.slots.unwrap_or_else(|| Arc::new(Semaphore::new(most)));
        let core = Core::new(
            next_id(),
            parent.map(|parent| parent.family),
            (least, most),
            room,
            slots,
            settings,
        );
        Ok((Arc::new(core), self.overflow))
    }
}

fn named(name: &str, stack_size: Option<usize>, worker: &WorkerThread<'_>) -> thread::Builder {
    let builder = thread::Builder::new().name(format!("{name}-{}", worker.index()));
    match stack_size {
        Some(bytes) => builder.stack_size(bytes),
        None => builder,
    }
}

/// What the timer of a pool that grows later wakes.
struct Regrow(Weak<Core<'static>>);

impl Wake for Regrow {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            core.grow_now();
        }
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("workers", &self.workers)
            .field("queue", &self.queue)
            .field("overflow", &self.overflow)
            .finish_non_exhaustive()
    }
}
