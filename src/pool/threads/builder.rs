//! The builder of pools of threads, and their thread spawners.

use super::kind::{Core, Settings, Spawner, Threads};
use super::pool::{Scoped, WorkerPool};
use super::worker::WorkerThread;
use crate::pool::builder::Builder;
use crate::pool::common::Pool;
use crate::pool::error::PoolError;
use crate::pool::hooks::opaque_debug;
use crate::pool::report::Unstarted;
use crate::pool::workers::Workers;
use crate::rate::{Quota, TokenBucket};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

type ThreadHook = dyn Fn(Unstarted<Threads<'_>>) + Send + Sync;

/// Builds a [`WorkerPool`], or a pool for a scope.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::WorkerPool;
/// let builder = WorkerPool::builder().workers(1..=8).keep_alive(Duration::from_secs(60));
/// let pool = builder.name("resize").build()?;
/// let name = pool.run(|| std::thread::current().name().map(str::to_owned))?;
/// assert!(name.is_some_and(|name| name.starts_with("resize-")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type PoolBuilder = Builder<ThreadOptions>;

/// The settings of a pool of threads, beyond those of every [`Builder`].
///
/// ```
/// # use tollgate::WorkerPool;
/// thread_local!(static LOCALE: std::cell::Cell<&'static str> = const { std::cell::Cell::new("C") });
/// let pool = WorkerPool::builder().on_start(|| LOCALE.set("de")).build()?;
/// assert_eq!(pool.run(|| LOCALE.get())?, "de");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ThreadOptions {
    workers: Workers,
    keep_alive: Duration,
    growth: Quota,
    name: String,
    stack_size: Option<usize>,
    on_start: Option<Arc<dyn Fn() + Send + Sync>>,
    on_discard: Option<Box<ThreadHook>>,
    spawner: Option<Box<Spawner<'static>>>,
}

impl Default for Builder<ThreadOptions> {
    fn default() -> Self {
        Self::of(ThreadOptions {
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

impl Builder<ThreadOptions> {
    /// Sets the number of tasks that run at once; one per processor unless set. A number makes a fixed pool, a range an
    /// elastic one. An elastic pool starts a thread when a task finds no idle worker. It ends threads above the minimum that
    /// have been idle for [`keep_alive`](Self::keep_alive).
    pub fn workers(mut self, workers: impl Into<Workers>) -> Self {
        self.kind.workers = workers.into();
        self
    }

    /// Sets how long a thread above the minimum stays without work; 10 s unless set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Quota, WorkerPool};
    /// let pool = WorkerPool::builder()
    ///     .workers(1..=8)
    ///     .growth(Quota::per_second(100).burst(4))
    ///     .keep_alive(Duration::from_secs(10))
    ///     .build()?;
    /// assert_eq!(pool.run(|| 1)?, 1);
    /// assert!(pool.stats().threads <= 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.kind.keep_alive = keep_alive;
        self
    }

    /// Sets the rate at which an elastic pool starts threads above its minimum; 100 per second after a burst of 16 unless
    /// set. A pool that may not start a thread yet tries again when a task is submitted or taken. Pools without a scope also
    /// try again on a timer.
    pub fn growth(mut self, quota: Quota) -> Self {
        self.kind.growth = quota;
        self
    }

    /// Sets the name of the threads, which a dash and the worker's number follow; `worker` unless set. It must contain no
    /// zero byte.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.kind.name = name.into();
        self
    }

    /// Sets the stack size of a thread, in bytes.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.kind.stack_size = Some(bytes);
        self
    }

    /// Runs `hook` in each thread before its first task. The pool ignores a panic of the hook.
    pub fn on_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.kind.on_start = Some(Arc::new(hook));
        self
    }

    /// Passes each task that a full queue discards to `hook`. Without a hook, the pool drops them.
    pub fn on_discard(mut self, hook: impl Fn(Unstarted<Threads<'_>>) + Send + Sync + 'static) -> Self {
        self.kind.on_discard = Some(Box::new(hook));
        self
    }

    /// Starts threads by `spawn` instead of the standard library. `spawn` must run [`WorkerThread::run`] on a thread of its
    /// own, and sets that thread's name and stack size. A panic of `spawn` counts as a thread that could not be started.
    /// Scopes start their own threads.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// # use tollgate::WorkerPool;
    /// let threads = Arc::new(AtomicUsize::new(0));
    /// let count = Arc::clone(&threads);
    /// let pool = WorkerPool::builder()
    ///     .workers(1)
    ///     .spawn_with(move |worker| {
    ///         count.fetch_add(1, Ordering::Relaxed);
    ///         std::thread::Builder::new().spawn(|| worker.run()).map(drop)
    ///     })
    ///     .build()?;
    /// assert_eq!((pool.run(|| 1)?, threads.load(Ordering::Relaxed)), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn_with(
        mut self,
        spawn: impl Fn(WorkerThread<'static>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.kind.spawner = Some(Box::new(spawn));
        self
    }

    /// Builds the pool and starts its minimum of threads.
    ///
    /// # Errors
    /// [`PoolError`]: an invalid number or name, or a thread that could not be started. Then no thread remains.
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

    /// Runs `body` with a pool whose tasks may borrow data that outlives this call. All tasks have ended when it returns. A
    /// task that submits others captures a clone of the pool.
    ///
    /// # Errors
    /// [`PoolError`]: an invalid number or name, or a thread that could not be started. Then `body` has not run.
    ///
    /// # Panics
    /// If `body` panics. Tasks that have not started are then dropped.
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
        on_discard: Option<Box<ThreadHook>>,
    ) -> Result<Arc<Core<'j>>, PoolError> {
        let Self { common, kind } = self;
        let (least, most) = kind.workers.check()?;
        let clock = common.clock();
        let kind = Threads::new(Settings {
            keep_alive: kind.keep_alive,
            growth: (least < most).then(|| TokenBucket::new(kind.growth).on(&clock)),
            spawner,
            on_start: kind.on_start,
            on_discard,
        });
        let core = common.engine(most, clock, kind)?;
        core.look().least = least;
        Ok(core)
    }
}

impl ThreadOptions {
    pub(in crate::pool) fn most(&self) -> usize {
        self.workers.most()
    }

    /// Takes the name, and checks that the system accepts it.
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

opaque_debug!([] ThreadOptions, "ThreadOptions", |this| workers = this.workers);
