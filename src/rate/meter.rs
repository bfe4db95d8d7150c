//! The trait of the pure machines behind a lock: time loosens their state, and admissions tighten it.

use super::single_unit::{CLOSED, Times};

/// A limit that counts nothing.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// A pure state machine that counts units. Instants are ticks; the caller first lets time pass, by `advance`.
pub(crate) trait Meter {
    /// An admission's memory beside its units: words that only its own meter can read.
    type Mark: Copy + AsRef<[u64]>;

    /// Set if a single unit may be taken through a word beside the lock
    /// ([`SingleUnit`](super::single_unit::SingleUnit)): makes the mark of a take that moved the word on to an instant.
    const BY_WORD: Option<fn(u64) -> Self::Mark> = None;

    /// Brings the state up to the word, which has been closed.
    fn went_by_word(&mut self, word: u64) {
        let _ = word;
    }

    /// The word to open with.
    #[inline(always)]
    fn open(&mut self) -> u64 {
        CLOSED
    }

    /// The times of a single unit.
    #[inline(always)]
    fn times(&self) -> Times {
        Times::NEVER
    }

    /// Lets time pass until `now`. An earlier instant than the latest changes nothing.
    fn advance(&mut self, now: u64);

    /// [Lets time pass](Self::advance). True if an instant that was told has come earlier: the waiters look again.
    #[inline(always)]
    fn catch_up(&mut self, now: u64) -> bool {
        self.advance(now);
        false
    }

    /// The latest instant so far.
    fn now(&self) -> u64;

    /// True when `n` may be taken now.
    fn fits(&self, n: u64) -> bool;

    /// The most that may be taken now.
    fn free(&self) -> u64;

    /// Takes `n` at `now` if it fits without a careful look: without letting all of the time pass. The next
    /// [`advance`](Self::advance) does the rest.
    #[inline(always)]
    fn take_at_once(&mut self, n: u64, now: u64) -> Option<Self::Mark> {
        let _ = (n, now);
        None
    }

    /// Takes `n`, whether it fits or not: the excess is debt.
    fn take(&mut self, n: u64) -> Self::Mark;

    /// Refunds a take: never more than would be there without it.
    fn restore(&mut self, mark: &Self::Mark, units: u64);

    /// Corrects a charge, from now on. A refund follows the rule of [`restore`](Self::restore). Returns the new charge,
    /// which is less than `actual` if that is more than can be counted.
    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64;

    /// The first instant at which `n` fit behind `ahead` others; `None` if no instant does.
    fn ready(&self, n: u64, ahead: u64) -> Option<u64>;

    /// The first instant at which nothing counts any more; `None` if that is never.
    fn fresh_at(&self) -> Option<u64>;

    /// Starts anew. Nothing that was taken before is refunded any more.
    fn clear(&mut self);
}
