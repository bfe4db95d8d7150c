//! Rates and windows in etcd: the document of one is `<prefix><key>.rate/r`, or `<prefix><key>.window/r`. It expires when it
//! was unchanged for so long that it is not needed any more.

use super::Values;
use super::wire::{self, Done, Found as Pairs, Pair};
use crate::document::Clock;
use crate::http::Answer;
use crate::kv::{self, Found, Reading, Written};
use http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::StoreError;

impl Values {
    fn place(&self, key: &Key) -> String {
        format!("{}r", self.nodes.under(key))
    }

    /// Does `then` if `holds` does.
    async fn ask_if(&self, holds: &Value, then: &Value) -> Result<Answer, StoreError> {
        let txn = json!({ "compare": [holds], "success": [then] });
        self.nodes.ask("/v3/kv/txn", &txn).await
    }
}

/// The revision that wrote it, and its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    revision: i64,
    lease: i64,
}

impl kv::Values for Values {
    type At = At;

    async fn read(&self, key: &Key, _ttl: Duration) -> Result<Option<Found<At>>, StoreError> {
        let pairs: Pairs = self.nodes.found(key).await?;
        self.note_member_term(pairs.header.member_term());
        let found = |pair: Pair| {
            let (revision, lease, value) = (pair.mod_revision, pair.lease, pair.bytes);
            let at = At { revision, lease };
            (pair.key, Found { at, value })
        };
        Found::only(&self.place(key), pairs.kvs.into_iter().map(found))
    }

    async fn write(
        &self,
        key: &Key,
        _ttl: Duration,
        at: Option<&At>,
        value: Vec<u8>,
        lasts: Duration,
    ) -> Result<Written<At>, StoreError> {
        let place = self.place(key);
        let mut holds = match at {
            Some(at) => wire::changed_by(&place, at.revision),
            None => wire::nothing_under(&self.nodes.under(key)),
        };
        loop {
            let shared_lease = self.shared_leases.lease(&self.nodes, lasts).await?;
            let answer = self
                .ask_if(&holds, &wire::put(&place, &value, shared_lease.lease))
                .await?;
            if answer.status == StatusCode::NOT_FOUND && answer.text().contains("lease not found") {
                // It was revoked, or this process was stopped for long.
                self.shared_leases.forget(shared_lease.lease);
                return Ok(Written::Overtaken);
            }
            let done: Done = answer.json()?;
            if !done.succeeded {
                return Ok(Written::Overtaken);
            }
            let revision = done.header.revision;
            if shared_lease.covers(lasts) {
                let lease = shared_lease.lease;
                return Ok(Written::At(At { revision, lease }));
            }
            // It took so long that it would go too early.
            self.shared_leases.forget(shared_lease.lease);
            holds = wire::changed_by(&place, revision);
        }
    }

    async fn delete(&self, key: &Key, _ttl: Duration, at: &At) -> Result<bool, StoreError> {
        let place = self.place(key);
        let holds = wire::changed_by(&place, at.revision);
        let answer = self.ask_if(&holds, &wire::delete(&place)).await?;
        Ok(answer.json::<Done>()?.succeeded)
    }

    async fn time(
        &self,
        _key: &Key,
        _ttl: Duration,
        at: &At,
        clock: Option<Clock>,
    ) -> Result<Option<Reading>, StoreError> {
        self.passed(at.lease, clock).await
    }
}
