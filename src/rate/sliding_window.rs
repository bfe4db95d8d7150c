//! The sliding window: at most `limit` in any span of its length.
//!
//! # The meter
//! A ring of segments: admissions are counted per segment. A segment counts in full until even its last instant lies a
//! whole window back. So no window of that length ever holds more than the limit, and room comes back at most one
//! segment late.

use super::inherit::Inherit;
use super::meter::{Meter, UNLIMITED};
use super::meter_limiter::{MeterLimiter, RateTicket, meter_limiter};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::time::Duration;

const LEG: &str = "sliding_window";

/// Admits at most `limit` in *any* span of the window's length, wherever it starts.
///
/// The window is counted in segments (64 unless set otherwise). A segment counts in full until all of it has left the
/// window. So the limit is never exceeded, and in return room comes back late, by at most one segment: 1/64 of the
/// window. (A segment is a whole number of the clock's ticks. If the window is no multiple of it, room comes back less
/// than two segments late.)
///
/// A cancel or a settlement restores exactly. After a change that forgives, or changes the length, earlier takes give
/// nothing back, and an undercharge counts from now on.
///
/// An instant earlier than the latest seen counts as the latest.
///
/// ```
/// # use tollgate::{ManualClock, SlidingWindow};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let window = SlidingWindow::new(2, Duration::from_secs(64)).unwrap().on(&clock);
/// assert!(window.try_acquire(2).is_ok());
/// let refused = window.try_acquire(1).unwrap_err();
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(65)));
/// clock.advance(Duration::from_secs(65));
/// assert!(window.try_acquire(1).is_ok());
/// ```
pub struct SlidingWindow {
    inner: MeterLimiter<WindowMeter>,
    settings: Mutex<Settings>,
}

/// The settings in force.
#[derive(Clone, Copy, Debug)]
struct Settings {
    length: Duration,
    segments: usize,
}

impl Settings {
    /// How many segments there are, and their length in ticks: at most as many as are wanted, and as there are ticks.
    fn shape(&self, clock: &Clock) -> (usize, u64) {
        let ticks = clock.ticks_of(self.length).max(1);
        let segment = ticks.div_ceil(self.segments as u64);
        // At most as many as are wanted.
        (ticks.div_ceil(segment) as usize, segment)
    }
}

impl SlidingWindow {
    /// A limit that admits everything, and counts nothing.
    pub const UNLIMITED: u64 = UNLIMITED;
    /// How many segments a window has, unless set otherwise.
    pub const SEGMENTS: usize = 64;
    /// The most segments a window can have.
    pub const MAX_SEGMENTS: usize = 4_096;

    /// At most `limit` in any span of `length`, on the real clock. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        let set = Settings {
            length: check_length(length)?,
            segments: Self::SEGMENTS,
        };
        Ok(Self::build(limit, set, &Clock::real()))
    }

    /// The same window on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.limit(), *self.settings.lock(), clock)
    }

    /// The same window in `segments` segments, empty: more are finer and take 8 bytes each.
    ///
    /// # Errors
    /// [`WindowError::Segments`] when there are none, or more than [`MAX_SEGMENTS`](Self::MAX_SEGMENTS).
    pub fn segments(self, segments: usize) -> Result<Self, WindowError> {
        if segments == 0 || segments > Self::MAX_SEGMENTS {
            return Err(WindowError::Segments { given: segments });
        }
        let set = Settings {
            segments,
            ..*self.settings.lock()
        };
        Ok(Self::build(self.limit(), set, self.inner.clock()))
    }

    fn build(limit: u64, set: Settings, clock: &Clock) -> Self {
        let (segments, ticks) = set.shape(clock);
        Self {
            inner: MeterLimiter::new(LEG, clock, |now| WindowMeter::new(now, segments, ticks, limit)),
            settings: Mutex::new(set),
        }
    }

    /// The most that any span of the window's length admits.
    pub fn limit(&self) -> u64 {
        self.inner.read(WindowMeter::limit)
    }

    /// The length of the window.
    pub fn length(&self) -> Duration {
        self.settings.lock().length
    }

    /// Changes the limit at once; `inherit` is the rule for the room that is left. With [`Inherit::Additive`] exactly
    /// the admitted units still count: only then does no window exceed its limit.
    ///
    /// If another rule makes more room than that, the oldest admissions are forgiven, and earlier takes are not given
    /// back any more. If it makes less, the difference counts as admitted now.
    pub fn set_limit(&self, limit: u64, inherit: Inherit) {
        self.inner.change(|window| {
            let (room, old) = (window.room(), window.limit());
            let counted = [old, limit].map(|limit| (limit != Self::UNLIMITED).then_some(limit.into()));
            let room = self
                .inner
                .inherit(inherit, room, inherit.room(room, old, limit), counted);
            window.set_limit(limit, room);
        });
        self.inner.notify_changed();
    }

    /// Changes the length of the window at once. The units in the window count as admitted now, and are not given back
    /// any more. So no span of a shorter window exceeds its limit, and room comes back up to a window late, once. Units
    /// that have left the shorter window do not count in a longer one: one span that reaches back beyond the change may
    /// hold up to both.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
    pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let mut set = self.settings.lock();
        set.length = check_length(length)?;
        let (segments, ticks) = set.shape(self.inner.clock());
        self.inner.change(|window| window.set_length(segments, ticks));
        drop(set);
        self.inner.notify_changed();
        Ok(())
    }

    /// Counts `units` at `now`, whether there is room or not.
    pub(crate) fn charge(&self, units: u64, now: Instant) -> RateTicket<1> {
        let mark = self.inner.charge(units, now);
        RateTicket { units, mark }
    }

    /// How many more than the limit the window holds, by debts or since the limit was lowered.
    pub fn debt(&self) -> u64 {
        self.inner.read(WindowMeter::debt)
    }
}

impl SlidingWindow {
    fn status(&self) -> Option<State> {
        Some(State::Rate {
            limit: self.limit(),
            window: self.length(),
            available: self.available(),
            next: self.time_until(1),
        })
    }
}

meter_limiter!(SlidingWindow, 1, status);

impl fmt::Debug for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlidingWindow")
            .field("limit", &self.limit())
            .field("length", &self.length())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

/// `length`, if a window can be so long.
pub(super) fn check_length(length: Duration) -> Result<Duration, WindowError> {
    if length.is_zero() || length > Duration::from_secs(365 * 86_400) {
        return Err(WindowError::Length { given: length });
    }
    Ok(length)
}

/// Why a length, a number of segments or a number of entries is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowError {
    /// The length must be above zero and at most 365 days.
    Length {
        /// The given value.
        given: Duration,
    },
    /// The segments must be 1 to [`SlidingWindow::MAX_SEGMENTS`].
    Segments {
        /// The given value.
        given: usize,
    },
    /// A log needs at least one entry.
    Entries {
        /// The given value.
        given: usize,
    },
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { given } => {
                write!(
                    f,
                    "a window of {given:?} was given, and above zero to 365 days is allowed"
                )
            }
            Self::Segments { given } => write!(
                f,
                "{given} segments were given, and 1 to {} are allowed",
                SlidingWindow::MAX_SEGMENTS
            ),
            Self::Entries { given } => write!(f, "{given} entries were given, and at least 1 is allowed"),
        }
    }
}

impl std::error::Error for WindowError {}

/// The counts of the current segment and of the `segments` before it.
#[derive(Debug)]
struct Ring {
    counts: Box<[u64]>,
    /// Where the current segment's count is.
    current: usize,
    /// The number of the current segment.
    number: u64,
    /// Segments up to this one cannot be corrected any more.
    sealed: u64,
    /// Ticks per segment.
    length: u64,
    /// When the current segment ends, in ticks.
    end: u64,
    total: u64,
}

impl Ring {
    /// A ring for a window of `segments` segments of `length` ticks, the first of which starts at `start`.
    fn new(segments: usize, length: u64, start: u64) -> Self {
        Self {
            counts: vec![0; segments + 1].into(),
            current: 0,
            // Beyond the age at which a segment counts: no segment has number zero.
            number: segments as u64 + 1,
            sealed: 0,
            length,
            end: start.saturating_add(length),
            total: 0,
        }
    }

    fn segments(&self) -> u64 {
        self.counts.len() as u64 - 1
    }

    /// Lets time pass until `now`. An earlier instant than the latest changes nothing.
    #[inline]
    fn advance(&mut self, now: u64) {
        if now >= self.end {
            self.advance_slow(now);
        }
    }

    #[cold]
    fn advance_slow(&mut self, now: u64) {
        if self.end == u64::MAX {
            // The end of time: nothing leaves any more.
            return;
        }
        let steps = (now - self.end) / self.length + 1;
        self.number = self.number.wrapping_add(steps);
        self.end = self.end.saturating_add(steps.saturating_mul(self.length));
        if steps > self.segments() {
            self.counts.fill(0);
            self.total = 0;
            return;
        }
        for _ in 0..steps {
            self.current = (self.current + 1) % self.counts.len();
            self.total -= std::mem::take(&mut self.counts[self.current]);
        }
    }

    /// The units in the window.
    #[inline]
    fn total(&self) -> u64 {
        self.total
    }

    /// Counts `n` in the current segment and returns its number.
    #[inline]
    fn take(&mut self, n: u64) -> u64 {
        // More than fits into 64 bits is a debt that never ends anyway.
        let n = n.min(u64::MAX - self.total);
        self.counts[self.current] += n;
        self.total += n;
        self.number
    }

    /// Corrects a count in segment `number`, if that still counts. Returns the new count.
    fn correct(&mut self, number: u64, counted: u64, actual: u64) -> u64 {
        let age = self.number.wrapping_sub(number);
        if age <= self.segments() {
            let index = (self.current + self.counts.len() - age as usize) % self.counts.len();
            let back = counted.saturating_sub(actual).min(self.counts[index]);
            let more = actual.saturating_sub(counted).min(u64::MAX - self.total);
            self.counts[index] = self.counts[index] - back + more;
            self.total = self.total - back + more;
            return actual.min(counted.saturating_add(more));
        }
        actual
    }

    /// Forbids corrections of all segments so far.
    fn seal(&mut self) {
        self.sealed = self.number;
        self.number = self.number.wrapping_add(self.segments() + 1);
    }

    /// Takes off `amount`, from the oldest segments.
    fn forgive(&mut self, mut amount: u64) {
        self.total -= amount;
        for age in (0..self.counts.len()).rev() {
            let index = (self.current + self.counts.len() - age) % self.counts.len();
            let part = amount.min(self.counts[index]);
            self.counts[index] -= part;
            amount -= part;
        }
        self.seal();
    }

    /// The instant at which the window will hold at most `room`, if nothing is added; `None` if it does already.
    fn holds_at_most(&self, room: u64) -> Option<u64> {
        let mut total = self.total;
        if total <= room {
            return None;
        }
        // From the oldest segment, which stops counting when the current one ends.
        let mut at = self.end;
        for age in (0..self.counts.len()).rev() {
            let index = (self.current + self.counts.len() - age) % self.counts.len();
            total -= self.counts[index];
            if total <= room {
                return Some(at);
            }
            at = at.saturating_add(self.length);
        }
        Some(at)
    }
}

/// The ring and its limit.
#[derive(Debug)]
pub(crate) struct WindowMeter {
    now: u64,
    ring: Ring,
    limit: u64,
}

impl WindowMeter {
    /// Empty, in `segments` segments of `length` ticks.
    pub(crate) fn new(now: u64, segments: usize, length: u64, limit: u64) -> Self {
        Self {
            now,
            ring: Ring::new(segments, length, now),
            limit,
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The units beyond the limit.
    pub(crate) fn debt(&self) -> u64 {
        self.ring.total().saturating_sub(self.limit)
    }

    /// The room of the window; negative if it holds too much.
    pub(crate) fn room(&self) -> i128 {
        i128::from(self.limit) - i128::from(self.ring.total())
    }

    /// Changes the limit, and leaves `room`. The oldest units are forgiven for that; missing ones count as admitted
    /// now. Without a limit nothing is counted.
    pub(crate) fn set_limit(&mut self, limit: u64, room: i128) {
        self.limit = limit;
        if limit == UNLIMITED {
            return self.clear();
        }
        let holds = u64::try_from((i128::from(limit) - room).max(0)).unwrap_or(u64::MAX);
        match self.ring.total().checked_sub(holds) {
            Some(0) => {}
            Some(over) => self.ring.forgive(over),
            None => {
                self.ring.take(holds - self.ring.total());
            }
        }
    }

    /// Changes the number of segments, and their length. The units in the window count as admitted now, and are not
    /// given back any more: their places in the new segments are unknown.
    pub(crate) fn set_length(&mut self, segments: usize, length: u64) {
        let held = self.ring.total();
        let mut ring = Ring::new(segments, length, self.now);
        ring.number = self.ring.number;
        ring.seal();
        ring.take(held);
        self.ring = ring;
    }
}

impl Meter for WindowMeter {
    type Mark = [u64; 1];

    #[inline]
    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.ring.advance(now);
    }

    fn now(&self) -> u64 {
        self.now
    }

    #[inline]
    fn fits(&self, n: u64) -> bool {
        n <= self.free()
    }

    #[inline]
    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.ring.total())
    }

    #[inline]
    fn take(&mut self, n: u64) -> Self::Mark {
        // Sealed from the start: no segment has this number.
        const NONE: [u64; 1] = [0];
        if self.limit == UNLIMITED {
            return NONE;
        }
        [self.ring.take(n)]
    }

    fn restore(&mut self, mark: &Self::Mark, units: u64) {
        self.ring.correct(mark[0], units, 0);
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        if mark[0] <= self.ring.sealed && actual > charged {
            // The segment is unknown: the undercharge counts from now on, and under no mark.
            self.take(actual - charged);
            return actual;
        }
        self.ring.correct(mark[0], charged, actual)
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if n == 0 && ahead == 0 {
            return Some(self.now);
        }
        // Those ahead fill this window first. If they exceed one window, the estimate is a lower bound.
        let room = self.limit.checked_sub(n)?.saturating_sub(ahead);
        Some(self.ring.holds_at_most(room).unwrap_or(self.now))
    }

    fn fresh_at(&self) -> Option<u64> {
        Some(self.ring.holds_at_most(0).unwrap_or(self.now))
    }

    fn clear(&mut self) {
        self.ring.counts.fill(0);
        self.ring.total = 0;
        self.ring.seal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Given any admissions, then no window of the full length holds more than the limit, and room is back at most
        /// one segment after the exact log says so.
        #[test]
        fn no_window_is_breached_and_room_is_at_most_a_segment_late(
            steps in prop::collection::vec((0u64..40, 1u64..4), 1..200), segments in 1usize..9, limit in 1u64..9,
        ) {
            let (length, mut now) = (10, 0);
            let window = segments as u64 * length;
            let mut ring = Ring::new(segments, length, 0);
            let mut log: Vec<(u64, u64)> = Vec::new();
            for (pause, n) in steps {
                now += pause;
                ring.advance(now);
                let held = |from: u64| log.iter().filter(|(at, _)| *at >= from).map(|(_, n)| n).sum::<u64>();
                if ring.total() + n <= limit {
                    prop_assert!(held((now + 1).saturating_sub(window)) + n <= limit);
                    ring.take(n);
                    log.push((now, n));
                } else {
                    prop_assert!(n > limit || held((now + 1).saturating_sub(window + length)) + n > limit);
                    if let Some(room) = limit.checked_sub(n) {
                        let at = ring.holds_at_most(room).unwrap();
                        prop_assert!(at > now && at <= now + window + length);
                    }
                }
            }
        }

        /// Given admissions that are corrected, then the total is that of a log of the corrected ones.
        #[test]
        fn corrections_are_exact(steps in prop::collection::vec((0u64..25, 1u64..9, 0u64..9), 1..100)) {
            let mut ring = Ring::new(4, 10, 0);
            let mut plain = Ring::new(4, 10, 0);
            let mut now = 0;
            let mut earlier: Option<(u64, u64, u64)> = None;
            for (pause, n, actual) in steps {
                now += pause;
                ring.advance(now);
                plain.advance(now);
                if let Some((number, counted, actual)) = earlier.take() {
                    ring.correct(number, counted, actual);
                    plain.correct(number, 0, actual);
                }
                let number = ring.take(n);
                plain.take(0);
                earlier = Some((number, n, actual));
                prop_assert_eq!(ring.total() - n, plain.total());
            }
        }
    }
}
