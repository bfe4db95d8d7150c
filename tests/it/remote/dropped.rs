//! A driver that is dropped before its limiter, as with its runtime: each wait for it ends, and the limiter is closed.

use crate::remote::keyed::bucket;
use crate::remote::world::{World, now, poll};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{
    Backend, Driver, Key, KeyedLimits, Memory, Remote, RemoteBuilder, RemoteError, RemoteKeyed, RemoteLeg, Rule,
    Session, StoreError, SyncReply, SyncRequest,
};
use tollgate::{Ask, Clock, LimiterExt, Policy, Quota, Reason};

const TTL: Duration = Duration::from_secs(9);
const HOUR: Duration = Duration::from_secs(3_600);

/// One limiter of each kind. Each has at most one unit for a long time.
fn kinds() -> [RemoteBuilder; 5] {
    let key = || Key::new("shared").unwrap();
    let hourly = Quota::per_hour(1);
    [
        Remote::permits(key(), 1),
        Remote::permits(key(), 1).prefetch(tollgate::remote::Prefetch::up_to(1)),
        Remote::rate(key(), hourly),
        Remote::window(key(), 1, HOUR),
        Remote::rate(key(), Quota::per_second(1)).capacity(),
    ]
}

impl World {
    /// A limiter whose driver is polled by hand.
    fn by_hand(&self, builder: RemoteBuilder) -> (Remote<Arc<Memory>>, Driver) {
        builder.ttl(TTL).on(&self.clock).build(Arc::clone(&self.store)).unwrap()
    }

    fn keyed(&self) -> (RemoteKeyed<Arc<Memory>>, Driver) {
        let legs = [bucket("requests", "60/h burst 60"), RemoteLeg::permits("slots", 1)];
        let spec = KeyedLimits::new(100, "all", legs);
        let keyed = Remote::keyed(Key::new("t").unwrap(), spec).ttl(TTL).on(&self.clock);
        keyed.build(Arc::clone(&self.store)).unwrap()
    }
}

#[test]
fn asks_of_a_limiter_whose_driver_never_ran_are_refused_as_closed() {
    for builder in kinds() {
        let world = World::new();
        let (remote, driver) = world.by_hand(builder);
        drop(driver);
        assert_eq!(now(remote.acquire(1)).unwrap_err().reason(), Reason::Closed);
        assert_eq!(now(remote.acquire_now(1)).unwrap_err().reason(), Reason::Closed);
        assert_eq!(remote.try_acquire(1).unwrap_err().reason(), Reason::Closed);
        assert_eq!(remote.try_admit(1).unwrap_err().reason(), Reason::Closed);
    }
}

#[test]
fn waits_end_as_closed_when_the_driver_is_dropped() {
    for builder in kinds() {
        let world = World::new();
        let other = world.make(builder.clone().ttl(TTL));
        let held = world.clock.run(other.acquire(1)).unwrap();
        let (remote, driver) = world.by_hand(builder);
        let remote = Arc::new(remote);
        let policy = Policy::builder()
            .on(&world.clock)
            .limit(Arc::clone(&remote))
            .build()
            .unwrap();
        let mut driver = Box::pin(driver);
        let (mut direct, mut queued) = (pin!(remote.acquire(1)), pin!(policy.admit(Ask::one())));
        let mut behind = pin!(policy.admit(Ask::one()));
        for _ in 0..3 {
            assert!(poll(direct.as_mut()).is_pending() && poll(queued.as_mut()).is_pending());
            assert!(poll(behind.as_mut()).is_pending() && poll(driver.as_mut()).is_pending());
        }
        drop(driver);
        let Poll::Ready(Err(refused)) = poll(direct.as_mut()) else {
            panic!("{remote:?}: the wait goes on")
        };
        assert_eq!(refused.reason(), Reason::Closed);
        for wait in [queued, behind] {
            let Poll::Ready(Err(refused)) = poll(wait) else {
                panic!("{remote:?}: the wait in the policy goes on")
            };
            assert_eq!(refused.reason(), Reason::Closed);
        }
        drop(held);
    }
}

#[test]
fn changes_and_close_end_when_the_driver_is_dropped() {
    let world = World::new();
    let (remote, driver) = world.by_hand(Remote::permits(Key::new("shared").unwrap(), 1));
    {
        let (mut change, mut close) = (pin!(remote.set_limit(2)), pin!(remote.close()));
        assert!(poll(change.as_mut()).is_pending() && poll(close.as_mut()).is_pending());
        drop(driver);
        assert_eq!(poll(change.as_mut()), Poll::Ready(Err(RemoteError::Closed)));
        assert!(poll(close.as_mut()).is_ready());
    }
    assert_eq!(now(remote.set_limit(3)), Err(RemoteError::Closed));
    now(remote.close());
}

#[test]
fn permits_stay_valid_until_their_lease_ends_after_the_driver_was_dropped() {
    let world = World::new();
    let (remote, driver) = world.by_hand(Remote::permits(Key::new("shared").unwrap(), 2));
    let mut driver = Box::pin(driver);
    let mut acquire = pin!(remote.acquire(1));
    assert!(poll(acquire.as_mut()).is_pending() && poll(driver.as_mut()).is_pending());
    let Poll::Ready(Ok(held)) = poll(acquire.as_mut()) else {
        panic!("one is free")
    };
    // Granted, and not taken by its waiter before the lease has ended.
    let mut late = pin!(remote.acquire(1));
    assert!(poll(late.as_mut()).is_pending() && poll(driver.as_mut()).is_pending());
    drop(driver);
    assert!(!held.is_lost());
    let mut lost = pin!(held.lost());
    assert!(poll(lost.as_mut()).is_pending());
    world.clock.advance(TTL);
    assert!(held.is_lost() && poll(lost.as_mut()).is_ready());
    let Poll::Ready(Err(refused)) = poll(late.as_mut()) else {
        panic!("it waits for a driver that has gone")
    };
    assert_eq!(refused.reason(), Reason::Closed);
}

#[test]
fn keys_are_closed_when_the_driver_is_dropped() {
    let world = World::new();
    let (other, runs) = world.keyed();
    runs.in_place();
    let held = world.clock.run(other.get("acme").unwrap().acquire(1)).unwrap();
    let (keyed, driver) = world.keyed();
    let mut driver = Box::pin(driver);
    let acme = keyed.get("acme").unwrap();
    let policy = Policy::builder().on(&world.clock).limit(acme.clone()).build().unwrap();
    let (mut direct, mut queued) = (pin!(acme.acquire(1)), pin!(policy.admit(Ask::one())));
    for _ in 0..3 {
        assert!(poll(direct.as_mut()).is_pending() && poll(queued.as_mut()).is_pending());
        assert!(poll(driver.as_mut()).is_pending());
    }
    let (mut usage, mut close) = (pin!(acme.usage()), pin!(keyed.close()));
    assert!(poll(usage.as_mut()).is_pending());
    drop(driver);
    let Poll::Ready(Err(refused)) = poll(direct.as_mut()) else {
        panic!("the wait goes on")
    };
    assert_eq!(refused.reason(), Reason::Closed);
    let Poll::Ready(Err(refused)) = poll(queued.as_mut()) else {
        panic!("the wait in the policy goes on")
    };
    assert_eq!(refused.reason(), Reason::Closed);
    assert_eq!(
        poll(usage.as_mut()).map(Result::err),
        Poll::Ready(Some(RemoteError::Closed))
    );
    assert_eq!(acme.try_admit(1).unwrap_err().reason(), Reason::Closed);
    assert_eq!(now(acme.acquire_now(1)).unwrap_err().reason(), Reason::Closed);
    assert!(poll(close.as_mut()).is_ready());
    drop(held);
}

/// Given a waiter of a policy that waits for the instant at which a rate has room, then it ends at once, and not at that instant.
#[test]
fn a_wait_for_an_instant_ends_when_the_driver_is_dropped() {
    let world = World::new();
    let spec = KeyedLimits::new(100, "all", [bucket("requests", "1/h")]);
    let keyed = Remote::keyed(Key::new("t").unwrap(), spec).on(&world.clock);
    let (keyed, driver) = keyed.build(Arc::clone(&world.store)).unwrap();
    let mut driver = Box::pin(driver);
    let policy = Policy::builder()
        .on(&world.clock)
        .limit(keyed.get("acme").unwrap())
        .build()
        .unwrap();
    let (mut first, mut second) = (pin!(policy.admit(Ask::one())), pin!(policy.admit(Ask::one())));
    for _ in 0..3 {
        assert!(poll(driver.as_mut()).is_pending());
        _ = poll(first.as_mut()).map(drop);
        assert!(poll(second.as_mut()).is_pending());
        if keyed.stats().admitted == 1 {
            break;
        }
    }
    for _ in 0..3 {
        assert!(poll(second.as_mut()).is_pending() && poll(driver.as_mut()).is_pending());
    }
    drop(driver);
    let Poll::Ready(Err(refused)) = poll(second.as_mut()) else {
        panic!("it waits for its instant")
    };
    assert_eq!(refused.reason(), Reason::Closed);
}

/// A store that panics.
struct Broken;

impl Backend for Broken {
    async fn sync(&self, _: &Key, _: &Rule, _: &SyncRequest) -> Result<SyncReply, StoreError> {
        panic!("a fault of the store")
    }

    async fn notified(&self, _: &Key, _: Session) {}
}

#[test]
fn waits_end_as_closed_when_the_driver_has_panicked() {
    let world = World::new();
    let builder = Remote::permits(Key::new("shared").unwrap(), 1).on(&world.clock);
    let (remote, mut driver) = builder.build(Broken).unwrap();
    let mut wait = pin!(remote.acquire(1));
    assert!(poll(wait.as_mut()).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| poll(pin!(&mut driver)))).is_err());
    let Poll::Ready(Err(refused)) = poll(wait.as_mut()) else {
        panic!("the wait goes on")
    };
    assert_eq!(refused.reason(), Reason::Closed);
}

#[test]
fn a_limiter_of_a_runtime_that_has_ended_is_closed_in_the_next_one() {
    static LIMIT: OnceLock<Remote<Memory>> = OnceLock::new();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap()
    };
    let ask = async || {
        let build = || {
            let builder = Remote::permits(Key::new("static").unwrap(), 2);
            builder.spawn(Memory::new(&Clock::real())).unwrap()
        };
        let answer = LIMIT.get_or_init(build).acquire(1).await;
        answer.map(drop).map_err(|refused| refused.reason())
    };
    assert_eq!(runtime().block_on(ask()), Ok(()));
    assert_eq!(runtime().block_on(ask()), Err(Reason::Closed));
}
