//! A clock that all see: what has passed of a lease that nobody renews.
//!
//! The leader counts leases by a clock of its own that cannot be set, and says in whole seconds how much of one is left. A new
//! leader counts them from the beginning again: so what was said in one term is compared with nothing that was said in another.
//! Which term it was is known when the server that was asked had heard of no other before, or when it answers so twice.

use super::Values;
use super::leases::{FOR_EVER, SharedLease};
use super::wire::{Life, Speaker};
use crate::remote::backend::StoreError;
use crate::remote::kv::Reading;
use crate::remote::model::{Clock, Time};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

const SECOND: u64 = 1_000_000;

impl Values {
    /// What has passed of this lease, or of the one under which the value lies.
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

    /// A lease as long as one that is over soon.
    async fn begin_another(&self, life: &Life) -> Result<Option<Time>, StoreError> {
        let shared_lease = self.shared_leases.of(&self.nodes, life.granted.unsigned_abs()).await?;
        Ok(self.ask_lease(shared_lease.lease).await?.map(|(_, said)| said))
    }

    /// `None` when it is over, or nobody knows who says so.
    async fn ask_lease(&self, lease: i64) -> Result<Option<(Life, Time)>, StoreError> {
        if lease == FOR_EVER {
            return Ok(None);
        }
        let mut before = self.speaker();
        for _ in 0..2 {
            let sent = (Instant::now(), SystemTime::now());
            let life = self.nodes.life(lease).await?;
            let speaker = self.note_speaker(life.header.speaker());
            if life.left < 0 || life.left > life.granted {
                return Ok(None);
            }
            if speaker != before {
                before = speaker;
                continue;
            }
            let [granted, left] = [life.granted, life.left].map(i64::unsigned_abs);
            self.shared_leases
                .adopt(granted, SharedLease::begun(lease, sent, Duration::from_secs(left)));
            // What is left is rounded down.
            let by = (granted - left).saturating_mul(SECOND);
            let said = Time {
                clock: (lease.cast_unsigned(), speaker.1),
                now: by.saturating_sub(SECOND),
                by,
                written: by,
            };
            return Ok(Some((life, said)));
        }
        Ok(None)
    }

    fn speaker(&self) -> Speaker {
        *self.speaker.lock()
    }

    pub(super) fn note_speaker(&self, speaker: Speaker) -> Speaker {
        *self.speaker.lock() = speaker;
        speaker
    }
}
