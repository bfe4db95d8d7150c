//! The methods that callers acquire by: those of `tokio::sync::Semaphore`, with the same names and meaning, their timed siblings,
//! requests with a class, and the permits.

use super::acquire::{Acquire, AcquireOwned, AcquireUntil};
use super::atomic::Semaphore;
use super::error::{AcquireError, AcquireTimeoutError, TryAcquireError};
use super::limiter::SemaphoreTicket;
use crate::core::permit::Permit;
use crate::time::{Clock, Instant};
use std::sync::Arc;
use std::time::Duration;

impl Semaphore {
    #[inline]
    fn held(&self, n: usize) -> SemaphorePermit<'_> {
        Permit::new(self, SemaphoreTicket::new(n))
    }

    #[inline]
    fn held_owned(self: Arc<Self>, n: usize) -> OwnedSemaphorePermit {
        Permit::new(self, SemaphoreTicket::new(n))
    }

    /// Takes `n` permits without a ticket, as [`try_acquire_many`](Self::try_acquire_many) does.
    #[inline]
    pub(crate) fn try_acquire_n(&self, n: usize) -> Result<(), TryAcquireError> {
        if self.try_take(n as i64) {
            return Ok(());
        }
        self.try_acquire_slow(n)
    }

    #[cold]
    fn try_acquire_slow(&self, n: usize) -> Result<(), TryAcquireError> {
        if self.is_closed() {
            Err(TryAcquireError::Closed)
        } else if n == 0 || self.try_take_slow(n as i64) {
            Ok(())
        } else {
            Err(TryAcquireError::NoPermits)
        }
    }

    /// Takes one permit if it is free and nothing waits.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    #[inline]
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_n(1).map(|()| self.held(1))
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
    #[inline]
    pub fn try_acquire_many(&self, n: u32) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_n(n as usize).map(|()| self.held(n as usize))
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
    #[inline]
    pub fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.try_acquire_n(1)?;
        Ok(self.held_owned(1))
    }

    /// [`try_acquire_many`](Self::try_acquire_many) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    #[inline]
    pub fn try_acquire_many_owned(self: Arc<Self>, n: u32) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.try_acquire_n(n as usize)?;
        Ok(self.held_owned(n as usize))
    }

    /// Waits for one permit.
    ///
    /// # Errors
    /// When the semaphore is closed. With a bounded queue also when it is full, or when the waiter is evicted.
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
    #[inline]
    pub fn acquire(&self) -> impl Future<Output = Result<SemaphorePermit<'_>, AcquireError>> {
        Acquire::new(self, 1)
    }

    /// Waits for `n` permits, which are granted all at once. A request above the limit waits until the limit has grown.
    ///
    /// # Errors
    /// When the semaphore is closed. With a bounded queue also when it is full, or when the waiter is evicted.
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
    #[inline]
    pub fn acquire_many(&self, n: u32) -> impl Future<Output = Result<SemaphorePermit<'_>, AcquireError>> {
        Acquire::new(self, n)
    }

    /// [`acquire`](Self::acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed. With a bounded queue also when it is full, or when the waiter is evicted.
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
    #[inline]
    pub fn acquire_owned(self: Arc<Self>) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> {
        AcquireOwned::new(self, 1)
    }

    /// [`acquire_many`](Self::acquire_many) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed. With a bounded queue also when it is full, or when the waiter is evicted.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[inline]
    pub fn acquire_many_owned(
        self: Arc<Self>,
        n: u32,
    ) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> {
        AcquireOwned::new(self, n)
    }

    /// Parks this thread until it has one permit. Threads and futures wait in the same queue.
    ///
    /// # Errors
    /// When the semaphore is closed. With a bounded queue also when it is full, or when the waiter is evicted.
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
        Acquire::new(self, 1).block()
    }

    /// Parks this thread until it has `n` permits.
    ///
    /// # Errors
    /// When the semaphore is closed. With a bounded queue also when it is full, or when the waiter is evicted.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_many(&self, n: u32) -> Result<SemaphorePermit<'_>, AcquireError> {
        Acquire::new(self, n).block()
    }

    /// [`blocking_acquire`](Self::blocking_acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed. With a bounded queue also when it is full, or when the waiter is evicted.
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
    /// When the semaphore is closed. With a bounded queue also when it is full, or when the waiter is evicted.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_many_owned(self: Arc<Self>, n: u32) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.block_owned(n, 0)
    }

    #[track_caller]
    pub(super) fn block_owned(self: Arc<Self>, n: u32, class: u8) -> Result<OwnedSemaphorePermit, AcquireError> {
        let mut borrowed = Acquire::of_class(&self, n, class).block()?;
        // Its permits pass to the owning permit.
        borrowed.ticket_mut().take();
        drop(borrowed);
        Ok(self.held_owned(n as usize))
    }

    /// Waits for one permit, for at most `patience` of real time, from the first poll on.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`; with a bounded queue also `QueueFull` and `Evicted`.
    ///
    /// # Panics
    /// When it has to wait in a tokio runtime that was built without timers, as tokio's own sleeps do.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::Semaphore;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let slots = Semaphore::new(2);
    /// let _held = slots.acquire_many_timeout(2, Duration::from_secs(1)).await;
    /// let late = slots.acquire_timeout(Duration::from_millis(1)).await;
    /// assert!(late.is_err_and(|error| error.is_timed_out()));
    /// # }
    /// ```
    pub async fn acquire_timeout(&self, patience: Duration) -> Result<SemaphorePermit<'_>, AcquireTimeoutError> {
        self.acquire_many_timeout(1, patience).await
    }

    /// Waits for `n` permits, for at most `patience` of real time, from the first poll on.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`; with a bounded queue also `QueueFull` and `Evicted`.
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
    /// `TimedOut`, or `Closed`; with a bounded queue also `QueueFull` and `Evicted`.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{ManualClock, Semaphore};
    /// let (clock, slots) = (ManualClock::new(), Semaphore::new(1));
    /// let deadline = clock.after(clock.now(), Duration::from_secs(5));
    /// let late = clock.run(slots.acquire_many_until(2, &clock, deadline));
    /// assert!(late.is_err_and(|error| error.is_timed_out()));
    /// assert_eq!(clock.elapsed(), Duration::from_secs(5));
    /// ```
    pub async fn acquire_many_until(
        &self,
        n: u32,
        clock: &Clock,
        deadline: Instant,
    ) -> Result<SemaphorePermit<'_>, AcquireTimeoutError> {
        AcquireUntil::new(Acquire::new(self, n), clock, deadline).await
    }

    /// Parks this thread until it has one permit, for at most `patience`.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`; with a bounded queue also `QueueFull` and `Evicted`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::Semaphore;
    /// let slots = Semaphore::new(1);
    /// let held = slots.blocking_acquire_timeout(Duration::from_secs(1))?;
    /// let late = slots.blocking_acquire_many_timeout(1, Duration::from_millis(1));
    /// assert!(late.is_err_and(|error| error.is_timed_out()));
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
    /// `TimedOut`, or `Closed`; with a bounded queue also `QueueFull` and `Evicted`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_many_timeout(
        &self,
        n: u32,
        patience: Duration,
    ) -> Result<SemaphorePermit<'_>, AcquireTimeoutError> {
        Acquire::new(self, n).block_for(patience)
    }
}

/// A permit that borrows its [`Semaphore`]. Dropping it gives the permits back.
pub type SemaphorePermit<'a> = Permit<&'a Semaphore>;

/// A permit that owns a handle of its [`Semaphore`].
pub type OwnedSemaphorePermit = Permit<Arc<Semaphore>>;

macro_rules! permits {
    ($permit:ty $(, $life:lifetime)?) => {
        impl$(<$life>)? $permit {
            /// The number of permits that this holds.
            #[inline]
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
    };
}
permits!(Permit<&'a Semaphore>, 'a);
permits!(Permit<Arc<Semaphore>>);

impl<'a> Permit<&'a Semaphore> {
    /// The semaphore of this permit.
    pub fn semaphore(&self) -> &'a Semaphore {
        self.limiter()
    }
}

impl Permit<Arc<Semaphore>> {
    /// The semaphore of this permit.
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        self.limiter()
    }
}

impl Semaphore {
    /// A request for `n` permits that can have a class.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate::{ManualClock, Order, Semaphore};
    /// let slots = Semaphore::builder(3).order(Order::RoundRobin { classes: 2 }).build()?;
    /// let slots = Arc::new(slots);
    /// ManualClock::new().run(async {
    ///     let _two = slots.request(2).class(1).acquire().await;
    ///     let _one = Arc::clone(&slots).request_owned(1).class(0).acquire().await;
    ///     assert_eq!(slots.available_permits(), 0);
    /// });
    /// # Ok::<(), tollgate::SemaphoreError>(())
    /// ```
    pub fn request(&self, n: u32) -> SemaphoreRequest<'_> {
        SemaphoreRequest {
            semaphore: self,
            n,
            class: 0,
        }
    }

    /// The same, for a permit that owns its semaphore: to wait or to work in another task.
    pub fn request_owned(self: Arc<Self>, n: u32) -> OwnedSemaphoreRequest {
        OwnedSemaphoreRequest {
            semaphore: self,
            n,
            class: 0,
        }
    }
}

/// A request for permits that can have a class. Made by [`Semaphore::request`].
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
pub struct SemaphoreRequest<'a> {
    semaphore: &'a Semaphore,
    n: u32,
    class: u8,
}

impl<'a> SemaphoreRequest<'a> {
    /// Sets the class, 0 unless set. A class that the semaphore's order does not have counts as its last. A policy waits in the
    /// class of its [ask](crate::Ask::class).
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
    /// When the semaphore is closed, when its queue is full, or when the waiter is evicted.
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
    ///
    /// ```
    /// # use tollgate::{ManualClock, Semaphore};
    /// # use std::time::Duration;
    /// let (clock, slots) = (ManualClock::new(), Semaphore::new(1));
    /// let _held = slots.try_acquire()?;
    /// let deadline = clock.after(clock.now(), Duration::from_secs(3));
    /// assert!(clock.run(slots.request(1).acquire_until(&clock, deadline)).is_err());
    /// assert_eq!(clock.elapsed(), Duration::from_secs(3));
    /// # Ok::<(), tollgate::TryAcquireError>(())
    /// ```
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

/// A [`SemaphoreRequest`] for a permit that owns its semaphore. Made by [`Semaphore::request_owned`].
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
pub struct OwnedSemaphoreRequest {
    semaphore: Arc<Semaphore>,
    n: u32,
    class: u8,
}

impl OwnedSemaphoreRequest {
    /// As [`SemaphoreRequest::class`].
    pub fn class(mut self, class: u8) -> Self {
        self.class = class;
        self
    }

    /// Waits for the permits.
    ///
    /// # Errors
    /// When the semaphore is closed, when its queue is full, or when the waiter is evicted.
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
