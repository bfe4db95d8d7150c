//! A task: `Queued -> Running -> Done`. The queue owns what is queued, the runner what runs, the handle the cell of the result.

use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Why a task has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum TaskError {
    /// It panicked with this payload.
    Panicked(Box<dyn Any + Send>),
    /// It was cancelled before it started.
    Cancelled,
    /// The pool's policy refused it.
    Refused(String),
    /// The pool, or its runtime, ended before it had ended.
    Abandoned,
    /// No thread could be started for it, and none was there that would have run it.
    NoThread,
}

/// Runs code of the user's, whose panic must not end the worker. The payload's own drop may panic as well.
pub(crate) fn quietly(code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code))
        && let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        std::mem::forget(another);
    }
}

/// Where the result of a task is put, and awaited.
pub(crate) struct Cell<T>(Mutex<State<T>>);

enum State<T> {
    Pending(Option<Waker>),
    Done(Result<T, TaskError>),
    Taken,
}

impl<T> Cell<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::Pending(None)))
    }

    pub(crate) fn is_done(&self) -> bool {
        !matches!(*self.0.lock(), State::Pending(_))
    }

    /// The result, once; until then `waker` is woken when it is there.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        let waker = waker.clone();
        let mut state = self.0.lock();
        let old = match &mut *state {
            State::Pending(known) => known.replace(waker),
            state => match std::mem::replace(state, State::Taken) {
                State::Done(result) => return Poll::Ready(result),
                _ => panic!("a result is polled after it was taken"),
            },
        };
        drop(state);
        drop(old);
        Poll::Pending
    }
}

/// The other end of a cell: it puts the result there, once. Dropped before that, it says that the task was abandoned. So a handle is
/// ready whatever becomes of the task.
pub(crate) struct Completer<T>(Option<Arc<Cell<T>>>);

impl<T> Completer<T> {
    pub(crate) fn of(cell: &Arc<Cell<T>>) -> Self {
        Self(Some(Arc::clone(cell)))
    }

    fn complete(&mut self, result: Result<T, TaskError>) {
        let Some(cell) = self.0.take() else {
            return;
        };
        let old = std::mem::replace(&mut *cell.0.lock(), State::Done(result));
        if let State::Pending(Some(waker)) = old {
            quietly(|| waker.wake());
        }
        // With it goes the result, when the handle is gone.
        quietly(|| drop(cell));
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.complete(Err(TaskError::Abandoned));
    }
}

/// A closure in the queue.
pub(crate) trait Job: Send {
    fn run(self: Box<Self>);
    fn refuse(self: Box<Self>, why: TaskError);
}

pub(crate) struct Closure<F, T> {
    pub(crate) task: F,
    pub(crate) completer: Completer<T>,
}

impl<F: FnOnce() -> T + Send, T: Send> Job for Closure<F, T> {
    fn run(self: Box<Self>) {
        let Self { task, mut completer } = *self;
        completer.complete(catch_unwind(AssertUnwindSafe(task)).map_err(TaskError::Panicked));
    }

    fn refuse(self: Box<Self>, why: TaskError) {
        let Self { task, mut completer } = *self;
        quietly(|| drop(task));
        completer.complete(Err(why));
    }
}

/// A future in the queue.
pub(crate) trait AsyncJob: Send {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    fn refuse(self: Box<Self>, why: TaskError);
}

pub(crate) struct Futured<F: Future> {
    pub(crate) task: Option<Pin<Box<F>>>,
    pub(crate) completer: Completer<F::Output>,
}

impl<F: Future> Futured<F> {
    fn end(&mut self, result: Result<F::Output, TaskError>) {
        let task = self.task.take();
        quietly(|| drop(task));
        self.completer.complete(result);
    }
}

impl<F: Future> Drop for Futured<F> {
    fn drop(&mut self) {
        // The runtime has ended.
        self.end(Err(TaskError::Abandoned));
    }
}

impl<F: Future + Send> AsyncJob for Futured<F>
where
    F::Output: Send,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(task) = &mut self.task else {
            return Poll::Ready(());
        };
        let result = match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(payload) => Err(TaskError::Panicked(payload)),
        };
        self.end(result);
        Poll::Ready(())
    }

    fn refuse(mut self: Box<Self>, why: TaskError) {
        self.end(Err(why));
    }
}
