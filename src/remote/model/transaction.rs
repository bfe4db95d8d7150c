//! A step at a [`RateDocument`]: the book is opened for it as the [`Observer`] knows it, does what the reference does, and is written down
//! again.

use super::bucket::Bucket;
use super::observer::{Lot, Observer, Seen, merged};
use super::rate_document::{MeterEntry, RateDocument, TakerEntry};
use super::rates::{Kind, Rates, Taker, segment};
use super::store_clock::{Known, StoreDates, Time};
use super::{Fill, micros};
use crate::algo::window::Window;
use crate::remote::backend::{Rule, Session, SyncReply, SyncRequest};
use std::time::Duration;

/// Sessions may fill so many bytes of a note: 1,300 of them, each with a grant that it has not seen. Where nobody lives for
/// long, and the store keeps no clock, nobody sees that others are dead.
const SESSIONS: usize = 1_300 * SESSION;
/// One takes so many, with its place in line in another part of the note, and so many more for each grant.
const SESSION: usize = 184;
const GRANT: usize = 32;

/// What a step comes to.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) reply: SyncReply,
    pub(crate) after: DocumentChange,
}

/// What becomes of the note.
#[derive(Debug)]
pub(crate) enum DocumentChange {
    /// It stays, or there is none.
    Same,
    /// Nothing is lost with it.
    Gone,
    /// It is to be this one, which is as good as none in so many microseconds, if nobody asks before.
    New(Box<RateDocument>, u64),
}

/// Why there is no step to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The note contradicts itself.
    Document,
    /// It is of another kind of limiter, or of a window of another length.
    Kind,
}

/// Carries out `sync` at `now`, of a client that was set up with `rule`, at what the witness has seen last; at none when there is
/// none. `fresh` is a number that was never used; `time` is what the store's own clock says, if it has one.
pub(crate) fn transact(
    seen: Option<(&RateDocument, &Observer)>,
    now: u64,
    fresh: u64,
    rule: &Rule,
    sync: &SyncRequest,
    time: Option<&Time>,
) -> Result<Transaction, Mismatch> {
    let (mut model, kept) = match seen {
        Some((document, observer)) => {
            let kept = document.rule().ok_or(Mismatch::Document)?;
            (Rates::open(document, observer, &kept, now), kept)
        }
        None => (Rates::new(rule, now, 0), *rule),
    };
    if !model.fits(rule) {
        return Err(Mismatch::Kind);
    }
    model.sweep(now);
    let knew = model.takers.contains_key(&sync.session);
    // Of two rules that differ without a change, that of whoever came last counts: those who are there are not asked again.
    let sets = sync.edition > model.edition || sync.begin && !knew && !sync.end;
    let before = model.counted();
    let previous = Previous {
        seen,
        before,
        now,
        fresh,
        time,
    };
    let mut reply = model.sync(now, if sets { rule } else { &kept }, sync).reply;
    reply.differs |= !sets && sync.edition == model.edition && kept != *rule;
    model.evict_sessions(sync.session);
    let after = if model.is_empty(now) && (seen.is_some() || !reply.alive) {
        seen.map_or(DocumentChange::Same, |_| DocumentChange::Gone)
    } else if reply.alive || knew {
        let document = model.encode(&previous, sync);
        DocumentChange::New(Box::new(document), model.fresh_in(now))
    } else {
        DocumentChange::Same
    };
    Ok(Transaction { reply, after })
}

/// In how many microseconds a note that was just seen is as good as none, if nobody asks before.
pub(crate) fn fresh_in(document: &RateDocument, observer: &Observer, now: u64) -> Result<u64, Mismatch> {
    let kept = document.rule().ok_or(Mismatch::Document)?;
    let mut model = Rates::open(document, observer, &kept, now);
    model.sweep(now);
    Ok(model.fresh_in(now))
}

impl Rates {
    /// As the witness knows it.
    fn open(document: &RateDocument, observer: &Observer, rule: &Rule, now: u64) -> Self {
        let mut model = Self::new(rule, now, document.token);
        model.edition = document.edition;
        model.asked_at = observer.asked.1;
        model.meter = match (&document.meter, &observer.seen) {
            (MeterEntry::Bucket { price, gain, brim, .. }, Seen::Level { level, at }) => {
                let (price, gain, brim) = (*price, *gain, *brim);
                Kind::Bucket(Bucket::filled(*level, *at), Fill { price, gain, brim })
            }
            (_, Seen::Lots(lots)) => Kind::of_lots(rule, lots, now),
            _ => model.meter,
        };
        for (session, heard) in &observer.heard {
            let Some(entry) = document.takers.get(&session.to_string()) else {
                continue;
            };
            let expires = heard.at.saturating_add(entry.ttl);
            model.dues.insert((expires, *session));
            let taker = Taker {
                expires,
                seq: entry.seq,
                charged: entry.charged,
                asked: entry.asked,
                grants: entry.grants().collect(),
                due: heard.due,
            };
            model.takers.insert(*session, taker);
        }
        model.queue = document.queue().collect();
        model
    }

    /// Forgets others when there are too many, those first who would be soonest. They begin anew, and what they took still counts:
    /// whatever they were given without hearing of it they take once more.
    fn evict_sessions(&mut self, session: Session) {
        let size = |taker: &Taker| SESSION - GRANT + GRANT * taker.grants.len();
        let mut filled: usize = self.takers.values().map(size).sum();
        while filled > SESSIONS
            && let Some(&(due, other)) = self.dues.iter().find(|(_, other)| *other != session)
        {
            self.dues.remove(&(due, other));
            filled -= self.takers.remove(&other).as_ref().map_or(0, size);
            self.leave(other);
        }
    }
}

impl Kind {
    /// A window in which these were taken.
    fn of_lots(rule: &Rule, lots: &[Lot], now: u64) -> Self {
        let mut meter = Self::new(rule, lots.first().map_or(now, |lot| lot.at));
        for lot in lots {
            meter.advance(lot.at);
            meter.take(lot.count);
        }
        meter.advance(now);
        meter
    }
}

/// What was there before the step.
struct Previous<'a> {
    seen: Option<(&'a RateDocument, &'a Observer)>,
    /// So much counted.
    before: u64,
    now: u64,
    /// A number that was never used.
    fresh: u64,
    /// What the store's own clock says.
    time: Option<&'a Time>,
}

/// What was taken, in the course of an era.
struct Count {
    era: u64,
    taken: u64,
    meter: MeterEntry,
    dates: Option<StoreDates>,
}

impl Previous<'_> {
    /// What of the note is dated by the clock that tells the time.
    fn dates(&self) -> Option<&StoreDates> {
        let (document, _) = self.seen?;
        document
            .dates
            .as_ref()
            .filter(|dates| Some(dates.clock) == self.time.map(|time| time.clock))
    }

    /// A bucket of which so much `more` was taken.
    fn bucket(&self, meter: MeterEntry, more: u64) -> Count {
        let mut count = Count {
            era: self.fresh,
            taken: 0,
            meter,
            dates: None,
        };
        if let (MeterEntry::Bucket { price, gain, .. }, Some((document, _))) = (&count.meter, self.seen)
            && let MeterEntry::Bucket {
                price: old,
                gain: filled,
                ..
            } = &document.meter
            && (price, gain) == (old, filled)
        {
            (count.era, count.taken) = (document.era, document.taken.saturating_add(more.div_ceil(*price)));
            let dates = |time| StoreDates::bucket(self.dates(), time, *gain, self.before, more);
            count.dates = self.time.map(dates);
        }
        count
    }

    /// A window of this length, which has this `limit`, and of which so many `more` were taken.
    fn window(&self, limit: u64, nanos: u64, more: u64) -> Count {
        let (mut era, mut taken, mut lots) = (self.fresh, 0, Vec::new());
        if let Some((document, observer)) = self.seen
            && let Seen::Lots(seen) = &observer.seen
        {
            (era, taken) = (document.era, document.taken);
            lots.clone_from(seen);
        }
        let segment = segment(Duration::from_nanos(nanos));
        let length = segment * Rule::SEGMENTS;
        let known = Known {
            lots: &lots,
            taken,
            now: self.now,
            segment,
            length,
        };
        let time = self.time.filter(|_| self.seen.is_some());
        let dates = time.map(|time| StoreDates::window(self.dates(), time, &known, more));
        let (taken, at) = (taken.saturating_add(more), self.now);
        lots.extend((more > 0).then_some(Lot {
            upto: taken,
            count: more,
            at,
        }));
        let age = |lot: &Lot| self.now.saturating_sub(lot.at);
        lots.retain(|lot| age(lot) < length);
        let lots = merged(lots, segment);
        let lots = lots.iter().map(|lot| (lot.count, age(lot))).collect();
        Count {
            era,
            taken,
            meter: MeterEntry::Window { limit, nanos, lots },
            dates,
        }
    }

    /// A session, after the step of another, or its own.
    fn taker(&self, session: Session, taker: &Taker, sync: &SyncRequest) -> (String, TakerEntry) {
        let name = session.to_string();
        let entry = self.seen.and_then(|(document, _)| document.takers.get(&name));
        let ttl = match entry {
            Some(entry) if session != sync.session => entry.ttl,
            _ => micros(sync.ttl),
        };
        let age = self.now.saturating_add(ttl).saturating_sub(taker.expires);
        // What the step itself has heard is dated by whoever comes next.
        let is_new = session == sync.session && age == 0;
        let by = self.time.filter(|_| !is_new).map(|time| {
            let known = self.dates().and(entry).and_then(|entry| entry.by);
            known.unwrap_or(time.written).min(time.before(age))
        });
        let entry = TakerEntry {
            ttl,
            age,
            by,
            seq: taker.seq,
            charged: taker.charged,
            asked: taker.asked,
            due: taker.due.saturating_sub(self.now),
            grants: taker
                .grants
                .iter()
                .map(|grant| (grant.request, grant.units, grant.token))
                .collect(),
        };
        (name, entry)
    }
}

impl Rates {
    /// What was taken and counts, in parts of a token or in tokens.
    fn counted(&self) -> u64 {
        match &self.meter {
            Kind::Bucket(bucket, _) => bucket.level,
            Kind::Window(window, _) => {
                u64::try_from(i128::from(Window::limit(window)) - window.room()).unwrap_or(u64::MAX)
            }
        }
    }

    fn encode(&self, previous: &Previous<'_>, sync: &SyncRequest) -> RateDocument {
        let more = self.counted().saturating_sub(previous.before);
        let Count {
            era,
            taken,
            meter,
            dates,
        } = match self.meter_entry() {
            MeterEntry::Window { limit, nanos, .. } => previous.window(limit, nanos, more),
            bucket @ MeterEntry::Bucket { .. } => previous.bucket(bucket, more),
        };
        let takers = self
            .takers
            .iter()
            .map(|(&session, taker)| previous.taker(session, taker, sync));
        let queue = self
            .queue
            .iter()
            .map(|place| (place.session.to_string(), place.request, place.need));
        RateDocument {
            nonce: previous.fresh,
            era,
            taken,
            edition: self.edition,
            token: self.token,
            meter,
            takers: takers.collect(),
            queue: queue.collect(),
            dates,
        }
    }
}

#[cfg(test)]
mod tests;
