//! Permits at stores that keep nodes in an order of their own: one node for each wish, in one line for everybody.
//!
//! Nobody grants. A wish is granted when its node and all before it are within the limit, which everybody who can see the line
//! sees alike, and which stays so: nodes before it only go, and get smaller. So a step is a few changes to one's own nodes and
//! a look, and no two clients ever write the same thing.
//!
//! | part | what it is |
//! |---|---|
//! | [`queue`] | what lies under a key, and who holds permits by that |
//! | [`diff`] | what one session wants to lie there, and what has to be done for it |
//! | [`encoding`] | how names are written |
//! | [`waiters`] | those of this process who wait at a key, and one watch for all of them |
//! | [`watch`] | that watch |
//! | [`rounds`] | how a step is carried out |
//! | [`reaper`] | what becomes of those who have gone without a word |
//! | [`NodeStore`] | what a store has to be able to do |
//!
//! A session's nodes live as long as what the store calls a session, or a lease: a [`NodeStore::Term`]. That of ZooKeeper and of
//! etcd is kept alive by its client, whatever becomes of the limiter: so what has not been heard of for its time to live is
//! taken down from here.

#[cfg(test)]
mod client;
#[cfg(test)]
mod corners;
mod encoding;
#[cfg(test)]
mod fake;
mod node_queue;
mod node_store;
mod reaper;
mod reconcile;
mod session_diff;
mod waiters;
mod watch;

use super::backend::{Rule, Session, StoreError, SyncReply, SyncRequest, Usage};
use super::key::Key;
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
pub(crate) use waiters::Change;
use waiters::Waiters;

/// Permits at such a store. A handle.
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
    /// There is another slot.
    filled: Arc<Notify>,
    /// How many watches there were.
    watches: AtomicU64,
}

type Slots<S> = HashMap<(Key, Session), Arc<Slot<S>>>;

struct Slot<S: NodeStore> {
    term: Arc<S::Term>,
    ttl: Duration,
    /// Held while a step is under way.
    diff: tokio::sync::Mutex<SessionDiff>,
    /// When the session is over, unless it is heard of.
    due: Mutex<Instant>,
}

/// How long after a failure a watch is begun anew.
const PAUSE: Duration = Duration::from_millis(50);
/// For so long a watch is kept when nobody waits any more: soon somebody will.
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
        let Rule::Permits { limit } = *rule else {
            let why = "it counts permits, and neither rates nor windows".into();
            return Err(StoreError::Refused { why });
        };
        let (inner, key) = (&self.0, &key.of(rule.kind()));
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
            // What is left of it is nobody's. Until it has gone it is known here.
            let ended = inner.store.end(Some(&slot.term), sync.ttl, key, sync.session);
            if seeded!("queue_forgets_the_lost") {
                inner.forget(key, sync.session);
            }
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
            .entry(key.of(Rule::PERMITS))
            .or_default()
            .waiter(session);
        waiter.notified().await;
    }

    /// Nobody asks for news of this session any more. What could not be taken down of it still is.
    pub(crate) fn leave(&self, key: &Key, session: Session) {
        let key = &key.of(Rule::PERMITS);
        if seeded!("queue_forgets_the_parted") {
            self.0.forget(key, session);
        }
        self.0.remove_waiter(key, session);
    }
}

impl<S: NodeStore> Inner<S> {
    /// What was last seen of the key.
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

    /// Takes down a session. What fails is tried again from here, also when nobody asks for it any more.
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

    /// Nothing more is known of this session here.
    fn forget(&self, key: &Key, session: Session) {
        let slot = self.slots.lock().remove(&(key.clone(), session));
        drop(slot);
        self.remove_waiter(key, session);
    }

    /// The session waits for nothing any more.
    fn remove_waiter(&self, key: &Key, session: Session) {
        let mut waiters_by_key = self.waiters_by_key.lock();
        let empty = waiters_by_key
            .get_mut(key)
            .is_some_and(|waiters| waiters.leaves(session));
        let waiters = if empty { waiters_by_key.remove(key) } else { None };
        drop(waiters_by_key);
        drop(waiters);
    }

    /// Whether this is what is known of the session still.
    fn has(&self, id: &(Key, Session), slot: &Arc<Slot<S>>) -> bool {
        let slots = self.slots.lock();
        slots.get(id).is_some_and(|known| Arc::ptr_eq(known, slot))
    }

    /// The answer to a session that is not there.
    async fn unknown(&self, visit: &Visit<'_, S>) -> Result<SyncReply, StoreError> {
        let key = visit.key;
        let queue = self.look(visit, &Ops::default()).await?;
        let mut waiters_by_key = self.waiters_by_key.lock();
        let deserted = waiters_by_key.get(key).is_some_and(Waiters::is_empty) && !seeded!("queue_keeps_rooms");
        let waiters = if deserted { waiters_by_key.remove(key) } else { None };
        drop(waiters_by_key);
        drop(waiters);
        let usage: Usage = queue.usage();
        Ok(SyncReply {
            usage,
            ..SyncReply::default()
        })
    }

    /// Takes note of what a session waits for. True when it is to be told.
    fn update(&self, key: &Key, session: Session, diff: &SessionDiff, reply: &SyncReply) -> bool {
        let mut waiters_by_key = self.waiters_by_key.lock();
        let waiters = waiters_by_key.entry(key.clone()).or_default();
        waiters.update(session, diff.waiting(), diff.keeps(), reply.others_wait) || S::REPORTS
    }
}

impl<S: NodeStore> Drop for Inner<S> {
    fn drop(&mut self) {
        // The one who takes down looks once more, and goes.
        self.filled.notify_one();
    }
}
