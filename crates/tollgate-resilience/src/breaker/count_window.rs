//! The last `size` calls, exactly, without a lock.
//!
//! | word | high bits | low bits |
//! |---|---|---|
//! | `head` | period (13), position (17): below the size while the window fills, then between one and two sizes | failed (17), slow (17) |
//! | `slots[i]` | period (30) | result (2) |
//!
//! A result claims a position and is counted, by one compare-exchange. Then its slot is written, unless it says success
//! before and after. The slot's old result is then subtracted from the counts. Hence the invariant: `head` counts the
//! results in the slots, plus the claims that are about to be written.
//!
//! A full window of which `head` counts no bad result has successes only, whichever writes are under way. One more
//! success would be the same window at another position: nothing is written.
//!
//! The counts may be too high while writes are under way, so the slots are counted before anything is concluded. A word
//! of another period is left alone: a new period starts by one store, and late results change nothing in it. Periods
//! are told apart unless a thread sleeps through 2^13 of them between checking the current one and claiming.

use super::thresholds::{Alarm, CallCounts, CallResult};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const RESULT_BITS: u32 = 2;
const FAILED: u32 = 1;
const SLOW: u32 = 2;
/// Half of the periods that a slot can tell apart: those further ahead count as older.
const HALF: u32 = 1 << 29;
const FIELD_BITS: u32 = 17;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
const POSITION: u32 = 2 * FIELD_BITS;
const PERIOD: u32 = 3 * FIELD_BITS;

pub(super) struct CountWindow {
    head: AtomicU64,
    /// The size, as a position in `head`.
    round: u64,
    slots: Box<[AtomicU32]>,
}

/// The beginning of `period`.
fn empty(period: u64) -> u64 {
    period << PERIOD
}

/// True when `head` is one of `period`.
#[inline]
fn is_of(head: u64, period: u64) -> bool {
    head >> PERIOD == period & (u64::MAX >> PERIOD)
}

#[inline]
fn position(head: u64) -> u64 {
    head >> POSITION & FIELD
}

fn slot(period: u64, result: CallResult) -> u32 {
    let failed = if result.failed { FAILED } else { 0 };
    let slow = if result.slow { SLOW } else { 0 };
    (period as u32) << RESULT_BITS | failed | slow
}

/// True when `word` was written in the period of `mine`.
fn same_period(word: u32, mine: u32) -> bool {
    word >> RESULT_BITS == mine >> RESULT_BITS
}

/// True when `word` was written in a later period than `mine`.
fn is_newer(word: u32, mine: u32) -> bool {
    let ahead = (word >> RESULT_BITS).wrapping_sub(mine >> RESULT_BITS) & (2 * HALF - 1);
    ahead != 0 && ahead < HALF
}

/// The result of a slot, as `head` counts it.
#[inline]
fn weight(slot: u32) -> u64 {
    u64::from(slot & FAILED != 0) << FIELD_BITS | u64::from(slot & SLOW != 0)
}

/// How much a slot `old` is counted for before `new` replaces it: nothing, if it is of an older period.
#[inline]
fn counted(old: u32, new: u32) -> u64 {
    if same_period(old, new) { weight(old) } else { 0 }
}

/// The bad results in `head`.
fn bad(word: u64) -> CallCounts {
    CallCounts {
        calls: 0,
        failed: word >> FIELD_BITS & FIELD,
        slow: word & FIELD,
    }
}

impl CountWindow {
    pub(super) const MAX_SIZE: usize = 1 << 16;

    pub(super) fn new(size: usize) -> Self {
        Self {
            head: AtomicU64::new(empty(0)),
            round: (size as u64) << POSITION,
            // As of the period before the first: empty.
            slots: (0..size).map(|_| AtomicU32::new(u32::MAX << RESULT_BITS)).collect(),
        }
    }

    fn size(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Begins `period`, empty. By the holder of the machine's lock, before the period is published.
    pub(super) fn reset(&self, period: u64) {
        // A thread that records in this period has read the word that publishes it. Swapped, so that a late claim comes
        // before it or fails.
        self.head.swap(empty(period), Ordering::Relaxed);
    }

    /// Records `n` results. True if they have made the window reach the alarm.
    ///
    /// A thread that makes the window worse checks the counts. If they are not enough, a later one checks, or the one
    /// that makes the window large enough.
    #[inline]
    pub(super) fn record(&self, period: u64, result: CallResult, n: u64, alarm: &Alarm) -> bool {
        // More than fit push each other out.
        (0..n.min(self.size())).fold(false, |look, _| look | self.record_one(period, result, alarm))
    }

    #[inline(always)]
    pub(super) fn record_one(&self, period: u64, result: CallResult, alarm: &Alarm) -> bool {
        let new = slot(period, result);
        if weight(new) == 0 && self.is_spotless(period) {
            return false;
        }
        let Some(position) = self.claim(period, new) else {
            return false;
        };
        let slot_word = self.slot_at(position);
        let old = slot_word.load(Ordering::Relaxed);
        // One failure that pushes out another has been counted as well.
        let writes = old != new || weight(new) != 0;
        (writes && self.write(slot_word, old, new, period, alarm)) || position + 1 == alarm.calls
    }

    /// Claims the next position, counted as `new`. `None` if the period is over.
    #[inline]
    fn claim(&self, period: u64, new: u32) -> Option<u64> {
        let mut seen = self.head.load(Ordering::Relaxed);
        loop {
            if !is_of(seen, period) {
                return None;
            }
            let next = self.step(seen) + weight(new);
            // SeqCst: see `look`.
            match self
                .head
                .compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return Some(position(seen)),
                Err(now) => seen = now,
            }
        }
    }

    /// True if `period` goes on and its window is full of successes: one more would leave it as it is.
    #[inline]
    fn is_spotless(&self, period: u64) -> bool {
        // Relaxed: if it says so, the window is the same before and after, whenever that was.
        let (head, round) = (self.head.load(Ordering::Relaxed), self.round);
        // Of another period, it is beyond two rounds.
        let place = head ^ empty(period);
        place.wrapping_sub(round) < round && place << (u64::BITS - POSITION) == 0
    }

    /// `head` at the next position: the first place of the second round follows the last one.
    #[inline]
    fn step(&self, head: u64) -> u64 {
        let next = head + (1 << POSITION);
        if position(next) == 2 * self.size() {
            next - self.round
        } else {
            next
        }
    }

    #[inline]
    fn slot_at(&self, position: u64) -> &AtomicU32 {
        let size = self.size();
        let index = if position < size { position } else { position - size };
        &self.slots[index as usize]
    }

    /// Writes the claimed slot, which seemed to say `old`. True if the counts have reached the alarm.
    #[inline(never)]
    fn write(&self, slot_word: &AtomicU32, mut old: u32, new: u32, period: u64, alarm: &Alarm) -> bool {
        loop {
            if is_newer(old, new) {
                return false;
            }
            // Acquire and release: pairs with itself. A thread replaces a result after that was counted, so that no
            // field of bad results is ever too low. SeqCst: see `look`.
            match slot_word.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(seen) => old = seen,
            }
        }
        let less = counted(old, new);
        if less != 0 {
            self.settle(period, less);
        }
        weight(new) != 0 && self.look(period, alarm)
    }

    /// Subtracts a slot's old result from the counts, unless the period is over.
    fn settle(&self, period: u64, less: u64) {
        let mut seen = self.head.load(Ordering::Relaxed);
        while is_of(seen, period) {
            debug_assert!((seen & FIELD) >= (less & FIELD) && (seen >> FIELD_BITS & FIELD) >= less >> FIELD_BITS);
            // Relaxed: nothing is concluded from this.
            match self
                .head
                .compare_exchange_weak(seen, seen - less, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// True if the counts have reached the alarm, read once a slot has been written.
    ///
    /// Consider several threads that make the window worse at once. The last to write a slot finds the claims of the
    /// others counted here, and their slots written when it evaluates the window. So the claims, the slots, this
    /// reading, and the fence in `evaluate` need one total order.
    fn look(&self, period: u64, alarm: &Alarm) -> bool {
        // loom has that order for fences alone.
        #[cfg(tollgate_loom)]
        crate::sync::atomic::fence(Ordering::SeqCst);
        let head = self.head.load(Ordering::SeqCst);
        let counts = bad(head);
        is_of(head, period) && (counts.failed >= alarm.failed || counts.slow >= alarm.slow)
    }

    fn calls(&self, head: u64, period: u64) -> u64 {
        if is_of(head, period) {
            position(head).min(self.size())
        } else {
            0
        }
    }

    /// The counts of the window; results that are being recorded may count twice.
    pub(super) fn counts(&self, period: u64) -> CallCounts {
        let head = self.head.load(Ordering::Relaxed);
        let calls = self.calls(head, period);
        let CallCounts { failed, slow, .. } = bad(head);
        CallCounts {
            calls,
            failed: failed.min(calls),
            slow: slow.min(calls),
        }
    }

    /// Counts the slots.
    pub(super) fn recount(&self, period: u64) -> CallCounts {
        let mut counts = CallCounts {
            calls: self.calls(self.head.load(Ordering::Relaxed), period),
            ..CallCounts::default()
        };
        let mine = slot(period, CallResult::default());
        let slots = self.slots.iter().map(|word| word.load(Ordering::Relaxed));
        for word in slots.filter(|&word| same_period(word, mine)) {
            counts.failed += u64::from(word & FAILED != 0);
            counts.slow += u64::from(word & SLOW != 0);
        }
        counts
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const NEVER: Alarm = Alarm {
        calls: u64::MAX,
        failed: u64::MAX,
        slow: u64::MAX,
    };

    /// Three results in four are the same as the one before: equal and unequal replacements are about as frequent.
    #[test]
    fn the_counts_are_those_of_the_slots() {
        for size in [1, 2, 3, 7, 64] {
            let window = CountWindow::new(size);
            for period in [0, 1, 5] {
                window.reset(period);
                let mut last = VecDeque::new();
                let (mut seed, mut result) = (period + 1, CallResult::default());
                for _ in 0..20 * size {
                    // The generator of D. Knuth's MMIX.
                    seed = seed
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    if seed >> 62 == 0 {
                        result = CallResult {
                            failed: seed >> 61 & 1 == 1,
                            slow: seed >> 60 & 1 == 1,
                        };
                    }
                    window.record(period, result, 1, &NEVER);
                    last.push_back(result);
                    if last.len() > size {
                        last.pop_front();
                    }
                    let mut expected = CallCounts::default();
                    last.iter().for_each(|&result| expected.add(result, 1));
                    assert_eq!(window.counts(period), expected);
                    assert_eq!(window.recount(period), expected);
                    assert_eq!(window.counts(period + 1), CallCounts::default());
                }
            }
        }
    }

    #[test]
    fn a_slot_of_a_later_period_is_left_alone() {
        let good = CallResult::default();
        let both = CallResult {
            failed: true,
            slow: true,
        };
        assert_eq!(weight(slot(9, both)), 1 << FIELD_BITS | 1);
        for ahead in [1, 2, u64::from(HALF) - 1] {
            assert!(is_newer(slot(9 + ahead, both), slot(9, good)));
            assert!(!is_newer(slot(9, both), slot(9 + ahead, good)));
        }
        assert!(!is_newer(slot(9, both), slot(9, good)));
        assert!(!is_newer(slot(9 + u64::from(HALF), both), slot(9, good)));

        let window = CountWindow::new(2);
        let (before, late) = (slot(5, good), slot(5, both));
        window.reset(6);
        window.record(6, both, 1, &NEVER);
        let least = Alarm {
            calls: 1,
            failed: 1,
            slow: 1,
        };
        assert!(!window.write(&window.slots[0], before, late, 5, &least));
        assert_eq!(window.slots[0].load(Ordering::Relaxed), slot(6, both));
        assert_eq!(
            (window.counts(6), window.recount(6)),
            (window.recount(6), window.counts(6))
        );
        // A claim of an older period is counted nowhere, and takes nothing from this one.
        window.settle(5, weight(late));
        assert_eq!(window.counts(6).failed, 1);
    }

    /// A result that makes the window worse, or large enough, reports it; no other does.
    #[test]
    fn only_results_that_may_open_the_circuit_are_reported() {
        let window = CountWindow::new(4);
        let (good, failed) = (
            CallResult::default(),
            CallResult {
                failed: true,
                slow: false,
            },
        );
        let slow = CallResult {
            failed: false,
            slow: true,
        };
        let alarm = Alarm {
            calls: 3,
            failed: 2,
            slow: 2,
        };
        let looks = |result| window.record_one(0, result, &alarm);
        assert_eq!([failed, good, good, good].map(looks), [false, false, true, false]);
        // The first of them pushes out a failure.
        assert_eq!(
            [failed, failed, good, slow, slow].map(looks),
            [false, true, false, true, true]
        );
    }
}
