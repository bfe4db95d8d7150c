//! The fixed window: a count that starts anew at each boundary.

use super::booking::Booking;
use super::inherit::Inherit;
use super::shell::{RateTicket, Shell, limiter_of_shell};
use super::window::{WindowError, check_length};
use crate::algo::fixed::{self, Fixed};
use crate::algo::meter::Meter;
use crate::ask::Demand;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LEG: &str = "fixed_window";

/// Admits at most `limit` per window, and starts to count anew at each boundary: the form in which most quotas are
/// billed.
///
/// Windows follow each other without a gap, the first from when it was made, or [`aligned`](Self::aligned) to the wall
/// clock. (Not from the first use: that may be cancelled, and would leave its boundary behind.)
///
/// **Up to twice the limit passes within one window's length across a boundary**: at 100 per minute, 100 at 0:59 and 100
/// at 1:00. Where that is too much use a [`SlidingWindow`](crate::SlidingWindow) or a [`SlidingLog`](crate::SlidingLog).
///
/// [`book`](Self::book) takes units of the windows to come, and so does a debt: what a window cannot hold is charged to
/// the next ones.
///
/// # Giving back
/// A cancel is exact, in any order, as long as its window runs; later there is nothing left to give back. What is
/// cancelled before a window that has been booked, or charged with a debt, since is not given back: its own place stays
/// empty, so that no window ever holds more than its limit. A [`settle`](crate::Permit::settle) gives back in the same way; what
/// was undercharged counts from now on.
///
/// # Changes
/// Who has [booked](Self::book) keeps the instant that was told, whatever limit and length are set, and counts in the window in
/// which it lies. Until the last of these windows starts nobody else is admitted; that one has room for what the bookings leave
/// of the limit then in force. It may hold more, where the limit was lowered, or a longer window has several bookings: that is not
/// charged to later ones. Only [`reset`](Self::reset), and a limit that is [`UNLIMITED`](Self::UNLIMITED), forgets bookings: they
/// start beside whoever is admitted then.
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
/// assert_eq!(window.book(1).unwrap().wait(), Duration::from_secs(60));
/// ```
pub struct FixedWindow {
    shell: Shell<Fixed>,
    set: Mutex<Set>,
}

/// As it was set.
#[derive(Clone, Copy, Debug)]
struct Set {
    length: Duration,
    most_ahead: u64,
    aligned: Option<Aligned>,
}

/// What the wall clock showed at an instant.
#[derive(Clone, Copy, Debug)]
struct Aligned {
    /// Nanoseconds since 1970.
    wall: i128,
    at: Instant,
}

impl Set {
    /// How far into a window it is at `now`.
    fn since_start(&self, clock: &Clock, now: Instant) -> Duration {
        let Some(Aligned { wall, at }) = self.aligned else {
            return Duration::ZERO;
        };
        let wall = wall + clock.between(at, now).as_nanos() as i128;
        // Below the length, which is at most 365 days.
        Duration::from_nanos(wall.rem_euclid(self.length.as_nanos() as i128) as u64)
    }
}

impl FixedWindow {
    /// A limit that admits everything, and counts nothing.
    pub const UNLIMITED: u64 = fixed::UNLIMITED;

    /// At most `limit` per `length`, on the real clock, from now on. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        let set = Set {
            length: check_length(length)?,
            most_ahead: u64::MAX,
            aligned: None,
        };
        Ok(Self::build(limit, set, &Clock::real()))
    }

    /// The same window on `clock`, empty. Of one that is [`aligned`](Self::aligned) the boundaries stay where they are, on the
    /// same clock; on another one the wall clock shows at this instant what was said.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let mut set = *self.set.lock();
        if let Some(aligned) = &mut set.aligned
            && !clock.is_same(self.shell.clock())
        {
            aligned.at = clock.now();
        }
        Self::build(self.limit(), set, clock)
    }

    /// The same window, empty, with its boundaries where the wall clock has them, which shows `wall` now: windows of a
    /// minute start with each full minute, of a day at midnight, UTC.
    ///
    /// The wall clock is not looked at again. When it is adjusted the boundaries stay where they were.
    #[must_use]
    pub fn aligned(self, wall: SystemTime) -> Self {
        let at = self.shell.clock().now();
        let wall = match wall.duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        };
        let aligned = Some(Aligned { wall, at });
        let set = Set {
            aligned,
            ..*self.set.lock()
        };
        Self::build(self.limit(), set, self.shell.clock())
    }

    /// The same window, empty, in which at most `units` can be booked of windows to come.
    #[must_use]
    pub fn max_ahead(self, units: u64) -> Self {
        let set = Set {
            most_ahead: units,
            ..*self.set.lock()
        };
        Self::build(self.limit(), set, self.shell.clock())
    }

    fn build(limit: u64, set: Set, clock: &Clock) -> Self {
        let length = clock.ticks_of(set.length).max(1);
        let into = |now| {
            clock
                .ticks_of(set.since_start(clock, Instant::from_ticks(now)))
                .min(length - 1)
        };
        Self {
            shell: Shell::new(LEG, clock, |now| Fixed::new(now, into(now), length, limit)),
            set: Mutex::new(set),
        }
    }

    /// The limit in force.
    pub fn limit(&self) -> u64 {
        self.shell.read(Fixed::limit)
    }

    /// The length of the windows.
    pub fn length(&self) -> Duration {
        self.set.lock().length
    }

    /// Changes the limit at once. What has been admitted still counts: [`set_quota`](Self::set_quota) with
    /// [`Inherit::Additive`].
    pub fn set_limit(&self, limit: u64) {
        self.set_quota(limit, Inherit::Additive);
    }

    /// Changes the limit at once; `inherit` says what becomes of the room that is left, and of debts. With
    /// [`Inherit::Additive`] what was admitted still counts, and nothing else does. What is booked [stays](Self#changes) by
    /// every rule. Where the change makes more room than that, or something is charged to windows to come, what was taken
    /// before is not given back any more.
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

    /// Changes the length of the window that runs, which keeps its start, and of all to come. Where a shorter one has begun
    /// since, all that was counted counts in that, if any of it was taken since it began. What is booked [stays](Self#changes).
    /// Where something is charged to windows to come, what was taken before is not given back any more.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
    pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let mut set = self.set.lock();
        set.length = check_length(length)?;
        let ticks = self.shell.clock().ticks_of(length).max(1);
        self.shell.change(|window| window.set_length(ticks));
        drop(set);
        self.shell.ring();
        Ok(())
    }

    /// Takes `n` of the first window that has room for all of them, behind everything booked before: they start together, and so
    /// no window has more than its limit. What is left of the window before stays empty, and comes back with the booking.
    ///
    /// # Errors
    /// `QueueFull` when more than [`max_ahead`](Self::max_ahead) would be booked, what stays empty included, with a true
    /// `retry_after`; `Oversized` when `n` exceeds the limit.
    pub fn book(&self, n: u64) -> Result<Booking<'_, Self>, Refusal<'_>> {
        let most = self.set.lock().most_ahead;
        let (mark, made, start) = self.shell.book(n, |window| window.book(n, most))?;
        let ticket = RateTicket { units: n, mark };
        Ok(Booking::new(self, ticket, self.shell.clock(), made, start))
    }

    /// How many are charged to the windows to come, or exceed the one that runs.
    pub fn debt(&self) -> u64 {
        self.shell.read(Fixed::debt)
    }
}

impl FixedWindow {
    fn status(&self) -> Option<State> {
        Some(State::Rate {
            limit: self.limit(),
            window: self.length(),
            available: self.available(),
            next: self.time_until(1),
        })
    }
}

limiter_of_shell!(FixedWindow, 4, status);

impl fmt::Debug for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedWindow")
            .field("limit", &self.limit())
            .field("length", &self.length())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
