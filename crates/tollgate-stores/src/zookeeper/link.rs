//! A session at the server, and the nodes that live in it.

use super::names::{self, Names};
use crate::queue::{NodeQueue, Ops, escaped};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use tollgate::remote::MAX_UNITS;
use tollgate::remote::{Session, StoreError};
use zookeeper_client::{Client, CreateMode, Error, MultiReadResult};

/// The access control of all our nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Anyone,
    /// Only users with our credentials.
    Creator,
}

impl Access {
    pub(super) fn acls(self) -> zookeeper_client::Acls<'static> {
        match self {
            Self::Anyone => zookeeper_client::Acls::anyone_all(),
            Self::Creator => zookeeper_client::Acls::creator_all(),
        }
    }
}

pub(crate) struct Link {
    pub(super) client: Client,
    pub(super) access: Access,
    /// Above all nodes, with a slash at its end.
    pub(super) prefix: Box<str>,
    ttl: Duration,
    /// When the last request was sent that the leader has confirmed.
    confirmed: Mutex<Instant>,
    /// The transactions that created nodes: our own, and those whose order was in doubt.
    pub(super) created: Mutex<HashMap<String, HashMap<Box<str>, u64>>>,
    /// The last mark of each request, by its path: it goes with the request.
    pub(super) marks: Mutex<HashMap<String, String>>,
}

/// The most attempts to create the node of a key that is deleted while a child is being created.
pub(super) const ATTEMPTS: usize = 4;

impl Link {
    /// A session that was asked for at `sent`, for limiters of this time to live.
    pub(super) fn new(client: Client, access: Access, prefix: Box<str>, ttl: Duration, sent: Instant) -> Self {
        Self {
            client,
            access,
            prefix,
            ttl,
            confirmed: Mutex::new(sent),
            created: Mutex::default(),
            marks: Mutex::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// How long the server keeps a silent session.
    pub(super) fn lasts(&self) -> Duration {
        self.client.session_timeout()
    }

    /// How long before `at` the leader was last heard of. Followers answer reads by themselves, also a follower that the others
    /// have lost: that is no renewal.
    pub(super) fn age(&self, at: Instant) -> Duration {
        at.saturating_duration_since(*self.confirmed.lock())
    }

    fn confirm(&self, sent: Instant) {
        let mut confirmed = self.confirmed.lock();
        *confirmed = sent.max(*confirmed);
    }

    pub(super) fn path(&self, key: &str) -> String {
        format!("{}{}", self.prefix, escaped(key))
    }

    pub(super) async fn carry_out(
        &self,
        key: &str,
        limit: u64,
        session: Session,
        ops: &Ops,
        look: bool,
    ) -> Result<Option<NodeQueue>, StoreError> {
        let path = self.path(key);
        let sent = Instant::now();
        if ops.begin {
            self.begin(&path, limit, session).await?;
        }
        // All requests are sent at once, in this order, which the server keeps; then the answers are awaited.
        let ephemeral = CreateMode::EphemeralSequential.with_acls(self.access.acls());
        let mark = CreateMode::Ephemeral.with_acls(self.access.acls());
        let requests: Vec<_> = ops
            .create
            .iter()
            .map(|&(request, units)| format!("{path}/{}", names::request(session, request, units)))
            .collect();
        let mut left = Vec::new();
        let mut gone: Vec<_> = ops.delete.iter().map(|name| format!("{path}/{name}")).collect();
        {
            let mut marks = self.marks.lock();
            for (name, mark) in ops
                .shrink
                .iter()
                .filter_map(|(name, units)| Some((name, names::left(name, *units)?)))
            {
                let mark = format!("{path}/{mark}");
                // The smallest mark counts: earlier ones are deleted once it is there.
                let earlier = marks.insert(format!("{path}/{name}"), mark.clone());
                gone.extend(earlier.filter(|earlier| *earlier != mark));
                left.push(mark);
            }
            let marks: Vec<_> = gone.iter().filter_map(|gone| marks.remove(gone)).collect();
            gone.extend(marks);
        }
        let created: Vec<_> = requests
            .iter()
            .map(|request| (request, self.client.create(request, b"", &ephemeral)))
            .collect();
        let left: Vec<_> = left.iter().map(|name| self.client.create(name, b"", &mark)).collect();
        let deleted: Vec<_> = gone.iter().map(|path| self.client.delete(path, None)).collect();
        let limited = ops
            .limit
            .map(|limit| self.client.set_data(&path, limit.to_string().as_bytes(), None));
        let synced = ops.is_empty() && self.age(sent) >= self.ttl / 4;
        let synced = synced.then(|| self.client.sync(&path));
        let look = look.then(|| self.look(&path));
        if let Some(synced) = synced {
            synced.await.map_err(failed)?;
            self.confirm(sent);
        }
        for (request, created) in created {
            let (stat, sequence) = created.await.map_err(failed)?;
            let name = format!("{request}{sequence}");
            let name = name.rsplit('/').next().unwrap_or_default().into();
            let token = stat.czxid.unsigned_abs();
            self.created.lock().entry(path.clone()).or_default().insert(name, token);
        }
        for left in left {
            done_before(left.await, &Error::NodeExists)?;
        }
        for deleted in deleted {
            done_before(deleted.await, &Error::NoNode)?;
        }
        if let Some(limited) = limited {
            limited.await.map_err(failed)?;
        }
        if !ops.is_empty() {
            self.confirm(sent);
        }
        let Some(look) = look else { return Ok(None) };
        let seen = match look.await {
            Ok(seen) => seen,
            // There is no session.
            Err(Error::NoNode) => return Ok(Some(NodeQueue::new(limit, [], Vec::new()))),
            Err(error) => return Err(failed(error)),
        };
        self.read(&path, &seen, Some(session)).await.map(Some)
    }

    /// The transaction that created this node, if it is known.
    pub(super) fn token(&self, key: &str, name: &str) -> Option<u64> {
        self.created.lock().get(&self.path(key))?.get(name).copied()
    }

    /// Requests, at once, all names, and then the limit: so the limit was in force when the names were read, or later.
    pub(super) fn look(&self, path: &str) -> impl Future<Output = Result<Seen, Error>> + Send + '_ {
        let mut reader = self.client.new_multi_reader();
        let asked = reader.add_get_children(path).and_then(|()| reader.add_get_data(path));
        let answer = asked.map(|()| reader.commit());
        async move {
            let mut answer = answer?.await?.into_iter();
            match (answer.next(), answer.next()) {
                (
                    Some(MultiReadResult::Children { children: names }),
                    Some(MultiReadResult::Data { data: limit, stat }),
                ) => {
                    let (next, version) = (stat.cversion, stat.version);
                    Ok(Seen {
                        names,
                        limit,
                        next,
                        version,
                    })
                }
                (Some(MultiReadResult::Error { err }), _) | (_, Some(MultiReadResult::Error { err })) => Err(err),
                _ => Err(Error::UnexpectedError(
                    "the answer to two questions is not two answers".into(),
                )),
            }
        }
    }

    /// Reads the queue from a look, with the tokens of `session`, or of all sessions where sequence numbers do not show the
    /// order.
    pub(super) async fn read(
        &self,
        path: &str,
        seen: &Seen,
        session: Option<Session>,
    ) -> Result<NodeQueue, StoreError> {
        let names = Names::read(&seen.names).map_err(|name| foreign(path, name))?;
        let limit = limit_of(path, &seen.limit)?;
        if let Some(session) = session {
            // Marks of failed syncs.
            let stale = names.stale_marks(session).map(|name| format!("{path}/{name}"));
            let stale: Vec<_> = stale.map(|path| self.client.delete(&path, None)).collect();
            for deleted in stale {
                done_before(deleted.await, &Error::NoNode)?;
            }
        }
        let wrapped = names.have_wrapped(seen.next);
        let known = {
            let mut created = self.created.lock();
            let known = created.entry(path.to_owned()).or_default();
            known.retain(|name, _| names.requests().any(|(request, _)| request == &**name));
            known.clone()
        };
        let wanted = names.requests().map(|(name, _)| name);
        let wanted: Vec<_> = match session {
            _ if wrapped => wanted.collect(),
            Some(session) => names.requests_of(session).collect(),
            None => Vec::new(),
        };
        let wanted = wanted.into_iter().filter(|name| !known.contains_key(*name));
        let asked: Vec<_> = wanted
            .map(|name| (name, self.client.check_stat(&format!("{path}/{name}"))))
            .collect();
        let mut known = known;
        for (name, stat) in asked {
            if let Some(stat) = stat.await.map_err(failed)? {
                known.insert(name.into(), stat.czxid.unsigned_abs());
            }
        }
        let queue = names.queue(limit, &known, wrapped);
        self.created.lock().entry(path.to_owned()).or_default().extend(known);
        Ok(queue)
    }
}

/// A look at a key.
pub(super) struct Seen {
    pub(super) names: Vec<String>,
    pub(super) limit: Vec<u8>,
    /// The next sequence number.
    pub(super) next: i32,
    /// The version of the limit.
    pub(super) version: i32,
}

/// Treats an error as success if it says that the operation was done before.
pub(super) fn done_before<T>(result: Result<T, Error>, done: &Error) -> Result<(), StoreError> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error == *done => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

pub(super) fn limit_of(path: &str, data: &[u8]) -> Result<u64, StoreError> {
    let limit = std::str::from_utf8(data).ok().and_then(|limit| limit.parse().ok());
    limit
        .filter(|&limit| limit <= MAX_UNITS)
        .ok_or_else(|| foreign(path, "no limit"))
}

pub(super) fn foreign(path: &str, what: &str) -> StoreError {
    StoreError::Refused {
        why: format!("`{path}` holds something else: {what:?}").into(),
    }
}

pub(super) fn failed(error: Error) -> StoreError {
    let why = error.to_string().into();
    match error {
        Error::NoAuth
        | Error::AuthFailed
        | Error::InvalidAcl
        | Error::QuotaExceeded
        | Error::Unimplemented
        | Error::NoChildrenForEphemerals
        | Error::BadArguments(_) => StoreError::Refused { why },
        _ => StoreError::Unreachable { why },
    }
}
