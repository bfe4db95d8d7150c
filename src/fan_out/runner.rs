//! A runner: looks for an item, gets a slot, runs the future, delivers, and again.

use super::shared::{Next, Shared};
use super::state::{Outcome, Source};
use crate::limiter::Outcome as Ended;
use crate::pool::{TaskError, drop_quietly};
use crate::semaphore::{InTurn, OwnedSemaphorePermit};
use crate::{Ask, pool::Admission};
use futures::Stream;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

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
    let (mut looking, mut slot, mut done) = (true, Slot(None), None);
    let mut work = pin!(None::<Fut>);
    loop {
        if slot.0.is_some() && !may_keep_slot(&shared) {
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
        let admission = match get_slot(&shared, &mut slot).await {
            Ok(()) => admit(&shared).await,
            Err(closed) => {
                end_quietly(work.as_mut());
                return shared.end(source, &mut looking, Some(closed));
            }
        };
        let Some(index) = shared.put_back(me, source, &mut looking) else {
            end_quietly(work.as_mut());
            return drop_quietly(admission);
        };
        let outcome = match admission {
            Ok(admission) => {
                let outcome = poll_fn(|cx| {
                    let Some(future) = work.as_mut().as_pin_mut() else {
                        return Poll::Ready(Err(TaskError::Cancelled));
                    };
                    match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
                        Ok(Poll::Pending) => Poll::Pending,
                        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
                        Err(payload) => Poll::Ready(Err(TaskError::Panicked(payload))),
                    }
                })
                .await;
                if let Some(admission) = admission {
                    admission.finish(ended(&shared, &outcome));
                }
                outcome
            }
            Err(refused) => Err(refused),
        };
        end_quietly(work.as_mut());
        done = Some((index, outcome));
        // Futures that are ready at once must not keep the runtime from its other tasks.
        tokio::task::coop::consume_budget().await;
    }
}

fn may_keep_slot<S, F, T>(shared: &Shared<S, F, T>) -> bool {
    let slots = &shared.settings.slots;
    slots.debt() == 0 && !(shared.settings.shared_slots && slots.waiting() > 0)
}

/// The permit of a runner. Whoever waits for it is woken when it is given up, and may panic at that: the runner goes on.
struct Slot(Option<OwnedSemaphorePermit>);

impl Slot {
    fn give_up(&mut self) {
        if let Some(permit) = self.0.take() {
            drop_quietly(permit);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.give_up();
    }
}

async fn get_slot<S, F, T>(shared: &Shared<S, F, T>, slot: &mut Slot) -> Result<(), TaskError> {
    if slot.0.is_none() {
        let permit = InTurn::at(Arc::clone(&shared.settings.slots)).await;
        // Only a semaphore that was closed has none to come.
        slot.0 = Some(permit.ok_or(TaskError::Abandoned)?);
    }
    Ok(())
}

async fn admit<S, F, T>(shared: &Shared<S, F, T>) -> Result<Option<Box<dyn Admission>>, TaskError> {
    match &shared.settings.gate {
        None => Ok(None),
        Some(gate) => {
            let mut admitting = gate.admit(Ask::one());
            let admitted = poll_fn(
                |cx| match catch_unwind(AssertUnwindSafe(|| admitting.as_mut().poll(cx))) {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(admitted)) => Poll::Ready(admitted.map(Some).map_err(TaskError::Refused)),
                    Err(payload) => Poll::Ready(Err(TaskError::Panicked(payload))),
                },
            )
            .await;
            // It leaves the policy's line, and others move up.
            drop_quietly(admitting);
            admitted
        }
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

fn poll_source<S, F, Fut>(source: &mut Source<S, F>, cx: &mut std::task::Context<'_>) -> Poll<Pulled<Fut>>
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
    match poll_source(source, &mut std::task::Context::from_waker(std::task::Waker::noop())) {
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
