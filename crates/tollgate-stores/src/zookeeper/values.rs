//! Rates and windows in ZooKeeper: the node of a key has one child, whose data is the document.
//!
//! Versions of a node begin anew when it is created anew. So the child has another name each time. Creating one changes the
//! data of the node above, which must be unchanged before then: it goes with its child.

use super::link::{Link, failed};
use super::{NodeStore, Nodes};
use crate::document::{Clock, Time};
use crate::kv::{Found, Reading, Values, Written};
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::StoreError;
use tollgate::remote::model::random_number;
use zookeeper_client::{CreateMode, Error, MultiWriteError, Stat};

/// The data of the node of a key that is one of a rate or window.
const RATE: &[u8] = b"rate";
/// How many times a value that is deleted during a read is looked for again.
const ATTEMPTS: usize = 4;

/// A child, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    name: Box<str>,
    version: i32,
}

impl Link {
    async fn read_value(&self, key: &str) -> Result<Option<Found<At>>, StoreError> {
        let path = self.path(key);
        for _ in 0..ATTEMPTS {
            let look = self.look(&path).await;
            let (names, data) = match look {
                Ok(seen) => (seen.names, seen.limit),
                Err(Error::NoNode) => return Ok(None),
                Err(error) => return Err(failed(error)),
            };
            if data != RATE || names.len() > 1 {
                let why = format!("`{path}` is not of a rate or window").into();
                return Err(StoreError::Refused { why });
            }
            let Some(name) = names.first() else { return Ok(None) };
            match self.client.get_data(&format!("{path}/{name}")).await {
                Ok((value, stat)) => {
                    let (name, version) = (name.as_str().into(), stat.version);
                    let at = At { name, version };
                    return Ok(Some(Found { at, value }));
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let why = format!("what lies under `{path}` changes all the time").into();
        Err(StoreError::Unreachable { why })
    }

    async fn make_value(&self, key: &str, value: &[u8]) -> Result<Written<At>, StoreError> {
        let path = self.path(key);
        let options = CreateMode::Persistent.with_acls(self.access.acls());
        let mut made = self.client.create(&path, RATE, &options).await.map(drop);
        if made == Err(Error::NoNode) {
            self.make_above().await?;
            made = self.client.create(&path, RATE, &options).await.map(drop);
        }
        if made == Err(Error::NodeExists) {
            // Of a process that went away before there was a child; or of permits.
            match self.client.get_data(&path).await {
                Ok((data, stat)) if data == RATE && stat.version == 0 => {}
                Ok((data, stat)) if data == RATE => {
                    // Its child was deleted, or another process has just created one: then it stays.
                    let _ = self.client.delete(&path, Some(stat.version)).await;
                    return Ok(Written::Overtaken);
                }
                Ok(_) | Err(Error::NoNode) => return Ok(Written::Overtaken),
                Err(error) => return Err(failed(error)),
            }
        } else {
            made.map_err(failed)?;
        }
        let name: Box<str> = format!("n-{:016x}", random_number()).into();
        let mut changes = self.client.new_multi_writer();
        let built = changes
            .add_set_data(&path, RATE, Some(0))
            .and_then(|()| changes.add_create(&format!("{path}/{name}"), value, &options));
        built.map_err(failed)?;
        match changes.commit().await {
            Ok(_) => Ok(Written::At(At { name, version: 0 })),
            Err(error) => overtaken(error).map(|()| Written::Overtaken),
        }
    }

    async fn write_value(&self, key: &str, at: &At, value: &[u8]) -> Result<Written<At>, StoreError> {
        let path = format!("{}/{}", self.path(key), at.name);
        match self.client.set_data(&path, value, Some(at.version)).await {
            Ok(stat) => Ok(Written::At(At {
                name: at.name.clone(),
                version: stat.version,
            })),
            Err(Error::BadVersion | Error::NoNode) => Ok(Written::Overtaken),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads the leader's clock. The leader stamps each change with the time, and numbers its changes from one election to the
    /// next. So the node above is set to its present value; the two stamps are of one clock if they are of one election.
    async fn time_of(&self, key: &str, at: &At) -> Result<Option<Time>, StoreError> {
        let path = self.path(key);
        for _ in 0..ATTEMPTS {
            let below = format!("{path}/{}", at.name);
            let (above, below) = (self.client.get_data(&path), self.client.check_stat(&below));
            let above = match above.await {
                Ok((data, stat)) if data == RATE => stat,
                Ok(_) | Err(Error::NoNode) => return Ok(None),
                Err(error) => return Err(failed(error)),
            };
            let Some(below) = below.await.map_err(failed)? else {
                return Ok(None);
            };
            match self.client.set_data(&path, RATE, Some(above.version)).await {
                Ok(touched) => return Ok(time(&touched, &below)),
                // Another process has asked.
                Err(Error::BadVersion) => {}
                Err(Error::NoNode) => break,
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(None)
    }

    async fn delete_value(&self, key: &str, at: &At) -> Result<bool, StoreError> {
        let path = self.path(key);
        let mut changes = self.client.new_multi_writer();
        let built = changes
            .add_delete(&format!("{path}/{}", at.name), Some(at.version))
            .and_then(|()| changes.add_delete(&path, None));
        built.map_err(failed)?;
        match changes.commit().await {
            Ok(_) => Ok(true),
            Err(error) => overtaken(error).map(|()| false),
        }
    }
}

/// The reading after one node was changed after the other. Whole milliseconds, rounded down.
fn time(touched: &Stat, written: &Stat) -> Option<Time> {
    let election = |stat: &Stat| stat.mzxid.unsigned_abs() >> 32;
    let micros = |stat: &Stat| u64::try_from(stat.mtime).ok()?.checked_mul(1_000);
    let now = micros(touched)?;
    let by = now + 1_000;
    let written = if election(written) == election(touched) {
        (micros(written)? + 1_000).min(by)
    } else {
        by
    };
    let clock = (election(touched), 0);
    Some(Time {
        clock,
        now,
        by,
        written,
    })
}

/// A condition does not hold; or nothing was done.
fn overtaken(error: MultiWriteError) -> Result<(), StoreError> {
    match error {
        MultiWriteError::OperationFailed {
            source: Error::BadVersion | Error::NoNode | Error::NotEmpty,
            ..
        } => Ok(()),
        MultiWriteError::OperationFailed { source, .. } | MultiWriteError::RequestFailed { source } => {
            Err(failed(source))
        }
    }
}

impl Values for Nodes {
    type At = At;

    async fn read(&self, key: &Key, ttl: Duration) -> Result<Option<Found<At>>, StoreError> {
        self.term(ttl).await?.read_value(key.as_str()).await
    }

    async fn write(
        &self,
        key: &Key,
        ttl: Duration,
        at: Option<&At>,
        value: Vec<u8>,
        _lasts: Duration,
    ) -> Result<Written<At>, StoreError> {
        let link = self.term(ttl).await?;
        match at {
            Some(at) => link.write_value(key.as_str(), at, &value).await,
            None => link.make_value(key.as_str(), &value).await,
        }
    }

    async fn delete(&self, key: &Key, ttl: Duration, at: &At) -> Result<bool, StoreError> {
        self.term(ttl).await?.delete_value(key.as_str(), at).await
    }

    async fn time(
        &self,
        key: &Key,
        ttl: Duration,
        at: &At,
        _clock: Option<Clock>,
    ) -> Result<Option<Reading>, StoreError> {
        let time = self.term(ttl).await?.time_of(key.as_str(), at).await?;
        Ok(time.map(|next| Reading { said: Some(next), next }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_one_election_are_of_one_clock() {
        let stat = |election: i64, mtime| Stat {
            mzxid: election << 32 | 7,
            mtime,
            ..Stat {
                czxid: 0,
                mzxid: 0,
                pzxid: 0,
                ctime: 0,
                mtime: 0,
                version: 0,
                cversion: 0,
                aversion: 0,
                ephemeral_owner: 0,
                data_length: 0,
                num_children: 0,
            }
        };
        let time = |touched: &Stat, written: &Stat| {
            time(touched, written).map(|time| (time.clock.0, time.now, time.by, time.written))
        };
        let same = time(&stat(3, 9_000), &stat(3, 2_000));
        assert_eq!(same, Some((3, 9_000_000, 9_001_000, 2_001_000)));
        // Another leader's clock says nothing of earlier changes.
        let other = time(&stat(4, 9_000), &stat(3, 2_000));
        assert_eq!(other, Some((4, 9_000_000, 9_001_000, 9_001_000)));
        // It was set back.
        let back = time(&stat(3, 1_000), &stat(3, 2_000));
        assert_eq!(back, Some((3, 1_000_000, 1_001_000, 1_001_000)));
        assert_eq!(time(&stat(3, -1), &stat(3, 2_000)), None);
    }
}
