//! Limiters in a cluster of three servers, each with a third of the hash slots.

use crate::raw_session::{LONG, RawSession};
use crate::redis::{Redis as Program, bulk, tell};
use crate::rig::server::{Server, Store};
use crate::store::{key, tag};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::Quota;
use tollgate::remote::{Backend, Key, KeyLeg, KeyedLimits, Remote, RemoteError, RemoteLeg, Rule, Step, StoreError};
use tollgate_stores::{ConnectOptions, Redis};

/// How long a server that was just started, or was given a slot, is waited for.
const TTL: Duration = Duration::from_secs(3);
const SLOTS: usize = 16_384;

/// A server of a cluster, with a port of its own for the other servers.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    bus: u16,
}

impl Store for Node {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let mut command = Program.command(port, folder);
        command
            .args(["--cluster-enabled", "yes", "--cluster-port"])
            .arg(self.bus.to_string());
        command
    }

    fn ready(&self, address: SocketAddr, pid: u32) -> bool {
        Program.ready(address, pid)
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        Program.keys(address)
    }
}

impl Node {
    async fn start() -> (Server<Self>, u16) {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let bus = free.local_addr().unwrap().port();
        drop(free);
        (Server::start(Node { bus }).await.unwrap(), bus)
    }
}

pub(crate) struct Cluster(pub(crate) [Server<Node>; 3]);

impl Cluster {
    pub(crate) async fn start() -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(Node::start().await);
        }
        for (at, (node, _)) in nodes.iter().enumerate() {
            let (first, last) = (at * SLOTS / 3, (at + 1) * SLOTS / 3 - 1);
            tell(node.address(), &format!("CLUSTER ADDSLOTSRANGE {first} {last}")).unwrap();
        }
        for (node, bus) in &nodes[1..] {
            let port = node.address().port();
            let meet = format!("CLUSTER MEET 127.0.0.1 {port} {bus}");
            tell(nodes[0].0.address(), &meet).unwrap();
        }
        for (node, _) in &nodes {
            let knows = |what: &str| bulk(node.address(), "CLUSTER INFO").unwrap().contains(what);
            while !(knows("cluster_state:ok") && knows("cluster_known_nodes:3")) {
                sleep(Duration::from_millis(10)).await;
            }
        }
        let nodes: Vec<_> = nodes.into_iter().map(|(node, _)| node).collect();
        Self(nodes.try_into().expect("three"))
    }

    /// Another server, a replica of that one, in sync with it.
    pub(crate) async fn replica(&self, at: usize) -> Server<Node> {
        let (replica, bus) = Node::start().await;
        let address = replica.address();
        let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", address.port());
        tell(self.0[at].address(), &meet).unwrap();
        let id = bulk(self.0[at].address(), "CLUSTER MYID").unwrap();
        while tell(address, &format!("CLUSTER REPLICATE {id}")).is_err() {
            sleep(Duration::from_millis(10)).await;
        }
        let until_replicated = || {
            let info = bulk(address, "INFO replication").unwrap();
            info.contains("master_link_status:up")
        };
        while !until_replicated() {
            sleep(Duration::from_millis(10)).await;
        }
        replica
    }

    /// A client that knows the address of one server.
    pub(crate) fn client(&self) -> Redis {
        self.options().timeout(Duration::from_secs(60)).connect().unwrap()
    }

    pub(crate) fn options(&self) -> ConnectOptions<Redis> {
        Redis::cluster([format!("redis://{}/", self.0[0].address())])
    }

    /// A name of a limiter that lies on this server.
    pub(crate) fn key_at(&self, at: usize) -> Key {
        loop {
            let key = key();
            if self.place(&key).1 == at {
                return key;
            }
        }
    }

    /// The hash slot of a limiter, and the number of its server.
    fn place(&self, key: &Key) -> (usize, usize) {
        // A name without braces counts in full, as the text in braces does otherwise.
        let slot = keyslot(self.0[0].address(), key.as_str());
        let at = (0..3).find(|at| slot < (at + 1) * SLOTS / 3);
        (slot, at.expect("one of three"))
    }

    /// Moves a hash slot, and its keys, to the next server.
    fn shift(&self, slot: usize, from: usize) -> usize {
        let to = (from + 1) % 3;
        let [source, target] = [from, to].map(|at| self.0[at].address());
        let [source_id, target_id] = [source, target].map(|node| bulk(node, "CLUSTER MYID").unwrap());
        tell(target, &format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}")).unwrap();
        tell(source, &format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}")).unwrap();
        let keys = crate::redis::all_keys(source).unwrap();
        let keys: Vec<_> = keys
            .iter()
            .filter(|key| keyslot(source, key) == slot)
            .map(|key| format!("\"{key}\""))
            .collect();
        if !keys.is_empty() {
            let port = target.port();
            let migrate = format!("MIGRATE 127.0.0.1 {port} \"\" 0 30000 KEYS {}", keys.join(" "));
            tell(source, &migrate).unwrap();
        }
        for node in [target, source, self.0[(to + 1) % 3].address()] {
            tell(node, &format!("CLUSTER SETSLOT {slot} NODE {target_id}")).unwrap();
        }
        to
    }

    /// The servers that have keys of this limiter.
    fn keepers(&self, key: &Key) -> Vec<usize> {
        let keeps = |at: &usize| self.0[*at].keys().unwrap().iter().any(|name| tag(name) == key.as_str());
        (0..3).filter(keeps).collect()
    }
}

fn keyslot(node: SocketAddr, key: &str) -> usize {
    let script = format!("EVAL \"return tostring(redis.call('CLUSTER', 'KEYSLOT', ARGV[1]))\" 0 \"{key}\"");
    bulk(node, &script).unwrap().parse().unwrap()
}

fn permits(key: &Key, store: &Redis, ttl: Duration) -> Arc<Remote<Redis>> {
    let remote = Remote::permits(key.clone(), 1).ttl(ttl);
    Arc::new(remote.spawn(store.clone()).unwrap())
}

/// A waiter at `other` is notified when a permit held at `one` is returned. It syncs only each third of a long time to live:
/// this ends a great deal sooner. `opener` makes the store know the key.
pub(crate) async fn is_handed_on(key: &Key, opener: &Redis, one: &Redis, other: &Redis) {
    RawSession::new(opener, key, Rule::Permits { limit: 1 }, LONG)
        .open()
        .await;
    let [held, waits] = [one, other].map(|store| permits(key, store, LONG));
    let permit = held.acquire(1).await.unwrap();
    let waiting = tokio::spawn(Arc::clone(&waits).acquire_owned(1));
    while waits.stats().waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    drop(permit);
    let granted = timeout(LONG / 6, waiting).await.expect("it is told");
    assert!(!granted.unwrap().unwrap().is_lost());
    held.close().await;
    waits.close().await;
}

/// Two clients that know one server, and limiters on all: a waiter is notified of a grant wherever it is.
#[tokio::test]
async fn limiters_lie_on_all_servers_and_are_handed_on_everywhere() {
    let cluster = Cluster::start().await;
    let (one, other) = (cluster.client(), cluster.client());
    for at in 0..3 {
        let key = cluster.key_at(at);
        is_handed_on(&key, &one, &one, &other).await;
        assert_eq!(cluster.keepers(&key), [at]);
        let rate = Remote::rate(Key::new(format!("{key}-rate")).unwrap(), Quota::per_second(1_000_000));
        assert!(rate.spawn(one.clone()).unwrap().acquire(1).await.is_ok());
    }
}

/// Each server has an access control list of its own: a missing right on one is named before anything is done there, and
/// limiters on the others go on.
#[tokio::test]
async fn rights_are_tried_out_on_each_server() {
    let cluster = Cluster::start().await;
    for (at, node) in cluster.0.iter().enumerate() {
        let less = if at == 2 { "-zadd" } else { "+zadd" };
        tell(
            node.address(),
            &format!("ACL SETUSER gate on >secret ~tollgate:* &tollgate:* +@all {less}"),
        )
        .unwrap();
    }
    let options = cluster.options().user("gate").password("secret");
    let store = options.timeout(Duration::from_secs(60)).connect().unwrap();
    for at in [0, 1, 2] {
        let key = cluster.key_at(at);
        let said = RawSession::new(&store, &key, Rule::Permits { limit: 1 }, LONG)
            .say(|_| {})
            .await;
        if at == 2 {
            let Err(StoreError::Refused { why }) = said else {
                panic!("{said:?}");
            };
            assert!(why.contains("zadd"), "{why}");
            assert!(cluster.keepers(&key).is_empty(), "nothing was done");
        } else {
            assert!(said.unwrap().alive);
        }
    }
}

/// Given keys of two levels, then one step decides on both: they lie in one slot, by the name of all of them.
#[tokio::test]
async fn levels_lie_in_one_slot() {
    let cluster = Cluster::start().await;
    let level = |limit| {
        let leg = RemoteLeg::window("requests", limit, LONG);
        KeyedLimits::new(10, "all", [leg])
    };
    for at in 0..3 {
        let name = cluster.key_at(at);
        let levels = [("organisation", level(3)), ("user", level(2))];
        let limits = Remote::levels(name.clone(), levels).spawn(cluster.client()).unwrap();
        let user = |user| limits.get_all(&[("organisation", "acme"), ("user", user)]).unwrap();
        assert!(user("ann").acquire_now(2).await.is_ok());
        let bob = user("bob");
        let refused = bob.acquire_now(2).await.map(drop).expect_err("one is left");
        assert_eq!(refused.leg(), "organisation/requests");
        assert!(bob.acquire_now(1).await.is_ok());
        assert_eq!(cluster.keepers(&name), [at]);
    }
    // Keys without a common tag are refused, and nothing is taken.
    let [one, other] = [0, 1].map(|at| cluster.key_at(at));
    let rule = Rule::Window { limit: 1, length: LONG };
    let legs = [KeyLeg {
        key: Some(other),
        ..KeyLeg::new("requests", rule)
    }];
    let step = cluster.client().step(&one, &legs, &Step::new(1, 1, LONG)).await;
    assert!(matches!(step, Err(StoreError::Refused { why }) if why.contains("hash slots")));
}

/// The client knows the former places of the slots. The wrong server redirects its request to the right one.
#[tokio::test]
async fn a_limiter_is_followed_when_its_slot_moves() {
    let cluster = Cluster::start().await;
    let (one, other) = (cluster.client(), cluster.client());
    let key = key();
    let (slot, at) = cluster.place(&key);
    let [held, waits] = [&one, &other].map(|store| permits(&key, store, TTL));
    let permit = held.acquire(1).await.unwrap();
    let waiting = tokio::spawn(Arc::clone(&waits).acquire_owned(1));
    while waits.stats().waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let at = cluster.shift(slot, at);
    assert_eq!(cluster.keepers(&key), [at]);
    // It is renewed there.
    let syncs = held.stats().syncs;
    while held.stats().syncs < syncs + 2 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(!permit.is_lost() && !waiting.is_finished());
    drop(permit);
    assert!(!waiting.await.unwrap().unwrap().is_lost());
    assert_eq!(cluster.keepers(&key), [at]);
}

#[tokio::test]
async fn a_cluster_without_nodes_is_an_error() {
    let error = Redis::cluster([""; 0]).connect().unwrap_err();
    assert!(matches!(error, RemoteError::Address { .. }), "{error:?}");
}
