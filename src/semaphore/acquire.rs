//! Waiting for permits: one state machine, driven as a future or by parking a thread.

use super::atomic::{Closed, Semaphore};
use super::error::{AcquireError, AcquireTimeoutError, TryAcquireError};
use super::limiter::SemaphoreTicket;
use crate::blocking;
use crate::core::limiter::Limiter;
use crate::core::permit::Permit;
use crate::sync::park::block_on_timeout;
use crate::sync::wait_queue::Key;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A reference to a semaphore, or a handle that owns it.
pub(super) trait Handle: Limiter<Ticket = SemaphoreTicket> + Deref<Target = Semaphore> + Unpin {}
impl<H: Limiter<Ticket = SemaphoreTicket> + Deref<Target = Semaphore> + Unpin> Handle for H {}

/// A wait for `n` permits. The handle passes on to the permit. Dropping it before leaves the queue.
#[must_use = "futures do nothing unless polled"]
pub(super) struct Acquire<H: Handle> {
    semaphore: Option<H>,
    n: u32,
    // One more than its key in the queue, and zero while it is in none: no option, since a waiter takes few bytes.
    key: usize,
}

/// Takes `n` permits if they are free and nothing waits.
pub(super) fn try_acquire<H: Handle>(semaphore: H, n: u32) -> Result<Permit<H>, TryAcquireError> {
    if semaphore.try_take(u64::from(n)) || semaphore.try_take_flagged(u64::from(n)) {
        return Ok(permit(semaphore, n));
    }
    Err(match semaphore.is_closed() {
        true => TryAcquireError::Closed,
        false => TryAcquireError::NoPermits,
    })
}

fn permit<H: Handle>(semaphore: H, n: u32) -> Permit<H> {
    Permit::new(semaphore, SemaphoreTicket::new(n as usize))
}

impl Semaphore {
    /// Takes `n` permits, or joins the queue for them with `key`, or looks how the wait of `key` stands.
    fn poll_wait(&self, n: u32, key: &mut usize, waker: &Waker) -> Poll<Result<(), Closed>> {
        if *key == 0 {
            *key = self.take_or_join(u64::from(n), waker)?.map_or(0, |joined| joined + 1);
            return match *key {
                0 => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            };
        }
        let looked = self.look_at(*key - 1, waker);
        if looked.is_ready() {
            *key = 0;
        }
        looked
    }
}

impl<H: Handle> Acquire<H> {
    pub(super) fn new(semaphore: H, n: u32) -> Self {
        let semaphore = Some(semaphore);
        let key = 0;
        Self { semaphore, n, key }
    }

    fn poll_acquired(&mut self, waker: &Waker) -> Poll<Result<Permit<H>, AcquireError>> {
        const ENDED: &str = "a future that has ended is not polled again";
        let semaphore = self.semaphore.as_ref().expect(ENDED);
        if (self.key != 0 || !semaphore.try_take(u64::from(self.n)))
            && semaphore.poll_wait(self.n, &mut self.key, waker)?.is_pending()
        {
            return Poll::Pending;
        }
        let semaphore = self.semaphore.take().expect(ENDED);
        Poll::Ready(Ok(permit(semaphore, self.n)))
    }

    /// Parks this thread until the permits are there, or `patience` is over.
    #[track_caller]
    pub(super) fn block(mut self, patience: Option<Duration>) -> Result<Permit<H>, AcquireTimeoutError> {
        blocking::check();
        let acquired = block_on_timeout(patience, |waker| self.poll_acquired(waker));
        Ok(acquired.ok_or(AcquireTimeoutError::TimedOut)??)
    }
}

impl<H: Handle> Future for Acquire<H> {
    type Output = Result<Permit<H>, AcquireError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_acquired(cx.waker())
    }
}

impl<H: Handle> Drop for Acquire<H> {
    fn drop(&mut self) {
        if let (Some(semaphore), 1..) = (&self.semaphore, self.key) {
            semaphore.leave_at(Key::Caller(self.key - 1));
        }
    }
}
