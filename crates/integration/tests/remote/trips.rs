//! The traffic of a limiter, seen by a proxy before its server.

use crate::raw_session::{LONG, RawSession};
use crate::redis::Redis as Program;
use crate::rig::proxy::{Mode, Proxy};
use crate::rig::server::Server;
use crate::store::{at, own};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::time::sleep;
use tollgate::remote::{Key, Remote, Rule};
use tollgate::{Ask, Policy, Reason};
use tollgate_stores::Redis;

const LIMIT: u64 = 4;

/// A server, and a limiter that reaches it by a proxy.
struct Wired {
    server: Server<Program>,
    proxy: Proxy,
    key: Key,
    remote: Remote<Redis>,
}

impl Wired {
    async fn new() -> Self {
        let (server, _, key) = own(Rule::Permits { limit: LIMIT }).await;
        let proxy = Proxy::before(server.address()).await.expect("a proxy");
        let remote = limiter(&key, at(proxy.address()));
        Self {
            server,
            proxy,
            key,
            remote,
        }
    }

    fn exchanges(&self) -> u64 {
        self.proxy.exchanges().iter().sum()
    }

    /// Waits until the store has confirmed that it has everything back.
    async fn all_is_back(&self) {
        while self.remote.stats().in_use > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

fn limiter(key: &Key, store: Redis) -> Remote<Redis> {
    let remote = Remote::permits(key.clone(), LIMIT).ttl(LONG);
    remote.spawn(store).expect("settings that can be")
}

#[tokio::test]
async fn an_uncontended_acquire_takes_one_round_trip() {
    let wired = Wired::new().await;
    // The first one connects, and sends the server its scripts.
    drop(wired.remote.acquire(1).await.unwrap());
    wired.all_is_back().await;
    for units in [1, 3, LIMIT] {
        let before = wired.exchanges();
        let permit = wired.remote.acquire(units).await.unwrap();
        assert_eq!(wired.exchanges() - before, 1);
        drop(permit);
        wired.all_is_back().await;
        assert_eq!(wired.exchanges() - before, 2, "and one to give it back");
    }
}

#[tokio::test]
async fn a_waiter_receives_its_permit_by_the_message_alone() {
    let wired = Wired::new().await;
    let store = at(wired.server.address());
    let mut other = RawSession::new(&store, &wired.key, Rule::Permits { limit: LIMIT }, LONG);
    other.request(LIMIT, true).await;
    let mut waits = [1, 2].map(|units| Box::pin(wired.remote.acquire(units)));
    for wait in &mut waits {
        assert!(futures::poll!(wait.as_mut()).is_pending());
    }
    while other.look().await.usage.waiting < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    let before = wired.exchanges();
    other.give(LIMIT).await;
    let permits = futures::future::join_all(waits).await;
    let tokens = permits
        .iter()
        .map(|permit| permit.as_ref().unwrap().fence().unwrap().token);
    let tokens: Vec<_> = tokens.collect();
    assert!(tokens[0] < tokens[1]);
    assert_eq!(wired.exchanges(), before, "nothing was asked for");
    assert_eq!(other.look().await.usage.in_use, 3);
    drop(permits);
    while other.look().await.usage.in_use > 0 {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_deadline_counts_from_the_request_on() {
    let wired = Wired::new().await;
    drop(wired.remote.acquire(1).await.unwrap());
    wired.all_is_back().await;
    let delay = Duration::from_millis(60);
    wired.proxy.set(Mode::Delay(delay));
    let permit = wired.remote.acquire(1).await.unwrap();
    assert!(permit.good_for().unwrap() <= LONG - 2 * delay);
}

#[tokio::test]
async fn more_than_the_limit_is_refused() {
    let wired = Wired::new().await;
    let refused = wired.remote.acquire(LIMIT + 1).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Oversized);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_wait_that_is_dropped_at_its_grant_keeps_nothing() {
    let wired = Wired::new().await;
    let store = at(wired.server.address());
    let mut other = RawSession::new(&store, &wired.key, Rule::Permits { limit: LIMIT }, LONG);
    other.request(LIMIT, true).await;
    {
        let mut waits = pin!(wired.remote.acquire(1));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        while other.look().await.usage.waiting == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        woken.0.store(false, Ordering::SeqCst);
        other.give(LIMIT).await;
        while !woken.0.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(1)).await;
        }
    }
    // Nothing expires: it has been given back, or this never ends.
    other.request(LIMIT, true).await;
    while other.look().await.grants.iter().all(|grant| grant.request != 2) {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_permit_is_dropped_while_the_store_is_silent() {
    let wired = Wired::new().await;
    let store = at(wired.server.address());
    let mut other = RawSession::new(&store, &wired.key, Rule::Permits { limit: LIMIT }, LONG);
    let permit = wired.remote.acquire(LIMIT).await.unwrap();
    wired.proxy.set(Mode::Blackhole);
    drop(permit);
    assert_eq!(other.request(1, true).await.grants, []);
    wired.proxy.set(Mode::Pass);
    // It is given back once the store answers again.
    while other.look().await.grants.is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Keeps out redisson#5762.
#[tokio::test]
async fn a_waiter_whose_message_was_lost_is_served() {
    let wired = Wired::new().await;
    let store = at(wired.server.address());
    let mut other = RawSession::new(&store, &wired.key, Rule::Permits { limit: LIMIT }, LONG);
    other.request(LIMIT, true).await;
    let mut waits = pin!(wired.remote.acquire(1));
    assert!(matches!(futures::poll!(waits.as_mut()), Poll::Pending));
    while other.look().await.usage.waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    // The message is sent while there is no connection.
    wired.proxy.set(Mode::Cut);
    other.give(LIMIT).await;
    wired.proxy.set(Mode::Pass);
    drop(waits.await.unwrap());
}

/// Answers came so late that the store counted as unavailable.
#[tokio::test]
async fn a_connection_that_was_too_slow_is_used_again() {
    let wired = Wired::new().await;
    let ttl = Duration::from_millis(400);
    let store = at(wired.proxy.address());
    let remote = Remote::permits(wired.key.clone(), LIMIT).ttl(ttl).spawn(store).unwrap();
    drop(remote.acquire(1).await.unwrap());
    wired.proxy.set(Mode::Delay(2 * ttl));
    while !remote.stats().unavailable {
        let _ = tokio::time::timeout(ttl, remote.acquire(1)).await;
    }
    wired.proxy.set(Mode::Pass);
    while remote.acquire(1).await.is_err() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// A thousand requests that wait at a policy are cancelled at once, and the limiter is one of its legs.
#[tokio::test]
async fn a_storm_of_cancels_costs_two_round_trips_at_most() {
    let wired = Wired::new().await;
    let held = wired.remote.acquire(LIMIT).await.unwrap();
    let remote = Arc::new(limiter(&wired.key, at(wired.proxy.address())));
    let policy = Policy::builder().limit(Arc::clone(&remote)).build().unwrap();
    let mut waits: Vec<_> = (0..1_000).map(|_| Box::pin(policy.admit(Ask::one()))).collect();
    for wait in &mut waits {
        assert!(futures::poll!(wait.as_mut()).is_pending());
    }
    while remote.stats().waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let before = wired.exchanges();
    drop(waits);
    while remote.stats().waiting > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let trips = wired.exchanges() - before;
    assert!((1..=2).contains(&trips), "{trips} round trips");
    drop(held);
}
