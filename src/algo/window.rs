//! A sliding window in segments: how much was admitted in the last so many, and when room comes back.
//!
//! Admissions are counted per segment. A segment counts in full until even its last instant lies a whole window back,
//! so no window of that length ever holds more than the limit; room comes back at most one segment late.

use super::fixed::UNLIMITED;
use super::meter::Meter;

/// The counts of the current segment and of the `segments` before it.
#[derive(Debug)]
pub(crate) struct Ring {
    counts: Box<[u64]>,
    /// Where the current segment's count is.
    current: usize,
    /// How many segments there have been.
    number: u64,
    /// Up to this one they cannot be corrected any more.
    sealed: u64,
    /// Ticks per segment.
    length: u64,
    /// When the current segment ends, in ticks.
    end: u64,
    total: u64,
}

impl Ring {
    /// A ring for a window of `segments` segments of `length` ticks, the first of which starts at `start`.
    pub(crate) fn new(segments: usize, length: u64, start: u64) -> Self {
        Self {
            counts: vec![0; segments + 1].into(),
            current: 0,
            // Beyond the age at which a segment counts: zero is the number of none.
            number: segments as u64 + 1,
            sealed: 0,
            length,
            end: start.saturating_add(length),
            total: 0,
        }
    }

    fn segments(&self) -> u64 {
        self.counts.len() as u64 - 1
    }

    /// Lets time pass until `now`. An earlier instant than the latest changes nothing.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64) {
        if now >= self.end {
            self.advance_slow(now);
        }
    }

    #[cold]
    fn advance_slow(&mut self, now: u64) {
        if self.end == u64::MAX {
            // The end of time: nothing leaves any more.
            return;
        }
        let steps = (now - self.end) / self.length + 1;
        self.number = self.number.wrapping_add(steps);
        self.end = self.end.saturating_add(steps.saturating_mul(self.length));
        if steps > self.segments() {
            self.counts.fill(0);
            self.total = 0;
            return;
        }
        for _ in 0..steps {
            self.current = (self.current + 1) % self.counts.len();
            self.total -= std::mem::take(&mut self.counts[self.current]);
        }
    }

    /// What the window holds.
    #[inline]
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Counts `n` in the current segment and returns its number.
    #[inline]
    pub(crate) fn take(&mut self, n: u64) -> u64 {
        // More than fits into 64 bits is a debt that never ends anyway.
        let n = n.min(u64::MAX - self.total);
        self.counts[self.current] += n;
        self.total += n;
        self.number
    }

    /// Corrects what was counted in segment `number`, if it still counts. Returns what is counted now.
    pub(crate) fn correct(&mut self, number: u64, counted: u64, actual: u64) -> u64 {
        let age = self.number.wrapping_sub(number);
        if age <= self.segments() {
            let index = (self.current + self.counts.len() - age as usize) % self.counts.len();
            let back = counted.saturating_sub(actual).min(self.counts[index]);
            let more = actual.saturating_sub(counted).min(u64::MAX - self.total);
            self.counts[index] = self.counts[index] - back + more;
            self.total = self.total - back + more;
            return actual.min(counted.saturating_add(more));
        }
        actual
    }

    /// No segment so far can be corrected any more.
    fn seal(&mut self) {
        self.sealed = self.number;
        self.number = self.number.wrapping_add(self.segments() + 1);
    }

    /// Takes off `amount`, from the oldest segments.
    fn forgive(&mut self, mut amount: u64) {
        self.total -= amount;
        for age in (0..self.counts.len()).rev() {
            let index = (self.current + self.counts.len() - age) % self.counts.len();
            let part = amount.min(self.counts[index]);
            self.counts[index] -= part;
            amount -= part;
        }
        self.seal();
    }

    /// The instant at which the window will hold at most `room`, if nothing is added; nothing when it does already.
    pub(crate) fn holds_at_most(&self, room: u64) -> Option<u64> {
        let mut total = self.total;
        if total <= room {
            return None;
        }
        // From the oldest segment, which stops counting when the current one ends.
        let mut at = self.end;
        for age in (0..self.counts.len()).rev() {
            let index = (self.current + self.counts.len() - age) % self.counts.len();
            total -= self.counts[index];
            if total <= room {
                return Some(at);
            }
            at = at.saturating_add(self.length);
        }
        Some(at)
    }
}

/// The ring and its limit.
#[derive(Debug)]
pub(crate) struct Window {
    now: u64,
    ring: Ring,
    limit: u64,
}

impl Window {
    /// Empty, in so many segments of `length` ticks.
    pub(crate) fn new(now: u64, segments: usize, length: u64, limit: u64) -> Self {
        Self {
            now,
            ring: Ring::new(segments, length, now),
            limit,
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// What was taken beyond the limit.
    pub(crate) fn debt(&self) -> u64 {
        self.ring.total().saturating_sub(self.limit)
    }

    /// What the window has left; negative when it holds too much.
    pub(crate) fn room(&self) -> i128 {
        i128::from(self.limit) - i128::from(self.ring.total())
    }

    /// Changes the limit, and leaves so much room. What is forgiven for that are the oldest; what is withheld counts as
    /// admitted now. Without a limit nothing is counted.
    pub(crate) fn set_limit(&mut self, limit: u64, room: i128) {
        self.limit = limit;
        if limit == UNLIMITED {
            return self.clear();
        }
        let holds = u64::try_from((i128::from(limit) - room).max(0)).unwrap_or(u64::MAX);
        match self.ring.total().checked_sub(holds) {
            Some(0) => {}
            Some(over) => self.ring.forgive(over),
            None => {
                self.ring.take(holds - self.ring.total());
            }
        }
    }

    /// Changes how many segments there are, and their length. What is in the window counts as admitted now, and is not given
    /// back any more: nobody knows how it lies in the new segments.
    pub(crate) fn set_length(&mut self, segments: usize, length: u64) {
        let held = self.ring.total();
        let mut ring = Ring::new(segments, length, self.now);
        ring.number = self.ring.number;
        ring.seal();
        ring.take(held);
        self.ring = ring;
    }
}

impl Meter for Window {
    type Mark = [u64; 1];

    #[inline]
    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.ring.advance(now);
    }

    fn now(&self) -> u64 {
        self.now
    }

    #[inline]
    fn fits(&self, n: u64) -> bool {
        n <= self.free()
    }

    #[inline]
    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.ring.total())
    }

    #[inline]
    fn take(&mut self, n: u64) -> Self::Mark {
        // Sealed from the start: no segment has this number.
        const NONE: [u64; 1] = [0];
        if self.limit == UNLIMITED {
            return NONE;
        }
        [self.ring.take(n)]
    }

    fn restore(&mut self, mark: &Self::Mark, units: u64) {
        self.ring.correct(mark[0], units, 0);
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        if mark[0] <= self.ring.sealed && actual > charged {
            // It is not known where: what was not charged counts from now on, and under no mark.
            self.take(actual - charged);
            return actual;
        }
        self.ring.correct(mark[0], charged, actual)
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if n == 0 && ahead == 0 {
            return Some(self.now);
        }
        // Those ahead fill this window first; of what does not fit into one, only that much is known.
        let room = self.limit.checked_sub(n)?.saturating_sub(ahead);
        Some(self.ring.holds_at_most(room).unwrap_or(self.now))
    }

    fn fresh_at(&self) -> Option<u64> {
        Some(self.ring.holds_at_most(0).unwrap_or(self.now))
    }

    fn clear(&mut self) {
        self.ring.counts.fill(0);
        self.ring.total = 0;
        if !seeded!("window_gives_back_after_a_reset") {
            self.ring.seal();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Given any admissions, then no window of the full length holds more than the limit, and room is back at most
        /// one segment after the exact log says so.
        #[test]
        fn no_window_is_breached_and_room_is_at_most_a_segment_late(
            steps in prop::collection::vec((0u64..40, 1u64..4), 1..200), segments in 1usize..9, limit in 1u64..9,
        ) {
            let (length, mut now) = (10, 0);
            let window = segments as u64 * length;
            let mut ring = Ring::new(segments, length, 0);
            let mut log: Vec<(u64, u64)> = Vec::new();
            for (pause, n) in steps {
                now += pause;
                ring.advance(now);
                let held = |from: u64| log.iter().filter(|(at, _)| *at >= from).map(|(_, n)| n).sum::<u64>();
                if ring.total() + n <= limit {
                    prop_assert!(held((now + 1).saturating_sub(window)) + n <= limit);
                    ring.take(n);
                    log.push((now, n));
                } else {
                    prop_assert!(n > limit || held((now + 1).saturating_sub(window + length)) + n > limit);
                    if let Some(room) = limit.checked_sub(n) {
                        let at = ring.holds_at_most(room).unwrap();
                        prop_assert!(at > now && at <= now + window + length);
                    }
                }
            }
        }

        /// Given admissions that are corrected, then the total is what a log of the corrected ones gives.
        #[test]
        fn corrections_are_exact(steps in prop::collection::vec((0u64..25, 1u64..9, 0u64..9), 1..100)) {
            let mut ring = Ring::new(4, 10, 0);
            let mut plain = Ring::new(4, 10, 0);
            let mut now = 0;
            let mut earlier: Option<(u64, u64, u64)> = None;
            for (pause, n, actual) in steps {
                now += pause;
                ring.advance(now);
                plain.advance(now);
                if let Some((number, counted, actual)) = earlier.take() {
                    ring.correct(number, counted, actual);
                    plain.correct(number, 0, actual);
                }
                let number = ring.take(n);
                plain.take(0);
                earlier = Some((number, n, actual));
                prop_assert_eq!(ring.total() - n, plain.total());
            }
        }
    }
}
