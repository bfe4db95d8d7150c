//! A task and its result in one allocation: what the queue holds of it, and what its handle holds.
//!
//! ```text
//!  Queued ------start-------> Started --complete--> Done --take--> Taken
//!    |  `--set aside--> Aside --start--^               ^
//!    `------------------`--refuse (cancelled, expired, discarded, abandoned)
//! ```
//! One caller alone moves a task out of `Queued`, under its lock: it runs once or is refused once. What
//! is set aside is out of reach of all but one, who may run it: a guest, or the owner of what was handed back.
//! Tasks and results are run and dropped outside the lock. A closure that has started is with its worker; a future
//! comes back while it waits: that is what `R` is for.

use super::caller::Caller;
use super::engine::waits::Task;
use super::error::TaskError;
use super::hooks::{Payload, drop_quietly, wake};
use crate::sync::shim::{Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// How a run ended, for its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    Done,
    Panicked,
    /// It had been claimed or refused before.
    Gone,
}

/// A task that waits for its turn.
pub(super) trait Queued: Send + Sync {
    /// Ends it without a run. False when it was started before, or set aside by another.
    fn refuse(&self, why: TaskError) -> bool;
    /// The same for the caller that has set it aside; and for a cancel, wherever it is.
    fn refuse_aside(&self, why: TaskError) -> bool;
    /// True until it is claimed, set aside or refused.
    fn is_queued(&self) -> bool;
    /// Puts it out of reach of all but the caller, who may start it later, unless it is refused meanwhile. False when
    /// another has it. It runs nothing of a user's.
    fn set_aside(&self) -> bool;
}

/// A closure as the queue sees it.
pub(super) trait Run: Queued {
    /// The task that may wait for it, where that holds permits: as long as there is a handle.
    fn waiter(&self) -> Option<Arc<dyn Task>>;
    /// Runs it here and now, unless another has claimed it. `orphan` is called with the payload of a panic for which
    /// no handle will ask.
    fn run(&self, orphan: &mut dyn FnMut(Payload)) -> Ran;
    /// The same for the caller that has set it aside.
    fn run_aside(&self, orphan: &mut dyn FnMut(Payload)) -> Ran;
}

/// A task as its handle sees it.
pub(super) trait Await<T>: Send + Sync {
    /// The result, once; or leaves `waker` to be woken when it is there.
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>>;
    fn is_done(&self) -> bool;
    /// The handle is gone: the result is dropped, now or when it is there.
    fn detach(&self);
}

/// A closure as its handle sees it.
pub(super) trait Job<T>: Run + Await<T> {}
impl<C: Run + Await<T>, T> Job<T> for C {}

pub(super) enum Stage<Q, R, T> {
    Queued(Q),
    Aside(Q),
    Started(R),
    Done(Result<T, TaskError>),
    Taken,
}

pub(super) struct Inner<Q, R, T> {
    pub(super) stage: Stage<Q, R, T>,
    pub(super) waker: Option<Waker>,
    /// The handle is gone.
    detached: bool,
}

pub(super) struct Cell<Q, R, T> {
    inner: Mutex<Inner<Q, R, T>>,
    caller: Caller,
}

impl<Q, R: Default, T> Cell<Q, R, T> {
    pub(super) fn new(task: Q, caller: Caller) -> Self {
        let inner = Inner {
            stage: Stage::Queued(task),
            waker: None,
            detached: false,
        };
        Self {
            inner: Mutex::new(inner),
            caller,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner<Q, R, T>> {
        self.inner.lock()
    }

    /// What the task keeps of its submitter.
    #[cfg(feature = "tokio")]
    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Takes the task, if it is still there.
    #[inline]
    pub(super) fn start(&self) -> Option<Q> {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Started(R::default())) {
            Stage::Queued(task) => Some(task),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    /// Takes the task, also where it has been set aside.
    pub(super) fn take_unstarted(&self) -> Option<Q> {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Started(R::default())) {
            Stage::Queued(task) | Stage::Aside(task) => Some(task),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    /// The task that was taken will not run.
    fn end_unstarted(&self, task: Q, why: TaskError) -> bool {
        drop_quietly(task);
        // The caller that refuses it knows why, and a panic is no reason.
        drop_quietly(self.complete(Err(why)));
        true
    }

    /// There is a result. What comes back is the payload of a panic, when no handle will ask for it.
    pub(super) fn complete(&self, result: Result<T, TaskError>) -> Option<Payload> {
        let waker = {
            let mut inner = self.lock();
            if inner.detached {
                inner.stage = Stage::Taken;
                drop(inner);
                return match result {
                    Err(TaskError::Panicked(payload)) => Some(payload),
                    unwanted => {
                        drop_quietly(unwanted);
                        None
                    }
                };
            }
            inner.stage = Stage::Done(result);
            inner.waker.take()
        };
        wake(waker);
        None
    }

    /// Clones the waker outside the lock, and looks again: the task may have ended meanwhile.
    fn leave_waker(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        let waker = waker.clone();
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Done(result) if !seeded!("pool_joins_blindly") => {
                drop(inner);
                Poll::Ready(result)
            }
            waiting => {
                inner.stage = waiting;
                let old = inner.waker.replace(waker);
                drop(inner);
                drop(old);
                Poll::Pending
            }
        }
    }
}

impl<F, T> Cell<F, (), T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    #[inline]
    fn run_taken(&self, task: F, orphan: &mut dyn FnMut(Payload)) -> Ran {
        match catch_unwind(AssertUnwindSafe(|| self.caller.within(task))) {
            Ok(value) => {
                self.complete(Ok(value));
                Ran::Done
            }
            Err(payload) => {
                if let Some(payload) = self.complete(Err(TaskError::Panicked(payload))) {
                    orphan(payload);
                }
                Ran::Panicked
            }
        }
    }
}

impl<F, T> Run for Cell<F, (), T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    #[inline]
    fn waiter(&self) -> Option<Arc<dyn Task>> {
        self.caller.waiter().map(Arc::clone)
    }

    #[inline]
    fn run(&self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        let task = self.start();
        task.map_or(Ran::Gone, |task| self.run_taken(task, orphan))
    }

    fn run_aside(&self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        let task = self.take_unstarted();
        task.map_or(Ran::Gone, |task| self.run_taken(task, orphan))
    }
}

impl<Q: Send, R: Default + Send, T: Send> Queued for Cell<Q, R, T> {
    fn refuse(&self, why: TaskError) -> bool {
        let task = self.start();
        task.is_some_and(|task| self.end_unstarted(task, why))
    }

    fn refuse_aside(&self, why: TaskError) -> bool {
        let task = self.take_unstarted();
        task.is_some_and(|task| self.end_unstarted(task, why))
    }

    fn is_queued(&self) -> bool {
        matches!(self.lock().stage, Stage::Queued(_))
    }

    fn set_aside(&self) -> bool {
        let mut inner = self.lock();
        let (stage, is_mine) = match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Queued(task) => (Stage::Aside(task), true),
            other => (other, false),
        };
        inner.stage = stage;
        is_mine
    }
}

impl<Q: Send, R: Default + Send, T: Send> Await<T> for Cell<Q, R, T> {
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Done(result) => {
                let old = inner.waker.take();
                drop(inner);
                drop(old);
                Poll::Ready(result)
            }
            Stage::Taken => {
                drop(inner);
                panic!("the result of a task was asked for again after it had been given");
            }
            waiting => {
                inner.stage = waiting;
                if inner.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                    return Poll::Pending;
                }
                drop(inner);
                self.leave_waker(waker)
            }
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.lock().stage, Stage::Done(_) | Stage::Taken)
    }

    fn detach(&self) {
        self.caller.cut();
        let mut inner = self.lock();
        inner.detached = true;
        let waker = inner.waker.take();
        let result = match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Done(result) => Some(result),
            other => {
                inner.stage = other;
                None
            }
        };
        drop(inner);
        drop_quietly((waker, result));
    }
}
