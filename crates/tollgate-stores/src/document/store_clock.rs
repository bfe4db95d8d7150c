//! The dates of taken tokens, by a clock that the store itself keeps: so that time counts also without an observer.
//!
//! An [`Observer`](super::Observer) counts what its own process has seen, and dies with it. Where a store reports the time on a
//! clock of its own, a [`RateDocument`](super::RateDocument) has dates on that clock, which a new process reads. Only bounds of
//! the clock are known. Tokens in a document before a sync are dated *by* the latest that the clock could say then, and counted
//! off from the earliest that it can say *now*. The next process dates the tokens that the sync itself took.
//!
//! Only dates of the same clock are compared: with another one, as after a change of the store's leader, dates begin anew.

use super::observer::{Lot, lesser, merged};
use super::rates::FARTHEST;
use serde::{Deserialize, Serialize};

/// The id of a clock, which is unique.
pub(crate) type Clock = (u64, u64);

/// A reading of such a clock, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) clock: Clock,
    /// The earliest time that it may be.
    pub(crate) now: u64,
    /// The latest time that it may be.
    pub(crate) by: u64,
    /// The latest time at which the document read last may have been written.
    pub(crate) written: u64,
}

/// The dates of taken tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreDates {
    pub(super) clock: Clock,
    /// The oldest first: the count, and its date. Tokens of a window; of a bucket parts of a token, less the refill since.
    pub(super) lots: Vec<(u64, u64)>,
    /// The count taken after that, by the sync that wrote it.
    pub(super) fresh: u64,
}

/// The most lots of a bucket. Beyond that, the last ones count from the last date.
const MOST: usize = 16;

impl Time {
    /// True if it can be counted with.
    pub(crate) fn holds(&self) -> bool {
        self.now <= self.by && self.by <= FARTHEST
    }

    /// The least age of something dated `by`.
    pub(super) fn since(&self, by: u64) -> u64 {
        self.now.saturating_sub(by)
    }

    /// The least age of the document.
    pub(super) fn age(&self) -> u64 {
        self.since(self.written)
    }

    /// The date of something that is at least `age` old.
    pub(super) fn before(&self, age: u64) -> u64 {
        self.by.saturating_sub(age)
    }
}

impl StoreDates {
    /// All lots. All of them were there when the document was written.
    fn all(&self, time: &Time) -> Vec<(u64, u64)> {
        let written = if seeded!("rates_are_dated_too_early") {
            time.now
        } else {
            time.written
        };
        let fresh = (self.fresh > 0).then_some((self.fresh, written));
        let lots = self.lots.iter().chain(&fresh);
        lots.map(|&(count, by)| (count, by.min(written))).collect()
    }

    /// The level of a bucket that drains by `gain`.
    pub(super) fn level(&self, time: &Time, gain: u64) -> u64 {
        drained(&self.all(time), time.now, gain)
    }

    /// The lots of a window of `taken` tokens in total, by instants of a process whose clock says `now`.
    pub(super) fn lots(&self, time: &Time, taken: u64, now: u64) -> Vec<Lot> {
        let at = |by| now.saturating_sub(time.since(by));
        placed(&self.all(time), taken, at)
    }

    /// The dates after a sync that found this `level`, and took `more`.
    pub(super) fn bucket(known: Option<&Self>, time: &Time, gain: u64, level: u64, more: u64) -> Self {
        let mut lots = known.map_or(Vec::new(), |known| settled(known.all(time), time.now, gain));
        // The process's own observation is better only if it gains more than it loses by being dated anew.
        let loss = (time.by - time.now).saturating_mul(gain);
        if known.is_none() || level.saturating_add(loss) < drained(&lots, time.now, gain) {
            lots = Vec::from_iter((level > 0).then_some((level, time.by)));
        }
        Self {
            clock: time.clock,
            lots,
            fresh: more,
        }
    }

    /// The dates after a sync that found the lots in `seen`, and took `more`.
    pub(super) fn window(known: Option<&Self>, time: &Time, seen: &Known<'_>, more: u64) -> Self {
        let seen_lots = seen.lots.iter().map(|lot| Lot {
            at: time.before(seen.now.saturating_sub(lot.at)),
            ..*lot
        });
        let mut lots: Vec<_> = seen_lots.collect();
        if let Some(known) = known {
            let known = placed(&known.all(time), seen.taken, |by| by);
            lots = lesser(&lots, seen.taken, &known, seen.taken, time.by);
        }
        lots.retain(|lot| time.since(lot.at) < seen.length);
        let lots = merged(lots, seen.segment);
        Self {
            clock: time.clock,
            lots: lots.iter().map(|lot| (lot.count, lot.at)).collect(),
            fresh: more,
        }
    }

    /// The sum of the counts; `None` when it overflows.
    pub(super) fn sum(&self) -> Option<u64> {
        let counts = self.lots.iter().map(|(count, _)| count);
        counts
            .chain([&self.fresh])
            .try_fold(0_u64, |sum, &count| sum.checked_add(count))
    }
}

/// What a process knows of a window.
pub(super) struct Known<'a> {
    pub(super) lots: &'a [Lot],
    pub(super) taken: u64,
    /// The instant of its clock.
    pub(super) now: u64,
    pub(super) segment: u64,
    pub(super) length: u64,
}

/// Lots that end at `taken`.
fn placed(lots: &[(u64, u64)], taken: u64, at: impl Fn(u64) -> u64) -> Vec<Lot> {
    let mut upto = taken - lots.iter().map(|(count, _)| count).sum::<u64>();
    let lots = lots.iter().map(|&(count, by)| {
        upto += count;
        Lot {
            upto,
            count,
            at: at(by),
        }
    });
    lots.collect()
}

/// The level of a bucket at `now`, from what was taken by then. Later lots count in full.
fn drained(lots: &[(u64, u64)], now: u64, gain: u64) -> u64 {
    let (mut level, mut at) = (0_u64, 0);
    for &(parts, by) in lots.iter().chain([&(0, now)]) {
        let by = by.min(now);
        let passed = by.saturating_sub(at);
        level = level.saturating_sub(passed.saturating_mul(gain)).saturating_add(parts);
        at = at.max(by);
    }
    level
}

/// Merges the lots dated by `now` into one, and keeps at most [`MOST`] in total.
fn settled(mut lots: Vec<(u64, u64)>, now: u64, gain: u64) -> Vec<(u64, u64)> {
    let past = lots.iter().take_while(|&&(_, by)| by <= now).count();
    let level = drained(&lots[..past], now, gain);
    lots.splice(..past, (level > 0).then_some((level, now)));
    while lots.len() > MOST
        && let Some((last, by)) = lots.pop()
        && let Some((before, at)) = lots.last_mut()
    {
        (*before, *at) = (*before + last, by);
    }
    lots
}
