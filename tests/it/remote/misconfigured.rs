//! A store that refuses for good, as where a right is missing: it is not away. In virtual time.

use crate::remote::keyed::{self, Fault, Line, bucket};
use crate::remote::world::{now, poll};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{
    Backend, Key, KeyedLimits, Memory, Notification, OnUnavailable, Remote, RemoteBuilder, RemoteError, RemoteKeyed,
    RemoteLeg, Rule, Session, StoreError, SyncReply, SyncRequest,
};
use tollgate::{Ask, Cost, LimiterExt, ManualClock, Policy, Quota, Reason};

const TTL: Duration = Duration::from_secs(9);
const SECOND: Duration = Duration::from_secs(1);

/// A store in memory whose syncs fail with an error, while there is one.
struct Failing {
    store: Memory,
    error: Mutex<Option<StoreError>>,
}

impl Failing {
    fn set(&self, error: Option<StoreError>) {
        *self.error.lock().unwrap() = error;
    }
}

impl Backend for Failing {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let error = self.error.lock().unwrap().clone();
        match error {
            Some(error) => Err(error),
            None => self.store.sync(key, rule, sync).await,
        }
    }

    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        self.store.notified(key, session)
    }

    fn notification(&self, key: &Key, session: Session) -> Notification {
        self.store.notification(key, session)
    }
}

fn forbidden() -> Option<StoreError> {
    let why = "no right to run scripts".into();
    Some(StoreError::Refused { why })
}

fn away() -> Option<StoreError> {
    let why = "connection refused".into();
    Some(StoreError::Unreachable { why })
}

struct World {
    clock: ManualClock,
    store: Arc<Failing>,
}

impl World {
    fn new(error: Option<StoreError>) -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000 * SECOND);
        let (store, error) = (Memory::new(&clock), Mutex::new(error));
        let store = Arc::new(Failing { store, error });
        Self { clock, store }
    }

    fn build(&self, builder: RemoteBuilder) -> Remote<Arc<Failing>> {
        builder
            .ttl(TTL)
            .on(&self.clock)
            .in_place(Arc::clone(&self.store))
            .unwrap()
    }
}

fn key() -> Key {
    Key::new("shared").unwrap()
}

const CHOICES: [OnUnavailable; 3] = [
    OnUnavailable::Reject,
    OnUnavailable::Admit,
    OnUnavailable::Share { of: 1 },
];

#[test]
fn a_store_that_refuses_for_good_admits_nothing() {
    for choice in CHOICES {
        for builder in [
            Remote::permits(key(), 5),
            Remote::rate(key(), Quota::per_second(5)),
            Remote::window(key(), 5, SECOND),
        ] {
            let world = World::new(forbidden());
            let remote = world.build(builder.on_unavailable(choice));
            for _ in 0..100 {
                let refused = now(remote.acquire(1)).unwrap_err();
                assert_eq!(refused.reason(), Reason::Misconfigured, "{choice:?}");
                assert_eq!(now(remote.acquire_now(1)).unwrap_err().reason(), Reason::Misconfigured);
                assert_eq!(remote.try_admit(1).unwrap_err().reason(), Reason::Misconfigured);
                world.clock.advance(SECOND * 3 / 5);
            }
            let stats = remote.stats();
            assert_eq!((stats.admitted, stats.admitted_unavailable), (0, 0));
            assert_eq!((stats.unavailable, stats.last_error), (false, forbidden()));
            // Cured, it is found without a request.
            world.store.set(None);
            world.clock.advance(SECOND);
            assert!(now(remote.acquire(1)).is_ok(), "{choice:?}");
        }
    }
}

#[test]
fn waits_end_at_once_when_the_store_refuses_for_good() {
    let world = World::new(None);
    let other = world.build(Remote::permits(key(), 1));
    let remote = world.build(Remote::permits(key(), 1).on_unavailable(OnUnavailable::Admit));
    let policy = Policy::builder().on(&world.clock).limit(remote).build().unwrap();
    let held = now(other.acquire(1)).unwrap();
    let mut waits = pin!(policy.admit(Ask::one()));
    assert!(poll(waits.as_mut()).is_pending());
    world.store.set(forbidden());
    world.clock.advance(TTL / 3);
    let Poll::Ready(Err(refused)) = poll(waits.as_mut()) else {
        panic!("the wait goes on")
    };
    assert_eq!((refused.reason(), refused.leg()), (Reason::Misconfigured, "shared"));
    // What is held stays valid until the lease ends.
    assert!(!held.is_lost());
    world.clock.advance(TTL);
    assert!(held.is_lost());
}

#[test]
fn a_store_that_refuses_and_then_goes_away_is_away() {
    let world = World::new(forbidden());
    let remote = world.build(Remote::permits(key(), 5).on_unavailable(OnUnavailable::Admit));
    assert_eq!(now(remote.acquire(1)).unwrap_err().reason(), Reason::Misconfigured);
    world.store.set(away());
    world.clock.advance(TTL / 3 - SECOND);
    assert_eq!(now(remote.acquire(1)).unwrap_err().reason(), Reason::Misconfigured);
    world.clock.advance(2 * SECOND);
    assert!(now(remote.acquire(1)).is_ok(), "this is what was chosen");
    assert_eq!(remote.stats().admitted_unavailable, 1);
    world.store.set(forbidden());
    world.clock.advance(2 * SECOND);
    assert_eq!(now(remote.acquire(1)).unwrap_err().reason(), Reason::Misconfigured);
}

#[test]
fn a_change_that_the_store_refuses_ends_with_its_reason() {
    let world = World::new(forbidden());
    let remote = world.build(Remote::permits(key(), 5));
    let why = "no right to run scripts".into();
    assert_eq!(now(remote.set_limit(6)), Err(RemoteError::Refused { why }));
    world.store.set(None);
    world.clock.advance(SECOND);
    assert_eq!(remote.stats().limit, 6, "it is carried out once it can be");
}

/// Ten calls a second of each key, and two in flight.
fn keyed(world: &keyed::World, choice: OnUnavailable) -> RemoteKeyed<Arc<Line>> {
    let legs = [bucket("requests", "10/s burst 10"), RemoteLeg::permits("in-flight", 2)];
    let builder = world.builder(KeyedLimits::new(100, "all", legs));
    let builder = builder.ttl(TTL).on_unavailable(choice);
    builder.in_place(Arc::clone(&world.line)).unwrap()
}

#[test]
fn a_key_that_the_store_refuses_for_good_is_misconfigured_and_no_other() {
    for choice in [OnUnavailable::Reject, OnUnavailable::Admit] {
        let world = keyed::World::new();
        world.line.only(&["t:a"]);
        world.line.set(Fault::Refused);
        let limits = keyed(&world, choice);
        let (a, b) = (limits.get("a").unwrap(), limits.get("b").unwrap());
        for _ in 0..20 {
            assert_eq!(now(a.acquire_now(1)).unwrap_err().reason(), Reason::Misconfigured);
            assert_eq!(now(a.acquire(1)).unwrap_err().reason(), Reason::Misconfigured);
            assert!(matches!(limits.stats().last_error, Some(StoreError::Refused { .. })));
            assert!(matches!(now(a.usage()), Err(RemoteError::Refused { .. })));
            drop(now(b.acquire_now(1)).unwrap());
            world.clock.advance(SECOND);
        }
        let stats = limits.stats();
        assert_eq!(
            (stats.admitted, stats.admitted_unavailable, stats.unavailable),
            (20, 0, false)
        );
        world.line.set(Fault::None);
        world.clock.advance(SECOND);
        drop(now(a.acquire(1)).unwrap());
        assert_eq!((limits.stats().keys, limits.stats().last_error), (0, None));
    }
}

#[test]
fn a_policy_is_refused_as_misconfigured_by_its_key() {
    let world = keyed::World::new();
    let limits = keyed(&world, OnUnavailable::Admit);
    let key = limits.get("a").unwrap();
    let held = now(key.acquire_now(2)).unwrap();
    let policy = Policy::builder().on(&world.clock).limit(key).build().unwrap();
    let mut waits = pin!(policy.admit(Ask::one()));
    assert!(poll(waits.as_mut()).is_pending());
    world.line.set(Fault::Refused);
    world.clock.advance(TTL / 3);
    let Poll::Ready(Err(refused)) = poll(waits.as_mut()) else {
        panic!("the wait goes on")
    };
    assert_eq!(refused.reason(), Reason::Misconfigured);
    assert!(!held.is_lost());
    // What was held goes back once the store takes it.
    drop(held);
    world.line.set(Fault::None);
    world.clock.advance(SECOND);
    assert!(world.clock.run(policy.admit(Ask::one())).is_ok());
}

/// Settlements are repeated as long as after an outage: a right that was missing for a moment loses none.
#[test]
fn a_settlement_that_is_refused_is_sent_again() {
    let world = keyed::World::new();
    let slow = [bucket("tokens", "100/h").per(Cost::new("tokens"))];
    let limits = world.keyed(KeyedLimits::new(10, "all", slow));
    let tokens = |n| Ask::one().cost(Cost::new("tokens"), n);
    let key = limits.get("a").unwrap();
    let mut permit = now(key.acquire_now(tokens(100))).unwrap();
    world.line.set(Fault::Refused);
    permit.settle(Cost::new("tokens"), 40).unwrap();
    world.clock.advance(5 * SECOND);
    assert_eq!(
        now(key.acquire_now(tokens(1))).unwrap_err().reason(),
        Reason::Misconfigured
    );
    world.line.set(Fault::None);
    world.clock.advance(SECOND);
    drop(now(key.acquire_now(tokens(60))).unwrap());
}
