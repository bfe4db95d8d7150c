//! The sliding window: at most so many in any span of its length.

use super::inherit::Inherit;
use super::shell::{RateTicket, Shell, limiter_of_shell};
use crate::algo::fixed;
use crate::algo::meter::Meter;
use crate::algo::window::Window;
use crate::ask::Demand;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::time::Duration;

const LEG: &str = "sliding_window";

/// Admits at most `limit` in *any* span of the window's length, wherever it starts.
///
/// The window is counted in segments (64 unless set otherwise). A segment counts in full until all of it has left the
/// window, so that the limit is never exceeded; in return room comes back late, by at most one segment: 1/64 of the
/// window. (A segment is a whole number of the clock's ticks. Where the window is no multiple of it, that is by less than two.)
///
/// A cancel or a settlement restores exactly. Of what was taken before a change that forgives, or changes the length, nothing
/// comes back, and what was undercharged counts from now on.
///
/// An instant earlier than the latest seen counts as that.
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
    shell: Shell<Window>,
    set: Mutex<Set>,
}

/// As it was set.
#[derive(Clone, Copy, Debug)]
struct Set {
    length: Duration,
    segments: usize,
}

impl Set {
    /// How many segments it takes, of how many ticks each: no more than what is wanted, and than there are ticks.
    fn shape(&self, clock: &Clock) -> (usize, u64) {
        let ticks = clock.ticks_of(self.length).max(1);
        let segment = ticks.div_ceil(self.segments as u64);
        // At most as many as are wanted.
        (ticks.div_ceil(segment) as usize, segment)
    }
}

impl SlidingWindow {
    /// A limit that admits everything, and counts nothing.
    pub const UNLIMITED: u64 = fixed::UNLIMITED;
    /// How many segments a window has, unless set otherwise.
    pub const SEGMENTS: usize = 64;
    /// The most segments a window can have.
    pub const MAX_SEGMENTS: usize = 4_096;

    /// At most `limit` in any span of `length`, on the real clock. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        let set = Set {
            length: check_length(length)?,
            segments: Self::SEGMENTS,
        };
        Ok(Self::build(limit, set, &Clock::real()))
    }

    /// The same window on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.limit(), *self.set.lock(), clock)
    }

    /// The same window in so many segments, empty: more are finer and take 8 bytes each.
    ///
    /// # Errors
    /// [`WindowError::Segments`] when there are none, or more than [`MAX_SEGMENTS`](Self::MAX_SEGMENTS).
    pub fn segments(self, segments: usize) -> Result<Self, WindowError> {
        if segments == 0 || segments > Self::MAX_SEGMENTS {
            return Err(WindowError::Segments { given: segments });
        }
        let set = Set {
            segments,
            ..*self.set.lock()
        };
        Ok(Self::build(self.limit(), set, self.shell.clock()))
    }

    fn build(limit: u64, set: Set, clock: &Clock) -> Self {
        let (segments, ticks) = set.shape(clock);
        Self {
            shell: Shell::new(LEG, clock, |now| Window::new(now, segments, ticks, limit)),
            set: Mutex::new(set),
        }
    }

    /// The most that any span of the window's length admits.
    pub fn limit(&self) -> u64 {
        self.shell.read(Window::limit)
    }

    /// The length of the window.
    pub fn length(&self) -> Duration {
        self.set.lock().length
    }

    /// Changes the limit at once. What has been admitted still counts: [`set_quota`](Self::set_quota) with
    /// [`Inherit::Additive`].
    pub fn set_limit(&self, limit: u64) {
        self.set_quota(limit, Inherit::Additive);
    }

    /// Changes the limit at once; `inherit` says what becomes of the room that is left. With [`Inherit::Additive`] what
    /// was admitted still counts, and nothing else does: only then does no window exceed its limit.
    ///
    /// Where another rule makes more room than that the oldest admissions are forgiven, and what was taken before is not
    /// given back any more. Where it makes less, the difference counts as admitted now.
    pub fn set_quota(&self, limit: u64, inherit: Inherit) {
        self.shell.change(|window| {
            let (room, old) = (window.room(), window.limit());
            let counted = [old, limit].map(|limit| (limit != Self::UNLIMITED).then_some(limit.into()));
            let room = self
                .shell
                .inherit(inherit, room, inherit.room(room, old, limit), counted);
            window.set_limit(limit, room);
        });
        self.shell.ring();
    }

    /// Changes the length of the window at once. What is in the window counts as admitted now, and is not given back any
    /// more: so no span of a shorter window exceeds its limit, and room comes back up to a window late, once. What has left
    /// the shorter window does not count in a longer one: one span that reaches back beyond the change may hold up to both.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
    pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let mut set = self.set.lock();
        set.length = check_length(length)?;
        let (segments, ticks) = set.shape(self.shell.clock());
        self.shell.change(|window| window.set_length(segments, ticks));
        drop(set);
        self.shell.ring();
        Ok(())
    }

    /// Counts `units` at `now`, whether there is room or not.
    pub(crate) fn charge(&self, units: u64, now: Instant) -> RateTicket<1> {
        let mark = self.shell.charge(units, now);
        RateTicket { units, mark }
    }

    /// How many more than the limit the window holds, by debts or since the limit was lowered.
    pub fn debt(&self) -> u64 {
        self.shell.read(Window::debt)
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

limiter_of_shell!(SlidingWindow, 1, status);

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

/// Why a window could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowError {
    /// The length must be above zero and at most 365 days.
    Length {
        /// What was given.
        given: Duration,
    },
    /// The segments must be 1 to [`SlidingWindow::MAX_SEGMENTS`].
    Segments {
        /// What was given.
        given: usize,
    },
    /// A log needs at least one entry.
    Entries {
        /// What was given.
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
