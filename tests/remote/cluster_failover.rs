//! A server of a cluster dies, or does not answer any more, and its replica takes over what lies on it.

use crate::cluster::{Cluster, Node, is_handed_on};
use crate::redis::tell;
use crate::rig::server::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::remote::{Redis, Remote};

const TTL: Duration = Duration::from_secs(1);
/// Nobody is known to be gone before that, and what is to be found out takes far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a server goes.
#[derive(Clone, Copy)]
enum Goes {
    Dead,
    Silent,
}

/// Given limiters in use on a server, and a client that waits at one of them: when it has gone and its replica has its slots, the
/// waiter is served there, and whoever waits from then on is told by messages again.
async fn goes(at: usize, how: Goes) {
    let mut cluster = Cluster::start().await;
    let replica = cluster.replica(at).await;
    let store = || {
        let timeout = match how {
            Goes::Dead => PATIENCE,
            // It is to be found out that nobody answers.
            Goes::Silent => Duration::from_millis(300),
        };
        cluster.options().timeout(timeout).connect().unwrap()
    };
    let (one, other) = (store(), store());
    let (key, other_key) = (cluster.key_at(at), cluster.key_at(at));
    let held = permits(&key, &one);
    let waits = permits(&key, &other);
    let permit = held.acquire(1).await.unwrap();
    let waiting = tokio::spawn(served(Arc::clone(&waits)));
    while waits.stats().waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    match how {
        Goes::Dead => cluster.0[at].kill().unwrap(),
        Goes::Silent => cluster.0[at].pause().unwrap(),
    }
    take_over(&replica).await;
    drop(permit);
    timeout(PATIENCE, waiting).await.expect("it is served there").unwrap();
    timeout(PATIENCE, is_handed_on(&other_key, &one, &other))
        .await
        .expect("messages are heard again");
    if matches!(how, Goes::Silent) {
        cluster.0[at].resume().unwrap();
    }
}

fn permits(key: &tollgate::remote::Key, store: &Redis) -> Arc<Remote<Redis>> {
    let remote = Remote::permits(key.clone(), 1).ttl(TTL).spawn(store.clone());
    Arc::new(remote.unwrap())
}

/// Waits for a permit, and asks again while the store is away.
async fn served(remote: Arc<Remote<Redis>>) {
    while remote.acquire(1).await.is_err() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Without asking the others, who would wait until they are sure.
async fn take_over(replica: &Server<Node>) {
    tell(replica.address(), "CLUSTER FAILOVER TAKEOVER").unwrap();
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
