//! The fixed window: a count that starts anew at each boundary.
//!
//! A count that starts anew at each boundary, and what is charged to the windows to come.
//!
//! Bookings and debts fill the window that runs, then the next, and so on: each admission lies behind all before it, in
//! one window or in several on end. So a window never holds more than its limit, whatever is cancelled: a place that a
//! cancel leaves empty before the last window stays empty.
//!
//! When the limit or the length changes, those who have booked keep their instants: the windows before the last of them are
//! closed then, and what is charged to later ones starts with that one. See [`change`].
//!
//! Another limit, or another length, while a fixed window runs.
//!
//! Who has booked was told an instant, and starts then, whatever is changed. So what was booked stays where it is: the window
//! in which the latest of these instants lies keeps what it holds, the windows before it are closed, and debts come behind. A
//! rule of inheritance has its say where nothing is booked.

use super::future::FutureReservation;
use super::inherit::Inherit;
use super::meter::{Meter, UNLIMITED};
use super::meter_limiter::{MeterLimiter, RateTicket, meter_limiter};
use super::sliding_window::{WindowError, check_length};
use crate::ask::Demand;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::standing::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, Instant, Pass};
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
    inner: MeterLimiter<FixedMeter>,
    settings: Mutex<Settings>,
}

/// As it was set.
#[derive(Clone, Copy, Debug)]
struct Settings {
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

impl Settings {
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
    pub const UNLIMITED: u64 = UNLIMITED;

    /// At most `limit` per `length`, on the real clock, from now on. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        let set = Settings {
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
        let mut set = *self.settings.lock();
        if let Some(aligned) = &mut set.aligned
            && !clock.is_same(self.inner.clock())
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
        let at = self.inner.clock().now();
        let wall = match wall.duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        };
        let aligned = Some(Aligned { wall, at });
        let set = Settings {
            aligned,
            ..*self.settings.lock()
        };
        Self::build(self.limit(), set, self.inner.clock())
    }

    /// The same window, empty, in which at most `units` can be booked of windows to come.
    #[must_use]
    pub fn max_ahead(self, units: u64) -> Self {
        let set = Settings {
            most_ahead: units,
            ..*self.settings.lock()
        };
        Self::build(self.limit(), set, self.inner.clock())
    }

    fn build(limit: u64, set: Settings, clock: &Clock) -> Self {
        let length = clock.ticks_of(set.length).max(1);
        let into = |now| {
            clock
                .ticks_of(set.since_start(clock, Instant::from_ticks(now)))
                .min(length - 1)
        };
        Self {
            inner: MeterLimiter::new(LEG, clock, |now| FixedMeter::new(now, into(now), length, limit)),
            settings: Mutex::new(set),
        }
    }

    /// The limit in force.
    pub fn limit(&self) -> u64 {
        self.inner.read(FixedMeter::limit)
    }

    /// The length of the windows.
    pub fn length(&self) -> Duration {
        self.settings.lock().length
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
        self.inner.change(|window| {
            let (room, old) = (window.room(), window.limit());
            let counted = [old, limit].map(|limit| (limit != Self::UNLIMITED).then_some(limit.into()));
            let room = self
                .inner
                .inherit(inherit, room, inherit.room(room, old, limit), counted);
            window.set_limit(limit, room);
        });
        self.inner.ring();
    }

    /// Changes the length of the window that runs, which keeps its start, and of all to come. Where a shorter one has begun
    /// since, all that was counted counts in that, if any of it was taken since it began. What is booked [stays](Self#changes).
    /// Where something is charged to windows to come, what was taken before is not given back any more.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days. Nothing is changed then.
    pub fn set_length(&self, length: Duration) -> Result<(), WindowError> {
        let mut set = self.settings.lock();
        set.length = check_length(length)?;
        let ticks = self.inner.clock().ticks_of(length).max(1);
        self.inner.change(|window| window.set_length(ticks));
        drop(set);
        self.inner.ring();
        Ok(())
    }

    /// Takes `n` of the first window that has room for all of them, behind everything booked before: they start together, and so
    /// no window has more than its limit. What is left of the window before stays empty, and comes back with the booking.
    ///
    /// # Errors
    /// `QueueFull` when more than [`max_ahead`](Self::max_ahead) would be booked, what stays empty included, with a true
    /// `retry_after`; `Oversized` when `n` exceeds the limit.
    pub fn book(&self, n: u64) -> Result<FutureReservation<'_, Self>, Refusal<'_>> {
        let most = self.settings.lock().most_ahead;
        let (mark, made, start) = self.inner.book(n, |window| window.book(n, most))?;
        let ticket = RateTicket { units: n, mark };
        Ok(FutureReservation::new(self, ticket, self.inner.clock(), made, start))
    }

    /// How many are charged to the windows to come, or exceed the one that runs.
    pub fn debt(&self) -> u64 {
        self.inner.read(FixedMeter::debt)
    }
}

impl FixedWindow {
    fn standing(&self) -> Option<State> {
        Some(State::Rate {
            limit: self.limit(),
            window: self.length(),
            available: self.available(),
            next: self.time_until(1),
        })
    }
}

meter_limiter!(FixedWindow, 4, standing);

impl fmt::Debug for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedWindow")
            .field("limit", &self.limit())
            .field("length", &self.length())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

/// So many windows ahead lies what no window has room for.
const NEVER: u64 = u64::MAX / 2;

/// What an admission remembers: the number of the window in which it ends, how much of it is in that window, how much of it
/// lies on end up to there, and the generation.
type Mark = [u64; 4];

/// A booking that was told an instant.
#[derive(Clone, Copy, Debug)]
struct BookedStart {
    at: u64,
    /// What was taken by then of the window in which that instant lies.
    held: u64,
}

impl BookedStart {
    /// None, as good as one that has begun long ago.
    const NOTHING: Self = Self { at: 0, held: 0 };
}

#[derive(Debug)]
struct FixedMeter {
    now: u64,
    /// When the window that runs ends.
    end: u64,
    /// How many windows have started before it.
    number: u64,
    length: u64,
    limit: u64,
    /// So many windows, from the one that runs on, admit nothing: what they hold was booked before a change.
    closed: u64,
    /// What any of those holds at most.
    closed_holds: u64,
    /// What the first window that is not closed holds: its limit at least, when anything is ahead.
    count: u64,
    /// What is charged to those after it.
    ahead: u64,
    /// The last booking for a later window, since the last change.
    booked: BookedStart,
    /// The last before that.
    kept: BookedStart,
    /// The latest instant of which anything counts.
    latest: u64,
    /// Bumped when something was forgiven: what was taken before is not given back.
    generation: u64,
}

impl FixedMeter {
    /// Empty, at `now`, which is so far `into` a window.
    fn new(now: u64, into: u64, length: u64, limit: u64) -> Self {
        Self {
            now,
            end: now.saturating_add(length - into),
            number: 0,
            length,
            limit,
            closed: 0,
            closed_holds: 0,
            count: 0,
            ahead: 0,
            booked: BookedStart::NOTHING,
            kept: BookedStart::NOTHING,
            latest: 0,
            generation: 0,
        }
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    /// What was taken beyond what the window that runs may hold. Windows that are closed count as full.
    fn debt(&self) -> u64 {
        match self.closed.checked_sub(1) {
            None => self.count.saturating_sub(self.limit).saturating_add(self.ahead),
            Some(closed) => closed
                .saturating_mul(self.limit)
                .saturating_add(self.count)
                .saturating_add(self.ahead),
        }
    }

    /// What a booking of `n` leaves empty before it: it starts in one window, and lies in that with all of its weight.
    fn left_empty(&self, n: u64) -> u64 {
        match self.limit {
            UNLIMITED => 0,
            limit => Some(limit.saturating_sub(self.tail().1))
                .filter(|rest| n > *rest)
                .unwrap_or(0),
        }
    }

    /// How much is charged to windows to come once `n` are booked as well.
    fn beyond(&self, n: u64) -> u64 {
        let filled = self
            .closed
            .saturating_mul(self.limit)
            .saturating_add(self.count.min(self.limit));
        filled
            .saturating_add(n)
            .saturating_sub(self.limit)
            .saturating_add(self.ahead)
    }

    /// Takes `n` for the first windows that have room, at most `most` beyond the one that runs. Returns when the last of
    /// it is due. Fails with the instant at which there will be room for the booking, if there is one.
    fn book(&mut self, n: u64, most: u64) -> Result<(Mark, u64), Option<u64>> {
        if n > self.limit {
            return Err(None);
        }
        // What is left empty counts as a part of it, and comes back with it.
        let n = n.saturating_add(self.left_empty(n));
        let beyond = self.beyond(n);
        if self.limit != UNLIMITED && beyond > most {
            // Until so much of what is ahead has moved into a window that runs.
            let over = beyond - most;
            return Err(Some(self.start_of(over.div_ceil(self.limit.max(1)))));
        }
        let mark = self.take(n);
        let due = match self.tail() {
            (0, _) => self.now,
            (windows, held) => {
                let at = self.start_of(windows);
                self.booked = BookedStart { at, held };
                at
            }
        };
        self.latest = self.latest.max(due);
        Ok((mark, due))
    }

    /// When the window so many after the one that runs starts, at least one.
    fn start_of(&self, windows: u64) -> u64 {
        self.end
            .saturating_add(windows.saturating_sub(1).saturating_mul(self.length))
    }

    /// The last window that holds anything, counted from the one that runs, and how much it holds.
    fn tail(&self) -> (u64, u64) {
        match (self.ahead.checked_sub(1), self.limit) {
            (None, _) => (self.closed, self.count),
            (Some(_), 0) => (NEVER, self.ahead),
            (Some(last), limit) => (self.closed.saturating_add(1 + last / limit), last % limit + 1),
        }
    }

    /// The number of the window so many after the one that runs. Numbers wrap around.
    fn number_of(&self, windows: u64) -> u64 {
        self.number.wrapping_add(windows)
    }

    /// So many windows have ended.
    fn go_on(&mut self, windows: u64) {
        self.number = self.number.wrapping_add(windows);
        let Some(open) = windows.checked_sub(self.closed).filter(|open| *open > 0) else {
            self.closed -= windows;
            return;
        };
        self.closed = 0;
        let passed = (open - 1).saturating_mul(self.limit);
        self.ahead = self.ahead.saturating_sub(passed);
        self.count = self.ahead.min(self.limit);
        self.ahead -= self.count;
    }

    /// Charges `n` to the first windows that have room.
    fn charge(&mut self, n: u64) {
        let here = n.min(self.limit.saturating_sub(self.count));
        self.count += here;
        self.ahead = self.ahead.saturating_add(n - here);
    }

    fn remove(&mut self, n: u64) {
        let beyond = n.min(self.ahead);
        self.ahead -= beyond;
        self.count = self.count.saturating_sub(n - beyond);
    }
}

impl Meter for FixedMeter {
    type Mark = Mark;

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        if let Some(over) = self.now.checked_sub(self.end)
            && self.end < u64::MAX
        {
            let windows = over / self.length + 1;
            self.end = self.end.saturating_add(windows.saturating_mul(self.length));
            self.go_on(windows);
        }
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn fits(&self, n: u64) -> bool {
        n <= self.free()
    }

    fn free(&self) -> u64 {
        match self.limit {
            UNLIMITED => UNLIMITED,
            _ if self.closed > 0 => 0,
            limit => limit.saturating_sub(self.count),
        }
    }

    fn take(&mut self, n: u64) -> Self::Mark {
        if self.limit == UNLIMITED {
            return [u64::MAX; 4];
        }
        self.latest = self.latest.max(self.now);
        self.charge(n);
        let (windows, held) = self.tail();
        [self.number_of(windows), n.min(held), n, self.generation]
    }

    fn restore(&mut self, mark: &Self::Mark, _: u64) {
        let [window, in_last, on_end, generation] = *mark;
        let (windows, held) = self.tail();
        let window = match seeded!("fixed_fills_holes") {
            true => self.number_of(windows),
            false => window,
        };
        if generation != self.generation || window != self.number_of(windows) {
            return;
        }
        self.remove(in_last.min(held));
        if in_last >= held {
            // It had its last window to itself: what lies before that, on end, is its own too.
            self.remove(on_end - in_last);
        }
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        let [window, in_last, on_end, generation] = *mark;
        let (windows, held) = self.tail();
        let is_last = window == self.number_of(windows) && generation == self.generation;
        // As in `restore`: when it has the last window to itself, all that lies on end is its own.
        let alone = is_last && in_last >= held;
        if let Some(more) = actual.checked_sub(charged) {
            if self.limit == UNLIMITED {
                return actual;
            }
            // What is beyond all windows is not charged.
            let more = more.min(u64::MAX - self.ahead);
            *mark = self.take(more);
            if alone || (mark[0] == window && mark[3] == generation) {
                mark[2] = mark[2].saturating_add(on_end);
                mark[1] = mark[1].saturating_add(in_last).min(self.tail().1);
            }
            return charged + more;
        }
        if is_last {
            let back = (charged - actual).min(if alone { on_end } else { in_last.min(held) });
            self.remove(back);
            let (windows, held) = self.tail();
            let left = on_end - back;
            *mark = match alone {
                true => [self.number_of(windows), left.min(held), left, generation],
                false => [window, in_last - back, left, generation],
            };
        }
        actual
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if self.limit == UNLIMITED || (ahead == 0 && self.fits(n)) {
            return Some(self.now);
        }
        if n > self.limit || self.limit == 0 {
            return None;
        }
        // Where it comes to lie: so many units into the window that runs, which is full when something lies ahead.
        let closed = self.closed.saturating_mul(self.limit);
        let place = (self.count.min(self.limit))
            .saturating_add(closed)
            .saturating_add(self.ahead)
            .saturating_add(ahead);
        // It is not split: what does not fit into the rest of a window waits for the next.
        let split = n > self.limit - place % self.limit;
        match place / self.limit + u64::from(split) {
            0 => Some(self.now),
            windows => Some(self.start_of(windows)),
        }
    }

    fn fresh_at(&self) -> Option<u64> {
        match self.tail() {
            (_, 0) => Some(self.now),
            (NEVER, _) => None,
            (windows, _) => Some(self.start_of(windows.saturating_add(1))),
        }
    }

    fn clear(&mut self) {
        (self.closed, self.count, self.ahead) = (0, 0, 0);
        (self.booked, self.kept) = (BookedStart::NOTHING, BookedStart::NOTHING);
        self.generation += 1;
    }
}

/// The last booking that has not begun.
#[derive(Clone, Copy)]
struct Promise {
    /// In which window it lies, counted from the one that runs.
    window: u64,
    at: u64,
    /// How much of that window was taken, up to the booking.
    held: u64,
    /// What was charged behind it: debts.
    debts: u64,
}

impl FixedMeter {
    /// What the first window that is not closed has left; negative when it holds too much, or something is charged to
    /// later ones.
    fn room(&self) -> i128 {
        i128::from(self.limit) - i128::from(self.count) - i128::from(self.ahead)
    }

    /// In which window an instant to come lies.
    fn window_of(&self, at: u64) -> u64 {
        at.checked_sub(self.end).map_or(0, |since| 1 + since / self.length)
    }

    fn promise(&self) -> Option<Promise> {
        if seeded!("fixed_forgets_bookings") {
            return None;
        }
        let kept = Some(self.kept).filter(|kept| kept.at > self.now);
        let kept = kept.map(|kept| (self.window_of(kept.at), kept.at, kept.held));
        // Since the last change they start where windows do. What has been cancelled may have been the last.
        let booked = Some(self.booked).filter(|booked| booked.at > self.now);
        let booked = booked.map(|booked| (self.window_of(booked.at), booked.held).min(self.tail()));
        let booked = booked.filter(|(window, _)| *window > 0);
        let booked = booked.map(|(window, held)| (window, self.start_of(window), held));
        let (window, at, held) = match (kept, booked) {
            (Some(kept), Some(booked)) if kept.0 == booked.0 => (kept.0, kept.1.max(booked.1), kept.2.max(booked.2)),
            (kept, booked) => kept.max(booked)?,
        };
        let before = match window.checked_sub(self.closed.saturating_add(1)) {
            None => 0,
            Some(full) => full.saturating_mul(self.limit).saturating_add(self.count),
        };
        let debts = match window {
            0 => self.ahead,
            _ => (self.count.saturating_add(self.ahead)).saturating_sub(before.saturating_add(held)),
        };
        Some(Promise {
            window,
            at,
            held,
            debts,
        })
    }

    /// What any window holds at most that was booked.
    fn most_held(&self) -> u64 {
        let closed = if self.closed > 0 { self.closed_holds } else { 0 };
        closed.max(self.limit).max(self.count)
    }

    /// Closes the windows before the last that was booked, which lies so many after the one that runs. Debts come behind.
    fn keep(&mut self, windows: u64, told: BookedStart, debts: u64) {
        self.closed = windows;
        (self.kept, self.booked) = (told, BookedStart::NOTHING);
        (self.count, self.ahead) = (told.held, 0);
        self.charge(debts);
    }

    /// Changes the limit, and leaves so much room where nothing is booked. Without a limit nothing is counted.
    fn set_limit(&mut self, limit: u64, room: i128) {
        if limit == UNLIMITED {
            self.limit = limit;
            return self.clear();
        }
        let held = u128::from(self.count) + u128::from(self.ahead);
        let mut holds = u64::try_from((i128::from(limit) - room).max(0)).unwrap_or(u64::MAX);
        let promise = self.promise();
        if self.ahead > 0 || u128::from(holds) < held || promise.is_some() {
            // Forgiven, or dealt out anew over the windows to come.
            self.generation += 1;
        }
        if let Some(Promise {
            window,
            at,
            held,
            debts,
        }) = promise
        {
            if window > 0 {
                self.closed_holds = self.most_held();
                self.limit = limit;
                return self.keep(window, BookedStart { at, held }, if holds == 0 { 0 } else { debts });
            }
            holds = holds.max(held);
        }
        if self.ahead == 0 {
            // An admission that is more than the new limit stays in its own window.
            self.count = holds;
        } else {
            self.count = holds.min(limit);
            self.ahead = holds - self.count;
        }
        self.limit = limit;
    }

    /// Changes the length of the window that runs, which keeps its start, and of those to come.
    fn set_length(&mut self, length: u64) {
        let (before, promise) = (self.length, self.promise());
        let exact = self.closed == 0 && self.kept.at <= self.now;
        // What has come into the window that runs by a change, and has not begun.
        let pending = match promise {
            Some(promise) if promise.window > 0 && !exact => {
                if self.closed > 0 {
                    self.most_held()
                } else {
                    self.kept.held
                }
            }
            _ => 0,
        };
        // It may have started before the clock did.
        let old_start = i128::from(self.end) - i128::from(before);
        let windows = |from: i128, to: i128, length: u64| (to - from).max(0) / i128::from(length);
        let passed = windows(old_start, self.now.into(), length);
        let start = old_start + passed * i128::from(length);
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.length = length;
        self.end = u64::try_from(start + i128::from(length)).unwrap_or(u64::MAX);
        if self.ahead > 0 || promise.is_some() {
            self.generation += 1;
        }
        let Some(Promise {
            window,
            at,
            held,
            debts,
        }) = promise
        else {
            // Where a shorter window has begun since, what was taken in it counts in it; nobody knows how much that is.
            match i128::from(self.latest) >= start {
                true => self.number = self.number.wrapping_add(passed),
                false => self.go_on(passed),
            }
            return;
        };
        self.number = self.number.wrapping_add(passed);
        let most = self.most_held();
        let here = if self.closed == 0 { self.count } else { most };
        let ahead = windows(start, at.into(), length);
        let begins = start + ahead * i128::from(length);
        // Windows that were booked before the last, of which something starts in the same one now.
        let first = windows(old_start, begins, before);
        let at_its_start = old_start + first * i128::from(before) == begins;
        let first = u64::try_from(first)
            .unwrap_or(u64::MAX)
            .saturating_add(u64::from(exact && !at_its_start));
        let joined = window.saturating_sub(first.max(1));
        let pending = if first == 0 { pending } else { 0 };
        let held = held.saturating_add(joined.saturating_mul(most)).saturating_add(pending);
        self.closed_holds = most.saturating_mul(length / before + 1).saturating_add(here);
        let told = BookedStart { at, held };
        match u64::try_from(ahead).unwrap_or(u64::MAX) {
            0 if window == 0 => self.kept = told,
            0 => {
                self.keep(0, told, 0);
                self.count = self.count.saturating_add(here);
                self.charge(debts);
            }
            ahead => self.keep(ahead, told, debts),
        }
    }
}
