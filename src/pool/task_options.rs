//! The options of a task.

use super::engine::group_limit::{GroupLimit, Membership};
use super::group::StopFlag;
use crate::core::ask::Ask;
use crate::time::Instant;
use std::sync::Arc;

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

/// The options of a task that has any.
#[derive(Clone)]
pub(super) struct TaskOptions {
    pub(super) priority: Priority,
    /// The queue weight that the task takes.
    pub(super) weight: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
    /// Its membership, if its group has a limit.
    pub(super) member: Option<Arc<Membership>>,
    /// The flag of its group, if the pool has a policy or shared slots: a task of a group that has failed takes no token.
    pub(super) stop: Option<StopFlag>,
}

impl TaskOptions {
    /// Returns true if the group of the task has failed or was cancelled.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(StopFlag::is_stopped)
    }
}

/// The options of the tasks that are submitted through one clone of a pool. The default is normal priority, weight 1, no deadline, and an
/// ask of one call.
#[derive(Clone)]
pub(super) struct PoolOptions {
    /// The options of each task, without a membership.
    pub(super) task: TaskOptions,
    /// The limit of the submitting group.
    pub(super) limit: Option<Arc<GroupLimit>>,
    /// True if all options have their defaults: then a task has none.
    pub(super) is_common: bool,
}

impl PoolOptions {
    pub(super) const DEFAULT: Self = Self {
        task: TaskOptions {
            priority: Priority::Normal,
            weight: 1,
            deadline: None,
            ask: Ask::one(),
            member: None,
            stop: None,
        },
        limit: None,
        is_common: true,
    };

    /// Returns the options with a change.
    pub(super) fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut options = self.clone();
        change(&mut options);
        let task = &options.task;
        let is_of_group = options.limit.is_some() || task.stop.is_some();
        let is_plain = task.priority == Priority::Normal && task.weight == 1 && task.deadline.is_none();
        options.is_common = is_plain && task.ask == Ask::one() && !is_of_group;
        options
    }

    /// Makes the options of one more task.
    #[inline]
    pub(super) fn of_task(&self) -> Option<TaskOptions> {
        (!self.is_common).then(|| self.special())
    }

    #[cold]
    fn special(&self) -> TaskOptions {
        TaskOptions {
            member: self.limit.as_ref().map(GroupLimit::member),
            ..self.task.clone()
        }
    }
}
