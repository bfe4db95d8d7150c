//! The sliding log: each admission with its instant, so that room is back as soon as the limit allows.

use super::inherit::{Inherit, share_up};
use super::limiter::Rate;
use super::meter::{Locked, Machine, UNLIMITED, ticks};
use super::window_error::{WindowError, check_length};
use crate::core::status::State;
use crate::time::Clock;
use std::collections::VecDeque;
use std::fmt;
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
/// admissions of one instant. There are at most as many entries as the limit, and at least room for 65,536. For a large limit that
/// is much memory: 2.3 MiB for 100,000. If [`max_entries`](Self::max_entries) allows fewer, the log refuses with that many in the
/// window, until the oldest leaves: then it may admit less than the limit, but never more. A
/// [`SlidingWindow`](crate::SlidingWindow) takes some 700 bytes and is up to one segment late.
///
/// A cancel and a [`settle`](crate::Permit::settle) correct the entry, exactly and in any order. An instant earlier than the latest
/// seen counts as the latest.
pub type SlidingLog = Rate<Locked<Log>>;

/// How many entries a log has room for at least, unless set otherwise.
const ENTRIES: usize = 65_536;

/// The meter of a [`SlidingLog`]. Instants are ticks.
#[derive(Debug)]
pub struct Log {
    now: u64,
    length: Duration,
    ticks: u64,
    limit: u64,
    /// The most entries, if that was set.
    set_most: Option<usize>,
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
    /// A limit that admits everything, and counts nothing.
    pub const UNLIMITED: u64 = UNLIMITED;
    /// How many entries it has room for at least, unless set otherwise: one for each unit of a larger limit.
    pub const ENTRIES: usize = ENTRIES;

    /// At most `limit` in any span of `length`, on the real clock. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        Ok(Self::build(limit, check_length(length)?, None, &Clock::real()))
    }

    fn build(limit: u64, length: Duration, set_most: Option<usize>, clock: &Clock) -> Self {
        let log = Log::new(clock.now().ticks(), limit, length, set_most, clock);
        Self::of(Locked::new(log), clock)
    }

    /// The same log on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let set_most = self.meter.look(|log| log.set_most);
        Self::build(self.limit(), self.length(), set_most, clock)
    }

    /// The same log, empty, with room for `entries` entries.
    ///
    /// # Errors
    /// [`WindowError::Entries`] when that is none.
    ///
    /// ```
    /// # use tollgate::{Inherit, ManualClock, SlidingLog};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let log = SlidingLog::new(10, Duration::from_secs(60))?.max_entries(100)?.on(&clock);
    /// assert_eq!(log.acquire_up_to(15), 10);
    /// assert_eq!((log.time_until(1), log.entries()), (Some(Duration::from_secs(60)), 1));
    /// log.force_acquire(5);
    /// assert_eq!(log.debt(), 5);
    /// log.set_limit(20, Inherit::AsIs);
    /// assert_eq!(log.available(), 5);
    /// log.set_length(Duration::from_secs(1))?;
    /// log.reset();
    /// assert_eq!(log.available(), 20);
    /// # Ok::<(), tollgate::WindowError>(())
    /// ```
    pub fn max_entries(self, entries: usize) -> Result<Self, WindowError> {
        if entries == 0 {
            return Err(WindowError::Entries { given: entries });
        }
        Ok(Self::build(self.limit(), self.length(), Some(entries), &self.clock))
    }

    /// How many entries it holds. A snapshot.
    pub fn entries(&self) -> usize {
        self.meter.look(|log| log.entries.len())
    }

    /// The limit in force.
    pub fn limit(&self) -> u64 {
        self.meter.look(|log| log.limit)
    }

    /// The length of the window.
    pub fn length(&self) -> Duration {
        self.meter.look(|log| log.length)
    }

    /// Changes the limit at once; `inherit` says what becomes of the units that count. Only with [`Inherit::AsIs`] does no window
    /// across the change exceed the larger limit.
    pub fn set_limit(&self, limit: u64, inherit: Inherit) {
        self.meter.change(self.clock.now(), |log| log.set_limit(limit, inherit));
        self.notify_changed();
    }

    /// Changes the length of the window at once. Units that have left the shorter window do not count in a longer one.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
    pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let length = check_length(length)?;
        self.meter.change(self.clock.now(), |log| {
            (log.length, log.ticks) = (length, ticks(length, &self.clock));
            log.advance(log.now);
        });
        self.notify_changed();
        Ok(())
    }
}

impl Log {
    fn new(now: u64, limit: u64, length: Duration, set_most: Option<usize>, clock: &Clock) -> Self {
        Self {
            now,
            length,
            ticks: ticks(length, clock),
            limit,
            set_most,
            entries: VecDeque::new(),
            total: 0,
            made: 0,
            sealed: 0,
        }
    }

    fn set_limit(&mut self, limit: u64, inherit: Inherit) {
        let old = std::mem::replace(&mut self.limit, limit);
        match inherit {
            _ if limit == UNLIMITED => self.clear(),
            Inherit::Reset => self.clear(),
            Inherit::Proportional if old != UNLIMITED => {
                self.total = 0;
                for entry in &mut self.entries {
                    entry.units = share_up(entry.units, old, limit).min(u64::MAX - self.total);
                    self.total += entry.units;
                }
                self.sealed = self.made;
            }
            _ => {}
        }
    }

    /// The most entries: one for each unit of the limit unless set otherwise.
    fn most(&self) -> usize {
        self.set_most
            .unwrap_or_else(|| usize::try_from(self.limit).unwrap_or(usize::MAX).max(ENTRIES))
    }

    /// True if another admission can join this entry.
    fn joins(&self, entry: &Entry) -> bool {
        entry.at == self.now && entry.number > self.sealed
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= self.most() && !self.entries.back().is_some_and(|last| self.joins(last))
    }

    /// Logs `n` now, and returns the number of their entry. Without room for an entry of its own it joins the last one, which then
    /// counts as long.
    fn add(&mut self, n: u64) -> u64 {
        let n = n.min(u64::MAX - self.total);
        if n == 0 {
            return 0;
        }
        self.total += n;
        let (now, is_full) = (self.now, self.is_full());
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
    const TYPE: &'static str = "SlidingLog";

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
        match self.is_full() {
            true => 0,
            false => self.limit.saturating_sub(self.total),
        }
    }

    fn debt(&self) -> u64 {
        self.total.saturating_sub(self.limit)
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
        if let Some(oldest) = self.entries.front().filter(|_| self.is_full()) {
            at = leaves(oldest);
        }
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

    fn fresh_at(&self) -> Option<u64> {
        let last = self.entries.back();
        Some(last.map_or(self.now, |last| last.at.saturating_add(self.ticks)))
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.total = 0;
        self.sealed = self.made;
    }

    fn window_limit(&self) -> Option<u64> {
        Some(self.limit)
    }

    fn state(&self, available: u64, next: Option<Duration>, reset: Option<Duration>) -> State {
        State::Rate {
            limit: self.limit,
            window: self.length,
            available,
            next,
            reset,
        }
    }

    fn debug(&self, out: &mut fmt::DebugStruct<'_, '_>) {
        out.field("limit", &self.limit).field("length", &self.length);
    }
}
