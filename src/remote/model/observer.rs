//! What one process has seen of a [`RateDocument`], by its own clock: so that time counts though nobody tells it.
//!
//! A note says how things stood when it was written, and not when that was. Whoever reads it knows that it was before. So a
//! process that has seen at its instant `t` that `taken` tokens were taken by then, and sees later that more are, knows of each
//! of the former that it was taken before `t`, and of each of the latter before now: it supposes that they were taken just then.
//! What it finds so counts for as much as it does in truth, or more; and so does what the note says, which somebody else found
//! in the same way. The lesser of both is the better one. No clock is compared with another: each measures only how long its own
//! process has known something.
//!
//! In the course of this nothing is lost of the time in which a bucket fills: of the tokens that were taken before a process saw
//! the note for the first time it counts the time from then on, and of all others that from their taking on, as long as the
//! bucket does not run over. Where the store keeps a clock of its own, a process that comes new counts the time before as well: see
//! [`StoreDates`](super::store_clock::StoreDates).

use super::rate_document::{MeterEntry, RateDocument, session};
use super::rates::segment;
use super::store_clock::Time;
use crate::remote::backend::Session;
use std::collections::BTreeMap;
use std::time::Duration;

/// Instants are microseconds of this process.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    era: u64,
    /// How many tokens were taken when the note was last seen.
    pub(super) taken: u64,
    pub(super) seen: Seen,
    pub(super) heard: BTreeMap<Session, LastSeen>,
    /// Which note it was, and when it was first seen: nobody has asked since.
    pub(super) asked: (u64, u64),
}

/// What of it counts still.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// Of a bucket: no more than this level at that instant.
    Level { level: u64, at: u64 },
    /// Of a window: the oldest first.
    Lots(Vec<Lot>),
}

/// Some of the tokens of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lot {
    /// From the end of the lot before to this one, counted in all that were taken.
    pub(super) upto: u64,
    pub(super) count: u64,
    /// They were taken then or before.
    pub(super) at: u64,
}

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastSeen {
    seq: u64,
    /// It was heard of for the last time then or before.
    pub(super) at: u64,
    pub(super) due: u64,
}

impl Observer {
    /// Of a note that is seen for the first time, when the store's own clock said this, if it has one.
    pub(crate) fn of(document: &RateDocument, now: u64, time: Option<&Time>) -> Self {
        let age = time.map_or(0, Time::age);
        let dates = document.dates.as_ref().zip(time);
        let dates = dates.filter(|(dates, time)| dates.clock == time.clock);
        let seen = match &document.meter {
            MeterEntry::Bucket { level, gain, .. } => {
                let level = level.saturating_sub(age.saturating_mul(*gain));
                let dates = dates.map(|(dates, time)| dates.level(time, *gain));
                let level = dates.map_or(level, |dates| dates.min(level));
                Seen::Level { level, at: now }
            }
            MeterEntry::Window { lots, .. } => {
                let entry = read(lots, document.taken, now.saturating_sub(age));
                let dates = dates.map(|(dates, time)| dates.lots(time, document.taken, now));
                let lesser = |dates: Vec<_>| lesser(&entry, document.taken, &dates, document.taken, now);
                Seen::Lots(dates.map(lesser).unwrap_or(entry))
            }
        };
        let mut observer = Self {
            era: document.era,
            taken: document.taken,
            seen,
            heard: BTreeMap::new(),
            asked: (document.nonce, now.saturating_sub(age)),
        };
        observer.hear(document, now, time);
        observer
    }

    /// Sees a note that has been there at `now`, or before.
    pub(crate) fn see(&mut self, document: &RateDocument, now: u64) {
        if document.nonce != self.asked.0 {
            self.asked = (document.nonce, now);
        }
        let more = document
            .taken
            .checked_sub(self.taken)
            .filter(|_| document.era == self.era);
        let Some(more) = more else {
            // Of another era; or of a store that has fallen back: what is known better is of no use there.
            let heard = std::mem::take(&mut self.heard);
            *self = Self {
                heard,
                ..Self::of(document, now, None)
            };
            return self.hear(document, now, None);
        };
        match (&mut self.seen, &document.meter) {
            (
                Seen::Level { level, at },
                MeterEntry::Bucket {
                    price,
                    gain,
                    level: entry,
                    ..
                },
            ) => {
                let drained = level.saturating_sub(now.saturating_sub(*at).saturating_mul(*gain));
                // As if they had been taken just now.
                *level = drained.saturating_add(more.saturating_mul(*price)).min(*entry);
                *at = now.max(*at);
            }
            (Seen::Lots(known), MeterEntry::Window { lots, nanos, .. }) => {
                let entry = read(lots, document.taken, now);
                let all = lesser(known, self.taken, &entry, document.taken, now);
                *known = merged(all, segment(Duration::from_nanos(*nanos)));
            }
            (seen, _) => *seen = Self::of(document, now, None).seen,
        }
        self.taken = document.taken;
        self.hear(document, now, None);
    }

    /// Of each session the earliest instant by which it was as it is: as it was seen, or as somebody else has.
    fn hear(&mut self, document: &RateDocument, now: u64, time: Option<&Time>) {
        let passed = time.map_or(0, Time::age);
        let same = time.filter(|time| document.clock() == Some(time.clock));
        let known = std::mem::take(&mut self.heard);
        self.heard = document
            .takers
            .iter()
            .filter_map(|(name, entry)| {
                let due = now.saturating_add(entry.due.saturating_sub(passed));
                let dates = same.zip(entry.by).map_or(0, |(time, by)| time.since(by));
                let at = now.saturating_sub(dates.max(entry.age.saturating_add(passed)));
                let session = session(name)?;
                let new = LastSeen {
                    seq: entry.seq,
                    at,
                    due,
                };
                let same = known.get(&session).filter(|known| known.seq == entry.seq);
                let heard = same.map_or(new, |same| LastSeen {
                    at: same.at.min(at),
                    due: same.due.min(due),
                    ..*same
                });
                Some((session, heard))
            })
            .collect();
    }
}

/// The lots of a note, by an instant at which it was there.
fn read(lots: &[(u64, u64)], taken: u64, now: u64) -> Vec<Lot> {
    let mut upto = taken - lots.iter().map(|(count, _)| count).sum::<u64>();
    let lot = |&(count, age): &(u64, u64)| {
        upto += count;
        let at = now.saturating_sub(age);
        Lot { upto, count, at }
    };
    lots.iter().map(lot).collect()
}

/// Where the first lot begins, of lots that end where `taken` were.
fn base(lots: &[Lot], taken: u64) -> u64 {
    lots.first().map_or(taken, |lot| lot.upto - lot.count)
}

/// Of each token the earlier instant. `known` ends where fewer had been taken, and says nothing of the others.
pub(super) fn lesser(known: &[Lot], known_taken: u64, entry: &[Lot], taken: u64, now: u64) -> Vec<Lot> {
    // What one of them does not count any more has left the window.
    let mut from = base(known, known_taken).max(base(entry, taken));
    let mut ends: Vec<_> = known.iter().chain(entry).map(|lot| lot.upto).collect();
    ends.sort_unstable();
    ends.dedup();
    let at = |lots: &[Lot], upto: u64| lots.iter().find(|lot| lot.upto >= upto).map(|lot| lot.at);
    let mut lots = Vec::new();
    ends.retain(|&upto| upto > from);
    for upto in ends {
        let instants = at(known, upto).into_iter().chain(at(entry, upto));
        lots.push(Lot {
            upto,
            count: upto - from,
            at: instants.min().unwrap_or(now),
        });
        from = upto;
    }
    lots
}

/// So many microseconds of a window count as one: its lots are as many at most as it has such segments, and one more.
pub(super) fn merged(lots: Vec<Lot>, segment: u64) -> Vec<Lot> {
    let mut merged: Vec<Lot> = Vec::new();
    for lot in lots {
        match merged.last_mut() {
            Some(last) if last.at / segment == lot.at / segment => {
                *last = Lot {
                    count: last.count + lot.count,
                    ..lot
                };
            }
            _ => merged.push(lot),
        }
    }
    merged
}
