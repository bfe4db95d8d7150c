//! The methods that callers acquire by: those of `tokio::sync::Semaphore`, with the same names and meaning, their timed siblings, and
//! the permits.

use super::acquire::{Acquire, try_acquire};
use super::atomic::Semaphore;
use super::error::{AcquireError, AcquireTimeoutError, TryAcquireError};
use super::limiter::SemaphoreTicket;
use crate::core::limiter::Limiter;
use crate::core::permit::Permit;
use crate::time::{Clock, Instant};
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

impl Semaphore {
    /// Takes one permit if it is free and nothing waits.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    #[inline] // row: semaphore try_acquire
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        try_acquire(self, 1)
    }

    /// Takes `n` permits if all are free and nothing waits.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    ///
    /// ```
    /// # use tollgate::{Semaphore, TryAcquireError};
    /// let slots = Semaphore::new(3);
    /// let two = slots.try_acquire_many(2)?;
    /// assert_eq!(slots.try_acquire_many(2).unwrap_err(), TryAcquireError::NoPermits);
    /// # drop(two);
    /// # Ok::<(), TryAcquireError>(())
    /// ```
    pub fn try_acquire_many(&self, n: u32) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        try_acquire(self, n)
    }

    /// [`try_acquire`](Self::try_acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate::Semaphore;
    /// let slots = Arc::new(Semaphore::new(3));
    /// let permit = Arc::clone(&slots).try_acquire_owned()?;
    /// let two = Arc::clone(&slots).try_acquire_many_owned(2)?;
    /// std::thread::spawn(move || drop((permit, two))).join().expect("no panic");
    /// assert_eq!(slots.available_permits(), 3);
    /// # Ok::<(), tollgate::TryAcquireError>(())
    /// ```
    pub fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        try_acquire(self, 1)
    }

    /// [`try_acquire_many`](Self::try_acquire_many) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    pub fn try_acquire_many_owned(self: Arc<Self>, n: u32) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        try_acquire(self, n)
    }

    /// Waits for one permit.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue. No permit is lost.
    ///
    /// ```
    /// # use tollgate::Semaphore;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tollgate::AcquireError> {
    /// let slots = Semaphore::new(2);
    /// let _permit = slots.acquire().await?;
    /// assert_eq!(slots.available_permits(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[inline] // row: semaphore acquire
    pub fn acquire(&self) -> impl Future<Output = Result<SemaphorePermit<'_>, AcquireError>> {
        Acquire::new(self, 1)
    }

    /// Waits for `n` permits, which are granted all at once. A request above the limit waits until the limit has grown.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use tollgate::Semaphore;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tollgate::AcquireError> {
    /// let megabytes = Semaphore::new(512);
    /// let large = megabytes.acquire_many(300).await?;
    /// assert_eq!((large.num_permits(), megabytes.available_permits()), (300, 212));
    /// # Ok(())
    /// # }
    /// ```
    #[inline] // row: semaphore acquire_many
    pub fn acquire_many(&self, n: u32) -> impl Future<Output = Result<SemaphorePermit<'_>, AcquireError>> {
        Acquire::new(self, n)
    }

    /// [`acquire`](Self::acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate::Semaphore;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let slots = Arc::new(Semaphore::new(3));
    /// let permit = Arc::clone(&slots).acquire_owned().await?;
    /// let two = Arc::clone(&slots).acquire_many_owned(2).await?;
    /// tokio::spawn(async move { drop((permit, two)) }).await?;
    /// assert_eq!(slots.available_permits(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[inline] // row: semaphore acquire_owned
    pub fn acquire_owned(self: Arc<Self>) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> {
        Acquire::new(self, 1)
    }

    /// [`acquire_many`](Self::acquire_many) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn acquire_many_owned(
        self: Arc<Self>,
        n: u32,
    ) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> {
        Acquire::new(self, n)
    }

    /// Parks this thread until it has one permit. Threads and futures wait in the same queue.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate::Semaphore;
    /// let slots = Arc::new(Semaphore::new(6));
    /// let (one, two) = (slots.blocking_acquire()?, slots.blocking_acquire_many(2)?);
    /// let owned = Arc::clone(&slots).blocking_acquire_owned()?;
    /// let owned_two = Arc::clone(&slots).blocking_acquire_many_owned(2)?;
    /// assert_eq!(slots.available_permits(), 0);
    /// # drop((one, two, owned, owned_two));
    /// # Ok::<(), tollgate::AcquireError>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.blocking_acquire_many(1)
    }

    /// Parks this thread until it has `n` permits.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_many(&self, n: u32) -> Result<SemaphorePermit<'_>, AcquireError> {
        Acquire::new(self, n).block(None).map_err(|_| AcquireError(()))
    }

    /// [`blocking_acquire`](Self::blocking_acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.blocking_acquire_many_owned(1)
    }

    /// [`blocking_acquire_many`](Self::blocking_acquire_many) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_many_owned(self: Arc<Self>, n: u32) -> Result<OwnedSemaphorePermit, AcquireError> {
        Acquire::new(self, n).block(None).map_err(|_| AcquireError(()))
    }

    /// Waits for one permit, for at most `patience` of real time, from the first poll on.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// When it has to wait in a tokio runtime that was built without timers, as tokio's own sleeps do.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{AcquireTimeoutError, Semaphore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let slots = Semaphore::new(2);
    /// let _held = slots.acquire_many_timeout(2, Duration::from_secs(1)).await;
    /// let late = slots.acquire_timeout(Duration::from_millis(1)).await;
    /// assert!(late.is_err_and(|error| error == AcquireTimeoutError::TimedOut));
    /// # }
    /// ```
    pub async fn acquire_timeout(&self, patience: Duration) -> Result<SemaphorePermit<'_>, AcquireTimeoutError> {
        self.acquire_many_timeout(1, patience).await
    }

    /// Waits for `n` permits, for at most `patience` of real time, from the first poll on.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// As [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many_timeout(
        &self,
        n: u32,
        patience: Duration,
    ) -> Result<SemaphorePermit<'_>, AcquireTimeoutError> {
        let clock = Clock::real();
        let deadline = clock.after(clock.now(), patience);
        self.acquire_many_until(n, &clock, deadline).await
    }

    /// Waits for `n` permits until `deadline` of `clock`.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{AcquireTimeoutError, ManualClock, Semaphore};
    /// let (clock, slots) = (ManualClock::new(), Semaphore::new(1));
    /// let deadline = clock.after(clock.now(), Duration::from_secs(5));
    /// let late = clock.run(slots.acquire_many_until(2, &clock, deadline));
    /// assert!(late.is_err_and(|error| error == AcquireTimeoutError::TimedOut));
    /// assert_eq!(clock.elapsed(), Duration::from_secs(5));
    /// ```
    pub async fn acquire_many_until(
        &self,
        n: u32,
        clock: &Clock,
        deadline: Instant,
    ) -> Result<SemaphorePermit<'_>, AcquireTimeoutError> {
        let (mut acquire, mut sleep) = (Acquire::new(self, n), None);
        poll_fn(|cx| {
            // Permits first: those that were handed over in time are taken even if the time is over by now.
            if let Poll::Ready(acquired) = Pin::new(&mut acquire).poll(cx) {
                return Poll::Ready(acquired.map_err(AcquireTimeoutError::from));
            }
            let sleep = sleep.get_or_insert_with(|| clock.sleep_until(deadline));
            Pin::new(sleep).poll(cx).map(|()| Err(AcquireTimeoutError::TimedOut))
        })
        .await
    }

    /// Parks this thread until it has one permit, for at most `patience`.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{AcquireTimeoutError, Semaphore};
    /// let slots = Semaphore::new(1);
    /// let held = slots.blocking_acquire_timeout(Duration::from_secs(1))?;
    /// let late = slots.blocking_acquire_many_timeout(1, Duration::from_millis(1));
    /// assert!(late.is_err_and(|error| error == AcquireTimeoutError::TimedOut));
    /// # drop(held);
    /// # Ok::<(), tollgate::AcquireTimeoutError>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire_timeout(&self, patience: Duration) -> Result<SemaphorePermit<'_>, AcquireTimeoutError> {
        self.blocking_acquire_many_timeout(1, patience)
    }

    /// Parks this thread until it has `n` permits, for at most `patience`.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_many_timeout(
        &self,
        n: u32,
        patience: Duration,
    ) -> Result<SemaphorePermit<'_>, AcquireTimeoutError> {
        Acquire::new(self, n).block(Some(patience))
    }
}

/// A permit that borrows its [`Semaphore`]. Dropping it gives the permits back.
pub type SemaphorePermit<'a> = Permit<&'a Semaphore>;

/// A permit that owns a handle of its [`Semaphore`].
pub type OwnedSemaphorePermit = Permit<Arc<Semaphore>>;

/// Permits of a [`Semaphore`], by a reference or by a handle that owns it.
impl<H: Limiter<Ticket = SemaphoreTicket> + Deref<Target = Semaphore> + Clone> Permit<H> {
    /// The number of permits that this holds.
    pub fn num_permits(&self) -> usize {
        self.ticket().map_or(0, |ticket| ticket.permits())
    }

    /// Takes over the permits of `other`.
    ///
    /// # Panics
    /// If `other` is of another semaphore.
    #[track_caller]
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            std::ptr::eq::<Semaphore>(&**self.limiter(), &**other.limiter()),
            "merging permits from different semaphore instances"
        );
        let taken = other.ticket_mut().take().map_or(0, |ticket| ticket.permits());
        let held = self.num_permits();
        *self.ticket_mut() = Some(SemaphoreTicket::new(held + taken));
    }

    /// Splits `n` permits off, or returns `None` when this holds fewer.
    pub fn split(&mut self, n: usize) -> Option<Self> {
        let left = self.num_permits().checked_sub(n)?;
        *self.ticket_mut() = Some(SemaphoreTicket::new(left));
        Some(Permit::new(self.limiter().clone(), SemaphoreTicket::new(n)))
    }
}

impl Permit<Arc<Semaphore>> {
    /// The semaphore of this permit.
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        self.limiter()
    }
}

impl<'a> Permit<&'a Semaphore> {
    /// The semaphore of this permit.
    pub fn semaphore(&self) -> &'a Semaphore {
        self.limiter()
    }
}
