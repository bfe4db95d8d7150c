//! The ring of segments under every window.
//!
//! Units count in the segment in which they were taken. The ring holds the present segment and those before it which still count:
//! none for a window that starts anew at each border, `k` for one that slides in `k` segments. A segment counts in full until even its last
//! instant lies a whole window back. So no span of `k` segments exceeds the limit, and room comes back at most one segment late.

use super::inherit::share_all;
use super::meter::{Limited, Machine, Standing, UNLIMITED};
use crate::time::Instant;
use std::time::Duration;

/// Where the segments of a window begin and end. Instants are ticks.
pub trait Borders: Send {
    const LEG: &'static str;
    /// Set if the end of a segment may come earlier than it was told.
    const MAY_COME_EARLY: bool = false;

    /// How many segments before the present one still count.
    fn before(&self) -> usize;
    /// Until then the present segment stays, and needs no look.
    fn due(&self) -> u64;
    /// Goes on to `now`, which has reached `due`, and returns how many segments have passed.
    fn advance(&mut self, now: u64) -> u64;
    /// When the segment begins that is `ahead` after the present one.
    fn start_of(&self, ahead: u64) -> u64;
    /// The length of the window.
    fn length(&self) -> Duration;
    fn take_early(&mut self) -> bool {
        false
    }
}

/// Counts per segment: the meter of every window.
#[derive(Debug)]
pub struct Ring<B> {
    now: u64,
    pub(super) borders: B,
    counts: Box<[u64]>,
    /// The index of the present segment.
    current: usize,
    /// The number of the present segment.
    number: u64,
    /// Segments up to this number give nothing back.
    sealed: u64,
    total: u64,
    limit: u64,
}

impl<B: Borders> Ring<B> {
    /// Empty, as of `now`.
    pub(crate) fn new(now: u64, borders: B, limit: u64) -> Self {
        let counts: Box<[u64]> = vec![0; borders.before() + 1].into();
        Self {
            now,
            borders,
            current: 0,
            // No ticket has the number zero, which is sealed from the start.
            number: counts.len() as u64,
            sealed: 0,
            counts,
            total: 0,
            limit,
        }
    }

    /// Nothing that was taken so far is given back any more.
    fn seal(&mut self) {
        self.sealed = self.number;
        self.number = self.number.wrapping_add(self.counts.len() as u64);
    }

    #[cold]
    fn go_on(&mut self) {
        let passed = self.borders.advance(self.now);
        self.number = self.number.wrapping_add(passed);
        if passed >= self.counts.len() as u64 {
            self.counts.fill(0);
            self.total = 0;
            return;
        }
        for _ in 0..passed {
            self.current = (self.current + 1) % self.counts.len();
            self.total -= std::mem::take(&mut self.counts[self.current]);
        }
    }

    /// The index of the segment that is `age` before the present one.
    fn index(&self, age: usize) -> usize {
        (self.current + self.counts.len() - age) % self.counts.len()
    }

    /// The first instant at which at most `room` units count.
    fn holds_at_most(&self, room: u64) -> u64 {
        let mut total = self.total;
        if total <= room {
            return self.now;
        }
        // From the oldest segment, which counts no more when the present one ends.
        for (ahead, age) in (1..).zip((0..self.counts.len()).rev()) {
            total -= self.counts[self.index(age)];
            if total <= room {
                return self.borders.start_of(ahead);
            }
        }
        self.borders.start_of(self.counts.len() as u64)
    }

    /// When `n` fit behind `ahead` others into windows that each start empty.
    fn fits_by_windows(&self, n: u64, ahead: u64) -> u64 {
        let (free, all) = (self.limit.saturating_sub(self.total), n.saturating_add(ahead));
        match all.checked_sub(free) {
            None | Some(0) => self.now,
            Some(over) => self.borders.start_of(over.div_ceil(self.limit.max(1))),
        }
    }
}

impl<B: Borders> Machine for Ring<B> {
    const LEG: &'static str = B::LEG;
    const MAY_COME_EARLY: bool = B::MAY_COME_EARLY;

    #[inline(always)] // row: window admit
    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        if self.now >= self.borders.due() {
            self.go_on();
        }
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn free(&self) -> u64 {
        // Without a limit nothing is counted.
        self.limit.saturating_sub(self.total)
    }

    #[inline(always)] // row: window admit
    fn take(&mut self, n: u64) -> u64 {
        if self.limit == UNLIMITED {
            return 0;
        }
        // More than fits into 64 bits is a debt that never ends anyway.
        let n = n.min(u64::MAX - self.total);
        self.counts[self.current] += n;
        self.total += n;
        self.number
    }

    fn settle(&mut self, mark: &mut u64, charged: u64, actual: u64) -> u64 {
        let more = actual.saturating_sub(charged).min(u64::MAX - self.total);
        if *mark <= self.sealed {
            // Its segment is unknown: an undercharge counts from now on, and an overcharge does not come back.
            self.take(more);
            return actual;
        }
        let age = self.number.wrapping_sub(*mark);
        if age >= self.counts.len() as u64 {
            // It counts no more.
            return actual;
        }
        let index = self.index(age as usize);
        let back = charged.saturating_sub(actual).min(self.counts[index]);
        self.counts[index] = self.counts[index] - back + more;
        self.total = self.total - back + more;
        actual.min(charged.saturating_add(more))
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if self.limit == UNLIMITED || (n == 0 && ahead == 0) {
            return Some(self.now);
        }
        let room = self.limit.checked_sub(n)?;
        if self.counts.len() == 1 {
            return Some(self.fits_by_windows(n, ahead));
        }
        // Those ahead fill this window first. If they exceed one window, the instant is a lower bound.
        Some(self.holds_at_most(room.saturating_sub(ahead)))
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
        self.seal();
    }

    fn standing(&self) -> Standing {
        Standing {
            limit: self.limit,
            window: self.borders.length(),
            free: self.free(),
            debt: self.total.saturating_sub(self.limit),
            fresh_at: Some(Instant::from_ticks(self.holds_at_most(0))),
            is_window: true,
            is_changed: false,
        }
    }

    fn take_early(&mut self) -> bool {
        self.borders.take_early()
    }
}

impl<B: Borders> Limited for Ring<B> {
    fn limit(&mut self) -> &mut u64 {
        &mut self.limit
    }

    fn rescale(&mut self, old: u64, new: u64) {
        self.total = share_all(self.counts.iter_mut(), old, new);
        self.seal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::window::Even;
    use proptest::prelude::*;

    proptest! {
        /// Of all that was admitted, no span of the window's length holds more than the limit, and what was taken counts for at
        /// most a segment longer than the window.
        #[test]
        fn no_window_is_exceeded_and_room_is_at_most_a_segment_late(
            steps in prop::collection::vec((0u64..40, 1u64..4), 1..200), segments in 1usize..9, limit in 1u64..9,
        ) {
            let (length, mut now) = (10, 0);
            let window = segments as u64 * length;
            let mut ring = Ring::new(0, Even::<true>::in_ticks(0, segments, length), limit);
            let mut log: Vec<(u64, u64)> = Vec::new();
            for (step, n) in steps {
                now += step;
                ring.advance(now);
                let held = |span: u64| log.iter().filter(|(at, _)| at + span > now).map(|(_, n)| n).sum::<u64>();
                prop_assert!(ring.free() <= limit.saturating_sub(held(window)));
                prop_assert!(ring.free() >= limit.saturating_sub(held(window + length)));
                if n <= ring.free() {
                    ring.take(n);
                    log.push((now, n));
                } else if n <= limit {
                    let at = ring.ready(n, 0).unwrap();
                    prop_assert!(at > now && at <= now + window + length);
                }
            }
            for &(from, _) in &log {
                let held: u64 = log.iter().filter(|(at, _)| (from..from + window).contains(at)).map(|(_, n)| n).sum();
                prop_assert!(held <= limit, "{held} from {from}");
            }
        }
    }
}
