//! A rate or a window as a document, for stores of plain values that do not report the time.
//!
//! It has no instants: only taken tokens, how many of them still count, and lower bounds of ages. All of it holds from the
//! write of the document on, whenever it is read: a late reader counts too much, never too little. A process that
//! [observed](super::Observer) it before knows how much less it has become since.

use super::store_clock::{Clock, StoreDates};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tollgate::remote::model::{Fill, Place};
use tollgate::remote::{Grant, MAX_UNITS, Rule, Session};

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateDocument {
    /// Never the same twice: some stores ignore a write that changes nothing.
    pub(super) nonce: u64,
    /// Counts of one era do not continue in another. It is drawn anew with each document, and whenever the parts of a token
    /// change.
    pub(super) era: u64,
    /// Tokens taken in this era.
    pub(super) taken: u64,
    pub(super) edition: u64,
    pub(super) token: u64,
    pub(super) meter: MeterEntry,
    pub(super) takers: BTreeMap<String, TakerEntry>,
    /// Sessions that wait for a window, in order: the session, its request, its need.
    #[serde(rename = "line")]
    pub(super) queue: Vec<(String, u64, u64)>,
    /// Dates on a clock of the store, where it keeps one.
    #[serde(default, rename = "dated", skip_serializing_if = "Option::is_none")]
    pub(super) dates: Option<StoreDates>,
}

/// The count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum MeterEntry {
    Bucket {
        price: u64,
        gain: u64,
        brim: u64,
        level: u64,
    },
    Window {
        limit: u64,
        /// The length, in nanoseconds.
        nanos: u64,
        /// The oldest first: the taken tokens, and their least age in microseconds.
        lots: Vec<(u64, u64)>,
    },
}

/// A session that takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakerEntry {
    /// It expires when it was silent for this many microseconds.
    pub(super) ttl: u64,
    /// It was silent for at least this many microseconds.
    pub(super) age: u64,
    /// The latest date of its last sync, on the clock of the store; without it, before the document was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<u64>,
    pub(super) seq: u64,
    pub(super) charged: u64,
    pub(super) asked: u64,
    /// In how many microseconds its last grant may be used.
    pub(super) due: u64,
    /// Grants that the client has not seen: the request, the units, the token.
    pub(super) grants: Vec<(u64, u64, u64)>,
}

/// Beyond any real count: sums with it still fit.
pub(super) const FARTHEST: u64 = u64::MAX >> 2;

impl RateDocument {
    /// The text of the document.
    pub(crate) fn text(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Returns `None` for another value, a contradictory document, or one with numbers beyond any real count.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let document: Self = serde_json::from_slice(text).ok()?;
        document.holds().then_some(document)
    }

    /// True unless it contradicts itself, or has numbers beyond any real count.
    pub(crate) fn holds(&self) -> bool {
        let takers = self.takers.iter().all(|(name, entry)| {
            let grants = entry
                .grants
                .iter()
                .flat_map(|&(request, units, token)| [request, units, token]);
            let mut numbers = [entry.ttl, entry.age, entry.seq, entry.charged, entry.asked, entry.due]
                .into_iter()
                .chain(grants)
                .chain(entry.by);
            session(name).is_some() && numbers.all(|number| number <= FARTHEST)
        });
        let meter = match &self.meter {
            MeterEntry::Bucket {
                price,
                gain,
                brim,
                level,
            } => {
                let fits = |number: &u64| (1..Fill::EXACT / 8).contains(number);
                [price, gain, brim].into_iter().all(fits) && brim >= price && *level <= Fill::EXACT / 2
            }
            MeterEntry::Window { limit, nanos, lots } => {
                let sum = lots.iter().try_fold(0_u64, |sum, &(count, _)| sum.checked_add(count));
                let order = lots.windows(2).all(|pair| pair[0].1 >= pair[1].1);
                *limit <= MAX_UNITS && *nanos > 0 && order && sum.is_some_and(|sum| sum <= self.taken)
            }
        };
        let mut waiting = BTreeSet::new();
        let queue = self.queue.iter().all(|(name, request, need)| {
            self.takers.contains_key(name) && waiting.insert(name) && *request <= FARTHEST && *need <= MAX_UNITS
        });
        let numbers = [self.taken, self.edition, self.token];
        takers && queue && meter && self.dates_hold() && numbers.into_iter().all(|number| number <= FARTHEST)
    }

    fn dates_hold(&self) -> bool {
        let Some(dates) = &self.dates else { return true };
        let most = match self.meter {
            MeterEntry::Bucket { .. } => FARTHEST,
            MeterEntry::Window { .. } => self.taken,
        };
        dates.sum().is_some_and(|sum| sum <= most) && dates.lots.iter().all(|&(_, by)| by <= FARTHEST)
    }

    /// The clock of its dates.
    pub(crate) fn clock(&self) -> Option<Clock> {
        self.dates.as_ref().map(|dates| dates.clock)
    }

    /// The waiters.
    pub(super) fn queue(&self) -> impl Iterator<Item = Place> + '_ {
        self.queue.iter().filter_map(|(name, request, need)| {
            let (session, request, need) = (session(name)?, *request, *need);
            Some(Place { session, request, need })
        })
    }

    /// Its rule.
    pub(super) fn rule(&self) -> Option<Rule> {
        Some(match self.meter {
            MeterEntry::Bucket { price, gain, brim, .. } => Rule::Rate {
                quota: Fill { price, gain, brim }.quota()?,
            },
            MeterEntry::Window { limit, nanos, .. } => Rule::Window {
                limit,
                length: Duration::from_nanos(nanos),
            },
        })
    }
}

impl TakerEntry {
    pub(super) fn grants(&self) -> impl Iterator<Item = Grant> + '_ {
        let grant = |&(request, units, token)| Grant { request, units, token };
        self.grants.iter().map(grant)
    }
}

/// Parses a printed session.
pub(super) fn session(name: &str) -> Option<Session> {
    let (client, number) = name.split_once('.')?;
    let client = u64::from_str_radix(client, 16).ok()?;
    let session = Session {
        client,
        number: number.parse().ok()?,
    };
    (session.to_string() == name).then_some(session)
}
