//! What stands in the queue: a task, what it weighs, and how it wants to be treated.

use super::cell::{Ran, Run, drop_quietly};
use super::error::TaskError;
use super::lanes::Ranked;
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

/// How a task wants to be treated. Copyable; the default is normal priority, weight 1, no deadline, one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) priority: Priority,
    pub(super) weight: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
    /// True while there is neither a deadline nor an ask of its own: then an entry need not keep them.
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
}

/// The rarer wishes, on the heap where there are any.
pub(super) struct Wishes {
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Ask,
}

pub(super) enum Job<'j> {
    /// Nobody waits for it.
    Plain(Box<dyn FnOnce() + Send + 'j>),
    /// Somebody holds, or held, a handle to it.
    Cell(Arc<dyn Run + 'j>),
}

pub(super) struct Entry<'j> {
    pub(super) job: Job<'j>,
    /// What it took of the queue's room; zero for the pool's own errands.
    pub(super) weight: u32,
    pub(super) priority: Priority,
    pub(super) wishes: Option<Box<Wishes>>,
}

impl<'j> Entry<'j> {
    pub(super) fn new(job: Job<'j>, spec: &Spec) -> Self {
        Self {
            job,
            weight: spec.weight,
            priority: spec.priority,
            wishes: (!spec.plain).then(|| {
                Box::new(Wishes {
                    deadline: spec.deadline,
                    ask: spec.ask,
                })
            }),
        }
    }

    /// The pool's own errand: it takes no room and is always let in.
    pub(super) fn errand(job: Box<dyn FnOnce() + Send + 'j>) -> Self {
        Self {
            job: Job::Plain(job),
            weight: 0,
            priority: Priority::Normal,
            wishes: None,
        }
    }

    pub(super) fn ask(&self) -> Ask {
        self.wishes.as_ref().map_or(Ask::one(), |wishes| wishes.ask)
    }

    /// Runs it. A panic stays here; the payload of one that nobody waits for is handed to `orphan`.
    #[inline]
    pub(super) fn run(self, orphan: impl FnOnce(Box<dyn std::any::Any + Send>)) -> Ran {
        match self.job {
            Job::Plain(task) => match catch_unwind(AssertUnwindSafe(task)) {
                Ok(()) => Ran::Done,
                Err(payload) => {
                    orphan(payload);
                    Ran::Panicked
                }
            },
            Job::Cell(cell) => {
                let ran = cell.run(&mut || ());
                // The handle may be gone: then this drops the result.
                drop_quietly(cell);
                ran
            }
        }
    }

    /// Ends it without a run. False when it had started before.
    pub(super) fn refuse(self, why: TaskError) -> bool {
        match self.job {
            Job::Plain(task) => {
                drop_quietly(task);
                true
            }
            Job::Cell(cell) => {
                let refused = cell.refuse(why);
                drop_quietly(cell);
                refused
            }
        }
    }
}

impl Ranked for Entry<'_> {
    fn priority(&self) -> Priority {
        self.priority
    }

    fn is_evictable(&self) -> bool {
        // The pool's own errands are not thrown out.
        self.weight > 0
    }

    fn is_live(&self) -> bool {
        match &self.job {
            Job::Plain(_) => true,
            Job::Cell(cell) => cell.is_queued(),
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
        self.entry.as_ref().map_or(0, |entry| entry.weight)
    }

    /// Its priority.
    pub fn priority(&self) -> Priority {
        self.entry.as_ref().map_or(Priority::Normal, |entry| entry.priority)
    }

    /// Runs it here. Whoever holds its handle gets the result. False when it was cancelled meanwhile.
    ///
    /// # Panics
    /// When a task that has no handle panics.
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
