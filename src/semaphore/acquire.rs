//! Waiting for permits: one state machine, driven as a future or by parking a thread.

use super::atomic::Semaphore;
use super::error::{AcquireError, AcquireTimeoutError};
use super::limiter::SemaphoreTicket;
use super::permit::{OwnedSemaphorePermit, SemaphorePermit};
use crate::blocking;
use crate::permit::Permit;
use crate::sync::queue::Key;
use crate::sync::shim::thread::{self, Thread};
use crate::sync::shim::thread_local;
use crate::time::{Clock, Instant, Sleep};
use std::cell::OnceCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A wait for `n` permits, with its place in line once it has one, by its parts: three words with the semaphore.
struct Wait {
    n: u32,
    index: u32,
    /// Its class until it has a place.
    number: u64,
}

impl Wait {
    #[inline]
    fn new(n: u32, class: u8) -> Self {
        let (number, index) = Key::asking(class).parts();
        Self { n, index, number }
    }

    #[inline]
    fn place(&self) -> Key {
        Key::from_parts(self.number, self.index)
    }

    #[inline]
    fn poll(&mut self, semaphore: &Semaphore, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        if self.place().is_place() {
            if semaphore.is_served(self.number) {
                (self.number, self.index) = Key::TAKEN.parts();
                return Poll::Ready(Ok(()));
            }
        } else if semaphore.try_take(i64::from(self.n)) {
            return Poll::Ready(Ok(()));
        }
        // By value, so that a wait that ends at once lives in registers.
        let place = poll_slow(semaphore, self.n, self.place(), waker);
        (self.number, self.index) = place.parts();
        if place == Key::TAKEN {
            Poll::Ready(Ok(()))
        } else if place.is_place() {
            if seeded!("semaphore_wait_spins") {
                waker.wake_by_ref();
            }
            Poll::Pending
        } else {
            Poll::Ready(Err(AcquireError::of(place)))
        }
    }

    #[inline]
    fn leave(&mut self, semaphore: &Semaphore) {
        if self.place().is_place() && !seeded!("semaphore_wait_stays") {
            semaphore.leave_line(self.place(), i64::from(self.n));
        }
    }
}

/// Joins the line, or looks at the place in it. Returns the place that the wait has from then on, or how it has ended.
#[inline(never)]
fn poll_slow(semaphore: &Semaphore, n: u32, place: Key, waker: &Waker) -> Key {
    if place.is_place() {
        semaphore.look(place, i64::from(n), waker)
    } else if n == 0 && !semaphore.is_closed() {
        Key::TAKEN
    } else {
        semaphore.join_line(n, place.class(), waker.clone())
    }
}

/// A wait at a borrowed semaphore. Dropping it gives up the place in line.
#[must_use = "futures do nothing unless polled"]
pub(super) struct Acquire<'a> {
    semaphore: &'a Semaphore,
    wait: Wait,
}

impl<'a> Acquire<'a> {
    #[inline]
    pub(super) fn new(semaphore: &'a Semaphore, n: u32) -> Self {
        Self::of_class(semaphore, n, 0)
    }

    #[inline]
    pub(super) fn of_class(semaphore: &'a Semaphore, n: u32, class: u8) -> Self {
        let wait = Wait::new(n, class);
        Self { semaphore, wait }
    }

    #[inline]
    fn poll_acquired(&mut self, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        self.wait.poll(self.semaphore, waker)
    }

    #[inline]
    fn permit(&self) -> SemaphorePermit<'a> {
        Permit::new(self.semaphore, SemaphoreTicket::new(self.wait.n as usize))
    }

    /// Parks this thread until the permits are there.
    #[track_caller]
    pub(super) fn block(mut self) -> Result<SemaphorePermit<'a>, AcquireError> {
        blocking::check();
        if self.semaphore.try_take(i64::from(self.wait.n)) {
            return Ok(self.permit());
        }
        with_parker(|waker| {
            loop {
                match self.poll_acquired(waker) {
                    Poll::Ready(result) => return result.map(|()| self.permit()),
                    Poll::Pending => thread::park(),
                }
            }
        })
    }

    /// Parks this thread until the permits are there, or `patience` is over.
    #[track_caller]
    pub(super) fn block_for(mut self, patience: Duration) -> Result<SemaphorePermit<'a>, AcquireTimeoutError> {
        blocking::check();
        if self.semaphore.try_take(i64::from(self.wait.n)) {
            return Ok(self.permit());
        }
        let start = std::time::Instant::now();
        with_parker(|waker| {
            loop {
                match self.poll_acquired(waker) {
                    Poll::Ready(result) => {
                        result?;
                        return Ok(self.permit());
                    }
                    Poll::Pending => {
                        let left = patience.saturating_sub(start.elapsed());
                        if left.is_zero() {
                            self.semaphore.count_timeout();
                            return Err(AcquireTimeoutError::TimedOut);
                        }
                        thread::park_timeout(left);
                    }
                }
            }
        })
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
        Self::of_class(semaphore, n, 0)
    }

    #[inline]
    pub(super) fn of_class(semaphore: Arc<Semaphore>, n: u32, class: u8) -> Self {
        Self {
            semaphore: Some(semaphore),
            wait: Wait::new(n, class),
        }
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
            Ok(Permit::new(semaphore, SemaphoreTicket::new(this.wait.n as usize)))
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
        // Permits first: what was handed over in time is taken even if the time is over by now.
        if let Poll::Ready(result) = this.acquire.poll_acquired(cx.waker()) {
            return Poll::Ready(match result {
                Ok(()) => Ok(this.acquire.permit()),
                Err(closed) => Err(closed.into()),
            });
        }
        let sleep = this
            .sleep
            .get_or_insert_with(|| Sleep::until(&this.clock, this.deadline));
        Pin::new(sleep).poll(cx).map(|()| {
            this.acquire.semaphore.count_timeout();
            Err(AcquireTimeoutError::TimedOut)
        })
    }
}

struct Parker(Thread);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        if !seeded!("semaphore_parker_sleeps_on") {
            self.0.unpark();
        }
    }
}

/// Runs `wait` with the waker that unparks this thread: a blocked thread is a waiter like any other.
fn with_parker<R>(wait: impl FnOnce(&Waker) -> R) -> R {
    thread_local! {
        #[allow(clippy::missing_const_for_thread_local, reason = "the models' macro knows no constants")]
        static WAKER: OnceCell<Waker> = OnceCell::new();
    }
    let make = || Waker::from(Arc::new(Parker(thread::current())));
    match WAKER.try_with(|waker| waker.get_or_init(make).clone()) {
        Ok(waker) => wait(&waker),
        // The thread is ending and its locals are gone.
        Err(_) => wait(&make()),
    }
}
