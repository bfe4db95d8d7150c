//! The calls of the last so much time, in segments, without a lock.
//!
//! A segment has a number, which only grows, and rests at that number modulo their count. Each of its words carries the
//! number beside the count (36 and 28 bits), so that whoever comes first in a new segment starts it by writing. A new
//! period skips as many numbers as there are segments: what an older period recorded, or still records, lies outside of
//! the window at once.

use crate::algo::breaker::{Counts, Mark};
use crate::sync::shim::atomic::{AtomicU64, Ordering};

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
    /// The instant at which segment zero would have begun, modulo 2^64.
    origin: AtomicU64,
    /// The newest segment in which something was bad.
    bad: AtomicU64,
    segments: Box<[Segment]>,
}

impl TimeWindow {
    pub(super) const SEGMENTS: usize = 10;

    /// A window of [`SEGMENTS`](Self::SEGMENTS) times `segment` ticks, which begins at `now`.
    pub(super) fn new(segment: u64, now: u64) -> Self {
        let empty = |_| Segment {
            calls: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            slow: AtomicU64::new(0),
        };
        let window = Self {
            segment,
            origin: AtomicU64::new(0),
            bad: AtomicU64::new(0),
            segments: (0..Self::SEGMENTS).map(empty).collect(),
        };
        window.begin(window.span(), now);
        window
    }

    fn span(&self) -> u64 {
        self.segments.len() as u64
    }

    /// Has segment `number` begin at `now`.
    fn begin(&self, number: u64, now: u64) {
        let before = number.wrapping_mul(self.segment);
        // Release: pairs with (O) in `record`.
        self.origin.store(now.wrapping_sub(before), Ordering::Release);
    }

    fn number(&self, origin: u64, now: u64) -> u64 {
        now.wrapping_sub(origin) / self.segment
    }

    /// Begins a period, empty. By the holder of the machine's lock, after the word has said that the older one is over.
    pub(super) fn reset(&self, now: u64) {
        let number = self.number(self.origin.load(Ordering::Relaxed), now);
        self.begin(number + self.span() + 1, now);
    }

    /// Records `n` results, if `is_current` says so once the period's origin has been read. True when the window may
    /// have become worse.
    #[inline]
    pub(super) fn record(&self, mark: Mark, n: u64, now: u64, is_current: impl Fn() -> bool) -> bool {
        // (O) Acquire: whoever reads the origin of a newer period here sees in `is_current` that the older one is over.
        let origin = self.origin.load(Ordering::Acquire);
        if !is_current() && !cfg!(tollgate_bug = "breaker_trusts_origin") {
            return false;
        }
        let number = self.number(origin, now);
        let segment = &self.segments[(number % self.span()) as usize];
        let n = n.min(COUNT);
        add(&segment.calls, number, n);
        if mark.failed {
            add(&segment.failed, number, n);
        }
        if mark.slow {
            add(&segment.slow, number, n);
        }
        if mark.failed | mark.slow {
            // SeqCst: of a call that makes the window large enough and one that makes it bad enough, at least one sees
            // the other: each adds to a segment and then reads all, this one `bad` as well.
            self.bad.fetch_max(number, Ordering::SeqCst);
            return true;
        }
        // A success makes nothing worse, but it may be the one that is needed to conclude anything.
        number.saturating_sub(self.bad.load(Ordering::SeqCst)) < self.span()
    }

    pub(super) fn counts(&self, now: u64) -> Counts {
        let newest = self.number(self.origin.load(Ordering::Acquire), now);
        let sum = |count: fn(&Segment) -> &AtomicU64| {
            let words = self
                .segments
                .iter()
                .map(|segment| count(segment).load(Ordering::SeqCst));
            words
                .filter(|word| newest.wrapping_sub(word >> COUNT_BITS) & NUMBER < self.span())
                .map(|word| word & COUNT)
                .sum::<u64>()
        };
        // What is bad is added after the call, and read before it: never more of it than calls.
        let (failed, slow) = (sum(|segment| &segment.failed), sum(|segment| &segment.slow));
        let calls = sum(|segment| &segment.calls);
        Counts {
            calls,
            failed: failed.min(calls),
            slow: slow.min(calls),
        }
    }
}

/// Adds `n` to the word of segment `number`, or starts it. A segment that has made room for a newer one is out of the
/// window.
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
