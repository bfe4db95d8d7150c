//! The options of a task.

use super::engine::group_limit::{GroupLimit, Membership};
use super::entry::Priority;
use crate::core::ask::Ask;
use crate::time::{Clock, Instant};
use std::sync::Arc;
use std::time::Duration;

/// The options of a task. The default is normal priority, weight 1, no deadline, and an ask of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) priority: Priority,
    pub(super) weight: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
    /// True without a deadline, an ask of its own, and a group limit: then an entry need not keep them.
    pub(super) plain: bool,
}

impl Spec {
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
pub struct Submit<'p, P> {
    pub(super) pool: &'p P,
    pub(super) spec: Spec,
    /// The limit of the submitting group. It is beside `spec`, which is not `plain` then.
    pub(super) limit: Option<&'p Arc<GroupLimit>>,
}

impl<P> Clone for Submit<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Submit<'_, P> {}

impl<'p, P: Clocked> Submit<'p, P> {
    #[inline]
    pub(super) fn new(pool: &'p P) -> Self {
        let spec = Spec::DEFAULT;
        let limit = None;
        Self { pool, spec, limit }
    }

    /// Makes the membership of one more task, if its group has a limit.
    #[inline]
    pub(super) fn member(&self) -> Option<Arc<Membership>> {
        self.limit.map(GroupLimit::member)
    }

    /// Sets the priority of the tasks.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.spec.priority = priority;
        self
    }

    /// Sets the weight of each task, which counts against the [`queue_weight`](super::Builder::queue_weight); 0 counts
    /// as 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.spec.weight = weight.max(1);
        self
    }

    /// Sets the deadline to `within` from now. A task that has not started by then ends with
    /// [`TaskError::Expired`](super::TaskError::Expired), when its turn comes.
    pub fn deadline(mut self, within: Duration) -> Self {
        let clock = self.pool.clock();
        self.spec.deadline = Some(clock.after(clock.now(), within));
        self.spec.plain = false;
        self
    }

    /// Sets the ask that the policy of [`admit_by`](super::Builder::admit_by) is asked for; one call unless set.
    pub fn ask(mut self, ask: impl Into<Ask>) -> Self {
        self.spec.ask = ask.into();
        self.spec.plain = false;
        self
    }
}
