//! Waiting for permits: one state machine, driven as a future or by parking a thread.

use super::api::{OwnedSemaphorePermit, SemaphorePermit};
use super::atomic::Semaphore;
use super::error::{AcquireError, AcquireTimeoutError};
use crate::blocking;
use crate::sync::park::{block_on, block_on_timeout};
use crate::time::{Clock, Instant, Sleep};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A wait for `n` permits.
struct Wait {
    n: u32,
    // Its age in the queue; zero while it is in none.
    age: u64,
}

impl Wait {
    #[inline]
    fn poll(&mut self, semaphore: &Semaphore, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        if self.age == 0 && semaphore.try_take(u64::from(self.n)) {
            return Poll::Ready(Ok(()));
        }
        self.poll_slow(semaphore, waker)
    }

    #[inline(never)]
    fn poll_slow(&mut self, semaphore: &Semaphore, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        if self.age == 0 {
            return match semaphore.take_or_join(u64::from(self.n), waker) {
                Ok(None) => Poll::Ready(Ok(())),
                Ok(Some(age)) => {
                    self.age = age;
                    Poll::Pending
                }
                Err(closed) => Poll::Ready(Err(closed.into())),
            };
        }
        let looked = semaphore.look_at(self.age, waker);
        if looked.is_ready() {
            self.age = 0;
        }
        looked.map_err(AcquireError::from)
    }

    #[inline]
    fn leave(&mut self, semaphore: &Semaphore) {
        if self.age != 0 {
            semaphore.leave_at(self.age);
        }
    }
}

/// A wait at a borrowed semaphore. Dropping it leaves the queue.
#[must_use = "futures do nothing unless polled"]
pub(super) struct Acquire<'a> {
    semaphore: &'a Semaphore,
    wait: Wait,
}

impl<'a> Acquire<'a> {
    #[inline]
    pub(super) fn new(semaphore: &'a Semaphore, n: u32) -> Self {
        let wait = Wait { n, age: 0 };
        Self { semaphore, wait }
    }

    #[inline]
    fn poll_acquired(&mut self, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        self.wait.poll(self.semaphore, waker)
    }

    #[inline]
    fn permit(&self) -> SemaphorePermit<'a> {
        self.semaphore.held(self.wait.n as usize)
    }

    /// Parks this thread until the permits are there.
    #[track_caller]
    pub(super) fn block(mut self) -> Result<SemaphorePermit<'a>, AcquireError> {
        blocking::check();
        if !self.semaphore.try_take(u64::from(self.wait.n)) {
            block_on(|waker| self.poll_acquired(waker))?;
        }
        Ok(self.permit())
    }

    /// Parks this thread until the permits are there, or `patience` is over.
    #[track_caller]
    pub(super) fn block_for(mut self, patience: Duration) -> Result<SemaphorePermit<'a>, AcquireTimeoutError> {
        blocking::check();
        if !self.semaphore.try_take(u64::from(self.wait.n)) {
            let acquired = block_on_timeout(Some(patience), |waker| self.poll_acquired(waker));
            acquired.ok_or_else(|| self.timed_out())??;
        }
        Ok(self.permit())
    }

    fn timed_out(&self) -> AcquireTimeoutError {
        self.semaphore.count_time_out();
        AcquireTimeoutError::TimedOut
    }
}

impl<'a> Future for Acquire<'a> {
    type Output = Result<SemaphorePermit<'a>, AcquireError>;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_acquired(cx.waker())
            .map(|result| result.map(|()| self.permit()))
    }
}

impl Drop for Acquire<'_> {
    #[inline]
    fn drop(&mut self) {
        self.wait.leave(self.semaphore);
    }
}

/// An [`Acquire`] that owns a handle of its semaphore, until it passes it on to the permit.
#[must_use = "futures do nothing unless polled"]
pub(super) struct AcquireOwned {
    semaphore: Option<Arc<Semaphore>>,
    wait: Wait,
}

impl AcquireOwned {
    #[inline]
    pub(super) fn new(semaphore: Arc<Semaphore>, n: u32) -> Self {
        let (semaphore, wait) = (Some(semaphore), Wait { n, age: 0 });
        Self { semaphore, wait }
    }
}

impl Future for AcquireOwned {
    type Output = Result<OwnedSemaphorePermit, AcquireError>;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let ended = "a future that has ended is not polled again";
        let semaphore = this.semaphore.as_ref().expect(ended);
        this.wait.poll(semaphore, cx.waker()).map(|result| {
            result?;
            let semaphore = this.semaphore.take().expect(ended);
            Ok(semaphore.held_owned(this.wait.n as usize))
        })
    }
}

impl Drop for AcquireOwned {
    #[inline]
    fn drop(&mut self) {
        if let Some(semaphore) = &self.semaphore {
            self.wait.leave(semaphore);
        }
    }
}

/// An [`Acquire`] that ends at an instant of a clock.
pub(super) struct AcquireUntil<'a> {
    acquire: Acquire<'a>,
    clock: Clock,
    deadline: Instant,
    sleep: Option<Sleep>,
}

impl<'a> AcquireUntil<'a> {
    pub(super) fn new(acquire: Acquire<'a>, clock: &Clock, deadline: Instant) -> Self {
        Self {
            acquire,
            clock: clock.clone(),
            deadline,
            sleep: None,
        }
    }
}

impl<'a> Future for AcquireUntil<'a> {
    type Output = Result<SemaphorePermit<'a>, AcquireTimeoutError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // Permits first: those that were handed over in time are taken even if the time is over by now.
        if let Poll::Ready(result) = this.acquire.poll_acquired(cx.waker()) {
            return Poll::Ready(
                result
                    .map(|()| this.acquire.permit())
                    .map_err(AcquireTimeoutError::from),
            );
        }
        let sleep = this
            .sleep
            .get_or_insert_with(|| Sleep::until(&this.clock, this.deadline));
        Pin::new(sleep).poll(cx).map(|()| Err(this.acquire.timed_out()))
    }
}
