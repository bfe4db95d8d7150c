//! Changes while running, in a real store.

#[path = "changes.rs"]
pub(crate) mod changes;

use crate::places::Place;
use crate::raw_session::LONG;
use crate::store::{key, opened, own_unopened, store};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::Quota;
use tollgate::remote::{Remote, RemoteBuilder, Rule};
use tollgate_stores::Redis;

macro_rules! lowered {
    ($place:ty) => {
        $crate::places::tests! {
            change, $place;
            a_lowered_limit_refuses_an_impossible_head
        }
    };
}
pub(crate) use lowered;

pub(crate) async fn a_lowered_limit_refuses_an_impossible_head<P: Place>() {
    let key = key();
    let make = |builder: RemoteBuilder| builder.ttl(LONG).spawn(P::store()).unwrap();
    let changed = changes::an_impossible_head_is_refused_when_the_limit_is_lowered(&key, make);
    timeout(LONG / 6, changed).await.expect("the next waiter is served");
}

fn spawn(builder: RemoteBuilder) -> Remote<Redis> {
    builder.ttl(LONG).spawn(store()).expect("settings that can be")
}

/// A raised window serves a waiter in another process, which asks again only each third of a long time to live: this ends a
/// great deal sooner.
#[tokio::test]
async fn a_raised_window_serves_waiters_of_other_processes() {
    let key = key();
    let window = || spawn(Remote::window(key.clone(), 1, Duration::from_secs(3_600)));
    let (full, waits) = (window(), window());
    drop(full.acquire(1).await.unwrap());
    let mut waiting = pin!(waits.acquire(1));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    while waits.stats().waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    full.set_limit(2).await.unwrap();
    drop(timeout(LONG / 6, waiting).await.expect("it is told").unwrap());
}

#[tokio::test]
async fn an_impossible_head_is_refused_when_the_limit_is_lowered() {
    let (store, key) = opened(Rule::Permits { limit: 4 }).await;
    let make = |builder: RemoteBuilder| builder.ttl(LONG).spawn(store.clone()).unwrap();
    let changed = changes::an_impossible_head_is_refused_when_the_limit_is_lowered(&key, make);
    timeout(LONG / 6, changed).await.expect("the next waiter is served");
}

/// A process that knows the change repeats it.
#[tokio::test]
async fn a_restarted_server_receives_a_change() {
    let (mut server, store, key) = own_unopened().await;
    let quota = |burst| Quota::per_hour(1).burst(burst);
    let rate = |store: Redis| Remote::rate(key.clone(), quota(3)).ttl(LONG).spawn(store).unwrap();
    let one = rate(store.clone());
    one.set_quota(quota(8)).await.unwrap();
    server.kill().unwrap();
    server.restart().await.unwrap();
    while one.acquire_now(1).await.is_err() {
        tokio::time::sleep(LONG / 100_000).await;
    }
    let other = rate(store);
    drop(other.acquire(7).await.unwrap());
    assert_eq!(other.stats().limit, 8);
}
