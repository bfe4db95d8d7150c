//! The sliding window: at most so many in any span of its length.

use crate::algo::window::Ring;
use crate::ask::Demand;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::sync::bell::Bell;
use crate::sync::shim::Mutex;
use crate::ticket::Ticket;
use crate::time::{Clock, Instant, Pass};
use std::fmt;
use std::time::Duration;

const LEG: &str = "sliding_window";

/// Admits at most `limit` in *any* span of the window's length, wherever it starts.
///
/// The window is counted in segments (64 unless set otherwise). A segment counts in full until all of it has left the
/// window, so that the limit is never exceeded; in return room comes back late, by at most one segment: 1/64 of the
/// window. A cancel or a settlement restores exactly.
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
    state: Mutex<State>,
    length: Duration,
    segments: usize,
    clock: Clock,
    bell: Bell,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    limit: u64,
    made_with: u64,
}

/// What was counted, and in which segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTicket {
    units: u64,
    segment: u64,
}

impl WindowTicket {
    /// The last `units` of those that were counted, as a reservation of their own.
    pub(crate) fn last(self, units: u64) -> Self {
        let units = units.min(self.units);
        Self { units, ..self }
    }
}

impl Ticket for WindowTicket {
    const WORDS: usize = 2;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[..2].copy_from_slice(&[self.units, self.segment]);
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self {
            units: words[0],
            segment: words[1],
        }
    }
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
        if length.is_zero() || length > Duration::from_secs(365 * 86_400) {
            return Err(WindowError::Length { given: length });
        }
        Ok(Self::build(limit, length, Self::SEGMENTS, &Clock::real()))
    }

    /// The same window on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.limit(), self.length, self.segments, clock)
    }

    /// The same window in so many segments, empty: more are finer and take 8 bytes each.
    ///
    /// # Errors
    /// [`WindowError::Segments`] when there are none, or more than [`MAX_SEGMENTS`](Self::MAX_SEGMENTS).
    pub fn segments(self, segments: usize) -> Result<Self, WindowError> {
        if segments == 0 || segments > Self::MAX_SEGMENTS {
            return Err(WindowError::Segments { given: segments });
        }
        Ok(Self::build(self.limit(), self.length, segments, &self.clock))
    }

    fn build(limit: u64, length: Duration, segments: usize, clock: &Clock) -> Self {
        let ticks = clock.ticks_of(length).div_ceil(segments as u64).max(1);
        Self {
            state: Mutex::new(State {
                ring: Ring::new(segments, ticks, clock.now().ticks()),
                limit,
                made_with: limit,
            }),
            length,
            segments,
            clock: clock.clone(),
            bell: Bell::new(),
        }
    }

    /// The most that any span of the window's length admits.
    pub fn limit(&self) -> u64 {
        self.state.lock().limit
    }

    /// Changes the limit at once. What has been admitted still counts.
    pub fn set_limit(&self, limit: u64) {
        self.state.lock().limit = limit;
        self.bell.ring();
    }

    /// How much could be admitted now. A snapshot.
    pub fn available(&self) -> u64 {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.ring.advance(now.ticks());
        state.limit.saturating_sub(state.ring.total())
    }

    /// Counts `n`, or refuses: the method for a window that stands alone.
    ///
    /// # Errors
    /// `RateExceeded`, with a true `retry_after`; without one when `n` exceeds the limit.
    #[inline]
    pub fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
        self.take(n, self.clock.now()).map(|_| ())
    }

    #[inline(always)]
    fn take(&self, n: u64, now: Instant) -> Result<u64, Refusal<'_>> {
        let mut state = self.state.lock();
        state.ring.advance(now.ticks());
        let total = state.ring.total();
        if total.checked_add(n).is_some_and(|total| total <= state.limit) {
            return Ok(state.ring.take(n));
        }
        let at = state.room_for(n);
        drop(state);
        let wait = at.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
        Err(Refusal::new(Reason::RateExceeded, LEG, n, wait))
    }

    /// Counts `n`, whether there is room or not.
    pub(crate) fn charge(&self, n: u64, now: Instant) {
        let mut state = self.state.lock();
        state.ring.advance(now.ticks());
        let most = u64::MAX - state.ring.total();
        state.ring.take(n.min(most));
    }

    /// Corrects what a ticket counted.
    fn correct(&self, ticket: &WindowTicket, actual: u64) {
        self.state.lock().ring.correct(ticket.segment, ticket.units, actual);
        if actual < ticket.units {
            self.bell.ring();
        }
    }
}

impl State {
    /// When there will be room for `n`; nothing when it exceeds the limit.
    fn room_for(&self, n: u64) -> Option<Instant> {
        let room = self.limit.checked_sub(n)?;
        Some(Instant::from_ticks(self.ring.holds_at_most(room).unwrap_or(0)))
    }
}

impl Limiter for SlidingWindow {
    type Ticket = WindowTicket;

    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<WindowTicket, Refusal<'_>> {
        let units = demand.units();
        let segment = self.take(units, demand.now(&self.clock))?;
        Ok(WindowTicket { units, segment })
    }

    fn cancel(&self, ticket: WindowTicket, _: Pass<'_>) {
        self.correct(&ticket, 0);
    }

    fn settle(&self, ticket: &mut WindowTicket, settlement: Settlement<'_>) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        self.correct(ticket, actual);
        ticket.units = actual;
        1
    }

    #[inline]
    fn finish(&self, _: WindowTicket, _: Outcome, _: Pass<'_>) {}

    #[inline]
    fn forget(&self, _: WindowTicket) {}

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.bell);
        let now = demand.now(&self.clock);
        let mut state = self.state.lock();
        state.ring.advance(now.ticks());
        let units = demand.units();
        if units > state.limit {
            return ReadyAt::on_event(LEG);
        }
        // Those ahead fill this window first; of what does not fit into one, only that much is known.
        let wanted = units.saturating_add(demand.ahead()).min(state.limit);
        match state.room_for(wanted) {
            Some(at) if at > now => ReadyAt::at(LEG, at),
            _ => ReadyAt::NOW,
        }
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    fn is_fresh(&self, now: Pass<'_>) -> bool {
        let mut state = self.state.lock();
        state.ring.advance(now.now(&self.clock).ticks());
        state.ring.total() == 0 && state.limit == state.made_with
    }
}

impl fmt::Debug for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlidingWindow")
            .field("limit", &self.limit())
            .field("length", &self.length)
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
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
        }
    }
}

impl std::error::Error for WindowError {}
