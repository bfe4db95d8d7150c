//! Pools of threads, their builder, and their thread spawners.

use super::kind::{Core, Spawner, ThreadHook, Threads};
use super::worker::WorkerThread;
use crate::pool::builder::{Builder, Workers};
use crate::pool::common::Pool;
use crate::pool::error::{PoolError, TaskError};
use crate::pool::hooks::opaque_debug;
use crate::pool::report::{ShutdownReport, Unstarted};
use crate::pool::termination::Until;
use crate::rate::{Quota, TokenBucket};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

/// Runs tasks on worker threads, with a bounded queue. Cheap to clone; clones are the same pool.
///
/// Its tasks own what they use. Those of a [pool of a scope](PoolBuilder::scope) may borrow.
///
/// Dropping the last clone closes the pool and does not wait. Queued tasks still run, and then the threads end.
/// [`shutdown`](Pool::shutdown) waits, and [`abort`](Pool::abort) returns the tasks that have not started.
///
/// # Panics
/// A panic of a task does not end its worker. The handle of the task gets the payload.
///
/// # Fairness
/// First come, first served, by [`Priority`](crate::pool::Priority). A worker of a pool with a long queue takes up to 16 tasks of normal priority
/// at once, unless tasks with options wait. Other workers take these tasks over while it is busy, so none waits behind a
/// long task: each is next at the latest when 128 tasks per worker have been taken since.
///
/// # Memory ordering
/// Writes before a submission are visible to the task. Writes of the task are visible to the reader of its result.
///
/// ```
/// # use tollgate::WorkerPool;
/// # use std::time::Duration;
/// let pool = WorkerPool::builder().workers(2).max_queue(100).build()?;
/// let sum = pool.submit(|| (1..=10).sum::<u32>())?;
/// assert_eq!(sum.join()?, 55);
///
/// let report = pool.shutdown(Duration::from_secs(5));
/// assert!(report.is_clean());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type WorkerPool = Pool<Threads<'static>>;

impl WorkerPool {
    /// Returns a builder with the defaults: one worker per processor, a queue of 1,024 tasks, and submitters that wait while
    /// the queue is full.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }
}

impl<'j> Pool<Threads<'j>> {
    /// Runs `task` on the pool and waits for its result.
    ///
    /// # Errors
    /// [`TaskError`]: [`Abandoned`](TaskError::Abandoned) if the pool is closed.
    pub fn run<T, F>(&self, task: F) -> Result<T, TaskError>
    where
        F: FnOnce() -> T + Send + 'j,
        T: Send + 'j,
    {
        match self.submit(task) {
            Ok(handle) => handle.join(),
            Err(rejected) => Err(rejected.reason.into_error()),
        }
    }

    /// Changes the number of tasks that run at once, immediately: a number, or a range for an elastic pool. If more tasks
    /// run than the new limit, no task starts until enough have ended. Also sets the limit of the
    /// [slots](crate::pool::Builder::slots) that the pool was given.
    ///
    /// # Errors
    /// [`PoolError`]: an invalid number changes nothing. If a thread could not be started, the new bounds hold, and the next
    /// submission tries again.
    pub fn set_limit(&self, workers: impl Into<Workers>) -> Result<(), PoolError> {
        let (least, most) = workers.into().check()?;
        self.core().set_workers(least, most).map_err(PoolError::Spawn)
    }

    /// Waits for one moment at which every accepted task has ended. Returns false at once on a worker of this pool, whose
    /// own task would never end, and in the drop of a task of this pool that is cancelled.
    pub fn wait_idle(&self) -> bool {
        self.core().wait(None, Until::Idle)
    }

    /// Waits like [`wait_idle`](Self::wait_idle), for at most `patience`. Returns false on a timeout.
    pub fn wait_idle_timeout(&self, patience: Duration) -> bool {
        self.core().wait(Some(patience), Until::Idle)
    }

    /// Closes the pool, and waits until all tasks and threads have ended, for at most `deadline`. Then returns exactly the
    /// tasks that have not started.
    ///
    /// Does not wait on a worker of this pool, whose own task would never end, nor in the drop of a cancelled task of this pool.
    pub fn shutdown(&self, deadline: Duration) -> ShutdownReport<Threads<'j>> {
        self.core().close();
        self.core().wait(Some(deadline), Until::Gone);
        self.abort()
    }

    /// Stops the pool, and returns the tasks that have not started. Running tasks continue.
    pub fn abort(&self) -> ShutdownReport<Threads<'j>> {
        self.report()
    }
}

/// A [`Pool`] whose tasks may borrow from `'env`. [`PoolBuilder::scope`] passes it to its body. Cheap to clone; clones are
/// the same pool.
///
/// ```
/// # use tollgate::WorkerPool;
/// # use std::sync::atomic::{AtomicU32, Ordering};
/// let sum = AtomicU32::new(0);
/// WorkerPool::builder().workers(2).scope(|pool| {
///     let (inner, sum) = (pool.clone(), &sum);
///     let outer = pool.submit(move || {
///         let parts = [1, 2, 3].map(|n| inner.submit(move || sum.fetch_add(n, Ordering::Relaxed)).unwrap());
///         parts.into_iter().for_each(|part| drop(part.join().unwrap()));
///     });
///     outer.unwrap().join().unwrap();
/// })?;
/// assert_eq!(sum.into_inner(), 6);
/// # Ok::<(), tollgate::pool::PoolError>(())
/// ```
#[derive(Clone)]
pub struct Scoped<'scope, 'env: 'scope> {
    pool: Pool<Threads<'scope>>,
    // Invariant, like the standard library's scope: otherwise `'env` could be shortened.
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env> Scoped<'scope, 'env> {
    pub(in crate::pool) fn new(pool: Pool<Threads<'scope>>) -> Self {
        Self { pool, env: PhantomData }
    }

    /// Runs the body, and ends the pool even if the body panics: otherwise its threads would never end.
    pub(in crate::pool) fn run<R>(&self, body: impl FnOnce(&Self) -> R) -> R {
        struct EndOnPanic<'a, 'j>(&'a Pool<Threads<'j>>);
        impl Drop for EndOnPanic<'_, '_> {
            fn drop(&mut self) {
                drop(self.0.abort());
            }
        }
        let guard = EndOnPanic(&self.pool);
        let result = body(self);
        std::mem::forget(guard);
        self.pool.close();
        result
    }
}

impl<'scope> Deref for Scoped<'scope, '_> {
    type Target = Pool<Threads<'scope>>;
    fn deref(&self) -> &Pool<Threads<'scope>> {
        &self.pool
    }
}

opaque_debug!([] Scoped<'_, '_>, "Scoped", |this| pool = this.pool);

type DiscardHook = dyn Fn(Unstarted<Threads<'_>>) + Send + Sync;

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
    on_start: Option<Arc<ThreadHook>>,
    on_discard: Option<Box<DiscardHook>>,
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
        let core = self.core(spawner)?;
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
        thread::scope(|scope| {
            let spawner: Box<Spawner<'_>> = Box::new(move |worker| {
                named(&name, stack_size, &worker)
                    .spawn_scoped(scope, || worker.run())
                    .map(drop)
            });
            let core = self.core(spawner)?;
            let pool = Scoped::new(Pool::new(core));
            pool.core().start_least().map_err(PoolError::Spawn)?;
            Ok(pool.run(body))
        })
    }

    fn core<'j>(self, spawner: Box<Spawner<'j>>) -> Result<Arc<Core<'j>>, PoolError> {
        let Self { settings, kind } = self;
        let (least, most) = kind.workers.check()?;
        let growth = (least < most).then(|| TokenBucket::new(kind.growth).on(&settings.clock));
        let threads = Threads::new(kind.keep_alive, growth, spawner, kind.on_start);
        let core = Core::build(most, settings, kind.on_discard.map(|hook| hook as _), threads)?;
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
