//! Limiters in a cluster of three servers, each with a third of the hash slots.

use crate::redis::{Redis as Program, bulk, tell};
use crate::rig::server::{Server, Store};
use crate::store::{key, tag};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tollgate::Quota;
use tollgate::remote::{Key, Redis, Remote, RemoteError};

/// How long a server is waited for that was just started.
const TTL: Duration = Duration::from_secs(1);
const SLOTS: usize = 16_384;

/// A server of a cluster, which speaks to the others at a port of its own.
#[derive(Clone, Debug)]
struct Node {
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

struct Cluster([Server<Node>; 3]);

impl Cluster {
    async fn start() -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let bus = free.local_addr().unwrap().port();
            drop(free);
            nodes.push((Server::start(Node { bus }).await.unwrap(), bus));
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

    /// A client that was told of one server.
    fn client(&self) -> Redis {
        let options = Redis::cluster([format!("redis://{}/", self.0[0].address())]);
        options.timeout(Duration::from_secs(60)).connect().unwrap()
    }

    /// The hash slot of a limiter, and which of the servers has it.
    fn place(&self, key: &Key) -> (usize, usize) {
        // Where a name has no braces all of it counts, as what stands in braces does where it has.
        let slot = keyslot(self.0[0].address(), key.as_str());
        let at = (0..3).find(|at| slot < (at + 1) * SLOTS / 3);
        (slot, at.expect("one of three"))
    }

    /// Moves a hash slot, and what is in it, to the next server.
    fn shift(&self, slot: usize, from: usize) -> usize {
        let to = (from + 1) % 3;
        let [source, target] = [from, to].map(|at| self.0[at].address());
        let [source_id, target_id] = [source, target].map(|node| bulk(node, "CLUSTER MYID").unwrap());
        tell(target, &format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}")).unwrap();
        tell(source, &format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}")).unwrap();
        let keys = self.0[from].keys().unwrap();
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

    /// Which of the servers have keys of this limiter.
    fn keepers(&self, key: &Key) -> Vec<usize> {
        let keeps = |at: &usize| self.0[*at].keys().unwrap().iter().any(|name| tag(name) == key.as_str());
        (0..3).filter(keeps).collect()
    }
}

fn keyslot(node: SocketAddr, key: &str) -> usize {
    let script = format!("EVAL \"return tostring(redis.call('CLUSTER', 'KEYSLOT', ARGV[1]))\" 0 \"{key}\"");
    bulk(node, &script).unwrap().parse().unwrap()
}

fn permits(key: &Key, store: Redis) -> Arc<Remote<Redis>> {
    Arc::new(Remote::permits(key.clone(), 1).ttl(TTL).spawn(store).unwrap())
}

/// Two clients that were told of one server, and limiters on all: a waiter hears of a grant wherever it is.
#[tokio::test]
async fn limiters_lie_on_all_servers_and_are_handed_on_everywhere() {
    let cluster = Cluster::start().await;
    let (one, other) = (cluster.client(), cluster.client());
    let mut seen = [0; 3];
    while seen.contains(&0) {
        let key = key();
        let (_, at) = cluster.place(&key);
        seen[at] += 1;
        let (held, waits) = (permits(&key, one.clone()), permits(&key, other.clone()));
        let permit = held.acquire(1).await.unwrap();
        assert_eq!(cluster.keepers(&key), [at]);
        let waiting = tokio::spawn(Arc::clone(&waits).acquire_owned(1));
        while waits.stats().waiting == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        drop(permit);
        assert!(!waiting.await.unwrap().unwrap().is_lost());
        let rate = Remote::rate(Key::new(format!("{key}-rate")).unwrap(), Quota::per_second(1_000_000));
        assert!(rate.spawn(one.clone()).unwrap().acquire(1).await.is_ok());
        held.close().await;
        waits.close().await;
    }
}

/// The client knows where the slots were. What it asks of the wrong server it is told to ask of the right one.
#[tokio::test]
async fn a_limiter_is_followed_when_its_slot_moves() {
    let cluster = Cluster::start().await;
    let (one, other) = (cluster.client(), cluster.client());
    let key = key();
    let (slot, at) = cluster.place(&key);
    let (held, waits) = (permits(&key, one), permits(&key, other));
    let permit = held.acquire(1).await.unwrap();
    let waiting = tokio::spawn(Arc::clone(&waits).acquire_owned(1));
    while waits.stats().waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let at = cluster.shift(slot, at);
    assert_eq!(cluster.keepers(&key), [at]);
    // It is renewed there.
    sleep(2 * TTL).await;
    assert!(!permit.is_lost() && !waiting.is_finished());
    drop(permit);
    assert!(!waiting.await.unwrap().unwrap().is_lost());
    assert_eq!(cluster.keepers(&key), [at]);
}

#[tokio::test]
async fn a_cluster_of_nobody_is_an_error() {
    let error = Redis::cluster([""; 0]).connect().unwrap_err();
    assert!(matches!(error, RemoteError::Address { .. }), "{error:?}");
}
