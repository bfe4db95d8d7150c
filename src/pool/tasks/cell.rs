//! A future and its result: what the queue holds of it, its runner, and its handle.
//!
//! ```text
//!  Queued --start--> Resting <--> Polled --ready--> Done --take--> Taken
//!    |                 |            |                ^
//!    `--refuse---------+--abort-----+--(next)--------'
//! ```
//! What takes the future out of it, under the lock, polls or drops it outside.

use crate::pool::caller::Caller;
use crate::pool::cell::{Await, Cell, Queued, Ran, Stage};
use crate::pool::engine::waits::{Record, Task};
use crate::pool::error::TaskError;
use crate::pool::hooks::{Payload, drop_quietly, wake};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A future as the queue and its runner see it.
pub(super) trait Run: Task {
    /// Takes it for its runner: it has started, and an abort comes after its first poll. False when it has ended. It runs nothing
    /// of a user's.
    fn start(&self) -> bool;
    /// Polls it, once it has started. `orphan` is called with the payload of a panic for which nothing will ask.
    fn poll_run(&self, orphan: &dyn Fn(Payload), cx: &mut Context<'_>) -> Poll<Ran>;
    /// Ends it without a run. False when it has started, or ended.
    fn refuse(&self, why: TaskError) -> bool;
}

/// A future as its handle sees it.
pub(super) trait Job<T>: Run + Await<T> {}
impl<C: Run + Await<T>, T> Job<T> for C {}

/// A future that has started.
pub(super) enum Progress<Fut> {
    Resting(Rest<Fut>),
    /// Its runner polls it, and is to end it then when this is true.
    Polled(bool),
}

impl<Fut> Default for Progress<Fut> {
    fn default() -> Self {
        Self::Polled(false)
    }
}

pub(super) struct Rest<Fut> {
    future: Pin<Box<Fut>>,
    /// It is about to be polled for the first time, and then to be ended when this is true.
    starting: Option<bool>,
    /// Its runner, to be told when it is aborted.
    poller: Option<Waker>,
}

pub(super) struct TaskCell<Fut, T> {
    record: Record,
    /// In a box from the beginning: what moves it moves a pointer.
    cell: Cell<Box<Fut>, Progress<Fut>, T>,
}

impl<Fut, T> TaskCell<Fut, T> {
    pub(super) fn new(task: Fut) -> Self {
        Self {
            record: Record::new(),
            cell: Cell::new(Box::new(task), Caller::current()),
        }
    }

    /// Gets the future back, which has not been queued.
    pub(super) fn take_back(&self) -> Fut {
        *self.cell.start().expect("nothing else has seen this task")
    }

    fn take_up(&self) -> Option<Rest<Fut>> {
        let mut inner = self.cell.lock();
        match std::mem::replace(&mut inner.stage, Stage::Started(Progress::default())) {
            Stage::Started(Progress::Resting(mut rest)) => {
                if let Some(ends) = rest.starting.take() {
                    inner.stage = Stage::Started(Progress::Polled(ends));
                }
                Some(rest)
            }
            other => {
                inner.stage = other;
                None
            }
        }
    }

    /// True unless the task has been aborted meanwhile: then it has ended.
    fn lay_down(&self, rest: Rest<Fut>) -> bool {
        let mut inner = self.cell.lock();
        if let Stage::Started(Progress::Polled(true)) = inner.stage {
            drop(inner);
            self.end(rest, TaskError::Aborted);
            return false;
        }
        inner.stage = Stage::Started(Progress::Resting(rest));
        true
    }

    /// Drops the future, or what is left of it, and tells the handle why.
    fn end<F>(&self, future: F, why: TaskError) {
        drop_quietly(future);
        drop_quietly(self.cell.complete(Err(why)));
    }
}

impl<Fut: Send, T: Send> Task for TaskCell<Fut, T> {
    fn record(&self) -> &Record {
        &self.record
    }

    fn abort(&self, queued: TaskError) -> bool {
        let mut inner = self.cell.lock();
        match std::mem::replace(&mut inner.stage, Stage::Started(Progress::default())) {
            Stage::Queued(future) => {
                drop(inner);
                self.end(future, queued);
                true
            }
            Stage::Started(Progress::Resting(mut rest)) if rest.starting.is_some() => {
                rest.starting = Some(true);
                inner.stage = Stage::Started(Progress::Resting(rest));
                true
            }
            Stage::Started(Progress::Resting(mut rest)) => {
                drop(inner);
                let poller = rest.poller.take();
                self.end(rest, TaskError::Aborted);
                wake(poller);
                true
            }
            // Its runner sees this when the future is pending; one that is ready has its result.
            Stage::Started(Progress::Polled(_)) => {
                inner.stage = Stage::Started(Progress::Polled(true));
                true
            }
            ended => {
                inner.stage = ended;
                false
            }
        }
    }
}

impl<Fut, T> Run for TaskCell<Fut, T>
where
    Fut: Future<Output = T> + Send,
    T: Send,
{
    fn start(&self) -> bool {
        let mut inner = self.cell.lock();
        match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Queued(future) => {
                inner.stage = Stage::Started(Progress::Resting(Rest {
                    future: Box::into_pin(future),
                    starting: (!seeded!("tasks_are_aborted_before_they_begin")).then_some(false),
                    poller: None,
                }));
                true
            }
            other => {
                inner.stage = other;
                false
            }
        }
    }

    fn poll_run(&self, orphan: &dyn Fn(Payload), cx: &mut Context<'_>) -> Poll<Ran> {
        // None: it was aborted.
        let Some(mut rest) = self.take_up() else {
            return Poll::Ready(Ran::Gone);
        };
        let future = rest.future.as_mut();
        let (result, ran) = match catch_unwind(AssertUnwindSafe(|| self.cell.caller().within(|| future.poll(cx)))) {
            Ok(Poll::Pending) => {
                let known = rest.poller.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
                let old = (!known).then(|| rest.poller.replace(cx.waker().clone()));
                let rests = self.lay_down(rest);
                drop(old);
                return if rests { Poll::Pending } else { Poll::Ready(Ran::Gone) };
            }
            Ok(Poll::Ready(value)) => (Ok(value), Ran::Done),
            Err(payload) => (Err(TaskError::Panicked(payload)), Ran::Panicked),
        };
        drop_quietly(rest);
        if let Some(payload) = self.cell.complete(result) {
            orphan(payload);
        }
        Poll::Ready(ran)
    }

    fn refuse(&self, why: TaskError) -> bool {
        Queued::refuse(&self.cell, why)
    }
}

impl<Fut: Send, T: Send> Await<T> for TaskCell<Fut, T> {
    fn poll_result(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        self.cell.poll_result(waker)
    }

    fn is_done(&self) -> bool {
        self.cell.is_done()
    }

    fn detach(&self) {
        self.cell.detach();
    }
}
