//! Waiting for permits: one state machine, driven as a future or by parking a thread.

use super::atomic::{Joined, Semaphore};
use super::error::{AcquireError, AcquireTimeoutError};
use crate::sync::queue::{Key, State};
use crate::time::{Clock, Instant, Sleep};
use std::borrow::Borrow;
use std::cell::OnceCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// A wait for `n` permits of the semaphore behind `S`. Dropping it gives up the place in line.
#[must_use = "futures do nothing unless polled"]
pub(super) struct Acquire<S: Borrow<Semaphore>> {
    semaphore: S,
    n: i64,
    place: Option<Key>,
}

impl<S: Borrow<Semaphore>> Acquire<S> {
    #[inline]
    pub(super) fn new(semaphore: S, n: usize) -> Self {
        Self {
            semaphore,
            // A number that no semaphore can hold waits for ever, unless it is closed.
            n: i64::try_from(n)
                .unwrap_or(i64::MAX)
                .min(Semaphore::MAX_PERMITS as i64 + 1),
            place: None,
        }
    }

    #[inline]
    fn poll_acquired(&mut self, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        if self.place.is_none() && self.semaphore.borrow().try_take(self.n) {
            return Poll::Ready(Ok(()));
        }
        self.poll_slow(waker)
    }

    #[cold]
    fn poll_slow(&mut self, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        let semaphore = self.semaphore.borrow();
        let Some(key) = self.place else {
            if self.n == 0 && !semaphore.is_closed() {
                return Poll::Ready(Ok(()));
            }
            return match semaphore.join_line(self.n, waker.clone()) {
                Joined::Queued(key) => {
                    self.place = Some(key);
                    Poll::Pending
                }
                Joined::Taken => Poll::Ready(Ok(())),
                Joined::Closed => Poll::Ready(Err(AcquireError(()))),
            };
        };
        match semaphore.look(key, Some(waker)) {
            State::Waiting => Poll::Pending,
            State::Granted => {
                self.place = None;
                Poll::Ready(Ok(()))
            }
            State::Closed | State::Free => {
                self.place = None;
                Poll::Ready(Err(AcquireError(())))
            }
        }
    }

    /// Parks this thread until the permits are there.
    pub(super) fn block(mut self) -> Result<(), AcquireError> {
        if self.semaphore.borrow().try_take(self.n) {
            return Ok(());
        }
        with_parker(|waker| {
            loop {
                match self.poll_acquired(waker) {
                    Poll::Ready(result) => return result,
                    Poll::Pending => thread::park(),
                }
            }
        })
    }

    /// Parks this thread until the permits are there, or `patience` is over.
    pub(super) fn block_for(mut self, patience: Duration) -> Result<(), AcquireTimeoutError> {
        if self.semaphore.borrow().try_take(self.n) {
            return Ok(());
        }
        let start = std::time::Instant::now();
        with_parker(|waker| {
            loop {
                match self.poll_acquired(waker) {
                    Poll::Ready(result) => return Ok(result?),
                    Poll::Pending => {
                        let left = patience.saturating_sub(start.elapsed());
                        if left.is_zero() {
                            return Err(AcquireTimeoutError::TimedOut);
                        }
                        thread::park_timeout(left);
                    }
                }
            }
        })
    }
}

impl<S: Borrow<Semaphore> + Unpin> Future for Acquire<S> {
    type Output = Result<(), AcquireError>;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_acquired(cx.waker())
    }
}

impl<S: Borrow<Semaphore>> Drop for Acquire<S> {
    #[inline]
    fn drop(&mut self) {
        if let Some(key) = self.place.take() {
            self.semaphore.borrow().leave_line(key);
        }
    }
}

/// An [`Acquire`] that ends at an instant of a clock.
pub(super) struct AcquireUntil<S: Borrow<Semaphore>> {
    acquire: Acquire<S>,
    clock: Clock,
    deadline: Instant,
    sleep: Option<Sleep>,
}

impl<S: Borrow<Semaphore>> AcquireUntil<S> {
    pub(super) fn new(acquire: Acquire<S>, clock: &Clock, deadline: Instant) -> Self {
        Self {
            acquire,
            clock: clock.clone(),
            deadline,
            sleep: None,
        }
    }
}

impl<S: Borrow<Semaphore> + Unpin> Future for AcquireUntil<S> {
    type Output = Result<(), AcquireTimeoutError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // Permits first: what was handed over in time is taken even if the time is over by now.
        if let Poll::Ready(result) = this.acquire.poll_acquired(cx.waker()) {
            return Poll::Ready(result.map_err(AcquireTimeoutError::from));
        }
        let sleep = this
            .sleep
            .get_or_insert_with(|| Sleep::until(&this.clock, this.deadline));
        Pin::new(sleep).poll(cx).map(|()| Err(AcquireTimeoutError::TimedOut))
    }
}

struct Parker(Thread);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `wait` with the waker that unparks this thread: a blocked thread is a waiter like any other.
fn with_parker<R>(wait: impl FnOnce(&Waker) -> R) -> R {
    thread_local! {
        static WAKER: OnceCell<Waker> = const { OnceCell::new() };
    }
    let make = || Waker::from(Arc::new(Parker(thread::current())));
    match WAKER.try_with(|waker| waker.get_or_init(make).clone()) {
        Ok(waker) => wait(&waker),
        // The thread is ending and its locals are gone.
        Err(_) => wait(&make()),
    }
}
