//! What a limiter of many keys does and holds.

use super::client::Client;
use crate::remote::backend::StoreError;
use crate::time::Instant;

/// The state of a limiter of many keys in this process, and counts since it was built. From [`RemoteKeyed::stats`](super::RemoteKeyed::stats).
///
/// ```
/// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteKeyedStats, RemoteLeg};
/// # use tollgate::ManualClock;
/// let clock = ManualClock::new();
/// let limits = KeyedLimits::new(100, "free", [RemoteLeg::permits("in flight", 4)]);
/// let tenants = Remote::keyed(Key::new("tenants")?, limits).on(&clock).in_place(Memory::new(&clock))?;
/// let acme = tenants.get("acme")?;
/// clock.run(async {
///     let permit = acme.acquire(3).await.unwrap();
///     assert!(acme.acquire_now(2).await.is_err());
///     let stats: RemoteKeyedStats = tenants.stats();
///     assert_eq!((stats.leases, stats.permits, stats.admitted, stats.refused), (1, 3, 1, 1));
///     drop(permit);
/// });
/// assert_eq!(tenants.stats().leases, 0);
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteKeyedStats {
    /// Keys that are known here.
    pub keys: usize,
    /// Keys of which permits are held here, each by a lease.
    pub leases: usize,
    /// Permits that are held here, of all keys.
    pub permits: u64,
    /// Waiters here.
    pub waiting: usize,
    /// No step was answered for the time until the store is unavailable. Where that is the step of one key alone, other keys are asked for
    /// all the same.
    pub unavailable: bool,
    /// Steps that the store has answered, renewals included.
    pub steps: u64,
    /// Steps that failed, each time.
    pub failures: u64,
    /// Admissions by the store.
    pub admitted: u64,
    /// Admissions while the store was unavailable, or the step of a key failed: no store has counted them.
    pub admitted_unavailable: u64,
    /// Refusals by the store, and of asks that would overtake waiters of this process. A refusal that is [remembered](super::RemoteKeyed)
    /// counts once.
    pub refused: u64,
    /// Leases that ended while they had permits.
    pub losses: u64,
    /// Why the last step failed; `None` if one was answered since, at whatever key.
    pub last_error: Option<StoreError>,
}

impl RemoteKeyedStats {
    pub(super) fn of(client: &Client, now: Instant) -> Self {
        let (leases, permits) = client.permits();
        Self {
            keys: client.len(),
            leases,
            permits,
            waiting: client.waiting(),
            unavailable: client.is_silent_for_long(now),
            last_error: client.last_error().cloned(),
            ..client.counters.clone()
        }
    }
}
