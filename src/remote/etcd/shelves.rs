//! What lies at the store, and how it is changed.
//!
//! All of a key lies under `<prefix><key>/`, each of it with a lease:
//!
//! | key | value | what it is |
//! |---|---|---|
//! | `l` | the limit | with a lease of its own, which all sessions at the key renew, and which outlives theirs |
//! | `s/<session>` | a counter | the session is there; every change to its wishes changes this key as well |
//! | `w/<session>/<wish>/<nth>` | its units | a wish, the how-manieth of its transaction |

use super::lease::Lease;
use super::stream::Lines;
use super::words::{self, Done, Event, Found, Granted, Pair, Streamed, Watched};
use crate::remote::backend::{Session, StoreError};
use crate::remote::http::{Answer, Http};
use crate::remote::key::Key;
use crate::remote::queue::{Change, Line, Node, Ops, Shelf, escaped, parse_session};
use bytes::Bytes;
use futures::future::join3;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct Shelves {
    pub(super) http: Http,
    pub(super) prefix: Box<str>,
    /// The lease of a key's limit, if there is one.
    limits: Mutex<HashMap<Key, i64>>,
}

/// How many changes go into one transaction: servers take 128 unless they are set up otherwise.
const CHANGES: usize = 60;
/// Nodes of one transaction have one revision: their places are told apart by so many bits below it.
const BITS: u32 = 6;

impl Shelves {
    pub(super) fn new(http: Http, prefix: Box<str>) -> Self {
        Self {
            http,
            prefix,
            limits: Mutex::default(),
        }
    }

    fn under(&self, key: &Key) -> String {
        format!("{}{}/", self.prefix, escaped(key.as_str()))
    }

    async fn ask(&self, path: &str, body: &Value) -> Result<Answer, StoreError> {
        let body = Bytes::from(body.to_string());
        self.http.call(Method::POST, path, body, self.http.timeout()).await
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, StoreError> {
        self.ask(path, body).await?.json()
    }

    async fn grant(&self, ttl: Duration) -> Result<(i64, Duration), StoreError> {
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

    /// False when it is not known any more.
    async fn renew(&self, lease: i64) -> Result<bool, StoreError> {
        let renewed: Streamed<Granted> = self
            .call("/v3/lease/keepalive", &json!({ "ID": lease.to_string() }))
            .await?;
        Ok(renewed.result.is_some_and(|lease| lease.ttl > 0))
    }

    /// Looks, and renews what the session lives by.
    async fn look(&self, lease: &Lease, key: &Key, limit: u64, session: Session) -> Result<Line, StoreError> {
        let sent = Instant::now();
        let under = self.under(key);
        let query = words::all_under(&under);
        let found = self.call::<Found>("/v3/kv/range", &query);
        let limited = self.limits.lock().get(key).copied();
        let kept = async {
            match limited {
                Some(lease) => self.renew(lease).await,
                None => Ok(true),
            }
        };
        let (found, renewed, kept) = join3(found, self.renew(lease.id), kept).await;
        if renewed? {
            lease.renewed(sent);
        } else {
            lease.end();
        }
        kept?;
        self.read(lease, key, &under, limit, Some(session), &found?.kvs)
    }

    /// What was found, as a line.
    fn read(
        &self,
        lease: &Lease,
        key: &Key,
        under: &str,
        limit: u64,
        session: Option<Session>,
        pairs: &[Pair],
    ) -> Result<Line, StoreError> {
        let (mut set, mut sessions, mut nodes) = (None, Vec::new(), Vec::new());
        for pair in pairs {
            match Kept::read(under, pair).ok_or_else(|| foreign(&pair.key))? {
                Kept::Limit(limit) => set = Some((limit, pair.lease)),
                Kept::Present(there) => {
                    if session == Some(there) {
                        lease.note_change(pair.mod_revision);
                    }
                    sessions.push(there);
                }
                Kept::Wish(node) => nodes.push(node),
            }
        }
        let mut limits = self.limits.lock();
        match set {
            Some((_, lease)) => limits.insert(key.clone(), lease),
            None => limits.remove(key),
        };
        drop(limits);
        Ok(Line::new(set.map_or(limit, |(limit, _)| limit), sessions, nodes))
    }

    /// One transaction: so many of the changes as fit.
    async fn change(
        &self,
        lease: &Lease,
        key: &Key,
        limit: u64,
        session: Session,
        changes: &[Value],
    ) -> Result<Line, StoreError> {
        let under = self.under(key);
        let present = format!("{under}s/{session}");
        let (changed_by, number) = lease.next_change();
        let mut success = vec![words::put(&present, &number.to_string(), lease.id)];
        success.extend_from_slice(changes);
        success.push(words::look(&under));
        let txn = json!({
            "compare": [words::changed_by(&present, changed_by)],
            "success": success,
            "failure": [words::look(&under)],
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
        let line = self.read(lease, key, &under, limit, Some(session), &found)?;
        if !succeeded && line.has(session) {
            // One of ours that was given up has arrived before it: what it did is seen from now on.
            let why = "a change was overtaken by an earlier one".into();
            return Err(StoreError::Unreachable { why });
        }
        Ok(line)
    }

    /// Tells of all there is, and of everything that happens from then on. One that asks for what has been compacted is told
    /// so, and ends.
    async fn follow(&self, lease: &Lease, key: &Key, tell: impl Fn(Change)) -> Result<(), StoreError> {
        let under = self.under(key);
        let query = words::all_under(&under);
        let found: Found = self.call("/v3/kv/range", &query).await?;
        // Nobody who waits is there without a limit.
        let line = self.read(lease, key, &under, 0, None, &found.kvs)?;
        tell(Change::All(line));
        let mut create = query;
        create["start_revision"] = json!((found.header.revision + 1).to_string());
        let mut watched = Lines::of(&self.http, "/v3/watch", &json!({ "create_request": create })).await?;
        while let Some(watched) = watched.next::<Watched>().await? {
            if watched.canceled {
                break;
            }
            for event in &watched.events {
                if let Some(change) = change(&under, event) {
                    tell(change);
                }
            }
        }
        Ok(())
    }

    /// The limit is there, with a lease that outlives the sessions that renew it.
    async fn limited(&self, lease: &Lease, key: &Key, limit: u64) -> Result<Vec<Value>, StoreError> {
        let under = self.under(key);
        let at = format!("{under}l");
        let found: Found = self
            .call("/v3/kv/range", &json!({ "key": words::encoded(&at) }))
            .await?;
        if let Some(pair) = found.kvs.first() {
            self.limits.lock().insert(key.clone(), pair.lease);
            return Ok(Vec::new());
        }
        let (id, _) = self.grant(3 * lease.lasts).await?;
        Ok(vec![words::put_first(&at, &limit.to_string(), id)])
    }
}

/// What a key says.
enum Kept {
    Limit(u64),
    Present(Session),
    Wish(Node),
}

impl Kept {
    fn read(under: &str, pair: &Pair) -> Option<Self> {
        let name = pair.key.strip_prefix(under)?;
        if name == "l" {
            return pair.number().map(Self::Limit);
        }
        if let Some(session) = name.strip_prefix("s/") {
            return parse_session(session).map(Self::Present);
        }
        let mut parts = name.strip_prefix("w/")?.split('/');
        let (session, wish, nth) = (parts.next()?, parts.next()?, parts.next()?);
        let nth: u64 = nth.parse().ok().filter(|nth| nth >> BITS == 0)?;
        // Revisions are counted one by one: the bits above them are not used within anybody's life.
        let place = pair.create_revision.unsigned_abs() << BITS | nth;
        Some(Self::Wish(Node {
            name: pair.key.as_str().into(),
            place,
            session: parse_session(session)?,
            wish: wish.parse().ok()?,
            units: pair.number()?,
            token: place,
        }))
    }
}

/// What has happened, if it is of interest.
fn change(under: &str, event: &Event) -> Option<Change> {
    let pair = &event.kv;
    if event.is_delete() {
        let name = pair.key.strip_prefix(under)?;
        return match name.strip_prefix("s/") {
            Some(session) => parse_session(session).map(Change::Left),
            None if name.starts_with("w/") => Some(Change::Went(pair.key.as_str().into())),
            None => None,
        };
    }
    Some(match Kept::read(under, pair)? {
        Kept::Limit(limit) => Change::Resized(limit),
        Kept::Present(session) => Change::Entered(session),
        Kept::Wish(node) if pair.create_revision == pair.mod_revision => Change::Came(node),
        Kept::Wish(node) => Change::Shrank(node.place, node.units),
    })
}

fn foreign(key: &str) -> StoreError {
    StoreError::Refused {
        why: format!("`{key}` is something else").into(),
    }
}

impl Shelf for Shelves {
    type Term = Lease;

    async fn term(&self, ttl: Duration) -> Result<Arc<Lease>, StoreError> {
        let sent = Instant::now();
        let (id, lasts) = self.grant(ttl).await?;
        Ok(Arc::new(Lease::new(id, lasts, sent)))
    }

    fn is_over(&self, lease: &Lease) -> bool {
        lease.is_over()
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
    ) -> Result<Option<Line>, StoreError> {
        if ops.is_empty() {
            return self.look(lease, key, limit, session).await.map(Some);
        }
        let under = self.under(key);
        let mut changes = Vec::new();
        if ops.begin || ops.limit.is_some() && !self.limits.lock().contains_key(key) {
            changes.extend(self.limited(lease, key, limit).await?);
        }
        for (wish, units) in &ops.create {
            let nth = changes.len() % CHANGES;
            let at = format!("{under}w/{session}/{wish}/{nth}");
            changes.push(words::put(&at, &units.to_string(), lease.id));
        }
        let shrunk = ops.shrink.iter();
        changes.extend(shrunk.map(|(name, units)| words::put_again(name, &units.to_string())));
        changes.extend(ops.delete.iter().map(|name| words::delete(name)));
        changes.extend(
            ops.limit
                .map(|limit| words::put_again(&format!("{under}l"), &limit.to_string())),
        );
        let mut rest = &changes[..];
        loop {
            let (first, others) = rest.split_at(rest.len().min(CHANGES));
            let line = self.change(lease, key, limit, session, first).await?;
            rest = others;
            if rest.is_empty() || !line.has(session) {
                return Ok(Some(line));
            }
        }
    }

    /// With its lease: what of it arrives after that is refused.
    async fn end(&self, lease: &Lease, key: &Key, _session: Session) -> Result<(), StoreError> {
        let answer = self
            .ask("/v3/lease/revoke", &json!({ "ID": lease.id.to_string() }))
            .await?;
        if answer.status != StatusCode::NOT_FOUND {
            answer.json::<Value>()?;
        }
        lease.end();
        let under = self.under(key);
        let last = json!({
            "compare": [words::nothing_under(&format!("{under}s/"))],
            "success": [words::delete(&format!("{under}l"))],
        });
        self.call::<Value>("/v3/kv/txn", &last).await?;
        Ok(())
    }

    async fn watch(&self, lease: &Lease, key: &Key, tell: impl Fn(Change) + Send + Sync) {
        // What goes wrong with it is found by the next step; it is begun anew.
        let _ = self.follow(lease, key, tell).await;
    }
}
