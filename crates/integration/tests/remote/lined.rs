//! Permits at stores that keep queues of nodes, a request at a time: the same tests for each of them.

use crate::rig::proxy::Proxy;
use crate::speaker::{LONG, Speaker};
use crate::store::key;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::sleep;
use tollgate::remote::{Backend, Grant, Key, Remote, Reply, Rule, Wish};

/// Something expires soon. Clients of ZooKeeper give a connection up that was silent for two fifths of it.
pub(crate) const BRIEF: Duration = Duration::from_millis(1_500);

fn permits(limit: u64) -> Rule {
    Rule::Permits { limit }
}

/// A client of the store, and what is waited for.
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

    fn speaker(&self) -> Speaker<'_, B> {
        self.speaker_for(LONG)
    }

    fn speaker_for(&self, ttl: Duration) -> Speaker<'_, B> {
        Speaker::new(self.store, &self.key, permits(self.limit), ttl)
    }

    /// Waits for a notification, and looks, until something has been granted. It never looks without one.
    async fn told(&self, speaker: &mut Speaker<'_, B>) -> Grant {
        let session = speaker.last().session;
        loop {
            self.store.news(&self.key, session).await;
            if let Some(&grant) = speaker.look().await.grants.first() {
                return grant;
            }
        }
    }
}

fn in_use(reply: &Reply) -> (u64, u64) {
    (reply.census.in_use, reply.census.waiting)
}

pub(crate) async fn an_uncontended_request_is_granted_at_once(store: impl Backend) {
    let at = At::new(&store, 2);
    let mut one = at.speaker();
    let reply = one.wish(2, true).await;
    let [
        Grant {
            wish: 1,
            units: 2,
            token,
        },
    ] = reply.grants[..]
    else {
        panic!("{reply:?}")
    };
    assert!(reply.alive && token > 0);
    assert_eq!((reply.census.limit, in_use(&reply)), (2, (2, 0)));
    one.end().await;
}

pub(crate) async fn a_refused_caller_leaves_nothing_behind(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut holder, mut refused, mut third) = (at.speaker(), at.speaker(), at.speaker());
    assert_eq!(holder.wish(1, true).await.grants.len(), 1);
    let reply = refused.wish(1, false).await;
    assert_eq!((&reply.grants[..], in_use(&reply)), (&[][..], (1, 0)));
    // More than there can be is not waited for.
    let reply = refused.wish(2, true).await;
    assert_eq!((&reply.grants[..], in_use(&reply)), (&[][..], (1, 0)));
    holder.give(1).await;
    assert_eq!(third.wish(1, false).await.grants.len(), 1);
    assert_eq!(refused.look().await.grants, []);
}

pub(crate) async fn a_repeated_request_is_the_same_request(store: impl Backend) {
    let at = At::new(&store, 3);
    let mut holder = at.speaker();
    let first = holder.wish(2, true).await;
    for _ in 0..3 {
        let again = holder.again(&holder.last()).await.unwrap();
        assert_eq!((again.grants, again.census.in_use), (first.grants.clone(), 2));
    }
    let again = holder.say(|_| {}).await.unwrap();
    assert_eq!((again.grants, again.census.in_use), (first.grants, 2));
}

/// And parts of a grant come back, to their waiters.
pub(crate) async fn permits_returned_twice_come_back_once(store: impl Backend) {
    let at = At::new(&store, 5);
    let (mut one, mut other) = (at.speaker(), at.speaker());
    one.wish(3, true).await;
    other.wish(2, true).await;
    assert_eq!(one.give(1).await.census.in_use, 4);
    for _ in 0..3 {
        assert_eq!(one.again(&one.last()).await.unwrap().census.in_use, 4);
    }
    assert_eq!(one.look().await.census.in_use, 4);
    let mut third = at.speaker();
    assert_eq!(third.wish(2, true).await.grants, []);
    one.give(1).await;
    assert_eq!(at.told(&mut third).await.units, 2);
    assert_eq!(one.give(1).await.census.in_use, 4);
}

pub(crate) async fn an_overtaken_request_does_nothing(store: impl Backend) {
    let at = At::new(&store, 4);
    let mut one = at.speaker();
    one.wish(2, true).await;
    let overtaken = one.last();
    one.give(2).await;
    assert_eq!(one.again(&overtaken).await.unwrap().census.in_use, 0);
}

pub(crate) async fn a_session_that_went_silent_stays_lost(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut late, mut next) = (at.speaker_for(BRIEF), at.speaker());
    late.wish(1, true).await;
    let grant = match next.wish(1, true).await.grants.first() {
        Some(&grant) => grant,
        None => at.told(&mut next).await,
    };
    let step = late.last();
    let replies = [late.again(&step).await.unwrap(), late.look().await, late.give(1).await];
    for reply in replies {
        assert!(!reply.alive && reply.grants.is_empty(), "{reply:?}");
    }
    let reply = next.look().await;
    assert_eq!((reply.grants, reply.census.in_use), (vec![grant], 1));
}

pub(crate) async fn a_grant_whose_reply_was_lost_is_repeated(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut holder, mut waits) = (at.speaker(), at.speaker());
    holder.wish(1, true).await;
    waits.wish(1, true).await;
    holder.give(1).await;
    let first = waits.look().await.grants;
    assert_eq!(first.len(), 1);
    assert_eq!(waits.look().await.grants, first);
    let reply = waits.say(|step| step.seen = first[0].token).await.unwrap();
    assert_eq!((reply.grants, reply.census.in_use), (vec![], 1));
}

pub(crate) async fn waiters_that_died_are_passed_over(store: impl Backend) {
    let at = At::new(&store, 1);
    let mut holder = at.speaker();
    holder.wish(1, true).await;
    let mut dead = Vec::new();
    for _ in 0..3 {
        let mut waiter = at.speaker_for(BRIEF);
        waiter.wish(1, true).await;
        dead.push(waiter);
    }
    let mut waits = at.speaker();
    waits.wish(1, true).await;
    while waits.look().await.census.waiting > 1 {
        tokio::time::sleep(BRIEF / 10).await;
    }
    holder.give(1).await;
    at.told(&mut waits).await;
}

pub(crate) async fn a_try_does_not_pass_the_queue(store: impl Backend) {
    let at = At::new(&store, 2);
    let (mut holder, mut heavy, mut light) = (at.speaker(), at.speaker(), at.speaker());
    holder.wish(1, true).await;
    assert_eq!(heavy.wish(2, true).await.grants, []);
    assert_eq!(light.wish(1, false).await.grants, []);
    holder.give(1).await;
    at.told(&mut heavy).await;
}

pub(crate) async fn the_queue_is_served_in_order_with_rising_tokens(store: impl Backend) {
    let at = At::new(&store, 3);
    let mut holder = at.speaker();
    let mut last = holder.wish(3, true).await.grants[0].token;
    let mut line = Vec::new();
    for need in [1, 3, 2, 1] {
        let mut waiter = at.speaker();
        assert_eq!(waiter.wish(need, true).await.grants, []);
        line.push((need, waiter));
    }
    holder.give(3).await;
    for place in 0..line.len() {
        let (need, waiter) = &mut line[place];
        let need = *need;
        let Grant { units, token, .. } = at.told(waiter).await;
        assert!(units == need && token > last, "{token} after {last}");
        last = token;
        for (_, behind) in &mut line[place + 1..] {
            let served = behind.look().await.grants;
            assert!(served.is_empty() || place == 2, "{served:?}");
        }
        line[place].1.give(need).await;
    }
}

/// Wishes of one session, in one step: each has a token of its own.
pub(crate) async fn requests_of_one_sync_are_queued_as_well(store: impl Backend) {
    let at = At::new(&store, 5);
    let mut one = at.speaker();
    let wishes = (1..=4).map(|id| Wish {
        id,
        need: id,
        want: id,
        queue: true,
    });
    let wishes: Vec<_> = wishes.collect();
    let reply = one.say(|step| step.wishes = wishes).await.unwrap();
    let granted: Vec<_> = reply.grants.iter().map(|grant| (grant.wish, grant.units)).collect();
    assert_eq!(
        granted,
        [(1, 1), (2, 2)],
        "three more do not fit, and four are behind them"
    );
    assert!(reply.grants[0].token < reply.grants[1].token);
    assert_eq!(in_use(&reply), (3, 2));
    one.see(&reply);
    let reply = one.give(3).await;
    let granted: Vec<_> = reply.grants.iter().map(|grant| grant.wish).collect();
    assert_eq!((granted, in_use(&reply)), (vec![3], (3, 1)));
}

pub(crate) async fn a_withdrawn_request_frees_the_waiters_behind_it(store: impl Backend) {
    let at = At::new(&store, 2);
    let (mut holder, mut heavy, mut light) = (at.speaker(), at.speaker(), at.speaker());
    holder.wish(1, true).await;
    heavy.wish(2, true).await;
    light.wish(1, true).await;
    heavy.say(|step| step.withdrawn = vec![1]).await.unwrap();
    at.told(&mut light).await;
}

/// It is granted by being looked at: withdrawn before that, it never was, or else it is told and given back.
pub(crate) async fn a_request_withdrawn_at_its_grant_leaves_nothing(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut holder, mut waits) = (at.speaker(), at.speaker());
    holder.wish(1, true).await;
    waits.wish(1, true).await;
    holder.give(1).await;
    let reply = waits
        .say(|step| (step.wishes, step.withdrawn) = (Vec::new(), vec![1]))
        .await
        .unwrap();
    let units = waits.see(&reply);
    let reply = waits.give(units).await;
    assert_eq!(in_use(&reply), (0, 0));
}

pub(crate) async fn a_shrink_drains_and_takes_nothing_away(store: impl Backend) {
    let at = At::new(&store, 4);
    let (mut holder, mut waits) = (at.speaker(), at.speaker());
    holder.wish(4, true).await;
    waits.wish(1, true).await;
    let reply = holder.say(|step| step.limit = Some(2)).await.unwrap();
    assert_eq!((reply.census.limit, reply.census.in_use), (2, 4));
    holder
        .say(|step| (step.limit, step.returned) = (None, 2))
        .await
        .unwrap();
    assert_eq!(waits.look().await.grants, [], "two are in use of two");
    holder.give(1).await;
    at.told(&mut waits).await;
    let reply = holder.say(|step| step.limit = Some(9)).await.unwrap();
    assert_eq!((reply.census.limit, reply.census.in_use), (9, 2));
}

pub(crate) async fn a_raised_limit_notifies_the_waiters(store: impl Backend) {
    let at = At::new(&store, 1);
    let (mut holder, mut waits) = (at.speaker(), at.speaker());
    holder.wish(1, true).await;
    waits.wish(1, true).await;
    holder.say(|step| step.limit = Some(2)).await.unwrap();
    at.told(&mut waits).await;
}

/// How often a waiter whose words pass `proxy` asks the store from the time on at which it waits: others come and go meanwhile, and
/// then it is its turn.
pub(crate) async fn asked_after_a_wait<B: Backend>(proxy: &Proxy, waiting: B, store: B) -> u64 {
    let exchanges = || proxy.exchanges().iter().sum::<u64>();
    let (key, rule) = (key(), permits(1));
    let mut holder = Speaker::new(&store, &key, rule, LONG);
    holder.wish(1, true).await;
    let remote = Remote::permits(key.clone(), 1).ttl(LONG).spawn(waiting).unwrap();
    let mut waits = pin!(remote.acquire(1));
    assert!(matches!(futures::poll!(waits.as_mut()), Poll::Pending));
    while holder.look().await.census.waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    // It has begun to watch, and goes on to: what it says by itself in the meantime is said once in 200 s.
    let before = loop {
        let before = exchanges();
        sleep(Duration::from_millis(100)).await;
        if before == exchanges() {
            break before;
        }
    };
    for _ in 0..20 {
        let mut other = Speaker::new(&store, &key, rule, LONG);
        other.wish(1, true).await;
        other.end().await;
    }
    holder.give(1).await;
    let permit = waits.await.unwrap();
    let asked = exchanges() - before;
    drop(permit);
    asked
}

/// A block is what is free, or a share of it, and its holder is notified when others wait.
pub(crate) async fn prefetch_takes_only_the_permits_that_others_leave(store: impl Backend) {
    let at = At::new(&store, 8);
    let (mut one, mut other) = (at.speaker(), at.speaker());
    let block = |id, need, want, queue| vec![Wish { id, need, want, queue }];
    // It has to know the limit first.
    one.look().await;
    let reply = one
        .say(|step| (step.keeps, step.wishes) = (true, block(1, 1, 6, true)))
        .await
        .unwrap();
    assert_eq!(one.see(&reply), 6, "there is no other process");
    other.look().await;
    let reply = other.say(|step| step.wishes = block(1, 1, 6, true)).await.unwrap();
    assert_eq!(other.see(&reply), 2, "half of an equal share");
    let reply = other.say(|step| step.wishes = block(2, 3, 6, true)).await.unwrap();
    assert_eq!((&reply.grants[..], in_use(&reply)), (&[][..], (8, 1)));
    // Who keeps units is told, and gives back what it can do without.
    at.store.news(&at.key, one.last().session).await;
    assert!(one.look().await.others_wait);
    one.give(4).await;
    let grant = at.told(&mut other).await;
    assert_eq!(grant.units, 3);
    assert!(!one.look().await.others_wait);
}

/// Each of them, as a test of its own, at the store that `$store` makes.
macro_rules! lined {
    ($store:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::lined::$name($store).await;
            }
        )*
    };
    ($store:expr) => {
        $crate::lined::lined! {
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
