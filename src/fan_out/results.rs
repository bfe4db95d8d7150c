//! The consumer's side: streams of results, and the progress.

use super::delivery::Due;
use super::shared::Producer;
use crate::pool::{GroupError, TaskError, opaque_debug};
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The stream of results of [`FanOut::map`](super::FanOut::map): one for each item. Dropping it ends the fan-out.
///
/// ```
/// # use futures::StreamExt;
/// # use tollgate::fan_out::fan_out;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let results = fan_out([6, 0], 2).ordered().map(|n| async move { 12 / n });
/// let results: Vec<_> = results.collect().await;
/// assert_eq!(*results[0].as_ref().unwrap(), 2);
/// assert!(results[1].is_err(), "an item that panics fails alone");
/// # }
/// ```
#[must_use = "dropping the results ends the fan-out"]
pub struct Results<T> {
    shared: Arc<dyn Producer<T>>,
    /// Results taken from the runners and not yet given out.
    due: Due<T>,
    /// Results given out and not yet reported: capacity is freed for several at once, an eighth of the limit at most.
    given: usize,
    tell_at: usize,
    /// A waker that was cloned and not left in the shared state.
    waker: Option<Waker>,
    /// True after a look that found no result and left no waker.
    looked: bool,
}

impl<T> Results<T> {
    pub(super) fn new(shared: Arc<dyn Producer<T>>, limit: usize) -> Self {
        Self {
            shared,
            due: Due::new(),
            given: 0,
            tell_at: (limit / 8).clamp(1, 16),
            waker: None,
            looked: false,
        }
    }

    /// Reports results that were given out, so that runners take as many items more.
    fn tell(&mut self) {
        match std::mem::take(&mut self.given) {
            0 => {}
            given => Arc::clone(&self.shared).given(given),
        }
    }
}

impl<T> Unpin for Results<T> {}

impl<T> Stream for Results<T> {
    type Item = Result<T, TaskError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.due.is_empty() {
            if this.looked && !this.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                this.waker = Some(cx.waker().clone());
            }
            // After the waker's clone, which may panic.
            let waker = if this.looked { &mut this.waker } else { &mut None };
            match this.shared.poll_due(&mut this.due, waker) {
                Poll::Pending => {
                    this.tell();
                    // Looks again after other tasks had a turn, which may bring several results: one wake-up each costs more.
                    if !std::mem::replace(&mut this.looked, true) {
                        cx.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(false) => return Poll::Ready(None),
                Poll::Ready(true) => this.looked = false,
            }
        }
        if this.given >= this.tell_at {
            this.tell();
        }
        this.given += 1;
        Poll::Ready(this.due.pop_front().flatten())
    }
}

impl<T> Drop for Results<T> {
    fn drop(&mut self) {
        Arc::clone(&self.shared).stop();
    }
}

opaque_debug!([T] Results<T>, "Results");

/// The stream of results of [`FanOut::try_map`](super::FanOut::try_map). It ends with the first failure.
///
/// ```
/// # use futures::StreamExt;
/// # use tollgate::fan_out::fan_out;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let words = fan_out(["1", "two", "3"], 1).try_map(|word| async { word.parse::<i32>() });
/// let results: Vec<_> = words.collect().await;
/// assert!(results.last().unwrap().is_err(), "nothing follows the first failure");
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the results ends the fan-out"]
pub struct TryResults<T, E>(Option<Results<Result<T, E>>>);

impl<T, E> TryResults<T, E> {
    pub(super) fn new(results: Results<Result<T, E>>) -> Self {
        Self(Some(results))
    }
}

impl<T, E> Unpin for TryResults<T, E> {}

impl<T, E> Stream for TryResults<T, E> {
    type Item = Result<T, GroupError<E>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(results) = &mut this.0 else {
            return Poll::Ready(None);
        };
        let failed = match Pin::new(results).poll_next(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(Ok(value)))) => return Poll::Ready(Some(Ok(value))),
            Poll::Ready(Some(Ok(Err(error)))) => Some(Err(GroupError::Error(error))),
            Poll::Ready(Some(Err(why))) => Some(Err(GroupError::Task(why))),
            Poll::Ready(None) => None,
        };
        // Ends the fan-out.
        this.0 = None;
        Poll::Ready(failed)
    }
}

/// The progress of a fan-out: the argument of its [`FanOut::progress`](super::FanOut::progress) hook.
///
/// ```
/// # use futures::StreamExt;
/// # use std::sync::{Arc, Mutex};
/// # use tollgate::fan_out::fan_out;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let seen = Arc::new(Mutex::new(None));
/// let last = Arc::clone(&seen);
/// let results = fan_out(0..3, 2).progress(move |progress| *last.lock().unwrap() = Some(progress)).map(|n| async move { n });
/// assert_eq!(results.count().await, 3);
/// assert_eq!(seen.lock().unwrap().as_ref().map(|progress| progress.finished), Some(3));
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of items that were taken from the source. It may include items that were taken after this one had ended.
    pub taken: usize,
    /// The number of items whose futures have ended, panics included.
    pub finished: usize,
    /// The number of all items, if the source's size hint was exact at the start.
    pub total: Option<usize>,
}

pub(super) type Hook = dyn Fn(Progress) + Send + Sync;
