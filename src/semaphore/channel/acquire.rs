//! Taking permits from Rust code that is not a `select!`: at once, or by blocking the thread.

use super::link::RecvTimeoutError;
use super::{ChannelPermit, ChannelSemaphore, ChannelToken, OwnedChannelPermit};
use crate::blocking;
use crate::permit::Permit;
use crate::semaphore::error::{AcquireError, AcquireTimeoutError, TryAcquireError};
use crate::semaphore::limiter::SemaphoreTicket;
use crate::sync::queue::Key;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl ChannelSemaphore {
    fn held(&self, n: usize) -> ChannelPermit<'_> {
        Permit::new(self, SemaphoreTicket::new(n))
    }

    fn held_owned(self: Arc<Self>) -> OwnedChannelPermit {
        Permit::new(self, SemaphoreTicket::new(1))
    }

    /// Takes one permit if it is free.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    pub fn try_acquire(&self) -> Result<ChannelPermit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Takes `n` permits if all are free, or none.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    pub fn try_acquire_many(&self, n: usize) -> Result<ChannelPermit<'_>, TryAcquireError> {
        self.home.take(n)?;
        Ok(self.held(n))
    }

    /// [`try_acquire`](Self::try_acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    pub fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedChannelPermit, TryAcquireError> {
        self.home.take(1)?;
        Ok(self.held_owned())
    }

    /// Blocks this thread until it has a permit.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire(&self) -> Result<ChannelPermit<'_>, AcquireError> {
        self.wait()?;
        Ok(self.held(1))
    }

    /// [`blocking_acquire`](Self::blocking_acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_owned(self: Arc<Self>) -> Result<OwnedChannelPermit, AcquireError> {
        self.wait()?;
        Ok(self.held_owned())
    }

    /// Blocks this thread until it has a permit, for at most `patience`. A permit that is free is taken even if
    /// `patience` is zero.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_timeout(&self, patience: Duration) -> Result<ChannelPermit<'_>, AcquireTimeoutError> {
        blocking::check();
        Self::received(self.home.receiver.recv_timeout(patience))?;
        Ok(self.held(1))
    }

    /// [`blocking_acquire_timeout`](Self::blocking_acquire_timeout) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_timeout_owned(
        self: Arc<Self>,
        patience: Duration,
    ) -> Result<OwnedChannelPermit, AcquireTimeoutError> {
        blocking::check();
        Self::received(self.home.receiver.recv_timeout(patience))?;
        Ok(self.held_owned())
    }

    /// Blocks this thread until it has a permit, at most until `deadline`. A permit that is free is taken even if
    /// `deadline` is past.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_until(&self, deadline: Instant) -> Result<ChannelPermit<'_>, AcquireTimeoutError> {
        blocking::check();
        Self::received(self.home.receiver.recv_deadline(deadline))?;
        Ok(self.held(1))
    }

    /// [`blocking_acquire_until`](Self::blocking_acquire_until) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_until_owned(
        self: Arc<Self>,
        deadline: Instant,
    ) -> Result<OwnedChannelPermit, AcquireTimeoutError> {
        blocking::check();
        Self::received(self.home.receiver.recv_deadline(deadline))?;
        Ok(self.held_owned())
    }

    #[track_caller]
    fn wait(&self) -> Result<(), AcquireError> {
        blocking::check();
        let token = self.home.receiver.recv().map_err(|_| AcquireError::of(Key::CLOSED))?;
        token.dissolve();
        Ok(())
    }

    fn received(received: Result<ChannelToken, RecvTimeoutError>) -> Result<(), AcquireTimeoutError> {
        let token = received.map_err(|error| match error {
            RecvTimeoutError::Timeout => AcquireTimeoutError::TimedOut,
            RecvTimeoutError::Disconnected => AcquireTimeoutError::Closed,
        })?;
        token.dissolve();
        Ok(())
    }
}
