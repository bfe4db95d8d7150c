//! A sliding window in segments: how much was admitted in the last so many, and when room comes back.
//!
//! Admissions are counted per segment. A segment counts in full until even its last instant lies a whole window back,
//! so no window of that length ever holds more than the limit; room comes back at most one segment late.

/// The counts of the current segment and of the `segments` before it.
#[derive(Debug)]
pub(crate) struct Ring {
    counts: Box<[u64]>,
    /// Where the current segment's count is.
    current: usize,
    /// How many segments there have been.
    number: u64,
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
            number: 0,
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
        let steps = (now - self.end) / self.length + 1;
        self.number += steps;
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
        self.counts[self.current] += n;
        self.total += n;
        self.number
    }

    /// Corrects what was counted in segment `number`, if it still counts.
    pub(crate) fn correct(&mut self, number: u64, counted: u64, actual: u64) {
        let age = self.number - number;
        if age <= self.segments() {
            let index = (self.current + self.counts.len() - age as usize) % self.counts.len();
            self.counts[index] = (self.counts[index] - counted).saturating_add(actual);
            self.total = (self.total - counted).saturating_add(actual);
        }
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
