//! The queue of a window in a real store, one sync at a time. The same tests for each store.

use crate::raw_session::{LONG, RawSession, SHORT, raw_sessions};
use crate::store::{key, own_unopened};
use std::time::Duration;
use tollgate::remote::{Backend, Rule};

mod redis {
    crate::window_sync::lines!(crate::store::store());
}

/// The tests, at the store that `$store` makes.
macro_rules! lines {
    ($store:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::window_sync::$name($store).await;
            }
        )*
    };
    ($store:expr) => {
        $crate::window_sync::lines! {
            $store;
            a_later_request_gets_the_tokens_that_the_waiters_leave
            a_larger_request_leaves_the_tokens_of_earlier_waiters
            a_waiter_that_leaves_blocks_none
            a_waiter_that_died_blocks_for_one_time_to_live
        }
    };
}
pub(crate) use lines;

const HOUR: Duration = Duration::from_secs(3_600);
/// Long enough for a few syncs, and over soon.
const BRIEF: Duration = Duration::from_secs(2);

fn window(limit: u64, length: Duration) -> Rule {
    Rule::Window { limit, length }
}

pub(crate) async fn a_later_request_gets_the_tokens_that_the_waiters_leave(store: impl Backend) {
    let key = key();
    let [mut full, mut waits, mut later, mut tries] = raw_sessions(&store, &key, window(10, HOUR), [LONG; 4]);
    assert_eq!(full.request(3, false).await.grants.len(), 1);
    let reply = waits.request(8, true).await;
    assert_eq!((reply.grants.len(), reply.alive, reply.usage.waiting), (0, true, 1));
    let again = reply.again.expect("room comes back");
    assert!(again > HOUR / 2 && again <= HOUR + HOUR / 64, "{again:?}");
    // Seven are free, and an earlier waiter needs eight.
    assert_eq!(later.request(1, true).await.grants.len(), 0);
    assert_eq!(later.request(7, false).await.grants.len(), 0);
    // A waiter in the queue may ask for less, and keeps its place.
    assert_eq!(waits.request(2, true).await.grants[0].units, 2);
    // Of five the one is before the rest.
    assert_eq!(tries.request(5, false).await.grants.len(), 0);
    assert_eq!(tries.request(4, false).await.grants[0].units, 4);
    assert_eq!(later.request(1, true).await.grants[0].units, 1);
}

/// It gets more than it needs as far as no other waits.
pub(crate) async fn a_larger_request_leaves_the_tokens_of_earlier_waiters(store: impl Backend) {
    let key = key();
    let [mut full, mut first, mut second] = raw_sessions(&store, &key, window(10, HOUR), [LONG; 3]);
    assert_eq!(full.request(6, false).await.grants.len(), 1);
    assert_eq!(first.request(5, true).await.grants.len(), 0);
    assert_eq!(second.request(2, true).await.grants.len(), 0);
    let (id, need, want, queue) = (9, 1, 9, true);
    let requests = vec![tollgate::remote::Request { id, need, want, queue }];
    let grants = first.say(|sync| sync.requests = requests).await.unwrap().grants;
    assert_eq!(grants[0].units, 2);
    assert_eq!(second.request(2, true).await.grants[0].units, 2);
}

pub(crate) async fn a_waiter_that_leaves_blocks_none(store: impl Backend) {
    let key = key();
    let [mut full, mut waits, mut ends, mut later] = raw_sessions(&store, &key, window(4, HOUR), [LONG; 4]);
    assert_eq!(full.request(1, false).await.grants.len(), 1);
    assert_eq!(waits.request(4, true).await.grants.len(), 0);
    assert_eq!(ends.request(4, true).await.grants.len(), 0);
    assert_eq!(later.request(3, false).await.grants.len(), 0);
    ends.end().await;
    let withdrawn = vec![waits.last().requests[0].id];
    waits
        .say(|sync| (sync.withdrawn, sync.requests) = (withdrawn, vec![]))
        .await
        .unwrap();
    assert_eq!(later.request(3, false).await.grants[0].units, 3);
}

/// Its place lasts as long as its session.
pub(crate) async fn a_waiter_that_died_blocks_for_one_time_to_live(store: impl Backend) {
    let key = key();
    let [mut full, mut later] = raw_sessions(&store, &key, window(4, HOUR), [LONG; 2]);
    let mut dies = RawSession::new(&store, &key, window(4, HOUR), BRIEF);
    assert_eq!(full.request(1, false).await.grants.len(), 1);
    assert_eq!(dies.request(4, true).await.grants.len(), 0);
    let begun = std::time::Instant::now();
    loop {
        let served = later.request(3, false).await.grants.len() == 1;
        if served {
            // By the store's clock, and the way there.
            assert!(begun.elapsed() > BRIEF * 9 / 10);
            return;
        }
        tokio::time::sleep(SHORT / 10).await;
    }
}

/// A short window goes with its last waiter; so do all keys.
#[tokio::test]
async fn a_queue_goes_with_its_last_waiter() {
    let (server, store, key) = own_unopened().await;
    let rule = window(1, SHORT);
    let [mut full, mut waits] = raw_sessions(&store, &key, rule, [LONG; 2]);
    assert_eq!(full.request(1, false).await.grants.len(), 1);
    while waits.request(1, true).await.grants.is_empty() {
        tokio::time::sleep(SHORT / 10).await;
    }
    full.end().await;
    waits.end().await;
    while !server.keys().unwrap().is_empty() {
        tokio::time::sleep(SHORT / 10).await;
    }
}
