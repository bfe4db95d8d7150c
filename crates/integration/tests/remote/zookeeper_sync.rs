//! Permits in ZooKeeper: the faults of the published algorithms, and what is special to ZooKeeper.

use crate::queued::{BRIEF, asked_after_a_wait};
use crate::raw_session::{LONG, RawSession};
use crate::rig::proxy::{Mode, Proxy};
use crate::store::key;
use crate::zookeeper::{children, raw};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::Reason;
use tollgate::remote::{Backend, Key, Remote, RemoteError, Rule, StoreError};
use tollgate_stores::Zookeeper;
use zookeeper_client::{Acls, Client, CreateMode};

mod steps {
    crate::queued::lined!(super::store());
}

const ONE: Rule = Rule::Permits { limit: 1 };

pub(crate) fn address() -> SocketAddr {
    let address = std::env::var("TOLLGATE_ZOOKEEPER");
    let address = address.expect("TOLLGATE_ZOOKEEPER has the address of a server; ci/with-stores zookeeper starts one");
    address.parse().expect("an address")
}

pub(crate) fn at(address: SocketAddr) -> Zookeeper {
    let options = Zookeeper::options(address.to_string());
    options.connect().expect("settings that can be")
}

pub(crate) fn store() -> Zookeeper {
    at(address())
}

/// A client behind a proxy.
async fn proxied() -> (Proxy, Zookeeper) {
    let proxy = Proxy::before(address()).await.expect("a proxy");
    let store = at(proxy.address());
    (proxy, store)
}

/// The names under a key, in order.
pub(crate) async fn names(client: &Client, key: &Key) -> Vec<String> {
    let mut names = children(client, &format!("/tollgate/{key}.permits")).await.unwrap();
    names.sort();
    names
}

fn requests(names: &[String]) -> usize {
    names.iter().filter(|name| name.starts_with("w-")).count()
}

fn exchanges(proxy: &Proxy) -> u64 {
    proxy.exchanges().iter().sum()
}

/// The original admitted only the very first of the queue, one permit for any limit.
#[tokio::test]
async fn as_many_as_the_limit_are_admitted() {
    let (store, key) = (store(), key());
    let mut held = Vec::new();
    for n in 1..=4 {
        let mut raw_session = RawSession::new(&store, &key, Rule::Permits { limit: 3 }, LONG);
        let granted = raw_session.request(1, true).await.grants.len();
        assert_eq!(granted, usize::from(n <= 3), "the {n}th");
        held.push(raw_session);
    }
}

/// The original took the end of its predecessor for its turn: that one may only have waited.
#[tokio::test]
async fn a_waiter_that_leaves_admits_none() {
    let (store, key) = (store(), key());
    let mut holder = RawSession::new(&store, &key, ONE, LONG);
    let mut gone = RawSession::new(&store, &key, ONE, LONG);
    let mut waits = RawSession::new(&store, &key, ONE, LONG);
    holder.request(1, true).await;
    gone.request(1, true).await;
    waits.request(1, true).await;
    gone.end().await;
    let reply = waits.look().await;
    assert_eq!((reply.grants, reply.usage.waiting), (vec![], 1));
}

/// The original watched a path that never was, and took that for its turn.
#[tokio::test]
async fn nodes_are_named_as_they_are_read() {
    let (store, key) = (store(), key());
    let client = raw(address()).await;
    let mut one = RawSession::new(&store, &key, Rule::Permits { limit: 3 }, LONG);
    one.request(3, true).await;
    let session = one.last().session;
    one.give(1).await;
    let there = names(&client, &key).await;
    let [left, present, request] = &there[..] else {
        panic!("{there:?}")
    };
    assert_eq!(*present, format!("s-{session}"));
    let sequence = request
        .strip_prefix(&format!("w-{session}-1-3-"))
        .expect("a wish of three");
    assert_eq!(*left, format!("r-{session}-2-{sequence}"));
    one.give(2).await;
    assert_eq!(
        names(&client, &key).await,
        [format!("s-{session}")],
        "and what is over goes"
    );
    one.end().await;
    assert_eq!(
        children(&client, "/tollgate")
            .await
            .unwrap()
            .iter()
            .filter(|name| **name == key.as_str())
            .count(),
        0
    );
}

/// With several permits the end of other nodes than the predecessor lets a waiter in.
#[tokio::test]
async fn a_release_notifies_the_first_waiter() {
    let (store, key) = (store(), key());
    let rule = Rule::Permits { limit: 3 };
    let mut first = RawSession::new(&store, &key, rule, LONG);
    let mut second = RawSession::new(&store, &key, rule, LONG);
    let mut waits = RawSession::new(&store, &key, rule, LONG);
    first.request(2, true).await;
    second.request(1, true).await;
    waits.request(1, true).await;
    first.give(1).await;
    store.notified(&key, waits.last().session).await;
    assert_eq!(waits.look().await.grants.len(), 1);
}

/// A node was created without an answer: it was created again, and the first one stayed.
/// Keeps out ZOOKEEPER-1262.
#[tokio::test]
async fn a_node_whose_answer_was_lost_is_found_again() {
    let (proxy, store) = proxied().await;
    let (client, key) = (raw(address()).await, key());
    let rule = Rule::Permits { limit: 2 };
    let mut one = RawSession::new(&store, &key, rule, LONG);
    one.look().await;
    proxy.set(Mode::LoseReplies);
    // As the driver does: it waits for this long and no longer.
    let lost = timeout(Duration::from_millis(300), one.request(1, true)).await;
    assert!(lost.is_err(), "{lost:?}");
    while requests(&names(&client, &key).await) == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    proxy.set(Mode::Pass);
    let reply = loop {
        // The same requests, in another sync.
        match one.say(|_| {}).await {
            Ok(reply) => break reply,
            Err(StoreError::Unreachable { .. }) => sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((reply.grants.len(), reply.usage.in_use), (1, 1));
    assert_eq!(requests(&names(&client, &key).await), 1);
}

/// The session at the server ends unnoticed, and the holder of permits in it learns that.
#[tokio::test]
async fn a_session_that_expired_at_the_server_is_lost() {
    let (proxy, lost) = proxied().await;
    let (store, key) = (store(), key());
    let mut late = RawSession::new(&lost, &key, ONE, BRIEF);
    let mut next = RawSession::new(&store, &key, ONE, LONG);
    late.request(1, true).await;
    assert_eq!(next.request(1, true).await.grants, []);
    proxy.set(Mode::Blackhole);
    // Its client keeps the session up no more, and its nodes are not deleted.
    store.notified(&key, next.last().session).await;
    assert_eq!(next.look().await.grants.len(), 1);
    proxy.set(Mode::Pass);
    let reply = loop {
        match late.say(|sync| sync.requests.clear()).await {
            Ok(reply) => break reply,
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    };
    assert!(!reply.alive && reply.usage.in_use == 1, "{reply:?}");
}

/// A partition: the holder stops before the server gives its permit to another.
#[tokio::test]
async fn a_holder_that_is_cut_off_loses_its_permit_before_it_is_granted_again() {
    let (proxy, cut) = proxied().await;
    let (client, key) = (raw(address()).await, key());
    let remote = Remote::permits(key.clone(), 1)
        .ttl(Duration::from_secs(1))
        .spawn(cut)
        .unwrap();
    let permit = remote.acquire(1).await.unwrap();
    proxy.set(Mode::Blackhole);
    permit.lost().await;
    assert!(permit.is_lost() && permit.good_for().is_none_or(|left| left.is_zero()));
    drop(permit);
    // And deletes it by itself.
    while requests(&names(&client, &key).await) > 0 {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_uncontended_acquire_takes_one_round_trip() {
    let (proxy, store) = proxied().await;
    let remote = Remote::permits(key(), 4).ttl(LONG).spawn(store).unwrap();
    let back = || async {
        while remote.stats().in_use > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    // The first one creates the session, and begins to watch. A client that was stalled for too long looks after all: so one of
    // many will do, and if the watch did not suffice there would be none.
    let mut seen = Vec::new();
    for units in [1, 3, 4].into_iter().cycle().take(60) {
        let before = exchanges(&proxy);
        let permit = remote.acquire(units).await.unwrap();
        let acquired = exchanges(&proxy);
        drop(permit);
        back().await;
        seen.push((acquired - before, exchanges(&proxy) - acquired));
    }
    assert!(seen.contains(&(1, 1)), "to acquire, and to give back: {seen:?}");
}

/// A permit costs a waiter one look, after its notification; events of others cost no request.
#[tokio::test]
async fn a_wait_sees_each_change_with_one_request() {
    let (proxy, waiting) = proxied().await;
    assert_eq!(asked_after_a_wait(&proxy, waiting, store()).await, 1);
}

#[tokio::test]
async fn overflowed_sequence_numbers_stay_in_order() {
    let (store, key) = (store(), key());
    let client = raw(address()).await;
    let rule = Rule::Permits { limit: 2 };
    let mut one = RawSession::new(&store, &key, rule, LONG);
    one.look().await;
    // As a server names them that has counted beyond 2^31: the second is the later one.
    for name in [
        "w-00000000000000ff.1-1-1-2147483647",
        "w-00000000000000ff.1-2-1--2147483648",
    ] {
        let path = format!("/tollgate/{key}.permits/{name}");
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        client.create(&path, b"", &ephemeral).await.unwrap();
    }
    // By number it would be the first.
    let reply = one.request(1, true).await;
    assert_eq!((reply.grants.len(), reply.usage.in_use, reply.usage.waiting), (0, 2, 1));
    let session = one.last().session;
    client
        .delete(
            &format!("/tollgate/{key}.permits/w-00000000000000ff.1-1-1-2147483647"),
            None,
        )
        .await
        .unwrap();
    store.notified(&key, session).await;
    assert_eq!(one.look().await.grants.len(), 1);
}

#[tokio::test]
async fn a_node_that_an_operator_took_away_is_a_lost_permit() {
    let (store, key) = (store(), key());
    let client = raw(address()).await;
    let mut one = RawSession::new(&store, &key, Rule::Permits { limit: 2 }, LONG);
    one.request(1, true).await;
    for name in names(&client, &key).await.iter().filter(|name| name.starts_with("w-")) {
        client
            .delete(&format!("/tollgate/{key}.permits/{name}"), None)
            .await
            .unwrap();
    }
    assert!(!one.look().await.alive);
}

#[tokio::test]
async fn the_key_goes_with_the_last_session_also_when_it_dies() {
    let key = key();
    let client = raw(address()).await;
    let name = format!("{key}.permits");
    let there = || async { children(&client, "/tollgate").await.unwrap().contains(&name) };
    {
        let store = store();
        let mut one = RawSession::new(&store, &key, ONE, BRIEF);
        one.request(1, true).await;
        assert!(there().await);
    }
    // Its client is dead.
    while there().await {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn missing_capabilities_are_reported_at_build_time() {
    let nowhere = |servers: &str, prefix: &str| Zookeeper::options(servers).prefix(prefix).connect();
    for (servers, prefix) in [("", "/a"), ("a:1", "a"), ("a:1", "/a/"), ("a:1", "/../a")] {
        let built = nowhere(servers, prefix);
        assert!(matches!(built, Err(RemoteError::Address { .. })), "{servers} {prefix}");
    }
}

#[tokio::test]
async fn only_authenticated_owners_may_touch_their_nodes() {
    let key = key();
    let known = || {
        let options = Zookeeper::options(address().to_string()).prefix("/tollgate-owned");
        options.user("gate").password("secret")
    };
    assert!(!format!("{:?}", known()).contains("secret"));
    let store = known().connect().unwrap();
    let mut one = RawSession::new(&store, &key, ONE, LONG);
    assert_eq!(one.request(1, true).await.grants.len(), 1);
    let unknown = Zookeeper::options(address().to_string())
        .prefix("/tollgate-owned")
        .connect()
        .unwrap();
    let mut other = RawSession::new(&unknown, &key, ONE, LONG);
    let refused = other.say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    let same = known().connect().unwrap();
    let mut friend = RawSession::new(&same, &key, ONE, LONG);
    assert_eq!(friend.request(1, true).await.usage.waiting, 1);
}

#[tokio::test]
async fn more_than_the_limit_is_refused() {
    let remote = Remote::permits(key(), 4).ttl(LONG).spawn(store()).unwrap();
    assert_eq!(remote.acquire(5).await.unwrap_err().reason(), Reason::Oversized);
}

/// Events without a connection are not reported: the waiter looks when there is one again.
#[tokio::test]
async fn a_waiter_learns_of_its_broken_connection() {
    let (proxy, waiting) = proxied().await;
    let (store, key) = (store(), key());
    let mut holder = RawSession::new(&store, &key, ONE, LONG);
    let mut waits = RawSession::new(&waiting, &key, ONE, LONG);
    holder.request(1, true).await;
    assert_eq!(waits.request(1, true).await.grants, []);
    let mut news = pin!(waiting.notified(&key, waits.last().session));
    assert!(matches!(futures::poll!(news.as_mut()), Poll::Pending));
    proxy.set(Mode::Cut);
    holder.give(1).await;
    proxy.set(Mode::Pass);
    news.await;
    assert_eq!(waits.look().await.grants.len(), 1);
}

/// A time to live below the servers' shortest session.
#[tokio::test]
async fn a_session_that_would_be_too_short_is_refused() {
    let (store, key) = (store(), key());
    let mut one = RawSession::new(&store, &key, ONE, Duration::from_secs(1_001));
    let refused = one.say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}
