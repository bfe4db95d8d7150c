//! What the limiters behind one lock have in common: a state that time loosens and admissions tighten.

use super::single_unit::{CLOSED, Times};

/// A limit that counts nothing.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// A pure state machine that counts units. Instants are ticks; the caller lets time pass first, by `advance`.
pub(crate) trait Meter {
    /// What an admission must remember beside its units: words that only its own meter can read.
    type Mark: Copy + AsRef<[u64]>;

    /// Where one unit alone may be taken through a word beside the lock ([`SingleUnit`](super::single_unit::SingleUnit)): the mark of one that
    /// moved the word on to an instant.
    const BY_WORD: Option<fn(u64) -> Self::Mark> = None;

    /// Brings the state up to what the word said when it was closed.
    fn went_by_word(&mut self, word: u64) {
        let _ = word;
    }

    /// What the word is to say from now on.
    #[inline(always)]
    fn open(&mut self) -> u64 {
        CLOSED
    }

    /// By which times the word goes.
    #[inline(always)]
    fn times(&self) -> Times {
        Times::NEVER
    }

    /// Lets time pass until `now`. An earlier instant than the latest changes nothing.
    fn advance(&mut self, now: u64);

    /// The latest instant so far.
    fn now(&self) -> u64;

    /// True when `n` may be taken now.
    fn fits(&self, n: u64) -> bool;

    /// The most that may be taken now.
    fn free(&self) -> u64;

    /// Takes `n` at `now` if that needs no careful look: without letting all of the time pass, it fits already. What it
    /// leaves undone is done by the next [`advance`](Self::advance).
    #[inline(always)]
    fn take_at_once(&mut self, n: u64, now: u64) -> Option<Self::Mark> {
        let _ = (n, now);
        None
    }

    /// Takes `n`, whether it fits or not: what does not fit is debt.
    fn take(&mut self, n: u64) -> Self::Mark;

    /// Gives back what `take` took: never more than would be there had it not been taken.
    fn restore(&mut self, mark: &Self::Mark, units: u64);

    /// Corrects a charge, from now on. What is given back follows the rule of [`restore`](Self::restore). Returns what is
    /// charged now, which is less than `actual` where that is more than can be counted.
    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64;

    /// The first instant at which `n` fit if `ahead` are taken before; nothing when no instant does.
    fn ready(&self, n: u64, ahead: u64) -> Option<u64>;

    /// The first instant at which nothing that was taken counts any more; nothing when that is never.
    fn fresh_at(&self) -> Option<u64>;

    /// Starts anew. What was taken before is not given back any more.
    fn clear(&mut self);
}
