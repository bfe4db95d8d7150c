//! A runner: looks for an item, gets a slot, runs the future, delivers, and again.

use super::shared::{Next, Shared};
use super::slot::{Admitted, Slot};
use super::state::{Outcome, Source};
use crate::limiter::Outcome as Ended;
use crate::pool::{TaskError, drop_quietly};
use futures::Stream;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// Tells the consumer when the runtime drops a runner before its end.
struct Alive<D: Died>(Option<Arc<D>>, usize);

pub(super) trait Died {
    /// The runner of this number was dropped with whatever it had.
    fn died(&self, runner: usize);
}

impl<D: Died> Alive<D> {
    fn ended_in_order(mut self) {
        self.0 = None;
    }
}

impl<D: Died> Drop for Alive<D> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.died(self.1);
        }
    }
}

/// Runs items until the source has ended.
pub(super) fn run<S, F, Fut>(shared: Arc<Shared<S, F, Fut::Output>>, me: usize) -> impl Future<Output = ()> + Send
where
    S: Stream + Send + 'static,
    S::Item: Send + 'static,
    F: FnMut(S::Item) -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    // There before the first poll: it may never come.
    let alive = Alive(Some(Arc::clone(&shared)), me);
    async move {
        work(shared, me).await;
        alive.ended_in_order();
    }
}

async fn work<S, F, Fut>(shared: Arc<Shared<S, F, Fut::Output>>, me: usize)
where
    S: Stream + Send + 'static,
    S::Item: Send + 'static,
    F: FnMut(S::Item) -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    let called = Arc::new(AtomicBool::new(false));
    // Whoever started it called it to look.
    let (mut looking, mut done) = (true, None);
    let mut slot = Slot::none_of(&shared.settings);
    let mut admitted = Admitted::default();
    // Behind both: a future that is dropped half-way is gone before what it ran under is given back.
    let mut work = pin!(None::<Fut>);
    loop {
        if !slot.may_keep() {
            slot.give_up();
        }
        let mut source = match shared.next(me, &mut looking, done.take()) {
            Next::Look(source) => source,
            Next::End => return,
            Next::Idle => {
                slot.give_up();
                let mut queued = false;
                poll_fn(|cx| shared.poll_idle(&called, &mut queued, cx.waker())).await;
                // Relaxed: the lock orders it.
                looking = called.swap(false, Ordering::Relaxed);
                continue;
            }
        };
        let future = match first_poll(&mut source) {
            Some(next) => next,
            None => {
                // Nothing is held while the source has nothing.
                slot.give_up();
                next_of(&mut source).await
            }
        };
        let future = match future {
            Ok(Some(future)) => future,
            Ok(None) => return shared.end(source, &mut looking, None),
            Err(payload) => return shared.end(source, &mut looking, Some(TaskError::Panicked(payload))),
        };
        work.set(Some(future));
        // Before the source goes back: no more than one item is taken ahead of its slot.
        let refused = match slot.get(&mut admitted).await {
            Ok(refused) => refused,
            Err(closed) => {
                end_quietly(work.as_mut());
                return shared.end(source, &mut looking, Some(closed));
            }
        };
        let Some(index) = shared.put_back(me, source, &mut looking) else {
            end_quietly(work.as_mut());
            return drop_quietly(admitted);
        };
        let outcome = match refused {
            Some(refused) => Err(refused),
            None => poll_fn(|cx| shared.settings.caller.within(|| poll_work(work.as_mut(), cx))).await,
        };
        end_quietly(work.as_mut());
        admitted.finish(ended(&shared, &outcome));
        done = Some((index, outcome));
        // Futures that are ready at once must not keep the runtime from its other tasks.
        tokio::task::coop::consume_budget().await;
    }
}

fn poll_work<Fut: Future>(mut work: Pin<&mut Option<Fut>>, cx: &mut Context<'_>) -> Poll<Outcome<Fut::Output>> {
    let Some(future) = work.as_mut().as_pin_mut() else {
        return Poll::Ready(Err(TaskError::Cancelled));
    };
    match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(payload) => Poll::Ready(Err(TaskError::Panicked(payload))),
    }
}

fn ended<S, F, T>(shared: &Shared<S, F, T>, outcome: &Outcome<T>) -> Ended {
    if outcome.is_err() || (shared.settings.fails)(outcome) {
        Ended::Failure
    } else {
        Ended::Success
    }
}

/// The next future, `None` at the end, or the payload of a panic.
type Pulled<Fut> = std::thread::Result<Option<Fut>>;

fn poll_source<S, F, Fut>(source: &mut Source<S, F>, cx: &mut Context<'_>) -> Poll<Pulled<Fut>>
where
    S: Stream,
    F: FnMut(S::Item) -> Fut,
{
    let pulled = catch_unwind(AssertUnwindSafe(|| {
        source.stream.as_mut().poll_next(cx).map(|item| item.map(&mut source.f))
    }));
    match pulled {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(future)) => Poll::Ready(Ok(future)),
        Err(payload) => Poll::Ready(Err(payload)),
    }
}

/// What the source has at once. Its waker comes with the second look, if there must be one.
fn first_poll<S, F, Fut>(source: &mut Source<S, F>) -> Option<Pulled<Fut>>
where
    S: Stream,
    F: FnMut(S::Item) -> Fut,
{
    match poll_source(source, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(pulled) => Some(pulled),
        Poll::Pending => None,
    }
}

async fn next_of<S, F, Fut>(source: &mut Source<S, F>) -> Pulled<Fut>
where
    S: Stream,
    F: FnMut(S::Item) -> Fut,
{
    poll_fn(|cx| poll_source(source, cx)).await
}

fn end_quietly<Fut>(mut work: Pin<&mut Option<Fut>>) {
    drop_quietly(catch_unwind(AssertUnwindSafe(|| work.set(None))));
}
