//! A runner: takes the source, gets an item and what the item runs under, runs the future, delivers, and again.

use super::shared::Shared;
use super::state::{Source, Work};
use crate::ask::Ask;
use crate::limiter::Outcome as Ended;
use crate::pool::{Refused, TaskError, Ticket, drop_quietly};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

/// A runner. Dropped before it has ended in order, it was aborted, or dropped by its runtime, even before its first poll.
pub(super) struct Runner<Fut: Work> {
    shared: Arc<Shared<Fut>>,
    number: usize,
    /// What its item runs under.
    ticket: Option<Ticket>,
    in_order: bool,
}

impl<Fut: Work> Drop for Runner<Fut> {
    fn drop(&mut self) {
        self.give_up();
        if !self.in_order {
            self.shared.dropped(self.number);
        }
    }
}

/// Runs items until the source has ended.
pub(super) async fn run<Fut: Work>(mut runner: Runner<Fut>) {
    runner.work().await;
    runner.in_order = true;
}

impl<Fut: Work> Runner<Fut> {
    pub(super) fn new(shared: Arc<Shared<Fut>>, number: usize) -> Self {
        Self {
            shared,
            number,
            ticket: None,
            in_order: false,
        }
    }

    async fn work(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut done = None;
        // A future that is dropped half-way is gone before what it ran under is given back.
        let mut work = pin!(None::<Fut>);
        loop {
            let number = self.number;
            let next = self.without_slot(|cx| shared.poll_next(number, &mut done, cx)).await;
            let Some(mut source) = next else { return };
            match self.without_slot(|cx| poll_source(&mut source, cx)).await {
                Ok(Some(future)) => work.set(Some(future)),
                Ok(None) => return shared.end(source, None),
                Err(payload) => return shared.end(source, Some(TaskError::Panicked(payload))),
            }
            // Before the source goes back: no more than one item is taken ahead of its slot.
            let admission = &shared.settings.admission;
            let admitted = match admission.is_gated() {
                true => admission.admit(Ask::one(), self.ticket.take()).await.map(Some),
                false => Ok(None),
            };
            let refused = match admitted {
                Ok(ticket) => {
                    self.ticket = ticket;
                    None
                }
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
            let ended = match (shared.settings.fails)(&outcome) || outcome.is_err() {
                true => Ended::Failure,
                false => Ended::Success,
            };
            self.ticket = self.ticket.take().and_then(|ticket| ticket.finish_task(ended));
            done = Some((item, outcome));
            // Futures that are ready at once must not keep the runtime from its other tasks.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Polls to the end. The slot of the item before is not kept meanwhile.
    async fn without_slot<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        poll_fn(|cx| {
            let polled = poll(cx);
            if polled.is_pending() {
                self.give_up();
            }
            polled
        })
        .await
    }

    fn give_up(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.finish(Ended::Ignored);
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
