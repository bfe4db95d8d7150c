//! Permits at stores that keep nodes in order of creation: one node for each request, in one queue for all sessions.
//!
//! No process grants. A request is granted when its node and all before it are within the limit. Every observer of the queue
//! sees the same, and it stays so: nodes before it only go, and shrink. So a sync is a few changes to a session's own nodes and
//! a look, and no two clients ever write the same node.
//!
//! | part | what it is |
//! |---|---|
//! | [`node_queue`] | the nodes under a key, and the holders by their order |
//! | [`session_diff`] | the nodes that a session needs, and the changes for that |
//! | [`encoding`] | the encoding of names |
//! | [`waiters`] | the waiters of this process at a key, and their common watch |
//! | [`watch`] | the task of that watch |
//! | [`reconcile`] | how a sync is carried out |
//! | [`reaper`] | ends silent sessions |
//! | [`NodeStore`] | the interface to a store |
//!
//! A session's nodes live as long as the store's own session, or a lease: a [`NodeStore::Term`]. The clients of ZooKeeper and
//! etcd keep it alive, whatever becomes of the limiter. So this process itself ends sessions that were silent for their time to
//! live.

mod encoding;
mod node_queue;
mod node_store;
mod reaper;
mod reconcile;
mod session_diff;
#[cfg(test)]
mod tests;
mod waiters;
mod watch;

use crate::clockless::permits;
pub(crate) use encoding::{escaped, parse_session};
use node_queue::Outlook;
pub(crate) use node_queue::{Node, NodeQueue};
pub(crate) use node_store::NodeStore;
use parking_lot::Mutex;
use reconcile::Visit;
pub(crate) use session_diff::Ops;
use session_diff::SessionDiff;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate::remote::Key;
use tollgate::remote::{Rule, Session, StoreError, SyncReply, SyncRequest, Usage};
pub(crate) use waiters::Change;
use waiters::Waiters;

/// A handle for permits at such a store.
pub(crate) struct Queue<S: NodeStore>(Arc<Inner<S>>);

impl<S: NodeStore> Clone for Queue<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<S: NodeStore> {
    store: S,
    /// The sessions of this process.
    slots: Mutex<Slots<S>>,
    waiters_by_key: Mutex<HashMap<Key, Waiters<S::Term>>>,
    /// Signals another slot.
    filled: Arc<Notify>,
    /// The number of watches so far.
    watches: AtomicU64,
}

type Slots<S> = HashMap<(Key, Session), Arc<Slot<S>>>;

struct Slot<S: NodeStore> {
    term: Arc<S::Term>,
    ttl: Duration,
    /// Held during a sync.
    diff: tokio::sync::Mutex<SessionDiff>,
    /// When the session ends, unless it syncs.
    due: Mutex<Instant>,
}

/// The pause after a failure before a watch begins anew.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a watch is kept without waiters: the next one may come soon.
const LINGER: Duration = Duration::from_secs(1);

impl<S: NodeStore> Queue<S> {
    pub(crate) fn new(store: S) -> Self {
        let filled = Arc::new(Notify::new());
        let inner = Arc::new(Inner {
            store,
            slots: Mutex::default(),
            waiters_by_key: Mutex::default(),
            filled: Arc::clone(&filled),
            watches: AtomicU64::new(0),
        });
        tokio::spawn(reaper::reap(Arc::downgrade(&inner), filled));
        Self(inner)
    }

    pub(crate) fn store(&self) -> &S {
        &self.0.store
    }

    pub(crate) async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let limit = permits(rule)?;
        let (inner, key) = (&self.0, &key.of_kind(rule.kind()));
        let id = (key.clone(), sync.session);
        let slot = inner.slots.lock().get(&id).cloned();
        if sync.end {
            inner.end(key, sync, slot).await?;
            return Ok(SyncReply::default());
        }
        let slot = match slot.filter(|slot| !inner.store.is_over(&slot.term)) {
            Some(slot) => slot,
            None => {
                inner.forget(key, sync.session);
                let term = inner.store.term(sync.ttl).await?;
                if !sync.begin {
                    let (term, session) = (&*term, sync.session);
                    let visit = Visit {
                        term,
                        key,
                        limit,
                        session,
                    };
                    return inner.unknown(&visit).await;
                }
                inner.fill(id.clone(), term, sync.ttl)
            }
        };
        let visit = Visit {
            term: &*slot.term,
            key,
            limit,
            session: sync.session,
        };
        let mut diff = slot.diff.lock().await;
        if !inner.has(&id, &slot) {
            if !sync.begin {
                return inner.unknown(&visit).await;
            }
            let why = "the session was taken down meanwhile".into();
            return Err(StoreError::Unreachable { why });
        }
        let sent = Instant::now();
        diff.apply(sync, inner.outlook(key));
        let queue = inner.carry_out(&visit, &mut diff).await?;
        let Some(queue) = queue else {
            // The session is lost. It stays known here until its nodes are gone.
            let ended = inner.store.end(Some(&slot.term), sync.ttl, key, sync.session);
            ended.await?;
            inner.forget(key, sync.session);
            return inner.unknown(&visit).await;
        };
        *slot.due.lock() = Instant::now() + sync.ttl;
        let mut reply = diff.answer(sync, &queue);
        reply.age = inner.store.age(&slot.term, sent);
        if inner.update(key, sync.session, &diff, &reply) {
            self.watch(&slot.term, key);
        }
        Ok(reply)
    }

    pub(crate) async fn notified(&self, key: &Key, session: Session) {
        let waiter = self
            .0
            .waiters_by_key
            .lock()
            .entry(key.of_kind(Rule::PERMITS))
            .or_default()
            .waiter(session);
        waiter.notified().await;
    }

    /// Forgets this session. Nodes that could not be deleted still are.
    pub(crate) fn leave(&self, key: &Key, session: Session) {
        let key = &key.of_kind(Rule::PERMITS);
        self.0.remove_waiter(key, session);
    }
}

impl<S: NodeStore> Inner<S> {
    /// The last view of the key.
    fn outlook(&self, key: &Key) -> Outlook {
        self.waiters_by_key
            .lock()
            .get(key)
            .map(Waiters::outlook)
            .unwrap_or_default()
    }

    fn fill(&self, id: (Key, Session), term: Arc<S::Term>, ttl: Duration) -> Arc<Slot<S>> {
        let slot = Arc::new(Slot {
            term,
            ttl,
            diff: tokio::sync::Mutex::default(),
            due: Mutex::new(Instant::now() + ttl),
        });
        let mut slots = self.slots.lock();
        let slot = Arc::clone(slots.entry(id).or_insert(slot));
        drop(slots);
        self.filled.notify_one();
        slot
    }

    /// Ends a session. A failure is retried from here, also when the client does not ask again.
    async fn end(&self, key: &Key, sync: &SyncRequest, slot: Option<Arc<Slot<S>>>) -> Result<(), StoreError> {
        if let Some(slot) = slot {
            {
                let mut due = slot.due.lock();
                *due = Instant::now().min(*due);
            }
            let _account = slot.diff.lock().await;
            self.filled.notify_one();
            if !self.has(&(key.clone(), sync.session), &slot) {
                return Ok(());
            }
            let ended = self.store.end(Some(&slot.term), slot.ttl, key, sync.session);
            ended.await?;
        } else {
            self.store.end(None, sync.ttl, key, sync.session).await?;
        }
        self.forget(key, sync.session);
        Ok(())
    }

    /// Forgets this session here.
    fn forget(&self, key: &Key, session: Session) {
        let slot = self.slots.lock().remove(&(key.clone(), session));
        drop(slot);
        self.remove_waiter(key, session);
    }

    /// Removes the session from the waiters.
    fn remove_waiter(&self, key: &Key, session: Session) {
        let mut waiters_by_key = self.waiters_by_key.lock();
        let empty = waiters_by_key
            .get_mut(key)
            .is_some_and(|waiters| waiters.leave(session));
        let waiters = if empty { waiters_by_key.remove(key) } else { None };
        drop(waiters_by_key);
        drop(waiters);
    }

    /// Whether this slot still belongs to the session.
    fn has(&self, id: &(Key, Session), slot: &Arc<Slot<S>>) -> bool {
        let slots = self.slots.lock();
        slots.get(id).is_some_and(|known| Arc::ptr_eq(known, slot))
    }

    /// The reply for an unknown session.
    async fn unknown(&self, visit: &Visit<'_, S>) -> Result<SyncReply, StoreError> {
        let key = visit.key;
        let queue = self.look(visit, &Ops::default()).await?;
        let mut waiters_by_key = self.waiters_by_key.lock();
        let deserted = waiters_by_key.get(key).is_some_and(Waiters::is_empty);
        let waiters = if deserted { waiters_by_key.remove(key) } else { None };
        drop(waiters_by_key);
        drop(waiters);
        let usage: Usage = queue.usage();
        Ok(SyncReply {
            usage,
            ..SyncReply::default()
        })
    }

    /// Records the waiting requests of a session. True when it needs notifications.
    fn update(&self, key: &Key, session: Session, diff: &SessionDiff, reply: &SyncReply) -> bool {
        let mut waiters_by_key = self.waiters_by_key.lock();
        let waiters = waiters_by_key.entry(key.clone()).or_default();
        waiters.update(session, diff.waiting(), diff.keeps(), reply.others_wait) || S::REPORTS
    }
}

impl<S: NodeStore> Drop for Inner<S> {
    fn drop(&mut self) {
        // The reaper looks once more, and ends.
        self.filled.notify_one();
    }
}
