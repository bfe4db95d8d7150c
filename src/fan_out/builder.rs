//! The builder of a fan-out: its source, its limit, its order.

use super::delivery::Delivery;
use super::each::{AdmitEach, Admittable};
use super::results::{Hook, Progress, Results, TryResults};
use super::shared::{Classify, Settings, Shared};
use super::state::{Outcome, Source, State, Work};
use crate::core::ask::Ask;
use crate::core::limiter::{Limiter, Outcome as Ended};
use crate::policy::Policy;
use crate::pool::{Admission, Caller, Gate, opaque_debug};
use crate::semaphore::Semaphore;
use crate::sync::runtime::Runtime;
use futures::stream::{Iter, iter};
use futures::{Stream, StreamExt};
use std::pin::Pin;
use std::sync::Arc;

/// The concurrency limit of a fan-out: a number, or the permits of a semaphore that others may share or resize.
///
/// **Deadlock**: a future holds a permit of its limit while it awaits an inner fan-out. If fan-outs nest, give each depth its
/// own limit.
///
/// ```
/// # use futures::StreamExt;
/// # use std::sync::Arc;
/// # use tollgate::Semaphore;
/// # use tollgate::fan_out::fan_out;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let slots = Arc::new(Semaphore::new(2));
/// // Both share two slots.
/// let [evens, odds] = [[0, 2, 4], [1, 3, 5]].map(|numbers| fan_out(numbers, &slots).map(|n| async move { n }));
/// assert_eq!(futures::stream::select(evens, odds).count().await, 6);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limit {
    limit: usize,
    /// Replaces the number: slots that others may share.
    slots: Option<Arc<Semaphore>>,
}

impl Limit {
    pub(super) fn now(&self) -> usize {
        self.slots.as_ref().map_or(self.limit, |slots| slots.limit())
    }
}

impl From<usize> for Limit {
    /// Converts a number. A fan-out with a limit of zero never starts an item.
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

/// Makes a fan-out over the items of an iterator that runs at most `limit` of them concurrently.
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

/// Makes a fan-out over the items of a stream that runs at most `limit` of them concurrently.
pub fn fan_out_stream<S: Stream>(source: S, limit: impl Into<Limit>) -> FanOut<S> {
    FanOut {
        source,
        limit: limit.into(),
        ordered: false,
        ahead: None,
        gate: None,
        each: None,
        progress: None,
    }
}

/// The size of the largest future that is taken ahead: a larger one costs more to move than the lock that it saves.
const MOST_BYTES_AHEAD: usize = 256;

/// Makes a source of items with their admissions.
type Admits<S> = Box<dyn FnOnce(S) -> Pin<Box<dyn Stream<Item = Admittable<<S as Stream>::Item>> + Send>> + Send>;

/// Builds a fan-out: [`fan_out`], then options, then [`map`](Self::map) or [`try_map`](Self::try_map).
///
/// ```
/// # use futures::StreamExt;
/// # use tollgate::fan_out::fan_out;
/// # use tollgate::{Policy, Semaphore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let requests = fan_out(["a", "b", "c"], 2).ordered().buffer(4).admit_by(Policy::new(Semaphore::new(1)));
/// let replies = requests.map(|name| async move { name.to_uppercase() }).map(Result::unwrap);
/// assert_eq!(replies.collect::<Vec<_>>().await, ["A", "B", "C"]);
/// # }
/// ```
#[must_use = "nothing starts before `map`"]
pub struct FanOut<S: Stream> {
    source: S,
    limit: Limit,
    ordered: bool,
    ahead: Option<usize>,
    gate: Option<Arc<dyn Gate>>,
    each: Option<Admits<S>>,
    progress: Option<Box<Hook>>,
}

impl<S> FanOut<S>
where
    S: Stream + Send + 'static,
    S::Item: Send + 'static,
{
    /// Gives the results in the order of the items, instead of the order in which they end. A slow item delays the results
    /// behind it. Once the buffer is full it delays the source as well.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Sets the number of results that may wait for the consumer, beside the items that run. The default is the limit. With a
    /// limit of 10 and a buffer of 5, at most 15 items are taken from the source and not yet given out as results.
    ///
    /// **Deadlock**: a consumer that takes one result and waits for the next item to start, without polling, may wait for
    /// ever. Keep polling the results: freed capacity is reported for up to 16 results at once, and when a poll finds no
    /// result ready.
    pub fn buffer(mut self, results: usize) -> Self {
        self.ahead = Some(results);
        self
    }

    /// Asks `policy` to admit each item, in order, as one call. The limit applies as well. If the policy refuses an item, or
    /// its bounds on waiting are exceeded, the item's result is [`TaskError::Refused`](crate::pool::TaskError::Refused). One
    /// item at a time waits for the policy, and it holds no permit of a shared limit meanwhile.
    ///
    /// The policy's permit is released after the future is dropped. Its outcome is a failure if the future panicked or failed
    /// in [`try_map`](Self::try_map), and a success otherwise. The outcome of a future that is dropped before its end is
    /// ignored.
    pub fn admit_by<L: Limiter + 'static>(mut self, policy: Policy<L>) -> Self {
        self.gate = Some(Arc::new(policy));
        self.each = None;
        self
    }

    /// Asks a policy of its own to admit each item: `choose` returns the policy and what it is asked for, with its costs. The
    /// limit applies as well. It replaces [`admit_by`](Self::admit_by), as that replaces this.
    ///
    /// Up to `most` items (at least 1) that were taken from the source wait for their policies, beside those that run. They hold
    /// no permit of the limit, and an item holds up only later items of the same policy. So the rate of a slow host leaves
    /// the limit to the items of other hosts. A limit for all of them, as a rate of the whole program, is a leg that the
    /// policies share.
    ///
    /// While all of the limit is used, each policy may have admitted one item that has not started.
    ///
    /// An admission that is awaited inside the function, as `Retry` of the crate `tollgate-resilience` does, holds a permit of the limit meanwhile. The
    /// [tutorial](crate::guide::tutorials#a-polite-crawler) has retries.
    ///
    /// Refusals and outcomes are as in [`admit_by`](Self::admit_by). If `choose` panics, the fan-out ends with the panic.
    ///
    /// ```
    /// # use futures::StreamExt;
    /// # use std::collections::HashMap;
    /// # use tollgate::fan_out::fan_out;
    /// # use tollgate::{Ask, Policy, Quota, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let [slow, fast] = [20, 1_000].map(|rate| Policy::new(TokenBucket::new(Quota::per_second(rate).burst(1))));
    /// let hosts = HashMap::from([("a", slow), ("b", fast)]);
    /// let pages = ["a/1", "a/2", "b/1", "b/2"];
    /// let pages = fan_out(pages, 1)
    ///     .admit_each(100, move |page| (hosts[&page[..1]].clone(), Ask::one()))
    ///     .map(|page| async move { page });
    /// let pages: Vec<&str> = pages.map(Result::unwrap).collect().await;
    /// assert_eq!(pages[3], "a/2", "it waits for its host, and holds up no page of the other");
    /// # }
    /// ```
    pub fn admit_each<L: Limiter + 'static>(
        mut self,
        most: usize,
        mut choose: impl FnMut(&S::Item) -> (Policy<L>, Ask) + Send + 'static,
    ) -> Self {
        let choose = move |item: &S::Item| {
            let (policy, ask) = choose(item);
            (policy.identity(), Arc::new(policy) as Arc<dyn Gate>, ask)
        };
        let each: Admits<S> = Box::new(move |source| Box::pin(AdmitEach::new(source, most, choose)));
        (self.gate, self.each) = (None, Some(each));
        self
    }

    /// Sets a hook that each task calls after a future has ended. Tasks call it concurrently, so a later [`Progress`] may
    /// arrive before an earlier one. A panic of the hook is ignored.
    pub fn progress(mut self, hook: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(hook));
        self
    }

    /// Starts the fan-out. `f` makes a future of each item, one item at a time. The futures run on tasks of the current
    /// runtime.
    ///
    /// Items that are ready may be taken from the source, and made futures, before a task is free: up to a quarter of the
    /// limit, and at most 16. None is with a limit of less than 4, shared permits, or a policy.
    ///
    /// Each item has one result: the output of its future, or the [`TaskError`](crate::pool::TaskError) that replaced it. If
    /// the source or `f` panics, the fan-out ends with one more result, the panic. If the runtime is shut down, it ends with
    /// [`TaskError::Aborted`](crate::pool::TaskError::Aborted).
    ///
    /// # Cancel safety
    /// Dropping the stream of results drops the source. Each future is dropped at the next poll of its task.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn map<F, Fut>(self, f: F) -> Results<Fut::Output>
    where
        F: FnMut(S::Item) -> Fut + Send + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: Send + 'static,
    {
        self.start(f, |_| false, None)
    }

    /// Starts the fan-out as [`map`](Self::map) does. `classify` maps each output to the outcome of the policy's permit, from which
    /// breakers and adaptive limits learn: a response with the status 429 to
    /// [`Outcome::Overload`](crate::Outcome::Overload). If `classify` panics, it is `Ignored`.
    ///
    /// # Cancel safety
    /// As for [`map`](Self::map).
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    ///
    /// ```
    /// # use futures::StreamExt;
    /// # use tollgate::fan_out::fan_out;
    /// # use tollgate::{Outcome, Policy, Semaphore};
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let statuses = fan_out([200, 503, 503], 1)
    ///     .admit_by(Policy::new(Arc::new(Semaphore::new(1)))) // And a breaker, which opens at the failures.
    ///     .map_classified(|status| async move { status }, |status| match status {
    ///         500.. => Outcome::Failure,
    ///         _ => Outcome::Success,
    ///     });
    /// assert_eq!(statuses.map(Result::unwrap).collect::<Vec<_>>().await, [200, 503, 503]);
    /// # }
    /// ```
    pub fn map_classified<F, Fut>(
        self,
        f: F,
        classify: impl Fn(&Fut::Output) -> Ended + Send + Sync + 'static,
    ) -> Results<Fut::Output>
    where
        F: FnMut(S::Item) -> Fut + Send + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: Send + 'static,
    {
        self.start(f, |_| false, Some(Box::new(classify)))
    }

    /// Starts the fan-out as [`map`](Self::map) does, for futures that may fail. The first failure ends the fan-out, whether
    /// or not the results are polled: no further item is taken from the source, running futures are dropped, and the failure
    /// is the last result.
    ///
    /// If the results are [`ordered`](Self::ordered), the items in front of the failure run to their ends, and their results
    /// come first. If one of them fails too, the results end with that failure. If the runtime drops one, they end there with an error.
    ///
    /// # Cancel safety
    /// As for [`map`](Self::map).
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
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
        TryResults::new(self.start(f, |outcome| !matches!(outcome, Ok(Ok(_))), None))
    }

    fn start<F, Fut>(
        self,
        f: F,
        fails: fn(&Outcome<Fut::Output>) -> bool,
        classify: Option<Box<Classify<Fut::Output>>>,
    ) -> Results<Fut::Output>
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
            total,
            fails,
            classify,
            caller: Caller::current(),
            runtime: Runtime::current().expect("a fan-out is made in a tokio runtime"),
        };
        let has_each = self.each.is_some();
        let source = match self.each {
            None => mapped(self.source.map(|item| (item, Ok(None))), f),
            Some(each) => mapped(each(self.source), f),
        };
        let is_plain = !settings.admission.is_gated() && !has_each && size_of::<Fut>() <= MOST_BYTES_AHEAD;
        let most_ahead = if is_plain { (limit / 4).min(16) } else { 0 };
        let state = State::new(source, self.ordered, most_ahead);
        let delivery = Delivery::new(self.ordered);
        Results::new(Shared::start(settings, state, delivery), limit)
    }
}

opaque_debug!(
    [S: Stream] FanOut<S>, "FanOut", |this|
    limit = this.limit.now(), ordered = this.ordered
);

/// Maps the admitted items to their futures.
fn mapped<I, Fut: Work>(
    items: impl Stream<Item = Admittable<I>> + Send + 'static,
    mut f: impl FnMut(I) -> Fut + Send + 'static,
) -> Source<Fut> {
    Box::pin(items.map(move |(item, admitted)| admitted.map(|admitted| (f(item), admitted))))
}
