//! Turns the meter of a window into a limiter: what the windows share beside the verbs of every rate.

use super::inherit::Inherit;
use super::meter::{Meter, UNLIMITED};
use super::meter_limiter::MeterLimiter;
use crate::core::status::State;
use crate::sync::shim::Mutex;
use crate::time::Clock;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

/// A meter of a limit per window.
pub(crate) trait LimitedMeter: Meter {
    fn limit(&self) -> u64;

    /// The room that is left; negative if it holds too much.
    fn room(&self) -> i128;

    /// Changes the limit, and leaves `room`. Without a limit nothing is counted.
    fn set_limit(&mut self, limit: u64, room: i128);
}

/// A meter of a limit per length.
pub(crate) trait WindowedMeter: LimitedMeter + Sized {
    /// The settings beside the limit and the length.
    type Own: Copy;

    /// Empty, as of `now`.
    fn start(now: u64, limit: u64, set: &Settings<Self::Own>, clock: &Clock) -> Self;

    /// Changes the length to that of `set`.
    fn set_length(&mut self, set: &Settings<Self::Own>, clock: &Clock);
}

/// The settings in force, beside the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings<T> {
    pub(super) length: Duration,
    pub(super) own: T,
}

impl<T> Settings<T> {
    /// The length in ticks of `clock`, at least one.
    pub(super) fn ticks(&self, clock: &Clock) -> u64 {
        clock.ticks_of(self.length).max(1)
    }
}

/// A meter of a limit per length, behind a lock.
pub(super) struct WindowLimiter<M: WindowedMeter> {
    inner: MeterLimiter<M>,
    leg: &'static str,
    settings: Mutex<Settings<M::Own>>,
}

impl<M: WindowedMeter> Deref for WindowLimiter<M> {
    type Target = MeterLimiter<M>;

    #[inline(always)]
    fn deref(&self) -> &MeterLimiter<M> {
        &self.inner
    }
}

impl<M: LimitedMeter> MeterLimiter<M> {
    pub(super) fn limit(&self) -> u64 {
        self.read(M::limit)
    }

    pub(super) fn set_limit(&self, limit: u64, inherit: Inherit) {
        self.change(|window| {
            let (room, old) = (window.room(), window.limit());
            let counted = [old, limit].map(|limit| (limit != UNLIMITED).then_some(limit.into()));
            let room = self.inherit(inherit, room, inherit.room(room, old, limit), counted);
            window.set_limit(limit, room);
        });
        self.notify_changed();
    }
}

impl<M: WindowedMeter> WindowLimiter<M> {
    pub(super) fn new(leg: &'static str, limit: u64, length: Duration, own: M::Own) -> Result<Self, WindowError> {
        let set = Settings {
            length: check_length(length)?,
            own,
        };
        Ok(Self::build(leg, limit, set, &Clock::real()))
    }

    fn build(leg: &'static str, limit: u64, set: Settings<M::Own>, clock: &Clock) -> Self {
        Self {
            inner: MeterLimiter::new(leg, clock, |now| M::start(now, limit, &set, clock)),
            leg,
            settings: Mutex::new(set),
        }
    }

    /// The same, empty, on `clock` and with other settings.
    pub(super) fn on(&self, clock: &Clock, change: impl FnOnce(&mut M::Own)) -> Self {
        let mut set = self.settings();
        change(&mut set.own);
        Self::build(self.leg, self.limit(), set, clock)
    }

    /// The same, empty, with other settings.
    pub(super) fn with(&self, change: impl FnOnce(&mut M::Own)) -> Self {
        self.on(self.clock(), change)
    }

    pub(super) fn settings(&self) -> Settings<M::Own> {
        *self.settings.lock()
    }

    pub(super) fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let mut set = self.settings.lock();
        set.length = check_length(length)?;
        self.change(|window| window.set_length(&set, self.clock()));
        drop(set);
        self.notify_changed();
        Ok(())
    }

    pub(super) fn status(&self) -> State {
        State::Rate {
            limit: self.limit(),
            window: self.settings().length,
            available: self.read(M::free),
            next: self.time_until(1),
            reset: self.time_until(self.limit()).filter(|reset| !reset.is_zero()),
        }
    }

    pub(super) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("limit", &self.limit())
            .field("length", &self.settings().length)
            .field("available", &self.read(M::free))
            .finish_non_exhaustive()
    }
}

/// `length`, if a window can be so long.
fn check_length(length: Duration) -> Result<Duration, WindowError> {
    if length.is_zero() || length > Duration::from_secs(365 * 86_400) {
        return Err(WindowError::Length { given: length });
    }
    Ok(length)
}

/// Why a length, a number of segments or a number of entries is refused.
///
/// ```
/// # use tollgate::{SlidingWindow, WindowError};
/// # use std::time::Duration;
/// let error = SlidingWindow::new(2, Duration::ZERO).unwrap_err();
/// assert_eq!(error, WindowError::Length { given: Duration::ZERO });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowError {
    /// The length must be above zero and at most 365 days.
    Length {
        /// The given value.
        given: Duration,
    },
    /// The segments must be 1 to [`SlidingWindow::MAX_SEGMENTS`](crate::SlidingWindow::MAX_SEGMENTS).
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
                super::SlidingWindow::MAX_SEGMENTS
            ),
            Self::Entries { given } => write!(f, "{given} entries were given, and at least 1 is allowed"),
        }
    }
}

impl std::error::Error for WindowError {}

/// Writes the verbs of a limiter whose field `inner` is a [`WindowLimiter`], with the docs of those that differ, and
/// its `Limiter`.
macro_rules! window_limiter {
    ($ty:ident, $mark:literal, $(#[$limit:meta])* set_limit, $(#[$length:meta])* set_length) => {
        impl $ty {
            /// A limit that admits everything, and counts nothing.
            pub const UNLIMITED: u64 = $crate::rate::meter::UNLIMITED;

            /// The limit in force.
            pub fn limit(&self) -> u64 {
                self.inner.limit()
            }

            /// The length of the window.
            pub fn length(&self) -> Duration {
                self.inner.settings().length
            }

            $(#[$limit])*
            pub fn set_limit(&self, limit: u64, inherit: Inherit) {
                self.inner.set_limit(limit, inherit);
            }

            $(#[$length])*
            ///
            /// # Errors
            /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
            pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
                self.inner.set_length(length)
            }

            fn status(&self) -> Option<$crate::core::status::State> {
                Some(self.inner.status())
            }
        }

        $crate::rate::meter_limiter::meter_limiter!($ty, $mark, status);

        impl std::fmt::Debug for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.inner.debug(stringify!($ty), f)
            }
        }
    };
}
pub(super) use window_limiter;
