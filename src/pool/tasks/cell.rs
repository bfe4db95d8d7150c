//! A future and its result: what the queue holds of it, whoever polls it, and its handle.
//!
//! ```text
//!  Queued --claim--> Resting <--> Polled --ready--> Done --take--> Taken
//!    |                 |            |                ^
//!    `--refuse---------+--abort-----+--(next)--------'
//! ```
//! Whoever takes the future out of it, under the lock, polls or drops it outside.

use crate::pool::cell::{Ran, drop_quietly, wake};
use crate::pool::error::TaskError;
use crate::sync::shim::Mutex;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A task as queue and runners see it.
pub(super) trait Run: Send + Sync {
    /// Takes it for whoever polls it from now on. False when somebody has.
    fn claim(&self) -> bool;
    /// Polls it, once it has been claimed. `pool`: whose task it is.
    fn poll_run(&self, pool: u64, cx: &mut Context<'_>) -> Poll<Ran>;
    /// Ends it, unless it has started.
    fn refuse(&self, why: TaskError) -> bool;
    /// Ends it, whether it has started or not. False when it had ended.
    fn abort(&self, queued: TaskError) -> bool;
    fn is_queued(&self) -> bool;
}

/// A task as its handle sees it.
pub(super) trait Await<T>: Run {
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>>;
    fn is_done(&self) -> bool;
    /// Nobody will ask for the result: it is dropped, now or when it is there.
    fn detach(&self);
}

/// One task that waits for others may run one of them itself, at a time.
#[derive(Default)]
pub(super) struct Turn(Mutex<(bool, Vec<Waker>)>);

impl Turn {
    /// True when it is the caller's; `waker` is woken otherwise when it is free.
    pub(super) fn take(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut turn = self.0.lock();
        if turn.0 {
            if !turn.1.iter().any(|known| known.will_wake(&waker)) {
                turn.1.push(waker);
            }
            return false;
        }
        turn.0 = true;
        true
    }

    pub(super) fn give_back(&self) {
        let waiting = {
            let mut turn = self.0.lock();
            turn.0 = false;
            std::mem::take(&mut turn.1)
        };
        for waker in waiting {
            wake(Some(waker));
        }
    }
}

crate::sync::shim::thread_local! {
    /// The tasks that are being polled on this thread, with their pools, innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static POLLED: RefCell<Vec<(u64, Arc<Turn>)>> = RefCell::new(Vec::new());
}

/// The turn of the task of `pool` that is being polled on this thread.
pub(super) fn turn_of(pool: u64) -> Option<Arc<Turn>> {
    let look = |polled: &RefCell<Vec<(u64, Arc<Turn>)>>| {
        let polled = polled.borrow();
        let innermost = polled.iter().rev().find(|(id, _)| *id == pool);
        innermost.map(|(_, turn)| Arc::clone(turn))
    };
    POLLED.try_with(look).ok().flatten()
}

struct Inside;

impl Inside {
    fn enter(pool: u64, turn: &Arc<Turn>) -> Self {
        let _ = POLLED.try_with(|polled| polled.borrow_mut().push((pool, Arc::clone(turn))));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let popped = POLLED.try_with(|polled| polled.borrow_mut().pop());
        drop(popped);
    }
}

enum Stage<Fut, T> {
    Queued(Fut),
    Resting(Pin<Box<Fut>>),
    Polled { aborted: bool },
    Done(Result<T, TaskError>),
    Taken,
}

struct Inner<Fut, T> {
    stage: Stage<Fut, T>,
    waiter: Option<Waker>,
    /// Whoever polls the future, to be told when it is aborted.
    poller: Option<Waker>,
    /// Nobody will ask for the result.
    detached: bool,
}

pub(super) struct Cell<Fut, T> {
    inner: Mutex<Inner<Fut, T>>,
    turn: Arc<Turn>,
}

impl<Fut, T> Cell<Fut, T>
where
    Fut: Future<Output = T> + Send,
    T: Send,
{
    pub(super) fn new(future: Fut) -> Self {
        Self {
            inner: Mutex::new(Inner {
                stage: Stage::Queued(future),
                waiter: None,
                poller: None,
                detached: false,
            }),
            turn: Arc::default(),
        }
    }

    pub(super) fn take_back(&self) -> Option<Fut> {
        let mut inner = self.inner.lock();
        match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Queued(future) => Some(future),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    fn complete(&self, result: Result<T, TaskError>) {
        let (waiter, poller) = {
            let mut inner = self.inner.lock();
            let unwanted = if inner.detached {
                inner.stage = Stage::Taken;
                Some(result)
            } else {
                inner.stage = Stage::Done(result);
                None
            };
            let wakers = (inner.waiter.take(), inner.poller.take());
            drop(inner);
            drop_quietly(unwanted);
            wakers
        };
        wake(waiter);
        wake(poller);
    }
}

impl<Fut, T> Run for Cell<Fut, T>
where
    Fut: Future<Output = T> + Send,
    T: Send,
{
    fn claim(&self) -> bool {
        let future = {
            let mut inner = self.inner.lock();
            match std::mem::replace(&mut inner.stage, Stage::Polled { aborted: false }) {
                Stage::Queued(future) => future,
                other => {
                    inner.stage = other;
                    return false;
                }
            }
        };
        let future = Box::pin(future);
        let mut inner = self.inner.lock();
        if matches!(inner.stage, Stage::Polled { aborted: true }) {
            drop(inner);
            drop_quietly(future);
            self.complete(Err(TaskError::Aborted));
            return false;
        }
        inner.stage = Stage::Resting(future);
        true
    }

    fn poll_run(&self, pool: u64, cx: &mut Context<'_>) -> Poll<Ran> {
        let mut future = {
            let mut inner = self.inner.lock();
            match std::mem::replace(&mut inner.stage, Stage::Polled { aborted: false }) {
                Stage::Resting(future) => future,
                // It was aborted.
                other => {
                    inner.stage = other;
                    return Poll::Ready(Ran::Gone);
                }
            }
        };
        let poll = || {
            let _inside = Inside::enter(pool, &self.turn);
            future.as_mut().poll(cx)
        };
        let (result, ran) = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => {
                let waker = cx.waker().clone();
                let mut inner = self.inner.lock();
                if !matches!(inner.stage, Stage::Polled { aborted: true }) {
                    inner.stage = Stage::Resting(future);
                    let old = inner.poller.replace(waker);
                    drop(inner);
                    drop(old);
                    return Poll::Pending;
                }
                drop(inner);
                (Err(TaskError::Aborted), Ran::Gone)
            }
            Ok(Poll::Ready(value)) => (Ok(value), Ran::Done),
            Err(payload) => (Err(TaskError::Panicked(payload)), Ran::Panicked),
        };
        drop_quietly(future);
        self.complete(result);
        Poll::Ready(ran)
    }

    fn refuse(&self, why: TaskError) -> bool {
        let Some(future) = self.take_back() else { return false };
        drop_quietly(future);
        self.complete(Err(why));
        true
    }

    fn abort(&self, queued: TaskError) -> bool {
        let mut inner = self.inner.lock();
        match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Queued(future) => {
                drop(inner);
                drop_quietly(future);
                self.complete(Err(queued));
                true
            }
            Stage::Resting(future) => {
                drop(inner);
                drop_quietly(future);
                self.complete(Err(TaskError::Aborted));
                true
            }
            // Whoever polls it sees this when the future is pending; one that is ready has its result.
            Stage::Polled { .. } => {
                inner.stage = Stage::Polled { aborted: true };
                true
            }
            other => {
                inner.stage = other;
                false
            }
        }
    }

    fn is_queued(&self) -> bool {
        matches!(self.inner.lock().stage, Stage::Queued(_))
    }
}

impl<Fut, T> Await<T> for Cell<Fut, T>
where
    Fut: Future<Output = T> + Send,
    T: Send,
{
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        let waker = waker.clone();
        let mut inner = self.inner.lock();
        if matches!(inner.stage, Stage::Done(_)) {
            let Stage::Done(result) = std::mem::replace(&mut inner.stage, Stage::Taken) else {
                unreachable!("it is done")
            };
            return Poll::Ready(result);
        }
        let old = inner.waiter.replace(waker);
        drop(inner);
        drop(old);
        Poll::Pending
    }

    fn is_done(&self) -> bool {
        matches!(self.inner.lock().stage, Stage::Done(_) | Stage::Taken)
    }

    fn detach(&self) {
        let mut inner = self.inner.lock();
        inner.detached = true;
        let waiter = inner.waiter.take();
        let result = match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Done(result) => Some(result),
            other => {
                inner.stage = other;
                None
            }
        };
        drop(inner);
        drop_quietly((waiter, result));
    }
}
