//! An entry of the queue: a task, its weight, and its options.

use super::inline_task::InlineTask;
use super::kind::Threads;
use super::priority_queue::Ranked;
use crate::core::ask::Ask;
use crate::pool::caller::Caller;
use crate::pool::cell::{Ran, Run};
use crate::pool::engine::group_limit::Membership;
use crate::pool::engine::scheduler;
use crate::pool::engine::waits;
use crate::pool::error::TaskError;
use crate::pool::hooks::{Payload, drop_quietly};
use crate::pool::report::Unstarted;
use crate::pool::task_options::{Priority, RareOptions, TaskOptions};
use crate::time::Instant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A type-erased task without a handle.
pub(in crate::pool) trait Task: Send {
    /// Runs the task, once, and drops the user's closure.
    fn run(&mut self, orphan: &mut dyn FnMut(Payload)) -> Ran;
}

/// A closure that has not run.
struct Plain<F>(Option<F>);

/// Runs a task without a handle. Catches a panic, and passes its payload to `orphan`.
#[inline]
pub(in crate::pool) fn run_quietly(task: impl FnOnce(), orphan: &mut dyn FnMut(Payload)) -> Ran {
    match catch_unwind(AssertUnwindSafe(task)) {
        Ok(()) => Ran::Done,
        Err(payload) => {
            orphan(payload);
            Ran::Panicked
        }
    }
}

impl<F: FnOnce() + Send> Task for Plain<F> {
    #[inline]
    fn run(&mut self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        self.0.take().map_or(Ran::Gone, |task| run_quietly(task, orphan))
    }
}

/// An entry with a priority, a weight or options.
struct Special<'j> {
    entry: Entry<'j>,
    priority: Priority,
    /// The queue weight that it took.
    weight: u32,
    rare: RareOptions,
    /// True once the second entry of an awaited task has set that task aside.
    claimed: bool,
}

/// An entry of the queue. It costs at most one allocation per task: none for a small closure without a handle, one for a
/// larger closure, or the cell that a task shares with its handle.
pub(in crate::pool) struct Entry<'j>(Kind<'j>);

/// Two variants, since the niche of the first holds only one more: a tag would make the entry larger.
enum Kind<'j> {
    Inline(InlineTask<'j>),
    Boxed(Boxed<'j>),
}

/// A task in an allocation of its own.
enum Boxed<'j> {
    /// A task without a handle.
    Own(Box<dyn Task + 'j>),
    /// A task that has, or had, a handle.
    Held(Arc<dyn Run + 'j>),
    /// A task with a priority, a weight or options.
    Special(Box<Special<'j>>),
    /// The second entry of a queued task that another task awaits. It takes no capacity.
    Awaited(Box<Special<'j>>),
}

impl<'j> Entry<'j> {
    /// Creates the entry of a task without a handle.
    #[inline]
    pub(in crate::pool) fn own<F: FnOnce() + Send + 'j>(caller: Caller, task: F, options: &TaskOptions) -> Self {
        if caller.is_nothing() {
            Self::own_of_none(task, options)
        } else {
            Self::own_of_none(move || caller.within(task), options)
        }
    }

    #[inline]
    fn own_of_none<F: FnOnce() + Send + 'j>(task: F, options: &TaskOptions) -> Self {
        let kind = if InlineTask::fits::<F>() {
            Kind::Inline(InlineTask::new(task))
        } else {
            Kind::Boxed(Boxed::Own(Box::new(Plain(Some(task)))))
        };
        Self(kind).with(options, None)
    }

    #[inline]
    pub(in crate::pool) fn held<C: Run + 'j>(
        cell: Arc<C>,
        options: &TaskOptions,
        member: Option<&Arc<Membership>>,
    ) -> Self {
        Self(Kind::Boxed(Boxed::Held(cell))).with(options, member)
    }

    /// Creates the second entry of a queued task that another task awaits.
    pub(in crate::pool) fn awaited(cell: Arc<dyn Run + 'j>, rare: RareOptions) -> Self {
        Self(Kind::Boxed(Boxed::Awaited(Box::new(Special {
            entry: Self(Kind::Boxed(Boxed::Held(cell))),
            priority: Priority::Normal,
            weight: 0,
            rare,
            claimed: false,
        }))))
    }

    /// Returns the task that may wait for this one, if that task holds permits.
    #[inline]
    pub(in crate::pool) fn waiter(&self) -> Option<Arc<dyn waits::Task>> {
        match &self.0 {
            Kind::Boxed(Boxed::Held(cell)) => cell.waiter(),
            Kind::Boxed(Boxed::Special(special) | Boxed::Awaited(special)) => special.entry.waiter(),
            _ => None,
        }
    }

    pub(in crate::pool) fn is_awaited(&self) -> bool {
        matches!(self.0, Kind::Boxed(Boxed::Awaited(_)))
    }

    #[inline]
    fn with(self, options: &TaskOptions, member: Option<&Arc<Membership>>) -> Self {
        if options.is_common {
            self
        } else {
            self.specially(options, member)
        }
    }

    fn specially(self, options: &TaskOptions, member: Option<&Arc<Membership>>) -> Self {
        Self(Kind::Boxed(Boxed::Special(Box::new(Special {
            entry: self,
            priority: options.priority,
            weight: options.weight,
            rare: RareOptions::of(options, member),
            claimed: false,
        }))))
    }

    #[inline]
    fn special(&self) -> Option<&Special<'j>> {
        match &self.0 {
            Kind::Boxed(Boxed::Special(special) | Boxed::Awaited(special)) => Some(special),
            _ => None,
        }
    }

    /// Runs the task. Catches a panic; without a handle, its payload goes to `orphan`.
    pub(in crate::pool) fn run(self, mut orphan: impl FnMut(Payload)) -> Ran {
        let (ran, left) = self.run_and_leave(&mut orphan);
        drop_quietly(left);
        ran
    }

    /// Runs the task like [`run`](Self::run), and returns its memory to the caller. Only memory is left: the closure is
    /// consumed, and the result belongs to the handle or was dropped.
    #[inline]
    pub(in crate::pool) fn run_and_leave(self, orphan: &mut dyn FnMut(Payload)) -> (Ran, Option<DeferredFree<'j>>) {
        match self.0 {
            Kind::Inline(small) => (small.run(orphan), None),
            Kind::Boxed(Boxed::Own(mut own)) => (own.run(orphan), Some(DeferredFree::Own(own))),
            Kind::Boxed(Boxed::Held(cell)) => (cell.run(orphan), Some(DeferredFree::Held(cell))),
            Kind::Boxed(Boxed::Special(special)) => special.entry.run_and_leave(orphan),
            Kind::Boxed(Boxed::Awaited(awaited)) => (awaited.entry.run_aside(orphan), None),
        }
    }

    /// Runs a task that was set aside, like [`run`](Self::run).
    fn run_aside(self, mut orphan: impl FnMut(Payload)) -> Ran {
        match self.0 {
            Kind::Boxed(Boxed::Held(cell)) => {
                let ran = cell.run_aside(&mut orphan);
                drop_quietly(cell);
                ran
            }
            Kind::Boxed(Boxed::Special(special)) => special.entry.run_aside(orphan),
            own => Self(own).run(orphan),
        }
    }

    fn end(self, end: impl FnOnce(&dyn Run) -> bool) -> bool {
        match self.0 {
            Kind::Boxed(Boxed::Held(cell)) => {
                let ended = end(&*cell);
                drop_quietly(cell);
                ended
            }
            Kind::Boxed(Boxed::Special(special) | Boxed::Awaited(special)) => special.entry.end(end),
            own => {
                drop_quietly(own);
                true
            }
        }
    }
}

impl scheduler::Entry for Entry<'_> {
    fn places(&self) -> usize {
        usize::from(!self.is_awaited())
    }

    #[inline]
    fn weight(&self) -> u32 {
        self.special().map_or(1, |special| special.weight)
    }

    #[inline]
    fn priority(&self) -> Priority {
        self.special().map_or(Priority::Normal, |special| special.priority)
    }

    fn set_aside(&self) -> bool {
        match &self.0 {
            Kind::Boxed(Boxed::Held(cell)) => cell.set_aside(),
            Kind::Boxed(Boxed::Special(special)) => special.entry.set_aside(),
            Kind::Boxed(Boxed::Awaited(_)) => false,
            _ => true,
        }
    }

    fn is_returned(&self) -> bool {
        match seeded!("pool_runs_what_is_listed") {
            true => !self.is_awaited() && self.is_live(),
            false => self.set_aside(),
        }
    }

    fn refuse_aside(self, why: TaskError) -> bool {
        self.end(|cell| cell.refuse_aside(why))
    }

    fn ask(&self) -> Ask {
        self.special().map_or(Ask::one(), |special| special.rare.ask)
    }

    fn deadline(&self) -> Option<Instant> {
        self.special().and_then(|special| special.rare.deadline)
    }

    fn is_dead(&self) -> bool {
        !self.is_live()
    }

    #[inline]
    fn member(&self) -> Option<&Arc<Membership>> {
        self.special().and_then(|special| special.rare.member.as_ref())
    }

    fn claim(&mut self) {
        if let Kind::Boxed(Boxed::Awaited(awaited)) = &mut self.0
            && !awaited.claimed
        {
            awaited.claimed = awaited.entry.set_aside();
            if !awaited.claimed {
                awaited.entry = Self(Kind::Boxed(Boxed::Own(Box::new(Plain::<fn()>(None)))));
            }
        }
    }

    fn refuse(self, why: TaskError) -> bool {
        match &self.0 {
            Kind::Boxed(Boxed::Awaited(awaited)) if awaited.claimed => self.refuse_aside(why),
            _ => self.end(|cell| cell.refuse(why)),
        }
    }
}

/// The memory of a task that has run.
pub(in crate::pool) enum DeferredFree<'j> {
    Own(Box<dyn Task + 'j>),
    Held(Arc<dyn Run + 'j>),
}

impl DeferredFree<'_> {
    /// Returns its size in bytes.
    #[inline]
    pub(in crate::pool) fn size(&self) -> usize {
        match self {
            Self::Own(task) => size_of_val(&**task),
            Self::Held(cell) => size_of_val(&**cell),
        }
    }
}

impl Ranked for Entry<'_> {
    #[inline]
    fn is_common(&self) -> bool {
        self.special().is_none()
    }

    fn is_live(&self) -> bool {
        match &self.0 {
            Kind::Boxed(Boxed::Held(cell)) => cell.is_queued(),
            Kind::Boxed(Boxed::Special(special) | Boxed::Awaited(special)) => special.entry.is_live(),
            _ => true,
        }
    }
}

impl Unstarted<Threads<'_>> {
    /// Runs the task on this thread. Its handle gets the result. Returns false when the task was cancelled meanwhile.
    ///
    /// # Panics
    /// When the task panics and its handle is gone, or it never had one.
    pub fn run(self) -> bool {
        let entry = self.take();
        entry.is_some_and(|entry| entry.run_aside(|payload| std::panic::resume_unwind(payload)) != Ran::Gone)
    }
}
