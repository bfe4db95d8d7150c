//! A server that sentinels name, and its successor.

use crate::raw_session::{PATIENCE, refused};
use crate::redis::{Redis as Program, bulk, say};
use crate::rig::server::{Server, Store};
use crate::store::key;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tollgate::Quota;
use tollgate::remote::{Key, Remote, RemoteError, StoreError};
use tollgate_stores::Redis;

const NAME: &str = "limits";
const TTL: Duration = Duration::from_secs(2);

/// A sentinel that watches the server at an address, and needs no other to agree.
#[derive(Clone)]
struct Sentinel(SocketAddr);

impl Store for Sentinel {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let settings = folder.join("sentinel.conf");
        let (ip, watched) = (self.0.ip(), self.0.port());
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} {ip} {watched} 1\n\
             sentinel down-after-milliseconds {NAME} 500\nsentinel failover-timeout {NAME} 3000\n",
            folder.display()
        );
        std::fs::write(&settings, text).expect("the settings can be written");
        let program = std::env::var_os("TOLLGATE_REDIS_SERVER")
            .expect("TOLLGATE_REDIS_SERVER is a program; ci/with-stores redis finds or installs it");
        let mut command = Command::new(program);
        command.arg(settings).arg("--sentinel");
        command
    }

    fn ready(&self, address: SocketAddr, pid: u32) -> bool {
        Program.ready(address, pid)
    }

    fn keys(&self, _: SocketAddr) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// The sentinel knows the server and its replica, which has a link to the server.
async fn watched() -> (Server<Program>, Server<Program>, Server<Sentinel>) {
    let first = Server::start(Program).await.expect("a server");
    let second = Server::start(Program).await.expect("a server");
    let address = first.address();
    say(&second, &format!("REPLICAOF {} {}", address.ip(), address.port())).unwrap();
    let is_replicated = || bulk(address, "INFO replication").is_ok_and(|info| info.contains("state=online"));
    while !is_replicated() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let sentinel = Server::start(Sentinel(address)).await.expect("a sentinel");
    let known = || bulk(sentinel.address(), "INFO sentinel").is_ok_and(|info| info.contains("slaves=1"));
    while !known() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (first, second, sentinel)
}

fn named(name: &str, sentinel: SocketAddr) -> Redis {
    let options = Redis::sentinel(name, [format!("redis://{sentinel}")]);
    options.connect().expect("settings that can be")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_and_rates_go_on_at_the_server_that_sentinels_name_after_a_failover() {
    let (mut first, second, sentinel) = watched().await;
    let store = named(NAME, sentinel.address());
    let remote = |key| Remote::permits(key, 1).ttl(TTL).spawn(store.clone()).map(Arc::new);
    let permits = remote(Key::new("permits").unwrap()).unwrap();
    let rate = Remote::rate(Key::new("rate").unwrap(), Quota::per_second(1_000));
    let rate = rate.ttl(TTL).spawn(store.clone()).unwrap();
    let held = Arc::clone(&permits).acquire_owned(1).await.unwrap();
    rate.acquire(1).await.unwrap().forget();

    first.kill().unwrap();
    let is_promoted = || bulk(second.address(), "INFO replication").is_ok_and(|info| info.contains("role:master"));
    while !is_promoted() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It goes back, unless it was lost.
    drop(held);
    let granted = async {
        loop {
            // While it cannot be reached it is unavailable, and it grants nothing for a time to live.
            match Arc::clone(&permits).acquire_owned(1).await {
                Ok(permit) => return permit,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let held = timeout(PATIENCE, granted).await.expect("the successor grants");
    while rate.acquire(1).await.map(|taken| taken.forget()).is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // Messages reach waiters there too: a renewal comes later than the return.
    let waits = tokio::spawn(Arc::clone(&permits).acquire_owned(1));
    while permits.stats().waiting == 0 {
        tokio::task::yield_now().await;
    }
    drop(held);
    drop(
        timeout(PATIENCE, waits)
            .await
            .expect("a message comes")
            .unwrap()
            .unwrap(),
    );
    permits.close().await;
    rate.close().await;
}

#[tokio::test]
async fn an_unknown_name_is_an_error_of_the_store() {
    let (_first, _second, sentinel) = watched().await;
    let error = refused(named("another", sentinel.address()), key()).await;
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn addresses_of_sentinels_that_differ_in_more_than_the_host_are_refused() {
    let refused = |addresses: &[&str]| Redis::sentinel(NAME, addresses.iter().copied()).connect().map(drop);
    for addresses in [
        &[][..],
        &["redis://127.0.0.1:1", "redis://:secret@127.0.0.1:2"],
        &["redis://127.0.0.1:1", "rediss://127.0.0.1:2"],
        &["redis://127.0.0.1:none"],
    ] {
        let error = refused(addresses).unwrap_err();
        assert!(matches!(error, RemoteError::Address { .. }), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
