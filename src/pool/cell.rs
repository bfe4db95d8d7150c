//! Keeps a task and its result in one allocation, which the queue and the handle share.
//!
//! ```text
//!  Queued --claim--> Queued, claimed --start--> Started --complete--> Done --take--> Taken
//!                           `----------------refuse-------------------^
//! ```
//! Exactly one caller claims a task: it runs the task once, refuses it once (cancelled, expired, discarded, abandoned),
//! or hands it to the user. Only a cancel ends a task that another caller has claimed and not started.
//!
//! **Invariant**: a task that its pool has accepted takes its place and its weight in the queue until it is claimed. The transition that
//! counts the claim gives both back, before the task runs or is dropped. So a dead entry, which is one of a claimed task, takes neither.
//!
//! Tasks and results run and drop outside the lock. A started closure is with its worker. A started future returns to
//! the cell while it waits: `R` holds it.

use super::caller::Caller;
use super::engine::waits::{Record, Task, current};
use super::error::TaskError;
use super::hooks::{Payload, drop_caught, drop_quietly, wake};
use super::task_options::TaskOptions;
use crate::sync::shim::atomic::{AtomicU8, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// The end of a run, for its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    Done,
    Panicked,
    /// The task was cancelled before it started.
    Gone,
}

/// A task that waits to start.
pub(super) trait Queued: Send + Sync {
    /// Ends the task without running it, for the caller that claimed it, and for a cancel. Returns false if it has
    /// started or ended.
    fn refuse(&self, why: TaskError) -> bool;
    /// Returns true until the task is claimed.
    fn is_queued(&self) -> bool;
    /// Claims the task: only this caller may start it. Returns false if another caller has claimed it. Runs no user
    /// code.
    fn claim(&self) -> bool;
    /// Returns its options, if it has any.
    fn options(&self) -> Option<&TaskOptions>;
}

/// A closure, as the queue sees it.
pub(super) trait Run: Queued {
    /// Returns the task that may wait for this one, if that task holds permits, for as long as there is a handle.
    fn waiter(&self) -> Option<Arc<dyn Task>>;
    /// Runs the task on this thread, for the caller that claimed it. Calls `orphan` with the payload of a panic that no
    /// handle will take.
    fn run(&self, orphan: &mut dyn FnMut(Payload)) -> Ran;
}

/// A task, as its handle sees it.
pub(super) trait Await<T>: Send + Sync {
    /// Returns the result, once. Until then, registers `waker`.
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>>;
    fn is_done(&self) -> bool;
    /// Returns the task's record in the graph of waits, if it has one.
    fn record(&self) -> Option<&Record>;
    /// Detaches the handle: the result is dropped, now or when the task ends. Returns the payload if the drop panics now.
    fn detach(&self) -> Option<Payload>;
}

/// A closure, as its handle sees it.
pub(super) trait Job<'j, T>: Run + Await<T> {
    /// The task, as its pool sees it.
    fn into_run(self: Arc<Self>) -> Arc<dyn Run + 'j>;
}

impl<'j, C: Run + Await<T> + 'j, T> Job<'j, T> for C {
    fn into_run(self: Arc<Self>) -> Arc<dyn Run + 'j> {
        self
    }
}

pub(super) enum Stage<Q, R, T> {
    Queued(Q),
    Started(R),
    /// The error is boxed: it is larger than most results.
    Done(Result<T, Box<TaskError>>),
    Taken,
}

pub(super) struct Inner<Q, R, T> {
    pub(super) stage: Stage<Q, R, T>,
    /// Boxed: most handles are dropped, or taken when the task has ended.
    pub(super) waker: Option<Box<Waker>>,
}

impl<Q, R, T> Inner<Q, R, T> {
    fn take_result(&mut self) -> Option<Result<T, Box<TaskError>>> {
        match std::mem::replace(&mut self.stage, Stage::Taken) {
            Stage::Done(result) => Some(result),
            other => {
                self.stage = other;
                None
            }
        }
    }
}

/// A flag of a cell: a caller has claimed the task.
const CLAIMED: u8 = 1;
/// The handle is gone.
const DETACHED: u8 = 2;
/// The handle has left a waker.
const POLLED: u8 = 4;

/// What a task has beside its future or closure.
pub(super) trait Context: Send + Sync {
    /// Returns its record in the graph of waits, if it has one.
    fn record(&self) -> Option<&Record> {
        None
    }
    /// Cuts the link to the waiter: no task will wait for this one.
    fn cut(&self);
    /// Returns its options, if it has any.
    fn options(&self) -> Option<&TaskOptions>;
}

/// The context of a closure that has a submitter or options.
pub(super) struct ClosureContext {
    /// The record of a task whose permits are those of its submitter, while there is a handle. `None` if there is no submitter.
    submitter: Option<Arc<Record>>,
    options: Option<TaskOptions>,
}

impl ClosureContext {
    #[inline]
    fn of(submitter: Option<Arc<Record>>, options: Option<TaskOptions>) -> Option<Box<Self>> {
        (submitter.is_some() || options.is_some()).then(|| Box::new(Self { submitter, options }))
    }
}

impl Context for Option<Box<ClosureContext>> {
    #[inline]
    fn cut(&self) {
        if let Some(submitter) = self.as_ref().and_then(|context| context.submitter.as_ref()) {
            submitter.cut();
        }
    }

    #[inline]
    fn options(&self) -> Option<&TaskOptions> {
        self.as_ref()?.options.as_ref()
    }
}

/// The cell of a closure, which runs in the span of its submitter.
pub(super) type ClosureCell<F, T> = Cell<(F, Caller), (), T, Option<Box<ClosureContext>>>;

/// A task and its result.
///
/// If the handle goes before the task is claimed, all later callers see `DETACHED` without the lock, because claiming changes the same
/// word. Otherwise the handle takes the lock after it has set the flag, and the end of the task reads the flag under the lock: one of
/// them drops the result.
pub(super) struct Cell<Q, R, T, C> {
    inner: Mutex<Inner<Q, R, T>>,
    flags: AtomicU8,
    pub(super) context: C,
}

impl<Q, R: Default, T, C> Cell<Q, R, T, C> {
    pub(super) fn new(task: Q, context: C) -> Self {
        let inner = Inner {
            stage: Stage::Queued(task),
            waker: None,
        };
        Self {
            inner: Mutex::new(inner),
            flags: AtomicU8::new(0),
            context,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner<Q, R, T>> {
        self.inner.lock()
    }

    #[inline]
    fn has(&self, flags: u8) -> bool {
        // Acquire: pairs with the changes in `claim` and `detach`.
        self.flags.load(Ordering::Acquire) & flags != 0
    }

    /// Takes the task, unless it has started or ended.
    #[inline]
    pub(super) fn take(&self) -> Option<Q> {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Started(R::default())) {
            Stage::Queued(task) => Some(task),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    /// Ends a taken task without running it to its end.
    pub(super) fn end_unfinished<F>(&self, task: F, why: TaskError) -> bool {
        drop_quietly(task);
        // The refusing caller knows the reason, so a payload that no handle takes is dropped.
        drop_quietly(self.complete(Err(why)));
        true
    }

    /// Sets the result. Returns the payload of a panic that no handle will take: of the task, or of the drop of a result that no handle
    /// takes.
    pub(super) fn complete(&self, result: Result<T, TaskError>) -> Option<Payload> {
        if !self.has(DETACHED) {
            let mut inner = self.lock();
            if !self.has(DETACHED) {
                inner.stage = Stage::Done(result.map_err(Box::new));
                let waker = inner.waker.take();
                drop(inner);
                wake(waker.map(|waker| *waker));
                return None;
            }
        }
        match result {
            Err(TaskError::Panicked(payload)) => Some(payload.into_inner()),
            Err(unwanted) => {
                drop_quietly(unwanted);
                None
            }
            // A drop that does nothing needs no guard.
            Ok(unwanted) if std::mem::needs_drop::<T>() => drop_caught(unwanted),
            Ok(_) => None,
        }
    }
}

impl<F, T> ClosureCell<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    #[inline]
    pub(super) fn of(task: F, caller: Caller, options: Option<TaskOptions>) -> Arc<Self> {
        let submitter = current().map(|submitter| Arc::new(Record::of(Some(submitter))));
        Arc::new(Self::new((task, caller), ClosureContext::of(submitter, options)))
    }

    /// Creates the cell of a task without a handle.
    pub(super) fn detached(task: F, caller: Caller, options: Option<TaskOptions>) -> Arc<Self> {
        let cell = Self::new((task, caller), ClosureContext::of(None, options));
        cell.detach();
        Arc::new(cell)
    }

    #[inline]
    fn run_taken(&self, (task, caller): (F, Caller), orphan: &mut dyn FnMut(Payload)) -> Ran {
        let ran = catch_unwind(AssertUnwindSafe(|| caller.within(task)));
        // Closes the span before a joiner learns of the end. The subscriber may panic.
        drop_quietly(caller);
        let (result, ran) = match ran {
            Ok(value) => (Ok(value), Ran::Done),
            Err(payload) => (Err(TaskError::panicked(payload)), Ran::Panicked),
        };
        match self.complete(result) {
            Some(payload) => {
                orphan(payload);
                Ran::Panicked
            }
            None => ran,
        }
    }
}

impl<F, T> Run for ClosureCell<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    #[inline]
    fn waiter(&self) -> Option<Arc<dyn Task>> {
        let submitter = self.context.as_ref()?.submitter.as_ref()?;
        Some(Arc::clone(submitter) as _)
    }

    #[inline]
    fn run(&self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        let task = self.take();
        task.map_or(Ran::Gone, |task| self.run_taken(task, orphan))
    }
}

impl<Q: Send, R: Default + Send, T: Send, C: Context> Queued for Cell<Q, R, T, C> {
    fn refuse(&self, why: TaskError) -> bool {
        let task = self.take();
        task.is_some_and(|task| self.end_unfinished(task, why))
    }

    fn is_queued(&self) -> bool {
        !self.has(CLAIMED)
    }

    fn claim(&self) -> bool {
        // Acquire: the end of the task sees what `detach` has set before. Release: pairs with the load in `has`.
        self.flags.fetch_or(CLAIMED, Ordering::AcqRel) & CLAIMED == 0
    }

    #[inline]
    fn options(&self) -> Option<&TaskOptions> {
        self.context.options()
    }
}

impl<Q: Send, R: Default + Send, T: Send, C: Context> Await<T> for Cell<Q, R, T, C> {
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        let mut new = None;
        loop {
            let mut inner = self.lock();
            if let Some(result) = inner.take_result() {
                let old = inner.waker.take();
                drop(inner);
                drop(old);
                return Poll::Ready(result.map_err(|why| *why));
            }
            let is_known = inner.waker.as_ref().is_some_and(|known| known.will_wake(waker));
            let is_taken = matches!(inner.stage, Stage::Taken);
            let old = new.take().map(|new| inner.waker.replace(new));
            drop(inner);
            assert!(
                !is_taken,
                "the result of a task was asked for again after it had been given"
            );
            if is_known || old.is_some() {
                return Poll::Pending;
            }
            // Clones the waker outside the lock, and looks again: the task may have ended meanwhile.
            new = Some(Box::new(waker.clone()));
            // Relaxed: the handle's owner reads it in `detach`.
            self.flags.fetch_or(POLLED, Ordering::Relaxed);
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.lock().stage, Stage::Done(_) | Stage::Taken)
    }

    fn record(&self) -> Option<&Record> {
        self.context.record()
    }

    fn detach(&self) -> Option<Payload> {
        self.context.cut();
        // Release: pairs with the load in `has`. Acquire: sees the writes of the claimant.
        let before = self.flags.fetch_or(DETACHED, Ordering::AcqRel);
        if before & (CLAIMED | POLLED) == 0 {
            return None;
        }
        let mut inner = self.lock();
        let (waker, unwanted) = (inner.waker.take(), inner.take_result());
        drop(inner);
        drop_quietly(waker);
        match unwanted {
            Some(Ok(unwanted)) => drop_caught(unwanted),
            unwanted => {
                drop_quietly(unwanted);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::waits::{Inside, PoolId, Slot, Under};
    use super::*;
    use std::panic::resume_unwind;

    /// Counts its drops, each of which panics.
    struct Panics(Arc<AtomicU8>);

    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            resume_unwind(Box::new("dropped"));
        }
    }

    /// Given a handle that was polled, or not, when it goes before the claim, before the run, or after it, then the result is dropped once.
    /// The payload of a panic of that drop is told: by the run, or by the handle that goes after it.
    #[test]
    fn a_result_is_dropped_once_wherever_the_handle_goes() {
        for (polled, goes) in [false, true]
            .into_iter()
            .flat_map(|polled| (0..3).map(move |goes| (polled, goes)))
        {
            let dropped = Arc::new(AtomicU8::new(0));
            let result = Arc::clone(&dropped);
            let cell = ClosureCell::of(move || Panics(result), Caller::current(), None);
            let goes_at = |now| {
                let payload = if now == goes { cell.detach() } else { None };
                assert_eq!(payload.is_some(), now == goes && goes == 2);
            };
            if polled {
                assert!(cell.poll_result(Waker::noop()).is_pending());
            }
            goes_at(0);
            assert!(cell.is_queued() && cell.claim() && !cell.claim() && !cell.is_queued());
            goes_at(1);
            let (mut told, ran) = (0, if goes == 2 { Ran::Done } else { Ran::Panicked });
            assert_eq!(cell.run(&mut |_| told += 1), ran);
            assert_eq!((cell.is_done(), told), (goes == 2, u32::from(goes != 2)));
            goes_at(2);
            assert_eq!(dropped.load(Ordering::Relaxed), 1);
            assert_eq!(cell.run(&mut |_| ()), Ran::Gone);
        }
    }

    #[test]
    fn a_panic_goes_to_the_handle_if_there_is_one() {
        let panics = || -> u8 { resume_unwind(Box::new(7)) };
        let cell = ClosureCell::of(panics, Caller::current(), None);
        assert_eq!(cell.run(&mut |_| unreachable!("there is a handle")), Ran::Panicked);
        let Poll::Ready(Err(why)) = cell.poll_result(Waker::noop()) else {
            panic!("it has ended");
        };
        assert!(why.into_panic().unwrap().is::<i32>());
        let (cell, mut orphan) = (ClosureCell::detached(panics, Caller::current(), None), None);
        assert_eq!(cell.run(&mut |payload| orphan = Some(payload)), Ran::Panicked);
        assert!(orphan.unwrap().is::<i32>());
        let cell = ClosureCell::of(|| 7, Caller::current(), None);
        assert!(cell.refuse(TaskError::Expired) && !cell.refuse(TaskError::Cancelled));
        assert!(matches!(
            cell.poll_result(Waker::noop()),
            Poll::Ready(Err(TaskError::Expired))
        ));
    }

    /// A submitter that holds permits is known until the handle goes.
    #[test]
    fn a_cell_knows_its_submitter_while_there_is_a_handle() {
        let pool = crate::WorkerPool::builder().workers(1).build().unwrap();
        let _inside = Inside::work(PoolId::of(&**pool.core()), Slot::of(None));
        let submitter = Arc::new(Record::default());
        let _under = Under::enter(Arc::clone(&submitter) as _);
        let before = Arc::strong_count(&submitter);
        let cell = ClosureCell::of(|| (), Caller::current(), None);
        assert!(cell.waiter().is_some() && Arc::strong_count(&submitter) == before + 1);
        assert!(cell.detach().is_none());
        assert_eq!(Arc::strong_count(&submitter), before);
        assert!(ClosureCell::detached(|| (), Caller::current(), None).waiter().is_none());
    }
}
