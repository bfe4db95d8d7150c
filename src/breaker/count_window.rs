//! The last so many calls, exactly, without a lock.
//!
//! | word | high bits | low bits |
//! |---|---|---|
//! | `head` | period (13), position (17): below the size while the window fills, then between one and two sizes | failed (17), slow (17) |
//! | `slots[i]` | period (30) | mark (2) |
//!
//! Whoever has a result reads the slot at the position, and claims the position by a compare-exchange that counts the
//! difference as well. Only if the slot is to change does it write it then: a success in a healthy window is one
//! compare-exchange in all. If the slot was not what had been read, since somebody who claimed it a whole window ago is
//! still at it, the counts are corrected. Hence the invariant: `head` counts what the slots say, and what has been claimed
//! and is about to be written.
//!
//! Counts that are too high by that are seen by counting the slots before anything is concluded. A word of another period
//! is left alone: a new period starts by one store, and what comes late changes nothing in it. Periods are told apart as
//! long as nobody sleeps through 2^13 of them between finding its own to be the current one and claiming.

use crate::algo::breaker::{Alarm, Counts, Mark};
use crate::sync::shim::atomic::{AtomicU32, AtomicU64, Ordering};

const MARK_BITS: u32 = 2;
const FAILED: u32 = 1;
const SLOW: u32 = 2;
/// Half of the periods that a slot can tell apart: those further ahead are taken for older ones.
const HALF: u32 = 1 << 29;
const FIELD_BITS: u32 = 17;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
const POSITION: u32 = 2 * FIELD_BITS;
const PERIOD: u32 = 3 * FIELD_BITS;
/// What stands in a field of bad results for nothing: no subtraction that is early borrows from its neighbour, and what is
/// too much for a moment fits.
const ZERO: u64 = 1 << 15;
const NONE: u64 = ZERO << FIELD_BITS | ZERO;

pub(super) struct CountWindow {
    head: AtomicU64,
    slots: Box<[AtomicU32]>,
}

/// The beginning of `period`.
fn empty(period: u64) -> u64 {
    period << PERIOD | NONE
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

/// What the mark of a slot adds to `head`.
#[inline]
fn weight(slot: u32) -> u64 {
    u64::from(slot & FAILED != 0) << FIELD_BITS | u64::from(slot & SLOW != 0)
}

/// What a slot that says `old` is counted for where `new` is to stand: nothing, if it is of an older period.
#[inline]
fn counted(old: u32, new: u32) -> u64 {
    if same_period(old, new) { weight(old) } else { 0 }
}

/// What `head` says of bad results.
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
            head: AtomicU64::new(empty(0)),
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
        self.head.swap(empty(period), Ordering::Relaxed);
    }

    /// Records `n` results. True when the window has reached what it needs to be condemned, by these.
    ///
    /// Whoever makes it worse looks at the counts; if they are not enough, somebody who comes later will, or whoever makes
    /// the window large enough.
    #[inline]
    pub(super) fn record(&self, period: u64, mark: Mark, n: u64, alarm: &Alarm) -> bool {
        // More than fit push each other out.
        (0..n.min(self.size())).fold(false, |look, _| look | self.record_one(period, mark, alarm))
    }

    #[inline]
    pub(super) fn record_one(&self, period: u64, mark: Mark, alarm: &Alarm) -> bool {
        let new = slot(period, mark);
        let Some((position, old)) = self.claim(period, new) else {
            return false;
        };
        (old != new && self.write(position, old, new, period, alarm))
            || (position + 1 == alarm.calls && !cfg!(tollgate_bug = "breaker_looks_at_bad_only"))
    }

    fn slot_at(&self, position: u64) -> &AtomicU32 {
        let size = self.size();
        let index = if position < size { position } else { position - size };
        &self.slots[index as usize]
    }

    /// The next position, and what its slot seemed to say: counted as `new` in place of that. Nothing when the period is
    /// over.
    #[inline]
    fn claim(&self, period: u64, new: u32) -> Option<(u64, u32)> {
        let mut seen = self.head.load(Ordering::Relaxed);
        loop {
            if !is_of(seen, period) && !cfg!(tollgate_bug = "breaker_trusts_head") {
                return None;
            }
            let position = position(seen);
            let old = self.slot_at(position).load(Ordering::Relaxed);
            // From the last place of the second round back to the first of it.
            let back = if position + 1 == 2 * self.size() {
                self.size()
            } else {
                0
            };
            let next = seen + (1 << POSITION) - (back << POSITION) + weight(new) - counted(old, new);
            // Acquire: pairs with (S) in `settle`. Whoever has something to judge puts a fence before it looks.
            match self
                .head
                .compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some((position, old)),
                Err(now) => seen = now,
            }
        }
    }

    /// Writes the slot that was claimed, and that seemed to say `assumed`. True when that is worth a look.
    #[inline(never)]
    fn write(&self, position: u64, assumed: u32, new: u32, period: u64, alarm: &Alarm) -> bool {
        let slot_word = self.slot_at(position);
        let mut old = assumed;
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
        let (less, more) = (counted(old, new), counted(assumed, new));
        if weight(new) == 0 && less == more {
            return false;
        }
        let counts = self.settle(period, more, less);
        counts.failed >= alarm.failed || counts.slow >= alarm.slow
    }

    /// Corrects the counts, unless the period is over, and returns what failed and was slow then.
    fn settle(&self, period: u64, more: u64, less: u64) -> Counts {
        let mut seen = self.head.load(Ordering::Relaxed);
        while is_of(seen, period) {
            // (S) Written also where nothing changes. Of two who make the window worse at once, whoever is later at this
            // word, by its claim or here, sees the slot that the other has written before. Pairs with itself and with
            // the claim.
            let ordering = match cfg!(tollgate_bug = "breaker_relaxed_shift") {
                true => Ordering::Relaxed,
                false => Ordering::AcqRel,
            };
            let next = seen + more - less;
            match self.head.compare_exchange_weak(seen, next, ordering, Ordering::Relaxed) {
                Ok(_) => return bad(next),
                Err(now) => seen = now,
            }
        }
        Counts::default()
    }

    fn calls(&self, head: u64, period: u64) -> u64 {
        if is_of(head, period) {
            position(head).min(self.size())
        } else {
            0
        }
    }

    /// What the window holds, but for results that are being recorded.
    pub(super) fn counts(&self, period: u64) -> Counts {
        let head = self.head.load(Ordering::Relaxed);
        let calls = self.calls(head, period);
        let Counts { failed, slow, .. } = bad(head);
        Counts {
            calls,
            failed: failed.min(calls),
            slow: slow.min(calls),
        }
    }

    /// What the slots say.
    pub(super) fn recount(&self, period: u64) -> Counts {
        let mut counts = Counts {
            calls: self.calls(self.head.load(Ordering::Relaxed), period),
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
