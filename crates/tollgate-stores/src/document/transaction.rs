//! A sync at a [`RateDocument`]: the model is opened as the [`Observer`] knows it, does what the reference does, and is written
//! as a document again.

use super::observer::{Lot, Observer, Seen, merged};
use super::rates::{FARTHEST, MeterEntry, RateDocument, TakerEntry};
use super::store_clock::{Known, StoreDates, Time};
use std::collections::BTreeMap;
use std::time::Duration;
use tollgate::remote::model::{Fill, Meter, Rates, RatesState, Taker, micros, segment};
use tollgate::remote::{Rule, Session, SyncReply, SyncRequest};

/// The bytes of a document that sessions may fill: 1,300 sessions, each with an unseen grant. Where all processes are
/// short-lived, and the store keeps no clock, no process notices that others are dead.
const SESSIONS: usize = 1_300 * SESSION;
/// The bytes of a session, with its place in the queue elsewhere in the document, and of each grant.
const SESSION: usize = 184;
const GRANT: usize = 32;

/// The outcome of a sync.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) reply: SyncReply,
    pub(crate) after: DocumentChange,
}

/// The change of the document.
#[derive(Debug)]
pub(crate) enum DocumentChange {
    /// It stays, or there is none.
    Same,
    /// It may be deleted without a loss.
    Gone,
    /// It becomes this one, which may be deleted in this many microseconds, without a sync before.
    New(Box<RateDocument>, u64),
}

/// Why a sync cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The document contradicts itself.
    Document,
    /// It is of another kind of limiter, or of a window of another length.
    Kind,
}

/// Carries out `sync` at `now`, of a client that was set up with `rule`, at the document that the observer has seen last, if
/// any. `fresh` is a number that was never used; `time` is a reading of the store's own clock, if it has one.
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
            (open(document, observer, &kept, now), kept)
        }
        None => (Rates::new(rule, now, 0), *rule),
    };
    if !model.fits(rule) {
        return Err(Mismatch::Kind);
    }
    model.sweep(now);
    let knew = model.state().takers.contains_key(&sync.session);
    // Of two rules that differ without a change, that of the latest new session counts: present sessions are not asked again.
    let sets = sync.edition > model.state().edition || sync.begin && !knew && !sync.end;
    let before = model.state().meter.counted();
    let previous = Previous {
        seen,
        before,
        now,
        fresh,
        time,
    };
    let mut reply = model.sync(now, if sets { rule } else { &kept }, sync).reply;
    reply.differs |= !sets && sync.edition == model.state().edition && kept != *rule;
    evict_sessions(&mut model, sync.session);
    let after = if model.is_empty(now) && (seen.is_some() || !reply.alive) {
        seen.map_or(DocumentChange::Same, |_| DocumentChange::Gone)
    } else if reply.alive || knew {
        let document = encode(model.state(), &previous, sync)?;
        DocumentChange::New(Box::new(document), model.fresh_in(now))
    } else {
        DocumentChange::Same
    };
    Ok(Transaction { reply, after })
}

/// In how many microseconds a document that was just seen may be deleted, without a sync before.
pub(crate) fn fresh_in(document: &RateDocument, observer: &Observer, now: u64) -> Result<u64, Mismatch> {
    let kept = document.rule().ok_or(Mismatch::Document)?;
    let mut model = open(document, observer, &kept, now);
    model.sweep(now);
    Ok(model.fresh_in(now))
}

/// Opens the model as the observer knows it.
fn open(document: &RateDocument, observer: &Observer, rule: &Rule, now: u64) -> Rates {
    let meter = match (&document.meter, &observer.seen) {
        (MeterEntry::Bucket { price, gain, brim, .. }, Seen::Level { level, at }) => {
            let (price, gain, brim) = (*price, *gain, *brim);
            Meter::at_level(Fill { price, gain, brim }, *level, *at)
        }
        (_, Seen::Lots(lots)) => window(rule, lots, now),
        _ => Meter::new(rule, now),
    };
    let takers = observer.heard.iter().filter_map(|(session, heard)| {
        let entry = document.takers.get(&session.to_string())?;
        let taker = Taker {
            expires: heard.at.saturating_add(entry.ttl),
            seq: entry.seq,
            charged: entry.charged,
            asked: entry.asked,
            grants: entry.grants().collect(),
            due: heard.due,
        };
        Some((*session, taker))
    });
    let state = RatesState {
        meter,
        rule: *rule,
        edition: document.edition,
        asked_at: observer.asked.1,
        token: document.token,
        takers: takers.collect(),
        queue: document.queue().collect(),
    };
    Rates::restore(state, now)
}

/// A window with these lots.
fn window(rule: &Rule, lots: &[Lot], now: u64) -> Meter {
    let mut meter = Meter::new(rule, lots.first().map_or(now, |lot| lot.at));
    for lot in lots {
        meter.advance(lot.at);
        meter.take(lot.count);
    }
    meter.advance(now);
    meter
}

/// Evicts other sessions when there are too many, those first that expire first. They begin anew, and their tokens still count:
/// they take unreported grants once more.
fn evict_sessions(model: &mut Rates, session: Session) {
    let size = |taker: &Taker| SESSION - GRANT + GRANT * taker.grants.len();
    let takers = &model.state().takers;
    let mut filled: usize = takers.values().map(size).sum();
    if filled <= SESSIONS {
        return;
    }
    let others = takers.iter().filter(|(other, _)| **other != session);
    let by_expiry = others.map(|(&other, taker)| ((taker.expires, other), size(taker)));
    for ((_, other), size) in by_expiry.collect::<BTreeMap<_, _>>() {
        if filled <= SESSIONS {
            return;
        }
        model.end(other);
        filled -= size;
    }
}

/// The state before the sync.
struct Previous<'a> {
    seen: Option<(&'a RateDocument, &'a Observer)>,
    /// What counted then.
    before: u64,
    now: u64,
    /// A number that was never used.
    fresh: u64,
    /// The reading of the store's own clock.
    time: Option<&'a Time>,
}

/// The count within an era.
struct Count {
    era: u64,
    taken: u64,
    meter: MeterEntry,
    dates: Option<StoreDates>,
}

impl Previous<'_> {
    /// The dates of the document, if they are of the clock that was read.
    fn dates(&self) -> Option<&StoreDates> {
        let (document, _) = self.seen?;
        document
            .dates
            .as_ref()
            .filter(|dates| Some(dates.clock) == self.time.map(|time| time.clock))
    }

    /// The count of a bucket of which `more` was taken.
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

    /// The count of a window of this length and `limit`, of which `more` tokens were taken.
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

    /// The entry of a session, after its own sync or that of another.
    fn taker(&self, session: Session, taker: &Taker, sync: &SyncRequest) -> (String, TakerEntry) {
        let name = session.to_string();
        let entry = self.seen.and_then(|(document, _)| document.takers.get(&name));
        let ttl = match entry {
            Some(entry) if session != sync.session => entry.ttl,
            _ => micros(sync.ttl),
        };
        let age = self.now.saturating_add(ttl).saturating_sub(taker.expires);
        // The next process dates this sync itself.
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

fn encode(model: &RatesState, previous: &Previous<'_>, sync: &SyncRequest) -> Result<RateDocument, Mismatch> {
    let level = model.meter.counted();
    let more = level.saturating_sub(previous.before);
    let Count {
        era,
        taken,
        meter,
        dates,
    } = match (model.rule, model.meter.fill()) {
        (Rule::Window { limit, length }, None) => {
            let nanos = u64::try_from(length.as_nanos()).unwrap_or(FARTHEST);
            previous.window(limit, nanos, more)
        }
        (_, Some(Fill { price, gain, brim })) => {
            let bucket = MeterEntry::Bucket {
                price,
                gain,
                brim,
                level,
            };
            previous.bucket(bucket, more)
        }
        (_, None) => return Err(Mismatch::Kind),
    };
    let takers = model
        .takers
        .iter()
        .map(|(&session, taker)| previous.taker(session, taker, sync));
    let queue = model
        .queue
        .iter()
        .map(|place| (place.session.to_string(), place.request, place.need));
    Ok(RateDocument {
        nonce: previous.fresh,
        era,
        taken,
        edition: model.edition,
        token: model.token,
        meter,
        takers: takers.collect(),
        queue: queue.collect(),
        dates,
    })
}

#[cfg(test)]
mod tests;
