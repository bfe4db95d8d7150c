//! Leases that expire by themselves, with values that were unchanged for so long that they are not needed any more.
//!
//! They are never renewed. A writer of a value puts it under one that lasts long enough from then on. One lease serves all
//! values of a process, until too little of it is left.

use super::nodes::{LONGEST, Nodes};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use tollgate::remote::StoreError;

/// By their length in seconds.
#[derive(Default)]
pub(super) struct SharedLeases(Mutex<BTreeMap<u64, SharedLease>>);

/// A lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedLease {
    pub(super) lease: i64,
    /// When it was asked for, by two clocks: the monotonic one may stand still while the machine sleeps.
    sent: (Instant, SystemTime),
    lasts: Duration,
}

/// No lease.
pub(super) const FOR_EVER: i64 = 0;

impl SharedLease {
    pub(super) fn begun(lease: i64, sent: (Instant, SystemTime), lasts: Duration) -> Self {
        Self { lease, sent, lasts }
    }

    /// The least rest of it: zero if the wall clock was set back.
    fn left(&self) -> Duration {
        let (steady, wall) = self.sent;
        let passed = wall.elapsed().unwrap_or(Duration::MAX).max(steady.elapsed());
        self.lasts.saturating_sub(passed)
    }

    /// True if it lasts for `needed` from now on, by the server's clock too.
    pub(super) fn covers(&self, needed: Duration) -> bool {
        self.lease == FOR_EVER || self.left() >= with_margin(needed)
    }
}

/// Clocks drift apart by 1 %.
fn with_margin(needed: Duration) -> Duration {
    needed.saturating_add(needed / 50)
}

impl SharedLeases {
    /// A lease that lasts for `needed` from now on, by the server's clock too, and for a second in which to write; none if no
    /// lease can be that long.
    pub(super) async fn lease(&self, nodes: &Nodes, needed: Duration) -> Result<SharedLease, StoreError> {
        let needed = needed.saturating_add(Duration::from_secs(1));
        let seconds = with_margin(needed).as_secs().saturating_mul(3).div_ceil(2);
        let seconds = seconds.checked_next_power_of_two().unwrap_or(u64::MAX);
        let sent = (Instant::now(), SystemTime::now());
        if seconds > LONGEST {
            return Ok(SharedLease::begun(FOR_EVER, sent, Duration::MAX));
        }
        match self.known(seconds, needed) {
            Some(known) => Ok(known),
            None => self.of(nodes, seconds).await,
        }
    }

    /// Grants a new one, of this many seconds.
    pub(super) async fn of(&self, nodes: &Nodes, seconds: u64) -> Result<SharedLease, StoreError> {
        let sent = (Instant::now(), SystemTime::now());
        let (lease, lasts) = nodes.grant(Duration::from_secs(seconds)).await?;
        let shared_lease = SharedLease::begun(lease, sent, lasts);
        self.0.lock().insert(seconds, shared_lease);
        Ok(shared_lease)
    }

    /// Adopts a lease of another process for this length, unless a known one lasts longer.
    pub(super) fn adopt(&self, seconds: u64, theirs: SharedLease) {
        let mut known = self.0.lock();
        let ours = known.entry(seconds).or_insert(theirs);
        if ours.left() < theirs.left() {
            *ours = theirs;
        }
    }

    /// A present lease that lasts long enough.
    fn known(&self, seconds: u64, needed: Duration) -> Option<SharedLease> {
        let known = self.0.lock().get(&seconds).copied();
        known.filter(|shared_lease| shared_lease.covers(needed))
    }

    /// Forgets a lease that has gone before its time.
    pub(super) fn forget(&self, lease: i64) {
        self.0.lock().retain(|_, known| known.lease != lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const LASTS: Duration = Duration::from_secs(8_192);

    fn shared_leases(wall: SystemTime) -> SharedLeases {
        let shared_leases = SharedLeases::default();
        let shared_lease = SharedLease::begun(7, (Instant::now(), wall), LASTS);
        shared_leases.0.lock().insert(LASTS.as_secs(), shared_lease);
        shared_leases
    }

    /// The machine slept for an hour, in which the monotonic clock stood still.
    #[test]
    fn the_rest_of_a_lease_is_known_after_a_sleep() {
        let awake = shared_leases(SystemTime::now());
        let slept = shared_leases(SystemTime::now() - HOUR);
        let needed = LASTS - HOUR;
        assert!(awake.known(LASTS.as_secs(), needed).is_some());
        assert!(slept.known(LASTS.as_secs(), needed).is_none(), "another is asked for");
        let left = |shared_leases: &SharedLeases| shared_leases.0.lock()[&LASTS.as_secs()].left();
        assert!(left(&awake) > needed && left(&slept) <= needed);
        assert!(slept.known(LASTS.as_secs(), needed / 2).is_some());
    }

    #[test]
    fn a_clock_that_was_set_back_says_nothing() {
        let set = shared_leases(SystemTime::now() + HOUR);
        assert!(set.known(LASTS.as_secs(), Duration::from_millis(1)).is_none());
    }

    /// With a margin of less than 1 %, three seconds here may be less by the server's clock.
    #[test]
    fn a_margin_is_kept_for_clocks_that_run_apart() {
        let covers = |lasts, needed| {
            let (lasts, needed) = (Duration::from_secs(lasts), Duration::from_secs(needed));
            SharedLease::begun(7, (Instant::now(), SystemTime::now()), lasts).covers(needed)
        };
        assert!(covers(10_300, 10_000));
        assert!(!covers(10_100, 10_000));
    }
}
