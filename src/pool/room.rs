//! The bound on the queue: its places, and what all tasks in it weigh, are permits of semaphores. So a submission that
//! waits for room stands in line, first come first served, blocking or async, and can leave at any time.

use super::apart::Apart;
use super::error::{PoolError, Turned};
use super::face::MAX_QUEUE;
use crate::limiter::{Limiter, Outcome};
use crate::semaphore::{Semaphore, SemaphorePermit, SemaphoreTicket};
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::ticket::Ticket;
use crate::time::Phase;
use std::time::{Duration, Instant};

pub(super) struct Room {
    /// Apart: submitters write here with each task, and workers read the others before each.
    places: Apart<Semaphore>,
    weight: Option<(Semaphore, u32)>,
    /// How many have found no room, or wait for it.
    pressing: AtomicUsize,
}

/// While it lives, every place is given back at once.
pub(super) struct Pressing<'a>(&'a AtomicUsize);

impl Drop for Pressing<'_> {
    fn drop(&mut self) {
        // Relaxed: whoever still sees it gives back early.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Hands out what the permit holds: the queue gives it back when the task leaves it.
fn keep(mut permit: SemaphorePermit<'_>) {
    let _kept = permit.ticket_mut().take();
}

impl Room {
    pub(super) fn checked(places: usize, weight: Option<u32>) -> Result<Self, PoolError> {
        if places == 0 || places > MAX_QUEUE {
            return Err(PoolError::Queue { given: places });
        }
        if weight == Some(0) {
            return Err(PoolError::Weight);
        }
        Ok(Self {
            places: Apart::new(Semaphore::new(places)),
            weight: weight.map(|most| (Semaphore::new(most as usize), most)),
            pressing: AtomicUsize::new(0),
        })
    }

    /// True when a task so heavy could ever be let in.
    pub(super) fn fits(&self, weight: u32) -> Result<(), Turned> {
        match &self.weight {
            Some((_, allowed)) if weight > *allowed => Err(Turned::Oversized {
                weight,
                allowed: *allowed,
            }),
            _ => Ok(()),
        }
    }

    fn turned(&self) -> Turned {
        if self.places.is_closed() {
            Turned::Closed
        } else {
            Turned::Full
        }
    }

    #[inline]
    pub(super) fn try_take(&self, weight: u32) -> Result<(), Turned> {
        let place = self.places.try_acquire().map_err(|_| self.turned())?;
        if let Some((all, _)) = &self.weight {
            keep(all.try_acquire_many(weight).map_err(|_| self.turned())?);
        }
        keep(place);
        Ok(())
    }

    /// Takes up to `n` places of this weight at once, and says how many: none when none is free, or when weight has to
    /// be looked at.
    pub(super) fn try_take_some(&self, n: usize, weight: u32) -> usize {
        let n = n.min(self.places.available_permits());
        if n == 0 || weight != 1 || self.weight.is_some() {
            return 0;
        }
        match self.places.try_acquire_many(n as u32) {
            Ok(places) => {
                keep(places);
                n
            }
            Err(_) => 0,
        }
    }

    pub(super) fn take_blocking(&self, weight: u32, patience: Option<Duration>) -> Result<(), Turned> {
        let Some(patience) = patience else {
            let place = self.places.blocking_acquire().map_err(|_| Turned::Closed)?;
            if let Some((all, _)) = &self.weight {
                keep(all.blocking_acquire_many(weight).map_err(|_| Turned::Closed)?);
            }
            keep(place);
            return Ok(());
        };
        let start = Instant::now();
        let late = |error: crate::AcquireTimeoutError| match error {
            crate::AcquireTimeoutError::TimedOut => Turned::TimedOut,
            _ => Turned::Closed,
        };
        let place = self.places.blocking_acquire_timeout(patience).map_err(late)?;
        if let Some((all, _)) = &self.weight {
            let left = patience.saturating_sub(start.elapsed());
            keep(all.blocking_acquire_many_timeout(weight, left).map_err(late)?);
        }
        keep(place);
        Ok(())
    }

    pub(super) async fn take(&self, weight: u32) -> Result<(), Turned> {
        let place = self.places.acquire().await.map_err(|_| Turned::Closed)?;
        if let Some((all, _)) = &self.weight {
            keep(all.acquire_many(weight).await.map_err(|_| Turned::Closed)?);
        }
        keep(place);
        Ok(())
    }

    /// So many places, and so much weight, are free again.
    #[inline]
    pub(super) fn give_back(&self, places: usize, weight: u64) {
        let phase = Phase::new();
        let ticket = |n: u64| SemaphoreTicket::read(&[n]);
        if places > 0 {
            Limiter::finish(&*self.places, ticket(places as u64), Outcome::Ignored, phase.pass());
        }
        if let Some((all, _)) = &self.weight
            && weight > 0
        {
            Limiter::finish(all, ticket(weight), Outcome::Ignored, phase.pass());
        }
    }

    /// So much weight is free again; the place is given back later.
    #[inline]
    pub(super) fn give_back_weight(&self, weight: u32) {
        if self.weight.is_some() {
            self.give_back(0, u64::from(weight));
        }
    }

    #[must_use]
    pub(super) fn press(&self) -> Pressing<'_> {
        // Relaxed: whoever presses looks at all shelves next. A worker that takes a task off its shelf after that has
        // the lock of the shelf after it, and sees this.
        self.pressing.fetch_add(1, Ordering::Relaxed);
        Pressing(&self.pressing)
    }

    /// True when a place must be given back at once. Asked under the lock of a shelf.
    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        // Relaxed: see `press`.
        self.pressing.load(Ordering::Relaxed) > 0
    }

    /// True when somebody waits for room, or would have to.
    pub(super) fn is_short(&self) -> bool {
        let short = |room: &Semaphore| room.available_permits() == 0 || room.waiting() > 0;
        short(&self.places) || self.weight.as_ref().is_some_and(|(all, _)| short(all))
    }

    /// Nobody is let in any more, and whoever waits is told so.
    pub(super) fn close(&self) {
        self.places.close();
        if let Some((all, _)) = &self.weight {
            all.close();
        }
    }
}
