//! The builder of pools, of threads and of async tasks, and their number of workers.

use super::admission::Admission;
use super::capacity::Overflow;
use super::engine::scheduler::Settings;
use super::error::PoolError;
use super::hooks::opaque_debug;
use crate::core::limiter::Limiter;
use crate::policy::Policy;
use crate::semaphore::Semaphore;
use crate::time::Clock;
use std::any::Any;
use std::fmt;
use std::ops::{RangeInclusive, RangeToInclusive};
use std::sync::Arc;

/// Builds a pool of [threads](super::PoolBuilder) or of [async tasks](super::TaskPoolBuilder). The first methods below
/// apply to both.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # use tollgate::{WorkerPool, pool::Overflow};
/// let panics = Arc::new(Mutex::new(Vec::new()));
/// let log = panics.clone();
/// let pool = WorkerPool::builder()
///     .max_queue(100)
///     .overflow(Overflow::Reject)
///     .on_panic(move |payload| log.lock().unwrap().push(*payload.downcast::<&str>().unwrap()))
///     .build()?;
/// pool.execute(|| panic!("bad input")).unwrap();
/// pool.wait_idle();
/// assert_eq!(*panics.lock().unwrap(), ["bad input"]);
/// # Ok::<(), tollgate::pool::PoolError>(())
/// ```
#[must_use = "a builder builds nothing by itself"]
pub struct Builder<K> {
    pub(super) settings: Settings,
    pub(super) kind: K,
}

impl<K> Builder<K> {
    pub(super) fn of(kind: K) -> Self {
        let settings = Settings {
            max_queue: 1024,
            max_queue_weight: None,
            clock: Clock::default(),
            admission: Admission {
                gate: None,
                slots: None,
            },
            overflow: Overflow::Block,
            on_panic: None,
        };
        Self { settings, kind }
    }

    /// Sets the most tasks that may wait; 1,024 unless set. Tasks of the pool itself may exceed it: see
    /// [`Overflow::Block`].
    pub fn max_queue(mut self, tasks: usize) -> Self {
        self.settings.max_queue = tasks;
        self
    }

    /// Sets the most weight that all waiting tasks may have together; unbounded unless set.
    pub fn max_queue_weight(mut self, weight: u32) -> Self {
        self.settings.max_queue_weight = Some(weight);
        self
    }

    /// Sets the treatment of a task that finds the queue full. In a pool of async tasks the submitter awaits room.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.settings.overflow = overflow;
        self
    }

    /// Sets the clock for deadlines and for the starts and exits of threads; a real one unless set.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.settings.clock = clock.clone();
        self
    }

    /// Sets the slots: a task runs while it holds a permit of this semaphore. Unless set, the pool makes a semaphore
    /// with one permit per worker that it may have.
    ///
    /// Share the semaphore to bound several pools together, or to let other code set the limit. At no moment do more
    /// tasks start than it has permits. One more thread of a pool, if it may have one, waits for the next permit.
    /// Closing the semaphore closes the pool when its next task asks, and abandons the tasks that have not started.
    ///
    /// The limit of these slots replaces the number of async tasks for which a `TaskPool` was built. Resizing one of
    /// the pools changes the limit for all.
    ///
    /// **Deadlock**: a task that holds one of these slots cannot wait for a task of any pool that needs one. Its wait
    /// ends with [`WouldDeadlock`](super::TaskError::WouldDeadlock).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// # use tollgate::{Semaphore, WorkerPool};
    /// let (cap, started) = (Arc::new(Semaphore::new(2)), Arc::new(AtomicUsize::new(0)));
    /// let count = Arc::clone(&started);
    /// let pool = WorkerPool::builder()
    ///     .workers(2)
    ///     .slots(Arc::clone(&cap))
    ///     .max_queue(100)
    ///     .max_queue_weight(500)
    ///     .name("reports")
    ///     .stack_size(1 << 20)
    ///     .on_start(move || drop(count.fetch_add(1, Ordering::Relaxed)))
    ///     .build()?;
    /// let used = Arc::clone(&cap);
    /// assert_eq!(pool.run(move || used.in_use())?, 1);
    /// assert!(started.load(Ordering::Relaxed) >= 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slots(mut self, slots: Arc<Semaphore>) -> Self {
        self.settings.admission.slots = Some(slots);
        self
    }

    /// Sets the policy that admits each task before it starts, in turn. The policy is asked for the task's
    /// [`ask`](super::Pool::ask). A task that can never be admitted ends with
    /// [`TaskError::Refused`](super::TaskError::Refused). The permit ends as a success, or as a failure if the task
    /// panics. It counts for nothing if the task is cancelled while it runs.
    ///
    /// One worker at a time asks, for the first task, and holds no slot meanwhile. The task stays in the queue until it
    /// is admitted.
    ///
    /// # Tasks that wait for tasks
    /// **Deadlock**: a task cannot wait for a task that needs a permit that the waiting task holds. Its wait ends with
    /// [`WouldDeadlock`](super::TaskError::WouldDeadlock). A rate has no permits.
    ///
    /// # Fairness
    /// A task starts when its worker finds both a slot and the admission.
    ///
    /// **Starvation**: a task can be passed over again and again if the slots are shared, and one becomes free only
    /// when the policy has let another waiter pass. Then give each pool slots of its own, or use a policy whose queue
    /// others do not keep full.
    pub fn admit_by<L: Limiter + 'static>(mut self, policy: Policy<L>) -> Self {
        self.settings.admission.gate = Some(Arc::new(policy));
        self
    }

    /// Sets the hook that takes the payload when a task panics and has no handle, or no longer has one. Without a hook,
    /// the payload is dropped.
    pub fn on_panic(mut self, hook: impl Fn(Box<dyn Any + Send>) + Send + Sync + 'static) -> Self {
        self.settings.on_panic = Some(Box::new(hook));
        self
    }
}

opaque_debug!(
    [K: fmt::Debug] Builder<K>, "Builder", |this|
    kind = this.kind, max_queue = this.settings.max_queue, overflow = this.settings.overflow
);

/// The most workers that a pool may have: 65,536.
pub const MAX_WORKERS: usize = 1 << 16;

/// The number of workers: a number, or a range whose minimum is always running.
///
/// ```
/// # use tollgate::WorkerPool;
/// let fixed = WorkerPool::builder().workers(2).build()?;
/// assert_eq!((fixed.stats().threads, fixed.stats().limit), (2, 2));
/// let elastic = WorkerPool::builder().workers(1..=4).build()?;
/// assert_eq!((elastic.stats().threads, elastic.stats().limit), (1, 4));
/// # Ok::<(), tollgate::pool::PoolError>(())
/// ```
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
    pub(super) fn most(&self) -> usize {
        *self.0.end()
    }

    pub(super) fn check(self) -> Result<(usize, usize), PoolError> {
        let (least, most) = self.0.into_inner();
        if least == 0 || least > most || most > MAX_WORKERS {
            return Err(PoolError::Workers { least, most });
        }
        Ok((least, most))
    }
}
