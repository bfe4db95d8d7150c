//! Leases that end by themselves: what lies under one was not changed for so long that nobody needs it any more.
//!
//! Nobody renews them. Whoever changes a value puts it under one that lasts long enough from then on; one lease does for all the
//! values of a process, until too little of it is left.

use super::shelves::{LONGEST, Shelves};
use crate::remote::backend::StoreError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// By how many seconds they last: the lease, and until when it does at least.
#[derive(Default)]
pub(super) struct Tenures(Mutex<BTreeMap<u64, (i64, Instant)>>);

/// No lease.
pub(super) const FOR_EVER: i64 = 0;

impl Tenures {
    /// A lease that lasts for `needed` from now on, by the server's clock too, and until when it does at least; none, when there
    /// is none that is as long.
    pub(super) async fn lease(
        &self,
        shelves: &Shelves,
        needed: Duration,
    ) -> Result<(i64, Option<Instant>), StoreError> {
        // Clocks run apart by a hundredth.
        let needed = needed
            .saturating_add(needed / 50)
            .saturating_add(Duration::from_secs(1));
        let seconds = needed.as_secs().saturating_mul(3).div_ceil(2).next_power_of_two();
        if seconds > LONGEST {
            return Ok((FOR_EVER, None));
        }
        let sent = Instant::now();
        if let Some(&(lease, until)) = self.0.lock().get(&seconds)
            && until.saturating_duration_since(sent) >= needed
        {
            return Ok((lease, Some(until)));
        }
        let (lease, lasts) = shelves.grant(Duration::from_secs(seconds)).await?;
        let until = sent + lasts;
        self.0.lock().insert(seconds, (lease, until));
        Ok((lease, Some(until)))
    }

    /// It has gone, before its time.
    pub(super) fn forget(&self, lease: i64) {
        self.0.lock().retain(|_, (known, _)| *known != lease);
    }
}
