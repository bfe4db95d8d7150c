//! The loss of a lease, as a future.

use super::backend::Backend;
use super::client::RemoteTicket;
use super::shared::Shared;
use crate::time::Sleep;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Ends when a permit of a [`Remote`](super::Remote) has been lost. It has a timer of its own, so that it does not depend on
/// the driver.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::remote::{Key, Lost, Memory, Remote};
/// let clock = ManualClock::new();
/// let remote = Remote::permits(Key::new("reports")?, 1).on(&clock).in_place(Memory::new(&clock))?;
/// clock.run(async {
///     let permit = remote.acquire(1).await.unwrap();
///     let lost: std::pin::Pin<&mut Lost<Memory>> = std::pin::pin!(permit.lost());
///     // Work until the lease is lost, or the work ends.
///     let work = std::pin::pin!(async { 42 });
///     let ended = futures::future::select(lost, work).await;
///     assert!(matches!(ended, futures::future::Either::Right((42, _))));
/// });
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Lost<B: Backend> {
    shared: Arc<Shared<B>>,
    ticket: Option<RemoteTicket>,
    number: Option<u64>,
    timer: Option<Sleep>,
}

impl<B: Backend> Lost<B> {
    pub(super) fn new(shared: Arc<Shared<B>>, ticket: Option<RemoteTicket>) -> Self {
        Self {
            shared,
            ticket,
            number: None,
            timer: None,
        }
    }
}

impl<B: Backend> Future for Lost<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(ticket) = this.ticket else {
            return Poll::Pending;
        };
        loop {
            let (now, waker) = (this.shared.clock.now(), cx.waker().clone());
            let number = &mut this.number;
            let (lost, expires_at, old) = this.shared.with(|client| {
                if client.is_lost(&ticket, now) {
                    return (true, None, Some(waker));
                }
                (false, client.expires_at(&ticket), client.watch(number, waker))
            });
            drop(old);
            if lost {
                return Poll::Ready(());
            }
            let Some(at) = expires_at else { return Poll::Pending };
            let timer = this.timer.get_or_insert_with(|| Sleep::until(&this.shared.clock, at));
            timer.reset(at);
            if Pin::new(timer).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl<B: Backend> Drop for Lost<B> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.shared.with(|client| client.unwatch(number));
            drop(waker);
        }
    }
}

impl<B: Backend> fmt::Debug for Lost<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost").finish_non_exhaustive()
    }
}
