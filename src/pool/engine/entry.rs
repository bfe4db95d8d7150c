//! An entry of the queue: a task, its weight, and its options.

use super::group_limit::Membership;
use super::scheduler::Kind;
use crate::core::ask::Ask;
use crate::pool::cell::Queued as _;
use crate::pool::error::TaskError;
use crate::pool::hooks::drop_quietly;
use crate::pool::task_options::{Priority, RareOptions, TaskOptions};
use std::sync::Arc;

/// An entry of the queue. Beside the cell that a task shares with its handle, it costs no allocation without options.
pub(in crate::pool) struct Entry<K: Kind>(pub(in crate::pool) Body<K>);

/// Two variants, since the niche of an inline closure holds only one more: a tag would make the entry larger.
pub(in crate::pool) enum Body<K: Kind> {
    Inline(K::Inline),
    /// In a lane, the next entry of the lane shares the space if it has an allocation of its own as well.
    Boxed(Boxed<K>, Option<Boxed<K>>),
}

/// A task in an allocation of its own.
pub(in crate::pool) enum Boxed<K: Kind> {
    /// A task without a handle.
    Own(K::Own),
    /// A task that has, or had, a handle.
    Held(Arc<K::Run>),
    /// A task with a priority, a weight or options.
    Special(Box<Special<K>>),
    /// The second entry of a queued task that another task awaits.
    Awaited(Box<Special<K>>),
}

/// An entry with a priority, a weight or options.
pub(in crate::pool) struct Special<K: Kind> {
    pub(in crate::pool) entry: Entry<K>,
    priority: Priority,
    rare: Option<Box<RareOptions>>,
}

impl<K: Kind> Boxed<K> {
    #[inline]
    fn special(&self) -> Option<&Special<K>> {
        match self {
            Self::Special(special) | Self::Awaited(special) => Some(special),
            _ => None,
        }
    }

    #[inline]
    fn task(&self) -> Option<&Arc<K::Run>> {
        match self {
            Self::Held(task) => Some(task),
            Self::Special(special) | Self::Awaited(special) => special.entry.task(),
            Self::Own(_) => None,
        }
    }
}

impl<K: Kind> Entry<K> {
    #[inline]
    pub(in crate::pool) fn boxed(body: Boxed<K>) -> Self {
        Self(Body::Boxed(body, None))
    }

    #[inline]
    pub(in crate::pool) fn held(task: Arc<K::Run>, options: &TaskOptions, member: Option<&Arc<Membership>>) -> Self {
        Self::boxed(Boxed::Held(task)).with(options, member)
    }

    /// Creates the second entry of a queued task that another task awaits.
    pub(in crate::pool) fn awaited(task: Arc<K::Run>, rare: Option<Box<RareOptions>>) -> Self {
        Self::boxed(Boxed::Awaited(Box::new(Special {
            entry: Self::boxed(Boxed::Held(task)),
            priority: Priority::Normal,
            rare,
        })))
    }

    #[inline]
    pub(in crate::pool) fn with(self, options: &TaskOptions, member: Option<&Arc<Membership>>) -> Self {
        if options.is_common {
            self
        } else {
            self.specially(options, member)
        }
    }

    fn specially(self, options: &TaskOptions, member: Option<&Arc<Membership>>) -> Self {
        Self::boxed(Boxed::Special(Box::new(Special {
            entry: self,
            priority: options.priority,
            rare: options.rare_for(member),
        })))
    }

    /// Returns the number of entries in this space of a lane.
    #[inline]
    pub(super) fn count(&self) -> usize {
        1 + usize::from(matches!(self.0, Body::Boxed(_, Some(_))))
    }

    /// Returns true if an entry in this space of a lane is live.
    pub(super) fn any_is_live(&self) -> bool {
        let Body::Boxed(_, Some(next)) = &self.0 else {
            return self.is_live();
        };
        self.is_live() || next.task().is_none_or(|task| task.is_queued())
    }

    #[inline]
    fn as_boxed(&self) -> Option<&Boxed<K>> {
        match &self.0 {
            Body::Boxed(boxed, _) => Some(boxed),
            Body::Inline(_) => None,
        }
    }

    #[inline]
    fn special(&self) -> Option<&Special<K>> {
        self.as_boxed()?.special()
    }

    /// Returns the options that few tasks have, if the task has one.
    #[inline]
    pub(in crate::pool) fn rare(&self) -> Option<&RareOptions> {
        self.special()?.rare.as_deref()
    }

    /// Returns the task, if it has, or had, a handle.
    #[inline]
    pub(in crate::pool) fn task(&self) -> Option<&Arc<K::Run>> {
        self.as_boxed()?.task()
    }

    pub(in crate::pool) fn is_awaited(&self) -> bool {
        matches!(self.0, Body::Boxed(Boxed::Awaited(_), _))
    }

    /// Returns true for an entry of normal priority and weight 1, without options.
    #[inline]
    pub(in crate::pool) fn is_common(&self) -> bool {
        self.special().is_none()
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
        self.rare().map_or(1, |rare| rare.weight)
    }

    #[inline]
    pub(in crate::pool) fn priority(&self) -> Priority {
        self.special().map_or(Priority::Normal, |special| special.priority)
    }

    pub(in crate::pool) fn ask(&self) -> Ask {
        self.rare().map_or(Ask::one(), |rare| rare.ask)
    }

    /// Returns the task's membership in its group, if the group has a limit.
    #[inline]
    pub(in crate::pool) fn member(&self) -> Option<&Arc<Membership>> {
        self.rare().and_then(|rare| rare.member.as_ref())
    }

    /// Ends the claimed task without running it. Returns false if it was cancelled since.
    pub(in crate::pool) fn refuse(self, why: TaskError) -> bool {
        let ended = self.task().is_none_or(|task| task.refuse(why));
        drop_quietly(self);
        ended
    }
}

/// Returns true if the task was set aside and now has its place in its group.
pub(super) fn is_back<K: Kind>(entry: &Entry<K>) -> bool {
    entry.member().is_some_and(|member| member.is_reserved())
}
