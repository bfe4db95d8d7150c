//! A rate or a window as a document, for stores that keep documents and tell nobody the time.
//!
//! There is no instant in it: only what was taken, how much of that counts still, and how long ago at least things happened. All
//! of it holds from the write of the document on, whenever it is read: what is read late only counts for more than it is. How
//! much less it has become since is known to those who [saw](super::Witness) it before.

use super::bucket::{EXACT, Fill};
use super::dated::{Clock, Dated};
use super::rates::{Kind, Place, Rates};
use crate::remote::backend::{Grant, Rule, Session};
use crate::remote::plan::MAX_UNITS;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// All that is remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Note {
    /// Never the same twice: some stores take a write of what is there for none.
    pub(super) nonce: u64,
    /// What was taken in one era is not counted on in another: drawn anew with each document, and whenever parts of a token
    /// become others.
    pub(super) era: u64,
    /// How many tokens were taken in this era.
    pub(super) taken: u64,
    pub(super) edition: u64,
    pub(super) token: u64,
    pub(super) meter: Metered,
    pub(super) takers: BTreeMap<String, Noted>,
    /// Those who wait for room in a window, in order: the session, its wish, how many it needs.
    pub(super) line: Vec<(String, u64, u64)>,
    /// By when, on a clock of the store, where it keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dated: Option<Dated>,
}

/// What is counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Metered {
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
        /// The oldest first: how many were taken, and at least so many microseconds ago.
        lots: Vec<(u64, u64)>,
    },
}

/// A session that takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Noted {
    /// It is forgotten when nothing was heard of it for so many microseconds.
    pub(super) ttl: u64,
    /// Nothing was heard of it for at least so many microseconds.
    pub(super) age: u64,
    /// It was heard of for the last time by then, on the clock of the store; before the note was written, if that is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<u64>,
    pub(super) seq: u64,
    pub(super) charged: u64,
    pub(super) asked: u64,
    /// In how many microseconds the last of its grants may be used.
    pub(super) due: u64,
    /// Those that the client has not seen: the wish, the units, the token.
    pub(super) grants: Vec<(u64, u64, u64)>,
}

/// Nobody has counted as far: what comes on top of it is a number still.
pub(super) const FARTHEST: u64 = u64::MAX >> 2;

impl Note {
    /// As it was written.
    pub(crate) fn text(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// `None` when it is none, or contradicts itself, or counts further than anybody has.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let note: Self = serde_json::from_slice(text).ok()?;
        note.holds().then_some(note)
    }

    /// It contradicts itself nowhere, and counts no further than anybody has.
    pub(crate) fn holds(&self) -> bool {
        let takers = self.takers.iter().all(|(name, noted)| {
            let grants = noted
                .grants
                .iter()
                .flat_map(|&(wish, units, token)| [wish, units, token]);
            let mut numbers = [noted.ttl, noted.age, noted.seq, noted.charged, noted.asked, noted.due]
                .into_iter()
                .chain(grants)
                .chain(noted.by);
            session(name).is_some() && numbers.all(|number| number <= FARTHEST)
        });
        let meter = match &self.meter {
            Metered::Bucket {
                price,
                gain,
                brim,
                level,
            } => {
                let fits = |number: &u64| (1..EXACT / 8).contains(number);
                [price, gain, brim].into_iter().all(fits) && brim >= price && *level <= EXACT / 2
            }
            Metered::Window { limit, nanos, lots } => {
                let sum = lots.iter().try_fold(0_u64, |sum, &(count, _)| sum.checked_add(count));
                let order = lots.windows(2).all(|pair| pair[0].1 >= pair[1].1);
                *limit <= MAX_UNITS && *nanos > 0 && order && sum.is_some_and(|sum| sum <= self.taken)
            }
        };
        let mut waiting = BTreeSet::new();
        let line = self.line.iter().all(|(name, wish, need)| {
            self.takers.contains_key(name) && waiting.insert(name) && *wish <= FARTHEST && *need <= MAX_UNITS
        });
        let numbers = [self.taken, self.edition, self.token];
        takers && line && meter && self.dates_hold() && numbers.into_iter().all(|number| number <= FARTHEST)
    }

    fn dates_hold(&self) -> bool {
        let Some(dated) = &self.dated else { return true };
        let most = match self.meter {
            Metered::Bucket { .. } => FARTHEST,
            Metered::Window { .. } => self.taken,
        };
        dated.sum().is_some_and(|sum| sum <= most) && dated.lots.iter().all(|&(_, by)| by <= FARTHEST)
    }

    /// The clock by which it is dated.
    pub(crate) fn clock(&self) -> Option<Clock> {
        self.dated.as_ref().map(|dated| dated.clock)
    }

    /// Those who wait.
    pub(super) fn line(&self) -> impl Iterator<Item = Place> + '_ {
        self.line.iter().filter_map(|(name, wish, need)| {
            let (session, wish, need) = (session(name)?, *wish, *need);
            Some(Place { session, wish, need })
        })
    }

    /// The rule that it goes by.
    pub(super) fn rule(&self) -> Option<Rule> {
        Some(match self.meter {
            Metered::Bucket { price, gain, brim, .. } => Rule::Rate {
                quota: Fill { price, gain, brim }.quota()?,
            },
            Metered::Window { limit, nanos, .. } => Rule::Window {
                limit,
                length: Duration::from_nanos(nanos),
            },
        })
    }
}

impl Noted {
    pub(super) fn grants(&self) -> impl Iterator<Item = Grant> + '_ {
        let grant = |&(wish, units, token)| Grant { wish, units, token };
        self.grants.iter().map(grant)
    }
}

impl Rates {
    /// What of it is counted, without its lots.
    pub(super) fn metered(&self) -> Metered {
        match (&self.meter, self.rule) {
            (Kind::Bucket(bucket, fill), _) => Metered::Bucket {
                price: fill.price,
                gain: fill.gain,
                brim: fill.brim,
                level: bucket.level,
            },
            (Kind::Window(window, length), _) => Metered::Window {
                limit: crate::rate::WindowMeter::limit(window),
                nanos: u64::try_from(length.as_nanos()).unwrap_or(FARTHEST),
                lots: Vec::new(),
            },
        }
    }
}

/// A session, as it is printed.
pub(super) fn session(name: &str) -> Option<Session> {
    let (client, number) = name.split_once('.')?;
    let client = u64::from_str_radix(client, 16).ok()?;
    let session = Session {
        client,
        number: number.parse().ok()?,
    };
    (session.to_string() == name).then_some(session)
}
