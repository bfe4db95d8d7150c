//! The methods that `tokio::sync::Semaphore` has, with the same names and meaning, and their timed siblings.

use super::acquire::{Acquire, AcquireOwned, AcquireUntil};
use super::atomic::Semaphore;
use super::error::{AcquireError, AcquireTimeoutError, TryAcquireError};
use super::limiter::SemaphoreTicket;
use super::permit::{OwnedSemaphorePermit, SemaphorePermit};
use crate::permit::Permit;
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

    #[inline]
    fn try_acquire_n(&self, n: usize) -> Result<(), TryAcquireError> {
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

    /// Takes one permit if it is free and nobody waits.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    #[inline]
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_n(1).map(|()| self.held(1))
    }

    /// Takes `n` permits if all are free and nobody waits.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    #[inline]
    pub fn try_acquire_many(&self, n: u32) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_n(n as usize).map(|()| self.held(n as usize))
    }

    /// [`try_acquire`](Self::try_acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
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
    /// When the semaphore is closed; with a bounded queue also when that is full, or the waiter is sent away.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line. No permit is lost.
    #[inline]
    pub fn acquire(&self) -> impl Future<Output = Result<SemaphorePermit<'_>, AcquireError>> {
        Acquire::new(self, 1)
    }

    /// Waits for `n` permits, which are given all at once. More than the limit waits until the limit has grown.
    ///
    /// # Errors
    /// When the semaphore is closed; with a bounded queue also when that is full, or when it is sent away from it.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[inline]
    pub fn acquire_many(&self, n: u32) -> impl Future<Output = Result<SemaphorePermit<'_>, AcquireError>> {
        Acquire::new(self, n)
    }

    /// [`acquire`](Self::acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed; with a bounded queue also when that is full, or when it is sent away from it.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[inline]
    pub fn acquire_owned(self: Arc<Self>) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> {
        AcquireOwned::new(self, 1)
    }

    /// [`acquire_many`](Self::acquire_many) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed; with a bounded queue also when that is full, or when it is sent away from it.
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

    /// Parks this thread until it has one permit. It stands in the same line as futures do.
    ///
    /// # Errors
    /// When the semaphore is closed; with a bounded queue also when that is full, or when it is sent away from it.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        Acquire::new(self, 1).block()
    }

    /// Parks this thread until it has `n` permits.
    ///
    /// # Errors
    /// When the semaphore is closed; with a bounded queue also when that is full, or when it is sent away from it.
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
    /// When the semaphore is closed; with a bounded queue also when that is full, or when it is sent away from it.
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
    /// When the semaphore is closed; with a bounded queue also when that is full, or when it is sent away from it.
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
        // Its permits pass to the one that owns.
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
