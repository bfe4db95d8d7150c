//! A book is written down again after a step.

use super::super::dated::{Dated, Known, Time};
use super::super::micros;
use super::super::note::{Metered, Note, Noted};
use super::super::rates::{Kind, Rates, Taker, segment};
use super::super::witness::{Lot, Seen, Witness, gathered};
use crate::rate::WindowMeter;
use crate::remote::backend::{Rule, Session, Step};
use std::time::Duration;

/// What was there before the step.
pub(super) struct Paper<'a> {
    pub(super) seen: Option<(&'a Note, &'a Witness)>,
    /// So much counted.
    pub(super) before: u64,
    pub(super) now: u64,
    /// A number that was never used.
    pub(super) fresh: u64,
    /// What the store's own clock says.
    pub(super) time: Option<&'a Time>,
}

/// What was taken, in the course of an era.
struct Count {
    era: u64,
    taken: u64,
    meter: Metered,
    dated: Option<Dated>,
}

impl Paper<'_> {
    /// What of the note is dated by the clock that tells the time.
    fn dated(&self) -> Option<&Dated> {
        let (note, _) = self.seen?;
        note.dated
            .as_ref()
            .filter(|dated| Some(dated.clock) == self.time.map(|time| time.clock))
    }

    /// A bucket of which so much `more` was taken.
    fn bucket(&self, meter: Metered, more: u64) -> Count {
        let mut count = Count {
            era: self.fresh,
            taken: 0,
            meter,
            dated: None,
        };
        if let (Metered::Bucket { price, gain, .. }, Some((note, _))) = (&count.meter, self.seen)
            && let Metered::Bucket {
                price: old,
                gain: filled,
                ..
            } = &note.meter
            && (price, gain) == (old, filled)
        {
            (count.era, count.taken) = (note.era, note.taken.saturating_add(more.div_ceil(*price)));
            let dated = |time| Dated::bucket(self.dated(), time, *gain, self.before, more);
            count.dated = self.time.map(dated);
        }
        count
    }

    /// A window of this length, which has this `limit`, and of which so many `more` were taken.
    fn window(&self, limit: u64, nanos: u64, more: u64) -> Count {
        let (mut era, mut taken, mut lots) = (self.fresh, 0, Vec::new());
        if let Some((note, witness)) = self.seen
            && let Seen::Lots(seen) = &witness.seen
        {
            (era, taken) = (note.era, note.taken);
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
        let dated = time.map(|time| Dated::window(self.dated(), time, &known, more));
        let (taken, at) = (taken.saturating_add(more), self.now);
        lots.extend((more > 0).then_some(Lot {
            upto: taken,
            count: more,
            at,
        }));
        let age = |lot: &Lot| self.now.saturating_sub(lot.at);
        lots.retain(|lot| age(lot) < length);
        let lots = gathered(lots, segment);
        let lots = lots.iter().map(|lot| (lot.count, age(lot))).collect();
        Count {
            era,
            taken,
            meter: Metered::Window { limit, nanos, lots },
            dated,
        }
    }

    /// A session, after the step of another, or its own.
    fn taker(&self, session: Session, taker: &Taker, step: &Step) -> (String, Noted) {
        let name = session.to_string();
        let noted = self.seen.and_then(|(note, _)| note.takers.get(&name));
        let ttl = match noted {
            Some(noted) if session != step.session => noted.ttl,
            _ => micros(step.ttl),
        };
        let age = self.now.saturating_add(ttl).saturating_sub(taker.expires);
        // What the step itself has heard is dated by whoever comes next.
        let is_new = session == step.session && age == 0;
        let by = self.time.filter(|_| !is_new).map(|time| {
            let known = self.dated().and(noted).and_then(|noted| noted.by);
            known.unwrap_or(time.written).min(time.before(age))
        });
        let noted = Noted {
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
                .map(|grant| (grant.wish, grant.units, grant.token))
                .collect(),
        };
        (name, noted)
    }
}

impl Rates {
    /// What was taken and counts, in parts of a token or in tokens.
    pub(super) fn poured(&self) -> u64 {
        match &self.meter {
            Kind::Bucket(bucket, _) => bucket.level,
            Kind::Window(window, _) => {
                u64::try_from(i128::from(WindowMeter::limit(window)) - window.room()).unwrap_or(u64::MAX)
            }
        }
    }

    pub(super) fn note(&self, paper: &Paper<'_>, step: &Step) -> Note {
        let more = self.poured().saturating_sub(paper.before);
        let Count {
            era,
            taken,
            meter,
            dated,
        } = match self.metered() {
            Metered::Window { limit, nanos, .. } => paper.window(limit, nanos, more),
            bucket @ Metered::Bucket { .. } => paper.bucket(bucket, more),
        };
        let takers = self
            .takers
            .iter()
            .map(|(&session, taker)| paper.taker(session, taker, step));
        let line = self
            .line
            .iter()
            .map(|place| (place.session.to_string(), place.wish, place.need));
        Note {
            nonce: paper.fresh,
            era,
            taken,
            edition: self.edition,
            token: self.token,
            meter,
            takers: takers.collect(),
            line: line.collect(),
            dated,
        }
    }
}
