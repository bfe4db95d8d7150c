//! The traffic to Consul, seen by a proxy between a limiter and its server.

use crate::consul::ask;
use crate::consul_store::{Kind, SHORT, server, store};
use crate::raw_session::{LONG, RawSession};
use crate::rig::proxy::{Mode, Proxy};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tollgate::Reason;
use tollgate::remote::{Key, Remote, Rule};
use tollgate_stores::{Consul, ConsulSlots};

const LIMIT: u64 = 4;

/// A limiter that reaches the shared server by a proxy.
struct Wired<B: Kind> {
    proxy: Proxy,
    store: B,
    key: Key,
    remote: Remote<B>,
}

impl<B: Kind> Wired<B> {
    async fn new(ttl: Duration) -> Self {
        let (store, key) = store::<B>();
        let proxy = Proxy::before(server()).await.expect("a proxy");
        let remote = Remote::permits(key.clone(), LIMIT).ttl(ttl);
        let remote = remote.spawn(B::at(proxy.address())).expect("settings that can be");
        Self {
            proxy,
            store,
            key,
            remote,
        }
    }

    fn exchanges(&self) -> u64 {
        self.proxy.exchanges().iter().sum()
    }

    async fn all_is_back(&self) {
        while self.remote.stats().in_use > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn other(&self) -> RawSession<'_, B> {
        RawSession::new(&self.store, &self.key, Rule::Permits { limit: LIMIT }, LONG)
    }
}

/// One read and one write, and the same to give it back.
async fn an_uncontended_acquire<B: Kind>() {
    let wired = Wired::<B>::new(LONG).await;
    // The first one makes the session as well.
    drop(wired.remote.acquire(1).await.unwrap());
    wired.all_is_back().await;
    for units in [1, 3, LIMIT] {
        let before = wired.exchanges();
        let permit = wired.remote.acquire(units).await.unwrap();
        assert_eq!(wired.exchanges() - before, 2);
        drop(permit);
        wired.all_is_back().await;
        assert_eq!(wired.exchanges() - before, 4, "and two to give it back");
    }
}

#[tokio::test]
async fn an_uncontended_acquire_of_a_document_takes_two_round_trips() {
    an_uncontended_acquire::<Consul>().await;
}

#[tokio::test]
async fn an_uncontended_acquire_of_slots_takes_two_round_trips() {
    an_uncontended_acquire::<ConsulSlots>().await;
}

/// A waiter asks nothing before its turn: it is woken once, by the holder that gives back.
#[tokio::test]
async fn a_waiter_for_a_document_is_woken_once_and_asks_once() {
    let wired = Wired::<Consul>::new(LONG).await;
    drop(wired.remote.acquire(1).await.unwrap());
    wired.all_is_back().await;
    let mut holder = wired.other();
    // Far enough behind that it does not look out for the dead.
    let mut line: Vec<_> = (0..3).map(|_| wired.other()).collect();
    holder.request(LIMIT, true).await;
    for waits in &mut line {
        waits.request(1, true).await;
    }
    let before = wired.exchanges();
    let mut waits = pin!(wired.remote.acquire(1));
    assert!(matches!(futures::poll!(waits.as_mut()), Poll::Pending));
    while wired.exchanges() < before + 3 {
        sleep(Duration::from_millis(1)).await;
    }
    // Others come and go without a notification for it.
    for _ in 0..3 {
        let mut passer = wired.other();
        passer.request(1, false).await;
        passer.end().await;
    }
    assert_eq!(
        wired.exchanges() - before,
        3,
        "a read, a write, and its key that is looked at"
    );
    holder.give(LIMIT).await;
    drop(waits.await.unwrap());
}

#[tokio::test]
async fn a_waiter_is_served_though_its_connection_was_cut() {
    let wired = Wired::<Consul>::new(Duration::from_secs(5)).await;
    let mut holder = wired.other();
    holder.request(LIMIT, true).await;
    let mut waits = pin!(wired.remote.acquire(1));
    assert!(matches!(futures::poll!(waits.as_mut()), Poll::Pending));
    while holder.look().await.usage.waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    wired.proxy.set(Mode::Cut);
    holder.give(LIMIT).await;
    wired.proxy.set(Mode::Pass);
    drop(waits.await.unwrap());
}

/// A former waiter for slots is not notified of the changes of others.
#[tokio::test]
async fn a_waiter_that_left_the_slots_is_not_woken() {
    let wired = Wired::<ConsulSlots>::new(LONG).await;
    let mut holder = wired.other();
    holder.request(LIMIT, true).await;
    let mut waits = pin!(wired.remote.acquire(1));
    assert!(matches!(futures::poll!(waits.as_mut()), Poll::Pending));
    while holder.look().await.usage.waiting == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    holder.give(LIMIT).await;
    drop(waits.await.unwrap());
    wired.all_is_back().await;
    let before = wired.exchanges();
    for _ in 0..5 {
        holder.request(1, true).await;
        holder.give(1).await;
    }
    drop(wired.remote.acquire(1).await.unwrap());
    wired.all_is_back().await;
    assert_eq!(
        wired.exchanges() - before,
        4,
        "a read and a write, and two to give back"
    );
}

/// The end was not received at first: the repeated one ends the session in Consul as well.
async fn a_repeated_end_ends_the_session<B: Kind>() {
    let wired = Wired::<B>::new(LONG).await;
    drop(wired.remote.acquire(1).await.unwrap());
    wired.all_is_back().await;
    let keys = ask(
        server(),
        "GET",
        &format!("/v1/kv/tollgate/{}.permits/by/?recurse=true", wired.key),
        "",
    )
    .unwrap();
    let keys: serde_json::Value = serde_json::from_str(&keys).unwrap();
    let session = keys[0]["Session"].as_str().expect("it is locked").to_owned();
    let Wired { proxy, remote, .. } = wired;
    proxy.set(Mode::Cut);
    let mut closes = pin!(remote.close());
    assert!(matches!(futures::poll!(closes.as_mut()), Poll::Pending));
    while remote.stats().failures == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    proxy.set(Mode::Pass);
    while ask(server(), "GET", &format!("/v1/session/info/{session}"), "").unwrap() != "[]" {
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_repeated_end_of_a_document_s_session_ends_it() {
    a_repeated_end_ends_the_session::<Consul>().await;
}

#[tokio::test]
async fn a_repeated_end_of_a_slots_session_ends_it() {
    a_repeated_end_ends_the_session::<ConsulSlots>().await;
}

/// The originals gave up renewals at the first error, and their holders went on.
async fn a_holder_that_is_cut_off<B: Kind>() {
    let wired = Wired::<B>::new(2 * SHORT).await;
    let permit = wired.remote.acquire(LIMIT).await.unwrap();
    let begun = Instant::now();
    wired.proxy.set(Mode::Cut);
    sleep(SHORT / 2).await;
    // One that comes back in time loses nothing.
    wired.proxy.set(Mode::Pass);
    while permit
        .good_for()
        .is_some_and(|good| good <= 2 * SHORT - begun.elapsed())
        && !permit.is_lost()
    {
        sleep(Duration::from_millis(5)).await;
    }
    if begun.elapsed() < SHORT {
        assert!(!permit.is_lost());
    }
    wired.proxy.set(Mode::Blackhole);
    permit.lost().await;
    // It knows before others have it.
    let mut other = wired.other();
    assert_eq!(other.request(1, true).await.grants, []);
    while other.look().await.grants.is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_holder_of_a_document_that_is_cut_off_learns_it_before_its_permit_is_granted_again() {
    a_holder_that_is_cut_off::<Consul>().await;
}

#[tokio::test]
async fn a_holder_of_slots_that_is_cut_off_learns_it_before_its_permit_is_granted_again() {
    a_holder_that_is_cut_off::<ConsulSlots>().await;
}

/// The answer to a write was lost: it may have been done, and is not done again.
async fn a_write_whose_answer_is_lost<B: Kind>() {
    let wired = Wired::<B>::new(Duration::from_secs(8)).await;
    let first = wired.remote.acquire(1).await.unwrap();
    wired.proxy.set(Mode::LoseReplies);
    let mut waits = pin!(wired.remote.acquire(1));
    assert!(matches!(futures::poll!(waits.as_mut()), Poll::Pending));
    while wired.proxy.swallowed() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    wired.proxy.set(Mode::Pass);
    let second = waits.await.unwrap();
    let mut other = wired.other();
    assert_eq!(other.request(1, false).await.usage.in_use, 3);
    drop((first, second));
    while other.look().await.usage.in_use > 1 {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_write_of_a_document_whose_answer_is_lost_is_done_once() {
    a_write_whose_answer_is_lost::<Consul>().await;
}

#[tokio::test]
async fn a_write_of_slots_whose_answer_is_lost_is_done_once() {
    a_write_whose_answer_is_lost::<ConsulSlots>().await;
}

#[tokio::test]
async fn more_than_the_limit_is_refused() {
    let documents = Wired::<Consul>::new(LONG).await;
    let refused = documents.remote.acquire(LIMIT + 1).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Oversized);
    let slots = Wired::<ConsulSlots>::new(LONG).await;
    let refused = slots.remote.acquire(LIMIT + 1).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Oversized);
}

#[tokio::test]
async fn a_limit_that_slots_cannot_have_is_refused() {
    use tollgate::remote::RemoteError;
    let slots = Wired::<ConsulSlots>::new(LONG).await;
    let refused = slots.remote.set_limit(61).await;
    assert!(matches!(refused, Err(RemoteError::Unsupported { .. })), "{refused:?}");
    slots.remote.set_limit(60).await.unwrap();
    drop(slots.remote.acquire(60).await.unwrap());
    slots.all_is_back().await;
}

/// Idle prefetched units go back when others wait for them: at once if the waiter notifies the holder, and with the holder's
/// next renewal otherwise.
async fn a_block_is_spent_locally_and_returned_to_waiters<B: Kind>() {
    let (store, key) = store::<B>();
    let proxy = Proxy::before(server()).await.expect("a proxy");
    let remote = Remote::permits(key.clone(), LIMIT).ttl(3 * SHORT);
    let remote = remote.prefetch(tollgate::remote::Prefetch {
        low: LIMIT,
        turn: Duration::ZERO,
        ..tollgate::remote::Prefetch::up_to(LIMIT)
    });
    let remote = remote.spawn(B::at(proxy.address())).expect("settings that can be");
    drop(remote.acquire(1).await.unwrap());
    while remote.try_acquire(LIMIT).is_err() {
        sleep(Duration::from_millis(1)).await;
    }
    // All of them are here, and a thousand admissions ask the store for none.
    let exchanges = || proxy.exchanges().iter().sum::<u64>();
    let before = exchanges();
    for _ in 0..1_000 {
        drop(remote.try_acquire(LIMIT).unwrap());
    }
    assert!(exchanges() - before < 20, "{}", exchanges() - before);
    let mut other = RawSession::new(&store, &key, Rule::Permits { limit: LIMIT }, LONG);
    other.request(LIMIT, true).await;
    while other.look().await.grants.is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_block_of_a_document_is_spent_locally_and_returned_to_waiters() {
    a_block_is_spent_locally_and_returned_to_waiters::<Consul>().await;
}

#[tokio::test]
async fn a_block_of_slots_is_spent_locally_and_returned_to_waiters() {
    a_block_is_spent_locally_and_returned_to_waiters::<ConsulSlots>().await;
}
