//! What a semaphore counts, for [`Semaphore::stats`].

use super::atomic::{Event, Semaphore, kept};
use crate::stats::Durations;
use crate::sync::shim::Mutex;
use crate::sync::wait_queue::Waiters;
use crate::time::{Clock, Instant};
use std::collections::BTreeMap;
use std::time::Duration;

/// The statistics of a semaphore: a snapshot, consistent in itself. Made by [`Semaphore::stats`].
///
/// Each waiter is counted once where its wait ended: `queued` is the sum of `wait_time.count()`, `left`, `closed` and `waiting`. The head
/// of a policy whose grant is taken back for an older head counts as queued once more.
///
/// ```
/// # use tollgate::{ManualClock, Semaphore};
/// let semaphore = Semaphore::new(2).with_stats(&ManualClock::new());
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
    /// Admissions without a wait, also those that were given up again. A request for no permit is not counted.
    pub admitted_at_once: u64,
    /// Requests that had to wait.
    pub queued: u64,
    /// Attempts that found too few free permits. A policy makes one before it waits here.
    pub refused: u64,
    /// Waits that were given up: by a drop, or by a time-out.
    pub left: u64,
    /// Waits that timed out.
    pub timed_out: u64,
    /// Waiters at the close.
    pub closed: u64,
    /// The most permits ever held at once.
    pub peak_in_use: usize,
    /// The most waiters at once.
    pub peak_waiting: usize,
    /// The time from joining the queue to the grant, not to the poll that sees it, of all waiters that were granted.
    pub wait_time: Durations,
}

/// The counts, under the lock of the queue.
pub(super) struct Counts {
    clock: Clock,
    counted: Mutex<Counted>,
}

struct Counted {
    /// When each waiter joined, by its age.
    joined: BTreeMap<u64, Instant>,
    at_once: u64,
    queued: u64,
    refused: u64,
    left: u64,
    timed_out: u64,
    closed: u64,
    peak_in_use: usize,
    peak_waiting: usize,
    waits: Durations,
}

impl Counts {
    fn note(&self, event: Event<'_>, in_use: usize) {
        let counted = &mut *self.counted.lock();
        match event {
            Event::Taken => counted.at_once += 1,
            Event::Refused => counted.refused += 1,
            Event::Joined(age) => counted.join(age, self.clock.now()),
            Event::TakenBack(ages) => ages.iter().for_each(|&age| counted.join(age, self.clock.now())),
            Event::Granted(age) => {
                if let Some(joined) = counted.joined.remove(&age) {
                    counted.waits.record(self.clock.between(joined, self.clock.now()));
                }
            }
            Event::Left(age) => counted.left += u64::from(counted.joined.remove(&age).is_some()),
            Event::TimedOut => counted.timed_out += 1,
            Event::Closed => counted.closed += std::mem::take(&mut counted.joined).len() as u64,
        }
        counted.peak_in_use = counted.peak_in_use.max(in_use);
    }
}

impl Counted {
    fn join(&mut self, age: u64, now: Instant) {
        self.joined.insert(age, now);
        self.queued += 1;
        self.peak_waiting = self.peak_waiting.max(self.joined.len());
    }
}

impl Semaphore {
    /// Counts admissions and waits, for [`stats`](Self::stats), and measures waits on `clock`.
    ///
    /// Every admission and release then takes the lock of the queue, so that the counts are exact. A semaphore that does not count does
    /// not pay for it.
    ///
    /// ```
    /// # use futures::FutureExt;
    /// # use std::{pin::pin, time::Duration};
    /// # use tollgate::{ManualClock, Semaphore};
    /// let clock = ManualClock::new();
    /// let semaphore = Semaphore::new(1).with_stats(&clock);
    /// let held = semaphore.try_acquire().unwrap();
    /// let mut waiter = pin!(semaphore.acquire());
    /// assert!(waiter.as_mut().now_or_never().is_none());
    /// clock.advance(Duration::from_millis(20));
    /// drop(held);
    ///
    /// let stats = semaphore.stats().unwrap();
    /// assert_eq!((stats.admitted_at_once, stats.queued, stats.granted_unpolled), (1, 1, 1));
    /// assert!(stats.wait_time.max() >= Duration::from_millis(20));
    /// ```
    #[must_use]
    pub fn with_stats(mut self, clock: &Clock) -> Self {
        self.keep_flag(&mut self.queue.lock(), kept::COUNTS, true);
        let counted = Counted {
            joined: BTreeMap::new(),
            at_once: 0,
            queued: 0,
            refused: 0,
            left: 0,
            timed_out: 0,
            closed: 0,
            peak_in_use: self.in_use(),
            peak_waiting: 0,
            waits: Durations::new(),
        };
        self.counts = Some(Box::new(Counts {
            clock: clock.clone(),
            counted: Mutex::new(counted),
        }));
        self
    }

    /// Its statistics; none unless it [counts](Self::with_stats).
    pub fn stats(&self) -> Option<SemaphoreStats> {
        let counts = self.counts.as_ref()?;
        let waiters = self.queue.lock();
        let counted = counts.counted.lock();
        let now = counts.clock.now();
        let longest = counted.joined.values().map(|&joined| counts.clock.between(joined, now));
        // Once: permits come back without the lock.
        let (limit, available) = (self.limit(), self.signed_available());
        Some(SemaphoreStats {
            limit,
            in_use: (limit as i64 - available).max(0) as usize,
            debt: (-available).max(0) as usize,
            waiting: self.waiting(),
            longest_wait: longest.max().unwrap_or_default(),
            granted_unpolled: waiters.unredeemed(),
            admitted_at_once: counted.at_once,
            queued: counted.queued,
            refused: counted.refused,
            left: counted.left,
            timed_out: counted.timed_out,
            closed: counted.closed,
            peak_in_use: counted.peak_in_use,
            peak_waiting: counted.peak_waiting,
            wait_time: counted.waits.clone(),
        })
    }

    /// Counts, if this semaphore counts. Under the lock of the queue.
    pub(super) fn count(&self, _: &Waiters, event: Event<'_>) {
        if let Some(counts) = &self.counts {
            let held = self.limit() as i64 - self.signed_available();
            counts.note(event, held.max(0) as usize);
        }
    }
}
