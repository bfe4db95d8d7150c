//! A session whose syncs are written by the test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate::remote::{Backend, Grant, Key, Remote, Request, Rule, Session, StoreError, SyncReply, SyncRequest};

/// Nothing expires within a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// Sessions expire soon, and tests wait for it.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// A limiter at `store` grants free units, and serves a waiter: messages over an open connection arrive as well.
pub(crate) async fn serves_waiters(store: impl Backend) {
    let remote = Remote::permits(crate::store::key(), 2).ttl(LONG).spawn(store);
    let remote = remote.expect("settings that can be");
    let held = remote.acquire(2).await.expect("it is free");
    let (second, ()) = tokio::join!(remote.acquire(1), async {
        while remote.stats().waiting == 0 {
            tokio::task::yield_now().await;
        }
        drop(held);
    });
    drop(second.expect("it comes free"));
    remote.close().await;
}

/// No test depends on how long a server takes to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The error of an acquire.
pub(crate) async fn refused(store: impl Backend, key: Key) -> StoreError {
    let remote = Remote::permits(key, 1).ttl(LONG).unavailable_after(Duration::ZERO);
    let remote = remote.spawn(store).expect("settings that can be");
    let acquired = tokio::time::timeout(PATIENCE, remote.acquire(1)).await;
    assert!(acquired.expect("it is refused").is_err());
    remote.stats().last_error.expect("it says why")
}

/// Sessions with this rule and time to live.
pub(crate) fn raw_sessions<'a, B: Backend, const N: usize>(
    store: &'a B,
    key: &'a Key,
    rule: Rule,
    ttls: [Duration; N],
) -> [RawSession<'a, B>; N] {
    ttls.map(|ttl| RawSession::new(store, key, rule, ttl))
}

/// A session, with its next sync.
pub(crate) struct RawSession<'a, B> {
    store: &'a B,
    key: &'a Key,
    rule: Rule,
    next: SyncRequest,
    requests: u64,
}

impl<'a, B: Backend> RawSession<'a, B> {
    pub(crate) fn new(store: &'a B, key: &'a Key, rule: Rule, ttl: Duration) -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only the number has to be unique.
        let (client, number) = (CLIENTS.fetch_add(1, Ordering::Relaxed), 1);
        let session = Session { client, number };
        Self {
            store,
            key,
            rule,
            next: SyncRequest::first(session, ttl),
            requests: 0,
        }
    }

    /// Makes the store know the key, and returns when it grants. A server that was just started grants nothing at a key for the
    /// time to live of its first session. So the session begins with a short one, and goes on with its own.
    pub(crate) async fn open(mut self) {
        let ttl = self.next.ttl;
        loop {
            self.say(|sync| (sync.begin, sync.ttl) = (true, SHORT))
                .await
                .expect("the store answers");
            if self.say(|sync| sync.ttl = ttl).await.expect("the store answers").alive {
                break;
            }
            // It was too slow.
            self.next.session.number += 1;
        }
        if matches!(self.rule, Rule::Permits { .. }) {
            self.request(1, true).await;
            let units = self.until_granted().await.units;
            self.give(units).await;
        }
    }

    /// The same session at another store.
    pub(crate) fn at<'b>(self, store: &'b B, key: &'b Key) -> RawSession<'b, B> {
        let Self {
            rule, next, requests, ..
        } = self;
        RawSession {
            store,
            key,
            rule,
            next,
            requests,
        }
    }

    /// The last sync.
    pub(crate) fn last(&self) -> SyncRequest {
        let mut sync = self.next.clone();
        sync.seq -= 1;
        sync
    }

    /// Sends the next sync, changed by `change`, which does not begin a session any more.
    pub(crate) async fn say(&mut self, change: impl FnOnce(&mut SyncRequest)) -> Result<SyncReply, StoreError> {
        change(&mut self.next);
        let reply = self.again(&self.next.clone()).await;
        self.next.seq += 1;
        self.next.begin = false;
        reply
    }

    /// Sends this sync, as it is.
    pub(crate) async fn again(&self, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        self.store.sync(self.key, &self.rule, sync).await
    }

    /// Requests `need` units, which wait in the queue or not, and returns the immediate reply.
    pub(crate) async fn request(&mut self, need: u64, queue: bool) -> SyncReply {
        self.requests(need, queue).await.expect("the store answers")
    }

    async fn requests(&mut self, need: u64, queue: bool) -> Result<SyncReply, StoreError> {
        self.requests += 1;
        let id = self.requests;
        let want = need;
        self.say(|sync| sync.requests = vec![Request { id, need, want, queue }])
            .await
    }

    /// Sends a sync without changes, as a sign of life.
    pub(crate) async fn look(&mut self) -> SyncReply {
        self.say(|_| {}).await.expect("the store answers")
    }

    /// Records the grants, so that they are not repeated; returns their units.
    pub(crate) fn see(&mut self, reply: &SyncReply) -> u64 {
        let last = reply.grants.last().map(|grant| grant.token);
        self.next.seen = last.unwrap_or(self.next.seen);
        reply.grants.iter().map(|grant| grant.units).sum()
    }

    /// Returns `units`.
    pub(crate) async fn give(&mut self, units: u64) -> SyncReply {
        self.say(|sync| sync.returned += units)
            .await
            .expect("the store answers")
    }

    /// Ends the session.
    pub(crate) async fn end(mut self) {
        self.say(|sync| sync.end = true).await.expect("the store answers");
    }

    /// Syncs, as often as the store asks for at least, until something has been granted.
    pub(crate) async fn until_granted(&mut self) -> Grant {
        loop {
            let reply = self.look().await;
            if let Some(&grant) = reply.grants.first() {
                return grant;
            }
            // Often enough to stay alive.
            let again = reply.again.expect("who waits is told when to look");
            tokio::time::sleep(again.min(self.next.ttl / 4)).await;
        }
    }
}
