//! A client that says to a store exactly what a test wants said.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate::remote::{Backend, Grant, Key, Remote, Reply, Rule, Session, Step, StoreError, Wish};

/// Nothing expires within a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// Something expires soon, and tests wait until it has.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// A limiter at `store` grants what is free, and serves who waits: what is told over a connection that stays open arrives as well.
pub(crate) async fn serves_the_waiters(store: impl Backend) {
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

/// No test goes by how long a server takes to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What an acquire is refused by.
pub(crate) async fn refused(store: impl Backend, key: Key) -> StoreError {
    let remote = Remote::permits(key, 1).ttl(LONG).away_after(Duration::ZERO);
    let remote = remote.spawn(store).expect("settings that can be");
    let acquired = tokio::time::timeout(PATIENCE, remote.acquire(1)).await;
    assert!(acquired.expect("it is refused").is_err());
    remote.stats().last_error.expect("it says why")
}

/// Clients of `rule` whose sessions last so long.
pub(crate) fn speakers<'a, B: Backend, const N: usize>(
    store: &'a B,
    key: &'a Key,
    rule: Rule,
    ttls: [Duration; N],
) -> [Speaker<'a, B>; N] {
    ttls.map(|ttl| Speaker::new(store, key, rule, ttl))
}

/// A session, and what it has told so far.
pub(crate) struct Speaker<'a, B> {
    store: &'a B,
    key: &'a Key,
    rule: Rule,
    next: Step,
    wishes: u64,
}

impl<'a, B: Backend> Speaker<'a, B> {
    pub(crate) fn new(store: &'a B, key: &'a Key, rule: Rule, ttl: Duration) -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        // Relaxed: a number of its own is all that is wanted.
        let (client, number) = (CLIENTS.fetch_add(1, Ordering::Relaxed), 1);
        let session = Session { client, number };
        Self {
            store,
            key,
            rule,
            next: Step::first(session, ttl),
            wishes: 0,
        }
    }

    /// Makes the store know the key, and returns when it grants. A server that was just started grants nothing at a key for as
    /// long as the session lasts that came first: here it begins with a short life, and goes on with the one that it has.
    pub(crate) async fn open(mut self) {
        let ttl = self.next.ttl;
        loop {
            self.say(|step| (step.begin, step.ttl) = (true, SHORT))
                .await
                .expect("the store answers");
            if self.say(|step| step.ttl = ttl).await.expect("the store answers").alive {
                break;
            }
            // It was too slow.
            self.next.session.number += 1;
        }
        if matches!(self.rule, Rule::Permits { .. }) {
            self.wish(1, true).await;
            let units = self.until_granted().await.units;
            self.give(units).await;
        }
    }

    /// The same, who goes on at another store.
    pub(crate) fn at<'b>(self, store: &'b B, key: &'b Key) -> Speaker<'b, B> {
        let Self { rule, next, wishes, .. } = self;
        Speaker {
            store,
            key,
            rule,
            next,
            wishes,
        }
    }

    /// The step that was said last.
    pub(crate) fn last(&self) -> Step {
        let mut step = self.next.clone();
        step.seq -= 1;
        step
    }

    /// Says the next step, changed by `change`, and no longer begins a session.
    pub(crate) async fn say(&mut self, change: impl FnOnce(&mut Step)) -> Result<Reply, StoreError> {
        change(&mut self.next);
        let reply = self.again(&self.next.clone()).await;
        self.next.seq += 1;
        self.next.begin = false;
        reply
    }

    /// Says this step, as it is.
    pub(crate) async fn again(&self, step: &Step) -> Result<Reply, StoreError> {
        self.store.step(self.key, &self.rule, step).await
    }

    /// Requests `need` permits, waits for them in the queue or not, and returns the immediate reply.
    pub(crate) async fn wish(&mut self, need: u64, queue: bool) -> Reply {
        self.wishes(need, queue).await.expect("the store answers")
    }

    /// The same, without waiting; nothing, when others were quicker, or the machine slow.
    pub(crate) async fn wish_if_not_busy(&mut self, need: u64) -> Reply {
        match self.wishes(need, false).await {
            Err(StoreError::Busy { .. }) => Reply::default(),
            reply => reply.expect("the store answers"),
        }
    }

    async fn wishes(&mut self, need: u64, queue: bool) -> Result<Reply, StoreError> {
        self.wishes += 1;
        let id = self.wishes;
        let want = need;
        self.say(|step| step.wishes = vec![Wish { id, need, want, queue }])
            .await
    }

    /// Says nothing new, except that it lives.
    pub(crate) async fn look(&mut self) -> Reply {
        self.say(|_| {}).await.expect("the store answers")
    }

    /// Takes note of what has been granted, so that it is not told again; how many units that is.
    pub(crate) fn see(&mut self, reply: &Reply) -> u64 {
        let last = reply.grants.last().map(|grant| grant.token);
        self.next.seen = last.unwrap_or(self.next.seen);
        reply.grants.iter().map(|grant| grant.units).sum()
    }

    /// Returns a number of permits.
    pub(crate) async fn give(&mut self, units: u64) -> Reply {
        self.say(|step| step.returned += units)
            .await
            .expect("the store answers")
    }

    /// Ends the session.
    pub(crate) async fn end(mut self) {
        self.say(|step| step.end = true).await.expect("the store answers");
    }

    /// Looks, as often as the store says, until something has been granted.
    pub(crate) async fn until_granted(&mut self) -> Grant {
        loop {
            let reply = self.look().await;
            if let Some(&grant) = reply.grants.first() {
                return grant;
            }
            tokio::time::sleep(reply.again.expect("who waits is told when to look")).await;
        }
    }
}
