//! The sliding log: exact in every span, at the price of remembering every admission.

use super::inherit::Inherit;
use super::shell::{RateTicket, Shell, limiter_of_shell};
use super::window::{WindowError, check_length};
use crate::algo::fixed;
use crate::algo::log::{self, Log};
use crate::algo::meter::Meter;
use crate::ask::Demand;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::time::Duration;

const LEG: &str = "sliding_log";

/// Admits at most `limit` in *any* span of the window's length, and never one instant later than that allows.
///
/// It remembers the instant and the weight of each admission until it has left the window: 24 bytes an entry, one for
/// all admissions of one instant. There are at most as many as the limit, and as there are instants of debts up to 65,536. For a
/// large limit that is much memory: 2.3 MiB for 100,000. Where [`max_entries`](Self::max_entries) allows fewer it refuses, with
/// that many in the window, until the oldest leaves: so that it may admit less than the limit, but never more. A
/// [`SlidingWindow`](crate::SlidingWindow) takes a fixed 520 bytes and is up to one segment late.
///
/// A cancel and a [`settle`](crate::Permit::settle) correct the entry, exactly and in any order. Of an entry that a change has
/// forgiven nothing comes back, and what was undercharged counts from now on. A debt is logged as the
/// rest is. An instant earlier than the latest seen counts as that.
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
    shell: Shell<Log>,
    set: Mutex<Set>,
}

/// As it was set.
#[derive(Clone, Copy, Debug)]
struct Set {
    length: Duration,
    most: Option<usize>,
}

impl SlidingLog {
    /// A limit that admits everything, and logs nothing.
    pub const UNLIMITED: u64 = fixed::UNLIMITED;
    /// How many entries it holds at least, unless set otherwise: one for each unit of a larger limit.
    pub const ENTRIES: usize = log::ENTRIES;

    /// At most `limit` in any span of `length`, on the real clock. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        let set = Set {
            length: check_length(length)?,
            most: None,
        };
        Ok(Self::build(limit, set, &Clock::real()))
    }

    /// The same log on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.limit(), *self.set.lock(), clock)
    }

    /// The same log, empty, with room for so many entries.
    ///
    /// # Errors
    /// [`WindowError::Entries`] when that is none.
    pub fn max_entries(self, entries: usize) -> Result<Self, WindowError> {
        if entries == 0 {
            return Err(WindowError::Entries { given: entries });
        }
        let set = Set {
            most: Some(entries),
            ..*self.set.lock()
        };
        Ok(Self::build(self.limit(), set, self.shell.clock()))
    }

    fn build(limit: u64, set: Set, clock: &Clock) -> Self {
        let length = clock.ticks_of(set.length).max(1);
        Self {
            shell: Shell::new(LEG, clock, |now| Log::new(now, length, limit, set.most)),
            set: Mutex::new(set),
        }
    }

    /// The limit in force.
    pub fn limit(&self) -> u64 {
        self.shell.read(Log::limit)
    }

    /// The length of the window.
    pub fn length(&self) -> Duration {
        self.set.lock().length
    }

    /// How many entries it holds now.
    pub fn entries(&self) -> usize {
        self.shell.read(Log::entries)
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
        self.shell.change(|log| {
            let (room, old) = (log.room(), log.limit());
            let counted = [old, limit].map(|limit| (limit != Self::UNLIMITED).then_some(limit.into()));
            let room = self
                .shell
                .inherit(inherit, room, inherit.room(room, old, limit), counted);
            log.set_limit(limit, room);
        });
        self.shell.ring();
    }

    /// Changes the length of the window at once. What has left the shorter window does not count in a longer one.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
    pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let mut set = self.set.lock();
        set.length = check_length(length)?;
        let ticks = self.shell.clock().ticks_of(length).max(1);
        self.shell.change(|log| log.set_length(ticks));
        drop(set);
        self.shell.ring();
        Ok(())
    }

    /// How many more than the limit the window holds, by debts or since the limit was lowered.
    pub fn debt(&self) -> u64 {
        self.shell.read(Log::debt)
    }
}

impl SlidingLog {
    fn status(&self) -> Option<State> {
        Some(State::Rate {
            limit: self.limit(),
            window: self.length(),
            available: self.available(),
            next: self.time_until(1),
        })
    }
}

limiter_of_shell!(SlidingLog, 1, status);

impl fmt::Debug for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlidingLog")
            .field("limit", &self.limit())
            .field("length", &self.length())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
