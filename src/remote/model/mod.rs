//! The state of one key as pure state machines: the reference for every backend, and, for stores of plain values, a document.
//! Time is microseconds of the store's clock.

mod bucket;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod observer;
mod permits;
#[cfg(feature = "consul")]
#[allow(dead_code, reason = "not every store needs all of it")]
mod permits_document;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod rate_document;
mod rates;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod store_clock;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod transaction;

use super::backend::{Notification, Rule, Session, SyncReply, SyncRequest};
pub(crate) use bucket::Fill;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(crate) use observer::Observer;
pub(crate) use permits::Permits;
#[cfg(feature = "consul")]
pub(crate) use permits_document::PermitsDocument;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(crate) use rate_document::RateDocument;
pub(crate) use rates::{Kind as Meter, Rates};
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(crate) use store_clock::{Clock, Time};
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(crate) use transaction::{DocumentChange, Mismatch, Transaction, fresh_in, transact};

/// The state of one key.
#[derive(Debug)]
pub(crate) enum Model {
    Permits(Permits),
    Rates(Rates),
}

/// The outcome of a sync: the reply, and the sessions to be notified.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reply: SyncReply,
    pub(crate) notify: Vec<Session>,
}

impl Model {
    /// An empty model, whose tokens are greater than `token`.
    pub(crate) fn new(rule: &Rule, now: u64, token: u64) -> Self {
        match *rule {
            Rule::Permits { limit } => Self::Permits(Permits::new(limit, token)),
            Rule::Rate { .. } | Rule::Window { .. } => Self::Rates(Rates::new(rule, now, token)),
        }
    }

    /// True when it is for a rule of this kind.
    pub(crate) fn fits(&self, rule: &Rule) -> bool {
        match self {
            Self::Permits(_) => matches!(rule, Rule::Permits { .. }),
            Self::Rates(rates) => rates.fits(rule),
        }
    }

    pub(crate) fn sync(&mut self, now: u64, rule: &Rule, sync: &SyncRequest) -> Outcome {
        match self {
            Self::Permits(model) => model.sync(now, sync),
            Self::Rates(model) => model.sync(now, rule, sync),
        }
    }

    /// True when the state may be deleted without a loss. A rate is kept until it is as good as new.
    pub(crate) fn is_empty(&self, now: u64) -> bool {
        match self {
            Self::Permits(model) => model.is_empty(),
            Self::Rates(model) => model.is_empty(now),
        }
    }

    /// The notification for `session`.
    pub(crate) fn notification(&self, session: Session) -> Notification {
        match self {
            Self::Permits(model) => model.notification(session),
            Self::Rates(_) => Notification::Sync,
        }
    }

    /// Advances the time.
    pub(crate) fn sweep(&mut self, now: u64) {
        match self {
            Self::Permits(model) => model.sweep(now),
            Self::Rates(model) => model.sweep(now),
        }
    }

    /// The highest token so far.
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Permits(model) => model.token(),
            Self::Rates(model) => model.token(),
        }
    }
}

/// The next token: above the last, and not below the time, so that tokens grow even where the state was lost.
fn next_token(last: u64, now: u64) -> u64 {
    (last + 1).max(now)
}

/// Whole microseconds, rounded up.
pub(crate) fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
