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
//! | [`Shelf`] | what a store has to be able to do |
//!
//! A session's nodes live as long as what the store calls a session, or a lease: a [`Shelf::Term`]. That of ZooKeeper and of
//! etcd is kept alive by its client, whatever becomes of the limiter: so what has not been heard of for its time to live is
//! taken down from here.

mod account;
#[cfg(test)]
mod corners;
#[cfg(test)]
mod fake;
mod line;
mod room;
mod spell;

use super::backend::{Census, Reply, Rule, Session, Step, StoreError};
use super::key::Key;
use account::Account;
pub(crate) use account::Ops;
use line::Outlook;
pub(crate) use line::{Line, Node};
use parking_lot::Mutex;
pub(crate) use room::Change;
use room::Room;
pub(crate) use spell::{escaped, parse_session};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

/// A store that keeps nodes in order of their creation.
pub(crate) trait Shelf: Send + Sync + 'static {
    /// How long nodes last: until it is over, and so long after whoever keeps it up was last heard of.
    type Term: Send + Sync + 'static;

    /// A term under which nodes last at least for `ttl` after the step that made them, and whose process is missed soon after
    /// that.
    fn term(&self, ttl: Duration) -> impl Future<Output = Result<Arc<Self::Term>, StoreError>> + Send;

    /// Whether everything of this term goes.
    fn is_over(&self, term: &Self::Term) -> bool;

    /// Whether everything of this term has gone by itself, and nothing is to be taken down any more.
    fn is_gone(&self, term: &Self::Term) -> bool {
        self.is_over(term)
    }

    /// How long before `at` the term was last renewed, where steps do not renew it.
    fn age(&self, term: &Self::Term, at: Instant) -> Duration {
        let _ = (term, at);
        Duration::ZERO
    }

    /// Whether [`watch`](Self::watch) tells of one's own changes as well, before anything that happens later. Then nobody has to
    /// look who watches.
    const TELLS: bool = false;

    /// The token of a node that was made in this term, where [`TELLS`](Self::TELLS).
    fn token(&self, term: &Self::Term, key: &Key, name: &str) -> Option<u64> {
        let _ = (term, key, name);
        None
    }

    /// Does all that, in order and at once, and says what lies under the key then; nothing, where it is not to look and need
    /// not. Where nobody has used the key, the limit is `limit`. Before it is known what became of an earlier one that failed,
    /// it is only asked to look.
    fn carry_out(
        &self,
        term: &Self::Term,
        key: &Key,
        limit: u64,
        session: Session,
        ops: &Ops,
        look: bool,
    ) -> impl Future<Output = Result<Option<Line>, StoreError>> + Send;

    /// Takes down everything of this session, and the key with it if it was the last. The term is that of the session, if that
    /// is known; it may have been tried before. `ttl` is the session's.
    fn end(
        &self,
        term: Option<&Self::Term>,
        ttl: Duration,
        key: &Key,
        session: Session,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Tells of everything under the key, first all that there is, until it cannot any more.
    fn watch(
        &self,
        term: &Self::Term,
        key: &Key,
        tell: impl Fn(Change) + Send + Sync,
    ) -> impl Future<Output = ()> + Send;
}

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

/// What has come of changes that a watch may tell of.
enum Watched {
    /// They are done, and this is what there is now.
    Seen(Line),
    /// They are done.
    Done,
    /// They are not begun.
    Not,
}

/// How often a step is gone on with, when what it finds asks for more changes.
const ROUNDS: usize = 8;
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
        tokio::spawn(take_down(Arc::downgrade(&inner), filled));
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
        let inner = &self.0;
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
                    return inner.unknown(&term, key, limit, step.session).await;
                }
                inner.fill(id.clone(), term, step.ttl)
            }
        };
        let mut account = slot.account.lock().await;
        if !inner.has(&id, &slot) {
            if !step.begin {
                return inner.unknown(&slot.term, key, limit, step.session).await;
            }
            let why = "the session was taken down meanwhile".into();
            return Err(StoreError::Unreachable { why });
        }
        let sent = Instant::now();
        account.apply(step, inner.outlook(key));
        let line = inner
            .carry_out(&slot.term, key, limit, step.session, &mut account)
            .await?;
        let Some(line) = line else {
            // What is left of it is nobody's. Until it has gone it is known here.
            let ended = inner.shelf.end(Some(&slot.term), step.ttl, key, step.session);
            ended.await?;
            inner.forget(key, step.session);
            return inner.unknown(&slot.term, key, limit, step.session).await;
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
        let ear = self.0.rooms.lock().entry(key.clone()).or_default().ear(session);
        ear.notified().await;
    }

    /// Nobody asks for news of this session any more. What could not be taken down of it still is.
    pub(crate) fn leave(&self, key: &Key, session: Session) {
        self.0.unseat(key, session);
    }

    /// Watches the key, unless that is done already.
    fn watch(&self, term: &Arc<S::Term>, key: &Key) {
        let mut rooms = self.0.rooms.lock();
        let room = rooms.entry(key.clone()).or_default();
        if room.is_watched(|watched| self.0.shelf.is_over(watched)) {
            // It may have seen what is waited for before it was waited for.
            let told = room.ring();
            drop(rooms);
            return tell(told);
        }
        // Relaxed: a number of its own is all that is wanted.
        let number = self.0.watches.fetch_add(1, Ordering::Relaxed) + 1;
        let watching = watch(Arc::downgrade(&self.0), Arc::clone(term), key.clone(), number);
        room.watch(number, Arc::clone(term), tokio::spawn(watching));
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
    async fn unknown(&self, term: &S::Term, key: &Key, limit: u64, session: Session) -> Result<Reply, StoreError> {
        let line = self.look(term, key, limit, session, &Ops::default()).await?;
        let mut rooms = self.rooms.lock();
        let deserted = rooms.get(key).is_some_and(Room::is_deserted);
        let room = if deserted { rooms.remove(key) } else { None };
        drop(rooms);
        drop(room);
        let census: Census = line.census();
        Ok(Reply {
            census,
            ..Reply::default()
        })
    }

    /// Makes what lies at the store what the account says, and decides what is granted. `None` when the session has gone.
    async fn carry_out(
        &self,
        term: &S::Term,
        key: &Key,
        limit: u64,
        session: Session,
        account: &mut Account,
    ) -> Result<Option<Line>, StoreError> {
        let mut look = account.in_doubt;
        let mut rounds = 0;
        loop {
            let ops = if look { Ops::default() } else { account.ops() };
            account.in_doubt = true;
            let (mut line, told) = match self.watched(term, key, limit, session, &ops).await? {
                Watched::Seen(line) => (line, true),
                Watched::Done => (self.look(term, key, limit, session, &Ops::default()).await?, false),
                Watched::Not => (self.look(term, key, limit, session, &ops).await?, false),
            };
            let mut there = account.see(session, &line, &ops);
            if !there && told {
                // What a watch has not told of yet may well be there.
                account.in_doubt = true;
                line = self.look(term, key, limit, session, &Ops::default()).await?;
                there = account.see(session, &line, &ops);
            }
            if !there || !look && !account.begun() {
                return Ok(None);
            }
            if account.begun() {
                account.judge(session, &line);
            }
            look = false;
            rounds += 1;
            // What is left after so many does no harm, and is done by the next step.
            if account.ops().is_empty() || rounds == ROUNDS {
                return Ok(Some(line));
            }
        }
    }

    /// Does all that, and looks.
    async fn look(
        &self,
        term: &S::Term,
        key: &Key,
        limit: u64,
        session: Session,
        ops: &Ops,
    ) -> Result<Line, StoreError> {
        let line = self.shelf.carry_out(term, key, limit, session, ops, true).await?;
        let mut line = line.ok_or_else(|| StoreError::Answer {
            given: "nothing, to a look".into(),
        })?;
        self.rooms.lock().entry(key.clone()).or_default().see(&mut line);
        Ok(line)
    }

    /// Does all that without a look, if there is a watch that tells what comes of it.
    async fn watched(
        &self,
        term: &S::Term,
        key: &Key,
        limit: u64,
        session: Session,
        ops: &Ops,
    ) -> Result<Watched, StoreError> {
        if !S::TELLS || ops.begin || ops.is_empty() {
            return Ok(Watched::Not);
        }
        if !self.rooms.lock().get_mut(key).is_some_and(Room::is_asked) {
            return Ok(Watched::Not);
        }
        if let Some(line) = self.shelf.carry_out(term, key, limit, session, ops, false).await? {
            return Ok(Watched::Seen(line));
        }
        let told = tokio::time::timeout(PAUSE, self.told(key, session, ops)).await;
        let Ok(Some(mut line)) = told else {
            return Ok(Watched::Done);
        };
        let known = line.mark(session, |name| self.shelf.token(term, key, name));
        Ok(if known { Watched::Seen(line) } else { Watched::Done })
    }

    /// Waits until the watch has told of all this. `None` when there is no watch any more.
    async fn told(&self, key: &Key, session: Session, ops: &Ops) -> Option<Line> {
        loop {
            let changed;
            // Made before the lock is free again: what happens from then on is not missed.
            let notified;
            {
                let rooms = self.rooms.lock();
                let room = rooms.get(key)?;
                if let Some(line) = room.line_after(session, ops)? {
                    return Some(line);
                }
                changed = room.changed();
                notified = changed.notified();
            }
            notified.await;
        }
    }

    /// Takes note of what a session waits for. True when it is to be told.
    fn seat(&self, key: &Key, session: Session, account: &Account, reply: &Reply) -> bool {
        let mut rooms = self.rooms.lock();
        let room = rooms.entry(key.clone()).or_default();
        room.seat(session, account.waiting(), account.keeps(), reply.others_wait) || S::TELLS
    }

    fn note(&self, key: &Key, number: u64, change: Change) {
        let told = {
            let mut rooms = self.rooms.lock();
            let room = rooms.get_mut(key).filter(|room| room.is_watched_by(number));
            room.map(|room| (room.note(change), room.changed()))
        };
        if let Some((told, changed)) = told {
            tell(told);
            changed.notify_waiters();
        }
    }

    /// This watch has ended. False when it was none any more.
    fn blind(&self, key: &Key, number: u64) -> bool {
        let changed = {
            let mut rooms = self.rooms.lock();
            let room = rooms.get_mut(key).filter(|room| room.is_watched_by(number));
            room.map(Room::blind)
        };
        if let Some(changed) = &changed {
            changed.notify_waiters();
        }
        changed.is_some()
    }

    /// True when nobody waits for what this watch tells. Then it is none from now on.
    fn is_idle(&self, key: &Key, number: u64) -> bool {
        let mut rooms = self.rooms.lock();
        let room = rooms.get_mut(key).filter(|room| room.is_watched_by(number));
        room.is_none_or(Room::is_idle)
    }

    /// Takes down what has not been heard of for its time to live. Returns when the next is due.
    async fn take_down(&self) -> Option<Instant> {
        let now = Instant::now();
        let slots: Vec<_> = self
            .slots
            .lock()
            .iter()
            .map(|(id, slot)| (id.clone(), Arc::clone(slot)))
            .collect();
        for ((key, session), slot) in slots {
            let Ok(_account) = slot.account.try_lock() else {
                continue;
            };
            // Read once nobody is about to put it off.
            if *slot.due.lock() > now {
                continue;
            }
            // It is tried until it is done, or until there is nothing more to be done.
            let end = self.shelf.end(Some(&slot.term), slot.ttl, &key, session);
            if self.shelf.is_gone(&slot.term) || end.await.is_ok() {
                self.forget(&key, session);
            } else {
                *slot.due.lock() = Instant::now() + (slot.ttl / 16).clamp(PAUSE, LINGER);
            }
        }
        self.slots.lock().values().map(|slot| *slot.due.lock()).min()
    }
}

/// Outside locks: it may run foreign code.
fn tell(ears: Vec<Arc<Notify>>) {
    ears.iter().for_each(|ear| ear.notify_one());
}

/// Takes down sessions whose limiters have gone without a word, as long as there is a handle.
async fn take_down<S: Shelf>(inner: Weak<Inner<S>>, filled: Arc<Notify>) {
    loop {
        let Some(there) = inner.upgrade() else { return };
        let due = there.take_down().await;
        drop(there);
        let filled = filled.notified();
        match due {
            // Whichever comes first.
            Some(due) => drop(timeout_at(due.max(Instant::now() + PAUSE), filled).await),
            None => filled.await,
        }
    }
}

impl<S: Shelf> Drop for Inner<S> {
    fn drop(&mut self) {
        // The one who takes down looks once more, and goes.
        self.filled.notify_one();
    }
}

/// Watches a key, as long as somebody waits there.
async fn watch<S: Shelf>(inner: Weak<Inner<S>>, term: Arc<S::Term>, key: Key, number: u64) {
    // Over all that is tried: a watch that fails at once is not kept for its failures' sake.
    let mut idle = pin!(async {
        loop {
            sleep(LINGER).await;
            if inner.upgrade().is_none_or(|inner| inner.is_idle(&key, number)) {
                break;
            }
        }
    });
    let mut pause = PAUSE;
    while let Some(inner) = inner.upgrade() {
        let begun = Instant::now();
        let goes_on = {
            let mut watched = pin!(
                inner
                    .shelf
                    .watch(&term, &key, |change| inner.note(&key, number, change))
            );
            poll_fn(|cx| match watched.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => idle.as_mut().poll(cx).map(|()| false),
            })
            .await
        };
        if !goes_on || !inner.blind(&key, number) {
            return;
        }
        if inner.shelf.is_over(&term) {
            let told = inner.rooms.lock().get(&key).map(Room::everybody);
            return tell(told.unwrap_or_default());
        }
        drop(inner);
        // One that has lasted is begun anew soon; the next after one that has not, later and later.
        pause = if begun.elapsed() > LINGER { PAUSE } else { pause };
        let paused = sleep(pause);
        pause = (pause * 2).min(LINGER);
        let mut paused = pin!(paused);
        let goes_on = poll_fn(|cx| match idle.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(false),
            Poll::Pending => paused.as_mut().poll(cx).map(|()| true),
        });
        if !goes_on.await {
            return;
        }
    }
}
