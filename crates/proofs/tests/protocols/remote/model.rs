//! The reference of the stores.

#[path = "../../../../../src/remote/model/bucket.rs"]
mod bucket;
#[path = "../../../../../src/remote/model/legs.rs"]
mod legs;
#[path = "../../../../../src/remote/model/permits.rs"]
mod permits;

use super::backend::{Rule, Session, SyncReply};
pub(crate) use bucket::Fill;
pub(crate) use legs::KeyLegs;
pub(crate) use permits::{Held, Permits, PermitsState};
pub(crate) use tollgate::remote::model::segment;

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reply: SyncReply,
    pub(crate) notify: Vec<Session>,
}

pub(crate) fn notification(permits: &Permits, session: Session) -> super::backend::Notification {
    permits.notification(session)
}

pub(crate) fn sweep(permits: &mut Permits, now: u64) {
    permits.sweep(now);
}

pub(crate) fn next_token(last: u64, now: u64) -> u64 {
    (last + 1).max(now)
}

pub(crate) fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// The share of a process that is cut off. No model has one: it is a local limiter.
#[derive(Clone, Debug)]
pub(crate) struct Meter;

impl Meter {
    pub(crate) fn new(_: &Rule, _: u64) -> Self {
        Self
    }
    pub(crate) fn adopt(&mut self, _: &Rule) {}
    pub(crate) fn advance(&mut self, _: u64) {}
    pub(crate) fn fits(&self, _: u64) -> bool {
        false
    }
    pub(crate) fn take(&mut self, _: u64) {}
    pub(crate) fn wait(&self, _: u64) -> Option<u64> {
        None
    }
}
