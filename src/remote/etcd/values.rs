//! Rates and windows in etcd: `<prefix><key>.rate/r`, or `<prefix><key>.window/r`, is what is known of one. It goes when it was not
//! changed for so long that it says nothing any more.

use super::Values;
use super::words::{self, Done, Found as Pairs, Pair};
use crate::remote::backend::StoreError;
use crate::remote::book::Clock;
use crate::remote::http::Answer;
use crate::remote::key::Key;
use crate::remote::kv::{self, Found, Reading, Written};
use http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;

impl Values {
    fn place(&self, key: &Key) -> String {
        format!("{}r", self.shelves.under(key))
    }

    /// Does this if that holds.
    async fn ask_if(&self, holds: &Value, then: &Value) -> Result<Answer, StoreError> {
        let txn = json!({ "compare": [holds], "success": [then] });
        self.shelves.ask("/v3/kv/txn", &txn).await
    }
}

/// The revision by which it was put, and the lease under which it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    revision: i64,
    lease: i64,
}

impl kv::Values for Values {
    type At = At;

    async fn read(&self, key: &Key, _ttl: Duration) -> Result<Option<Found<At>>, StoreError> {
        let pairs: Pairs = self.shelves.found(key).await?;
        self.note_speaker(pairs.header.speaker());
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
            Some(at) => words::changed_by(&place, at.revision),
            None => words::nothing_under(&self.shelves.under(key)),
        };
        loop {
            let tenure = self.tenures.lease(&self.shelves, lasts).await?;
            let answer = self.ask_if(&holds, &words::put(&place, &value, tenure.lease)).await?;
            if answer.status == StatusCode::NOT_FOUND && answer.text().contains("lease not found") {
                // Somebody has revoked it, or this process was stopped for long.
                self.tenures.forget(tenure.lease);
                return Ok(Written::Overtaken);
            }
            let done: Done = answer.json()?;
            if !done.succeeded {
                return Ok(Written::Overtaken);
            }
            let revision = done.header.revision;
            if tenure.covers(lasts) {
                let lease = tenure.lease;
                return Ok(Written::At(At { revision, lease }));
            }
            // It took so long that it would go too early.
            self.tenures.forget(tenure.lease);
            holds = words::changed_by(&place, revision);
        }
    }

    async fn delete(&self, key: &Key, _ttl: Duration, at: &At) -> Result<bool, StoreError> {
        let place = self.place(key);
        let holds = words::changed_by(&place, at.revision);
        let answer = self.ask_if(&holds, &words::delete(&place)).await?;
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
