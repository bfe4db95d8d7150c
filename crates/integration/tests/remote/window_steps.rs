//! The line of a window in a real store, a step at a time. The same tests for each store.

use crate::speaker::{LONG, SHORT, Speaker, speakers};
use crate::store::{key, own_unopened};
use std::time::Duration;
use tollgate::remote::{Backend, Rule};

mod redis {
    crate::window_steps::lines!(crate::store::store());
}
mod consul {
    crate::window_steps::lines!(crate::consul_store::store::<tollgate::remote::Consul>().0);
}
mod etcd {
    crate::window_steps::lines!(crate::etcd_steps::store());
}
mod zookeeper {
    crate::window_steps::lines!(crate::zookeeper_steps::store());
}

/// The tests, at the store that `$store` makes.
macro_rules! lines {
    ($store:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::window_steps::$name($store).await;
            }
        )*
    };
    ($store:expr) => {
        $crate::window_steps::lines! {
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
/// Long enough for a few steps, and over soon.
const BRIEF: Duration = Duration::from_secs(2);

fn window(limit: u64, length: Duration) -> Rule {
    Rule::Window { limit, length }
}

pub(crate) async fn a_later_request_gets_the_tokens_that_the_waiters_leave(store: impl Backend) {
    let key = key();
    let [mut full, mut waits, mut later, mut tries] = speakers(&store, &key, window(10, HOUR), [LONG; 4]);
    assert_eq!(full.wish(3, false).await.grants.len(), 1);
    let reply = waits.wish(8, true).await;
    assert_eq!((reply.grants.len(), reply.alive, reply.census.waiting), (0, true, 1));
    let again = reply.again.expect("room comes back");
    assert!(again > HOUR / 2 && again <= HOUR + HOUR / 64, "{again:?}");
    // Seven are free, and an earlier waiter needs eight.
    assert_eq!(later.wish(1, true).await.grants.len(), 0);
    assert_eq!(later.wish(7, false).await.grants.len(), 0);
    // A waiter may ask for less, and keeps its position.
    assert_eq!(waits.wish(2, true).await.grants[0].units, 2);
    // Of five the one is before the rest.
    assert_eq!(tries.wish(5, false).await.grants.len(), 0);
    assert_eq!(tries.wish(4, false).await.grants[0].units, 4);
    assert_eq!(later.wish(1, true).await.grants[0].units, 1);
}

/// It takes more than it needs as far as no other process waits.
pub(crate) async fn a_larger_request_leaves_the_tokens_of_earlier_waiters(store: impl Backend) {
    let key = key();
    let [mut full, mut first, mut second] = speakers(&store, &key, window(10, HOUR), [LONG; 3]);
    assert_eq!(full.wish(6, false).await.grants.len(), 1);
    assert_eq!(first.wish(5, true).await.grants.len(), 0);
    assert_eq!(second.wish(2, true).await.grants.len(), 0);
    let (id, need, want, queue) = (9, 1, 9, true);
    let wishes = vec![tollgate::remote::Wish { id, need, want, queue }];
    let grants = first.say(|step| step.wishes = wishes).await.unwrap().grants;
    assert_eq!(grants[0].units, 2);
    assert_eq!(second.wish(2, true).await.grants[0].units, 2);
}

pub(crate) async fn a_waiter_that_leaves_blocks_none(store: impl Backend) {
    let key = key();
    let [mut full, mut waits, mut ends, mut later] = speakers(&store, &key, window(4, HOUR), [LONG; 4]);
    assert_eq!(full.wish(1, false).await.grants.len(), 1);
    assert_eq!(waits.wish(4, true).await.grants.len(), 0);
    assert_eq!(ends.wish(4, true).await.grants.len(), 0);
    assert_eq!(later.wish(3, false).await.grants.len(), 0);
    ends.end().await;
    let withdrawn = vec![waits.last().wishes[0].id];
    waits
        .say(|step| (step.withdrawn, step.wishes) = (withdrawn, vec![]))
        .await
        .unwrap();
    assert_eq!(later.wish(3, false).await.grants[0].units, 3);
}

/// Its place lasts as long as its session.
pub(crate) async fn a_waiter_that_died_blocks_for_one_time_to_live(store: impl Backend) {
    let key = key();
    let [mut full, mut later] = speakers(&store, &key, window(4, HOUR), [LONG; 2]);
    let mut dies = Speaker::new(&store, &key, window(4, HOUR), BRIEF);
    assert_eq!(full.wish(1, false).await.grants.len(), 1);
    assert_eq!(dies.wish(4, true).await.grants.len(), 0);
    let begun = std::time::Instant::now();
    loop {
        let served = later.wish(3, false).await.grants.len() == 1;
        if served {
            // By the store's clock, and the way there.
            assert!(begun.elapsed() > BRIEF * 9 / 10);
            return;
        }
        tokio::time::sleep(SHORT / 10).await;
    }
}

/// A window of a moment goes with the last who waits; so do all keys.
#[tokio::test]
async fn a_queue_goes_with_its_last_waiter() {
    let (server, store, key) = own_unopened().await;
    let rule = window(1, SHORT);
    let [mut full, mut waits] = speakers(&store, &key, rule, [LONG; 2]);
    assert_eq!(full.wish(1, false).await.grants.len(), 1);
    while waits.wish(1, true).await.grants.is_empty() {
        tokio::time::sleep(SHORT / 10).await;
    }
    full.end().await;
    waits.end().await;
    while !server.keys().unwrap().is_empty() {
        tokio::time::sleep(SHORT / 10).await;
    }
}
