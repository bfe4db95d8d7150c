//! The calls of the last span of time, in segments, without a lock.
//!
//! A segment has a number, which only grows, and its place is that number modulo the number of places. Each of its
//! words carries the number beside the count (36 and 28 bits), so that the first result in a new segment starts it by
//! writing. A new period skips as many numbers as there are segments: late records of an older period lie outside of
//! the window at once.

use super::thresholds::{CallCounts, CallResult};
use crate::sync::atomic::{AtomicU64, Ordering};

const COUNT_BITS: u32 = 28;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const NUMBER: u64 = (1 << (64 - COUNT_BITS)) - 1;

struct Segment {
    calls: AtomicU64,
    failed: AtomicU64,
    slow: AtomicU64,
}

pub(super) struct TimeWindow {
    /// In ticks.
    segment: u64,
    /// `2^64 / segment`, rounded down: by it an instant is divided in two multiplications.
    inverse: u64,
    /// The instant at which segment zero would have begun, modulo 2^64.
    origin: AtomicU64,
    /// The newest segment with a bad result.
    bad: AtomicU64,
    segments: Box<[Segment; TimeWindow::PLACES]>,
}

impl TimeWindow {
    pub(super) const SEGMENTS: usize = 10;
    const SPAN: u64 = Self::SEGMENTS as u64;
    /// More than the window needs: the remainder by a power of two is a mask.
    const PLACES: usize = Self::SEGMENTS.next_power_of_two();

    /// A window of [`SEGMENTS`](Self::SEGMENTS) times `segment` ticks, which begins at `now`.
    pub(super) fn new(segment: u64, now: u64) -> Self {
        let empty = || Segment {
            calls: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            slow: AtomicU64::new(0),
        };
        let window = Self {
            segment,
            inverse: (u128::from(u64::MAX) / u128::from(segment)) as u64,
            origin: AtomicU64::new(0),
            bad: AtomicU64::new(0),
            segments: Box::new(std::array::from_fn(|_| empty())),
        };
        window.begin(Self::SPAN, now);
        window
    }

    /// Lets segment `number` begin at `now`.
    fn begin(&self, number: u64, now: u64) {
        let before = number.wrapping_mul(self.segment);
        // Release: pairs with (O) in `record`.
        self.origin.store(now.wrapping_sub(before), Ordering::Release);
    }

    /// The number of the segment of `now`.
    #[inline]
    fn number(&self, origin: u64, now: u64) -> u64 {
        let since = now.wrapping_sub(origin);
        // One too few if the rest is a segment or more, and never off by more: the inverse is too small by less than
        // one in 2^64.
        let number = ((u128::from(since) * u128::from(self.inverse)) >> 64) as u64;
        number + u64::from(since - number * self.segment >= self.segment)
    }

    /// Begins a period, empty. By the holder of the machine's lock, after the word has said that the older one is over.
    pub(super) fn reset(&self, now: u64) {
        let number = self.number(self.origin.load(Ordering::Relaxed), now);
        self.begin(number + Self::SPAN + 1, now);
    }

    /// Records `n` results, if `is_current` says so once the period's origin has been read. True if the window may have
    /// become worse.
    #[inline]
    pub(super) fn record(&self, result: CallResult, n: u64, now: u64, is_current: impl Fn() -> bool) -> bool {
        // (O) Acquire: a thread that reads the origin of a newer period sees in `is_current` that the older one is
        // over.
        let origin = self.origin.load(Ordering::Acquire);
        if !is_current() {
            return false;
        }
        let number = self.number(origin, now);
        let segment = &self.segments[(number % Self::PLACES as u64) as usize];
        let n = n.min(COUNT);
        add(&segment.calls, number, n);
        if result.failed {
            add(&segment.failed, number, n);
        }
        if result.slow {
            add(&segment.slow, number, n);
        }
        if result.failed | result.slow {
            // SeqCst: consider a call that makes the window large enough and one that makes it bad enough. Each adds to
            // a segment and then reads all, this one `bad` as well; so at least one sees the other.
            self.bad.fetch_max(number, Ordering::SeqCst);
            return true;
        }
        // A success makes nothing worse, but it may be the call that makes the window large enough.
        number.saturating_sub(self.bad.load(Ordering::SeqCst)) < Self::SPAN
    }

    pub(super) fn counts(&self, now: u64) -> CallCounts {
        let newest = self.number(self.origin.load(Ordering::Acquire), now);
        let sum = |count: fn(&Segment) -> &AtomicU64| {
            let words = self
                .segments
                .iter()
                .map(|segment| count(segment).load(Ordering::SeqCst));
            words
                .filter(|word| newest.wrapping_sub(word >> COUNT_BITS) & NUMBER < Self::SPAN)
                .map(|word| word & COUNT)
                .sum::<u64>()
        };
        // A bad result is added after its call, and read before it: never more bad results than calls.
        let (failed, slow) = (sum(|segment| &segment.failed), sum(|segment| &segment.slow));
        let calls = sum(|segment| &segment.calls);
        CallCounts {
            calls,
            failed: failed.min(calls),
            slow: slow.min(calls),
        }
    }
}

/// Adds `n` to the word of segment `number`, or starts it. A segment whose place has a newer one is out of the window.
#[inline]
fn add(word: &AtomicU64, number: u64, n: u64) {
    let tag = number & NUMBER;
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let count = match (seen >> COUNT_BITS).wrapping_sub(tag) & NUMBER {
            0 => (seen & COUNT).saturating_add(n).min(COUNT),
            newer if newer < NUMBER / 2 => return,
            _ => n,
        };
        // SeqCst: see `record`.
        match word.compare_exchange_weak(seen, tag << COUNT_BITS | count, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn instants_are_divided_exactly() {
        for segment in [1, 2, 3, 7, 10, 1_000, (1 << 32) - 1, 1 << 32, (1 << 63) + 1, u64::MAX] {
            let window = TimeWindow::new(segment, 0);
            for at in [
                0,
                1,
                2,
                segment / 2,
                segment - 1,
                segment,
                u64::MAX / 2,
                u64::MAX - 1,
                u64::MAX,
            ] {
                for since in [
                    at,
                    at.wrapping_add(segment),
                    at.wrapping_sub(segment),
                    at / segment * segment,
                ] {
                    assert_eq!(
                        window.number(5, since.wrapping_add(5)),
                        since / segment,
                        "{since} by {segment}"
                    );
                }
            }
        }
    }

    /// Given a window of ten segments of one tick, when a call ends at each tick, then the last ten are counted, those of
    /// this period.
    #[test]
    fn the_last_segments_are_counted() {
        let window = TimeWindow::new(1, 100);
        let result = |at: u64| CallResult {
            failed: at.is_multiple_of(3),
            slow: at.is_multiple_of(4),
        };
        for at in 100..150 {
            window.record(result(at), 2, at, || true);
            let last = (at - 9).max(100)..=at;
            let mut expected = CallCounts::default();
            last.for_each(|at| expected.add(result(at), 2));
            assert_eq!(window.counts(at), expected, "at {at}");
        }
        assert!(!window.record(result(0), 1, 150, || false));
        window.reset(149);
        assert_eq!(window.counts(149), CallCounts::default());
        assert!(!window.record(result(1), 1, 149, || true));
        assert!(window.record(result(3), 1, 149, || true));
        // A success is reported while a bad result is in the window.
        assert!(window.record(result(1), 1, 158, || true));
        assert!(!window.record(result(1), 1, 159, || true));
    }
}
