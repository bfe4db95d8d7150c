//! The limit of a key, which lies there as long as anybody uses it: under a lease of its own, which lasts longer than theirs.

use super::kept::foreign;
use super::lease::Lease;
use super::shelves::{LONGEST, Shelves};
use super::words::{self, Found};
use crate::remote::backend::StoreError;
use crate::remote::key::Key;
use crate::remote::plan::MAX_UNITS;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

impl Shelves {
    /// What makes the limit be there, and be `set`, if that is said.
    pub(super) async fn limited(
        &self,
        lease: &Lease,
        at: &str,
        limit: u64,
        set: Option<u64>,
    ) -> Result<Option<Value>, StoreError> {
        let query = json!({ "key": words::encoded(at) });
        let found: Found = self.call("/v3/kv/range", &query).await?;
        let again = set.map(|limit| limit.to_string());
        if let Some(pair) = found.kvs.first() {
            let units = pair.number().filter(|&units| units <= MAX_UNITS);
            units.ok_or_else(|| foreign(&pair.key))?;
            return Ok(again.map(|limit| words::put_again(at, &limit)));
        }
        let id = self.grant_limit(lease).await?;
        let first = set.unwrap_or(limit).to_string();
        Ok(Some(words::put_first(at, &first, id, again.as_deref())))
    }

    /// A lease for a limit.
    async fn grant_limit(&self, lease: &Lease) -> Result<i64, StoreError> {
        if let Some(id) = lease.spare() {
            return Ok(id);
        }
        let sent = Instant::now();
        let (id, _) = self.grant(outliving(lease)).await?;
        lease.has_spare(id, sent);
        Ok(id)
    }

    /// Makes the limit be there as long as this session is: it may lie under the lease of sessions that are shorter, or have gone
    /// with it. It stays what it was. True when there may be something new to see.
    pub(super) async fn secure(&self, lease: &Lease, key: &Key, limit: u64) -> Result<bool, StoreError> {
        if lease.has_limit() {
            return Ok(false);
        }
        let known = lease.limit();
        if let Some(there) = known.filter(|limit| limit.revision > 0) {
            let life = self.life(there.lease).await?;
            if life.left > 0 && Duration::from_secs(life.granted.unsigned_abs()) >= outliving(lease) {
                lease.is_outlived_by(there.lease);
                return Ok(false);
            }
        }
        let under = self.under(key);
        let at = format!("{under}l");
        let id = self.grant_limit(lease).await?;
        let units = known.map_or(limit, |limit| limit.units);
        let txn = json!({
            "compare": [
                words::changed_by(&at, known.map_or(0, |limit| limit.revision)),
                words::something_under(&format!("{under}s/")),
            ],
            "success": [words::put(&at, &units.to_string(), id)],
        });
        self.call::<Value>("/v3/kv/txn", &txn).await?;
        Ok(true)
    }
}

/// How long the lease of a limit lasts at least.
fn outliving(lease: &Lease) -> Duration {
    lease.lasts.saturating_mul(3).min(Duration::from_secs(LONGEST))
}
