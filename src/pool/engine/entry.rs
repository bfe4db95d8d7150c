//! An entry of the queue: a task, its weight, and its options.

use super::group_limit::Membership;
use super::scheduler::Kind;
use crate::core::ask::Ask;
use crate::pool::cell::Queued as _;
use crate::pool::error::TaskError;
use crate::pool::hooks::drop_quietly;
use crate::pool::task_options::{Priority, RareOptions, TaskOptions};
use crate::time::Instant;
use std::sync::Arc;

/// An entry of the queue. Beside the cell that a task shares with its handle, it costs no allocation without options.
pub(in crate::pool) struct Entry<K: Kind>(pub(in crate::pool) Body<K>);

/// Two variants, since the niche of an inline closure holds only one more: a tag would make the entry larger.
pub(in crate::pool) enum Body<K: Kind> {
    Inline(K::Inline),
    Boxed(Boxed<K>),
}

/// A task in an allocation of its own.
pub(in crate::pool) enum Boxed<K: Kind> {
    /// A task without a handle.
    Own(K::Own),
    /// A task that has, or had, a handle.
    Held(Arc<K::Run>),
    /// A task with a priority, a weight or options.
    Special(Box<Special<K>>),
    /// The second entry of a queued task that another task awaits. It takes no capacity.
    Awaited(Box<Special<K>>),
    /// The task has started through another entry, or has ended.
    Gone,
}

/// An entry with a priority, a weight or options.
pub(in crate::pool) struct Special<K: Kind> {
    pub(in crate::pool) entry: Entry<K>,
    priority: Priority,
    /// The queue weight that it took.
    weight: u32,
    rare: Option<Box<RareOptions>>,
    /// True once the second entry of an awaited task has set that task aside.
    claimed: bool,
}

impl<K: Kind> Entry<K> {
    #[inline]
    pub(in crate::pool) fn held(task: Arc<K::Run>, options: &TaskOptions, member: Option<&Arc<Membership>>) -> Self {
        Self(Body::Boxed(Boxed::Held(task))).with(options, member)
    }

    /// Creates the second entry of a queued task that another task awaits.
    pub(in crate::pool) fn awaited(task: Arc<K::Run>, rare: Option<Box<RareOptions>>) -> Self {
        Self(Body::Boxed(Boxed::Awaited(Box::new(Special {
            entry: Self(Body::Boxed(Boxed::Held(task))),
            priority: Priority::Normal,
            weight: 0,
            rare,
            claimed: false,
        }))))
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
        Self(Body::Boxed(Boxed::Special(Box::new(Special {
            entry: self,
            priority: options.priority,
            weight: options.weight,
            rare: options.rare(member),
            claimed: false,
        }))))
    }

    #[inline]
    fn special(&self) -> Option<&Special<K>> {
        match &self.0 {
            Body::Boxed(Boxed::Special(special) | Boxed::Awaited(special)) => Some(special),
            _ => None,
        }
    }

    /// Returns the options that few tasks have, if the task has one.
    #[inline]
    pub(in crate::pool) fn rare(&self) -> Option<&RareOptions> {
        self.special()?.rare.as_deref()
    }

    /// Returns the task, if it has, or had, a handle.
    #[inline]
    pub(in crate::pool) fn task(&self) -> Option<&Arc<K::Run>> {
        match &self.0 {
            Body::Boxed(Boxed::Held(task)) => Some(task),
            Body::Boxed(Boxed::Special(special) | Boxed::Awaited(special)) => special.entry.task(),
            _ => None,
        }
    }

    pub(in crate::pool) fn is_awaited(&self) -> bool {
        matches!(self.0, Body::Boxed(Boxed::Awaited(_)))
    }

    /// Returns true for an entry of normal priority and weight 1, without options.
    #[inline]
    pub(in crate::pool) fn is_common(&self) -> bool {
        self.special().is_none()
    }

    /// Returns false if the task has started through another entry, or has ended.
    pub(in crate::pool) fn is_live(&self) -> bool {
        match self.task() {
            Some(task) => task.is_queued(),
            None => !self.is_gone(),
        }
    }

    fn is_gone(&self) -> bool {
        match &self.0 {
            Body::Boxed(Boxed::Gone) => true,
            Body::Boxed(Boxed::Special(special) | Boxed::Awaited(special)) => special.entry.is_gone(),
            _ => false,
        }
    }

    /// Returns the number of queue places that the entry takes.
    pub(in crate::pool) fn places(&self) -> usize {
        usize::from(!self.is_awaited())
    }

    /// Returns the queue weight that the entry takes.
    #[inline]
    pub(in crate::pool) fn weight(&self) -> u32 {
        self.special().map_or(1, |special| special.weight)
    }

    #[inline]
    pub(in crate::pool) fn priority(&self) -> Priority {
        self.special().map_or(Priority::Normal, |special| special.priority)
    }

    pub(in crate::pool) fn ask(&self) -> Ask {
        self.rare().map_or(Ask::one(), |rare| rare.ask)
    }

    pub(in crate::pool) fn deadline(&self) -> Option<Instant> {
        self.rare().and_then(|rare| rare.deadline)
    }

    /// Returns the task's membership in its group, if the group has a limit.
    #[inline]
    pub(in crate::pool) fn member(&self) -> Option<&Arc<Membership>> {
        self.rare().and_then(|rare| rare.member.as_ref())
    }

    /// Claims an awaited task: no other entry of the task starts it from now on, unless one already has. Called under the
    /// lock of the pool.
    pub(in crate::pool) fn claim(&mut self) {
        if let Body::Boxed(Boxed::Awaited(awaited)) = &mut self.0
            && !awaited.claimed
        {
            awaited.claimed = awaited.entry.set_aside();
            if !awaited.claimed {
                awaited.entry = Self(Body::Boxed(Boxed::Gone));
            }
        }
    }

    /// Sets the task aside, to be returned to the user. Returns false if the task has started through another entry, or
    /// has ended.
    pub(in crate::pool) fn set_aside(&self) -> bool {
        match self.task() {
            Some(_) if self.is_awaited() => false,
            Some(task) => task.set_aside(),
            None => !self.is_gone(),
        }
    }

    pub(in crate::pool) fn is_returned(&self) -> bool {
        match seeded!("pool_runs_what_is_listed") {
            true => !self.is_awaited() && self.is_live(),
            false => self.set_aside(),
        }
    }

    /// Ends the task without running it. Returns false if the task had already started or ended.
    pub(in crate::pool) fn refuse(self, why: TaskError) -> bool {
        match &self.0 {
            Body::Boxed(Boxed::Awaited(awaited)) if awaited.claimed => self.refuse_aside(why),
            _ => self.end(|task| task.refuse(why)),
        }
    }

    /// Ends a task like `refuse`, after it was set aside.
    pub(in crate::pool) fn refuse_aside(self, why: TaskError) -> bool {
        self.end(|task| task.refuse_aside(why))
    }

    fn end(self, end: impl FnOnce(&K::Run) -> bool) -> bool {
        let ended = match self.task() {
            Some(task) => end(task),
            None => !self.is_gone(),
        };
        drop_quietly(self);
        ended
    }
}

/// Returns true if the task was set aside and now has its place in its group.
pub(super) fn is_back<K: Kind>(entry: &Entry<K>) -> bool {
    entry.member().is_some_and(|member| member.is_reserved())
}
