//! The entries of closures. A closure without a handle and options is inside its entry, because memory that one thread allocates, another reads and a
//! third frees is most of a small task's cost. Most closures capture a few words, and need no other memory.

use super::kind::Threads;
use crate::pool::caller::Caller;
use crate::pool::cell::{ClosureCell, Ran, Run};
use crate::pool::engine::entry::{self, Body};
use crate::pool::engine::waits::{self, Inside, current};
use crate::pool::hooks::{Payload, drop_quietly};
use crate::pool::report::Unstarted;
use crate::pool::task_options::PoolOptions;
use stackfuture::StackFuture;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The number of bytes that makes an entry one cache line.
const BYTES: usize = 48;

pub(in crate::pool) struct InlineTask<'j>(StackFuture<'j, (), BYTES>);

/// A closure as a future that is ready at the first poll: `StackFuture`, which stores a value of any type in a fixed size
/// without unsafe code here, takes futures.
struct Once<F>(Option<F>);

/// The closure is moved out before it runs.
impl<F> Unpin for Once<F> {}

impl<F: FnOnce()> Future for Once<F> {
    type Output = ();
    #[inline]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if let Some(task) = self.get_mut().0.take() {
            task();
        }
        Poll::Ready(())
    }
}

impl<'j> InlineTask<'j> {
    /// Stores a closure, in an allocation of its own if it is too large.
    #[inline]
    pub(in crate::pool) fn new<F: FnOnce() + Send + 'j>(task: F) -> Self {
        Self(StackFuture::from_or_box(Once(Some(task))))
    }

    /// Runs the closure, and frees its memory. Catches a panic, and passes its payload to `orphan`.
    #[inline]
    pub(in crate::pool) fn run(self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        let mut task = pin!(self.0);
        let run = || task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(_) => Ran::Done,
            Err(payload) => {
                orphan(payload);
                Ran::Panicked
            }
        }
    }
}

pub(in crate::pool) type Entry<'j> = entry::Entry<Threads<'j>>;

impl<'j> Entry<'j> {
    /// Creates the entry of a task without a handle.
    #[inline]
    pub(in crate::pool) fn own<F: FnOnce() + Send + 'j>(caller: Caller, task: F, options: &PoolOptions) -> Self {
        match options.of_task() {
            None if caller.is_nothing() => Self(Body::Inline(InlineTask::new(task))),
            None => Self(Body::Inline(InlineTask::new(move || caller.within(task)))),
            options => Self::of(ClosureCell::detached(task, caller, options)),
        }
    }

    /// Returns the task that may wait for this one, if that task holds permits.
    #[inline]
    pub(in crate::pool) fn waiter(&self) -> Option<Arc<dyn waits::Task>> {
        self.task().and_then(|task| task.waiter())
    }

    /// Runs the task. Catches a panic; without a handle, its payload goes to `orphan`.
    pub(in crate::pool) fn run(self, mut orphan: impl FnMut(Payload)) -> Ran {
        let (ran, left) = self.run_and_leave(&mut orphan);
        drop_quietly(left);
        ran
    }

    /// Runs the task like [`run`](Self::run), and returns its cell to the caller. The closure is consumed, and the
    /// result belongs to the handle or was dropped. The options of the task go with the cell.
    #[inline(always)]
    pub(in crate::pool) fn run_and_leave(self, orphan: &mut dyn FnMut(Payload)) -> (Ran, Option<DeferredFree<'j>>) {
        match self.0 {
            Body::Inline(small) => (small.run(orphan), None),
            Body::Cell(cell, _) => (cell.run(orphan), Some(cell)),
        }
    }
}

/// The cell of a task that has run.
pub(in crate::pool) type DeferredFree<'j> = Arc<dyn Run + 'j>;

impl Unstarted<Threads<'_>> {
    /// Runs the task on this thread. Its handle gets the result. Returns false when the task was cancelled meanwhile.
    ///
    /// The task may wait for other tasks, as on a worker: see [`Handle`](crate::pool::Handle).
    ///
    /// # Panics
    /// When the task, or the drop of its result, panics, and its handle is gone or it never had one.
    pub fn run(self) -> bool {
        let Some(entry) = self.take() else { return false };
        // As in a nested task: its waits count as those of the task that this thread runs, else of its own waiter.
        let _inside = Inside::enter_aside(current().or_else(|| entry.waiter()));
        entry.run(|payload| std::panic::resume_unwind(payload)) != Ran::Gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    fn fits<F: FnOnce()>(_: &F) -> bool {
        StackFuture::<'_, (), BYTES>::has_space_for::<Once<F>>()
            && StackFuture::<'_, (), BYTES>::has_alignment_for::<Once<F>>()
    }

    #[repr(align(16))]
    struct Aligned(u8);

    #[test]
    fn an_entry_is_one_cache_line_and_holds_five_words() {
        assert_eq!(size_of::<Entry<'_>>(), 64);
        let (five, six, aligned) = ([0usize; 5], [0usize; 6], Aligned(0));
        assert!(fits(&move || _ = black_box(five)));
        assert!(!fits(&move || _ = black_box(six)) && !fits(&move || _ = black_box(&aligned).0));
        // Six fit if one of them is never null.
        let text = (String::new(), [0usize; 3]);
        assert!(fits(&move || _ = black_box(text)));
    }
}
