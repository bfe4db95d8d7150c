//! The sliding log: each admission with its instant, so that room is back as soon as the limit allows.

use super::inherit::share_all;
use super::limiter::Rate;
use super::meter::{Limited, Locked, Machine, Standing, UNLIMITED, ticks};
use super::rate_error::{RateError, check_length};
use crate::time::{Clock, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// Admits at most `limit` in *any* span of the window's length, and never one instant later than that allows.
///
/// ```
/// # use tollgate::{ManualClock, SlidingLog};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let log = SlidingLog::new(2, Duration::from_secs(60)).unwrap().on(&clock);
/// assert!(log.try_acquire(1).is_ok());
/// clock.advance(Duration::from_secs(59));
/// assert!(log.try_acquire(1).is_ok());
/// assert_eq!(log.try_acquire(1).unwrap_err().retry_after(), Some(Duration::from_secs(1)));
/// clock.advance(Duration::from_secs(1));
/// assert!(log.try_acquire(1).is_ok());
/// assert!(log.try_acquire(1).is_err());
/// ```
///
/// The log remembers the instant and the weight of each admission until it has left the window: 24 bytes an entry, one for all
/// admissions of one instant, so at most one for each unit of the limit. For a large limit that is much memory: 2.3 MiB for
/// 100,000. A [`SlidingWindow`](crate::SlidingWindow) takes some 700 bytes and is up to one segment late.
///
/// A cancel and a [`settle`](crate::Permit::settle) correct the entry, exactly and in any order. An instant earlier than the latest
/// seen counts as the latest.
pub type SlidingLog = Rate<Locked<Log>>;

/// Entries that a log has room for at least: more than one for each unit of the limit are of debts.
const ENTRIES: u64 = 65_536;

/// The meter of a [`SlidingLog`]. Instants are ticks.
#[derive(Debug)]
pub struct Log {
    now: u64,
    length: Duration,
    ticks: u64,
    limit: u64,
    /// By number, and so by instant.
    entries: VecDeque<Entry>,
    total: u64,
    /// The number of the latest entry.
    made: u64,
    /// Entries up to this number give nothing back.
    sealed: u64,
}

/// The units admitted at one instant.
#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    at: u64,
    units: u64,
}

impl Rate<Locked<Log>> {
    /// At most `limit` in any span of `length`, on the real clock. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`RateError::Length`] when `length` is zero or above 365 days.
    ///
    /// ```
    /// # use tollgate::{Inherit, ManualClock, SlidingLog};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let log = SlidingLog::new(10, Duration::from_secs(60))?.on(&clock);
    /// assert_eq!(log.acquire_up_to(15), 10);
    /// assert_eq!(log.time_until(1), Some(Duration::from_secs(60)));
    /// log.force_acquire(5);
    /// assert_eq!(log.debt(), 5);
    /// log.set_limit(20, Inherit::AsIs);
    /// assert_eq!(log.available(), 5);
    /// log.reset();
    /// assert_eq!(log.available(), 20);
    /// # Ok::<(), tollgate::RateError>(())
    /// ```
    pub fn new(limit: u64, length: Duration) -> Result<Self, RateError> {
        Ok(Self::build(limit, check_length(length)?, &Clock::real()))
    }

    fn build(limit: u64, length: Duration, clock: &Clock) -> Self {
        Self::of(Locked::new(Log::new(limit, length, clock)), clock)
    }

    /// The same log on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.limit(), self.length(), clock)
    }

    fn length(&self) -> Duration {
        self.meter.look(|log| log.length)
    }
}

impl Log {
    fn new(limit: u64, length: Duration, clock: &Clock) -> Self {
        Self {
            now: clock.now().ticks(),
            length,
            ticks: ticks(length, clock),
            limit,
            entries: VecDeque::new(),
            total: 0,
            made: 0,
            sealed: 0,
        }
    }

    /// True if another admission can join this entry.
    fn joins(&self, entry: &Entry) -> bool {
        entry.at == self.now && entry.number > self.sealed
    }

    /// Logs `n` now, and returns the number of their entry. Without room for an entry of its own it joins the last one, which then
    /// counts as long.
    fn add(&mut self, n: u64) -> u64 {
        let n = n.min(u64::MAX - self.total);
        if n == 0 {
            return 0;
        }
        self.total += n;
        let (now, is_full) = (self.now, self.entries.len() as u64 >= self.limit.max(ENTRIES));
        let into_last = self.entries.back().is_some_and(|last| is_full || self.joins(last));
        if let Some(last) = self.entries.back_mut().filter(|_| into_last) {
            last.at = now;
            last.units += n;
            return last.number;
        }
        self.made += 1;
        self.entries.push_back(Entry {
            number: self.made,
            at: now,
            units: n,
        });
        self.made
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }
}

impl Machine for Log {
    const LEG: &'static str = "sliding_log";

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        let (now, ticks) = (self.now, self.ticks);
        let leaves = |oldest: &&Entry| now.saturating_sub(oldest.at) >= ticks;
        while let Some(oldest) = self.entries.front().filter(leaves) {
            self.total -= oldest.units;
            self.entries.pop_front();
        }
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn free(&self) -> u64 {
        // Without a limit nothing is counted.
        self.limit.saturating_sub(self.total)
    }

    fn take(&mut self, n: u64) -> u64 {
        match self.limit {
            UNLIMITED => 0,
            _ => self.add(n),
        }
    }

    fn settle(&mut self, mark: &mut u64, charged: u64, actual: u64) -> u64 {
        let (back, more) = (charged.saturating_sub(actual), actual.saturating_sub(charged));
        let before = self.total;
        match self.find(*mark) {
            // It was taken before a change, or nothing was: an undercharge counts from now on.
            _ if *mark <= self.sealed => {
                let number = self.take(more);
                if charged == 0 {
                    *mark = number;
                }
            }
            Some(index) => {
                let more = more.min(u64::MAX - self.total);
                let entry = &mut self.entries[index];
                let back = back.min(entry.units);
                entry.units = entry.units - back + more;
                self.total = self.total - back + more;
                if entry.units == 0 {
                    self.entries.remove(index);
                    *mark = 0;
                }
            }
            // It counts no more.
            None => return actual,
        }
        match self.limit {
            UNLIMITED => actual,
            // At most `more`.
            _ if more > 0 => charged.saturating_add(self.total - before),
            _ => actual,
        }
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if self.limit == UNLIMITED || (n == 0 && ahead == 0) {
            return Some(self.now);
        }
        // Those ahead fill this window first. If they exceed one window, the instant is a lower bound.
        let room = self.limit.checked_sub(n)?.saturating_sub(ahead);
        let leaves = |entry: &Entry| entry.at.saturating_add(self.ticks);
        let mut at = self.now;
        let mut total = self.total;
        for entry in &self.entries {
            if total <= room {
                break;
            }
            total -= entry.units;
            at = at.max(leaves(entry));
        }
        Some(at)
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.total = 0;
        self.sealed = self.made;
    }

    fn standing(&self) -> Standing {
        let last = self.entries.back();
        let fresh_at = last.map_or(self.now, |last| last.at.saturating_add(self.ticks));
        Standing {
            limit: self.limit,
            window: self.length,
            free: self.free(),
            debt: self.total.saturating_sub(self.limit),
            fresh_at: Some(Instant::from_ticks(fresh_at)),
            is_window: true,
            is_changed: false,
        }
    }
}

impl Limited for Log {
    fn limit(&mut self) -> &mut u64 {
        &mut self.limit
    }

    fn rescale(&mut self, old: u64, new: u64) {
        self.total = share_all(self.entries.iter_mut().map(|entry| &mut entry.units), old, new);
        self.sealed = self.made;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualClock;

    #[test]
    fn admissions_of_one_instant_share_an_entry() {
        let clock = ManualClock::new();
        let log = SlidingLog::new(1_000, Duration::from_secs(1)).unwrap().on(&clock);
        for entries in 1..=3 {
            assert_eq!(log.acquire_up_to(5) + log.acquire_up_to(5), 10);
            assert_eq!(log.meter.look(|log| log.entries.len()), entries);
            clock.advance(Duration::from_millis(1));
        }
    }
}
