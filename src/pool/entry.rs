//! What stands in the queue: a task, what it weighs, and how it wants to be treated.

use super::cell::{Ran, Run};
use super::chunk::{Chunk, Parts};
use super::error::TaskError;
use super::hooks::{Payload, drop_quietly};
use super::lanes::Ranked;
use super::wishes::Spec;
use crate::ask::Ask;
use crate::time::Instant;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// In what order tasks leave the queue. Within one priority: first come, first served.
///
/// # Fairness
/// After [`AGEING`] tasks that were preferred to waiting ones of lower priority, the first of the lowest that waits is
/// served: none starves.
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

/// How many tasks may be preferred to those of lower priority before one of the lowest is served.
pub const AGEING: u32 = 32;

/// The rarer wishes.
pub(super) struct Wishes {
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
}

/// What an entry is, without its type.
trait Task: Send {
    /// Runs it, once, and drops all of it that is a user's.
    fn run(&mut self, orphan: &mut dyn FnMut(Payload)) -> Ran;
    fn refuse(self: Box<Self>, why: TaskError) -> bool;
    fn is_live(&self) -> bool;
    /// What is special about it, if anything.
    fn special(&self) -> Option<&Special<'_>>;
}

/// A task that nobody waits for, until it has run.
pub(super) struct Plain<F>(Option<F>);

impl<F> Plain<F> {
    pub(super) fn new(task: F) -> Self {
        Self(Some(task))
    }

    /// The task of one that has not been queued.
    pub(super) fn into_task(self) -> F {
        match self.0 {
            Some(task) => task,
            None => unreachable!("it has not been queued"),
        }
    }
}

/// Runs a task that nobody waits for. A panic stays here, and its payload goes to `orphan`.
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

    fn refuse(self: Box<Self>, _: TaskError) -> bool {
        drop_quietly(self);
        true
    }

    fn is_live(&self) -> bool {
        true
    }

    #[inline]
    fn special(&self) -> Option<&Special<'_>> {
        None
    }
}

/// An entry that asks for more than a place.
struct Special<'j> {
    entry: Entry<'j>,
    priority: Priority,
    /// What it took of the queue's room; zero for the pool's own errands.
    weight: u32,
    wishes: Wishes,
}

impl Task for Special<'_> {
    fn run(&mut self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        self.entry.run_in_place(orphan)
    }

    fn refuse(self: Box<Self>, why: TaskError) -> bool {
        self.entry.refuse(why)
    }

    fn is_live(&self) -> bool {
        self.entry.is_live()
    }

    fn special(&self) -> Option<&Special<'_>> {
        Some(self)
    }
}

/// One allocation for each task at most: that of its closure, of several together, or the cell that it shares with its
/// handle.
pub(super) struct Entry<'j>(Kind<'j>);

enum Kind<'j> {
    /// A task that nobody waits for, or one with wishes.
    Own(Box<dyn Task + 'j>),
    /// A task to which somebody holds, or held, a handle.
    Held(Arc<dyn Run + 'j>),
    /// Those from a number on, and before another, of several that were submitted together.
    Part(Arc<dyn Parts + 'j>, u8, u8),
}

impl<'j> Entry<'j> {
    #[inline]
    pub(super) fn plain<F: FnOnce() + Send + 'j>(task: Box<Plain<F>>, spec: &Spec) -> Self {
        Self(Kind::Own(task)).with(spec)
    }

    #[inline]
    pub(super) fn held<C: Run + 'j>(cell: Arc<C>, spec: &Spec) -> Self {
        Self(Kind::Held(cell)).with(spec)
    }

    /// All of a chunk, which is one task where there are wishes.
    #[inline]
    pub(super) fn parts<F: FnOnce() + Send + 'j>(chunk: Arc<Chunk<F>>, spec: &Spec) -> Self {
        let end = chunk.len() as u8;
        Self(Kind::Part(chunk, 0, end)).with(spec)
    }

    #[inline]
    fn with(self, spec: &Spec) -> Self {
        if spec.is_common() { self } else { self.specially(spec) }
    }

    fn specially(self, spec: &Spec) -> Self {
        Self(Kind::Own(Box::new(Special {
            entry: self,
            priority: spec.priority,
            weight: spec.weight,
            wishes: Wishes {
                deadline: spec.deadline,
                ask: spec.ask,
            },
        })))
    }

    /// The pool's own errand: it takes no room and is always let in.
    pub(super) fn errand(task: impl FnOnce() + Send + 'j) -> Self {
        Self(Kind::Own(Box::new(Plain::new(task)))).specially(&Spec {
            weight: 0,
            ..Spec::DEFAULT
        })
    }

    #[inline]
    fn special(&self) -> Option<&Special<'_>> {
        match &self.0 {
            Kind::Own(task) => task.special(),
            Kind::Held(_) | Kind::Part(..) => None,
        }
    }

    #[inline]
    pub(super) fn weight(&self) -> u32 {
        self.special().map_or(1, |special| special.weight)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.special().and_then(|special| special.wishes.deadline)
    }

    pub(super) fn ask(&self) -> Ask {
        self.special().map_or(Ask::one(), |special| special.wishes.ask)
    }

    /// Runs it. A panic stays here; the payload of one that nobody waits for is handed to `orphan`.
    pub(super) fn run(mut self, mut orphan: impl FnMut(Payload)) -> Ran {
        let ran = self.run_in_place(&mut orphan);
        drop_quietly(self);
        ran
    }

    /// The same for whoever has a use for what is left, which is memory alone: the closure has been used up, and the
    /// result belongs to the handle, or was dropped.
    #[inline]
    pub(super) fn run_in_place(&mut self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        match &mut self.0 {
            Kind::Own(task) => task.run(orphan),
            Kind::Held(cell) => cell.run(&mut || (), orphan),
            Kind::Part(chunk, at, end) => {
                debug_assert!(*at + 1 == *end, "one of several is run at a time");
                chunk.run(usize::from(*at), orphan)
            }
        }
    }

    /// How many bytes it takes beside its place in the queue. What it shares with others is not its to keep.
    #[inline]
    pub(super) fn size(&self) -> usize {
        match &self.0 {
            Kind::Own(task) => size_of_val(&**task),
            Kind::Held(cell) => size_of_val(&**cell),
            Kind::Part(..) => usize::MAX,
        }
    }

    /// Ends it without a run. False when it had started before.
    pub(super) fn refuse(self, why: TaskError) -> bool {
        match self.0 {
            Kind::Own(task) => task.refuse(why),
            Kind::Held(cell) => {
                let refused = cell.refuse(why);
                drop_quietly(cell);
                refused
            }
            Kind::Part(chunk, at, end) => {
                (at..end).for_each(|at| chunk.refuse(usize::from(at)));
                true
            }
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

    fn is_evictable(&self) -> bool {
        // The pool's own errands are not thrown out.
        self.weight() > 0
    }

    fn is_live(&self) -> bool {
        match &self.0 {
            Kind::Own(task) => task.is_live(),
            Kind::Held(cell) => cell.is_queued(),
            Kind::Part(..) => true,
        }
    }

    #[inline]
    fn count(&self) -> usize {
        match &self.0 {
            Kind::Part(_, at, end) => usize::from(end - at),
            _ => 1,
        }
    }

    #[inline]
    fn split(&mut self, n: usize) -> Option<Self> {
        match &mut self.0 {
            Kind::Part(chunk, at, end) if usize::from(*end - *at) > n => {
                let from = *at;
                *at += n as u8;
                Some(Self(Kind::Part(Arc::clone(chunk), from, *at)))
            }
            _ => None,
        }
    }
}

/// A task that the pool did not start, handed back. Run it, or drop it: then its handle is told
/// [`TaskError::Abandoned`], or why it was thrown out.
#[must_use = "a task that is dropped here will never run"]
pub struct Unstarted<'j> {
    entry: Option<Entry<'j>>,
    discarded: bool,
}

impl<'j> Unstarted<'j> {
    pub(super) fn new(entry: Entry<'j>, discarded: bool) -> Self {
        Self {
            entry: Some(entry),
            discarded,
        }
    }

    /// What it weighs.
    pub fn weight(&self) -> u32 {
        self.entry.as_ref().map_or(0, Entry::weight)
    }

    /// Its priority.
    pub fn priority(&self) -> Priority {
        self.entry.as_ref().map_or(Priority::Normal, Ranked::priority)
    }

    /// Runs it here. Whoever holds its handle gets the result. False when it was cancelled meanwhile.
    ///
    /// # Panics
    /// When a task panics that has no handle, or none any more.
    pub fn run(mut self) -> bool {
        match self.entry.take() {
            Some(entry) => entry.run(|payload| std::panic::resume_unwind(payload)) != Ran::Gone,
            None => false,
        }
    }
}

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.refuse(if self.discarded {
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
