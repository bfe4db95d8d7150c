//! A clock that all processes see: the time passed of a lease that is never renewed.
//!
//! The leader counts leases by a clock of its own that cannot be set, and reports the rest of one in whole seconds. A new
//! leader counts them from the beginning again: so readings of different terms are never compared. The term of a reading is
//! known when the server had heard of no other before, or when it answers so twice.

use super::Values;
use super::leases::{FOR_EVER, SharedLease};
use super::wire::{Life, MemberTerm};
use crate::document::{Clock, Time};
use crate::kv::Reading;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use tollgate::remote::StoreError;

const SECOND: u64 = 1_000_000;

impl Values {
    /// Reads the time passed of the clock's lease, or of the lease of the value.
    pub(super) async fn passed(&self, at: i64, clock: Option<Clock>) -> Result<Option<Reading>, StoreError> {
        let dated = clock.map_or(at, |(lease, _)| lease.cast_signed());
        let Some((life, said)) = self.ask_lease(dated).await? else {
            if dated == at {
                return Ok(None);
            }
            let other = self.ask_lease(at).await?;
            return Ok(other.map(|(_, next)| Reading { said: None, next }));
        };
        let next = if life.left > life.granted / 4 {
            said
        } else {
            self.begin_another(&life).await?.unwrap_or(said)
        };
        let said = Some(said).filter(|said| clock.is_none_or(|clock| clock == said.clock));
        Ok(Some(Reading { said, next }))
    }

    /// Begins another lease, as long as one that is over soon.
    async fn begin_another(&self, life: &Life) -> Result<Option<Time>, StoreError> {
        let shared_lease = self.shared_leases.of(&self.nodes, life.granted.unsigned_abs()).await?;
        Ok(self.ask_lease(shared_lease.lease).await?.map(|(_, said)| said))
    }

    /// Reads a lease. `None` when it is over, or when the term of the reading is unknown.
    async fn ask_lease(&self, lease: i64) -> Result<Option<(Life, Time)>, StoreError> {
        if lease == FOR_EVER {
            return Ok(None);
        }
        let mut before = self.member_term();
        for _ in 0..2 {
            let sent = (Instant::now(), SystemTime::now());
            let life = self.nodes.life(lease).await?;
            let member_term = self.note_member_term(life.header.member_term());
            if life.left < 0 || life.left > life.granted {
                return Ok(None);
            }
            if member_term != before {
                before = member_term;
                continue;
            }
            let [granted, left] = [life.granted, life.left].map(i64::unsigned_abs);
            self.shared_leases
                .adopt(granted, SharedLease::begun(lease, sent, Duration::from_secs(left)));
            // The rest is rounded down.
            let by = (granted - left).saturating_mul(SECOND);
            let said = Time {
                clock: (lease.cast_unsigned(), member_term.1),
                now: by.saturating_sub(SECOND),
                by,
                written: by,
            };
            return Ok(Some((life, said)));
        }
        Ok(None)
    }

    fn member_term(&self) -> MemberTerm {
        *self.member_term.lock()
    }

    pub(super) fn note_member_term(&self, member_term: MemberTerm) -> MemberTerm {
        *self.member_term.lock() = member_term;
        member_term
    }
}
