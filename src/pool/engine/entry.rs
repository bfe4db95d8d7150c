//! An entry of the queue: a task. One without a handle and options is inside its entry, any other has a cell.

use super::group_limit::Membership;
use super::scheduler::Kind;
use crate::core::ask::Ask;
use crate::pool::cell::Queued as _;
use crate::pool::error::TaskError;
use crate::pool::hooks::drop_quietly;
use crate::pool::task_options::{Priority, TaskOptions};
use std::sync::Arc;

/// An entry of the queue. It costs no allocation beside the cell that a task shares with its handle, and that of a large closure.
pub(in crate::pool) struct Entry<K: Kind>(pub(in crate::pool) Body<K>);

/// Two variants, since the niche of an inline closure holds only one more: a tag would make the entry larger.
pub(in crate::pool) enum Body<K: Kind> {
    Inline(K::Inline),
    /// In a lane, the next entry of the lane shares the space if it has a cell as well.
    Cell(Arc<K::Run>, Option<Arc<K::Run>>),
}

impl<K: Kind> Entry<K> {
    #[inline]
    pub(in crate::pool) fn of(task: Arc<K::Run>) -> Self {
        Self(Body::Cell(task, None))
    }

    /// Returns the number of entries in this space of a lane.
    #[inline]
    pub(super) fn count(&self) -> usize {
        1 + usize::from(matches!(self.0, Body::Cell(_, Some(_))))
    }

    /// Returns true if an entry in this space of a lane is live.
    pub(super) fn any_is_live(&self) -> bool {
        self.is_live() || matches!(&self.0, Body::Cell(_, Some(next)) if next.is_queued())
    }

    /// Returns the task, if it has a cell.
    #[inline]
    pub(in crate::pool) fn task(&self) -> Option<&Arc<K::Run>> {
        match &self.0 {
            Body::Cell(task, _) => Some(task),
            Body::Inline(_) => None,
        }
    }

    /// Returns the options of the task, if it has any.
    #[inline]
    pub(in crate::pool) fn options(&self) -> Option<&TaskOptions> {
        self.task()?.options()
    }

    /// Returns true for an entry of normal priority and weight 1, without other options.
    #[inline]
    pub(in crate::pool) fn is_common(&self) -> bool {
        self.options().is_none()
    }

    /// Returns false if the task has been claimed: the entry is dead.
    pub(in crate::pool) fn is_live(&self) -> bool {
        self.task().is_none_or(|task| task.is_queued())
    }

    /// Claims the task: no other entry or handle starts it from now on. Returns false if it was claimed before.
    #[inline]
    pub(in crate::pool) fn claim(&self) -> bool {
        self.task().is_none_or(|task| task.claim())
    }

    /// Returns the queue weight of the task.
    #[inline]
    pub(in crate::pool) fn weight(&self) -> u32 {
        self.options().map_or(1, |options| options.weight)
    }

    #[inline]
    pub(in crate::pool) fn priority(&self) -> Priority {
        self.options().map_or(Priority::Normal, |options| options.priority)
    }

    pub(in crate::pool) fn ask(&self) -> Ask {
        self.options().map_or(Ask::one(), |options| options.ask)
    }

    /// Returns the task's membership in its group, if the group has a limit.
    #[inline]
    pub(in crate::pool) fn member(&self) -> Option<&Arc<Membership>> {
        self.options().and_then(|options| options.member.as_ref())
    }

    /// Ends the claimed task without running it. Returns false if it was cancelled since.
    pub(in crate::pool) fn refuse(self, why: TaskError) -> bool {
        let ended = self.task().is_none_or(|task| task.refuse(why));
        drop_quietly(self);
        ended
    }
}
