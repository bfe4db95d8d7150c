//! A future and its result, shared by the queue, the runner and the handle.
//!
//! ```text
//!  Queued --start--> Resting <--> Polled --ready--> Done --take--> Taken
//!    |                 |            |                ^
//!    `--refuse---------+--abort-----+--(next)--------'
//! ```
//! A thread takes the future out under the lock, and polls or drops it outside.

use crate::pool::caller::Caller;
use crate::pool::cell::{Await, Cell, Context, Queued, Ran, Stage};
use crate::pool::engine::waits::{Record, Task, current};
use crate::pool::error::TaskError;
use crate::pool::hooks::{Payload, drop_quietly, wake};
use crate::pool::task_options::TaskOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

/// The view of the queue and the runner.
pub(in crate::pool) trait Run: Queued + Task {
    /// The task, as waits see it.
    fn into_task<'a>(self: Arc<Self>) -> Arc<dyn Task + 'a>
    where
        Self: 'a;
    /// Starts the claimed task for its runner; an abort then takes effect after its first poll. Returns false when the task has ended.
    /// Runs no user code.
    fn start(&self) -> bool;
    /// Polls the started task. Passes the payload of a panic to `orphan` if no handle will return it.
    fn poll_run(&self, orphan: &dyn Fn(Payload), cx: &mut task::Context<'_>) -> Poll<Ran>;
    /// Ends the started task. Returns false if it has not started, or has ended.
    fn abort(&self) -> bool;
}

/// The view of the handle.
pub(in crate::pool) trait Job<T>: Run + Await<T> {
    /// The view of the pool.
    fn into_run(self: Arc<Self>) -> Arc<dyn Run>;
}

impl<C: Run + Await<T> + 'static, T> Job<T> for C {
    fn into_run(self: Arc<Self>) -> Arc<dyn Run> {
        self
    }
}

/// A future that has started.
pub(in crate::pool) enum Progress<Fut> {
    Resting(Rest<Fut>),
    /// Its runner polls it. True: the runner is to end it after the poll.
    Polled(bool),
}

impl<Fut> Default for Progress<Fut> {
    fn default() -> Self {
        Self::Polled(false)
    }
}

pub(in crate::pool) struct Rest<Fut> {
    future: Pin<Box<Fut>>,
    caller: Caller,
    /// Some before the first poll. True: the runner is to end it after that poll.
    starting: Option<bool>,
    /// The runner's waker, for an abort.
    poller: Option<Waker>,
}

/// The future is boxed from the beginning: a move of it moves a pointer.
pub(in crate::pool) type TaskCell<Fut, T> =
    Cell<(Box<Fut>, Caller), Progress<Fut>, T, (Record, Option<Box<TaskOptions>>)>;

impl Context for (Record, Option<Box<TaskOptions>>) {
    fn record(&self) -> Option<&Record> {
        Some(&self.0)
    }

    fn cut(&self) {
        self.0.cut();
    }

    fn options(&self) -> Option<&TaskOptions> {
        self.1.as_deref()
    }
}

impl<Fut: Send, T: Send> Task for TaskCell<Fut, T> {
    fn record(&self) -> &Record {
        &self.context.0
    }
}

impl<Fut, T> TaskCell<Fut, T> {
    pub(in crate::pool) fn of(task: Fut, caller: Caller, options: Option<TaskOptions>) -> Self {
        Self::new((Box::new(task), caller), (Record::of(current()), options.map(Box::new)))
    }

    /// Takes the future out to poll it. Returns `None` if it was aborted.
    fn take_up(&self) -> Option<Rest<Fut>> {
        let mut inner = self.lock();
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

    /// Puts a pending future back. If the task was aborted during the poll, ends it and returns false.
    fn lay_down(&self, rest: Rest<Fut>) -> bool {
        let mut inner = self.lock();
        if let Stage::Started(Progress::Polled(true)) = inner.stage {
            drop(inner);
            self.end_unfinished(rest, TaskError::Aborted);
            return false;
        }
        inner.stage = Stage::Started(Progress::Resting(rest));
        true
    }
}

impl<Fut, T> Run for TaskCell<Fut, T>
where
    Fut: Future<Output = T> + Send,
    T: Send,
{
    fn into_task<'a>(self: Arc<Self>) -> Arc<dyn Task + 'a>
    where
        Self: 'a,
    {
        self
    }

    fn start(&self) -> bool {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Queued((future, caller)) => {
                inner.stage = Stage::Started(Progress::Resting(Rest {
                    future: Box::into_pin(future),
                    caller,
                    starting: Some(false),
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

    fn poll_run(&self, orphan: &dyn Fn(Payload), cx: &mut task::Context<'_>) -> Poll<Ran> {
        let Some(mut rest) = self.take_up() else {
            return Poll::Ready(Ran::Gone);
        };
        let (future, caller) = (rest.future.as_mut(), &rest.caller);
        let (result, ran) = match catch_unwind(AssertUnwindSafe(|| caller.within(|| future.poll(cx)))) {
            Ok(Poll::Pending) => {
                let known = rest.poller.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
                let old = (!known).then(|| rest.poller.replace(cx.waker().clone()));
                let rests = self.lay_down(rest);
                drop(old);
                return if rests { Poll::Pending } else { Poll::Ready(Ran::Gone) };
            }
            Ok(Poll::Ready(value)) => (Ok(value), Ran::Done),
            Err(payload) => (Err(TaskError::panicked(payload)), Ran::Panicked),
        };
        drop_quietly(rest);
        Poll::Ready(match self.complete(result) {
            Some(payload) => {
                orphan(payload);
                Ran::Panicked
            }
            None => ran,
        })
    }

    fn abort(&self) -> bool {
        let mut inner = self.lock();
        let Stage::Started(progress) = &mut inner.stage else {
            return false;
        };
        match std::mem::take(progress) {
            Progress::Resting(mut rest) if rest.starting.is_some() => {
                rest.starting = Some(true);
                *progress = Progress::Resting(rest);
            }
            Progress::Resting(mut rest) => {
                drop(inner);
                let poller = rest.poller.take();
                self.end_unfinished(rest, TaskError::Aborted);
                wake(poller);
            }
            // The runner reads this if the future is pending. A ready future has its result.
            Progress::Polled(_) => *progress = Progress::Polled(true),
        }
        true
    }
}
