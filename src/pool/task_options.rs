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

/// The options that few tasks have.
#[derive(Clone)]
pub(super) struct RareOptions {
    /// The queue weight that the task takes.
    pub(super) weight: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
    /// Its membership, if its group has a limit.
    pub(super) member: Option<Arc<Membership>>,
    /// The flag of its group, if the pool has a policy or shared slots: a task of a group that has failed takes no token.
    pub(super) stop: Option<StopFlag>,
}

impl RareOptions {
    /// Returns true if the group of the task has failed or was cancelled.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(StopFlag::is_stopped)
    }
}

/// The options of a task. The default is normal priority, weight 1, no deadline, and an ask of one call.
#[derive(Clone)]
pub(super) struct TaskOptions {
    pub(super) priority: Priority,
    /// The options that few tasks have, without a membership.
    pub(super) rare: RareOptions,
    /// The limit of the submitting group.
    pub(super) limit: Option<Arc<GroupLimit>>,
    /// True if all options have their defaults.
    pub(super) is_common: bool,
}

impl TaskOptions {
    pub(super) const DEFAULT: Self = Self {
        priority: Priority::Normal,
        rare: RareOptions {
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
        options.is_common = options.is_plain() && options.priority == Priority::Normal;
        options
    }

    /// Returns true if no option is one of the [`RareOptions`]: then an entry need not keep them.
    fn is_plain(&self) -> bool {
        let rare = &self.rare;
        let is_of_group = self.limit.is_some() || rare.stop.is_some();
        rare.weight == 1 && rare.deadline.is_none() && rare.ask == Ask::one() && !is_of_group
    }

    /// Makes the membership of one more task, if its group has a limit.
    #[inline]
    pub(super) fn member(&self) -> Option<Arc<Membership>> {
        self.limit.as_ref().map(GroupLimit::member)
    }

    /// Returns the options that few tasks have, for a task that has one.
    #[inline]
    pub(super) fn rare_for(&self, member: Option<&Arc<Membership>>) -> Option<Box<RareOptions>> {
        let is_rare = !self.is_common && !self.is_plain();
        is_rare.then(|| {
            Box::new(RareOptions {
                member: member.map(Arc::clone),
                ..self.rare.clone()
            })
        })
    }
}
