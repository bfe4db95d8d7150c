//! Permits that several machines share, over the store in memory and in virtual time.

use crate::remote::world::{now, poll};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{Key, Memory, Prefetch, Remote, RemoteBuilder, RemoteError};
use tollgate::{Ask, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore};

const TTL: Duration = Duration::from_secs(3);

fn key() -> Key {
    Key::new("shared").unwrap()
}

/// A clock, a store on it, and a way to make machines that share permits there.
struct World {
    clock: ManualClock,
    store: Arc<Memory>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000));
        let store = Arc::new(Memory::new(&clock));
        Self { clock, store }
    }

    fn permits(&self, limit: u64) -> RemoteBuilder {
        Remote::permits(key(), limit).on(&self.clock).ttl(TTL)
    }

    fn build(&self, builder: RemoteBuilder) -> Remote<Arc<Memory>> {
        builder.in_place(Arc::clone(&self.store)).unwrap()
    }

    fn machine(&self, limit: u64) -> Remote<Arc<Memory>> {
        self.build(self.permits(limit))
    }
}

#[test]
fn a_permit_of_one_machine_is_missing_at_the_other_until_it_comes_back() {
    let world = World::new();
    let (one, other) = (world.machine(2), world.machine(2));
    let held = now(one.acquire(2)).unwrap();
    let refused = now(other.acquire_now(1)).unwrap_err();
    assert_eq!((refused.reason(), refused.leg()), (Reason::Saturated, "shared"));
    drop(held);
    assert!(now(other.acquire_now(1)).is_ok());
}

#[test]
fn requests_are_granted_in_the_order_in_which_they_reach_the_store() {
    let world = World::new();
    let (one, other) = (world.machine(3), world.machine(3));
    let held = now(one.acquire(3)).unwrap();
    let mut first = pin!(other.acquire(3));
    let mut second = pin!(one.acquire(1));
    let mut third = pin!(other.acquire(1));
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(second.as_mut()).is_pending());
    assert!(poll(third.as_mut()).is_pending());
    assert_eq!(now(one.acquire_now(1)).unwrap_err().reason(), Reason::Saturated);
    drop(held);
    assert!(poll(second.as_mut()).is_pending(), "a large request is not overtaken");
    let Poll::Ready(Ok(first)) = poll(first.as_mut()) else {
        panic!("the first is served")
    };
    drop(first);
    let (Poll::Ready(Ok(second)), Poll::Ready(Ok(third))) = (poll(second.as_mut()), poll(third.as_mut())) else {
        panic!("both fit")
    };
    assert!(second.fence() < third.fence());
}

#[test]
fn a_wait_that_is_dropped_before_or_at_its_grant_loses_nothing() {
    let world = World::new();
    let (one, other) = (world.machine(1), world.machine(1));
    let held = now(one.acquire(1)).unwrap();
    let mut leaves = Box::pin(other.acquire(1));
    let mut stays = pin!(one.acquire(1));
    assert!(poll(leaves.as_mut()).is_pending() && poll(stays.as_mut()).is_pending());
    drop(leaves);
    let mut granted = Box::pin(other.acquire(1));
    assert!(poll(granted.as_mut()).is_pending());
    drop(held);
    let Poll::Ready(Ok(stayed)) = poll(stays.as_mut()) else {
        panic!("served")
    };
    drop(stayed);
    // Granted, and dropped before it was polled.
    drop(granted);
    assert!(now(one.acquire_now(1)).is_ok());
}

#[test]
fn a_machine_that_dies_is_waited_for_no_longer_than_its_time_to_live() {
    let world = World::new();
    // Its driver does not run any more.
    let (dead, driver) = world.permits(2).build(Arc::clone(&world.store)).unwrap();
    let mut driver = Box::pin(driver);
    let mut held = pin!(dead.acquire(2));
    let mut behind = pin!(dead.acquire(2));
    assert!(poll(held.as_mut()).is_pending() && poll(behind.as_mut()).is_pending());
    assert!(poll(driver.as_mut()).is_pending());
    let Poll::Ready(Ok(held)) = poll(held.as_mut()) else {
        panic!("granted")
    };
    std::mem::forget(driver);

    let alive = world.machine(2);
    let died = world.clock.elapsed();
    let waited = world.clock.run(async {
        let _permit = alive.acquire(1).await.unwrap();
        world.clock.elapsed() - died
    });
    assert!(waited <= TTL && held.is_lost(), "waited {waited:?}");
}

#[test]
fn a_lease_ends_a_time_to_live_after_its_last_renewal_was_sent() {
    let world = World::new();
    let (remote, driver) = world.permits(1).build(Arc::clone(&world.store)).unwrap();
    let mut driver = Box::pin(driver);
    let mut permit = pin!(remote.acquire(1));
    let _ = poll(permit.as_mut());
    let _ = poll(driver.as_mut());
    let Poll::Ready(Ok(permit)) = poll(permit.as_mut()) else {
        panic!("granted")
    };
    let mut lost = pin!(permit.lost());
    // A hundredth earlier than the store thinks.
    assert_eq!(permit.good_for(), Some(TTL * 99 / 100));
    world.clock.advance(TTL / 2);
    let _ = poll(driver.as_mut());
    assert_eq!(permit.good_for(), Some(TTL * 99 / 100), "renewed");
    world.clock.advance(TTL * 99 / 100 - Duration::from_nanos(1));
    assert!(!permit.is_lost() && poll(lost.as_mut()).is_pending());
    world.clock.advance(Duration::from_nanos(1));
    assert!(permit.is_lost() && poll(lost.as_mut()).is_ready());
    assert_eq!(remote.stats().losses, 0, "the driver has not noticed");
    let _ = poll(driver.as_mut());
    assert_eq!(remote.stats().losses, 1);
}

#[test]
fn a_store_that_has_lost_its_memory_is_noticed_and_its_tokens_grow_on() {
    let world = World::new();
    let remote = world.machine(1);
    let old = now(remote.acquire(1)).unwrap();
    let mut lost = pin!(old.lost());
    assert!(poll(lost.as_mut()).is_pending());
    world.store.clear();
    world.clock.advance(TTL / 3);
    assert!(old.is_lost() && poll(lost.as_mut()).is_ready());
    let new = now(remote.acquire(1)).unwrap();
    assert!(new.fence() > old.fence());
    // A lost permit returns nothing.
    drop(old);
    assert_eq!(now(remote.acquire_now(1)).unwrap_err().reason(), Reason::Saturated);
}

#[test]
fn a_limit_is_lowered_below_the_usage_and_raised_for_every_process() {
    let world = World::new();
    let (one, other) = (world.machine(3), world.machine(3));
    let held = [now(one.acquire(1)).unwrap(), now(other.acquire(1)).unwrap()];
    now(one.set_limit(1)).unwrap();
    assert_eq!(now(other.acquire_now(1)).unwrap_err().reason(), Reason::Saturated);
    assert_eq!(now(other.acquire(2)).unwrap_err().reason(), Reason::Oversized);
    let mut waits = pin!(other.acquire(1));
    assert!(poll(waits.as_mut()).is_pending());
    now(one.set_limit(3)).unwrap();
    let Poll::Ready(Ok(served)) = poll(waits.as_mut()) else {
        panic!("there is room")
    };
    assert_eq!((other.stats().limit, other.stats().in_use), (3, 3));
    drop((held, served));
}

#[test]
fn a_waiter_receives_its_permits_without_a_request() {
    let world = World::new();
    let (one, other) = (world.machine(2), world.machine(2));
    let held = now(one.acquire(2)).unwrap();
    let mut waits = [1, 1].map(|units| Box::pin(other.acquire(units)));
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    let syncs = other.stats().syncs;
    drop(held);
    let served = waits.map(now);
    let fences = served.each_ref().map(|permit| permit.as_ref().unwrap().fence());
    assert!(fences[0] < fences[1]);
    let stats = other.stats();
    assert_eq!((stats.syncs, stats.in_use, stats.waiting), (syncs, 2, 0));
    drop(served);
    assert!(now(one.acquire_now(2)).is_ok());
}

#[test]
fn hand_overs_are_acknowledged_now_and_then() {
    let world = World::new();
    let (one, other) = (world.machine(20), world.machine(20));
    let held: Vec<_> = (0..20).map(|_| now(one.acquire(1)).unwrap()).collect();
    let mut waits: Vec<_> = (0..20).map(|_| Box::pin(other.acquire(1))).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    let syncs = other.stats().syncs;
    let mut served = Vec::new();
    for (n, (one, wait)) in held.into_iter().zip(waits).enumerate() {
        drop(one);
        served.push(now(wait).unwrap());
        assert_eq!(other.stats().syncs - syncs, u64::from(n >= 15));
    }
}

#[test]
fn nothing_is_left_behind() {
    let world = World::new();
    let (one, other) = (world.machine(2), world.machine(2));
    let held = now(one.acquire(1)).unwrap();
    let waits = other.acquire(2);
    let mut waits = Box::pin(waits);
    assert!(poll(waits.as_mut()).is_pending());
    now(one.close());
    assert!(held.is_lost());
    assert_eq!(now(one.acquire(1)).unwrap_err().reason(), Reason::Closed);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))), "given back at once");
    assert_eq!(world.store.keys(), 1);
    drop(waits);
    drop(other);
    assert_eq!(world.store.keys(), 0);
    // Idle machines leave as well.
    let idle = world.machine(2);
    drop(now(idle.acquire(1)).unwrap());
    world.clock.advance(TTL / 3);
    assert_eq!(world.store.keys(), 0);
}

#[test]
fn a_policy_waits_in_the_queue_of_the_store() {
    let world = World::new();
    let other = world.machine(1);
    let held = now(other.acquire(1)).unwrap();
    let local = Arc::new(Semaphore::new(1));
    let policy = Policy::builder()
        .on(&world.clock)
        .limit(Arc::clone(&local).named("here"))
        .limit(world.machine(1).named("everywhere"))
        .build()
        .unwrap();
    let mut waits = pin!(policy.admit(Ask::one()));
    assert!(poll(waits.as_mut()).is_pending());
    assert_eq!(local.in_use(), 0, "nothing is held while it waits");
    drop(held);
    let Poll::Ready(Ok(permit)) = poll(waits.as_mut()) else {
        panic!("its turn has come")
    };
    assert_eq!(local.in_use(), 1);
    assert!(now(other.acquire_now(1)).is_err());
    drop(permit);
    assert!(now(other.acquire_now(1)).is_ok());
}

#[test]
fn blocks_are_spent_without_the_store_and_recalled_when_others_wait() {
    let world = World::new();
    let leases = world.build(world.permits(8).prefetch(Prefetch {
        low: 8,
        turn: Duration::ZERO,
        ..Prefetch::up_to(8)
    }));
    assert_eq!(leases.stats().available_here, 8);
    let syncs = leases.stats().syncs;
    for _ in 0..1_000 {
        drop(leases.try_acquire(3).unwrap());
    }
    assert_eq!(leases.stats().syncs, syncs, "the store was not asked");
    let held = leases.try_acquire(3).unwrap();
    let other = world.machine(8);
    let five = now(other.acquire(5)).unwrap();
    let mut six = pin!(other.acquire(3));
    assert!(poll(six.as_mut()).is_pending(), "what is in use stays");
    drop(held);
    assert!(poll(six.as_mut()).is_ready(), "a released permit goes to the waiters");
    drop(five);
}

/// Given a waiter that was served by a permit of its own process, when another process waits then, then it has the next one at once: no
/// place at the store is left before it.
#[test]
fn a_place_of_a_waiter_that_was_served_here_holds_up_no_other_process() {
    let world = World::new();
    let prefetch = Prefetch {
        turn: Duration::ZERO,
        ..Prefetch::up_to(2)
    };
    let [one, other] = [0, 1].map(|_| world.build(world.permits(2).prefetch(prefetch)));
    let [first, second] = [0, 1].map(|_| now(one.acquire(1)).unwrap());
    let mut waits = pin!(one.acquire(1));
    assert!(poll(waits.as_mut()).is_pending());
    drop(first);
    let Poll::Ready(Ok(third)) = poll(waits.as_mut()) else {
        panic!("a permit has come back here")
    };
    let mut elsewhere = pin!(other.acquire(1));
    assert!(poll(elsewhere.as_mut()).is_pending());
    drop((second, third));
    assert!(matches!(poll(elsewhere.as_mut()), Poll::Ready(Ok(_))));
}

/// Given more permits than the word of a loan can count, when all but one go back, then one is in use.
#[test]
fn millions_of_prefetched_permits_are_counted() {
    let many = (1 << 20) - 2;
    let world = World::new();
    let leases = world.build(world.permits(4 * many).prefetch(Prefetch::up_to(4 * many)));
    // One grant, of which all are taken.
    drop(now(leases.acquire(3 * many)).unwrap());
    let mut held: Vec<_> = (0..3).map(|_| now(leases.acquire(many)).unwrap()).collect();
    held.pop();
    let one = now(leases.acquire(1)).unwrap();
    drop(held);
    assert_eq!(leases.stats().in_use_here, 1);
    drop(one);
    assert_eq!(leases.stats().in_use_here, 0);
}

#[test]
fn idle_permits_go_back() {
    let world = World::new();
    let leases = world.build(world.permits(8).prefetch(Prefetch::up_to(8)));
    let held: Vec<_> = (0..6).map(|_| now(leases.acquire(1)).unwrap()).collect();
    drop(held);
    let idle = leases.stats().available_here;
    assert!(idle >= 6);
    world.clock.advance(Duration::from_secs(2));
    assert_eq!((leases.stats().available_here, leases.stats().held), (0, 0));
}

#[test]
fn a_rate_admits_its_burst_and_then_at_its_rate_over_all_machines() {
    let world = World::new();
    let rate = || {
        let builder = Remote::rate(key(), Quota::per_second(10).burst(5))
            .on(&world.clock)
            .ttl(TTL);
        world.build(builder)
    };
    let (one, other) = (rate(), rate());
    let start = world.clock.elapsed();
    let took = world.clock.run(async {
        for n in 0..15 {
            let machine = if n % 2 == 0 { &one } else { &other };
            drop(machine.acquire(1).await.unwrap());
        }
        world.clock.elapsed() - start
    });
    assert_eq!(took, Duration::from_secs(1));
    assert_eq!(now(one.acquire_now(1)).unwrap_err().reason(), Reason::RateExceeded);
    assert_eq!(now(one.acquire(6)).unwrap_err().reason(), Reason::Oversized);
    // Forgotten once it is full again.
    world.clock.advance(TTL * 2);
    assert_eq!(world.store.keys(), 0);
}

#[test]
fn waiters_for_a_rate_ask_once_and_are_served_in_order() {
    let world = World::new();
    let rate = || {
        let builder = Remote::rate(key(), Quota::per_second(10).burst(1))
            .on(&world.clock)
            .ttl(TTL);
        world.build(builder)
    };
    let machines: Vec<_> = (0..8).map(|_| rate()).collect();
    let mut waits: Vec<_> = machines.iter().map(|machine| Box::pin(machine.acquire(1))).collect();
    for (n, wait) in waits.iter_mut().enumerate() {
        assert_eq!(poll(wait.as_mut()).is_ready(), n == 0);
    }
    for wait in &mut waits[1..] {
        world
            .clock
            .advance(Duration::from_millis(100) - Duration::from_nanos(1));
        assert!(poll(wait.as_mut()).is_pending());
        world.clock.advance(Duration::from_nanos(1));
        assert!(poll(wait.as_mut()).is_ready());
    }
    assert!(machines.iter().all(|machine| machine.stats().syncs == 1));
}

#[test]
fn a_window_is_shared() {
    let world = World::new();
    let window = || {
        let builder = Remote::window(key(), 4, Duration::from_secs(64)).on(&world.clock);
        world.build(builder)
    };
    let (one, other) = (window(), window());
    drop(now(one.acquire(3)).unwrap());
    drop(now(other.acquire(1)).unwrap());
    let mut more = pin!(one.acquire(1));
    assert!(poll(more.as_mut()).is_pending());
    world.clock.advance(Duration::from_secs(64));
    assert!(poll(more.as_mut()).is_pending(), "a segment late, at most");
    world.clock.advance(Duration::from_secs(1));
    assert!(poll(more.as_mut()).is_ready());
}

#[test]
fn bad_settings_are_named() {
    let world = World::new();
    assert!(matches!(Key::new(""), Err(RemoteError::Key { .. })));
    let short = world.permits(1).ttl(Duration::from_millis(49));
    assert!(matches!(
        short.in_place(Arc::clone(&world.store)),
        Err(RemoteError::Duration {
            what: "time to live",
            ..
        })
    ));
    let none = world.permits(1).prefetch(Prefetch::up_to(0));
    assert!(matches!(
        none.in_place(Arc::clone(&world.store)),
        Err(RemoteError::Prefetch { .. })
    ));
    for quota in [Quota::zero(), Quota::unlimited(), Quota::per_second(3).by_interval()] {
        let refused = Remote::rate(key(), quota).in_place(Arc::clone(&world.store));
        assert!(matches!(refused, Err(RemoteError::Quota { .. })));
    }
    assert!(matches!(
        world.permits(1).spawn(Arc::clone(&world.store)),
        Err(RemoteError::NoRuntime)
    ));
}
