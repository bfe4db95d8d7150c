//! Windows whose segments have one length: the fixed window, of one segment, and the sliding window.

use super::limiter::Rate;
use super::meter::{Locked, ticks};
use super::rate_error::{RateError, check_length};
use super::ring::{Borders, Ring};
use crate::time::{Clock, Instant, nanos_since_1970};
use std::time::Duration;

/// Admits at most `limit` per window, and starts to count anew at each border: the form in which most quotas are billed.
///
/// ```
/// # use tollgate::{FixedWindow, ManualClock};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let window = FixedWindow::new(2, Duration::from_secs(60)).unwrap().on(&clock);
/// assert!(window.try_acquire(2).is_ok());
/// clock.advance(Duration::from_secs(59));
/// assert_eq!(window.try_acquire(1).unwrap_err().retry_after(), Some(Duration::from_secs(1)));
/// clock.advance(Duration::from_secs(1));
/// assert!(window.try_acquire(2).is_ok());
/// ```
///
/// Windows follow each other without a gap. The first starts when the limiter is made, or [`aligned`](Self::aligned) to the wall
/// clock. (It does not start at the first use: a use that is cancelled would leave its border behind.)
///
/// **Over-admission**: up to twice the limit passes within one window's length across a border: at 100 per minute, 100 at 0:59 and
/// 100 at 1:00. If that is too much, use a [`SlidingWindow`](crate::SlidingWindow) or a [`SlidingLog`](crate::SlidingLog).
///
/// # Giving back
/// A cancel and a [`settle`](crate::Permit::settle) are exact, in any order, as long as the window of the admission runs. Later the
/// admission counts no more. Units beyond the limit, of [`force_acquire`](Self::force_acquire) or a settlement, count in the window
/// in which they were taken, and leave with it.
pub type FixedWindow = Rate<Locked<Ring<Even<false>>>>;

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
pub type SlidingWindow = Rate<Locked<Ring<Even<true>>>>;

/// The settings of a window.
#[derive(Clone, Copy, Debug)]
struct Settings {
    length: Duration,
    /// With less than a tick to a segment there are fewer.
    segments: usize,
    is_aligned: bool,
}

/// The borders of a [`FixedWindow`] and of a [`SlidingWindow`], at even distances.
#[derive(Clone, Copy, Debug)]
pub struct Even<const SLIDES: bool> {
    /// When the present segment ends.
    end: u64,
    /// The length of a segment.
    ticks: u64,
    segments: usize,
    settings: Settings,
}

impl<const SLIDES: bool> Even<SLIDES> {
    fn new(settings: Settings, clock: &Clock, now: Instant) -> Self {
        let whole = ticks(settings.length, clock);
        let segment = whole.div_ceil(settings.segments as u64);
        let since = match settings.is_aligned {
            // Below the length, which is at most 365 days.
            true => nanos_since_1970(clock.wall()).rem_euclid(settings.length.as_nanos() as i128) as u64,
            false => 0,
        };
        let since = clock.ticks_of(Duration::from_nanos(since)).min(segment - 1);
        Self {
            end: now.ticks().saturating_add(segment - since),
            settings,
            ..Self::in_ticks(now.ticks(), whole.div_ceil(segment) as usize, segment)
        }
    }

    /// Of `segments` segments of `ticks` ticks, from `now` on.
    pub(crate) fn in_ticks(now: u64, segments: usize, ticks: u64) -> Self {
        let settings = Settings {
            length: Duration::ZERO,
            segments,
            is_aligned: false,
        };
        Self {
            end: now.saturating_add(ticks),
            ticks,
            segments,
            settings,
        }
    }
}

impl<const SLIDES: bool> Borders for Even<SLIDES> {
    const LEG: &'static str = if SLIDES { "sliding_window" } else { "fixed_window" };

    fn before(&self) -> usize {
        if SLIDES { self.segments } else { 0 }
    }

    fn due(&self) -> u64 {
        self.end
    }

    fn advance(&mut self, now: u64) -> u64 {
        if self.end == u64::MAX {
            // The end of time: nothing leaves any more.
            return 0;
        }
        let passed = (now - self.end) / self.ticks + 1;
        self.end = self.start_of(1 + passed);
        passed
    }

    fn start_of(&self, ahead: u64) -> u64 {
        self.end
            .saturating_add(ahead.saturating_sub(1).saturating_mul(self.ticks))
    }

    fn length(&self) -> Duration {
        self.settings.length
    }
}

impl<const SLIDES: bool> Rate<Locked<Ring<Even<SLIDES>>>> {
    /// At most `limit` in a window of `length`, on the real clock, from now on. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`RateError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, RateError> {
        let settings = Settings {
            length: check_length(length)?,
            segments: if SLIDES { SlidingWindow::SEGMENTS } else { 1 },
            is_aligned: false,
        };
        Ok(Self::build(limit, settings, &Clock::real()))
    }

    fn build(limit: u64, settings: Settings, clock: &Clock) -> Self {
        let now = clock.now();
        let borders = Even::new(settings, clock, now);
        Self::of(Locked::new(Ring::new(now.ticks(), borders, limit)), clock)
    }

    fn settings(&self) -> Settings {
        self.meter.look(|ring| ring.borders.settings)
    }

    /// The same window on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.limit(), self.settings(), clock)
    }
}

impl Rate<Locked<Ring<Even<false>>>> {
    /// The same window, empty, with borders by the [time of day](Clock::wall): windows of a minute start with each full minute, windows of a
    /// day at midnight, UTC.
    ///
    /// The time of day is read once. When it is adjusted, the borders stay where they were.
    ///
    /// ```
    /// # use tollgate::{FixedWindow, Inherit, ManualClock};
    /// # use std::time::{Duration, SystemTime};
    /// let (clock, minute) = (ManualClock::new(), Duration::from_secs(60));
    /// clock.set_wall(SystemTime::UNIX_EPOCH + minute / 4);
    /// let window = FixedWindow::new(10, minute)?.on(&clock).aligned();
    /// assert_eq!(window.acquire_up_to(15), 10);
    /// assert_eq!(window.time_until(1), Some(minute * 3 / 4));
    /// window.force_acquire(5);
    /// assert_eq!(window.debt(), 5);
    /// window.set_limit(20, Inherit::AsIs);
    /// assert_eq!(window.available(), 5);
    /// window.reset();
    /// assert_eq!((window.limit(), window.available()), (20, 20));
    /// # Ok::<(), tollgate::RateError>(())
    /// ```
    #[must_use]
    pub fn aligned(self) -> Self {
        let settings = Settings {
            is_aligned: true,
            ..self.settings()
        };
        Self::build(self.limit(), settings, &self.clock)
    }
}

impl Rate<Locked<Ring<Even<true>>>> {
    /// How many segments a window has, unless set otherwise.
    pub const SEGMENTS: usize = 64;
    /// The most segments a window can have.
    pub const MAX_SEGMENTS: usize = 4_096;

    /// The same window in `segments` segments, empty: more are finer and take 8 bytes each.
    ///
    /// # Errors
    /// [`RateError::Segments`] when there are none, or more than [`MAX_SEGMENTS`](Self::MAX_SEGMENTS).
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
    /// window.reset();
    /// assert_eq!(window.available(), 20);
    /// # Ok::<(), tollgate::RateError>(())
    /// ```
    pub fn segments(self, segments: usize) -> Result<Self, RateError> {
        if segments == 0 || segments > Self::MAX_SEGMENTS {
            return Err(RateError::Segments { given: segments });
        }
        let settings = Settings {
            segments,
            ..self.settings()
        };
        Ok(Self::build(self.limit(), settings, &self.clock))
    }
}
