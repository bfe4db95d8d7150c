//! What a waiter at a shared key with a semaphore is told: the leg of the store, and its instant. In virtual time.

use crate::remote::keyed::{Line, World, bucket};
use crate::remote::world::{now, poll};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{KeyedLimits, RemoteKey, RemoteKeyed, RemoteLeg};
use tollgate::{Ask, Policy, Reason};

const TTL: Duration = Duration::from_secs(9);
const SECOND: Duration = Duration::from_secs(1);

impl World {
    /// Six calls a minute, and two in flight.
    fn tenants(&self) -> RemoteKeyed<Arc<Line>> {
        let legs = [bucket("calls", "6/min burst 4"), RemoteLeg::permits("in-flight", 2)];
        let builder = self.builder(KeyedLimits::new(100, "all", legs));
        builder.ttl(TTL).in_place(Arc::clone(&self.line)).unwrap()
    }

    fn policy(&self, key: &RemoteKey<Arc<Line>>, max_wait: Duration) -> Policy<RemoteKey<Arc<Line>>> {
        let policy = Policy::builder().on(&self.clock).limit(key.clone());
        policy.max_wait(max_wait).build().unwrap()
    }
}

#[test]
fn a_waiter_for_permits_is_refused_by_their_leg() {
    let world = World::new();
    let (one, other) = (world.tenants(), world.tenants());
    let _held = now(other.get("acme").unwrap().acquire_now(2)).unwrap();
    let policy = world.policy(&one.get("acme").unwrap(), 2 * SECOND);
    let start = world.clock.elapsed();
    let refused = world.clock.run(policy.admit(Ask::one())).unwrap_err();
    assert_eq!(
        (refused.reason(), refused.cause(), refused.leg()),
        (Reason::TimedOut, Some(Reason::Saturated), "in-flight")
    );
    assert_eq!(world.clock.elapsed() - start, 2 * SECOND);
}

#[test]
fn a_waiter_for_a_rate_is_refused_at_once_with_its_instant() {
    let world = World::new();
    let (one, other) = (world.tenants(), world.tenants());
    for _ in 0..2 {
        drop(now(other.get("acme").unwrap().acquire_now(2)).unwrap());
    }
    let policy = world.policy(&one.get("acme").unwrap(), 2 * SECOND);
    let start = world.clock.elapsed();
    for _ in 0..3 {
        let refused = world.clock.run(policy.admit(Ask::one())).unwrap_err();
        assert_eq!(
            (refused.reason(), refused.cause(), refused.leg()),
            (Reason::TimedOut, Some(Reason::RateExceeded), "calls")
        );
        assert_eq!(refused.retry_after(), Some(10 * SECOND));
    }
    assert_eq!(world.clock.elapsed(), start, "no wait could end in time");
}

#[test]
fn a_waiter_with_patience_is_admitted_at_the_instant_of_the_store() {
    let world = World::new();
    let (one, other) = (world.tenants(), world.tenants());
    for _ in 0..2 {
        drop(now(other.get("acme").unwrap().acquire_now(2)).unwrap());
    }
    let policy = world.policy(&one.get("acme").unwrap(), 60 * SECOND);
    let start = world.clock.elapsed();
    let admitted = |seconds| {
        drop(world.clock.run(policy.admit(Ask::one())).unwrap());
        assert_eq!(world.clock.elapsed() - start, seconds * SECOND);
    };
    admitted(10);
    admitted(20);
}

/// Given a waiter that was told an instant, when permits come back and units are given back before it, then it is served before it.
#[test]
fn a_waiter_that_was_told_an_instant_is_served_before_it_if_units_come_back() {
    let world = World::new();
    let (one, other) = (world.tenants(), world.tenants());
    let (acme, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    for _ in 0..2 {
        drop(now(other.acquire_now(2)).unwrap());
    }
    let policy = world.policy(&acme, 60 * SECOND);
    let mut waits = pin!(policy.admit(Ask::one()));
    assert!(poll(waits.as_mut()).is_pending());
    now(other.reset()).unwrap();
    // It is found with the next renewal of its place.
    world.clock.advance(TTL / 3);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))));
}

/// Those behind the first waiter of a policy are told the same.
#[test]
fn waiters_behind_the_first_are_told_the_leg_of_the_store() {
    let world = World::new();
    let (one, other) = (world.tenants(), world.tenants());
    let _held = now(other.get("acme").unwrap().acquire_now(2)).unwrap();
    let policy = world.policy(&one.get("acme").unwrap(), 60 * SECOND);
    let mut first = pin!(policy.admit(Ask::one()));
    assert!(poll(first.as_mut()).is_pending());
    let hurried = policy.admit_timeout(Ask::one(), SECOND);
    let refused = world.clock.run(hurried).unwrap_err();
    assert_eq!((refused.cause(), refused.leg()), (Some(Reason::Saturated), "in-flight"));
}

/// A refusal that is remembered for waiters is forgotten when an ask is admitted, and the key with it.
#[test]
fn a_refusal_that_was_told_is_forgotten_with_the_next_admission() {
    let world = World::new();
    let (one, other) = (world.tenants(), world.tenants());
    let (acme, held) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let held = now(held.acquire_now(2)).unwrap();
    let policy = world.policy(&acme, SECOND);
    assert!(world.clock.run(policy.admit(Ask::one())).is_err());
    assert_eq!(one.stats().keys, 1);
    drop(held);
    drop(world.clock.run(policy.admit(Ask::one())).unwrap());
    assert_eq!(one.stats().keys, 0);
}
