//! The sliding window: at most `limit` in any span of its length.

use super::limiter::Rate;
use super::meter::{Locked, ticks};
use super::ring::{Borders, Even, Ring};
use super::window_error::{WindowError, check_length};
use crate::time::Clock;
use std::fmt;
use std::time::Duration;

/// Admits at most `limit` in *any* span of the window's length, wherever it starts.
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
///
/// The window is counted in segments (64 unless set otherwise). A segment counts in full until all of it has left the window. So the
/// limit is never exceeded, and in return room comes back late, by at most one segment: 1/64 of the window. (A segment is a whole
/// number of the clock's ticks. If the window is no multiple of it, room comes back less than two segments late.)
///
/// A cancel or a settlement restores exactly, in any order. An instant earlier than the latest seen counts as the latest.
pub type SlidingWindow = Rate<Locked<Ring<Parts>>>;

/// The borders of a [`SlidingWindow`]: equal parts of it.
#[derive(Debug)]
pub struct Parts {
    even: Even,
    length: Duration,
    /// As it was set; with less than a tick to a segment there are fewer.
    set: usize,
    segments: usize,
}

impl Parts {
    fn new(length: Duration, set: usize, clock: &Clock, now: u64) -> Self {
        let ticks = ticks(length, clock);
        let segment = ticks.div_ceil(set as u64);
        Self {
            length,
            set,
            ..Self::in_ticks(now, ticks.div_ceil(segment) as usize, segment)
        }
    }

    /// Of `segments` segments of `segment` ticks.
    pub(crate) fn in_ticks(now: u64, segments: usize, segment: u64) -> Self {
        Self {
            even: Even::new(now, segment, 0),
            length: Duration::ZERO,
            set: segments,
            segments,
        }
    }
}

impl Borders for Parts {
    const LEG: &'static str = "sliding_window";
    const TYPE: &'static str = "SlidingWindow";

    fn before(&self) -> usize {
        self.segments
    }
    #[inline(always)]
    fn due(&self) -> u64 {
        self.even.due()
    }
    fn advance(&mut self, now: u64) -> u64 {
        self.even.advance(now)
    }
    fn start_of(&self, ahead: u64) -> u64 {
        self.even.start_of(ahead)
    }
    fn length(&self) -> Duration {
        self.length
    }
    fn debug(&self, out: &mut fmt::DebugStruct<'_, '_>) {
        out.field("length", &self.length);
    }
}

impl Rate<Locked<Ring<Parts>>> {
    /// How many segments a window has, unless set otherwise.
    pub const SEGMENTS: usize = 64;
    /// The most segments a window can have.
    pub const MAX_SEGMENTS: usize = 4_096;

    /// At most `limit` in any span of `length`, on the real clock. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        Ok(Self::build(
            limit,
            check_length(length)?,
            Self::SEGMENTS,
            &Clock::real(),
        ))
    }

    fn build(limit: u64, length: Duration, segments: usize, clock: &Clock) -> Self {
        let now = clock.now().ticks();
        let borders = Parts::new(length, segments, clock, now);
        Self::of(Locked::new(Ring::new(now, borders, limit)), clock)
    }

    /// The same window on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let segments = self.meter.look(|ring| ring.borders.set);
        Self::build(self.limit(), self.length(), segments, clock)
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
    /// assert_eq!(window.available(), 5);
    /// window.set_length(Duration::from_secs(1))?;
    /// window.reset();
    /// assert_eq!(window.available(), 20);
    /// # Ok::<(), tollgate::WindowError>(())
    /// ```
    pub fn segments(self, segments: usize) -> Result<Self, WindowError> {
        if segments == 0 || segments > Self::MAX_SEGMENTS {
            return Err(WindowError::Segments { given: segments });
        }
        Ok(Self::build(self.limit(), self.length(), segments, &self.clock))
    }

    /// The length of the window.
    pub fn length(&self) -> Duration {
        self.meter.look(|ring| ring.borders.length)
    }

    /// Changes the length of the window at once. The units in the window count as admitted now, and are not given back any more. So
    /// no span of a shorter window exceeds its limit, and room comes back up to a window late, once. Units that have left the shorter
    /// window do not count in a longer one: one span that reaches back beyond the change may hold up to both.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
    pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let (length, now) = (check_length(length)?, self.clock.now());
        self.meter.change(now, |ring| {
            let borders = Parts::new(length, ring.borders.set, &self.clock, now.ticks());
            ring.set_borders(borders);
        });
        self.notify_changed();
        Ok(())
    }
}
