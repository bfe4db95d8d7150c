//! The keys of permits at the store, and their changes.
//!
//! All keys of a limiter's permits lie under `<prefix><key>.permits/`, each with a lease:
//!
//! | key | value | what it is |
//! |---|---|---|
//! | `l` | the limit | with a lease of its own, which all sessions at the key renew, and which is three times as long as the longest of theirs |
//! | `s/<session>` | a counter | the session is there; every change to its requests changes this key as well |
//! | `w/<session>/<request>/<nth>` | its units | a request, with its number within the transaction |

use super::auth::AuthHttp;
use super::keyspace::{StoredKey, change, foreign};
use super::lease::Lease;
use super::stream::JsonStream;
use super::wire::{self, Done, Found, Granted, Life, Pair, Streamed, Watched};
use crate::http::Answer;
use crate::queue::{Change, NodeQueue, NodeStore, Ops, escaped};
use futures::future::join;
use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tollgate::remote::Key;
use tollgate::remote::MAX_UNITS;
use tollgate::remote::{Session, StoreError};

#[derive(Clone)]
pub(crate) struct Nodes {
    pub(super) http: AuthHttp,
    pub(super) prefix: Box<str>,
}

/// The most changes in one transaction: servers take 128 unless they are set up otherwise.
const CHANGES: usize = 60;
/// The longest lease that servers grant, in seconds.
pub(super) const LONGEST: u64 = 9_000_000_000;
/// The most attempts to end a session whose keys differ from what was expected.
const ATTEMPTS: usize = 4;

impl Nodes {
    pub(super) fn new(http: AuthHttp, prefix: Box<str>) -> Self {
        Self { http, prefix }
    }

    pub(super) fn under(&self, key: &Key) -> String {
        format!("{}{}/", self.prefix, escaped(key.as_str()))
    }

    pub(super) async fn ask(&self, path: &str, body: &Value) -> Result<Answer, StoreError> {
        let answer = self.http.ask(path, body).await?;
        if answer.status == StatusCode::FORBIDDEN {
            let (prefix, said) = (&self.prefix, answer.text());
            let why = format!("the user needs a role with `readwrite` on all that begins with `{prefix}`: {said}");
            return Err(StoreError::Refused { why: why.into() });
        }
        Ok(answer)
    }

    pub(super) async fn call<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, StoreError> {
        self.ask(path, body).await?.json()
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Result<(i64, Duration), StoreError> {
        // Whole seconds, and never less than was asked for.
        let seconds = u64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
        let granted: Granted = self
            .call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))
            .await?;
        let lasts = Duration::from_secs(granted.ttl.unsigned_abs());
        if lasts < ttl {
            let given = format!("a lease of {lasts:?} instead of {ttl:?}").into();
            return Err(StoreError::Answer { given });
        }
        Ok((granted.id, lasts))
    }

    /// The length of a lease, and its rest.
    async fn life(&self, lease: i64) -> Result<Life, StoreError> {
        self.call("/v3/lease/timetolive", &json!({ "ID": lease.to_string() }))
            .await
    }

    /// Renews a lease. False when it is unknown.
    async fn renew(&self, lease: i64) -> Result<bool, StoreError> {
        let renewed: Streamed<Granted> = self
            .call("/v3/lease/keepalive", &json!({ "ID": lease.to_string() }))
            .await?;
        Ok(renewed.result.is_some_and(|lease| lease.ttl > 0))
    }

    /// Reads the queue, and renews the leases of the session.
    async fn look(&self, lease: &Lease, key: &Key, limit: u64, session: Session) -> Result<NodeQueue, StoreError> {
        let (found, kept) = join(self.found(key), self.keep_up(lease)).await;
        kept?;
        self.read(lease, key, limit, Some(session), &found?.kvs)
    }

    pub(super) async fn found(&self, key: &Key) -> Result<Found, StoreError> {
        self.call("/v3/kv/range", &wire::all_under(&self.under(key))).await
    }

    /// Renews the lease of the session, and that of the limit.
    async fn keep_up(&self, lease: &Lease) -> Result<(), StoreError> {
        let sent = Instant::now();
        let limited = async {
            match lease.limit().map(|limit| limit.lease).filter(|&lease| lease != 0) {
                Some(lease) => self.renew(lease).await,
                None => Ok(true),
            }
        };
        let (renewed, limited) = join(self.renew(lease.id), limited).await;
        if renewed? {
            lease.renewed(sent);
        } else {
            lease.end();
        }
        // The look shows whether it is still there.
        limited.map(drop)
    }

    /// Reads the pairs as a queue. Keys of `session` under another lease do not count: they are from an earlier attempt to
    /// begin, and go with that lease.
    fn read(
        &self,
        lease: &Lease,
        key: &Key,
        limit: u64,
        session: Option<Session>,
        pairs: &[Pair],
    ) -> Result<NodeQueue, StoreError> {
        let under = self.under(key);
        let (mut set, mut sessions, mut nodes) = (None, Vec::new(), Vec::new());
        for pair in pairs {
            match StoredKey::read(&under, pair).ok_or_else(|| foreign(&pair.key))? {
                StoredKey::Limit(limit) => set = Some(limit),
                StoredKey::Present(there) if session == Some(there) => {
                    if pair.lease == lease.id {
                        lease.note_change(pair.mod_revision);
                        sessions.push(there);
                    }
                }
                StoredKey::Present(there) => sessions.push(there),
                StoredKey::Request(node) => nodes.push(node),
            }
        }
        lease.note_limit(set);
        let limit = lease.limit().map_or(limit, |limit| limit.units);
        Ok(NodeQueue::new(limit, sessions, nodes))
    }

    /// Makes one transaction, of as many changes as fit.
    async fn change(
        &self,
        lease: &Lease,
        key: &Key,
        limit: u64,
        session: Session,
        changes: &[Value],
    ) -> Result<NodeQueue, StoreError> {
        let under = self.under(key);
        let present = format!("{under}s/{session}");
        let (changed_by, number) = lease.next_change();
        let mut success = vec![wire::put(&present, &number.to_string(), lease.id)];
        success.extend_from_slice(changes);
        success.push(wire::look(&under));
        let txn = json!({
            "compare": [wire::changed_by(&present, changed_by)],
            "success": success,
            "failure": [wire::look(&under)],
        });
        let answer = self.ask("/v3/kv/txn", &txn).await?;
        if answer.status == StatusCode::NOT_FOUND && answer.text().contains("lease not found") {
            lease.end();
        }
        let done: Done = answer.json()?;
        let (succeeded, revision) = (done.succeeded, done.header.revision);
        let found = done.found().ok_or_else(|| StoreError::Answer {
            given: "a transaction without what it was to find".into(),
        })?;
        if succeeded {
            lease.note_change(revision);
        }
        let queue = self.read(lease, key, limit, Some(session), &found)?;
        if !succeeded && queue.has(session) {
            // An abandoned change of ours has arrived before it: from now on its outcome is seen.
            let why = "a change was overtaken by an earlier one".into();
            return Err(StoreError::Unreachable { why });
        }
        Ok(queue)
    }

    /// Makes all of the changes, in as few transactions as possible.
    async fn change_all(
        &self,
        lease: &Lease,
        key: &Key,
        limit: u64,
        session: Session,
        ops: &Ops,
    ) -> Result<NodeQueue, StoreError> {
        let under = self.under(key);
        let at = format!("{under}l");
        let mut changes = Vec::new();
        if ops.begin {
            changes.extend(self.limited(lease, &at, limit, ops.limit).await?);
        } else if let Some(limit) = ops.limit {
            changes.push(wire::put_again(&at, &limit.to_string()));
        }
        for (request, units) in &ops.create {
            let nth = changes.len() % CHANGES;
            let at = format!("{under}w/{session}/{request}/{nth}");
            changes.push(wire::put(&at, &units.to_string(), lease.id));
        }
        let shrunk = ops.shrink.iter();
        changes.extend(shrunk.map(|(name, units)| wire::put_again(name, &units.to_string())));
        changes.extend(ops.delete.iter().map(|name| wire::delete(name)));
        let mut rest = &changes[..];
        loop {
            let (first, others) = rest.split_at(rest.len().min(CHANGES));
            let queue = self.change(lease, key, limit, session, first).await?;
            rest = others;
            if rest.is_empty() || !queue.has(session) {
                return Ok(queue);
            }
        }
    }

    /// Reports the full queue, and each event from then on. It ends when the requested revision has been compacted.
    async fn follow(&self, lease: &Lease, key: &Key, tell: impl Fn(Change)) -> Result<(), StoreError> {
        let under = self.under(key);
        let at = format!("{under}l");
        let found = self.found(key).await?;
        // There is no waiter without a limit.
        let queue = self.read(lease, key, 0, None, &found.kvs)?;
        tell(Change::All(queue));
        if let Some(known) = lease.limit() {
            // It may have gone before the watch began.
            self.secure(lease, key, known.units).await?;
        }
        let mut create = wire::all_under(&under);
        create["start_revision"] = json!(found.header.revision.saturating_add(1).to_string());
        let mut watched = JsonStream::of(&self.http, "/v3/watch", &json!({ "create_request": create })).await?;
        while let Some(watched) = watched.next::<Watched>().await? {
            if watched.canceled {
                break;
            }
            for event in &watched.events {
                if event.kv.key == at && event.is_delete() {
                    if lease.is_over() {
                        return Ok(());
                    }
                    lease.note_limit(None);
                    // It is reported again when it is back.
                    self.secure(lease, key, 0).await?;
                } else if let Some(change) = change(&under, event) {
                    if let Some(StoredKey::Limit(limit)) = StoredKey::read(&under, &event.kv) {
                        lease.note_limit(Some(limit));
                    }
                    tell(change);
                }
            }
        }
        Ok(())
    }

    /// Revokes a lease: later changes under it are refused.
    async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        let query = json!({ "ID": lease.to_string() });
        let answer = self.ask("/v3/lease/revoke", &query).await?;
        if answer.status != StatusCode::NOT_FOUND {
            answer.json::<Value>()?;
        }
        Ok(())
    }
}

impl NodeStore for Nodes {
    type Term = Lease;

    async fn term(&self, ttl: Duration) -> Result<Arc<Lease>, StoreError> {
        let sent = Instant::now();
        let (id, lasts) = self.grant(ttl).await?;
        Ok(Arc::new(Lease::new(id, lasts, ttl, sent)))
    }

    fn is_over(&self, lease: &Lease) -> bool {
        lease.is_over()
    }

    fn is_gone(&self, lease: &Lease) -> bool {
        lease.is_gone()
    }

    fn age(&self, lease: &Lease, at: Instant) -> Duration {
        lease.age(at)
    }

    async fn carry_out(
        &self,
        lease: &Lease,
        key: &Key,
        limit: u64,
        session: Session,
        ops: &Ops,
        _look: bool,
    ) -> Result<Option<NodeQueue>, StoreError> {
        let queue = if ops.is_empty() {
            self.look(lease, key, limit, session).await?
        } else if lease.is_due() {
            // Syncs with changes renew beside them.
            let changed = self.change_all(lease, key, limit, session, ops);
            let (queue, kept) = join(changed, self.keep_up(lease)).await;
            kept.and(queue)?
        } else {
            self.change_all(lease, key, limit, session, ops).await?
        };
        if queue.has(session) && self.secure(lease, key, limit).await? {
            let found = self.found(key).await?;
            return self.read(lease, key, limit, Some(session), &found.kvs).map(Some);
        }
        Ok(Some(queue))
    }

    /// Ends the lease. If the answer to an end was lost, the lease is unknown by now: it is read from the keys.
    async fn end(&self, lease: Option<&Lease>, _ttl: Duration, key: &Key, session: Session) -> Result<(), StoreError> {
        if let Some(lease) = lease {
            lease.end();
            self.revoke(lease.id).await?;
        }
        let under = self.under(key);
        let (present, at) = (format!("{under}s/{session}"), format!("{under}l"));
        let mut revision = lease.and_then(Lease::limit).map_or(0, |limit| limit.revision);
        for _ in 0..ATTEMPTS {
            let last = json!({
                "compare": [wire::nothing_under(&format!("{under}s/")), wire::changed_by(&at, revision)],
                "success": [wire::delete(&at)],
                "failure": [wire::look_at(&present), wire::look_at(&at)],
            });
            let done: Done = self.call("/v3/kv/txn", &last).await?;
            if done.succeeded {
                return Ok(());
            }
            let mut found = done.firsts();
            let (present, limit) = (found.next().flatten(), found.next().flatten());
            if let Some(present) = present {
                self.revoke(present.lease).await?;
                continue;
            }
            match limit.filter(|limit| limit.number().is_some()) {
                Some(limit) if limit.mod_revision != revision => revision = limit.mod_revision,
                // Others are there, or the key is foreign.
                _ => return Ok(()),
            }
        }
        let why = format!("what lies under `{under}` changes all the time").into();
        Err(StoreError::Unreachable { why })
    }

    async fn watch(&self, lease: &Lease, key: &Key, tell: impl Fn(Change) + Send + Sync) {
        // The next sync finds a failure of it, and begins it anew.
        let _ = self.follow(lease, key, tell).await;
    }
}

/// The limit of a key, under a lease that outlasts those of the sessions.
impl Nodes {
    /// The operations that create the limit, and set it to `set`, if that is given.
    async fn limited(
        &self,
        lease: &Lease,
        at: &str,
        limit: u64,
        set: Option<u64>,
    ) -> Result<Option<Value>, StoreError> {
        let query = json!({ "key": wire::encoded(at) });
        let found: Found = self.call("/v3/kv/range", &query).await?;
        let again = set.map(|limit| limit.to_string());
        if let Some(pair) = found.kvs.first() {
            let units = pair.number().filter(|&units| units <= MAX_UNITS);
            units.ok_or_else(|| foreign(&pair.key))?;
            return Ok(again.map(|limit| wire::put_again(at, &limit)));
        }
        let id = self.grant_limit(lease).await?;
        let first = set.unwrap_or(limit).to_string();
        Ok(Some(wire::put_first(at, &first, id, again.as_deref())))
    }

    /// Grants a lease for a limit.
    async fn grant_limit(&self, lease: &Lease) -> Result<i64, StoreError> {
        if let Some(id) = lease.spare() {
            return Ok(id);
        }
        let sent = Instant::now();
        let (id, _) = self.grant(outliving(lease)).await?;
        lease.has_spare(id, sent);
        Ok(id)
    }

    /// Makes the limit last as long as this session: it may lie under the lease of shorter sessions, or may have gone with it.
    /// Its value stays. True when there may be something new.
    async fn secure(&self, lease: &Lease, key: &Key, limit: u64) -> Result<bool, StoreError> {
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
                wire::changed_by(&at, known.map_or(0, |limit| limit.revision)),
                wire::something_under(&format!("{under}s/")),
            ],
            "success": [wire::put(&at, &units.to_string(), id)],
        });
        self.call::<Value>("/v3/kv/txn", &txn).await?;
        Ok(true)
    }
}

/// The least length of the lease of a limit.
fn outliving(lease: &Lease) -> Duration {
    lease.lasts.saturating_mul(3).min(Duration::from_secs(LONGEST))
}
