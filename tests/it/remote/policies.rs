//! Policies that wait at limits of a store: whose head has the place, and what becomes of it. In virtual time.

use crate::remote::keyed::{Line, World as Keys, bucket};
use crate::remote::world::{World, now, poll};
use futures::future::join_all;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{KeyedLimits, Prefetch, Remote, RemoteBuilder, RemoteKeyed, RemoteLeg};
use tollgate::{Ask, Clock, Limiter, LimiterExt, Order, Policy, PolicyBuilder, Reason, Semaphore, Wait};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// With and without a queue in this process.
fn permits(world: &World, limit: u64) -> [RemoteBuilder; 2] {
    let permits = || Remote::permits(world.key.clone(), limit).ttl(3 * SECOND);
    [
        permits(),
        permits().prefetch(Prefetch {
            turn: Duration::ZERO,
            ..Prefetch::up_to(2)
        }),
    ]
}

fn classes(clock: &Clock) -> PolicyBuilder<()> {
    let order = Order::Priority {
        classes: 2,
        patience: 8,
    };
    Policy::builder().order(order).on(clock)
}

/// Given a head that waits for three permits, when one of a higher class asks for two that are free, then it is served, and the first one
/// later.
#[test]
fn the_place_of_a_head_goes_to_the_next_head_with_its_own_number() {
    for which in 0..2 {
        let world = World::new();
        let other = world.make(permits(&world, 4)[0].clone());
        let held = now(other.acquire(2)).unwrap();
        let remote = world.make(permits(&world, 4)[which].clone());
        let policy = classes(&world.clock).limit(remote).build().unwrap();
        let mut large = pin!(policy.admit(Ask::many(3).class(1)));
        assert!(poll(large.as_mut()).is_pending());
        let mut small = pin!(policy.admit(Ask::many(2)));
        let Poll::Ready(Ok(small)) = poll(small.as_mut()) else {
            panic!("two are free")
        };
        drop(held);
        assert!(poll(large.as_mut()).is_pending());
        drop(small);
        world.clock.advance(SECOND);
        let Poll::Ready(Ok(large)) = poll(large.as_mut()) else {
            panic!("all are free")
        };
        drop(large);
        world.clock.advance(2 * SECOND);
        drop(now(other.acquire_now(4)).expect("nothing is left behind"));
    }
}

/// Given a waiter behind the head, when the limit is lowered below what it needs, then it is refused at once, and the head goes on.
#[test]
fn a_lowered_limit_refuses_the_waiters_behind_the_head() {
    let world = World::new();
    let other = world.make(permits(&world, 4)[0].clone());
    let held = now(other.acquire(4)).unwrap();
    let remote = world.make(permits(&world, 4)[0].clone());
    let policy = Policy::builder().on(&world.clock).limit(remote).build().unwrap();
    let (mut head, mut behind) = (pin!(policy.admit(1)), pin!(policy.admit(4)));
    assert!(poll(head.as_mut()).is_pending() && poll(behind.as_mut()).is_pending());
    now(other.set_limit(3)).unwrap();
    // It is heard with the next renewal.
    world.clock.advance(SECOND);
    let Poll::Ready(Err(refused)) = poll(behind.as_mut()) else {
        panic!("it waits for what never comes")
    };
    assert_eq!(refused.reason(), Reason::Oversized);
    assert!(poll(head.as_mut()).is_pending());
    drop(held);
    assert!(matches!(poll(head.as_mut()), Poll::Ready(Ok(_))));
}

/// Given a head that was granted a permit and waits for another leg longer than it waited for that, then the permit goes to others
/// meanwhile.
#[test]
fn a_grant_is_left_to_others_while_the_head_waits_elsewhere() {
    let world = World::new();
    let other = world.make(permits(&world, 1)[0].clone());
    let held = now(other.acquire(1)).unwrap();
    let local = Arc::new(Semaphore::new(1));
    let inner = local.try_admit(1).unwrap();
    let remote = world.make(permits(&world, 1)[0].clone());
    let policy = Policy::builder()
        .on(&world.clock)
        .limit(remote)
        .limit(Arc::clone(&local));
    let policy = policy.build().unwrap();
    let mut waits = pin!(policy.admit(1));
    assert!(poll(waits.as_mut()).is_pending());
    drop(held);
    assert!(poll(waits.as_mut()).is_pending());
    let between = now(other.acquire_now(1)).expect("the head has left it");
    drop(inner);
    assert!(poll(waits.as_mut()).is_pending());
    drop(between);
    let Poll::Ready(Ok(permit)) = poll(waits.as_mut()) else {
        panic!("both are free")
    };
    assert!(now(other.acquire_now(1)).is_err());
    drop(permit);
    drop(now(other.acquire_now(1)).unwrap());
}

/// Two policies that share two legs, in both orders, each with a hundred callers.
fn all_are_served<L, M>(clock: &tollgate::ManualClock, first: Policy<L>, second: Policy<M>)
where
    L: Limiter + 'static,
    M: Limiter + 'static,
{
    let begun = clock.elapsed();
    let one = async |n: u64| {
        let permit = first.admit(1).await.unwrap();
        clock.sleep(n as u32 % 3 * MS).await;
        drop(permit);
    };
    let other = async |n: u64| {
        let permit = second.admit(1).await.unwrap();
        clock.sleep(n as u32 % 3 * MS).await;
        drop(permit);
    };
    clock.run(async {
        futures::join!(join_all((0..100).map(one)), join_all((0..100).map(other)));
    });
    assert!(clock.elapsed() - begun < 60 * SECOND, "{:?}", clock.elapsed() - begun);
}

#[test]
fn policies_that_share_a_remote_limit_and_a_semaphore_are_all_served() {
    for which in 0..2 {
        let world = World::new();
        let remote = Arc::new(world.make(permits(&world, 1)[which].clone()));
        let local = Arc::new(Semaphore::new(1));
        let first = Policy::builder()
            .on(&world.clock)
            .limit(Arc::clone(&remote))
            .limit(Arc::clone(&local));
        let second = Policy::builder().on(&world.clock).limit(local).limit(remote);
        all_are_served(&world.clock, first.build().unwrap(), second.build().unwrap());
    }
}

/// One permit and a thousand calls a second of each key.
fn tenants(world: &Keys) -> RemoteKeyed<Arc<Line>> {
    let legs = [bucket("calls", "1000/s burst 5"), RemoteLeg::permits("in flight", 1)];
    world.keyed(KeyedLimits::new(100, "all", legs))
}

#[test]
fn policies_that_share_a_key_and_a_semaphore_are_all_served() {
    let world = Keys::new();
    let acme = Arc::new(tenants(&world).get("acme").unwrap());
    let local = Arc::new(Semaphore::new(1));
    let first = Policy::builder()
        .on(&world.clock)
        .limit(Arc::clone(&acme))
        .limit(Arc::clone(&local));
    let second = Policy::builder().on(&world.clock).limit(local).limit(acme);
    all_are_served(&world.clock, first.build().unwrap(), second.build().unwrap());
}

/// Given a head that waits for two units of a key until an instant, when one of a higher class asks for one, then the store is asked for
/// that.
#[test]
fn the_ask_of_a_head_at_a_key_is_that_of_the_next_head() {
    let world = Keys::new();
    let keyed = world.keyed(KeyedLimits::new(10, "all", [bucket("calls", "1/s burst 4")]));
    let acme = keyed.get("acme").unwrap();
    drop(now(acme.acquire_now(3)).unwrap());
    let policy = classes(&world.clock).limit(acme).build().unwrap();
    let mut large = pin!(policy.admit(Ask::many(2).class(1)));
    assert!(poll(large.as_mut()).is_pending());
    assert!(
        matches!(poll(pin!(policy.admit(1))), Poll::Ready(Ok(_))),
        "one is there"
    );
    world.clock.advance(2 * SECOND - Duration::from_nanos(1));
    assert!(poll(large.as_mut()).is_pending());
    world.clock.advance(MS);
    assert!(matches!(poll(large.as_mut()), Poll::Ready(Ok(_))));
}

/// Given legs at two keys, of which the shared one refuses, then a head asks again at the instant of the store, and not before.
#[test]
fn a_head_asks_again_at_the_instant_of_a_shared_leg() {
    let world = Keys::new();
    let level = |quota| KeyedLimits::new(10, "all", [bucket("calls", quota)]);
    let levels = [("team", level("1/s burst 1")), ("user", level("100/s"))];
    let limits = Remote::levels(tollgate::remote::Key::new("t").unwrap(), levels).on(&world.clock);
    let limits = limits.in_place(Arc::clone(&world.line)).unwrap();
    let ann = limits.get_all(&[("team", "red"), ("user", "ann")]).unwrap();
    let policy = Policy::builder().on(&world.clock).limit(ann).build().unwrap();
    drop(now(policy.admit(1)).unwrap());
    let mut waits = pin!(policy.admit(1));
    assert!(poll(waits.as_mut()).is_pending());
    let steps = world.line.steps();
    world.clock.advance(SECOND - MS);
    assert!(poll(waits.as_mut()).is_pending());
    assert_eq!(world.line.steps(), steps);
    world.clock.advance(MS);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))));
}

/// A wait at a limit whose store is away is not over for good: the caller may try again, and a policy does not wait.
#[test]
fn a_refusal_for_a_store_that_is_not_asked_may_be_retried() {
    let world = World::new();
    let remote = world.make(permits(&world, 1)[0].clone());
    let refused = remote.try_acquire(1).unwrap_err();
    assert_eq!((refused.reason(), refused.wait()), (Reason::RoundTrip, Wait::EVENT));
    assert!(refused.is_retryable());
    let held = now(remote.acquire(1)).unwrap();
    let refused = now(remote.acquire_now(1)).unwrap_err();
    assert_eq!((refused.reason(), refused.is_retryable()), (Reason::Saturated, true));
    drop(held);
    now(remote.close());
    let refused = remote.try_acquire(1).unwrap_err();
    assert_eq!((refused.reason(), refused.is_retryable()), (Reason::Closed, false));
}

/// Given a head that has waited for longer, elsewhere, when a permit comes for the one behind which it has joined, then it is served first.
fn the_oldest_goes_first<L, M>(older: Policy<L>, younger: Policy<M>, local: &Semaphore, release: impl FnOnce())
where
    L: Limiter + 'static,
    M: Limiter + 'static,
{
    let inner = local.try_admit(1).unwrap();
    let mut first = pin!(older.admit(1));
    assert!(poll(first.as_mut()).is_pending());
    let mut second = pin!(younger.admit(1));
    assert!(poll(second.as_mut()).is_pending());
    // Only now does it join the queue of the store.
    drop(inner);
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    release();
    let Poll::Ready(Ok(permit)) = poll(first.as_mut()) else {
        panic!("it is the oldest")
    };
    assert!(poll(second.as_mut()).is_pending());
    drop(permit);
    assert!(matches!(poll(second.as_mut()), Poll::Ready(Ok(_))));
}

#[test]
fn the_oldest_head_goes_first_at_a_remote_limit() {
    for which in 0..2 {
        let world = World::new();
        let other = world.make(permits(&world, 1)[0].clone());
        let held = now(other.acquire(1)).unwrap();
        let remote = Arc::new(world.make(permits(&world, 1)[which].clone()));
        let local = Arc::new(Semaphore::new(1));
        let older = Policy::builder()
            .on(&world.clock)
            .limit(Arc::clone(&local))
            .limit(Arc::clone(&remote));
        let younger = Policy::builder().on(&world.clock).limit(remote);
        the_oldest_goes_first(older.build().unwrap(), younger.build().unwrap(), &local, || drop(held));
    }
}

#[test]
fn the_oldest_head_goes_first_at_a_key() {
    let world = Keys::new();
    let acme = Arc::new(tenants(&world).get("acme").unwrap());
    let held = now(acme.acquire_now(1)).unwrap();
    let local = Arc::new(Semaphore::new(1));
    let older = Policy::builder()
        .on(&world.clock)
        .limit(Arc::clone(&local))
        .limit(Arc::clone(&acme));
    let younger = Policy::builder().on(&world.clock).limit(acme);
    the_oldest_goes_first(older.build().unwrap(), younger.build().unwrap(), &local, || drop(held));
}
