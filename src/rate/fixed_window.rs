//! The fixed window: a count that starts anew at each border.

use super::limiter::Rate;
use super::meter::{Locked, ticks};
use super::ring::{Borders, Even, Ring};
use super::window_error::{WindowError, check_length};
use crate::time::{Clock, Instant, nanos_since_1970};
use std::fmt;
use std::time::{Duration, SystemTime};

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
pub type FixedWindow = Rate<Locked<Ring<Whole>>>;

/// The borders of a [`FixedWindow`]: each begins a window.
#[derive(Debug)]
pub struct Whole {
    even: Even,
    ticks: u64,
    length: Duration,
    aligned: Option<Aligned>,
}

/// The wall clock at an instant.
#[derive(Clone, Copy, Debug)]
struct Aligned {
    /// Nanoseconds since 1970.
    wall: i128,
    at: Instant,
}

impl Aligned {
    /// How many ticks into a window of this length it is at `now`.
    fn since(&self, length: Duration, clock: &Clock, now: Instant) -> u64 {
        let wall = self.wall + clock.between(self.at, now).as_nanos() as i128;
        // Below the length, which is at most 365 days.
        let since = wall.rem_euclid(length.as_nanos() as i128) as u64;
        clock
            .ticks_of(Duration::from_nanos(since))
            .min(ticks(length, clock) - 1)
    }
}

impl Whole {
    fn new(length: Duration, aligned: Option<Aligned>, clock: &Clock, now: Instant) -> Self {
        let since = aligned.map_or(0, |aligned| aligned.since(length, clock, now));
        let ticks = ticks(length, clock);
        Self {
            even: Even::new(now.ticks(), ticks, since),
            ticks,
            length,
            aligned,
        }
    }

    /// The same windows of another length: the present one keeps its start.
    fn with_length(&self, length: Duration, clock: &Clock, now: Instant) -> Self {
        if self.aligned.is_some() {
            return Self::new(length, self.aligned, clock, now);
        }
        let start = self.even.due().saturating_sub(self.ticks);
        let ticks = ticks(length, clock);
        let since = now.ticks().saturating_sub(start) % ticks;
        Self {
            even: Even::new(now.ticks(), ticks, since),
            ticks,
            length,
            aligned: None,
        }
    }
}

impl Borders for Whole {
    const LEG: &'static str = "fixed_window";
    const TYPE: &'static str = "FixedWindow";

    fn before(&self) -> usize {
        0
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

impl Rate<Locked<Ring<Whole>>> {
    /// At most `limit` per `length`, on the real clock, from now on. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        Ok(Self::build(limit, check_length(length)?, None, &Clock::real()))
    }

    fn build(limit: u64, length: Duration, aligned: Option<Aligned>, clock: &Clock) -> Self {
        let now = clock.now();
        let borders = Whole::new(length, aligned, clock, now);
        Self::of(Locked::new(Ring::new(now.ticks(), borders, limit)), clock)
    }

    /// The same window on `clock`, empty. If it is [`aligned`](Self::aligned), the same clock keeps its borders; another clock takes
    /// `wall` as the wall time at this instant.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let mut aligned = self.meter.look(|ring| ring.borders.aligned);
        if let Some(aligned) = aligned.as_mut().filter(|_| !clock.is_same(&self.clock)) {
            aligned.at = clock.now();
        }
        Self::build(self.limit(), self.length(), aligned, clock)
    }

    /// The same window, empty, with borders aligned to the wall clock, which shows `wall` now. Windows of a minute start with each
    /// full minute, windows of a day at midnight, UTC.
    ///
    /// The wall clock is not read again. When it is adjusted, the borders stay where they were.
    ///
    /// ```
    /// # use tollgate::{FixedWindow, Inherit, ManualClock};
    /// # use std::time::{Duration, SystemTime};
    /// let (clock, minute) = (ManualClock::new(), Duration::from_secs(60));
    /// let window = FixedWindow::new(10, minute)?.on(&clock).aligned(SystemTime::UNIX_EPOCH + minute / 4);
    /// assert_eq!(window.acquire_up_to(15), 10);
    /// assert_eq!(window.time_until(1), Some(minute * 3 / 4));
    /// window.force_acquire(5);
    /// assert_eq!(window.debt(), 5);
    /// window.set_limit(20, Inherit::AsIs);
    /// assert_eq!(window.available(), 5);
    /// window.set_length(Duration::from_secs(1))?;
    /// window.reset();
    /// assert_eq!((window.limit(), window.available()), (20, 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn aligned(self, wall: SystemTime) -> Self {
        let aligned = Aligned {
            wall: nanos_since_1970(wall),
            at: self.clock.now(),
        };
        Self::build(self.limit(), self.length(), Some(aligned), &self.clock)
    }

    /// The length of the window.
    pub fn length(&self) -> Duration {
        self.meter.look(|ring| ring.borders.length)
    }

    /// Changes the length of the present window, which keeps its start, and of all later ones. If a shorter window has begun since,
    /// all units count in it. Earlier takes are not given back any more.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
    pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let (length, now) = (check_length(length)?, self.clock.now());
        self.meter.change(now, |ring| {
            let borders = ring.borders.with_length(length, &self.clock, now);
            ring.set_borders(borders);
        });
        self.notify_changed();
        Ok(())
    }
}
