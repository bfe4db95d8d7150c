//! A sliding log: the instant and the weight of every admission that still counts. Exact in every window.

use super::fixed::UNLIMITED;
use super::meter::Meter;
use std::collections::VecDeque;

/// How many entries there may be at least, unless another number is set.
pub(crate) const ENTRIES: usize = 65_536;

/// How many admissions may pass before what has left the window is taken out.
const LEISURE: u64 = 256;

#[derive(Debug)]
pub(crate) struct Log {
    now: u64,
    length: u64,
    limit: u64,
    /// The most entries, if that was set.
    set_most: Option<usize>,
    /// The most entries: one for each unit of the limit, if nothing else was set, and never fewer than would do for a few debts.
    most: usize,
    /// By number, and so by instant.
    entries: VecDeque<Entry>,
    total: u128,
    /// How many entries there have been.
    made: u64,
    /// Entries up to this number are not given back: some of them have been forgiven.
    sealed: u64,
}

/// What was admitted at one instant.
#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    at: u64,
    units: u64,
}

impl Log {
    pub(crate) fn new(now: u64, length: u64, limit: u64, set_most: Option<usize>) -> Self {
        let mut log = Self {
            now,
            length,
            limit,
            set_most,
            most: 0,
            entries: VecDeque::new(),
            total: 0,
            made: 0,
            sealed: 0,
        };
        log.put_limit(limit);
        log
    }

    fn put_limit(&mut self, limit: u64) {
        let all = || usize::try_from(limit).unwrap_or(usize::MAX).max(ENTRIES);
        self.limit = limit;
        self.most = self.set_most.unwrap_or_else(all);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// How many entries there are.
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Changes the length. What has left the old window does not come back.
    pub(crate) fn set_length(&mut self, length: u64) {
        self.length = length;
        self.advance(self.now);
    }

    /// What the window has left; negative when it holds too much.
    pub(crate) fn room(&self) -> i128 {
        i128::from(self.limit) - i128::try_from(self.total).unwrap_or(i128::MAX)
    }

    /// Changes the limit, and leaves so much room. What is forgiven for that are the oldest; what is withheld counts as
    /// admitted now. Without a limit nothing is counted.
    pub(crate) fn set_limit(&mut self, limit: u64, room: i128) {
        if limit == UNLIMITED {
            self.put_limit(limit);
            return self.clear();
        }
        let total = i128::from(limit).saturating_sub(room).max(0) as u128;
        match total.checked_sub(self.total) {
            Some(more) => {
                self.add(u64::try_from(more).unwrap_or(u64::MAX));
            }
            None => self.forgive(self.total - total),
        }
        self.put_limit(limit);
    }

    /// What was taken beyond the limit.
    pub(crate) fn debt(&self) -> u64 {
        let over = self.total.saturating_sub(u128::from(self.limit));
        u64::try_from(over).unwrap_or(u64::MAX)
    }

    fn forgive(&mut self, mut amount: u128) {
        self.sealed = self.made;
        self.total -= amount;
        while let Some(oldest) = self.entries.front_mut() {
            let units = u128::from(oldest.units);
            if units > amount {
                oldest.units -= amount as u64;
                return;
            }
            amount -= units;
            self.entries.pop_front();
        }
    }

    /// True when another admission needs no entry of its own.
    fn joins(&self, entry: &Entry) -> bool {
        entry.at == self.now && entry.number > self.sealed
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= self.most && !self.entries.back().is_some_and(|last| self.joins(last))
    }

    /// Logs `n` now and returns the number of its entry.
    fn add(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        self.total += u128::from(n);
        let (now, full) = (self.now, self.is_full());
        if let Some(last) = self.entries.back().copied()
            && (full || self.joins(&last))
            && let Some(entry) = self.entries.back_mut()
        {
            // Without room for an entry of its own, the last one counts as long as it.
            entry.at = now;
            let sum = entry.units.saturating_add(n);
            self.total -= u128::from(entry.units) + u128::from(n) - u128::from(sum);
            entry.units = sum;
            return entry.number;
        }
        self.push(n)
    }

    /// Another entry, of `n` now.
    #[inline]
    fn push(&mut self, n: u64) -> u64 {
        self.made += 1;
        self.entries.push_back(Entry {
            number: self.made,
            at: self.now,
            units: n,
        });
        self.made
    }

    /// How many of these, which are in order, have left the window.
    fn left(&self, entries: &[Entry]) -> usize {
        entries.partition_point(|entry| self.now.saturating_sub(entry.at) >= self.length)
    }

    /// Takes off what an entry counts, as far as it still does.
    fn subtract(&mut self, number: u64, n: u64) {
        if number <= self.sealed {
            return;
        }
        let Ok(index) = self.entries.binary_search_by_key(&number, |entry| entry.number) else {
            return;
        };
        let units = n.min(self.entries[index].units);
        self.entries[index].units -= units;
        self.total -= u128::from(units);
        if self.entries[index].units == 0 {
            self.entries.remove(index);
        }
    }
}

impl Meter for Log {
    type Mark = [u64; 1];

    fn advance(&mut self, now: u64) {
        let now = if seeded!("log_goes_back") {
            now
        } else {
            self.now.max(now)
        };
        self.now = now;
        let (first, second) = self.entries.as_slices();
        let mut left = self.left(first);
        if left == first.len() {
            left += self.left(second);
        }
        for entry in self.entries.range(..left) {
            self.total -= u128::from(entry.units);
        }
        self.entries.drain(..left);
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn fits(&self, n: u64) -> bool {
        n == 0 || n <= self.free()
    }

    fn free(&self) -> u64 {
        match self.is_full() {
            true => 0,
            false => self.room().max(0) as u64,
        }
    }

    /// As long as all that is logged leaves room, whether it has left the window or not. One time in [`LEISURE`] it is seen
    /// to what has, so that the log stays as short, and none takes long.
    #[inline]
    fn take_at_once(&mut self, n: u64, now: u64) -> Option<Self::Mark> {
        let has_room = self.total + u128::from(n) <= u128::from(self.limit) && self.entries.len() < self.most;
        if n == 0 || !has_room || self.limit == UNLIMITED {
            return None;
        }
        // A stale instant counts as the latest.
        if now <= self.now {
            let last = self.entries.back_mut()?;
            let units = last.units.checked_add(n)?;
            if last.at != self.now || last.number <= self.sealed {
                return None;
            }
            self.total += u128::from(n);
            last.units = units;
            return Some([last.number]);
        }
        if self.made.is_multiple_of(LEISURE) {
            return None;
        }
        self.now = now;
        self.total += u128::from(n);
        Some([self.push(n)])
    }

    fn take(&mut self, n: u64) -> Self::Mark {
        match self.limit {
            UNLIMITED => [0],
            _ => [self.add(n)],
        }
    }

    fn restore(&mut self, mark: &Self::Mark, units: u64) {
        self.subtract(mark[0], units);
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        let number = mark[0];
        let Some(more) = actual.checked_sub(charged) else {
            self.subtract(number, charged - actual);
            return actual;
        };
        let before = self.total;
        if charged == 0 {
            // Nothing is logged of it: it counts from now on.
            *mark = self.take(more);
        } else if let Ok(index) = self.entries.binary_search_by_key(&number, |entry| entry.number) {
            let entry = &mut self.entries[index];
            let units = entry.units.saturating_add(more);
            self.total += u128::from(units - entry.units);
            entry.units = units;
        } else {
            if number <= self.sealed {
                self.take(more); // Of one that was forgiven: from now on, and under no mark.
            }
            return actual;
        }
        match self.limit {
            UNLIMITED => actual,
            // At most `more`.
            _ => charged + (self.total - before) as u64,
        }
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if self.limit == UNLIMITED || (n == 0 && ahead == 0) {
            return Some(self.now);
        }
        // Those ahead fill this window first; of what does not fit into one, only that much is known.
        let room = self.limit.checked_sub(n)?.saturating_sub(ahead);
        let mut at = self.now;
        let leaves = |entry: &Entry| entry.at.saturating_add(self.length);
        if self.is_full()
            && let Some(oldest) = self.entries.front()
        {
            at = leaves(oldest);
        }
        // As much has to leave: up to which entry is looked for from the nearer end, since many may ask, each behind the others.
        let over = self.total.saturating_sub(u128::from(room));
        let mut sum = 0;
        let mut reaches = |entry: &&Entry, most: u128| {
            sum += u128::from(entry.units);
            sum > most
        };
        let last = match over {
            0 => None,
            _ if over <= self.total / 2 => self.entries.iter().find(|entry| reaches(entry, over - 1)),
            _ => self.entries.iter().rev().find(|entry| reaches(entry, room.into())),
        };
        Some(last.map_or(at, |entry| at.max(leaves(entry))))
    }

    fn fresh_at(&self) -> Option<u64> {
        let newest = self.entries.back();
        Some(newest.map_or(self.now, |entry| entry.at.saturating_add(self.length)))
    }

    fn clear(&mut self) {
        self.entries.clear();
        (self.total, self.sealed) = (0, self.made);
    }
}
