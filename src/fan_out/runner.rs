//! A runner: takes the source, gets an item and what the item runs under, runs the future, delivers, and again.

use super::shared::Shared;
use super::state::Source;
use crate::ask::Ask;
use crate::limiter::Outcome as Ended;
use crate::pool::{Refused, TaskError, Ticket, drop_quietly};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

/// A runner. Dropped before it has ended in order, it was aborted, or dropped by its runtime, even before its first poll.
struct Runner<Fut>
where
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    shared: Arc<Shared<Fut>>,
    number: usize,
    /// What its item runs under.
    ticket: Option<Ticket>,
    in_order: bool,
}

impl<Fut> Drop for Runner<Fut>
where
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    fn drop(&mut self) {
        self.finish(Ended::Ignored);
        if !self.in_order {
            self.shared.dropped(self.number);
        }
    }
}

/// Runs items until the source has ended.
pub(super) fn run<Fut>(shared: Arc<Shared<Fut>>, number: usize) -> impl Future<Output = ()> + Send
where
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    work(Runner {
        shared,
        number,
        ticket: None,
        in_order: false,
    })
}

async fn work<Fut>(mut runner: Runner<Fut>)
where
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    runner.work().await;
    runner.in_order = true;
}

impl<Fut> Runner<Fut>
where
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    async fn work(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut done = None;
        // A future that is dropped half-way is gone before what it ran under is given back.
        let mut work = pin!(None::<Fut>);
        loop {
            let next = poll_fn(|cx| shared.poll_next(self.number, &mut done, cx)).await;
            let Some(mut source) = next else { return };
            match poll_fn(|cx| poll_source(&mut source, cx)).await {
                Ok(Some(future)) => work.set(Some(future)),
                Ok(None) => return shared.end(source, None),
                Err(payload) => return shared.end(source, Some(TaskError::Panicked(payload))),
            }
            // Before the source goes back: no more than one item is taken ahead of its slot.
            let refused = match self.admit().await {
                Ok(()) => None,
                Err(Refused::Task(why)) => Some(why),
                Err(Refused::Closed) => {
                    drop_future(work.as_mut());
                    return shared.end(source, Some(TaskError::Abandoned));
                }
            };
            let Some(item) = shared.put_back(self.number, source) else {
                drop_future(work.as_mut());
                return self.ticket.take().map_or((), Ticket::cancel);
            };
            let outcome = match refused {
                Some(why) => Err(why),
                None => poll_fn(|cx| shared.settings.caller.within(|| poll_work(work.as_mut(), cx))).await,
            };
            drop_future(work.as_mut());
            self.finish(match (shared.settings.fails)(&outcome) || outcome.is_err() {
                true => Ended::Failure,
                false => Ended::Success,
            });
            done = Some((item, outcome));
            // Futures that are ready at once must not keep the runtime from its other tasks.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Waits for the policy, and for a slot, if others share those.
    async fn admit(&mut self) -> Result<(), Refused> {
        let admission = &self.shared.settings.admission;
        if admission.is_gated() {
            let mut asking = None;
            let asked = poll_fn(|cx| {
                let asking = asking.get_or_insert_with(|| admission.ask(Ask::one(), cx.waker().clone()));
                asking.poll()
            });
            self.ticket = Some(asked.await?);
        }
        Ok(())
    }

    fn finish(&mut self, outcome: Ended) {
        if let Some(ticket) = self.ticket.take() {
            ticket.finish(outcome);
        }
    }
}

fn poll_work<Fut: Future>(
    mut work: Pin<&mut Option<Fut>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Fut::Output, TaskError>> {
    let Some(future) = work.as_mut().as_pin_mut() else {
        return Poll::Ready(Err(TaskError::Cancelled));
    };
    match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(TaskError::Panicked(payload))),
    }
}

/// The next future, `None` at the end, or the payload of a panic.
fn poll_source<Fut>(source: &mut Source<Fut>, cx: &mut Context<'_>) -> Poll<std::thread::Result<Option<Fut>>> {
    match catch_unwind(AssertUnwindSafe(|| source.as_mut().poll_next(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(payload)),
    }
}

fn drop_future<Fut>(mut work: Pin<&mut Option<Fut>>) {
    drop_quietly(catch_unwind(AssertUnwindSafe(|| work.set(None))));
}
