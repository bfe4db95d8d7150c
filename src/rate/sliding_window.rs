//! The sliding window: at most `limit` in any span of its length.
//!
//! # The meter
//! A ring of segments: admissions are counted per segment. A segment counts in full until even its last instant lies a
//! whole window back. So no window of that length ever holds more than the limit, and room comes back at most one
//! segment late.

use super::inherit::Inherit;
use super::meter::{Meter, UNLIMITED};
use super::meter_limiter::RateTicket;
use super::window_limiter::{LimitedMeter, Settings, WindowError, WindowLimiter, WindowedMeter, window_limiter};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::time::{Clock, ClockReading};
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
    inner: WindowLimiter<WindowMeter>,
}

impl SlidingWindow {
    /// How many segments a window has, unless set otherwise.
    pub const SEGMENTS: usize = 64;
    /// The most segments a window can have.
    pub const MAX_SEGMENTS: usize = 4_096;

    /// At most `limit` in any span of `length`, on the real clock. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        let inner = WindowLimiter::new(LEG, limit, length, Self::SEGMENTS)?;
        Ok(Self { inner })
    }

    /// The same window on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let inner = self.inner.on(clock, |_| {});
        Self { inner }
    }

    /// The same window in `segments` segments, empty: more are finer and take 8 bytes each.
    ///
    /// # Errors
    /// [`WindowError::Segments`] when there are none, or more than [`MAX_SEGMENTS`](Self::MAX_SEGMENTS).
    ///
    /// ```
    /// # use tollgate::{Inherit, ManualClock, SlidingWindow};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// // Finer segments: units come back sooner, for more memory.
    /// let window = SlidingWindow::new(10, Duration::from_secs(60))?.segments(120)?.on(&clock);
    /// assert_eq!(window.acquire_up_to(15), 10);
    /// assert!(window.time_until(1) > Some(Duration::from_secs(59)));
    /// window.force_acquire(5);
    /// assert_eq!(window.debt(), 5);
    /// window.set_limit(20, Inherit::AsIs);
    /// window.set_length(Duration::from_secs(1))?;
    /// window.reset();
    /// assert_eq!(window.available(), 20);
    /// # Ok::<(), tollgate::WindowError>(())
    /// ```
    pub fn segments(self, segments: usize) -> Result<Self, WindowError> {
        if segments == 0 || segments > Self::MAX_SEGMENTS {
            return Err(WindowError::Segments { given: segments });
        }
        let inner = self.inner.with(|own| *own = segments);
        Ok(Self { inner })
    }

    /// How many more than the limit the window holds, by debts or since the limit was lowered.
    pub fn debt(&self) -> u64 {
        self.inner.read(WindowMeter::debt)
    }
}

window_limiter! {
    SlidingWindow, 1,
    /// Changes the limit at once; `inherit` is the rule for the room that is left. With [`Inherit::Additive`] exactly
    /// the admitted units still count: only then does no window exceed its limit.
    ///
    /// If another rule makes more room than that, the oldest admissions are forgiven, and earlier takes are not given
    /// back any more. If it makes less, the difference counts as admitted now.
    set_limit,
    /// Changes the length of the window at once. The units in the window count as admitted now, and are not given back
    /// any more. So no span of a shorter window exceeds its limit, and room comes back up to a window late, once. Units
    /// that have left the shorter window do not count in a longer one: one span that reaches back beyond the change may
    /// hold up to both.
    set_length
}

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

    /// The units beyond the limit.
    pub(crate) fn debt(&self) -> u64 {
        self.ring.total().saturating_sub(self.limit)
    }
}

impl LimitedMeter for WindowMeter {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn room(&self) -> i128 {
        i128::from(self.limit) - i128::from(self.ring.total())
    }

    /// The oldest units are forgiven for the room; missing ones count as admitted now.
    fn set_limit(&mut self, limit: u64, room: i128) {
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
}

impl WindowedMeter for WindowMeter {
    /// How many segments it has at most.
    type Own = usize;

    fn start(now: u64, limit: u64, set: &Settings<usize>, clock: &Clock) -> Self {
        let (segments, length) = shape(set, clock);
        Self::new(now, segments, length, limit)
    }

    /// The units in the window count as admitted now, and are not given back any more: their places in the new segments
    /// are unknown.
    fn set_length(&mut self, set: &Settings<usize>, clock: &Clock) {
        let (segments, length) = shape(set, clock);
        let held = self.ring.total();
        let mut ring = Ring::new(segments, length, self.now);
        ring.number = self.ring.number;
        ring.seal();
        ring.take(held);
        self.ring = ring;
    }
}

/// The number of segments, and their length in ticks: at most as many as are wanted, and as there are ticks.
fn shape(set: &Settings<usize>, clock: &Clock) -> (usize, u64) {
    let ticks = set.ticks(clock);
    let segment = ticks.div_ceil(set.own as u64);
    (ticks.div_ceil(segment) as usize, segment)
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
        if mark[0] <= self.ring.sealed {
            // The segment is unknown: an undercharge counts from now on, and under no mark.
            self.take(actual.saturating_sub(charged));
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
