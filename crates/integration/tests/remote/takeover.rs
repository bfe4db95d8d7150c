//! A replica takes over that has not heard of the last grants.

use crate::redis::{Redis as Program, bulk, eval, say};
use crate::rig::proxy::{Mode, Proxy};
use crate::rig::server::Server;
use crate::speaker::{LONG, SHORT, Speaker};
use crate::store::{at, own};
use std::time::Duration;
use tollgate::remote::{Backend, Key, News, Redis, Rule};

/// Long enough for a few steps, and over soon.
const BRIEF: Duration = Duration::from_secs(2);
const PERMITS: Rule = Rule::Permits { limit: 1 };

/// A server, and a replica behind a line that can be cut.
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

    /// The replica has heard of everything up to now.
    async fn in_step(&self) {
        eval(&self.first, "redis.call('INCR', 'mark')").unwrap();
        while !self.second.keys().unwrap().contains(&"mark".to_owned()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        eval(&self.first, "redis.call('DEL', 'mark')").unwrap();
        while self.second.keys().unwrap().contains(&"mark".to_owned()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The replica hears of nothing from now on.
    fn part(&self) {
        self.line.set(Mode::Blackhole);
    }

    /// The server dies, and the replica is made one.
    fn promote(mut self) -> (Server<Program>, Redis, Key) {
        self.first.kill().unwrap();
        say(&self.second, "REPLICAOF NO ONE").unwrap();
        let store = at(self.second.address());
        (self.second, store, self.key)
    }
}

/// Grants that the replica has not received are held still by their holders, for a time to live at most.
#[tokio::test]
async fn a_successor_grants_nothing_until_unknown_leases_have_expired() {
    let pair = Pair::new().await;
    let (store, name) = (pair.store.clone(), pair.key.clone());
    let mut waits = Speaker::new(&store, &name, PERMITS, LONG);
    waits.look().await;
    pair.in_step().await;
    pair.part();
    let mut holder = Speaker::new(&store, &name, PERMITS, LONG);
    assert_eq!(holder.wish(1, true).await.grants.len(), 1);
    let (_server, store, key) = pair.promote();
    let mut waits = waits.at(&store, &key);
    let reply = waits.wish(1, true).await;
    assert!(reply.alive && reply.grants.is_empty(), "{reply:?}");
    assert!(reply.again.is_some_and(|again| again > LONG / 2), "{reply:?}");
    let mut tries = Speaker::new(&store, &key, PERMITS, LONG);
    assert_eq!(tries.wish(1, false).await.grants, []);
    // Who was granted it is told that it is not known.
    assert!(!holder.at(&store, &key).look().await.alive);
}

#[tokio::test]
async fn a_successor_grants_when_that_is_over() {
    let (pair, key) = (Pair::new().await, crate::store::key());
    Speaker::new(&pair.store, &key, PERMITS, BRIEF).look().await;
    pair.in_step().await;
    let (_server, store, _) = pair.promote();
    let reply = Speaker::new(&store, &key, PERMITS, BRIEF).wish(1, true).await;
    assert_eq!(reply.grants, []);
    until_granted(&store, &key, BRIEF).await;
}

/// Waits for a permit in sessions that last so long: more than one where this process is too slow.
async fn until_granted(store: &Redis, key: &Key, ttl: Duration) {
    loop {
        let mut waits = Speaker::new(store, key, PERMITS, ttl);
        let mut reply = waits.wish(1, true).await;
        while reply.alive {
            if reply.grants.len() == 1 {
                return;
            }
            tokio::time::sleep(SHORT / 10).await;
            reply = waits.look().await;
        }
    }
}

/// The connection was cut before any process asked for it. The replica has been there for some time, but not as the one that grants.
#[tokio::test]
async fn a_successor_waits_with_an_unknown_limiter() {
    let pair = Pair::new().await;
    pair.in_step().await;
    for server in [&pair.first, &pair.second] {
        while uptime(server) < 3 {
            tokio::time::sleep(SHORT / 10).await;
        }
    }
    pair.part();
    let unheard = crate::store::key();
    let mut holder = Speaker::new(&pair.store, &unheard, PERMITS, SHORT);
    assert_eq!(holder.wish(1, true).await.grants.len(), 1);
    let (server, store, _) = pair.promote();
    let mut tries = Speaker::new(&store, &unheard, PERMITS, SHORT);
    assert_eq!(tries.wish(1, false).await.grants, []);
    until_granted(&store, &unheard, SHORT).await;

    // Who has known the server for a time to live need not wait with another one. Who has not has to.
    tokio::time::sleep(SHORT).await;
    let other = crate::store::key();
    let reply = Speaker::new(&store, &other, PERMITS, SHORT / 2).wish(1, false).await;
    assert_eq!(reply.grants.len(), 1);
    let (late, other) = (at(server.address()), crate::store::key());
    assert_eq!(
        Speaker::new(&late, &other, PERMITS, SHORT).wish(1, false).await.grants,
        []
    );
}

/// The one that asks has a short time to live, and what is forgotten a long one, of which the replica has heard.
#[tokio::test]
async fn a_successor_waits_for_the_longest_time_to_live() {
    let pair = Pair::new().await;
    pair.in_step().await;
    let (_server, store, key) = pair.promote();
    let reply = Speaker::new(&store, &key, PERMITS, SHORT).wish(1, true).await;
    assert!(reply.again.is_some_and(|again| again > LONG / 2), "{reply:?}");
}

/// It does so also when all have gone that it knew, by themselves or in order.
#[tokio::test]
async fn a_successor_waits_for_the_longest_time_to_live_even_of_departed_sessions() {
    let pair = Pair::new().await;
    let (store, name) = (pair.store.clone(), Key::new("gone").unwrap());
    let mut long = Speaker::new(&store, &name, PERMITS, LONG);
    long.look().await;
    pair.in_step().await;
    let (_server, store, _) = pair.promote();
    let mut asks = Speaker::new(&store, &name, PERMITS, SHORT);
    assert_eq!(asks.wish(1, false).await.grants, []);
    long.at(&store, &name).end().await;
    // The one that is left lapses.
    tokio::time::sleep(4 * SHORT).await;
    for _ in 0..2 {
        let mut asks = Speaker::new(&store, &name, PERMITS, SHORT);
        let reply = asks.wish(1, true).await;
        assert!(reply.again.is_some_and(|again| again > LONG / 2), "{reply:?}");
        asks.end().await;
    }
}

/// It has heard of none, and was told.
#[tokio::test]
async fn a_fresh_leader_waits_for_the_longest_time_to_live_that_it_received() {
    let server = Server::start(Program).await.unwrap();
    let address = format!("redis://{}/", server.address());
    let store = Redis::options(address).longest_ttl(LONG).connect().unwrap();
    let reply = Speaker::new(&store, &crate::store::key(), PERMITS, SHORT)
        .wish(1, true)
        .await;
    assert!(reply.again.is_some_and(|again| again > LONG / 2), "{reply:?}");
}

/// How long it has been there, in seconds.
fn uptime(server: &Server<Program>) -> u64 {
    let info = bulk(server.address(), "INFO server").unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    line.and_then(|seconds| seconds.parse().ok()).expect("it says so")
}

/// It knows the session, and not the last grant to it: what the session says that it has heard of is more than it has seen.
#[tokio::test]
async fn a_session_of_which_something_was_forgotten_is_lost() {
    let pair = Pair::new().await;
    let (store, name) = (pair.store.clone(), pair.key.clone());
    let mut holder = Speaker::new(&store, &name, PERMITS, LONG);
    holder.look().await;
    pair.in_step().await;
    pair.part();
    let reply = holder.wish(1, true).await;
    assert_eq!(reply.grants.len(), 1);
    let heard = holder.last().seq;
    let (_server, store, key) = pair.promote();
    let mut holder = holder.at(&store, &key);
    let reply = holder.say(|step| step.heard = heard).await.unwrap();
    assert!(!reply.alive, "{reply:?}");
}

/// The same of a holder that received its grant by a message, and has sent no request since.
#[tokio::test]
async fn a_session_whose_message_was_forgotten_is_lost() {
    let pair = Pair::new().await;
    let (store, name) = (pair.store.clone(), pair.key.clone());
    let (mut gives, mut waits) = (
        Speaker::new(&store, &name, PERMITS, LONG),
        Speaker::new(&store, &name, PERMITS, LONG),
    );
    assert_eq!(gives.wish(1, true).await.grants.len(), 1);
    waits.wish(1, true).await;
    let heard = waits.last().seq;
    pair.in_step().await;
    pair.part();
    gives.give(1).await;
    let session = waits.last().session;
    store.news(&name, session).await;
    let News::Told(told) = store.told(&name, session) else {
        panic!("a message says what was granted")
    };
    assert_eq!(waits.see(&told), 1);
    let (_server, store, key) = pair.promote();
    let mut waits = waits.at(&store, &key);
    let reply = waits.say(|step| step.heard = heard).await.unwrap();
    assert!(!reply.alive, "{reply:?}");
}

/// The last session that it knows ends: of what it does not know it knows as little as before. It has been there for long, which
/// says nothing of what it has heard.
#[tokio::test]
async fn a_successor_that_saw_all_leave_grants_nothing_before_that_is_over() {
    const TTL: Duration = Duration::from_secs(3);
    let pair = Pair::new().await;
    // A limiter without a remaining process.
    let (store, name) = (pair.store.clone(), Key::new("left").unwrap());
    while eval(&pair.second, OLD).is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut known = Speaker::new(&store, &name, PERMITS, TTL);
    known.look().await;
    pair.in_step().await;
    pair.part();
    let mut holder = Speaker::new(&store, &name, PERMITS, TTL);
    assert_eq!(holder.wish(1, true).await.grants.len(), 1);
    let (_server, store, _) = pair.promote();
    let mut asks = Speaker::new(&store, &name, PERMITS, TTL);
    assert_eq!(asks.wish(1, false).await.grants, []);
    asks.end().await;
    known.at(&store, &name).end().await;
    let mut tries = Speaker::new(&store, &name, PERMITS, TTL);
    assert_eq!(tries.wish(1, false).await.grants, []);
}

/// Fails where a server has not been there for longer than a time to live of that test, and a second.
const OLD: &str = "if tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')) < 5 then \
                   return redis.error_reply('young') end";
