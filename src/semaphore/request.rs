//! A request for permits that says of which class it is: by a borrowed semaphore, or by one that it owns a handle of.

use super::acquire::{Acquire, AcquireOwned, AcquireUntil};
use super::atomic::Semaphore;
use super::error::{AcquireError, AcquireTimeoutError};
use super::permit::{OwnedSemaphorePermit, SemaphorePermit};
use crate::time::{Clock, Instant};
use std::sync::Arc;
use std::time::Duration;

impl Semaphore {
    /// A request for `n` permits that says of which class it is.
    pub fn request(&self, n: u32) -> Request<'_> {
        Request {
            semaphore: self,
            n,
            class: 0,
        }
    }

    /// The same, for a permit that owns its semaphore: to wait, or to work, in a task of its own.
    pub fn request_owned(self: Arc<Self>, n: u32) -> OwnedRequest {
        OwnedRequest {
            semaphore: self,
            n,
            class: 0,
        }
    }
}

/// A request for permits that says of which class it is. Made by [`Semaphore::request`].
///
/// ```
/// # use tollgate::{Order, Semaphore};
/// # use tollgate::ManualClock;
/// const URGENT: u8 = 0;
/// const BATCH: u8 = 1;
/// let semaphore = Semaphore::builder(2).order(Order::Shares(vec![3, 1])).build().unwrap();
/// let permit = semaphore.request(2).class(BATCH).blocking_acquire().unwrap();
/// assert_eq!(permit.num_permits(), 2);
/// assert!(semaphore.request(1).class(URGENT).blocking_acquire_timeout(std::time::Duration::ZERO).is_err());
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it acquires"]
pub struct Request<'a> {
    semaphore: &'a Semaphore,
    n: u32,
    class: u8,
}

impl<'a> Request<'a> {
    /// Of which class it is, 0 unless set. A class that the semaphore's order does not have counts as its last. A policy
    /// waits in class 0.
    pub fn class(mut self, class: u8) -> Self {
        self.class = class;
        self
    }

    fn wait(self) -> Acquire<'a> {
        Acquire::of_class(self.semaphore, self.n, self.class)
    }

    /// Waits for the permits.
    ///
    /// # Errors
    /// When the semaphore is closed, or its queue is full, or the waiter is sent away.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    pub fn acquire(self) -> impl Future<Output = Result<SemaphorePermit<'a>, AcquireError>> {
        self.wait()
    }

    /// The same, for at most `patience` of real time, from the first poll on.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and `TimedOut`.
    ///
    /// # Panics
    /// As [`Semaphore::acquire_timeout`].
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    pub async fn acquire_timeout(self, patience: Duration) -> Result<SemaphorePermit<'a>, AcquireTimeoutError> {
        let clock = Clock::real();
        let deadline = clock.after(clock.now(), patience);
        self.acquire_until(&clock, deadline).await
    }

    /// The same, until `deadline` of `clock`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and `TimedOut`.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    pub async fn acquire_until(
        self,
        clock: &Clock,
        deadline: Instant,
    ) -> Result<SemaphorePermit<'a>, AcquireTimeoutError> {
        AcquireUntil::new(self.wait(), clock, deadline).await
    }

    /// Parks this thread until it has the permits.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire(self) -> Result<SemaphorePermit<'a>, AcquireError> {
        self.wait().block()
    }

    /// The same, for at most `patience`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and `TimedOut`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_timeout(self, patience: Duration) -> Result<SemaphorePermit<'a>, AcquireTimeoutError> {
        self.wait().block_for(patience)
    }
}

/// A [`Request`] for a permit that owns its semaphore. Made by [`Semaphore::request_owned`].
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::{Clock, Order, Semaphore};
/// let order = Order::Priority { classes: 2, patience: 8 };
/// let semaphore = Arc::new(Semaphore::builder(1).order(order).build().unwrap());
/// let waiting = Arc::clone(&semaphore).request_owned(1).class(1).acquire();
/// let permit = Clock::real().run(waiting).unwrap();
/// std::thread::spawn(move || drop(permit)).join().unwrap();
/// assert_eq!(semaphore.in_use(), 0);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it acquires"]
pub struct OwnedRequest {
    semaphore: Arc<Semaphore>,
    n: u32,
    class: u8,
}

impl OwnedRequest {
    /// As [`Request::class`].
    pub fn class(mut self, class: u8) -> Self {
        self.class = class;
        self
    }

    /// Waits for the permits.
    ///
    /// # Errors
    /// When the semaphore is closed, or its queue is full, or the waiter is sent away.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    pub fn acquire(self) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> {
        AcquireOwned::of_class(self.semaphore, self.n, self.class)
    }

    /// Parks this thread until it has the permits.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire(self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.semaphore.block_owned(self.n, self.class)
    }
}
