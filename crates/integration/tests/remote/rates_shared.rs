//! Rates and windows that several processes share, at stores that keep them: the same tests for each of them.

use crate::change::changes;
use crate::places::Place;
use crate::raw_session::{LONG, RawSession, SHORT};
use crate::rig::proxy::{Mode, Proxy};
use crate::store::key;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tollgate::Quota;
use tollgate::remote::{Key, Prefetch, Remote, Rule, StoreError};

macro_rules! shared {
    ($place:ty) => {
        $crate::places::tests! {
            rates_shared, $place;
            processes_that_are_in_each_others_way_have_the_rate_and_no_more
            a_window_of_several_processes_has_its_limit
            a_block_is_spent_without_the_store
            a_sync_whose_answer_was_lost_counts_once
            a_closed_limiter_leaves_nothing_behind
            a_dead_process_leaves_nothing_behind
            a_live_process_removes_the_keys_of_the_dead
            a_window_of_another_length_under_the_same_name_is_refused
            a_quota_is_changed_for_every_process
            a_faster_rate_serves_the_waiters_too
            a_window_is_changed_for_every_process
            an_impossible_change_is_an_error
            rules_that_differ_are_reported
            an_impossible_waiter_holds_up_no_other_in_a_lowered_window
        }
    };
}
pub(crate) use shared;

/// The shortest wait for an event at the store.
async fn pause() {
    sleep(Duration::from_millis(2)).await;
}

/// Waits until nothing is left at the store.
async fn nothing_left<P: Place>(key: &Key) {
    while P::keys(key).await > 0 {
        pause().await;
    }
}

fn hourly(burst: u64) -> Quota {
    Quota::per_hour(1).burst(burst)
}

/// All of them together, from before the first until after the last.
pub(crate) async fn processes_that_are_in_each_others_way_have_the_rate_and_no_more<P: Place>() {
    const BURST: u64 = 20;
    const RATE: u64 = 200;
    let key = key();
    let quota = Quota::per_second(RATE).burst(BURST);
    let begun = Instant::now();
    let mut processes = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let remote = Remote::rate(key.clone(), quota).ttl(LONG).spawn(P::store()).unwrap();
        processes.spawn(async move {
            for _ in 0..30 {
                drop(remote.acquire(1).await.unwrap());
            }
            remote
        });
    }
    let remotes = processes.join_all().await;
    // Each microsecond of the true time that it took at least.
    let most = BURST as f64 + RATE as f64 * begun.elapsed().as_secs_f64();
    assert!(120.0 <= most, "120 of {most}");
    for remote in remotes {
        remote.close().await;
    }
    nothing_left::<P>(&key).await;
}

pub(crate) async fn a_window_of_several_processes_has_its_limit<P: Place>() {
    const LIMIT: u64 = 10;
    let (key, length) = (key(), Duration::from_millis(400));
    let begun = Instant::now();
    let mut processes = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let window = Remote::window(key.clone(), LIMIT, length).ttl(LONG);
        let remote = window.spawn(P::store()).unwrap();
        processes.spawn(async move {
            for _ in 0..10 {
                drop(remote.acquire(1).await.unwrap());
            }
            remote
        });
    }
    let remotes = processes.join_all().await;
    // Thirty: the last ten of them two windows after the first at least.
    assert!(begun.elapsed() >= 2 * length, "{:?}", begun.elapsed());
    for remote in remotes {
        remote.close().await;
    }
    nothing_left::<P>(&key).await;
}

pub(crate) async fn a_block_is_spent_without_the_store<P: Place>() {
    let (key, store) = (key(), P::store());
    let proxy = Proxy::before(P::server()).await.expect("a proxy");
    let prefetch = Prefetch {
        low: 50,
        expiry: LONG,
        ..Prefetch::up_to(50)
    };
    let remote = Remote::rate(key.clone(), hourly(60)).ttl(LONG).prefetch(prefetch);
    let remote = remote.spawn(P::at(proxy.address())).unwrap();
    drop(remote.acquire(1).await.unwrap());
    while remote.stats().available_here < 50 {
        pause().await;
    }
    let syncs = remote.stats().syncs;
    for _ in 0..50 {
        drop(remote.try_acquire(1).expect("it is here"));
    }
    assert_eq!(remote.stats().syncs, syncs);
    // Its prefetched tokens are out of reach of others: of sixty it had fifty-one, and takes the rest.
    while remote.stats().available_here < 9 {
        pause().await;
    }
    let mut other = RawSession::new(&store, &key, Rule::Rate { quota: hourly(60) }, LONG);
    assert_eq!(other.request(1, false).await.grants, []);
}

/// It is repeated, and was carried out.
pub(crate) async fn a_sync_whose_answer_was_lost_counts_once<P: Place>() {
    let (key, store) = (key(), P::store());
    let proxy = Proxy::before(P::server()).await.expect("a proxy");
    let quota = hourly(100);
    let remote = Remote::rate(key.clone(), quota).ttl(LONG);
    let remote = remote
        .timeout(Duration::from_millis(300))
        .retry(Duration::from_millis(10));
    let remote = remote.spawn(P::at(proxy.address())).unwrap();
    for _ in 0..3 {
        // There are no rivals, so that the next sync is a write, without a read before it.
        drop(remote.acquire(1).await.unwrap());
        let (failures, swallowed) = (remote.stats().failures, proxy.swallowed());
        proxy.set(Mode::LoseReplies);
        let heals = async {
            while remote.stats().failures == failures || proxy.swallowed() == swallowed {
                pause().await;
            }
            proxy.set(Mode::Pass);
        };
        let (permit, ()) = tokio::join!(remote.acquire(1), heals);
        drop(permit.unwrap());
    }
    let mut other = RawSession::new(&store, &key, Rule::Rate { quota }, LONG);
    assert_eq!(other.look().await.usage.in_use, 6);
}

pub(crate) async fn a_closed_limiter_leaves_nothing_behind<P: Place>() {
    let key = key();
    let quota = Quota::per_second(100).burst(10);
    let remote = Remote::rate(key.clone(), quota).ttl(LONG).spawn(P::store()).unwrap();
    drop(remote.acquire(10).await.unwrap());
    assert!(P::keys(&key).await > 0);
    // A tenth of a second later, though it might have lived for long.
    remote.close().await;
    drop(remote);
    nothing_left::<P>(&key).await;
}

pub(crate) async fn a_dead_process_leaves_nothing_behind<P: Place>() {
    let (key, store) = (key(), P::store());
    let quota = Quota::per_second(100).burst(10);
    let mut one = RawSession::new(&store, &key, Rule::Rate { quota }, 5 * SHORT);
    assert_eq!(one.request(10, false).await.grants.len(), 1);
    drop(one);
    nothing_left::<P>(&key).await;
}

/// The runtime of the other one ends, and with it its collector.
pub(crate) async fn a_live_process_removes_the_keys_of_the_dead<P: Place>() {
    let (key, store) = (key(), P::store());
    let quota = Quota::per_second(100).burst(10);
    let mut one = RawSession::new(&store, &key, Rule::Rate { quota }, 5 * SHORT);
    one.request(1, false).await;
    let theirs = key.clone();
    let dies = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let store = P::store();
            let mut other = RawSession::new(&store, &theirs, Rule::Rate { quota }, 5 * SHORT);
            assert_eq!(other.request(1, false).await.grants.len(), 1);
        });
    });
    tokio::task::spawn_blocking(|| dies.join())
        .await
        .unwrap()
        .expect("it was granted");
    nothing_left::<P>(&key).await;
}

pub(crate) async fn a_window_of_another_length_under_the_same_name_is_refused<P: Place>() {
    let (store, key) = (P::store(), key());
    let window = |length| Rule::Window { limit: 5, length };
    let mut one = RawSession::new(&store, &key, window(LONG), LONG);
    one.request(1, false).await;
    let refused = RawSession::new(&store, &key, window(LONG / 2), LONG).say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

fn spawned<P: Place>(builder: tollgate::remote::RemoteBuilder) -> Remote<P::Store> {
    builder.ttl(LONG).spawn(P::store()).expect("settings that can be")
}

pub(crate) async fn a_quota_is_changed_for_every_process<P: Place>() {
    changes::a_quota_is_changed_for_every_process(&key(), spawned::<P>).await;
}

pub(crate) async fn a_faster_rate_serves_the_waiters_too<P: Place>() {
    changes::a_faster_rate_serves_the_waiters_too(&key(), spawned::<P>).await;
}

pub(crate) async fn a_window_is_changed_for_every_process<P: Place>() {
    changes::a_window_is_changed_for_every_process(&key(), spawned::<P>).await;
}

pub(crate) async fn an_impossible_waiter_holds_up_no_other_in_a_lowered_window<P: Place>() {
    changes::an_impossible_waiter_holds_up_no_other_in_a_lowered_window(&key(), spawned::<P>).await;
}

pub(crate) async fn rules_that_differ_are_reported<P: Place>() {
    changes::rules_that_differ_are_reported(&key(), spawned::<P>).await;
}

pub(crate) async fn an_impossible_change_is_an_error<P: Place>() {
    changes::an_impossible_change_is_an_error(&key(), spawned::<P>).await;
}
