//! The last so many calls, exactly, without a lock.
//!
//! | word | high bits | low bits |
//! |---|---|---|
//! | `head` | period (32) | position (32): below the size while the window fills, then between one and two sizes |
//! | `slots[i]` | period (30) | mark (2) |
//! | `counts` | period (24) | failed (20), slow (20) |
//!
//! Whoever has a result claims a position, then writes its slot, unless the slot says the same already: for a success
//! in a healthy window that is one compare-exchange in all. `counts` follows once the slot is written, by the difference;
//! what it says too much, for a moment, while a bad result has been pushed out, is seen by counting the
//! slots before anything is concluded. A word of another period is left alone: a new period starts by two stores, and
//! what comes late changes nothing in it. Periods are told apart as long as nobody sleeps through 2^24 of them.

use crate::algo::breaker::{Alarm, Counts, Mark};
use crate::sync::shim::atomic::{AtomicU32, AtomicU64, Ordering};

const MARK_BITS: u32 = 2;
const FAILED: u32 = 1;
const SLOW: u32 = 2;
/// Half of the periods that a slot can tell apart: those further ahead are taken for older ones.
const HALF: u32 = 1 << 29;
const FIELD_BITS: u32 = 20;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
const COUNTS_BITS: u32 = 2 * FIELD_BITS;
/// What stands in a field for nothing: no subtraction that is early borrows from its neighbour.
const ZERO: u64 = 1 << 17;
const NONE: u64 = ZERO << FIELD_BITS | ZERO;

pub(super) struct CountWindow {
    head: AtomicU64,
    counts: AtomicU64,
    slots: Box<[AtomicU32]>,
}

fn head(period: u64, position: u64) -> u64 {
    period << 32 | position
}

fn slot(period: u64, mark: Mark) -> u32 {
    let failed = if mark.failed { FAILED } else { 0 };
    let slow = if mark.slow { SLOW } else { 0 };
    (period as u32) << MARK_BITS | failed | slow
}

/// True when `word` was written in the period of `mine`.
fn same_period(word: u32, mine: u32) -> bool {
    word >> MARK_BITS == mine >> MARK_BITS
}

/// True when `word` was written in a later period than `mine`.
fn is_newer(word: u32, mine: u32) -> bool {
    let ahead = (word >> MARK_BITS).wrapping_sub(mine >> MARK_BITS) & (2 * HALF - 1);
    ahead != 0 && ahead < HALF
}

/// What the mark of a slot adds to `counts`.
fn weight(slot: u32) -> u64 {
    u64::from(slot & FAILED != 0) << FIELD_BITS | u64::from(slot & SLOW != 0)
}

/// What a word of `counts` says, but for the calls.
fn bad(word: u64) -> Counts {
    Counts {
        calls: 0,
        failed: (word >> FIELD_BITS & FIELD).saturating_sub(ZERO),
        slow: (word & FIELD).saturating_sub(ZERO),
    }
}

impl CountWindow {
    pub(super) const MAX_SIZE: usize = 1 << 16;

    pub(super) fn new(size: usize) -> Self {
        Self {
            head: AtomicU64::new(0),
            counts: AtomicU64::new(NONE),
            // As of the period before the first: empty.
            slots: (0..size).map(|_| AtomicU32::new(u32::MAX << MARK_BITS)).collect(),
        }
    }

    fn size(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Begins `period`, empty. By the holder of the machine's lock, before the period is published.
    pub(super) fn reset(&self, period: u64) {
        // Whoever records in this period has read the word that publishes it. Swapped, so that a late claim comes
        // before it or fails.
        self.counts.swap(period << COUNTS_BITS | NONE, Ordering::Relaxed);
        self.head.swap(head(period, 0), Ordering::Relaxed);
    }

    /// Records `n` results. True when the window has reached what it needs to be condemned, by these.
    ///
    /// Whoever makes it worse looks at the counts; if they are not enough, somebody who comes later will, or whoever makes
    /// the window large enough.
    #[inline]
    pub(super) fn record(&self, period: u64, mark: Mark, n: u64, alarm: &Alarm) -> bool {
        let mut look = false;
        // More than fit push each other out.
        for _ in 0..n.min(self.size()) {
            let Some(position) = self.claim(period) else {
                return false;
            };
            look |= position + 1 == alarm.calls && !cfg!(tollgate_bug = "breaker_looks_at_bad_only");
            look |= self.write(position, period, mark, alarm);
        }
        look
    }

    /// The next position, unless the period is over.
    #[inline]
    fn claim(&self, period: u64) -> Option<u64> {
        let size = self.size();
        let mut seen = self.head.load(Ordering::Relaxed);
        loop {
            if seen >> 32 != u64::from(period as u32) && !cfg!(tollgate_bug = "breaker_trusts_head") {
                return None;
            }
            let position = seen & u64::from(u32::MAX);
            let next = if position + 1 == 2 * size { size } else { position + 1 };
            // Relaxed: whoever has something to judge puts a fence before it looks, in `judge`.
            match self
                .head
                .compare_exchange_weak(seen, head(seen >> 32, next), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(position),
                Err(now) => seen = now,
            }
        }
    }

    #[inline]
    fn write(&self, position: u64, period: u64, mark: Mark, alarm: &Alarm) -> bool {
        let size = self.size();
        let index = if position < size { position } else { position - size };
        let slot_word = &self.slots[index as usize];
        let new = slot(period, mark);
        let old = slot_word.load(Ordering::Relaxed);
        old != new && self.write_slow(slot_word, old, new, period, alarm)
    }

    fn write_slow(&self, slot_word: &AtomicU32, mut old: u32, new: u32, period: u64, alarm: &Alarm) -> bool {
        loop {
            if is_newer(old, new) {
                return false;
            }
            if cfg!(tollgate_bug = "breaker_torn_slot") {
                slot_word.store(new, Ordering::Relaxed);
                break;
            }
            match slot_word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(seen) => old = seen,
            }
        }
        let less = if same_period(old, new) { weight(old) } else { 0 };
        let counts = self.shift(period, weight(new), less);
        weight(new) != 0 && (counts.failed >= alarm.failed || counts.slow >= alarm.slow)
    }

    /// Adds to and takes from `counts`, unless the period is over, and returns what failed and was slow then.
    fn shift(&self, period: u64, more: u64, less: u64) -> Counts {
        // The bits of the period that fit beside the fields.
        let tag = (period << COUNTS_BITS) >> COUNTS_BITS;
        let mut seen = self.counts.load(Ordering::Relaxed);
        while more != less && seen >> COUNTS_BITS == tag {
            let next = seen + more - less;
            // Acquire and release: of two who make the window worse at once, the later one here sees the slot that the
            // earlier one has written before, so that it does not count too few.
            let ordering = match cfg!(tollgate_bug = "breaker_relaxed_shift") {
                true => Ordering::Relaxed,
                false => Ordering::AcqRel,
            };
            match self
                .counts
                .compare_exchange_weak(seen, next, ordering, Ordering::Relaxed)
            {
                Ok(_) => return bad(next),
                Err(now) => seen = now,
            }
        }
        Counts::default()
    }

    fn calls(&self, period: u64) -> u64 {
        let seen = self.head.load(Ordering::Relaxed);
        if seen >> 32 == u64::from(period as u32) {
            (seen & u64::from(u32::MAX)).min(self.size())
        } else {
            0
        }
    }

    /// What the window holds, but for results that are being recorded.
    pub(super) fn counts(&self, period: u64) -> Counts {
        let seen = self.counts.load(Ordering::Relaxed);
        let calls = self.calls(period);
        let Counts { failed, slow, .. } = if calls == 0 { Counts::default() } else { bad(seen) };
        Counts {
            calls,
            failed: failed.min(calls),
            slow: slow.min(calls),
        }
    }

    /// What the slots say.
    pub(super) fn recount(&self, period: u64) -> Counts {
        let mut counts = Counts {
            calls: self.calls(period),
            ..Counts::default()
        };
        let mine = slot(period, Mark::default());
        let slots = self.slots.iter().map(|word| word.load(Ordering::Relaxed));
        for word in slots.filter(|&word| same_period(word, mine)) {
            counts.failed += u64::from(word & FAILED != 0);
            counts.slow += u64::from(word & SLOW != 0);
        }
        counts
    }
}
