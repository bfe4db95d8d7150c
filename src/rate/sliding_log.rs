//! The sliding log: exact in every span, at the price of remembering every admission.
//!
//! The meter keeps the instant and the weight of every admission that still counts.

use super::inherit::Inherit;
use super::meter::{Meter, UNLIMITED};
use super::meter_limiter::RateTicket;
use super::window_limiter::{LimitedMeter, Settings, WindowError, WindowLimiter, WindowedMeter, window_limiter};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::time::{Clock, ClockReading};
use std::collections::VecDeque;
use std::time::Duration;

const LEG: &str = "sliding_log";

/// Admits at most `limit` in *any* span of the window's length, and never one instant later than that allows.
///
/// It remembers the instant and the weight of each admission until it has left the window: 24 bytes an entry, one for
/// all admissions of one instant. There are at most as many entries as the limit, and as there are instants of debts up
/// to 65,536. For a large limit that is much memory: 2.3 MiB for 100,000. If [`max_entries`](Self::max_entries) allows
/// fewer, it refuses with that many in the window, until the oldest leaves: then it may admit less than the limit, but
/// never more. A [`SlidingWindow`](crate::SlidingWindow) takes a fixed 520 bytes and is up to one segment late.
///
/// A cancel and a [`settle`](crate::Permit::settle) correct the entry, exactly and in any order. An entry that a change
/// has forgiven gives nothing back, and its undercharge counts from now on. A debt is logged as an admission. An
/// instant earlier than the latest seen counts as the latest.
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
pub struct SlidingLog {
    inner: WindowLimiter<LogMeter>,
}

impl SlidingLog {
    /// How many entries it holds at least, unless set otherwise: one for each unit of a larger limit.
    pub const ENTRIES: usize = ENTRIES;

    /// At most `limit` in any span of `length`, on the real clock. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        let inner = WindowLimiter::new(LEG, limit, length, None)?;
        Ok(Self { inner })
    }

    /// The same log on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let inner = self.inner.on(clock, |_| {});
        Self { inner }
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
    /// log.set_length(Duration::from_secs(1))?;
    /// log.reset();
    /// assert_eq!(log.available(), 20);
    /// # Ok::<(), tollgate::WindowError>(())
    /// ```
    pub fn max_entries(self, entries: usize) -> Result<Self, WindowError> {
        if entries == 0 {
            return Err(WindowError::Entries { given: entries });
        }
        let inner = self.inner.with(|own| *own = Some(entries));
        Ok(Self { inner })
    }

    /// How many entries it holds now.
    pub fn entries(&self) -> usize {
        self.inner.read(LogMeter::entries)
    }

    /// How many more than the limit the window holds, by debts or since the limit was lowered.
    pub fn debt(&self) -> u64 {
        self.inner.read(LogMeter::debt)
    }
}

window_limiter! {
    SlidingLog, 1,
    /// Changes the limit at once; `inherit` is the rule for the room that is left. With [`Inherit::Additive`] exactly
    /// the admitted units still count: only then does no window exceed its limit.
    ///
    /// If another rule makes more room than that, the oldest admissions are forgiven, and earlier takes are not given
    /// back any more. If it makes less, the difference counts as admitted now.
    set_limit,
    /// Changes the length of the window at once. Units that have left the shorter window do not count in a longer one.
    set_length
}

/// The least number of entries allowed, unless set otherwise.
const ENTRIES: usize = 65_536;

/// How many admissions may pass before expired entries are removed.
const LEISURE: u64 = 256;

#[derive(Debug)]
pub(super) struct LogMeter {
    now: u64,
    length: u64,
    limit: u64,
    /// The most entries, if that was set.
    set_most: Option<usize>,
    /// The most entries: one for each unit of the limit unless set otherwise, and at least enough for a few debts.
    most: usize,
    /// By number, and so by instant.
    entries: VecDeque<LogEntry>,
    total: u128,
    /// The number of the latest entry.
    made: u64,
    /// Entries up to this number are not refunded: some of them have been forgiven.
    sealed: u64,
}

/// The units admitted at one instant.
#[derive(Clone, Copy, Debug)]
struct LogEntry {
    number: u64,
    at: u64,
    units: u64,
}

impl LogMeter {
    pub(super) fn new(now: u64, length: u64, limit: u64, set_most: Option<usize>) -> Self {
        let mut log = Self {
            now,
            length,
            limit,
            set_most,
            most: 0,
            entries: VecDeque::new(),
            total: 0,
            made: 0,
            sealed: 0,
        };
        log.put_limit(limit);
        log
    }

    fn put_limit(&mut self, limit: u64) {
        let all = || usize::try_from(limit).unwrap_or(usize::MAX).max(ENTRIES);
        self.limit = limit;
        self.most = self.set_most.unwrap_or_else(all);
    }

    /// How many entries there are.
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The units beyond the limit.
    pub(super) fn debt(&self) -> u64 {
        let over = self.total.saturating_sub(u128::from(self.limit));
        u64::try_from(over).unwrap_or(u64::MAX)
    }

    fn forgive(&mut self, mut amount: u128) {
        self.sealed = self.made;
        self.total -= amount;
        while let Some(oldest) = self.entries.front_mut() {
            let units = u128::from(oldest.units);
            if units > amount {
                oldest.units -= amount as u64;
                return;
            }
            amount -= units;
            self.entries.pop_front();
        }
    }

    /// True if another admission can join this entry.
    fn joins(&self, entry: &LogEntry) -> bool {
        entry.at == self.now && entry.number > self.sealed
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= self.most && !self.entries.back().is_some_and(|last| self.joins(last))
    }

    /// Logs `n` now and returns the number of its entry.
    fn add(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        self.total += u128::from(n);
        let (now, full) = (self.now, self.is_full());
        let joins = |last: &LogEntry| full || self.joins(last);
        let into_last = self.entries.back().is_some_and(joins);
        if let Some(entry) = self.entries.back_mut().filter(|_| into_last) {
            // Without room for an entry of its own, it joins the last one, which then counts as long.
            entry.at = now;
            let sum = entry.units.saturating_add(n);
            self.total -= u128::from(entry.units) + u128::from(n) - u128::from(sum);
            entry.units = sum;
            return entry.number;
        }
        self.push(n)
    }

    /// Another entry, of `n` now.
    #[inline]
    fn push(&mut self, n: u64) -> u64 {
        self.made += 1;
        self.entries.push_back(LogEntry {
            number: self.made,
            at: self.now,
            units: n,
        });
        self.made
    }

    /// How many of these ordered entries have left the window.
    fn left(&self, entries: &[LogEntry]) -> usize {
        entries.partition_point(|entry| self.now.saturating_sub(entry.at) >= self.length)
    }

    /// Takes up to `n` off an entry, if it still counts.
    fn subtract(&mut self, number: u64, n: u64) {
        if number <= self.sealed {
            return;
        }
        let Ok(index) = self.entries.binary_search_by_key(&number, |entry| entry.number) else {
            return;
        };
        let units = n.min(self.entries[index].units);
        self.entries[index].units -= units;
        self.total -= u128::from(units);
        if self.entries[index].units == 0 {
            self.entries.remove(index);
        }
    }
}

impl LimitedMeter for LogMeter {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn room(&self) -> i128 {
        i128::from(self.limit) - i128::try_from(self.total).unwrap_or(i128::MAX)
    }

    /// The oldest entries are forgiven for the room; missing units count as admitted now.
    fn set_limit(&mut self, limit: u64, room: i128) {
        if limit == UNLIMITED {
            self.put_limit(limit);
            return self.clear();
        }
        let total = i128::from(limit).saturating_sub(room).max(0) as u128;
        match total.checked_sub(self.total) {
            Some(more) => {
                self.add(u64::try_from(more).unwrap_or(u64::MAX));
            }
            None => self.forgive(self.total - total),
        }
        self.put_limit(limit);
    }
}

impl WindowedMeter for LogMeter {
    /// The most entries, if that was set.
    type Own = Option<usize>;

    fn start(now: u64, limit: u64, set: &Settings<Option<usize>>, clock: &Clock) -> Self {
        Self::new(now, set.ticks(clock), limit, set.own)
    }

    /// Entries that have left the old window do not come back.
    fn set_length(&mut self, set: &Settings<Option<usize>>, clock: &Clock) {
        self.length = set.ticks(clock);
        self.advance(self.now);
    }
}

impl Meter for LogMeter {
    type Mark = [u64; 1];

    fn advance(&mut self, now: u64) {
        let now = self.now.max(now);
        self.now = now;
        let (first, second) = self.entries.as_slices();
        let mut left = self.left(first);
        if left == first.len() {
            left += self.left(second);
        }
        for entry in self.entries.range(..left) {
            self.total -= u128::from(entry.units);
        }
        self.entries.drain(..left);
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn fits(&self, n: u64) -> bool {
        n == 0 || n <= self.free()
    }

    fn free(&self) -> u64 {
        match self.is_full() {
            true => 0,
            false => self.room().max(0) as u64,
        }
    }

    /// Takes if all logged units leave room, also those that have left the window. One time in [`LEISURE`] it leaves
    /// that to `take`, which removes expired entries: so the log stays short, and no call takes long.
    #[inline]
    fn take_at_once(&mut self, n: u64, now: u64) -> Option<Self::Mark> {
        let has_room = self.total + u128::from(n) <= u128::from(self.limit) && self.entries.len() < self.most;
        if n == 0 || !has_room || self.limit == UNLIMITED {
            return None;
        }
        // A stale instant counts as the latest.
        if now <= self.now {
            let last = self.entries.back_mut()?;
            let units = last.units.checked_add(n)?;
            if last.at != self.now || last.number <= self.sealed {
                return None;
            }
            self.total += u128::from(n);
            last.units = units;
            return Some([last.number]);
        }
        if self.made % LEISURE == 0 {
            return None;
        }
        self.now = now;
        self.total += u128::from(n);
        Some([self.push(n)])
    }

    fn take(&mut self, n: u64) -> Self::Mark {
        match self.limit {
            UNLIMITED => [0],
            _ => [self.add(n)],
        }
    }

    fn restore(&mut self, mark: &Self::Mark, units: u64) {
        self.subtract(mark[0], units);
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        let number = mark[0];
        let Some(more) = actual.checked_sub(charged) else {
            self.subtract(number, charged - actual);
            return actual;
        };
        let before = self.total;
        if charged == 0 {
            // No entry is left of it: it counts from now on.
            *mark = self.take(more);
        } else if let Ok(index) = self.entries.binary_search_by_key(&number, |entry| entry.number) {
            let entry = &mut self.entries[index];
            let units = entry.units.saturating_add(more);
            self.total += u128::from(units - entry.units);
            entry.units = units;
        } else {
            if number <= self.sealed {
                self.take(more); // Of one that was forgiven: from now on, and under no mark.
            }
            return actual;
        }
        match self.limit {
            UNLIMITED => actual,
            // At most `more`.
            _ => charged + (self.total - before) as u64,
        }
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if self.limit == UNLIMITED || (n == 0 && ahead == 0) {
            return Some(self.now);
        }
        // Those ahead fill this window first. If they exceed one window, the estimate is a lower bound.
        let room = self.limit.checked_sub(n)?.saturating_sub(ahead);
        let mut at = self.now;
        let leaves = |entry: &LogEntry| entry.at.saturating_add(self.length);
        if self.is_full() {
            if let Some(oldest) = self.entries.front() {
                at = leaves(oldest);
            }
        }
        // This many units have to leave. The search runs from the nearer end, since many callers may ask, each behind
        // the others.
        let over = self.total.saturating_sub(u128::from(room));
        let mut sum = 0;
        let mut reaches = |entry: &&LogEntry, most: u128| {
            sum += u128::from(entry.units);
            sum > most
        };
        let last = match over {
            0 => None,
            _ if over <= self.total / 2 => self.entries.iter().find(|entry| reaches(entry, over - 1)),
            _ => self.entries.iter().rev().find(|entry| reaches(entry, room.into())),
        };
        Some(last.map_or(at, |entry| at.max(leaves(entry))))
    }

    fn fresh_at(&self) -> Option<u64> {
        let newest = self.entries.back();
        Some(newest.map_or(self.now, |entry| entry.at.saturating_add(self.length)))
    }

    fn clear(&mut self) {
        self.entries.clear();
        (self.total, self.sealed) = (0, self.made);
    }
}
