//! Rates and windows in etcd: `<prefix><key>/r` is what is known of one.

use super::shelves::Shelves;
use super::words::{self, Done, Found as Pairs};
use crate::remote::backend::StoreError;
use crate::remote::key::Key;
use crate::remote::kv::{Found, Values, Written};
use serde_json::{Value, json};
use std::time::Duration;

impl Shelves {
    fn note(&self, key: &Key) -> String {
        format!("{}r", self.under(key))
    }

    /// Does this if that holds.
    async fn done_if(&self, holds: &[Value], then: &Value) -> Result<Done, StoreError> {
        let txn = json!({ "compare": holds, "success": [then] });
        self.call("/v3/kv/txn", &txn).await
    }
}

impl Values for Shelves {
    /// The revision by which it was put.
    type At = i64;

    async fn read(&self, key: &Key, _ttl: Duration) -> Result<Option<Found<i64>>, StoreError> {
        let pairs: Pairs = self.found(key).await?;
        let note = self.note(key);
        let mut found = None;
        for pair in pairs.kvs {
            if pair.key != note {
                let why = format!("`{}` is not of a rate or window", pair.key).into();
                return Err(StoreError::Refused { why });
            }
            let (at, value) = (pair.mod_revision, pair.bytes);
            found = Some(Found { at, value });
        }
        Ok(found)
    }

    async fn write(
        &self,
        key: &Key,
        _ttl: Duration,
        at: Option<&i64>,
        value: Vec<u8>,
        _lasts: Duration,
    ) -> Result<Written<i64>, StoreError> {
        let note = self.note(key);
        let holds = match at {
            Some(&revision) => words::changed_by(&note, revision),
            None => words::nothing_under(&self.under(key)),
        };
        let done = self.done_if(&[holds], &words::put(&note, &value, 0)).await?;
        Ok(if done.succeeded {
            Written::At(done.header.revision)
        } else {
            Written::Overtaken
        })
    }

    async fn delete(&self, key: &Key, _ttl: Duration, at: &i64) -> Result<bool, StoreError> {
        let note = self.note(key);
        let holds = words::changed_by(&note, *at);
        Ok(self.done_if(&[holds], &words::delete(&note)).await?.succeeded)
    }
}
