//! Waiting for units, as a future.

use super::backend::Backend;
use super::client::{End, RemoteTicket, WaitKind};
use super::limiter::Remote;
use super::permit::RemotePermit;
use crate::core::permit::Permit;
use crate::core::refusal::{Reason, Refusal};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A wait for units of a [`Remote`]. Dropping it gives up its place in the queue, and its grant.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::remote::{Acquire, Key, Memory, Remote};
/// let clock = ManualClock::new();
/// let remote = Remote::permits(Key::new("reports")?, 1).on(&clock).in_place(Memory::new(&clock))?;
/// clock.run(async {
///     let waiting: Acquire<'_, Memory> = remote.acquire(1);
///     let permit = waiting.await.unwrap();
///     assert_eq!(permit.units(), 1);
/// });
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Acquire<'a, B: Backend> {
    remote: &'a Remote<B>,
    units: u64,
    kind: WaitKind,
    key: Option<u64>,
}

impl<'a, B: Backend> Acquire<'a, B> {
    pub(super) fn new(remote: &'a Remote<B>, units: u64, kind: WaitKind) -> Self {
        Self {
            remote,
            units,
            kind,
            key: None,
        }
    }

    fn poll_ticket(&mut self, cx: &mut Context<'_>) -> Poll<Result<RemoteTicket, Reason>> {
        let shared = &*self.remote.shared;
        let now = shared.clock.now();
        if self.key.is_none() {
            let waker = cx.waker().clone();
            let (units, kind) = (self.units, self.kind);
            match shared.acquire(units, now, |client, _| client.join(units, kind, waker, now)) {
                Ok(ticket) => return Poll::Ready(Ok(ticket)),
                Err(key) => self.key = Some(key),
            }
        }
        let Some(key) = self.key else { return Poll::Pending };
        let waker = cx.waker().clone();
        let (end, old) = shared.with(|client| client.poll_wait(key, Some(waker), now));
        drop(old);
        let end = match end {
            None => return Poll::Pending,
            Some(end) => end,
        };
        self.key = None;
        Poll::Ready(match end {
            End::Granted(ticket) => Ok(ticket),
            End::Refused(reason) => Err(reason),
            // Only waits of policies lapse.
            End::Lapsed => Err(Reason::Unavailable),
        })
    }

    /// Waits for a ticket, without a permit.
    pub(super) async fn ticket(mut self) -> Result<RemoteTicket, Reason> {
        std::future::poll_fn(|cx| self.poll_ticket(cx)).await
    }
}

impl<'a, B: Backend> Future for Acquire<'a, B> {
    type Output = Result<RemotePermit<'a, B>, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let remote = self.remote;
        self.poll_ticket(cx).map(|ended| match ended {
            Ok(ticket) => Ok(Permit::new(remote, ticket)),
            Err(reason) => Err(remote.refusal(reason)),
        })
    }
}

impl<B: Backend> Drop for Acquire<'_, B> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let shared = &*self.remote.shared;
            let now = shared.clock.now();
            let waker = shared.with(|client| client.leave(key, now));
            drop(waker);
        }
    }
}

impl<B: Backend> fmt::Debug for Acquire<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("units", &self.units)
            .finish_non_exhaustive()
    }
}
