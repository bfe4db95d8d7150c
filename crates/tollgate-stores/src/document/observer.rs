//! What one process has observed of a [`RateDocument`], by its own clock: so time counts though the store does not report it.
//!
//! A document says what was counted when it was written, but not when that was; a reader knows that it was before. Say a
//! process observes at its instant `t` that `taken` tokens are taken, and later that more are. Then the former were taken
//! before `t`, and the others before now: it supposes that they were taken just then. So its count is the true one, or higher.
//! The same holds for the count in the document, which another process found in the same way. The lower of the two is used. No
//! clock is compared with another: each measures only how long its own process has known something.
//!
//! A filling bucket loses no time by this. Tokens taken before the first look at the document count from that look on. All
//! others count from their taking on, as long as the bucket does not run over. Where the store keeps a clock of its own, a new
//! process counts the time before as well: see [`StoreDates`](super::store_clock::StoreDates).

use super::rates::{MeterEntry, RateDocument, session};
use super::store_clock::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use tollgate::remote::Session;
use tollgate::remote::model::segment;

/// Instants are microseconds of this process.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    era: u64,
    /// The tokens taken when the document was last seen.
    pub(super) taken: u64,
    pub(super) seen: Seen,
    pub(super) heard: BTreeMap<Session, LastSeen>,
    /// The document seen last, and when it was first seen: there was no sync since.
    pub(super) asked: (u64, u64),
}

/// The part of it that still counts.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// Of a bucket: at most this level at that instant.
    Level { level: u64, at: u64 },
    /// Of a window: the oldest lot first.
    Lots(Vec<Lot>),
}

/// Some of the tokens of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lot {
    /// The end of this lot, counted in all taken tokens. It begins where the lot before it ends.
    pub(super) upto: u64,
    pub(super) count: u64,
    /// They were taken at this instant or before.
    pub(super) at: u64,
}

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastSeen {
    seq: u64,
    /// Its last sync was at this instant or before.
    pub(super) at: u64,
    pub(super) due: u64,
}

impl Observer {
    /// Observes a document for the first time. `time` is the reading of the store's own clock, if it has one.
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

    /// Observes a document that was there at `now`, or before.
    pub(crate) fn see(&mut self, document: &RateDocument, now: u64) {
        if document.nonce != self.asked.0 {
            self.asked = (document.nonce, now);
        }
        let more = document
            .taken
            .checked_sub(self.taken)
            .filter(|_| document.era == self.era);
        let Some(more) = more else {
            // Of another era, or of a store that has fallen back: earlier observations are of no use there.
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

    /// Finds for each session the earliest known instant of its last sync: its own observation, or that of another process.
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

/// The lots of a document that was there at `now`.
fn read(lots: &[(u64, u64)], taken: u64, now: u64) -> Vec<Lot> {
    let mut upto = taken - lots.iter().map(|(count, _)| count).sum::<u64>();
    let lot = |&(count, age): &(u64, u64)| {
        upto += count;
        let at = now.saturating_sub(age);
        Lot { upto, count, at }
    };
    lots.iter().map(lot).collect()
}

/// The beginning of the first of these lots, which end at `taken`.
fn base(lots: &[Lot], taken: u64) -> u64 {
    lots.first().map_or(taken, |lot| lot.upto - lot.count)
}

/// Takes the earlier instant of each token. `known` ends where fewer had been taken, and says nothing of the others.
pub(super) fn lesser(known: &[Lot], known_taken: u64, entry: &[Lot], taken: u64, now: u64) -> Vec<Lot> {
    // Tokens that one of them does not count any more have left the window.
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

/// Merges the lots of one segment, in microseconds: so a window has at most one lot more than it has segments.
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
