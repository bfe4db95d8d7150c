//! The fixed window: a count that starts anew at each boundary.
//!
//! # The meter
//! Bookings and debts fill the current window, then the next, and so on. Each admission lies behind all before it, in
//! one window or in several consecutive ones. So a window never holds more than its limit, whichever are cancelled: a
//! gap that a cancel leaves before the last window stays empty.
//!
//! # Changes of the limit or the length
//! A booking keeps its promised instant, whatever is changed. So the booked units stay in place: the window with the
//! latest of these instants keeps its units, the windows before it are closed, and debts come behind. Units are kept by
//! instants, so a further change counts those that lie in its windows. A rule of inheritance applies only where nothing is
//! booked.

use super::future::FutureReservation;
use super::inherit::Inherit;
use super::meter::{Meter, UNLIMITED};
use super::meter_limiter::RateTicket;
use super::window_limiter::{self, LimitedMeter, WindowError, WindowLimiter, WindowedMeter, window_limiter};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::time::{Clock, ClockReading, Instant, nanos_since_1970};
use std::time::{Duration, SystemTime};

const LEG: &str = "fixed_window";

/// Admits at most `limit` per window, and starts to count anew at each boundary: the form in which most quotas are
/// billed.
///
/// Windows follow each other without a gap. The first starts when the limiter is made, or [`aligned`](Self::aligned) to
/// the wall clock. (It does not start at the first use: that may be cancelled, and would leave its boundary behind.)
///
/// **Over-admission**: up to twice the limit passes within one window's length across a boundary: at 100 per minute,
/// 100 at 0:59 and 100 at 1:00. If that is too much, use a [`SlidingWindow`](crate::SlidingWindow) or a
/// [`SlidingLog`](crate::SlidingLog).
///
/// [`book`](Self::book) takes units of later windows, and so does a debt: units that a window cannot hold are charged
/// to the next ones.
///
/// # Giving back
/// A cancel is exact, in any order, as long as its window runs; later there is nothing left to give back. A cancel
/// before a window that has since been booked, or charged with a debt, gives nothing back. Its gap stays empty, so that
/// no window ever holds more than its limit. A [`settle`](crate::Permit::settle) gives back in the same way; an
/// undercharge counts from now on.
///
/// # Changes
/// A [booking](Self::book) keeps its promised instant at any new limit and length, and counts in the window in which
/// the instant lies. Until the last of these windows starts nothing else is admitted. That window has room for the rest
/// of the limit then in force. It may hold more than its limit, if the limit was lowered, or a longer window has
/// several bookings; the excess is not charged to later ones. Only [`reset`](Self::reset), and a limit of
/// [`UNLIMITED`](Self::UNLIMITED), forget bookings: they then start beside new admissions.
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
    inner: WindowLimiter<FixedMeter>,
}

/// The settings beside the limit and the length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) most_ahead: u64,
    pub(super) aligned: Option<Aligned>,
}

pub(super) type Settings = window_limiter::Settings<Own>;

/// The wall clock at an instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aligned {
    /// Nanoseconds since 1970.
    pub(super) wall: i128,
    pub(super) at: Instant,
}

impl Settings {
    /// How many ticks into a window it is at `now`.
    fn since_start(&self, clock: &Clock, now: Instant) -> u64 {
        let Some(Aligned { wall, at }) = self.own.aligned else {
            return 0;
        };
        let wall = wall + clock.between(at, now).as_nanos() as i128;
        // Below the length, which is at most 365 days.
        let since = wall.rem_euclid(self.length.as_nanos() as i128) as u64;
        clock.ticks_of(Duration::from_nanos(since)).min(self.ticks(clock) - 1)
    }
}

impl FixedWindow {
    /// At most `limit` per `length`, on the real clock, from now on. A limit of zero admits nothing.
    ///
    /// # Errors
    /// [`WindowError::Length`] when `length` is zero or above 365 days.
    pub fn new(limit: u64, length: Duration) -> Result<Self, WindowError> {
        let own = Own {
            most_ahead: u64::MAX,
            aligned: None,
        };
        let inner = WindowLimiter::new(LEG, limit, length, own)?;
        Ok(Self { inner })
    }

    /// The same window on `clock`, empty. If it is [`aligned`](Self::aligned), the same clock keeps its boundaries;
    /// another clock takes `wall` as the wall time at this instant.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let inner = self.inner.on(clock, |own| {
            if let Some(aligned) = &mut own.aligned {
                if !clock.is_same(self.inner.clock()) {
                    aligned.at = clock.now();
                }
            }
        });
        Self { inner }
    }

    /// The same window, empty, with boundaries aligned to the wall clock, which shows `wall` now. Windows of a minute
    /// start with each full minute, windows of a day at midnight, UTC.
    ///
    /// The wall clock is not read again. When it is adjusted, the boundaries stay where they were.
    #[must_use]
    pub fn aligned(self, wall: SystemTime) -> Self {
        let at = self.inner.clock().now();
        let wall = nanos_since_1970(wall);
        let inner = self.inner.with(|own| own.aligned = Some(Aligned { wall, at }));
        Self { inner }
    }

    /// The same window, empty, in which at most `units` of later windows can be booked.
    ///
    /// ```
    /// # use tollgate::{FixedWindow, Inherit, ManualClock};
    /// # use std::time::{Duration, SystemTime};
    /// let (clock, minute) = (ManualClock::new(), Duration::from_secs(60));
    /// // At most the units of two windows are booked ahead.
    /// let window = FixedWindow::new(10, minute)?.on(&clock).aligned(SystemTime::UNIX_EPOCH).max_ahead(20);
    /// assert_eq!(window.acquire_up_to(15), 10);
    /// let booking = window.book(4)?;
    /// assert!(booking.wait() > Duration::ZERO && window.time_until(1).is_some());
    /// drop(booking);
    /// window.force_acquire(5);
    /// assert_eq!(window.debt(), 5);
    /// window.set_limit(20, Inherit::Reset);
    /// window.set_length(Duration::from_secs(1))?;
    /// window.reset();
    /// assert_eq!((window.limit(), window.available()), (20, 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_ahead(self, units: u64) -> Self {
        let inner = self.inner.with(|own| own.most_ahead = units);
        Self { inner }
    }

    /// Takes `n` of the first window that has room for all of them, behind everything booked before. They start
    /// together, so no window has more than its limit. The rest of the window before stays empty, and comes back with
    /// the booking.
    ///
    /// # Errors
    /// `QueueFull` if more than [`max_ahead`](Self::max_ahead) would be booked, with the units that stay empty, and a
    /// true `retry_after`. `Oversized` if `n` exceeds the limit.
    pub fn book(&self, n: u64) -> Result<FutureReservation<'_, Self>, Refusal<'_>> {
        let most = self.inner.settings().own.most_ahead;
        let (mark, made, start) = self.inner.book(n, |window| window.book(n, most))?;
        let ticket = RateTicket { units: n, mark };
        Ok(FutureReservation::new(self, ticket, self.inner.clock(), made, start))
    }

    /// How many units are charged to later windows, or exceed the current one.
    pub fn debt(&self) -> u64 {
        self.inner.read(FixedMeter::debt)
    }
}

window_limiter! {
    FixedWindow, 4,
    /// Changes the limit at once; `inherit` is the rule for the room that is left, and for debts. With
    /// [`Inherit::Additive`] exactly the admitted units still count. Bookings [stay](Self#changes) by every rule. If
    /// the change makes more room than that, or later windows are charged, earlier takes are not given back any more.
    set_limit,
    /// Changes the length of the current window, which keeps its start, and of all later ones. If a shorter window has
    /// begun since, all units count in it, if any of them was taken since it began. Bookings [stay](Self#changes). If
    /// later windows are charged, earlier takes are not given back any more.
    set_length
}

/// A window this far ahead stands for never.
const NEVER: u64 = u64::MAX / 2;

/// An admission's mark: the number of its last window, its units in that window, its units in consecutive windows up to there, and
/// the generation. If nothing can be booked, the last window is that of the take.
pub(super) type Mark = [u64; 4];

/// A booking's promised instant.
#[derive(Clone, Copy, Debug)]
struct BookedStart {
    at: u64,
    /// The units taken by then of the window of that instant.
    held: u64,
}

impl BookedStart {
    /// No booking: as one that has begun long ago.
    const NOTHING: Self = Self { at: 0, held: 0 };
}

/// Equal units at each of several instants.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    /// The time from each instant to the next.
    step: u64,
    instants: u64,
    /// At each instant.
    units: u64,
}

impl Run {
    fn last(&self) -> u64 {
        self.first
            .saturating_add(self.instants.saturating_sub(1).saturating_mul(self.step))
    }

    /// The same without the instants before `from`.
    fn since(self, from: u64) -> Self {
        let over = from.saturating_sub(self.first).div_ceil(self.step).min(self.instants);
        Self {
            first: self.first.saturating_add(over.saturating_mul(self.step)),
            instants: self.instants - over,
            ..self
        }
    }

    fn sum(&self) -> u64 {
        self.instants.saturating_mul(self.units)
    }
}

/// Units by the instants at which they start, in no order: what was booked before a change, and what the window held that
/// ran then.
#[derive(Debug, Default)]
struct Kept(Vec<Run>);

impl Kept {
    /// The runs beyond this number count together, at the last of their instants.
    const MOST: usize = 32;

    fn last(&self) -> u64 {
        self.0.iter().map(Run::last).max().unwrap_or(0)
    }

    /// The units that start at `from` or later.
    fn since(&self, from: u64) -> u64 {
        let sums = self.0.iter().map(|run| run.since(from).sum());
        sums.fold(0, u64::saturating_add)
    }

    fn drop_before(&mut self, from: u64) {
        self.0.iter_mut().for_each(|run| *run = run.since(from));
        self.0.retain(|run| run.instants > 0);
    }

    fn push(&mut self, at: u64, units: u64) {
        self.push_run(Run {
            first: at,
            step: 1,
            instants: 1,
            units,
        });
    }

    fn push_run(&mut self, run: Run) {
        if run.sum() == 0 {
            return;
        }
        self.0.push(run);
        if self.0.len() > Self::MOST {
            self.0.sort_unstable_by_key(|run| std::cmp::Reverse(run.last()));
            if let (Some(one), Some(other)) = (self.0.pop(), self.0.pop()) {
                self.push(other.last(), one.sum().saturating_add(other.sum()));
            }
        }
    }
}

/// Where one window ends and the next begins.
pub(super) trait Borders {
    /// True if later windows can be booked. What a cancel leaves before a booking stays empty.
    const BOOKS: bool;

    /// The first instant at which [`advance`](Self::advance) may change anything.
    fn due(&self) -> u64;

    /// Lets time pass until `now`, which is due. Returns the number of windows that have ended.
    fn advance(&mut self, now: u64) -> u64;

    /// True, once, if a border has come earlier than it was told. It is [due](Self::due) until then.
    #[inline(always)]
    fn take_early(&mut self) -> bool {
        false
    }

    /// The start of the window `windows` after the current one, at least one.
    fn start_of(&self, windows: u64) -> u64;

    /// The window of a later instant, counted from the current one.
    fn window_of(&self, at: u64) -> u64;
}

/// Windows of one length.
#[derive(Debug)]
pub(super) struct Even {
    /// When the current window ends.
    pub(super) end: u64,
    pub(super) length: u64,
}

impl Borders for Even {
    const BOOKS: bool = true;

    #[inline(always)]
    fn due(&self) -> u64 {
        self.end
    }

    fn advance(&mut self, now: u64) -> u64 {
        if self.end == u64::MAX {
            return 0;
        }
        let windows = (now - self.end) / self.length + 1;
        self.end = self.start_of(1 + windows);
        windows
    }

    fn start_of(&self, windows: u64) -> u64 {
        self.end
            .saturating_add(windows.saturating_sub(1).saturating_mul(self.length))
    }

    fn window_of(&self, at: u64) -> u64 {
        at.checked_sub(self.end).map_or(0, |since| 1 + since / self.length)
    }
}

#[derive(Debug)]
pub(super) struct FixedMeter<B = Even> {
    now: u64,
    pub(super) borders: B,
    /// The number of the current window.
    number: u64,
    limit: u64,
    /// This many windows, from the current one on, admit nothing: their units were booked before a change.
    closed: u64,
    /// The units of the first open window: its limit at least, if anything is ahead.
    count: u64,
    /// The units charged to the windows after it.
    ahead: u64,
    /// The last booking for a later window, since the last change.
    booked: BookedStart,
    /// What was booked before the latest change.
    kept: Kept,
    /// The latest instant of a take that counts.
    latest: u64,
    /// Incremented when units are forgiven: earlier takes are not refunded.
    generation: u64,
}

impl<B: Borders> FixedMeter<B> {
    /// Empty, at `now`.
    pub(super) fn new(now: u64, borders: B, limit: u64) -> Self {
        Self {
            now,
            borders,
            number: 0,
            limit,
            closed: 0,
            count: 0,
            ahead: 0,
            booked: BookedStart::NOTHING,
            kept: Kept::default(),
            latest: 0,
            generation: 0,
        }
    }

    /// The units beyond the current window's limit. Closed windows count as full.
    pub(super) fn debt(&self) -> u64 {
        match self.closed.checked_sub(1) {
            None => self.count.saturating_sub(self.limit).saturating_add(self.ahead),
            Some(closed) => closed
                .saturating_mul(self.limit)
                .saturating_add(self.count)
                .saturating_add(self.ahead),
        }
    }

    /// The units that a booking of `n` leaves empty before it: all of its weight lies in one window.
    fn left_empty(&self, n: u64) -> u64 {
        match self.limit {
            UNLIMITED => 0,
            limit => Some(limit.saturating_sub(self.tail().1))
                .filter(|rest| n > *rest)
                .unwrap_or(0),
        }
    }

    /// The units charged to later windows after a booking of `n`.
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

    /// Takes `n` for the first windows that have room, at most `most` beyond the current one. Returns the instant at
    /// which the last of them is due. Fails with the instant at which there will be room for the booking, if there is
    /// one.
    pub(super) fn book(&mut self, n: u64, most: u64) -> Result<(Mark, u64), Option<u64>> {
        if n > self.limit {
            return Err(None);
        }
        // The units left empty count as a part of it, and come back with it.
        let n = n.saturating_add(self.left_empty(n));
        let beyond = self.beyond(n);
        if self.limit != UNLIMITED && beyond > most {
            // Until enough of the units ahead have moved into the current window.
            let over = beyond - most;
            return Err(Some(self.borders.start_of(over.div_ceil(self.limit.max(1)))));
        }
        let mark = self.take(n);
        let due = match self.tail() {
            (0, _) => self.now,
            (windows, held) => {
                let at = self.borders.start_of(windows);
                self.booked = BookedStart { at, held };
                at
            }
        };
        self.latest = self.latest.max(due);
        Ok((mark, due))
    }

    /// The last window with units, counted from the current one, and its units.
    fn tail(&self) -> (u64, u64) {
        match (self.ahead.checked_sub(1), self.limit) {
            (None, _) => (self.closed, self.count),
            (Some(_), 0) => (NEVER, self.ahead),
            (Some(last), limit) => (self.closed.saturating_add(1 + last / limit), last % limit + 1),
        }
    }

    /// The window whose takes are given back, counted from the current one, and its units. If nothing can be booked it is
    /// the current one, with all that is charged to later ones.
    fn refundable(&self) -> (u64, u64) {
        match B::BOOKS {
            true => self.tail(),
            false => (0, self.count.saturating_add(self.ahead)),
        }
    }

    /// The number of the window `windows` after the current one. Numbers wrap around.
    fn number_of(&self, windows: u64) -> u64 {
        self.number.wrapping_add(windows)
    }

    /// Lets `windows` windows end.
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

impl<B: Borders> Meter for FixedMeter<B> {
    type Mark = Mark;

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        if self.now >= self.borders.due() {
            let windows = self.borders.advance(self.now);
            self.go_on(windows);
        }
    }

    #[inline(always)]
    fn catch_up(&mut self, now: u64) -> bool {
        let due = self.now.max(now) >= self.borders.due();
        self.advance(now);
        due && self.borders.take_early()
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn fits(&self, n: u64) -> bool {
        n <= self.free()
    }

    fn free(&self) -> u64 {
        match self.closed {
            // Without a limit nothing is counted.
            0 => self.limit.saturating_sub(self.count),
            _ => 0,
        }
    }

    fn take(&mut self, n: u64) -> Self::Mark {
        if self.limit == UNLIMITED {
            return [u64::MAX; 4];
        }
        self.latest = self.latest.max(self.now);
        self.charge(n);
        let (windows, held) = self.refundable();
        [self.number_of(windows), n.min(held), n, self.generation]
    }

    fn restore(&mut self, mark: &Self::Mark, _: u64) {
        let [window, in_last, on_end, generation] = *mark;
        let (windows, held) = self.refundable();
        if generation != self.generation || window != self.number_of(windows) {
            return;
        }
        self.remove(in_last.min(held));
        if in_last >= held {
            // It was alone in its last window: its units before that, in consecutive windows, are its own too.
            self.remove(on_end - in_last);
        }
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        let [window, in_last, on_end, generation] = *mark;
        let (windows, held) = self.refundable();
        let is_last = window == self.number_of(windows) && generation == self.generation;
        // As in `restore`: if it is alone in its last window, all its consecutive units are its own.
        let alone = is_last && in_last >= held;
        if let Some(more) = actual.checked_sub(charged) {
            if self.limit == UNLIMITED {
                return actual;
            }
            // Units beyond all windows are not charged.
            let more = more.min(u64::MAX - self.ahead);
            *mark = self.take(more);
            if alone || (mark[0] == window && mark[3] == generation) {
                mark[2] = mark[2].saturating_add(on_end);
                mark[1] = mark[1].saturating_add(in_last).min(self.refundable().1);
            }
            return charged + more;
        }
        if is_last {
            let back = (charged - actual).min(if alone { on_end } else { in_last.min(held) });
            self.remove(back);
            let (windows, held) = self.refundable();
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
        // Its place: the units before it, from the start of the current window, which is full if anything lies ahead.
        let closed = self.closed.saturating_mul(self.limit);
        let place = (self.count.min(self.limit))
            .saturating_add(closed)
            .saturating_add(self.ahead)
            .saturating_add(ahead);
        // It is not split: if it does not fit into the rest of a window, it waits for the next.
        let split = n > self.limit - place % self.limit;
        match place / self.limit + u64::from(split) {
            0 => Some(self.now),
            windows => Some(self.borders.start_of(windows)),
        }
    }

    fn fresh_at(&self) -> Option<u64> {
        match self.tail() {
            (_, 0) => Some(self.now),
            (NEVER, _) => None,
            (windows, _) => Some(self.borders.start_of(windows.saturating_add(1))),
        }
    }

    fn clear(&mut self) {
        (self.closed, self.count, self.ahead) = (0, 0, 0);
        self.booked = BookedStart::NOTHING;
        self.kept.0.clear();
        self.generation += 1;
    }
}

/// The last booking that has not begun.
#[derive(Clone, Copy)]
struct Promise {
    /// Its window, counted from the current one.
    window: u64,
    at: u64,
    /// The units of that window up to the booking.
    held: u64,
    /// The units charged behind it: debts.
    debts: u64,
}

impl<B: Borders> FixedMeter<B> {
    fn promise(&self) -> Option<Promise> {
        let kept = Some(self.kept.last()).filter(|at| *at > self.now);
        let kept = kept.map(|at| {
            let window = self.borders.window_of(at);
            (window, at, self.kept.since(self.opens(window)))
        });
        // Since the last change bookings start where windows do. The cancelled one may have been the last.
        let booked = Some(self.booked).filter(|booked| booked.at > self.now);
        let booked = booked.map(|booked| (self.borders.window_of(booked.at), booked.held).min(self.tail()));
        let booked = booked.filter(|(window, _)| *window > 0);
        let booked = booked.map(|(window, held)| (window, self.borders.start_of(window), held));
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

    /// The first instant, of those to come, in the window `windows` after the current one.
    fn opens(&self, windows: u64) -> u64 {
        match windows {
            0 => self.now.saturating_add(1),
            _ => self.borders.start_of(windows),
        }
    }

    /// Keeps what is booked, and what the current window holds, by instants, before a change.
    fn keep(&mut self, promise: &Promise) {
        let Promise { window, at, held, .. } = *promise;
        let opens = self.opens(self.closed);
        let kept = self.kept.since(opens);
        match self.closed {
            0 => {
                self.kept.drop_before(opens);
                self.kept.push(self.now, self.count.saturating_sub(kept));
            }
            closed => {
                let count = if window == closed { held } else { self.count };
                self.kept.push(opens, count.saturating_sub(kept));
            }
        }
        if let Some(full) = window.checked_sub(self.closed.saturating_add(1)) {
            let first = self.borders.start_of(self.closed.saturating_add(1));
            let step = self.borders.start_of(self.closed.saturating_add(2)) - first;
            self.kept.push_run(Run {
                first,
                step: step.max(1),
                instants: full,
                units: self.limit,
            });
            self.kept.push(at, held);
        }
    }

    /// Closes `windows` windows. The next holds what is kept since `start`. Debts come behind.
    fn close(&mut self, windows: u64, start: u64, debts: u64) {
        self.booked = BookedStart::NOTHING;
        (self.closed, self.count, self.ahead) = (windows, self.kept.since(start), 0);
        self.charge(debts);
    }
}

impl<B: Borders> LimitedMeter for FixedMeter<B> {
    fn limit(&self) -> u64 {
        self.limit
    }

    /// The room of the first open window; negative if it holds too much, or later ones are charged.
    fn room(&self) -> i128 {
        i128::from(self.limit) - i128::from(self.count) - i128::from(self.ahead)
    }

    /// Leaves `room` if nothing is booked.
    fn set_limit(&mut self, limit: u64, room: i128) {
        if limit == UNLIMITED {
            self.limit = limit;
            return self.clear();
        }
        let held = u128::from(self.count) + u128::from(self.ahead);
        let mut holds = u64::try_from((i128::from(limit) - room).max(0)).unwrap_or(u64::MAX);
        let promise = self.promise();
        if self.ahead > 0 || u128::from(holds) < held || promise.is_some() {
            // Forgiven, or distributed anew over later windows.
            self.generation += 1;
        }
        if let Some(promise) = promise {
            let Promise {
                window, held, debts, ..
            } = promise;
            if window > 0 {
                self.keep(&promise);
                self.limit = limit;
                return self.close(window, self.opens(window), if holds == 0 { 0 } else { debts });
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
}

impl WindowedMeter for FixedMeter {
    type Own = Own;

    fn start(now: u64, limit: u64, set: &Settings, clock: &Clock) -> Self {
        let into = set.since_start(clock, Instant::from_ticks(now));
        let length = set.ticks(clock);
        let end = now.saturating_add(length - into);
        Self::new(now, Even { end, length }, limit)
    }

    /// Changes the length of the current window, which keeps its start, and of later ones.
    fn set_length(&mut self, set: &Settings, clock: &Clock) {
        let length = set.ticks(clock);
        let (before, promise) = (self.borders.length, self.promise());
        if let Some(promise) = &promise {
            self.keep(promise);
        }
        // The window may have started before the clock did.
        let old_start = i128::from(self.borders.end) - i128::from(before);
        let windows = |from: i128, to: i128, length: u64| (to - from).max(0) / i128::from(length);
        let passed = windows(old_start, self.now.into(), length);
        let start = old_start + passed * i128::from(length);
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        let end = u64::try_from(start + i128::from(length)).unwrap_or(u64::MAX);
        self.borders = Even { end, length };
        if self.ahead > 0 || promise.is_some() {
            self.generation += 1;
        }
        let Some(Promise { at, debts, .. }) = promise else {
            // If a shorter window has begun since, its own units count in it; they cannot be told from the others.
            match i128::from(self.latest) >= start {
                true => self.number = self.number.wrapping_add(passed),
                false => self.go_on(passed),
            }
            return;
        };
        self.number = self.number.wrapping_add(passed);
        let ahead = windows(start, at.into(), length);
        let begins = u64::try_from((start + ahead * i128::from(length)).max(0)).unwrap_or(u64::MAX);
        self.kept.drop_before(u64::try_from(start.max(0)).unwrap_or(u64::MAX));
        self.close(u64::try_from(ahead).unwrap_or(u64::MAX), begins, debts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::holds;

    /// Given runs in any order, and instants that pass, then what is kept is a list of units by instants.
    #[test]
    fn kept_units_are_a_list_by_instants() {
        holds([1, 2], |inputs| {
            let (mut kept, mut list) = (Kept::default(), Vec::new());
            while inputs.goes_on() {
                let run = Run {
                    first: inputs.number(50, 3),
                    step: 1 + inputs.number(7, 1),
                    instants: inputs.number(6, 2),
                    units: inputs.number(9, 1),
                };
                kept.push_run(run);
                list.extend((0..run.instants).map(|at| (run.first + at * run.step, run.units)));
                list.retain(|(_, units)| *units > 0);
                let (from, passed) = (inputs.number(60, 3), inputs.number(60, 3));
                kept.drop_before(passed);
                list.retain(|(at, _)| *at >= passed);
                let later = list.iter().filter(|(at, _)| *at >= from);
                assert_eq!(kept.since(from), later.map(|(_, units)| units).sum());
                assert_eq!(kept.last(), list.iter().map(|(at, _)| *at).max().unwrap_or(0));
            }
        });
    }

    #[test]
    fn the_earliest_of_too_many_runs_count_later_and_none_is_lost() {
        let mut kept = Kept::default();
        (0..100).for_each(|at| kept.push(at, 1));
        assert_eq!((kept.0.len(), kept.last()), (Kept::MOST, 99));
        // All but the last 31 count at the instant before these.
        let together = 100 - Kept::MOST as u64;
        for from in 0..=100 {
            let since = if from <= together { 100 } else { 100 - from };
            assert_eq!(kept.since(from), since, "since {from}");
        }
    }
}
