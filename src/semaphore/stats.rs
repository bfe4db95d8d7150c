//! What a semaphore has done so far, if it was built to count.

use super::atomic::Semaphore;
use crate::stats::Durations;
use std::time::Duration;

/// What a semaphore has done so far: a snapshot, consistent in itself. Made by [`Semaphore::stats`].
///
/// Each who came to wait is counted once where the wait ended: `queued` is the sum of `wait_time.count()`, `left`,
/// `evicted`, `closed` and those who are `waiting` still.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SemaphoreStats {
    /// How many permits there are.
    pub limit: usize,
    /// How many are held. Those that were granted to a waiter count as held, whether it has looked or not.
    pub in_use: usize,
    /// How many must come back before anybody is admitted.
    pub debt: usize,
    /// How many wait.
    pub waiting: usize,
    /// How long whoever has waited longest waits by now; zero when nobody waits.
    pub longest_wait: Duration,
    /// How many were granted their permits and have not been polled since. Futures that are kept unpolled show here, and
    /// what they hold on to is in nobody's hands.
    pub granted_unpolled: usize,
    /// Admissions and reservations without a wait, also those that were given up again. One that wants no permit is not
    /// counted.
    pub admitted_at_once: u64,
    /// How many had to wait.
    pub queued: u64,
    /// Attempts that found too little free. A policy makes one before it waits here.
    pub refused: u64,
    /// How many gave up their wait: by a drop, or because their time was over.
    pub left: u64,
    /// How many waits ended because their time was over.
    pub timed_out: u64,
    /// How many found a bounded queue full.
    pub turned_away: u64,
    /// How many were sent away from a bounded queue.
    pub evicted: u64,
    /// How many waited when it was closed.
    pub closed: u64,
    /// The most that was ever held at once.
    pub peak_in_use: usize,
    /// The most that ever waited at once.
    pub peak_waiting: usize,
    /// How long those waited who had to, and were granted their permits: until the grant, not until they looked.
    pub wait_time: Durations,
}

impl Semaphore {
    /// What it has done so far; none unless it was built with [`stats`](crate::SemaphoreBuilder::stats).
    pub fn stats(&self) -> Option<SemaphoreStats> {
        let queue = self.queue.lock();
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
            turned_away: counts.turned_away,
            evicted: counts.evicted,
            closed: counts.closed,
            peak_in_use: counts.peak_in_use as usize,
            peak_waiting: counts.peak_waiting,
            wait_time: counts.waits.clone(),
        })
    }
}
