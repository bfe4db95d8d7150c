//! Pools of threads: how they are built, and where their threads come from.

use super::admission::Admission;
use super::builder::Builder;
use super::core::{Core, DiscardHook, Entries, Settings, Spawner, Threads as Kind};
use super::engine::core::Settings as Common;
use super::entry::Unstarted;
use super::error::PoolError;
use super::face::{Pool, Scoped, WorkerPool};
use super::worker::WorkerThread;
use super::workers::Workers;
use crate::rate::{Quota, TokenBucket};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Builds a [`WorkerPool`], or a pool for a scope.
pub type PoolBuilder = Builder<Threads>;

/// What a pool of threads is told beside what every [`Builder`] knows.
pub struct Threads {
    workers: Workers,
    keep_alive: Duration,
    growth: Quota,
    name: String,
    stack_size: Option<usize>,
    on_start: Option<Arc<dyn Fn() + Send + Sync>>,
    on_discard: Option<Box<DiscardHook>>,
    spawner: Option<Box<Spawner<'static>>>,
}

impl Default for Builder<Threads> {
    fn default() -> Self {
        Self::of(Threads {
            workers: thread::available_parallelism().map_or(1, |n| n.get()).into(),
            keep_alive: Duration::from_secs(10),
            growth: Quota::per_second(100).burst(16),
            name: "worker".into(),
            stack_size: None,
            on_start: None,
            on_discard: None,
            spawner: None,
        })
    }
}

impl Builder<Threads> {
    /// How many tasks run at once: as many as the machine has processors unless set. A number makes a fixed pool, a
    /// range an elastic one: it starts a thread when a task finds no worker idle, and lets those above the least go when
    /// they have been idle for [`keep_alive`](Self::keep_alive).
    pub fn workers(mut self, workers: impl Into<Workers>) -> Self {
        self.kind.workers = workers.into();
        self
    }

    /// How long a thread above the least stays without work; 10 s unless set.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.kind.keep_alive = keep_alive;
        self
    }

    /// How fast an elastic pool starts threads above its least: 100 a second after a burst of 16 unless set. A pool
    /// for a scope that has been refused a thread asks again when a task is submitted or taken; others do by a timer as well.
    pub fn growth(mut self, quota: Quota) -> Self {
        self.kind.growth = quota;
        self
    }

    /// What threads are called: `worker` unless set, followed by a dash and the worker's number. It holds no zero byte.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.kind.name = name.into();
        self
    }

    /// How many bytes of stack a thread has.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.kind.stack_size = Some(bytes);
        self
    }

    /// Runs in each thread before its first task. A panic of it is ignored.
    pub fn on_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.kind.on_start = Some(Arc::new(hook));
        self
    }

    /// Is given each task that a full queue throws out. Without, they are dropped.
    pub fn on_discard(mut self, hook: impl Fn(Unstarted<'_>) + Send + Sync + 'static) -> Self {
        self.kind.on_discard = Some(Box::new(hook));
        self
    }

    /// Starts threads by `spawn` instead of the standard library: it is to run [`WorkerThread::run`] on a thread of
    /// its own. Name and stack size are its business then. A panic of it counts as a thread that could not be started.
    /// Scopes start their own threads.
    pub fn spawn_with(
        mut self,
        spawn: impl Fn(WorkerThread<'static>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.kind.spawner = Some(Box::new(spawn));
        self
    }

    /// Builds the pool and starts the least of its threads.
    ///
    /// # Errors
    /// [`PoolError`]: numbers or a name that make no sense, or a thread that could not be started. Nothing is left behind
    /// then.
    pub fn build(mut self) -> Result<WorkerPool, PoolError> {
        let spawner = match self.kind.spawner.take() {
            Some(spawner) => spawner,
            None => {
                let (name, stack_size) = (self.kind.checked_name()?, self.kind.stack_size);
                Box::new(move |worker| named(&name, stack_size, &worker).spawn(|| worker.run()).map(drop))
            }
        };
        let on_discard = self.kind.on_discard.take();
        let core = self.core(spawner, on_discard)?;
        core.know_itself();
        let pool = Pool::new(core);
        pool.core().start_least().map_err(PoolError::Spawn)?;
        Ok(pool)
    }

    /// Runs `body` with a pool whose tasks may borrow whatever outlives this call. All tasks have ended when it
    /// returns. A task that submits others takes a clone of the pool with it.
    ///
    /// # Errors
    /// [`PoolError`]: numbers or a name that make no sense, or a thread that could not be started; `body` has not been
    /// called.
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
        let (name, stack_size) = (self.kind.checked_name()?, self.kind.stack_size);
        let on_discard = self.kind.on_discard.take();
        thread::scope(|scope| {
            let spawner: Box<Spawner<'_>> = Box::new(move |worker| {
                named(&name, stack_size, &worker)
                    .spawn_scoped(scope, || worker.run())
                    .map(drop)
            });
            let core = self.core(spawner, on_discard)?;
            let pool = Scoped::new(Pool::new(core));
            pool.core().start_least().map_err(PoolError::Spawn)?;
            Ok(pool.run(body))
        })
    }

    fn core<'j>(
        self,
        spawner: Box<Spawner<'j>>,
        on_discard: Option<Box<DiscardHook>>,
    ) -> Result<Arc<Core<'j>>, PoolError> {
        let Self { common, kind } = self;
        let (least, most) = kind.workers.check()?;
        let room = common.room()?;
        let clock = common.clock();
        let threads = Settings {
            keep_alive: kind.keep_alive,
            growth: (least < most).then(|| TokenBucket::new(kind.growth).on(&clock)),
            spawner,
            on_start: kind.on_start,
            on_discard,
        };
        let settings = Common {
            clock,
            admission: Admission {
                slots: common.given_slots(),
                gate: common.gate,
            },
            overflow: common.overflow,
            on_panic: common.on_panic,
        };
        let core = Arc::new(Core::new(Entries::default(), most, room, settings, Kind::new(threads)));
        core.look().least = least;
        Ok(core)
    }
}

impl Threads {
    pub(super) fn most(&self) -> usize {
        self.workers.most()
    }

    /// The name, taken: threads must not be started with one that the system cannot take.
    fn checked_name(&mut self) -> Result<String, PoolError> {
        let given = std::mem::take(&mut self.name);
        if given.contains('\0') {
            return Err(PoolError::Name { given });
        }
        Ok(given)
    }
}

fn named(name: &str, stack_size: Option<usize>, worker: &WorkerThread<'_>) -> thread::Builder {
    let builder = thread::Builder::new().name(format!("{name}-{}", worker.index()));
    match stack_size {
        Some(bytes) => builder.stack_size(bytes),
        None => builder,
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}
