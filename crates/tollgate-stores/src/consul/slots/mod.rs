//! Permits in slots.
//!
//! Keys of a limiter, in its folder:
//! - `at/limit`: the number of slots;
//! - `at/<number>`: a slot in use, locked by a session. Free slots have no key;
//! - `at/bell`: written and deleted at once, so that it is never there, and the waiters look again;
//! - `by/<session>`: one for each session, locked by it: its requests, its returned units, and its waits.
//!
//! Consul deletes the locked keys of a session when it ends. A sync reads all keys at one instant. It writes its changes if no
//! other session has taken the slots, and if the session's own key is as it was. So of two syncs of one session, one of them
//! late, never both are carried out, though Consul lets a session lock again what it has locked.

mod changes;
#[cfg(test)]
mod tests;
mod view;

use super::api::{Entry, Written};
use super::sessions::ConsulSession;
use super::{Consul, Inner, Keeping};
use changes::{Place, ops, ops_of_leaving};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::RemoteError;
use tollgate::remote::{Backend, Rule, Session, StoreError, SyncReply, SyncRequest};
use view::View;

/// The most slots: a transaction fits them, and the operations that go with them.
const MOST: u64 = 60;

/// Sessions with fewer others than this before them check for dead ones.
const LOOKOUTS: usize = 3;

/// Permits in Consul, in slots: each permit is a key that is locked. A handle: clones share connections.
///
/// For few permits and many requests: sessions that take different slots do not collide.
///
/// # Fairness
/// Waiters are recorded, and a session leaves the slots alone that earlier waiters need. But permits are not handed on: all
/// waiters are woken whenever a slot is taken or given back, and each looks by itself. One that has not seen yet that another
/// waits may pass it. So no waiter is passed for ever, and the order of two requests at about the same time is not promised.
/// Nor is that of several equal requests of one process at once. Others leave slots for one of them: it takes them one after
/// the other, a write for each, and slots left for all of them would lie idle as long as it is slow.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tollgate::remote::{Key, Remote};
/// # use tollgate_stores::Consul;
/// # async fn connected() -> Result<(), Box<dyn std::error::Error>> {
/// let consul = Consul::options("http://127.0.0.1:8500").connect()?;
/// let licences = Arc::new(Remote::permits(Key::new("licences")?, 3).spawn(consul.slots())?);
/// let permit = licences.acquire_owned(1).await?;
/// assert!(!permit.is_lost());
/// # Ok(())
/// # }
/// ```
///
/// # Bounds
/// At most 60 permits: as many as a transaction of Consul's fits. So the capacity of a rate cannot be leased here: rates are
/// unsupported.
///
/// Nothing is left when the last session ends. When the last ones die, end while a dead one is not gone yet, or end before a write of
/// theirs that was given up arrives, the limit stays until the limiter is used again, which replaces it.
#[derive(Clone)]
pub struct ConsulSlots(Arc<Inner>);

impl Consul {
    /// The same Consul, with slots instead of a document.
    pub fn slots(&self) -> ConsulSlots {
        ConsulSlots(Arc::new(self.0.delayed(Duration::ZERO)))
    }
}

impl Inner {
    fn delayed(&self, delay: Duration) -> Self {
        Self::new(self.api.with_delay(delay), self.prefix.clone())
    }
}

impl ConsulSlots {
    /// Returns another handle, for limiters whose slots stay locked for `delay` after the *session* of their holder has ended
    /// by itself: none unless set, a minute at most. Returned slots are free at once.
    ///
    /// Consul may end a session before its time, and its holder may not know before its lease is over: with a delay of the
    /// [time to live](tollgate::remote::RemoteBuilder::ttl) its permits have no other holder until then. The price is that permits
    /// of a dead process are back later by that delay. A restarted server has forgotten the delays.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tollgate::remote::{Key, Remote};
    /// # use tollgate_stores::Consul;
    /// # async fn connected() -> Result<(), Box<dyn std::error::Error>> {
    /// let ttl = Duration::from_secs(10);
    /// let slots = Consul::options("http://127.0.0.1:8500").connect()?.slots();
    /// let licences = Remote::permits(Key::new("licences")?, 3).ttl(ttl).spawn(slots.lock_delay(ttl)?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RemoteError::Duration`] above a minute: Consul takes no longer one.
    pub fn lock_delay(&self, delay: Duration) -> Result<Self, RemoteError> {
        let allowed = (Duration::ZERO, Duration::from_secs(60));
        if delay > allowed.1 {
            let (what, given) = ("lock delay", delay);
            return Err(RemoteError::Duration { what, given, allowed });
        }
        Ok(Self(Arc::new(self.0.delayed(delay))))
    }
}

impl Keeping for ConsulSlots {
    fn inner(&self) -> &Inner {
        &self.0
    }

    async fn attempt(
        &self,
        folder: &str,
        limit: u64,
        sync: &SyncRequest,
        consul_session: Option<&ConsulSession>,
    ) -> Result<Option<SyncReply>, StoreError> {
        let place = &Place(folder.to_owned());
        let Inner {
            api, consul_sessions, ..
        } = &*self.0;
        let name = sync.session.to_string();
        // The number is of what was read: the store reports changes from there on.
        let (mut entries, mut index) = api.list(&place.0).await?;
        if sync.end {
            return self.end(place, limit, sync, (&entries, index)).await;
        }
        let id = consul_session
            .filter(|consul_session| !consul_session.is_lost())
            .map(|consul_session| &*consul_session.id);
        let mut view = View::of(&entries, index, &place.0, &name, id)?;
        let Some((id, consul_session)) = id.zip(consul_session).filter(|_| view.is_there() || sync.begin) else {
            return Ok(Some(view.reply(sync, limit, None)));
        };
        // An overtaken session records first that it waits, so that others leave slots for it.
        let queues = consul_session.is_overtaken();
        while let Some(mut change) = view.next(sync, limit, id, queues) {
            change.life.nonce = consul_sessions.nonce();
            let ops = ops(place, &change, sync.session, id, consul_sessions.nonce())?;
            let written = match api.write(&ops).await? {
                Written::At(written) => written,
                // The locks come last.
                Written::Delayed(places) => {
                    let first = ops.len() - change.locked.len();
                    let places = places.into_iter().filter_map(|place| place.checked_sub(first));
                    if view.delay(&change, places) {
                        continue;
                    }
                    return Ok(None);
                }
                Written::Overtaken => return Ok(None),
            };
            if change.lowers {
                (entries, index) = api.list(&place.0).await?;
                view = View::of(&entries, index, &place.0, &name, Some(id))?;
            } else {
                view.apply(change, id, written);
            }
        }
        let mut reply = view.reply(sync, limit, Some(id));
        if let Some(ahead) = view.place() {
            // One of the earlier sessions may be dead, which is not notified. The others find out when they renew.
            reply.again = (ahead < LOOKOUTS).then(|| sync.ttl / 20 + consul_sessions.part_of(sync.ttl / 20));
            consul_session.watch(api, format!("{}at/", place.0), true, index, sync.ttl);
        } else {
            consul_session.unwatch();
        }
        Ok(Some(reply))
    }
}

impl ConsulSlots {
    async fn end(
        &self,
        place: &Place,
        limit: u64,
        sync: &SyncRequest,
        (entries, index): (&[Entry], u64),
    ) -> Result<Option<SyncReply>, StoreError> {
        let life = place.life(sync.session);
        let ours = entries.iter().find(|entry| entry.key == life);
        let id = ours.and_then(|entry| entry.session.as_deref());
        let mut view = View::of(entries, index, &place.0, &sync.session.to_string(), id)?;
        if let Some((id, leaving)) = id.and_then(|id| Some((id, view.leaving(id)?))) {
            let ops = ops_of_leaving(place, &leaving, sync.session, id);
            if self.0.api.change(&ops).await?.is_none() {
                return Ok(None);
            }
            view.leave(id);
        }
        Ok(Some(view.reply(sync, limit, None)))
    }
}

impl Backend for ConsulSlots {
    fn supports(&self, rule: &Rule, ttl: Duration) -> Result<(), RemoteError> {
        let store = "Consul with slots";
        let what = match *rule {
            Rule::Permits { limit } if limit <= MOST => return super::supports(ttl),
            Rule::Permits { .. } => "more than 60 permits, and so no leased capacity: Consul with a document can",
            Rule::Rate { .. } => "rates: Redis and PostgreSQL can, and Consul with a document by leased capacity",
            _ => "windows: Redis and PostgreSQL can",
        };
        Err(RemoteError::Unsupported { what, store })
    }

    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        super::sync(self, key, rule, sync).await
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.0.consul_sessions.notified(key, session).await;
    }

    fn leave(&self, key: &Key, session: Session) {
        self.0.consul_sessions.remove(key, session);
    }
}

impl fmt::Debug for ConsulSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulSlots")
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}
