//! What was taken, by a clock that the store itself keeps: so that time counts also while nobody looks on.
//!
//! A [`Observer`](super::Observer) counts what its own process has seen, and dies with it. Where a store tells how much time passes
//! on a clock of its own, a [`RateDocument`](super::RateDocument) says by when things were taken on that clock, and whoever comes new reads it.
//! All that is known of the clock are bounds. What was in a note before a step was taken *by* the latest that the clock could say
//! then, and is counted off from the earliest that it can say *now*; what the step itself took is dated by whoever comes next.
//!
//! Only what the same clock says is compared: with another one, as after the store has another leader, dates begin anew.

use super::observer::{Lot, lesser, merged};
use super::rate_document::FARTHEST;
use serde::{Deserialize, Serialize};

/// Which clock. None is the same as another.
pub(crate) type Clock = (u64, u64);

/// What such a clock says, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) clock: Clock,
    /// It is so late at least,
    pub(crate) now: u64,
    /// and so late at most.
    pub(crate) by: u64,
    /// So late it was at most when the note was written that was read last.
    pub(crate) written: u64,
}

/// By when things were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreDates {
    pub(super) clock: Clock,
    /// The oldest first: how much, and by when. Of a window tokens; of a bucket parts of a token, and what has come since is off.
    pub(super) lots: Vec<(u64, u64)>,
    /// What was taken after that, by the step that wrote it.
    pub(super) fresh: u64,
}

/// Of a bucket more are not kept apart: what was taken last counts from the last of it.
const MOST: usize = 16;

impl Time {
    /// It can be counted with.
    pub(crate) fn holds(&self) -> bool {
        self.now <= self.by && self.by <= FARTHEST
    }

    /// For how long at least that lies back which was there by then.
    pub(super) fn since(&self, by: u64) -> u64 {
        self.now.saturating_sub(by)
    }

    /// How long ago the note was written at least.
    pub(super) fn age(&self) -> u64 {
        self.since(self.written)
    }

    /// By when that was which lies back for so long at least.
    pub(super) fn before(&self, age: u64) -> u64 {
        self.by.saturating_sub(age)
    }
}

impl StoreDates {
    /// All of it was there when the note was written.
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

    /// The tokens of a window of which `taken` were taken in all, by instants of somebody whose clock says `now`.
    pub(super) fn lots(&self, time: &Time, taken: u64, now: u64) -> Vec<Lot> {
        let at = |by| now.saturating_sub(time.since(by));
        placed(&self.all(time), taken, at)
    }

    /// After a step that found this `level`, and took so much `more`.
    pub(super) fn bucket(known: Option<&Self>, time: &Time, gain: u64, level: u64, more: u64) -> Self {
        let mut lots = known.map_or(Vec::new(), |known| settled(known.all(time), time.now, gain));
        // What the process has seen itself is the better one if it is so by more than it loses when it is dated anew.
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

    /// After a step at `now` that found these lots of the `taken` tokens of a window, of segments of this length, and took so many
    /// `more`.
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

    /// How much there is; `None` when that is no number.
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

/// Lots that end where `taken` were.
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

/// What is left in a bucket at `now` of what was taken by then. Of what was taken by later, all.
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

/// What was taken by `now` is one lot; of the others only so many are kept.
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
