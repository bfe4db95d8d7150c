//! The loop of a runner: take the source, take an item, get its slot and admission, run its future, deliver the result.

use super::shared::Shared;
use super::state::{End, Next, Source, Work};
use crate::core::ask::Ask;
use crate::core::limiter::Outcome as Ended;
use crate::pool::{Admitted, Refused, TaskError, Ticket, drop_quietly};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

/// A runner. If it is dropped before `in_order` is set, it was aborted or its runtime dropped it, maybe before its first poll.
struct Runner<Fut: Work> {
    shared: Arc<Shared<Fut>>,
    number: usize,
    /// The slot and the admission of its item.
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

/// Runs items until the source has ended. The `Runner` exists before the first poll, which may never come.
pub(super) fn run<Fut: Work>(shared: Arc<Shared<Fut>>, number: usize) -> impl Future<Output = ()> + Send {
    work(Runner {
        shared,
        number,
        ticket: None,
        in_order: false,
    })
}

async fn work<Fut: Work>(mut runner: Runner<Fut>) {
    runner.work().await;
    runner.in_order = true;
}

impl<Fut: Work> Runner<Fut> {
    async fn work(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut done = None;
        // A local, so it drops before the runner: a future dropped half-way is gone before its ticket is given back.
        let mut work = pin!(None::<Fut>);
        let mut more = Vec::new();
        loop {
            let number = self.number;
            let next = self.without_slot(|cx| shared.poll_next(number, &mut done, cx)).await;
            let (item, refused) = match next {
                None => return,
                Some(Next::Run(item, future)) => {
                    work.set(Some(future));
                    (item, None)
                }
                Some(Next::Take(mut source, most)) => {
                    let taken = match self.without_slot(|cx| caught(|| source.as_mut().poll_next(cx))).await {
                        Ok(Some(taken)) => taken,
                        Ok(None) => return shared.end(source, None),
                        Err(payload) => return shared.end(source, Some(TaskError::panicked(payload))),
                    };
                    // Before the source is put back: at most one item is taken ahead of its slot.
                    let admitted = match taken.work {
                        Err(why) => Err(Refused::Task(why)),
                        Ok(future) => {
                            work.set(Some(future));
                            self.admit(taken.admitted).await
                        }
                    };
                    let refused = match admitted {
                        Ok(()) => None,
                        Err(Refused::Task(why)) => Some(why),
                        Err(Refused::Closed) => {
                            drop_future(work.as_mut());
                            return shared.end(source, Some(TaskError::Abandoned));
                        }
                    };
                    let end = poll_fn(|cx| Poll::Ready(take_more(&mut source, most, &mut more, cx))).await;
                    let Some(item) = shared.put_back(self.number, source, &mut more, end) else {
                        more.drain(..).for_each(drop_quietly);
                        drop_future(work.as_mut());
                        return self.ticket.take().map_or((), Ticket::cancel);
                    };
                    (item, refused)
                }
            };
            let outcome = match refused {
                Some(why) => Err(why),
                None => {
                    let mut future = work.as_mut().as_pin_mut().expect("it was set");
                    let polled = poll_fn(|cx| shared.settings.caller.within(|| caught(|| future.as_mut().poll(cx))));
                    polled.await.map_err(TaskError::panicked)
                }
            };
            drop_future(work.as_mut());
            if let Some(ticket) = self.ticket.take() {
                self.ticket = ticket.finish_task(shared.settings.ended(&outcome));
            }
            done = Some((item, outcome));
            // Futures that are ready at once must not starve the runtime's other tasks.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Waits for the slot and the policy of all items. `admitted` is the admission by the policy of this one.
    async fn admit(&mut self, admitted: Admitted) -> Result<(), Refused> {
        // Other waiters may be due since the previous item.
        if self.ticket.as_ref().is_some_and(|ticket| !ticket.may_keep()) {
            self.give_up();
        }
        let admission = &self.shared.settings.admission;
        if !admission.is_done(self.ticket.as_ref()) {
            match admission.admit(Ask::one(), self.ticket.take()).await {
                Ok(ticket) => self.ticket = Some(ticket),
                Err(refused) => {
                    drop_quietly(admitted);
                    return Err(refused);
                }
            }
        }
        if admitted.is_some() {
            self.ticket = Some(Ticket::admitted(self.ticket.take(), admitted));
        }
        Ok(())
    }

    /// Polls until ready. A pending poll gives up the slot of the previous item.
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

/// Takes up to `most` more items that are ready. Returns the end of the source if it has come.
fn take_more<Fut: Work>(
    source: &mut Source<Fut>,
    most: usize,
    more: &mut Vec<Fut>,
    cx: &mut Context<'_>,
) -> Option<End> {
    while more.len() < most {
        match caught(|| source.as_mut().poll_next(cx)) {
            // Only items with a policy of their own are refused, and none of these is taken ahead.
            Poll::Ready(Ok(Some(taken))) => more.extend(taken.work.ok()),
            Poll::Ready(Ok(None)) => return Some(None),
            Poll::Ready(Err(payload)) => return Some(Some(TaskError::panicked(payload))),
            Poll::Pending => return None,
        }
    }
    None
}

/// Returns the result of the poll, or the payload of its panic.
fn caught<T>(poll: impl FnOnce() -> Poll<T>) -> Poll<std::thread::Result<T>> {
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(payload)),
    }
}

fn drop_future<Fut>(mut work: Pin<&mut Option<Fut>>) {
    drop_quietly(catch_unwind(AssertUnwindSafe(|| work.set(None))));
}
