//! A task and its result in one allocation: what the queue holds of it, and what its handle holds.
//!
//! ```text
//!  Queued --claim--> Running --complete--> Done --take--> Taken
//!     `----refuse (cancelled, expired, discarded, abandoned)---^
//! ```
//! Whoever moves a task out of `Queued`, under its lock, is the only one who does: it runs once or is refused once.
//! Closures and results are run and dropped outside the lock.

use super::error::TaskError;
use crate::sync::shim::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, Waker};

/// How a run ended, for whoever ran it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    Done,
    Panicked,
    /// It had been claimed or refused before.
    Gone,
}

/// A task as the queue sees it.
pub(super) trait Run: Send + Sync {
    /// Runs it here and now, unless somebody else has claimed it. `claimed` is called before it runs.
    fn run(&self, claimed: &mut dyn FnMut()) -> Ran;
    /// Ends it without a run. False when it was claimed before.
    fn refuse(&self, why: TaskError) -> bool;
    /// True until it is claimed or refused.
    fn is_queued(&self) -> bool;
}

/// A task as its handle sees it.
pub(super) trait Await<T>: Run {
    /// The result, once; or leaves `waker` to be woken when it is there.
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>>;
    fn is_done(&self) -> bool;
    /// Nobody will ask for the result: it is dropped, now or when it is there.
    fn detach(&self);
}

enum Stage<F, T> {
    Queued(F),
    Running,
    Done(Result<T, TaskError>),
    Taken,
}

struct Inner<F, T> {
    stage: Stage<F, T>,
    waker: Option<Waker>,
    /// Nobody will ask for the result.
    detached: bool,
}

pub(super) struct Cell<F, T>(Mutex<Inner<F, T>>);

impl<F, T> Cell<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    pub(super) fn new(task: F) -> Self {
        Self(Mutex::new(Inner {
            stage: Stage::Queued(task),
            waker: None,
            detached: false,
        }))
    }

    pub(super) fn claim(&self) -> Option<F> {
        let mut inner = self.0.lock();
        match std::mem::replace(&mut inner.stage, Stage::Running) {
            Stage::Queued(task) => Some(task),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    fn complete(&self, result: Result<T, TaskError>) {
        let waker = {
            let mut inner = self.0.lock();
            if inner.detached {
                inner.stage = Stage::Taken;
                drop(inner);
                return drop_quietly(result);
            }
            inner.stage = Stage::Done(result);
            inner.waker.take()
        };
        wake(waker);
    }
}

impl<F, T> Run for Cell<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    #[inline]
    fn run(&self, claimed: &mut dyn FnMut()) -> Ran {
        let Some(task) = self.claim() else { return Ran::Gone };
        claimed();
        match catch_unwind(AssertUnwindSafe(task)) {
            Ok(value) => {
                self.complete(Ok(value));
                Ran::Done
            }
            Err(payload) => {
                self.complete(Err(TaskError::Panicked(payload)));
                Ran::Panicked
            }
        }
    }

    fn refuse(&self, why: TaskError) -> bool {
        let Some(task) = self.claim() else { return false };
        drop_quietly(task);
        self.complete(Err(why));
        true
    }

    fn is_queued(&self) -> bool {
        matches!(self.0.lock().stage, Stage::Queued(_))
    }
}

impl<F, T> Await<T> for Cell<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        let mut inner = self.0.lock();
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
        matches!(self.0.lock().stage, Stage::Done(_) | Stage::Taken)
    }

    fn detach(&self) {
        let mut inner = self.0.lock();
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

impl<F, T> Cell<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    /// Clones the waker outside the lock, and looks again: the task may have ended meanwhile.
    fn leave_waker(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        let waker = waker.clone();
        let mut inner = self.0.lock();
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

/// Wakes, and survives a waker that panics: the thread that completes a task is not the waker's.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        let woken = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        forget_panic(woken);
    }
}

/// Drops what is a user's, and survives a drop that panics.
pub(crate) fn drop_quietly<T>(value: T) {
    forget_panic(catch_unwind(AssertUnwindSafe(move || drop(value))));
}

/// Drops the payload of a panic that nobody wants, which may panic in turn: then that is leaked.
pub(super) fn forget_panic(caught: Result<(), Box<dyn Any + Send>>) {
    if let Err(payload) = caught
        && let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload)))
    {
        std::mem::forget(again);
    }
}
