//! The state of a remote limiter, read without a round trip.

use super::StoreError;
use super::client::Client;
use crate::time::{Clock, Instant};
use std::time::Duration;

/// A snapshot of the local state and of the store's last reply.
///
/// ```
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::ManualClock;
/// # use std::sync::Arc;
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// let exports = Remote::permits(Key::new("exports")?, 2).on(&clock).in_place(store)?;
/// let permit = clock.run(exports.acquire(1)).unwrap();
/// let stats = exports.stats();
/// assert_eq!((stats.limit, stats.in_use, stats.in_use_here), (2, 1, 1));
/// # drop(permit);
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteStats {
    /// The limit at the store; as set up here, before the store has replied.
    pub limit: u64,
    /// The store's rule differs from the one that this limiter was set up with: it was [changed](super::Remote::set_limit), or
    /// the first process to use the permits was set up with another limit. For a rate or window also: while something of it was
    /// taken, another process uses another rule.
    pub differs: bool,
    /// Units that the store has granted, to all sessions. Of a rate whose capacity is leased: the leased part of the burst.
    pub in_use: u64,
    /// Requests that wait at the store.
    pub waiting: u64,
    /// Sessions that the store knows.
    pub sessions: u64,
    /// The age of the four numbers above, at most; `None` before the store has replied.
    pub age: Option<Duration>,
    /// Units that this process holds at the store; zero for a rate. If its capacity is leased: the part of the burst here.
    pub held: u64,
    /// The same in the store's units: of a rate whose capacity is leased there are 2^20.
    pub units_held: u64,
    /// How many of them are in use here.
    pub in_use_here: u64,
    /// Units that can be admitted here without the store.
    pub available_here: u64,
    /// Waiters in this process.
    pub waiting_here: u64,
    /// The store counts as unavailable.
    pub unavailable: bool,
    /// Why the last sync failed; `None` if it did not.
    pub last_error: Option<StoreError>,
    /// All syncs, each a round trip.
    pub syncs: u64,
    /// Failed syncs.
    pub failures: u64,
    /// Admissions, not counting those while the store was unavailable.
    pub admitted: u64,
    /// Admissions while the store was unavailable.
    pub admitted_unavailable: u64,
    /// Requests for units that were sent to the store, each counted once.
    pub requests: u64,
    /// Times that units went back because other processes waited.
    pub recalls: u64,
    /// Leases that lapsed while they had units.
    pub losses: u64,
    /// Tokens dropped because they were not spent in time.
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
            in_use: client.in_units(usage.in_use),
            waiting: usage.waiting,
            sessions: usage.sessions,
            age: at.map(|at| clock.between(at, now)),
            held: client.in_units(client.held()),
            units_held: client.held(),
            in_use_here: client.in_use(),
            available_here: client.free(now),
            waiting_here: client.waiting(),
            unavailable: client.is_unavailable(),
            last_error: client.last_error().cloned(),
            syncs: counters.syncs,
            failures: counters.failures,
            admitted: counters.granted,
            admitted_unavailable: counters.uncounted,
            requests: counters.requests,
            recalls: counters.recalls,
            losses: counters.losses,
            expired: counters.expired,
        }
    }
}
