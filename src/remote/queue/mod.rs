//! Permits at stores that keep nodes in an order of their own: one node for each wish, in one line for everybody.
//!
//! Nobody grants. A wish is granted when its node and all before it are within the limit, which everybody who can see the line
//! sees alike, and which stays so: nodes before it only go, and get smaller. So a step is a few changes to one's own nodes and
//! a look, and no two clients ever write the same thing.
//!
//! | part | what it is |
//! |---|---|
//! | [`line`] | what lies under a key, and who holds permits by that |
//! | [`account`] | what one session wants to lie there, and what has to be done for it |
//! | [`spell`] | how names are written |
//! | [`room`] | those of this process who wait at a key, and one watch for all of them |
//! | [`watch`] | that watch |
//! | [`rounds`] | how a step is carried out |
//! | [`undertaker`] | what becomes of those who have gone without a word |
//! | [`Shelf`] | what a store has to be able to do |
//!
//! A session's nodes live as long as what the store calls a session, or a lease: a [`Shelf::Term`]. That of ZooKeeper and of
//! etcd is kept alive by its client, whatever becomes of the limiter: so what has not been heard of for its time to live is
//! taken down from here.

mod account;
#[cfg(test)]
mod client;
#[cfg(test)]
mod corners;
#[cfg(test)]
mod fake;
mod line;
mod room;
mod rounds;
mod shelf;
mod spell;
mod undertaker;
mod watch;

use super::backend::{Census, Reply, Rule, Session, Step, StoreError};
use super::key::Key;
use account::Account;
pub(crate) use account::Ops;
use line::Outlook;
pub(crate) use line::{Line, Node};
use parking_lot::Mutex;
pub(crate) use room::Change;
use room::Room;
use rounds::Visit;
pub(crate) use shelf::Shelf;
pub(crate) use spell::{escaped, parse_session};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Permits at such a store. A handle.
pub(crate) struct Queue<S: Shelf>(Arc<Inner<S>>);

impl<S: Shelf> Clone for Queue<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<S: Shelf> {
    shelf: S,
    /// The sessions of this process.
    slots: Mutex<Slots<S>>,
    rooms: Mutex<HashMap<Key, Room<S::Term>>>,
    /// There is another slot.
    filled: Arc<Notify>,
    /// How many watches there were.
    watches: AtomicU64,
}

type Slots<S> = HashMap<(Key, Session), Arc<Slot<S>>>;

struct Slot<S: Shelf> {
    term: Arc<S::Term>,
    ttl: Duration,
    /// Held while a step is under way.
    account: tokio::sync::Mutex<Account>,
    /// When the session is over, unless it is heard of.
    due: Mutex<Instant>,
}

/// How long after a failure a watch is begun anew.
const PAUSE: Duration = Duration::from_millis(50);
/// For so long a watch is kept when nobody waits any more: soon somebody will.
const LINGER: Duration = Duration::from_secs(1);

impl<S: Shelf> Queue<S> {
    pub(crate) fn new(shelf: S) -> Self {
        let filled = Arc::new(Notify::new());
        let inner = Arc::new(Inner {
            shelf,
            slots: Mutex::default(),
            rooms: Mutex::default(),
            filled: Arc::clone(&filled),
            watches: AtomicU64::new(0),
        });
        tokio::spawn(undertaker::take_down(Arc::downgrade(&inner), filled));
        Self(inner)
    }

    pub(crate) fn shelf(&self) -> &S {
        &self.0.shelf
    }

    pub(crate) async fn step(&self, key: &Key, rule: &Rule, step: &Step) -> Result<Reply, StoreError> {
        let Rule::Permits { limit } = *rule else {
            let why = "it counts permits, and neither rates nor windows".into();
            return Err(StoreError::Refused { why });
        };
        let (inner, key) = (&self.0, &key.of(rule.kind()));
        let id = (key.clone(), step.session);
        let slot = inner.slots.lock().get(&id).cloned();
        if step.end {
            inner.end(key, step, slot).await?;
            return Ok(Reply::default());
        }
        let slot = match slot.filter(|slot| !inner.shelf.is_over(&slot.term)) {
            Some(slot) => slot,
            None => {
                inner.forget(key, step.session);
                let term = inner.shelf.term(step.ttl).await?;
                if !step.begin {
                    let (term, session) = (&*term, step.session);
                    let visit = Visit {
                        term,
                        key,
                        limit,
                        session,
                    };
                    return inner.unknown(&visit).await;
                }
                inner.fill(id.clone(), term, step.ttl)
            }
        };
        let visit = Visit {
            term: &*slot.term,
            key,
            limit,
            session: step.session,
        };
        let mut account = slot.account.lock().await;
        if !inner.has(&id, &slot) {
            if !step.begin {
                return inner.unknown(&visit).await;
            }
            let why = "the session was taken down meanwhile".into();
            return Err(StoreError::Unreachable { why });
        }
        let sent = Instant::now();
        account.apply(step, inner.outlook(key));
        let line = inner.carry_out(&visit, &mut account).await?;
        let Some(line) = line else {
            // What is left of it is nobody's. Until it has gone it is known here.
            let ended = inner.shelf.end(Some(&slot.term), step.ttl, key, step.session);
            if seeded!("queue_forgets_the_lost") {
                inner.forget(key, step.session);
            }
            ended.await?;
            inner.forget(key, step.session);
            return inner.unknown(&visit).await;
        };
        *slot.due.lock() = Instant::now() + step.ttl;
        let mut reply = account.answer(step, &line);
        reply.age = inner.shelf.age(&slot.term, sent);
        if inner.seat(key, step.session, &account, &reply) {
            self.watch(&slot.term, key);
        }
        Ok(reply)
    }

    pub(crate) async fn news(&self, key: &Key, session: Session) {
        let ear = self
            .0
            .rooms
            .lock()
            .entry(key.of(Rule::PERMITS))
            .or_default()
            .ear(session);
        ear.notified().await;
    }

    /// Nobody asks for news of this session any more. What could not be taken down of it still is.
    pub(crate) fn leave(&self, key: &Key, session: Session) {
        let key = &key.of(Rule::PERMITS);
        if seeded!("queue_forgets_the_parted") {
            self.0.forget(key, session);
        }
        self.0.unseat(key, session);
    }
}

impl<S: Shelf> Inner<S> {
    /// What was last seen of the key.
    fn outlook(&self, key: &Key) -> Outlook {
        self.rooms.lock().get(key).map(Room::outlook).unwrap_or_default()
    }

    fn fill(&self, id: (Key, Session), term: Arc<S::Term>, ttl: Duration) -> Arc<Slot<S>> {
        let slot = Arc::new(Slot {
            term,
            ttl,
            account: tokio::sync::Mutex::default(),
            due: Mutex::new(Instant::now() + ttl),
        });
        let mut slots = self.slots.lock();
        let slot = Arc::clone(slots.entry(id).or_insert(slot));
        drop(slots);
        self.filled.notify_one();
        slot
    }

    /// Takes down a session. What fails is tried again from here, also when nobody asks for it any more.
    async fn end(&self, key: &Key, step: &Step, slot: Option<Arc<Slot<S>>>) -> Result<(), StoreError> {
        if let Some(slot) = slot {
            {
                let mut due = slot.due.lock();
                *due = Instant::now().min(*due);
            }
            let _account = slot.account.lock().await;
            self.filled.notify_one();
            if !self.has(&(key.clone(), step.session), &slot) {
                return Ok(());
            }
            let ended = self.shelf.end(Some(&slot.term), slot.ttl, key, step.session);
            ended.await?;
        } else {
            self.shelf.end(None, step.ttl, key, step.session).await?;
        }
        self.forget(key, step.session);
        Ok(())
    }

    /// Nothing more is known of this session here.
    fn forget(&self, key: &Key, session: Session) {
        let slot = self.slots.lock().remove(&(key.clone(), session));
        drop(slot);
        self.unseat(key, session);
    }

    /// The session waits for nothing any more.
    fn unseat(&self, key: &Key, session: Session) {
        let mut rooms = self.rooms.lock();
        let empty = rooms.get_mut(key).is_some_and(|room| room.leaves(session));
        let room = if empty { rooms.remove(key) } else { None };
        drop(rooms);
        drop(room);
    }

    /// Whether this is what is known of the session still.
    fn has(&self, id: &(Key, Session), slot: &Arc<Slot<S>>) -> bool {
        let slots = self.slots.lock();
        slots.get(id).is_some_and(|known| Arc::ptr_eq(known, slot))
    }

    /// The answer to a session that is not there.
    async fn unknown(&self, visit: &Visit<'_, S>) -> Result<Reply, StoreError> {
        let key = visit.key;
        let line = self.look(visit, &Ops::default()).await?;
        let mut rooms = self.rooms.lock();
        let deserted = rooms.get(key).is_some_and(Room::is_deserted) && !seeded!("queue_keeps_rooms");
        let room = if deserted { rooms.remove(key) } else { None };
        drop(rooms);
        drop(room);
        let census: Census = line.census();
        Ok(Reply {
            census,
            ..Reply::default()
        })
    }

    /// Takes note of what a session waits for. True when it is to be told.
    fn seat(&self, key: &Key, session: Session, account: &Account, reply: &Reply) -> bool {
        let mut rooms = self.rooms.lock();
        let room = rooms.entry(key.clone()).or_default();
        room.seat(session, account.waiting(), account.keeps(), reply.others_wait) || S::TELLS
    }
}

impl<S: Shelf> Drop for Inner<S> {
    fn drop(&mut self) {
        // The one who takes down looks once more, and goes.
        self.filled.notify_one();
    }
}
