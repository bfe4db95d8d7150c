//! A server becomes a replica of another one, and its address leads to that one from then on: connections stay open.

use crate::raw_session::{LONG, RawSession};
use crate::redis::{Redis as Program, say};
use crate::rig::proxy::Proxy;
use crate::rig::server::Server;
use crate::store::{at, key};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::Quota;
use tollgate::remote::{Remote, Rule, StoreError};
use tollgate_stores::Redis;

const TTL: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);
const PERMITS: Rule = Rule::Permits { limit: 1 };

/// Two servers, and an address that leads to the first.
struct Address {
    first: Server<Program>,
    second: Server<Program>,
    proxy: Proxy,
}

impl Address {
    async fn new() -> Self {
        let [first, second] = [Server::start(Program).await, Server::start(Program).await].map(Result::unwrap);
        let proxy = Proxy::before(first.address()).await.unwrap();
        Self { first, second, proxy }
    }

    fn demote(&self) {
        // In this order: a connection made after the first refusal reaches the second.
        self.proxy.lead_to(self.second.address());
        follow(&self.first, &self.second);
    }
}

fn follow(server: &Server<Program>, other: &Server<Program>) {
    let address = other.address();
    say(server, &format!("REPLICAOF {} {}", address.ip(), address.port())).unwrap();
}

async fn served(remote: &Remote<Redis>) {
    let served = async {
        while remote.acquire(1).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, served).await.expect("the other server is found");
}

#[tokio::test]
async fn the_connection_is_given_up_and_the_other_server_found() {
    let there = Address::new().await;
    let store = at(there.proxy.address());
    let permits = Remote::permits(key(), 1).ttl(TTL).spawn(store.clone()).unwrap();
    let rate = Remote::rate(key(), Quota::per_second(1_000_000)).ttl(TTL);
    let rate = rate.spawn(store.clone()).unwrap();
    served(&permits).await;
    served(&rate).await;
    there.demote();
    served(&permits).await;
    served(&rate).await;
    // One connection before, and one since, for any number of refusals.
    assert_eq!(there.proxy.exchanges().len(), 2);
}

/// A waiter without a sync since then gets the messages of the other server.
#[tokio::test]
async fn messages_arrive_from_the_other_server() {
    let there = Address::new().await;
    let (store, key) = (at(there.proxy.address()), key());
    RawSession::new(&store, &key, PERMITS, LONG).open().await;
    there.demote();
    let elsewhere = at(there.second.address());
    RawSession::new(&elsewhere, &key, PERMITS, LONG).open().await;
    let held = Remote::permits(key.clone(), 1).ttl(LONG).spawn(elsewhere).unwrap();
    let waits = Arc::new(Remote::permits(key, 1).ttl(LONG).spawn(store).unwrap());
    let told = async {
        let permit = held.acquire(1).await.unwrap();
        let waiting = tokio::spawn(Arc::clone(&waits).acquire_owned(1));
        while waits.stats().waiting == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        drop(permit);
        waiting.await.unwrap()
    };
    assert!(timeout(PATIENCE, told).await.expect("it is told").is_ok());
}

/// A replica is not the store, and nothing is done there.
#[tokio::test]
async fn a_replica_is_no_store() {
    let there = Address::new().await;
    follow(&there.first, &there.second);
    let (store, key) = (at(there.first.address()), key());
    for rule in [
        PERMITS,
        Rule::Rate {
            quota: Quota::per_second(1),
        },
    ] {
        for _ in 0..2 {
            let said = RawSession::new(&store, &key, rule, LONG).say(|_| {}).await;
            let Err(StoreError::Unreachable { why }) = said else {
                panic!("{said:?}");
            };
            assert!(why.contains("read"), "{why}");
        }
    }
    assert_eq!(there.first.keys().unwrap(), [""; 0]);
}
