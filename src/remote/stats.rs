//! How a remote limiter stands, read without a round trip.

use super::StoreError;
use super::client::Client;
use crate::time::{Clock, Instant};
use std::time::Duration;

/// A snapshot: what is known here, and what the store said last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteStats {
    /// The limit at the store; as it was set here, before the store has answered.
    pub limit: u64,
    /// The store's rule differs from the one that this limiter was set up with: it was [changed](super::Remote::set_limit), or the
    /// first process to use the permits was set up with another limit. For a rate or window also: while something of it was
    /// taken, another process goes by another rule.
    pub differs: bool,
    /// How many units the store has given out, to everybody.
    pub in_use: u64,
    /// How many wishes wait at the store.
    pub waiting: u64,
    /// How many sessions the store knows.
    pub sessions: u64,
    /// How old the four numbers above are, at most; `None` before the store has answered.
    pub age: Option<Duration>,
    /// How many units this process holds at the store; zero for a rate.
    pub held: u64,
    /// How many of them are in use here.
    pub in_use_here: u64,
    /// How many units are at hand here.
    pub available_here: u64,
    /// How many wait here.
    pub waiting_here: u64,
    /// The store counts as away.
    pub unavailable: bool,
    /// Why the last step failed; `None` when it did not.
    pub last_error: Option<StoreError>,
    /// How many steps were taken, round trips, in all.
    pub syncs: u64,
    /// How many of them failed.
    pub failures: u64,
    /// How many admissions there were, not counting those while the store was away.
    pub admitted: u64,
    /// How many while it was.
    pub admitted_unavailable: u64,
    /// How often a lease with units was lost.
    pub losses: u64,
    /// How many tokens were dropped because they were not spent in time.
    pub expired: u64,
}

impl RemoteStats {
    pub(super) fn of(client: &mut Client, clock: &Clock, now: Instant) -> Self {
        client.drop_stale(now);
        let (usage, at) = client.usage().unzip();
        let usage = usage.unwrap_or_default();
        let counters = client.counters;
        Self {
            limit: client.limit(),
            differs: client.differs(),
            in_use: usage.in_use,
            waiting: usage.waiting,
            sessions: usage.sessions,
            age: at.map(|at| clock.between(at, now)),
            held: client.held(),
            in_use_here: client.in_use(),
            available_here: client.free(now),
            waiting_here: client.waiting(),
            unavailable: client.is_unavailable(),
            last_error: client.last_error().cloned(),
            syncs: counters.syncs,
            failures: counters.failures,
            admitted: counters.granted,
            admitted_unavailable: counters.uncounted,
            losses: counters.losses,
            expired: counters.expired,
        }
    }
}
