//! The leader of three servers is killed while permits are held and waited for.

use crate::quorum::{Member, Quorum};
use crate::store::key;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::remote::{Backend, Remote};

const LIMIT: u64 = 3;
/// Longer than any election: a client without its session for this long has lost it.
const LIFE: Duration = Duration::from_secs(60);
/// A bound for failures only.
const PATIENCE: Duration = Duration::from_secs(120);
const WORKERS: u64 = 6;

/// The counters of the workers at the last permit.
#[derive(Default)]
struct Seen {
    /// Permits in use now.
    using: AtomicU64,
    /// More than the limit were in use.
    beyond: AtomicBool,
    /// A permit was lost.
    lost: AtomicBool,
    over: AtomicBool,
    served: [AtomicU64; WORKERS as usize],
}

impl Seen {
    // Relaxed throughout: permits order the counts under them, and the rest is polled.
    async fn work<B: Backend>(self: Arc<Self>, limiter: Arc<Remote<B>>, nth: usize) {
        while !self.over.load(Ordering::Relaxed) {
            let Ok(permit) = limiter.acquire(1).await else {
                // There is no leader.
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            if self.using.fetch_add(1, Ordering::Relaxed) >= LIMIT {
                self.beyond.store(true, Ordering::Relaxed);
            }
            sleep(Duration::from_millis(5)).await;
            if permit.is_lost() {
                self.lost.store(true, Ordering::Relaxed);
            }
            self.using.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
            self.served[nth].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until each of them has been served twice more.
    async fn all_are_served(&self) {
        let before = self.served.each_ref().map(|served| served.load(Ordering::Relaxed));
        let is_served = |(served, before): (&AtomicU64, u64)| served.load(Ordering::Relaxed) >= before + 2;
        let all = async {
            while !self.served.iter().zip(before).all(is_served) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, all).await.expect("each waiter is served");
    }
}

/// Two processes at servers that follow, or at all of them.
pub(crate) async fn the_leader_goes<M: Member, B: Backend>(mut quorum: Quorum<M>, at: impl Fn(&Quorum<M>, usize) -> B) {
    let leader = quorum.leader().expect("one leads");
    let followers: Vec<_> = (0..3).filter(|&nth| nth != leader).collect();
    let key = key();
    let limiters = [0, 1].map(|nth| {
        let limiter = Remote::permits(key.clone(), LIMIT).ttl(LIFE).unavailable_after(LIFE);
        // An election takes about a second; requests meanwhile are repeated.
        let limiter = limiter
            .timeout(Duration::from_secs(2))
            .retry(Duration::from_millis(200));
        Arc::new(
            limiter
                .spawn(at(&quorum, followers[nth]))
                .expect("settings that can be"),
        )
    });
    let kept = Arc::clone(&limiters[0]).acquire_owned(2).await.expect("it is free");
    let seen = Arc::new(Seen::default());
    seen.using.store(2, Ordering::Relaxed);
    let workers: Vec<_> = (0..WORKERS as usize)
        .map(|nth| tokio::spawn(Arc::clone(&seen).work(Arc::clone(&limiters[nth % 2]), nth)))
        .collect();
    seen.all_are_served().await;
    quorum.kill(leader);
    let elected = async {
        while quorum.leader().is_none() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, elected).await.expect("another leads");
    seen.all_are_served().await;
    assert!(
        !kept.is_lost() && !seen.lost.load(Ordering::Relaxed),
        "their sessions live"
    );
    assert!(!seen.beyond.load(Ordering::Relaxed), "more than there are");
    seen.over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("it ends");
    }
    drop(kept);
    // One returns its permits, and the other finds them.
    drop(limiters[1].acquire(LIMIT).await.expect("all is free"));
    for limiter in limiters {
        limiter.close().await;
    }
}

mod etcd {
    use super::*;
    use crate::etcd::ask;
    use crate::etcd_sync::at;
    use crate::quorum::Ports;
    use std::io;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::process::Command;

    struct Etcd;

    impl Member for Etcd {
        fn command(&self, nth: usize, all: &[Ports; 3], folder: &Path) -> Command {
            let program = std::env::var_os("TOLLGATE_ETCD_SERVER");
            let program = program.expect("TOLLGATE_ETCD_SERVER is a program; ci/with-stores etcd finds or fetches it");
            let client = format!("http://127.0.0.1:{}", all[nth].client);
            let peer = |nth: usize| format!("http://127.0.0.1:{}", all[nth].peer);
            let cluster = [0, 1, 2].map(|nth| format!("{nth}={}", peer(nth))).join(",");
            let mut command = Command::new(program);
            command.args(["--name", &nth.to_string(), "--initial-cluster", &cluster]);
            command.arg("--data-dir").arg(folder.join("data"));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args([
                "--listen-peer-urls",
                &peer(nth),
                "--initial-advertise-peer-urls",
                &peer(nth),
            ]);
            command
        }

        fn leads(&self, address: SocketAddr) -> io::Result<bool> {
            let answer = ask(address, "POST", "/v3/maintenance/status", "{}")?;
            let body = answer.split_once("\r\n\r\n").unwrap_or_default().1;
            let status: serde_json::Value = serde_json::from_str(body)?;
            let leader = status["leader"].as_str().filter(|leader| *leader != "0");
            let leader = leader.ok_or_else(|| io::Error::other("there is no leader"))?;
            Ok(status["header"]["member_id"] == leader)
        }
    }

    #[tokio::test]
    async fn permits_and_waiters_outlive_a_leader_of_etcd() {
        let quorum = Quorum::start(|| Etcd).await;
        the_leader_goes(quorum, |quorum, nth| at(quorum.address(nth))).await;
    }
}

mod zookeeper {
    use super::*;
    use crate::quorum::Ports;
    use crate::zookeeper::{mode, program};
    use std::io;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::process::Command;
    use tollgate_stores::Zookeeper;

    struct Server;

    impl Member for Server {
        fn command(&self, nth: usize, all: &[Ports; 3], folder: &Path) -> Command {
            let data = folder.join("data");
            std::fs::create_dir(&data).expect("a folder of our own");
            std::fs::write(data.join("myid"), nth.to_string()).expect("a folder of our own");
            let mut text = format!(
                "tickTime=100\ninitLimit=100\nsyncLimit=20\nminSessionTimeout=200\nmaxSessionTimeout=1000000\ndataDir={}\n\
                 clientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n\
                 4lw.commands.whitelist=srvr\n",
                data.display(),
                all[nth].client
            );
            for (nth, Ports { peer, other, .. }) in all.iter().enumerate() {
                text += &format!("server.{nth}=127.0.0.1:{peer}:{other}\n");
            }
            let settings = folder.join("zoo.cfg");
            std::fs::write(&settings, text).expect("a folder of our own");
            program("org.apache.zookeeper.server.quorum.QuorumPeerMain", &settings)
        }

        fn leads(&self, address: SocketAddr) -> io::Result<bool> {
            match &*mode(address)? {
                "leader" => Ok(true),
                "follower" => Ok(false),
                other => Err(io::Error::other(other)),
            }
        }
    }

    #[tokio::test]
    async fn permits_and_waiters_outlive_a_leader_of_zookeeper() {
        let quorum = Quorum::start(|| Server).await;
        // A client goes on at another server: some of them were at the leader.
        let all = [0, 1, 2].map(|nth| quorum.address(nth).to_string()).join(",");
        let connect = |_: &_, _| Zookeeper::options(&*all).connect().expect("settings that can be");
        the_leader_goes(quorum, connect).await;
    }
}

mod consul {
    use super::*;
    use crate::consul::{Consul as Program, ask};
    use crate::consul_store::Kind;
    use crate::quorum::Ports;
    use std::io;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::process::Command;
    use tollgate_stores::{Consul, ConsulSlots};

    struct Server;

    impl Member for Server {
        fn command(&self, nth: usize, all: &[Ports; 3], folder: &Path) -> Command {
            let Ports { client, peer, other } = all[nth];
            let mut command = Program.agent(3, client, [peer, other], folder);
            command.args(["-node", &format!("server-{nth}")]);
            for Ports { other, .. } in all {
                command.args(["-retry-join", &format!("127.0.0.1:{other}")]);
            }
            command.args(["-retry-interval", "1s"]);
            command
        }

        fn leads(&self, address: SocketAddr) -> io::Result<bool> {
            let about: serde_json::Value = serde_json::from_str(&ask(address, "GET", "/v1/agent/self", "")?)?;
            let state = about["Stats"]["raft"]["state"].as_str();
            // A server without a leader says so.
            if ask(address, "GET", "/v1/status/leader", "")? == "\"\"" {
                return Err(io::Error::other("there is no leader"));
            }
            Ok(state == Some("Leader"))
        }
    }

    async fn outlives<B: Kind>() {
        let quorum = Quorum::start(|| Server).await;
        the_leader_goes(quorum, |quorum, nth| B::at(quorum.address(nth))).await;
    }

    #[tokio::test]
    async fn permits_and_waiters_of_a_document_outlive_a_leader_of_consul() {
        outlives::<Consul>().await;
    }

    #[tokio::test]
    async fn permits_and_waiters_of_slots_outlive_a_leader_of_consul() {
        outlives::<ConsulSlots>().await;
    }
}
