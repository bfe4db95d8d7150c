//! Changes while running, in the store of reference. In virtual time.

#[path = "../../../crates/integration/tests/remote/changes.rs"]
mod changes;

use crate::remote::world::{World, now, poll};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{
    Backend, Key, Memory, OnUnavailable, Prefetch, Remote, RemoteBuilder, Rule, Session, StoreError, SyncReply,
    SyncRequest,
};
use tollgate::{Ask, Cost, LimiterExt, Policy, Quota, Reason};

fn quota(burst: u64) -> Quota {
    Quota::per_hour(1).burst(burst)
}

#[test]
fn a_quota_is_changed_for_every_process() {
    let world = World::new();
    let make = |builder| world.make(builder);
    world
        .clock
        .run(changes::a_quota_is_changed_for_every_process(&world.key, make));
}

#[test]
fn a_faster_rate_serves_the_waiters_too() {
    let world = World::new();
    let make = |builder| world.make(builder);
    world
        .clock
        .run(changes::a_faster_rate_serves_the_waiters_too(&world.key, make));
}

#[test]
fn a_window_is_changed_for_every_process() {
    let world = World::new();
    let make = |builder| world.make(builder);
    world
        .clock
        .run(changes::a_window_is_changed_for_every_process(&world.key, make));
}

#[test]
fn an_impossible_change_is_an_error() {
    let world = World::new();
    let make = |builder| world.make(builder);
    world
        .clock
        .run(changes::an_impossible_change_is_an_error(&world.key, make));
}

#[test]
fn an_impossible_head_is_refused_when_the_limit_is_lowered() {
    for prefetch in [
        None,
        Some(Prefetch {
            turn: Duration::ZERO,
            ..Prefetch::up_to(4)
        }),
    ] {
        let world = World::new();
        let make = |builder: RemoteBuilder| match prefetch {
            None => world.make(builder),
            Some(prefetch) => world.make(builder.prefetch(prefetch)),
        };
        let changed = changes::an_impossible_head_is_refused_when_the_limit_is_lowered(&world.key, make);
        world.clock.run(changed);
    }
}

/// With blocks the waiters of one process have a queue of its own.
#[test]
fn an_impossible_head_in_the_queue_of_a_process_is_refused_too() {
    let world = World::new();
    let one = world.make(Remote::permits(world.key.clone(), 4).prefetch(Prefetch::up_to(4)));
    let held = now(one.acquire(2)).unwrap();
    let (mut four, mut next) = (pin!(one.acquire(4)), pin!(one.acquire(1)));
    assert!(poll(four.as_mut()).is_pending() && poll(next.as_mut()).is_pending());
    now(one.set_limit(3)).unwrap();
    let Poll::Ready(Err(refused)) = poll(four) else {
        panic!("it waits")
    };
    assert_eq!(refused.reason(), Reason::Oversized);
    assert!(poll(next).is_ready() && !held.is_lost());
}

#[test]
fn rules_that_differ_are_reported() {
    let world = World::new();
    let make = |builder| world.make(builder);
    world
        .clock
        .run(changes::rules_that_differ_are_reported(&world.key, make));
}

#[test]
fn an_impossible_waiter_holds_up_no_other_in_a_lowered_window() {
    let world = World::new();
    let make = |builder| world.make(builder);
    let changed = changes::an_impossible_waiter_holds_up_no_other_in_a_lowered_window(&world.key, make);
    world.clock.run(changed);
}

#[test]
fn a_change_outlives_a_store_that_forgets_and_a_rest_of_less_than_a_day() {
    let world = World::new();
    let rate = || world.make(Remote::rate(world.key.clone(), quota(3)));
    world.clock.run(async {
        let one = rate();
        one.set_quota(quota(8)).await.unwrap();
        world.store.clear();
        drop(one.acquire(1).await.unwrap());
        let other = rate();
        drop(other.acquire(7).await.unwrap());
        other.close().await;
        one.close().await;
    });
    // No process is left that knows it, and the bucket is full again.
    world.clock.advance(Rule::REMEMBERED - Duration::from_secs(1));
    world.clock.run(async {
        let late = rate();
        drop(late.acquire(8).await.unwrap());
        late.close().await;
    });
    world.clock.advance(Rule::REMEMBERED);
    assert_eq!(world.store.keys(), 0);
    world.clock.run(async {
        let later = rate();
        assert!(later.acquire(8).await.is_err());
        drop(later.acquire(3).await.unwrap());
    });
}

/// The share of a process that cannot reach the store is of the current quota, not of the initial one.
#[test]
fn a_change_counts_while_the_store_is_away_and_for_blocks() {
    let world = World::new();
    world.clock.run(async {
        let builder = Remote::rate(world.key.clone(), quota(10));
        let prefetch = Prefetch {
            expiry: Duration::from_secs(60),
            ..Prefetch::up_to(10)
        };
        let remote = world.make(
            builder
                .prefetch(prefetch)
                .on_unavailable(OnUnavailable::Share { of: 2 }),
        );
        drop(remote.acquire(1).await.unwrap());
        let other = world.make(Remote::rate(world.key.clone(), quota(10)));
        other.set_quota(quota(100)).await.unwrap();
        assert_eq!(remote.rule(), Rule::Rate { quota: quota(10) }, "it has not asked since");
        drop(remote.acquire(90).await.unwrap());
        assert_eq!(
            (remote.rule(), remote.stats().limit),
            (Rule::Rate { quota: quota(100) }, 100)
        );
    });
}

/// A limit that was raised elsewhere while this process had nothing to do with it.
#[test]
fn a_stale_limit_refuses_no_caller() {
    let world = World::new();
    let permits = || world.make(Remote::permits(world.key.clone(), 2).ttl(Duration::from_secs(3)));
    world.clock.run(async {
        let (one, other) = (permits(), permits());
        drop(one.acquire(1).await.unwrap());
        // Just heard: the store need not be asked.
        let ask = Ask::one().cost(Cost::new("units"), 3);
        let policy = Policy::builder().on(&world.clock).limit(one.per(Cost::new("units")));
        let policy = policy.build().unwrap();
        assert_eq!(policy.try_admit(ask).unwrap_err().reason(), Reason::Oversized);
        let held = other.acquire(1).await.unwrap();
        other.set_limit(3).await.unwrap();
        world.clock.advance(Duration::from_secs(60));
        drop(held);
        drop(policy.admit(ask).await.unwrap());
        other.set_limit(2).await.unwrap();
        world.clock.advance(Duration::from_secs(60));
        assert_eq!(policy.admit(ask).await.unwrap_err().reason(), Reason::Oversized);
        let third = permits();
        drop(third.acquire(1).await.unwrap());
        other.set_limit(5).await.unwrap();
        drop(third.acquire(5).await.unwrap());
    });
}

/// A line to the store on which the answer to the first change is lost, and another process makes a change meanwhile.
struct Lossy {
    store: Arc<Memory>,
    other: Remote<Arc<Memory>>,
    changes: AtomicU32,
}

impl Backend for Lossy {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let reply = self.store.sync(key, rule, sync).await;
        if sync.change.is_some() && self.changes.fetch_add(1, Ordering::Relaxed) == 0 {
            match rule {
                Rule::Rate { .. } => self.other.set_quota(quota(30)).await.unwrap(),
                _ => self.other.set_limit(30).await.unwrap(),
            }
            return Err(StoreError::Unreachable {
                why: "it was lost".into(),
            });
        }
        reply
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.store.notified(key, session).await;
    }
}

/// It was carried out, and is said again: the later one stays.
#[test]
fn a_change_whose_answer_was_lost_is_made_once() {
    let hour = Duration::from_secs(3_600);
    for rate in [true, false] {
        let world = World::new();
        let build = || match rate {
            true => Remote::rate(world.key.clone(), quota(10)),
            false => Remote::window(world.key.clone(), 10, hour),
        };
        let backend = Arc::new(Lossy {
            store: Arc::clone(&world.store),
            other: world.make(build()),
            changes: AtomicU32::new(0),
        });
        let one = build().on(&world.clock).in_place(Arc::clone(&backend)).unwrap();
        world.clock.run(async {
            if rate {
                one.set_quota(quota(20)).await.unwrap();
            } else {
                one.set_limit(20).await.unwrap();
            }
        });
        assert_eq!(backend.changes.load(Ordering::Relaxed), 2, "it was said again");
        let late = world.make(build());
        world.clock.run(async { drop(late.acquire(30).await.unwrap()) });
        assert_eq!((one.stats().limit, late.stats().limit), (30, 30));
    }
}
