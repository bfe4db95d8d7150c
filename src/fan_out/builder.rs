//! How a fan-out is to be: its source, its limit, its order.

use super::progress::{Hook, Progress};
use super::results::{Results, TryResults};
use super::shared::{Settings, Shared};
use super::state::{Outcome, State, Work};
use crate::core::limiter::Limiter;
use crate::policy::Policy;
use crate::pool::{Admission, Caller, Gate, Runtime};
use crate::semaphore::Semaphore;
use futures::stream::{Iter, iter};
use futures::{Stream, StreamExt};
use std::fmt;
use std::sync::Arc;

/// How many at once: a number, or the permits of a semaphore that others may share or resize.
///
/// # Deadlock
/// A future that awaits a fan-out under the limit that it runs under itself holds what that waits for. Where such nest,
/// each depth takes a limit of its own.
#[derive(Clone, Debug)]
pub struct Limit {
    limit: usize,
    /// In place of the number: slots that others may share.
    slots: Option<Arc<Semaphore>>,
}

impl Limit {
    pub(super) fn now(&self) -> usize {
        self.slots.as_ref().map_or(self.limit, |slots| slots.limit())
    }
}

impl From<usize> for Limit {
    /// Zero is a fan-out that never starts anything.
    fn from(limit: usize) -> Self {
        let slots = (limit == 0).then(|| Arc::new(Semaphore::new(0)));
        Self { limit, slots }
    }
}

impl From<Arc<Semaphore>> for Limit {
    fn from(slots: Arc<Semaphore>) -> Self {
        let (limit, slots) = (0, Some(slots));
        Self { limit, slots }
    }
}

impl From<&Arc<Semaphore>> for Limit {
    fn from(slots: &Arc<Semaphore>) -> Self {
        Arc::clone(slots).into()
    }
}

/// A fan-out over the items of an iterator, at most `limit` at once.
///
/// ```
/// # use futures::StreamExt;
/// # use tollgate::fan_out::fan_out;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let squares = fan_out(0..10, 4).ordered().map(|n| async move { n * n });
/// let squares: Vec<i32> = squares.map(Result::unwrap).collect().await;
/// assert_eq!(squares[9], 81);
/// # }
/// ```
pub fn fan_out<I: IntoIterator>(items: I, limit: impl Into<Limit>) -> FanOut<Iter<I::IntoIter>> {
    fan_out_stream(iter(items), limit)
}

/// A fan-out over the items of a stream, at most `limit` at once.
pub fn fan_out_stream<S: Stream>(source: S, limit: impl Into<Limit>) -> FanOut<S> {
    FanOut {
        source,
        limit: limit.into(),
        ordered: false,
        ahead: None,
        gate: None,
        progress: None,
    }
}

/// Builds a fan-out: [`fan_out`], wishes, and [`map`](Self::map) or [`try_map`](Self::try_map).
#[must_use = "nothing starts before `map`"]
pub struct FanOut<S> {
    source: S,
    limit: Limit,
    ordered: bool,
    ahead: Option<usize>,
    gate: Option<Arc<dyn Gate>>,
    progress: Option<Box<Hook>>,
}

impl<S> FanOut<S>
where
    S: Stream + Send + 'static,
    S::Item: Send + 'static,
{
    /// Results come in the order of the items, instead of as they end. One that takes long holds up those behind it,
    /// and with them, once there is no more room for results, the source.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// How many results may wait for the consumer beside those that run; as many as may run at once unless set. A limit
    /// of 10 and a buffer of 5: at most 15 items have been taken from the source whose results have not been given out.
    ///
    /// **Deadlock**: a consumer that takes one result and then waits, without polling on, for the next item to start may wait
    /// for ever. Keep polling: the room that results make is noticed for up to 16 of them at once, and when the stream of
    /// results is polled and has none at hand.
    pub fn buffer(mut self, results: usize) -> Self {
        self.ahead = Some(results);
        self
    }

    /// Each item is admitted by `policy`, in turn, as one call, beside the limit. Where it can never be admitted, or not
    /// within the bounds that the policy has on waiting, its result is
    /// [`TaskError::Refused`](crate::pool::TaskError::Refused). One item at a time waits for the policy, and holds no permit
    /// of a shared limit meanwhile.
    ///
    /// The permit of the policy is given back after the future is gone: as a success; as a failure when it panics, or fails
    /// in [`try_map`](Self::try_map); and it counts for nothing when the future is dropped before its end.
    pub fn admit_by<L: Limiter<Ticket: Send> + 'static>(mut self, policy: Policy<L>) -> Self {
        self.gate = Some(Arc::new(policy));
        self
    }

    /// Is called whenever a future has ended, by the task that ran it. Tasks call it side by side, so that a later
    /// [`Progress`] may come before an earlier one. A panic of it is ignored.
    pub fn progress(mut self, hook: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(hook));
        self
    }

    /// Starts: `f` makes a future of each item, and the futures run on tasks of the current runtime. `f` itself is
    /// called for one item at a time.
    ///
    /// Each item has one result: what its future returned, or why it returned nothing. A source, or an `f`, that panics
    /// ends the fan-out with one more result, the panic; a runtime that is shut down ends it with
    /// [`TaskError::Aborted`](crate::pool::TaskError::Aborted).
    ///
    /// # Cancel safety
    /// Dropping the stream of results drops the source and, as soon as their tasks are polled next, all futures.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn map<F, Fut>(self, f: F) -> Results<Fut::Output>
    where
        F: FnMut(S::Item) -> Fut + Send + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: Send + 'static,
    {
        self.start(f, |_| false)
    }

    /// Starts as [`map`](Self::map), for futures that may fail. The first failure ends the fan-out, whether the stream of
    /// results is polled or not: nothing more is taken from the source, what runs is dropped, and the stream ends behind it.
    /// In order, the items in front of the failure still run to their ends, and their results come first; should one of
    /// them fail as well, that is the failure behind which the stream ends.
    ///
    /// # Cancel safety
    /// As [`map`](Self::map).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// ```
    /// # use futures::TryStreamExt;
    /// # use tollgate::fan_out::fan_out;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let numbers = fan_out(["1", "2", "three"], 8).try_map(|word| async { word.parse::<i32>() });
    /// let failed = numbers.try_collect::<Vec<_>>().await.unwrap_err();
    /// assert!(failed.into_error().is_some());
    /// # }
    /// ```
    pub fn try_map<F, Fut, T, E>(self, f: F) -> TryResults<T, E>
    where
        F: FnMut(S::Item) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        TryResults::new(self.start(f, |outcome| !matches!(outcome, Ok(Ok(_)))))
    }

    fn start<F, Fut>(self, f: F, fails: fn(&Outcome<Fut::Output>) -> bool) -> Results<Fut::Output>
    where
        F: FnMut(S::Item) -> Fut + Send + 'static,
        Fut: Work,
    {
        let limit = self.limit.now();
        let total = match self.source.size_hint() {
            (least, Some(most)) if least == most => Some(most),
            _ => None,
        };
        let settings = Settings {
            admission: Admission {
                gate: self.gate,
                slots: self.limit.slots.clone(),
            },
            limit: self.limit,
            ahead: self.ahead,
            progress: self.progress,
            fails,
            caller: Caller::current(),
            runtime: Runtime::current().expect("a fan-out is made in a tokio runtime"),
        };
        let state = State::new(Box::pin(self.source.map(f)), self.ordered, fails, total);
        Results::new(Shared::start(settings, state), limit)
    }
}

impl<S> fmt::Debug for FanOut<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanOut")
            .field("limit", &self.limit.now())
            .field("ordered", &self.ordered)
            .finish_non_exhaustive()
    }
}
