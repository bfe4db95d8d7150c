//! A count that starts anew at each boundary, and what is charged to the windows to come.
//!
//! Bookings and debts fill the window that runs, then the next, and so on: each admission lies behind all before it, in
//! one window or in several on end. So a window never holds more than its limit, whatever is cancelled: a place that a
//! cancel leaves empty before the last window stays empty.

use super::meter::Meter;

/// A limit that counts nothing.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// So many windows ahead lies what no window has room for.
const NEVER: u64 = u64::MAX / 2;

/// What an admission remembers: the number of the window in which it ends, how much of it is in that window, how much of it
/// lies on end up to there, and the generation.
type Mark = [u64; 4];

#[derive(Debug)]
pub(crate) struct Fixed {
    now: u64,
    /// When the window that runs ends.
    end: u64,
    /// How many windows have started before it.
    number: u64,
    length: u64,
    limit: u64,
    /// What the window that runs holds: its limit at least, when anything is ahead.
    count: u64,
    /// What is charged to those to come.
    ahead: u64,
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
            count: 0,
            ahead: 0,
            generation: 0,
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Changes the length of the window that runs, and of those to come.
    pub(crate) fn set_length(&mut self, length: u64) {
        self.end = self.end.saturating_add(length).saturating_sub(self.length);
        self.length = length;
        self.advance(self.now);
    }

    /// What the window that runs has left; negative when it holds too much, or something is charged to later ones.
    pub(crate) fn room(&self) -> i128 {
        i128::from(self.limit) - i128::from(self.count) - i128::from(self.ahead)
    }

    /// Changes the limit, and leaves so much room. Without a limit nothing is counted.
    pub(crate) fn set_limit(&mut self, limit: u64, room: i128) {
        if limit == UNLIMITED {
            self.limit = limit;
            return self.clear();
        }
        let held = u128::from(self.count) + u128::from(self.ahead);
        let holds = u64::try_from((i128::from(limit) - room).max(0)).unwrap_or(u64::MAX);
        if self.ahead > 0 || u128::from(holds) < held {
            // Forgiven, or dealt out anew over the windows to come.
            self.generation += 1;
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

    /// What was taken beyond what the window that runs may hold.
    pub(crate) fn debt(&self) -> u64 {
        self.count.saturating_sub(self.limit).saturating_add(self.ahead)
    }

    /// Takes `n` for the first windows that have room, at most `most` beyond the one that runs. Returns when the last of
    /// it is due. Fails with the instant at which there will be room for the booking, if there is one.
    pub(crate) fn book(&mut self, n: u64, most: u64) -> Result<(Mark, u64), Option<u64>> {
        let beyond = self.ahead.saturating_add(n.saturating_sub(self.free()));
        if self.limit != UNLIMITED && (beyond > most || (self.limit == 0 && beyond > 0)) {
            // Until so much of what is ahead has moved into a window that runs.
            let over = beyond.saturating_sub(most);
            let possible = self.limit > 0 && n <= self.limit.saturating_add(most);
            return Err(possible.then(|| self.start_of(over.div_ceil(self.limit))));
        }
        let mark = self.take(n);
        let due = match self.tail() {
            (0, _) => self.now,
            (windows, _) => self.start_of(windows),
        };
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
            (None, _) => (0, self.count),
            (Some(_), 0) => (NEVER, self.ahead),
            (Some(last), limit) => (1 + last / limit, last % limit + 1),
        }
    }

    /// The number of the window so many after the one that runs. Numbers wrap around.
    fn number_of(&self, windows: u64) -> u64 {
        self.number.wrapping_add(windows)
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
            self.number = self.number.wrapping_add(windows);
            let passed = (windows - 1).saturating_mul(self.limit);
            self.ahead = self.ahead.saturating_sub(passed);
            self.count = self.ahead.min(self.limit);
            self.ahead -= self.count;
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
            limit => limit.saturating_sub(self.count),
        }
    }

    fn take(&mut self, n: u64) -> Self::Mark {
        if self.limit == UNLIMITED {
            return [u64::MAX; 4];
        }
        let here = n.min(self.free());
        self.count += here;
        self.ahead = self.ahead.saturating_add(n - here);
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

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) {
        let [window, in_last, on_end, generation] = *mark;
        if let Some(more) = actual.checked_sub(charged) {
            *mark = self.take(more);
            if mark[0] == window && mark[3] == generation {
                mark[1] = mark[1].saturating_add(in_last);
                mark[2] = mark[2].saturating_add(on_end);
            }
            return;
        }
        let (windows, held) = self.tail();
        if window == self.number_of(windows) && generation == self.generation {
            let back = (charged - actual).min(in_last).min(held);
            self.remove(back);
            mark[1] -= back;
            mark[2] -= back;
        }
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if self.limit == UNLIMITED || (ahead == 0 && self.fits(n)) {
            return Some(self.now);
        }
        if n > self.limit || self.limit == 0 {
            return None;
        }
        // Where it comes to lie: so many units into the window that runs, which is full when something lies ahead.
        let place = self
            .count
            .min(self.limit)
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
        (self.count, self.ahead) = (0, 0);
        self.generation += 1;
    }
}
