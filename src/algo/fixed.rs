//! A count that starts anew at each boundary, and what is charged to the windows to come.
//!
//! Bookings and debts fill the window that runs, then the next, and so on: each admission lies behind all before it, in
//! one window or in several on end. So a window never holds more than its limit, whatever is cancelled: a place that a
//! cancel leaves empty before the last window stays empty.
//!
//! When the limit or the length changes, those who have booked keep their instants: the windows before the last of them are
//! closed then, and what is charged to later ones starts with that one. See [`change`].

mod change;

use super::meter::Meter;

/// A limit that counts nothing.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// So many windows ahead lies what no window has room for.
const NEVER: u64 = u64::MAX / 2;

/// What an admission remembers: the number of the window in which it ends, how much of it is in that window, how much of it
/// lies on end up to there, and the generation.
type Mark = [u64; 4];

/// A booking that was told an instant.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: u64,
    /// What was taken by then of the window in which that instant lies.
    held: u64,
}

impl Told {
    /// None, as good as one that has begun long ago.
    const NOTHING: Self = Self { at: 0, held: 0 };
}

#[derive(Debug)]
pub(crate) struct Fixed {
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
    booked: Told,
    /// The last before that.
    kept: Told,
    /// The latest instant of which anything counts.
    latest: u64,
    /// Bumped when something was forgiven: what was taken before is not given back.
    generation: u64,
}

impl Fixed {
    /// Empty, at `now`, which is so far `into` a window.
    pub(crate) fn new(now: u64, into: u64, length: u64, limit: u64) -> Self {
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
            booked: Told::NOTHING,
            kept: Told::NOTHING,
            latest: 0,
            generation: 0,
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// What was taken beyond what the window that runs may hold. Windows that are closed count as full.
    pub(crate) fn debt(&self) -> u64 {
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
    pub(crate) fn book(&mut self, n: u64, most: u64) -> Result<(Mark, u64), Option<u64>> {
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
                self.booked = Told { at, held };
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

impl Meter for Fixed {
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
        (self.booked, self.kept) = (Told::NOTHING, Told::NOTHING);
        self.generation += 1;
    }
}
