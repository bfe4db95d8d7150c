//! An entry of the queue: a task, its weight, and its options.

use super::caller::Caller;
use super::cell::{Ran, Run};
use super::engine::core;
use super::engine::group_limit::Membership;
use super::engine::waits;
use super::error::TaskError;
use super::hooks::{Payload, drop_quietly};
use super::lanes::Ranked;
use super::small::Small;
use super::wishes::Spec;
use crate::core::ask::Ask;
use crate::time::Instant;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The order in which tasks leave the queue. Within one priority: first come, first served.
///
/// # Fairness
/// After [`AGEING`] tasks that overtook waiting ones of lower priority, one of these starts. None starves.
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

impl Wishes {
    pub(super) fn of(spec: &Spec, member: Option<&Arc<Membership>>) -> Self {
        Self {
            deadline: spec.deadline,
            ask: spec.ask,
            member: member.map(Arc::clone),
        }
    }
}

/// The options that few tasks have.
#[derive(Clone)]
pub(super) struct Wishes {
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
    /// Its membership, if its group has a limit.
    pub(super) member: Option<Arc<Membership>>,
}

/// A type-erased task without a handle.
pub(super) trait Task: Send {
    /// Runs the task, once, and drops the user's closure.
    fn run(&mut self, orphan: &mut dyn FnMut(Payload)) -> Ran;
}

/// A closure that has not run.
struct Plain<F>(Option<F>);

/// Runs a task without a handle. Catches a panic, and passes its payload to `orphan`.
#[inline]
pub(super) fn run_quietly(task: impl FnOnce(), orphan: &mut dyn FnMut(Payload)) -> Ran {
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
    wishes: Wishes,
    /// True once the second entry of an awaited task has set that task aside.
    claimed: bool,
}

/// An entry of the queue. It costs at most one allocation per task: none for a small closure without a handle, one for a
/// larger closure, or the cell that a task shares with its handle.
pub(super) struct Entry<'j>(Kind<'j>);

/// Two variants, since the niche of the first holds only one more: a tag would make the entry larger.
enum Kind<'j> {
    Small(Small<'j>),
    Apart(Apart<'j>),
}

/// A task in an allocation of its own.
enum Apart<'j> {
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
    pub(super) fn own<F: FnOnce() + Send + 'j>(caller: Caller, task: F, spec: &Spec) -> Self {
        if caller.is_nothing() {
            Self::own_of_none(task, spec)
        } else {
            Self::own_of_none(move || caller.within(task), spec)
        }
    }

    #[inline]
    fn own_of_none<F: FnOnce() + Send + 'j>(task: F, spec: &Spec) -> Self {
        let kind = if Small::fits::<F>() {
            Kind::Small(Small::new(task))
        } else {
            Kind::Apart(Apart::Own(Box::new(Plain(Some(task)))))
        };
        Self(kind).with(spec, None)
    }

    #[inline]
    pub(super) fn held<C: Run + 'j>(cell: Arc<C>, spec: &Spec, member: Option<&Arc<Membership>>) -> Self {
        Self(Kind::Apart(Apart::Held(cell))).with(spec, member)
    }

    /// Creates the second entry of a queued task that another task awaits.
    pub(super) fn awaited(cell: Arc<dyn Run + 'j>, wishes: Wishes) -> Self {
        Self(Kind::Apart(Apart::Awaited(Box::new(Special {
            entry: Self(Kind::Apart(Apart::Held(cell))),
            priority: Priority::Normal,
            weight: 0,
            wishes,
            claimed: false,
        }))))
    }

    /// Returns the task that may wait for this one, if that task holds permits.
    #[inline]
    pub(super) fn waiter(&self) -> Option<Arc<dyn waits::Task>> {
        match &self.0 {
            Kind::Apart(Apart::Held(cell)) => cell.waiter(),
            Kind::Apart(Apart::Special(special) | Apart::Awaited(special)) => special.entry.waiter(),
            _ => None,
        }
    }

    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.0, Kind::Apart(Apart::Awaited(_)))
    }

    #[inline]
    fn with(self, spec: &Spec, member: Option<&Arc<Membership>>) -> Self {
        if spec.is_common() {
            self
        } else {
            self.specially(spec, member)
        }
    }

    fn specially(self, spec: &Spec, member: Option<&Arc<Membership>>) -> Self {
        Self(Kind::Apart(Apart::Special(Box::new(Special {
            entry: self,
            priority: spec.priority,
            weight: spec.weight,
            wishes: Wishes::of(spec, member),
            claimed: false,
        }))))
    }

    #[inline]
    fn special(&self) -> Option<&Special<'j>> {
        match &self.0 {
            Kind::Apart(Apart::Special(special) | Apart::Awaited(special)) => Some(special),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn weight(&self) -> u32 {
        self.special().map_or(1, |special| special.weight)
    }

    /// Runs the task. Catches a panic; without a handle, its payload goes to `orphan`.
    pub(super) fn run(self, mut orphan: impl FnMut(Payload)) -> Ran {
        let (ran, left) = self.run_and_leave(&mut orphan);
        drop_quietly(left);
        ran
    }

    /// Runs the task like [`run`](Self::run), and returns its memory to the caller. Only memory is left: the closure is
    /// consumed, and the result belongs to the handle or was dropped.
    #[inline]
    pub(super) fn run_and_leave(self, orphan: &mut dyn FnMut(Payload)) -> (Ran, Option<Left<'j>>) {
        match self.0 {
            Kind::Small(small) => (small.run(orphan), None),
            Kind::Apart(Apart::Own(mut own)) => (own.run(orphan), Some(Left::Own(own))),
            Kind::Apart(Apart::Held(cell)) => (cell.run(orphan), Some(Left::Held(cell))),
            Kind::Apart(Apart::Special(special)) => special.entry.run_and_leave(orphan),
            Kind::Apart(Apart::Awaited(awaited)) => (awaited.entry.run_aside(orphan), None),
        }
    }

    /// Sets the task aside: its handle can then only cancel it. Returns false when the task has started or ended.
    pub(super) fn set_aside(&self) -> bool {
        match &self.0 {
            Kind::Apart(Apart::Held(cell)) => cell.set_aside(),
            Kind::Apart(Apart::Special(special)) => special.entry.set_aside(),
            Kind::Apart(Apart::Awaited(_)) => false,
            _ => true,
        }
    }

    /// Runs a task that was set aside, like [`run`](Self::run).
    fn run_aside(self, mut orphan: impl FnMut(Payload)) -> Ran {
        match self.0 {
            Kind::Apart(Apart::Held(cell)) => {
                let ran = cell.run_aside(&mut orphan);
                drop_quietly(cell);
                ran
            }
            Kind::Apart(Apart::Special(special)) => special.entry.run_aside(orphan),
            own => Self(own).run(orphan),
        }
    }

    /// Ends a task that the caller has set aside, without running it.
    pub(super) fn refuse_aside(self, why: TaskError) -> bool {
        self.end(|cell| cell.refuse_aside(why))
    }

    fn end(self, end: impl FnOnce(&dyn Run) -> bool) -> bool {
        match self.0 {
            Kind::Apart(Apart::Held(cell)) => {
                let ended = end(&*cell);
                drop_quietly(cell);
                ended
            }
            Kind::Apart(Apart::Special(special) | Apart::Awaited(special)) => special.entry.end(end),
            own => {
                drop_quietly(own);
                true
            }
        }
    }
}

impl core::Entry for Entry<'_> {
    fn room(&self) -> (usize, u64) {
        (usize::from(!self.is_awaited()), u64::from(self.weight()))
    }

    fn ask(&self) -> Ask {
        self.special().map_or(Ask::one(), |special| special.wishes.ask)
    }

    fn deadline(&self) -> Option<Instant> {
        self.special().and_then(|special| special.wishes.deadline)
    }

    fn is_dead(&self) -> bool {
        !self.is_live()
    }

    #[inline]
    fn member(&self) -> Option<&Arc<Membership>> {
        self.special().and_then(|special| special.wishes.member.as_ref())
    }

    fn claim(&mut self) {
        if let Kind::Apart(Apart::Awaited(awaited)) = &mut self.0
            && !awaited.claimed
        {
            awaited.claimed = awaited.entry.set_aside();
            if !awaited.claimed {
                awaited.entry = Self(Kind::Apart(Apart::Own(Box::new(Plain::<fn()>(None)))));
            }
        }
    }

    fn refuse(self, why: TaskError) -> bool {
        match &self.0 {
            Kind::Apart(Apart::Awaited(awaited)) if awaited.claimed => self.refuse_aside(why),
            _ => self.end(|cell| cell.refuse(why)),
        }
    }
}

/// The memory of a task that has run.
pub(super) enum Left<'j> {
    Own(Box<dyn Task + 'j>),
    Held(Arc<dyn Run + 'j>),
}

impl Left<'_> {
    /// Returns its size in bytes.
    #[inline]
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Own(task) => size_of_val(&**task),
            Self::Held(cell) => size_of_val(&**cell),
        }
    }
}

impl Ranked for Entry<'_> {
    #[inline]
    fn priority(&self) -> Priority {
        self.special().map_or(Priority::Normal, |special| special.priority)
    }

    #[inline]
    fn is_common(&self) -> bool {
        self.special().is_none()
    }

    fn is_live(&self) -> bool {
        match &self.0 {
            Kind::Apart(Apart::Held(cell)) => cell.is_queued(),
            Kind::Apart(Apart::Special(special) | Apart::Awaited(special)) => special.entry.is_live(),
            _ => true,
        }
    }
}

/// A task that the pool returned without starting it. Run it, or drop it: then its handle gets [`TaskError::Abandoned`],
/// or [`TaskError::Discarded`] if a full queue discarded it.
#[must_use = "a task that is dropped here will never run"]
pub struct Unstarted<'j> {
    entry: Option<Entry<'j>>,
    discarded: bool,
}

impl<'j> Unstarted<'j> {
    /// Wraps an entry that was set aside.
    pub(super) fn new(entry: Entry<'j>, discarded: bool) -> Self {
        Self {
            entry: Some(entry),
            discarded,
        }
    }

    /// Returns its weight.
    pub fn weight(&self) -> u32 {
        self.entry.as_ref().map_or(0, Entry::weight)
    }

    /// Returns its priority.
    pub fn priority(&self) -> Priority {
        self.entry.as_ref().map_or(Priority::Normal, Ranked::priority)
    }

    /// Runs the task on this thread. Its handle gets the result. Returns false when the task was cancelled meanwhile.
    ///
    /// # Panics
    /// When the task panics and its handle is gone, or it never had one.
    pub fn run(mut self) -> bool {
        match self.entry.take() {
            Some(entry) => entry.run_aside(|payload| std::panic::resume_unwind(payload)) != Ran::Gone,
            None => false,
        }
    }
}

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.refuse_aside(if self.discarded {
                TaskError::Discarded
            } else {
                TaskError::Abandoned
            });
        }
    }
}

impl fmt::Debug for Unstarted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unstarted")
            .field("priority", &self.priority())
            .field("weight", &self.weight())
            .finish_non_exhaustive()
    }
}
