//! Permits at stores with ordered nodes, one sync at a time: the same tests for each of them.

use crate::raw_session::{LONG, RawSession};
use crate::rig::proxy::Proxy;
use crate::store::key;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::sleep;
use tollgate::remote::{Backend, Grant, Key, Remote, Request, Rule, SyncReply};

/// Sessions expire soon. Clients of ZooKeeper give up a connection that was silent for two fifths of it.
pub(crate) const BRIEF: Duration = Duration::from_millis(1_500);

fn permits(limit: u64) -> Rule {
    Rule::Permits { limit }
}

/// A client of the store, and the awaited key.
struct At<'a, B> {
    store: &'a B,
    key: Key,
    limit: u64,
}

impl<'a, B: Backend> At<'a, B> {
    fn new(store: &'a B, limit: u64) -> Self {
        let key = key();
        Self { store, key, limit }
    }

    fn raw_session(&self) -> RawSession<'_, B> {
        self.raw_session_for(LONG)
    }

    fn raw_session_for(&self, ttl: Duration) -> RawSession<'_, B> {
        RawSession::new(self.store, &self.key, permits(self.limit), ttl)
    }

    /// Waits for notifications, and syncs after each, until something has been granted: there is no sync without one.
    async fn until_notified(&self, raw_session: &mut RawSession<'_, B>) -> Grant {
        let session = raw_session.last().session;
        loop {
            self.store.notified(&self.key, session).await;
            if let Some(&grant) = raw_session.look().await.grants.first() {
                return grant;
            }
        }
    }
}

fn in_use(reply: &SyncReply) -> (u64, u64) {
    (reply.usage.in_use, reply.usage.waiting)
}

pub(crate) async fn an_uncontended_request_is_granted_at_once(store: impl Backend) {
    let at = At::new(&store, 2);
    let mut one = at.raw_session();
    let reply = one.request(2, true).await;
    let [
        Grant {
            request: 1,
            units: 2,
            token,
        },
    ] = reply.grants[..]
    else {
        panic!("{reply:?}")
    };
    assert!(reply.alive && token > 0);
    assert_eq!((reply.usage.limit, in_use(&reply)), (2, (2, 0)));
    one.end().await;
}

pub(crate) async fn a_refused_caller_leaves_nothing_behind(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut holder, mut refused, mut third) = (at.raw_session(), at.raw_session(), at.raw_session());
    assert_eq!(holder.request(1, true).await.grants.len(), 1);
    let reply = refused.request(1, false).await;
    assert_eq!((&reply.grants[..], in_use(&reply)), (&[][..], (1, 0)));
    // A request above the limit does not wait.
    let reply = refused.request(2, true).await;
    assert_eq!((&reply.grants[..], in_use(&reply)), (&[][..], (1, 0)));
    holder.give(1).await;
    assert_eq!(third.request(1, false).await.grants.len(), 1);
    assert_eq!(refused.look().await.grants, []);
}

pub(crate) async fn a_repeated_request_is_the_same_request(store: impl Backend) {
    let at = At::new(&store, 3);
    let mut holder = at.raw_session();
    let first = holder.request(2, true).await;
    for _ in 0..3 {
        let again = holder.again(&holder.last()).await.unwrap();
        assert_eq!((again.grants, again.usage.in_use), (first.grants.clone(), 2));
    }
    let again = holder.say(|_| {}).await.unwrap();
    assert_eq!((again.grants, again.usage.in_use), (first.grants, 2));
}

/// And parts of a grant come back, to the next waiter.
pub(crate) async fn permits_returned_twice_come_back_once(store: impl Backend) {
    let at = At::new(&store, 5);
    let (mut one, mut other) = (at.raw_session(), at.raw_session());
    one.request(3, true).await;
    other.request(2, true).await;
    assert_eq!(one.give(1).await.usage.in_use, 4);
    for _ in 0..3 {
        assert_eq!(one.again(&one.last()).await.unwrap().usage.in_use, 4);
    }
    assert_eq!(one.look().await.usage.in_use, 4);
    let mut third = at.raw_session();
    assert_eq!(third.request(2, true).await.grants, []);
    one.give(1).await;
    assert_eq!(at.until_notified(&mut third).await.units, 2);
    assert_eq!(one.give(1).await.usage.in_use, 4);
}

pub(crate) async fn an_overtaken_request_does_nothing(store: impl Backend) {
    let at = At::new(&store, 4);
    let mut one = at.raw_session();
    one.request(2, true).await;
    let overtaken = one.last();
    one.give(2).await;
    assert_eq!(one.again(&overtaken).await.unwrap().usage.in_use, 0);
}

pub(crate) async fn a_session_that_went_silent_stays_lost(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut late, mut next) = (at.raw_session_for(BRIEF), at.raw_session());
    late.request(1, true).await;
    let grant = match next.request(1, true).await.grants.first() {
        Some(&grant) => grant,
        None => at.until_notified(&mut next).await,
    };
    let sync = late.last();
    let replies = [late.again(&sync).await.unwrap(), late.look().await, late.give(1).await];
    for reply in replies {
        assert!(!reply.alive && reply.grants.is_empty(), "{reply:?}");
    }
    let reply = next.look().await;
    assert_eq!((reply.grants, reply.usage.in_use), (vec![grant], 1));
}

pub(crate) async fn a_grant_whose_reply_was_lost_is_repeated(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut holder, mut waits) = (at.raw_session(), at.raw_session());
    holder.request(1, true).await;
    waits.request(1, true).await;
    holder.give(1).await;
    let first = waits.look().await.grants;
    assert_eq!(first.len(), 1);
    assert_eq!(waits.look().await.grants, first);
    let reply = waits.say(|sync| sync.seen = first[0].token).await.unwrap();
    assert_eq!((reply.grants, reply.usage.in_use), (vec![], 1));
}

pub(crate) async fn waiters_that_died_are_passed_over(store: impl Backend) {
    let at = At::new(&store, 1);
    let mut holder = at.raw_session();
    holder.request(1, true).await;
    let mut dead = Vec::new();
    for _ in 0..3 {
        let mut waiter = at.raw_session_for(BRIEF);
        waiter.request(1, true).await;
        dead.push(waiter);
    }
    let mut waits = at.raw_session();
    waits.request(1, true).await;
    while waits.look().await.usage.waiting > 1 {
        tokio::time::sleep(BRIEF / 10).await;
    }
    holder.give(1).await;
    at.until_notified(&mut waits).await;
}

pub(crate) async fn a_try_does_not_pass_the_queue(store: impl Backend) {
    let at = At::new(&store, 2);
    let (mut holder, mut heavy, mut light) = (at.raw_session(), at.raw_session(), at.raw_session());
    holder.request(1, true).await;
    assert_eq!(heavy.request(2, true).await.grants, []);
    assert_eq!(light.request(1, false).await.grants, []);
    holder.give(1).await;
    at.until_notified(&mut heavy).await;
}

pub(crate) async fn the_queue_is_served_in_order_with_rising_tokens(store: impl Backend) {
    let at = At::new(&store, 3);
    let mut holder = at.raw_session();
    let mut last = holder.request(3, true).await.grants[0].token;
    let mut line = Vec::new();
    for need in [1, 3, 2, 1] {
        let mut waiter = at.raw_session();
        assert_eq!(waiter.request(need, true).await.grants, []);
        line.push((need, waiter));
    }
    holder.give(3).await;
    for place in 0..line.len() {
        let (need, waiter) = &mut line[place];
        let need = *need;
        let Grant { units, token, .. } = at.until_notified(waiter).await;
        assert!(units == need && token > last, "{token} after {last}");
        last = token;
        for (_, behind) in &mut line[place + 1..] {
            let served = behind.look().await.grants;
            assert!(served.is_empty() || place == 2, "{served:?}");
        }
        line[place].1.give(need).await;
    }
}

/// Requests of one session, in one sync: each has a token of its own.
pub(crate) async fn requests_of_one_sync_are_queued_as_well(store: impl Backend) {
    let at = At::new(&store, 5);
    let mut one = at.raw_session();
    let requests = (1..=4).map(|id| Request {
        id,
        need: id,
        want: id,
        queue: true,
    });
    let requests: Vec<_> = requests.collect();
    let reply = one.say(|sync| sync.requests = requests).await.unwrap();
    let granted: Vec<_> = reply.grants.iter().map(|grant| (grant.request, grant.units)).collect();
    assert_eq!(
        granted,
        [(1, 1), (2, 2)],
        "three more do not fit, and four are behind them"
    );
    assert!(reply.grants[0].token < reply.grants[1].token);
    assert_eq!(in_use(&reply), (3, 2));
    one.see(&reply);
    let reply = one.give(3).await;
    let granted: Vec<_> = reply.grants.iter().map(|grant| grant.request).collect();
    assert_eq!((granted, in_use(&reply)), (vec![3], (3, 1)));
}

pub(crate) async fn a_withdrawn_request_frees_the_waiters_behind_it(store: impl Backend) {
    let at = At::new(&store, 2);
    let (mut holder, mut heavy, mut light) = (at.raw_session(), at.raw_session(), at.raw_session());
    holder.request(1, true).await;
    heavy.request(2, true).await;
    light.request(1, true).await;
    heavy.say(|sync| sync.withdrawn = vec![1]).await.unwrap();
    at.until_notified(&mut light).await;
}

/// A look grants it: withdrawn before that, it never was, or else it is reported and given back.
pub(crate) async fn a_request_withdrawn_at_its_grant_leaves_nothing(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut holder, mut waits) = (at.raw_session(), at.raw_session());
    holder.request(1, true).await;
    waits.request(1, true).await;
    holder.give(1).await;
    let reply = waits
        .say(|sync| (sync.requests, sync.withdrawn) = (Vec::new(), vec![1]))
        .await
        .unwrap();
    let units = waits.see(&reply);
    let reply = waits.give(units).await;
    assert_eq!(in_use(&reply), (0, 0));
}

pub(crate) async fn a_shrink_drains_and_takes_nothing_away(store: impl Backend) {
    let at = At::new(&store, 4);
    let (mut holder, mut waits) = (at.raw_session(), at.raw_session());
    holder.request(4, true).await;
    waits.request(1, true).await;
    let reply = holder.say(|sync| sync.limit = Some(2)).await.unwrap();
    assert_eq!((reply.usage.limit, reply.usage.in_use), (2, 4));
    holder
        .say(|sync| (sync.limit, sync.returned) = (None, 2))
        .await
        .unwrap();
    assert_eq!(waits.look().await.grants, [], "two are in use of two");
    holder.give(1).await;
    at.until_notified(&mut waits).await;
    let reply = holder.say(|sync| sync.limit = Some(9)).await.unwrap();
    assert_eq!((reply.usage.limit, reply.usage.in_use), (9, 2));
}

pub(crate) async fn a_raised_limit_notifies_the_waiters(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut holder, mut waits) = (at.raw_session(), at.raw_session());
    holder.request(1, true).await;
    waits.request(1, true).await;
    holder.say(|sync| sync.limit = Some(2)).await.unwrap();
    at.until_notified(&mut waits).await;
}

/// The number of requests of a waiter behind `proxy` from the beginning of its wait: others come and go meanwhile, and then it
/// is its turn.
pub(crate) async fn asked_after_a_wait<B: Backend>(proxy: &Proxy, waiting: B, store: B) -> u64 {
    let exchanges = || proxy.exchanges().iter().sum::<u64>();
    let (key, rule) = (key(), permits(1));
    let mut holder = RawSession::new(&store, &key, rule, LONG);
    holder.request(1, true).await;
    let remote = Remote::permits(key.clone(), 1).ttl(LONG).spawn(waiting).unwrap();
    let mut waits = pin!(remote.acquire(1));
    assert!(matches!(futures::poll!(waits.as_mut()), Poll::Pending));
    while holder.look().await.usage.waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    // It has begun to watch, and goes on to: its own traffic comes once in 200 s.
    let before = loop {
        let before = exchanges();
        sleep(Duration::from_millis(100)).await;
        if before == exchanges() {
            break before;
        }
    };
    for _ in 0..20 {
        let mut other = RawSession::new(&store, &key, rule, LONG);
        other.request(1, true).await;
        other.end().await;
    }
    holder.give(1).await;
    let permit = waits.await.unwrap();
    let asked = exchanges() - before;
    drop(permit);
    asked
}

/// A prefetch gets the free units, or a share of them, and its holder is notified when others wait.
pub(crate) async fn prefetch_takes_only_the_permits_that_others_leave(store: impl Backend) {
    let at = At::new(&store, 8);
    let (mut one, mut other) = (at.raw_session(), at.raw_session());
    let block = |id, need, want, queue| vec![Request { id, need, want, queue }];
    // It has to know the limit first.
    one.look().await;
    let reply = one
        .say(|sync| (sync.keeps, sync.requests) = (true, block(1, 1, 6, true)))
        .await
        .unwrap();
    assert_eq!(one.see(&reply), 6, "there is no other session");
    other.look().await;
    let reply = other.say(|sync| sync.requests = block(1, 1, 6, true)).await.unwrap();
    assert_eq!(other.see(&reply), 2, "half of an equal share");
    let reply = other.say(|sync| sync.requests = block(2, 3, 6, true)).await.unwrap();
    assert_eq!((&reply.grants[..], in_use(&reply)), (&[][..], (8, 1)));
    // A session that keeps units is notified, and returns what it can spare.
    at.store.notified(&at.key, one.last().session).await;
    assert!(one.look().await.others_wait);
    one.give(4).await;
    let grant = at.until_notified(&mut other).await;
    assert_eq!(grant.units, 3);
    assert!(!one.look().await.others_wait);
}

/// Each of them, as a test of its own, at the store that `$store` makes.
macro_rules! lined {
    ($store:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::queued::$name($store).await;
            }
        )*
    };
    ($store:expr) => {
        $crate::queued::lined! {
            $store;
            an_uncontended_request_is_granted_at_once
            a_refused_caller_leaves_nothing_behind
            a_repeated_request_is_the_same_request
            permits_returned_twice_come_back_once
            an_overtaken_request_does_nothing
            a_session_that_went_silent_stays_lost
            a_grant_whose_reply_was_lost_is_repeated
            waiters_that_died_are_passed_over
            a_try_does_not_pass_the_queue
            the_queue_is_served_in_order_with_rising_tokens
            requests_of_one_sync_are_queued_as_well
            a_withdrawn_request_frees_the_waiters_behind_it
            a_request_withdrawn_at_its_grant_leaves_nothing
            a_shrink_drains_and_takes_nothing_away
            a_raised_limit_notifies_the_waiters
            prefetch_takes_only_the_permits_that_others_leave
        }
    };
}
pub(crate) use lined;
