//! The statistics of a semaphore that was built to count.

use super::atomic::Semaphore;
use crate::stats::Durations;
use std::time::Duration;

/// The statistics of a semaphore: a snapshot, consistent in itself. Made by [`Semaphore::stats`].
///
/// Each waiter is counted once where its wait ended: `queued` is the sum of `wait_time.count()`, `left`, `evicted`, `closed` and
/// `waiting`.
///
/// ```
/// # use tollgate::{ManualClock, Semaphore};
/// let semaphore = Semaphore::builder(2).stats(&ManualClock::new()).build().unwrap();
/// let permit = semaphore.try_acquire_many(2).unwrap();
/// assert!(semaphore.try_acquire().is_err());
/// drop(permit);
/// let stats = semaphore.stats().unwrap();
/// assert_eq!((stats.admitted_at_once, stats.refused, stats.peak_in_use), (1, 1, 2));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SemaphoreStats {
    /// The number of permits.
    pub limit: usize,
    /// Permits that are held. Those granted to a waiter count as held, whether it has been polled or not.
    pub in_use: usize,
    /// Permits that must come back before the next admission.
    pub debt: usize,
    /// The number of waiters.
    pub waiting: usize,
    /// The time since the longest waiter joined; zero without waiters.
    pub longest_wait: Duration,
    /// Waiters that were granted their permits and have not been polled since. Futures that are kept unpolled show here: their
    /// permits are idle.
    pub granted_unpolled: usize,
    /// Admissions and reservations without a wait, also those that were given up again. A request for no permit is not counted.
    pub admitted_at_once: u64,
    /// Requests that had to wait.
    pub queued: u64,
    /// Attempts that found too few free permits. A policy makes one before it waits here.
    pub refused: u64,
    /// Waits that were given up: by a drop, or by a time-out.
    pub left: u64,
    /// Waits that timed out.
    pub timed_out: u64,
    /// Requests that found a bounded queue full.
    pub queue_full: u64,
    /// Waiters that were evicted from a bounded queue.
    pub evicted: u64,
    /// Waiters at the close.
    pub closed: u64,
    /// The most permits ever held at once.
    pub peak_in_use: usize,
    /// The most waiters at once.
    pub peak_waiting: usize,
    /// The time from joining the queue to the grant, not to the poll that sees it, of all waiters that were granted.
    pub wait_time: Durations,
}

impl Semaphore {
    /// Its statistics; none unless it was built with [`stats`](crate::SemaphoreBuilder::stats).
    pub fn stats(&self) -> Option<SemaphoreStats> {
        let queue = self.locked_queue();
        let counts = queue.counters.counts()?;
        // Once: permits come back without the lock.
        let available = self.signed_available();
        let limit = self.limit();
        Some(SemaphoreStats {
            limit,
            in_use: (limit as i64).saturating_sub(available).max(0) as usize,
            debt: (-available).max(0) as usize,
            waiting: queue.waiting(),
            longest_wait: queue.longest_wait(),
            granted_unpolled: counts.unpolled,
            admitted_at_once: counts.at_once,
            queued: counts.queued,
            refused: counts.refused,
            left: counts.left,
            timed_out: counts.timed_out,
            queue_full: counts.queue_full,
            evicted: counts.evicted,
            closed: counts.closed,
            peak_in_use: counts.peak_in_use as usize,
            peak_waiting: counts.peak_waiting,
            wait_time: counts.waits.clone(),
        })
    }
}
