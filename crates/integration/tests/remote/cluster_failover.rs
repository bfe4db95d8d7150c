//! A server of a cluster dies, or falls silent, and its replica takes over its slots.

use crate::cluster::{Cluster, is_handed_on};
use crate::redis::tell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::remote::{Key, OwnedRemotePermit, Remote};
use tollgate_stores::Redis;

const TTL: Duration = Duration::from_secs(1);
/// A bound for failures only: everything takes far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a server goes.
#[derive(Clone, Copy)]
enum Goes {
    Dead,
    Silent,
}

/// Given limiters in use on a server, and a client that waits at one of them: when it has gone and its replica has its slots,
/// the waiter is served there, and later waiters are notified by messages again.
async fn goes(nth: usize, how: Goes) {
    let mut cluster = Cluster::start().await;
    let replica = cluster.replica(nth).await;
    let store = || {
        let timeout = match how {
            Goes::Dead => PATIENCE,
            // The client has to notice the silence.
            Goes::Silent => Duration::from_millis(300),
        };
        cluster.options().timeout(timeout).connect().unwrap()
    };
    let (one, other) = (store(), store());
    let (key, other_key) = (cluster.key_at(nth), cluster.key_at(nth));
    let held = permits(&key, &one);
    let waits = permits(&key, &other);
    let permit = served(held).await;
    let waiting = tokio::spawn(served(Arc::clone(&waits)));
    // If this process is too slow the permit is lost, and the waiter has it.
    while waits.stats().waiting == 0 && !waiting.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    match how {
        Goes::Dead => cluster.0[nth].kill().unwrap(),
        Goes::Silent => cluster.0[nth].pause().unwrap(),
    }
    // Without asking the others, which would wait until they are sure.
    tell(replica.address(), "CLUSTER FAILOVER TAKEOVER").unwrap();
    drop(permit);
    let served = timeout(PATIENCE, waiting).await.expect("it is served there");
    drop(served.unwrap());
    // A client without the address of the silent server.
    let opener = Redis::cluster([format!("redis://{}/", replica.address())]);
    let opener = opener.timeout(PATIENCE).connect().unwrap();
    let heard = timeout(PATIENCE, is_handed_on(&other_key, &opener, &one, &other));
    heard.await.expect("messages are heard again");
    if matches!(how, Goes::Silent) {
        cluster.0[nth].resume().unwrap();
    }
}

fn permits(key: &Key, store: &Redis) -> Arc<Remote<Redis>> {
    let remote = Remote::permits(key.clone(), 1).ttl(TTL).spawn(store.clone());
    Arc::new(remote.unwrap())
}

/// Waits for a permit, and asks again while the store is unavailable.
async fn served(remote: Arc<Remote<Redis>>) -> OwnedRemotePermit<Redis> {
    loop {
        match Arc::clone(&remote).acquire_owned(1).await {
            Ok(permit) => return permit,
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

#[tokio::test]
async fn a_server_dies_and_its_replica_is_found() {
    goes(1, Goes::Dead).await;
}

#[tokio::test]
async fn the_server_that_was_named_dies_and_its_replica_is_found() {
    goes(0, Goes::Dead).await;
}

#[tokio::test]
async fn a_server_is_silent_and_its_replica_is_found() {
    goes(2, Goes::Silent).await;
}
