//! The options of a task.

use super::engine::group_limit::{GroupLimit, Membership};
use crate::core::ask::Ask;
use crate::time::{Clock, Instant};
use std::sync::Arc;
use std::time::Duration;

/// The order in which tasks leave the queue. Within one priority: first come, first served.
///
/// # Fairness
/// After [`AGEING`] tasks that overtook waiting ones of lower priority, one of these starts. None starves.
///
/// ```
/// # use std::sync::{Mutex, mpsc};
/// # use tollgate::{WorkerPool, pool::Priority};
/// let started = Mutex::new(Vec::new());
/// let (go, waits) = mpsc::channel::<()>();
/// WorkerPool::builder().workers(1).scope(|pool| {
///     pool.execute(move || waits.recv().unwrap()).unwrap();
///     for priority in [Priority::Low, Priority::Normal, Priority::High] {
///         let started = &started;
///         pool.priority(priority).execute(move || started.lock().unwrap().push(priority)).unwrap();
///     }
///     go.send(()).unwrap();
/// })?;
/// assert_eq!(started.into_inner().unwrap(), [Priority::High, Priority::Normal, Priority::Low]);
/// # Ok::<(), tollgate::pool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// After all others.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// The number of tasks that may overtake waiting ones of lower priority before one of these starts.
pub const AGEING: u32 = 32;

/// The options that few tasks have.
#[derive(Clone)]
pub(super) struct RareOptions {
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
    /// Its membership, if its group has a limit.
    pub(super) member: Option<Arc<Membership>>,
}

impl RareOptions {
    pub(super) fn of(options: &TaskOptions, member: Option<&Arc<Membership>>) -> Self {
        Self {
            deadline: options.deadline,
            ask: options.ask,
            member: member.map(Arc::clone),
        }
    }
}

/// The options of a task. The default is normal priority, weight 1, no deadline, and an ask of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskOptions {
    pub(super) priority: Priority,
    pub(super) weight: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
    /// True without a deadline, an ask of its own, and a group limit: then an entry need not keep them.
    pub(super) plain: bool,
}

impl TaskOptions {
    pub(super) const DEFAULT: Self = Self {
        priority: Priority::Normal,
        weight: 1,
        deadline: None,
        ask: Ask::one(),
        plain: true,
    };

    /// Returns true if all options have their defaults.
    #[inline]
    pub(super) fn is_common(&self) -> bool {
        self.plain && self.weight == 1 && self.priority == Priority::Normal
    }
}

/// A pool whose clock measures deadlines.
pub trait Clocked {
    #[doc(hidden)]
    fn clock(&self) -> &Clock;
}

/// Submits tasks to a pool, with options. It is `Copy`: make one for each kind of task.
/// [`Pool::priority`](super::Pool::priority), `weight`, `deadline` and `ask` return one, and so do those of a
/// `TaskPool`.
///
/// ```
/// # use tollgate::{WorkerPool, pool::Priority};
/// let pool = WorkerPool::builder().workers(1).build()?;
/// let urgent = pool.priority(Priority::High).weight(3);
/// assert_eq!(urgent.submit(|| 6 * 7)?.join()?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it submits nothing by itself"]
pub struct SubmitBuilder<'p, P> {
    pub(super) pool: &'p P,
    pub(super) options: TaskOptions,
    /// The limit of the submitting group. It is beside `spec`, which is not `plain` then.
    pub(super) limit: Option<&'p Arc<GroupLimit>>,
}

impl<P> Clone for SubmitBuilder<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for SubmitBuilder<'_, P> {}

impl<'p, P: Clocked> SubmitBuilder<'p, P> {
    #[inline]
    pub(super) fn new(pool: &'p P) -> Self {
        let options = TaskOptions::DEFAULT;
        let limit = None;
        Self { pool, options, limit }
    }

    /// Makes the membership of one more task, if its group has a limit.
    #[inline]
    pub(super) fn member(&self) -> Option<Arc<Membership>> {
        self.limit.map(GroupLimit::member)
    }

    /// Sets the priority of the tasks.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = priority;
        self
    }

    /// Sets the weight of each task, which counts against the [`queue_weight`](super::Builder::queue_weight); 0 counts
    /// as 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.options.weight = weight.max(1);
        self
    }

    /// Sets the deadline to `within` from now. A task that has not started by then ends with
    /// [`TaskError::Expired`](super::TaskError::Expired), when its turn comes.
    pub fn deadline(mut self, within: Duration) -> Self {
        let clock = self.pool.clock();
        self.options.deadline = Some(clock.after(clock.now(), within));
        self.options.plain = false;
        self
    }

    /// Sets the ask that the policy of [`admit_by`](super::Builder::admit_by) is asked for; one call unless set.
    pub fn ask(mut self, ask: impl Into<Ask>) -> Self {
        self.options.ask = ask.into();
        self.options.plain = false;
        self
    }
}
