//! A replica takes over without the last grants.

use crate::raw_session::{LONG, RawSession, SHORT};
use crate::redis::{Redis as Program, bulk, eval, say};
use crate::rig::proxy::{Mode, Proxy};
use crate::rig::server::Server;
use crate::store::{at, own};
use std::time::Duration;
use tollgate::remote::{Backend, Key, Notification, Rule};
use tollgate_stores::Redis;

/// Long enough for a few syncs, and over soon.
const BRIEF: Duration = Duration::from_secs(2);
const PERMITS: Rule = Rule::Permits { limit: 1 };

/// A server, and a replica behind a connection that can be cut.
struct Pair {
    first: Server<Program>,
    store: Redis,
    line: Proxy,
    second: Server<Program>,
    key: Key,
}

impl Pair {
    /// Both know the key.
    async fn new() -> Self {
        let (first, store, key) = own(PERMITS).await;
        let line = Proxy::before(first.address()).await.expect("a proxy");
        let second = Server::start(Program).await.expect("a server");
        let address = line.address();
        say(&second, &format!("REPLICAOF {} {}", address.ip(), address.port())).unwrap();
        let pair = Self {
            first,
            store,
            line,
            second,
            key,
        };
        while pair.second.keys().unwrap_or_default().len() < pair.first.keys().unwrap().len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        pair
    }

    /// Waits until the replica has everything up to now.
    async fn until_replicated(&self) {
        eval(&self.first, "redis.call('INCR', 'mark')").unwrap();
        while !self.second.keys().unwrap().contains(&"mark".to_owned()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        eval(&self.first, "redis.call('DEL', 'mark')").unwrap();
        while self.second.keys().unwrap().contains(&"mark".to_owned()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Cuts the replica off from now on.
    fn part(&self) {
        self.line.set(Mode::Blackhole);
    }

    /// The server dies, and the replica is promoted.
    fn promote(mut self) -> (Server<Program>, Redis, Key) {
        self.first.kill().unwrap();
        say(&self.second, "REPLICAOF NO ONE").unwrap();
        let store = at(self.second.address());
        (self.second, store, self.key)
    }
}

/// Grants that the replica does not know still have their holders, for a time to live at most.
#[tokio::test]
async fn a_successor_grants_nothing_until_unknown_leases_have_expired() {
    let pair = Pair::new().await;
    let (store, name) = (pair.store.clone(), pair.key.clone());
    let mut waits = RawSession::new(&store, &name, PERMITS, LONG);
    waits.look().await;
    pair.until_replicated().await;
    pair.part();
    let mut holder = RawSession::new(&store, &name, PERMITS, LONG);
    assert_eq!(holder.request(1, true).await.grants.len(), 1);
    let (_server, store, key) = pair.promote();
    let mut waits = waits.at(&store, &key);
    let reply = waits.request(1, true).await;
    assert!(reply.alive && reply.grants.is_empty(), "{reply:?}");
    assert!(reply.again.is_some_and(|again| again > LONG / 2), "{reply:?}");
    let mut tries = RawSession::new(&store, &key, PERMITS, LONG);
    assert_eq!(tries.request(1, false).await.grants, []);
    // The holder learns that its session is unknown.
    assert!(!holder.at(&store, &key).look().await.alive);
}

#[tokio::test]
async fn a_successor_grants_when_that_is_over() {
    let (pair, key) = (Pair::new().await, crate::store::key());
    RawSession::new(&pair.store, &key, PERMITS, BRIEF).look().await;
    pair.until_replicated().await;
    let (_server, store, _) = pair.promote();
    let reply = RawSession::new(&store, &key, PERMITS, BRIEF).request(1, true).await;
    assert_eq!(reply.grants, []);
    until_granted(&store, &key, BRIEF).await;
}

/// Waits for a permit in sessions of this time to live: more than one if this process is too slow.
async fn until_granted(store: &Redis, key: &Key, ttl: Duration) {
    loop {
        let mut waits = RawSession::new(store, key, PERMITS, ttl);
        let mut reply = waits.request(1, true).await;
        while reply.alive {
            if reply.grants.len() == 1 {
                return;
            }
            tokio::time::sleep(SHORT / 10).await;
            reply = waits.look().await;
        }
    }
}

/// The connection was cut before the limiter was first used. The replica has been there for some time, but not as the one that
/// grants.
#[tokio::test]
async fn a_successor_waits_with_an_unknown_limiter() {
    let pair = Pair::new().await;
    pair.until_replicated().await;
    for server in [&pair.first, &pair.second] {
        while uptime(server) < 3 {
            tokio::time::sleep(SHORT / 10).await;
        }
    }
    pair.part();
    let unheard = crate::store::key();
    let mut holder = RawSession::new(&pair.store, &unheard, PERMITS, SHORT);
    assert_eq!(holder.request(1, true).await.grants.len(), 1);
    let (server, store, _) = pair.promote();
    let mut tries = RawSession::new(&store, &unheard, PERMITS, SHORT);
    assert_eq!(tries.request(1, false).await.grants, []);
    until_granted(&store, &unheard, SHORT).await;

    // The first ask has told when the server had taken over at the latest: others need not wait again, also with another limiter.
    tokio::time::sleep(SHORT).await;
    let other = crate::store::key();
    let reply = RawSession::new(&store, &other, PERMITS, SHORT / 2)
        .request(1, false)
        .await;
    assert_eq!(reply.grants.len(), 1);
    let late = at(server.address());
    for (ttl, granted) in [(SHORT, 1), (LONG, 0)] {
        let key = crate::store::key();
        let mut tries = RawSession::new(&late, &key, PERMITS, ttl);
        assert_eq!(tries.request(1, false).await.grants.len(), granted, "{ttl:?}");
    }
}

/// The asking session has a short time to live, and the forgotten one a long one, which the replica knows.
#[tokio::test]
async fn a_successor_waits_for_the_longest_time_to_live() {
    let pair = Pair::new().await;
    pair.until_replicated().await;
    let (_server, store, key) = pair.promote();
    let reply = RawSession::new(&store, &key, PERMITS, SHORT).request(1, true).await;
    assert!(reply.again.is_some_and(|again| again > LONG / 2), "{reply:?}");
}

/// It does so also when all sessions that it knew have gone, by expiry or by an end.
#[tokio::test]
async fn a_successor_waits_for_the_longest_time_to_live_even_of_departed_sessions() {
    let pair = Pair::new().await;
    let (store, name) = (pair.store.clone(), Key::new("gone").unwrap());
    let mut long = RawSession::new(&store, &name, PERMITS, LONG);
    long.look().await;
    pair.until_replicated().await;
    let (_server, store, _) = pair.promote();
    let mut asks = RawSession::new(&store, &name, PERMITS, SHORT);
    assert_eq!(asks.request(1, false).await.grants, []);
    long.at(&store, &name).end().await;
    // The remaining one expires.
    tokio::time::sleep(4 * SHORT).await;
    for _ in 0..2 {
        let mut asks = RawSession::new(&store, &name, PERMITS, SHORT);
        let reply = asks.request(1, true).await;
        assert!(reply.again.is_some_and(|again| again > LONG / 2), "{reply:?}");
        asks.end().await;
    }
}

/// It knows none, and the setting says so.
#[tokio::test]
async fn a_fresh_leader_waits_for_the_longest_time_to_live_that_it_received() {
    let server = Server::start(Program).await.unwrap();
    let address = format!("redis://{}/", server.address());
    let store = Redis::options(address).longest_ttl(LONG).connect().unwrap();
    let reply = RawSession::new(&store, &crate::store::key(), PERMITS, SHORT)
        .request(1, true)
        .await;
    assert!(reply.again.is_some_and(|again| again > LONG / 2), "{reply:?}");
}

/// Its uptime, in seconds.
fn uptime(server: &Server<Program>) -> u64 {
    let info = bulk(server.address(), "INFO server").unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    line.and_then(|seconds| seconds.parse().ok()).expect("it says so")
}

/// It knows the session, but not its last grant: the session acknowledges more than the server has seen.
#[tokio::test]
async fn a_session_of_which_something_was_forgotten_is_lost() {
    let pair = Pair::new().await;
    let (store, name) = (pair.store.clone(), pair.key.clone());
    let mut holder = RawSession::new(&store, &name, PERMITS, LONG);
    holder.look().await;
    pair.until_replicated().await;
    pair.part();
    let reply = holder.request(1, true).await;
    assert_eq!(reply.grants.len(), 1);
    let heard = holder.last().seq;
    let (_server, store, key) = pair.promote();
    let mut holder = holder.at(&store, &key);
    let reply = holder.say(|sync| sync.acked = heard).await.unwrap();
    assert!(!reply.alive, "{reply:?}");
}

/// The same for a grant that was notified by a message, without a sync since.
#[tokio::test]
async fn a_session_whose_message_was_forgotten_is_lost() {
    let pair = Pair::new().await;
    let (store, name) = (pair.store.clone(), pair.key.clone());
    let (mut gives, mut waits) = (
        RawSession::new(&store, &name, PERMITS, LONG),
        RawSession::new(&store, &name, PERMITS, LONG),
    );
    assert_eq!(gives.request(1, true).await.grants.len(), 1);
    waits.request(1, true).await;
    let heard = waits.last().seq;
    pair.until_replicated().await;
    pair.part();
    gives.give(1).await;
    let session = waits.last().session;
    store.notified(&name, session).await;
    let Notification::Reply(told) = store.notification(&name, session) else {
        panic!("a message says what was granted")
    };
    assert_eq!(waits.see(&told), 1);
    let (_server, store, key) = pair.promote();
    let mut waits = waits.at(&store, &key);
    let reply = waits.say(|sync| sync.acked = heard).await.unwrap();
    assert!(!reply.alive, "{reply:?}");
}

/// The last session that it knows ends: unknown ones stay unknown. Its uptime is long, which says nothing of what it has
/// received.
#[tokio::test]
async fn a_successor_that_saw_all_leave_grants_nothing_before_that_is_over() {
    const TTL: Duration = Duration::from_secs(3);
    let pair = Pair::new().await;
    // One without sessions.
    let (store, name) = (pair.store.clone(), Key::new("left").unwrap());
    while eval(&pair.second, OLD).is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut known = RawSession::new(&store, &name, PERMITS, TTL);
    known.look().await;
    pair.until_replicated().await;
    pair.part();
    let mut holder = RawSession::new(&store, &name, PERMITS, TTL);
    assert_eq!(holder.request(1, true).await.grants.len(), 1);
    let (_server, store, _) = pair.promote();
    let mut asks = RawSession::new(&store, &name, PERMITS, TTL);
    assert_eq!(asks.request(1, false).await.grants, []);
    asks.end().await;
    known.at(&store, &name).end().await;
    let mut tries = RawSession::new(&store, &name, PERMITS, TTL);
    assert_eq!(tries.request(1, false).await.grants, []);
}

/// Fails where the uptime of a server is below a time to live of that test, and a second.
const OLD: &str = "if tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')) < 5 then \
                   return redis.error_reply('young') end";
