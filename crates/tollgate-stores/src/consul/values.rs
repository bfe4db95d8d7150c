//! Rates and windows in Consul: the document of one is `<prefix><key>.rate/rate`, or `<prefix><key>.window/rate`.

use super::api::{Api, Entry, Op};
use super::folder;
use crate::kv::{Found, Values, Written};
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::StoreError;

/// Values in the folders of limiters.
pub(super) struct Folders {
    pub(super) api: Api,
    pub(super) prefix: Box<str>,
}

impl Folders {
    fn place(&self, key: &Key) -> String {
        format!("{}rate", folder(&self.prefix, key))
    }
}

impl Values for Folders {
    /// The number of the write: of all writes to the store.
    type At = u64;

    async fn read(&self, key: &Key, _ttl: Duration) -> Result<Option<Found<u64>>, StoreError> {
        let folder = folder(&self.prefix, key);
        let (entries, _) = self.api.list(&folder).await?;
        let there = entries.into_iter().filter(|entry| entry.key != folder);
        let found = |entry: Entry| {
            let (at, value) = (entry.index, entry.value);
            (entry.key, Found { at, value })
        };
        Found::only(&self.place(key), there.map(found))
    }

    async fn write(
        &self,
        key: &Key,
        _ttl: Duration,
        at: Option<&u64>,
        value: Vec<u8>,
        _lasts: Duration,
    ) -> Result<Written<u64>, StoreError> {
        let op = Op::cas(&self.place(key), &value, at.copied().unwrap_or(0));
        let written = self.api.change(&[op]).await?;
        Ok(written.map_or(Written::Overtaken, Written::At))
    }

    async fn delete(&self, key: &Key, _ttl: Duration, at: &u64) -> Result<bool, StoreError> {
        // A missing value has been deleted: by an attempt whose answer was lost, or by others.
        let op = Op::delete_cas(&self.place(key), *at);
        Ok(self.api.change(&[op]).await?.is_some())
    }
}
