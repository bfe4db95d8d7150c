//! Permits while the store cannot be reached, answers late, or its answers are lost. In virtual time.

use crate::remote::world::{now, poll};
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{
    Backend, Key, Memory, Notification, OnUnavailable, Prefetch, Remote, RemoteBuilder, RemoteError, Rule, Session,
    StoreError, SyncReply, SyncRequest,
};
use tollgate::{Ask, Clock, ClockReading, Cost, Demand, Limiter, LimiterExt, ManualClock, Policy, Quota, Reason, Wait};

const TTL: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Nothing arrives, in either direction.
    Silent,
    /// Nothing arrives, and that is known at once.
    Cut,
    /// Requests arrive, and their replies are lost, for this number of times.
    Unheard(u32),
    /// Answers take so long.
    Late(Duration),
}

/// A store in memory behind a connection with a fault.
struct Faulty {
    store: Memory,
    clock: Clock,
    fault: Mutex<Fault>,
}

impl Faulty {
    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }
}

impl Backend for Faulty {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let fault = *self.fault.lock().unwrap();
        let cut = || StoreError::Unreachable { why: "cut".into() };
        match fault {
            Fault::None => self.store.sync(key, rule, sync).await,
            Fault::Silent => pending().await,
            Fault::Cut => Err(cut()),
            Fault::Unheard(times) => {
                let _ = self.store.sync(key, rule, sync).await;
                self.set(if times > 1 {
                    Fault::Unheard(times - 1)
                } else {
                    Fault::None
                });
                Err(cut())
            }
            Fault::Late(by) => {
                let reply = self.store.sync(key, rule, sync).await;
                self.clock.sleep(by).await;
                reply
            }
        }
    }

    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        self.store.notified(key, session)
    }

    fn notification(&self, key: &Key, session: Session) -> Notification {
        self.store.notification(key, session)
    }
}

struct World {
    clock: ManualClock,
    line: Arc<Faulty>,
}

impl World {
    fn new(fault: Fault) -> Self {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000));
        let line = Arc::new(Faulty {
            store: Memory::new(&clock),
            clock: clock.clock().clone(),
            fault: Mutex::new(fault),
        });
        Self { clock, line }
    }

    fn permits(&self, limit: u64) -> RemoteBuilder {
        Remote::permits(Key::new("shared").unwrap(), limit)
            .on(&self.clock)
            .ttl(TTL)
    }

    fn build(&self, builder: RemoteBuilder) -> Remote<Arc<Faulty>> {
        builder.in_place(Arc::clone(&self.line)).unwrap()
    }
}

#[test]
fn a_request_whose_answer_is_lost_is_granted_once() {
    let world = World::new(Fault::Unheard(3));
    let remote = world.build(world.permits(3));
    let permit = world.clock.run(async { remote.acquire(2).await.unwrap() });
    let other = world.build(world.permits(3));
    let rest = now(other.acquire_now(1)).unwrap();
    assert_eq!(
        (other.stats().in_use, remote.stats().held, remote.stats().failures),
        (3, 2, 3)
    );
    drop((permit, rest));
}

#[test]
fn an_unacknowledged_release_is_sent_again() {
    for fault in [Fault::Cut, Fault::Unheard(2)] {
        let world = World::new(Fault::None);
        let (remote, other) = (world.build(world.permits(2)), world.build(world.permits(2)));
        let keeps = now(remote.acquire(1)).unwrap();
        let permit = now(remote.acquire(1)).unwrap();
        world.line.set(fault);
        drop(permit);
        world.line.set(Fault::None);
        // Long before the session is renewed.
        world.clock.advance(TTL / 10);
        assert!(now(other.acquire_now(1)).is_ok(), "{fault:?}");
        assert_eq!(
            now(other.acquire_now(2)).unwrap_err().reason(),
            Reason::Saturated,
            "no more than that"
        );
        drop(keeps);
    }
}

#[test]
fn a_lease_counts_from_when_it_was_asked_for() {
    let late = Duration::from_millis(700);
    let world = World::new(Fault::Late(late));
    let remote = world.build(world.permits(1));
    let good_for = world.clock.run(async { remote.acquire(1).await.unwrap().good_for() });
    assert_eq!(good_for, Some(TTL * 99 / 100 - late));
}

#[test]
fn a_lease_runs_out_while_a_renewal_is_under_way() {
    let world = World::new(Fault::None);
    let remote = world.build(world.permits(1).timeout(TTL / 2));
    let permit = now(remote.acquire(1)).unwrap();
    world.line.set(Fault::Silent);
    world.clock.advance(TTL * 99 / 100 - Duration::from_nanos(1));
    assert!(!permit.is_lost());
    world.clock.advance(Duration::from_nanos(1));
    assert!(permit.is_lost());
    assert_eq!(remote.stats().losses, 1);
    // Back again, the store grants the lost tokens once, and not their remainder again.
    world.line.set(Fault::None);
    world.clock.advance(TTL);
    drop(permit);
    let next = now(remote.acquire(1)).unwrap();
    assert_eq!(now(remote.acquire_now(1)).unwrap_err().reason(), Reason::Saturated);
    drop(next);
}

#[test]
fn while_the_store_is_away_requests_are_refused_and_permits_stay_good() {
    let world = World::new(Fault::None);
    let remote = world.build(world.permits(2));
    let permit = now(remote.acquire(1)).unwrap();
    world.line.set(Fault::Cut);
    let mut waits = pin!(remote.acquire(1));
    assert!(poll(waits.as_mut()).is_pending(), "it may be back soon");
    world.clock.advance(TTL / 3);
    let Poll::Ready(Err(refused)) = poll(waits.as_mut()) else {
        panic!("away")
    };
    assert_eq!(refused.reason(), Reason::Unavailable);
    assert_eq!(
        now(remote.acquire(1)).unwrap_err().reason(),
        Reason::Unavailable,
        "at once"
    );
    assert_eq!(remote.try_acquire(1).unwrap_err().reason(), Reason::Unavailable);
    assert!(remote.stats().unavailable && !permit.is_lost());
    assert_eq!(
        remote.stats().last_error,
        Some(StoreError::Unreachable { why: "cut".into() })
    );
    world.line.set(Fault::None);
    world.clock.advance(TTL / 10);
    assert!(now(remote.acquire(1)).is_ok());
}

/// Every caller was refused, the lease had expired, and the store had been told as often as planned: nothing was left to send.
#[test]
fn a_store_that_is_back_is_found_without_a_request() {
    let world = World::new(Fault::None);
    let remote = world.build(world.permits(2));
    drop(now(remote.acquire(1)).unwrap());
    world.line.set(Fault::Cut);
    assert!(poll(pin!(remote.acquire(1))).is_pending(), "something fails");
    world.clock.advance(10 * TTL);
    assert!(remote.stats().unavailable);
    world.line.set(Fault::None);
    world.clock.advance(TTL / 10);
    assert!(!remote.stats().unavailable);
    assert!(now(remote.acquire(1)).is_ok());
}

#[test]
fn while_the_store_is_away_requests_are_admitted_where_that_was_chosen() {
    let world = World::new(Fault::Cut);
    let remote = world.build(world.permits(1).on_unavailable(OnUnavailable::Admit));
    let mut waits = pin!(remote.acquire(5));
    assert!(poll(waits.as_mut()).is_pending());
    world.clock.advance(TTL / 3);
    let Poll::Ready(Ok(first)) = poll(waits.as_mut()) else {
        panic!("admitted")
    };
    let second = remote.try_acquire(5).unwrap();
    assert_eq!(
        (first.fence(), first.is_lost(), remote.stats().admitted_unavailable),
        (None, false, 2)
    );
    world.line.set(Fault::None);
    world.clock.advance(TTL);
    drop((first, second));
    let counted = now(remote.acquire(1)).unwrap();
    assert_eq!((remote.stats().in_use_here, counted.is_lost()), (1, false));
}

/// Given tokens taken without the lock, an admission that counts none, and more tokens, then all those tokens are spent.
#[test]
fn while_the_store_is_away_leased_tokens_beside_uncounted_admissions_are_spent_once() {
    let world = World::new(Fault::None);
    let quota = Quota::per_second(100).burst(20);
    let rate = Remote::rate(Key::new("rate").unwrap(), quota).on(&world.clock).ttl(TTL);
    let rate = world.build(rate.capacity().on_unavailable(OnUnavailable::Admit));
    assert!(rate.try_acquire(1).is_err(), "its part comes empty");
    world.clock.advance(TTL);
    world.line.set(Fault::Cut);
    while !rate.stats().unavailable {
        world.clock.advance(TTL / 100);
    }
    let take = |tokens: u64| (0..tokens).for_each(|_| drop(rate.try_acquire(1).unwrap()));
    take(10);
    assert_eq!(rate.stats().available_here, 10);
    take(5);
    drop(rate.try_acquire(15).unwrap());
    assert_eq!(rate.stats().admitted_unavailable, 1);
    take(5);
    assert_eq!((rate.stats().available_here, rate.stats().admitted_unavailable), (0, 1));
}

#[test]
fn while_the_store_is_away_a_share_is_admitted_where_that_was_chosen() {
    let world = World::new(Fault::Cut);
    let remote = world.build(world.permits(6).on_unavailable(OnUnavailable::Share { of: 3 }));
    world.clock.run(async {
        let _first = remote.acquire(1).await.unwrap();
    });
    let (one, other) = (remote.try_acquire(1).unwrap(), remote.try_acquire(1).unwrap());
    assert_eq!(
        remote.try_acquire(1).unwrap_err().reason(),
        Reason::Saturated,
        "two of six"
    );
    let mut waits = pin!(remote.acquire(1));
    assert!(poll(waits.as_mut()).is_pending());
    drop(one);
    let Poll::Ready(Ok(third)) = poll(waits.as_mut()) else {
        panic!("the share has room")
    };
    drop((other, third));

    let quota = Quota::per_second(30).burst(6);
    let rate = Remote::rate(Key::new("rate").unwrap(), quota).on(&world.clock).ttl(TTL);
    let rate = world.build(rate.on_unavailable(OnUnavailable::Share { of: 3 }));
    let start = world.clock.elapsed();
    world.clock.run(async {
        for _ in 0..12 {
            drop(rate.acquire(1).await.unwrap());
        }
    });
    // Two at once, then ten a second, from when it counts as away; in whole microseconds.
    let took = world.clock.elapsed() - start;
    assert_eq!(took.as_millis(), (TTL / 3 + Duration::from_secs(1)).as_millis());
}

#[test]
fn a_policy_is_refused_while_the_store_is_away_and_goes_on_when_it_is_back() {
    let world = World::new(Fault::Cut);
    let policy = Policy::builder()
        .on(&world.clock)
        .limit(world.build(world.permits(1)).named("shared"))
        .build()
        .unwrap();
    let refused = world
        .clock
        .run(async { policy.admit(Ask::one()).await.map(drop).unwrap_err() });
    assert_eq!((refused.reason(), refused.leg()), (Reason::Unavailable, "shared"));
    assert!(refused.is_retryable());
    world.line.set(Fault::None);
    world.clock.advance(TTL);
    assert!(
        world
            .clock
            .run(async { policy.admit(Ask::one()).await.map(drop) })
            .is_ok()
    );
}

#[test]
fn a_whole_policy_goes_remote() {
    const TOKENS: Cost = Cost::new("tokens");
    let world = World::new(Fault::None);
    let key = |name: &str| Key::new(name).unwrap();
    let gate = || {
        let calls = Remote::rate(key("calls"), Quota::per_second(10).burst(5)).on(&world.clock);
        let tokens = Remote::rate(key("tokens"), Quota::per_second(10_000)).on(&world.clock);
        let window = Remote::window(key("window"), 40, Duration::from_secs(2)).on(&world.clock);
        Policy::builder()
            .on(&world.clock)
            .limit(world.build(calls).named("calls"))
            .limit(
                world
                    .build(tokens.prefetch(Prefetch::up_to(200)))
                    .per(TOKENS)
                    .named("tokens"),
            )
            .limit(world.build(window).named("window"))
            .limit(world.build(world.permits(2)).named("in flight"))
            .build()
            .unwrap()
    };
    let (one, other) = (gate(), gate());
    let start = world.clock.elapsed();
    world.clock.run(async {
        for n in 0..15 {
            let gate = if n % 2 == 0 { &one } else { &other };
            let mut permit = gate.admit(Ask::one().cost(TOKENS, 100)).await.unwrap();
            assert_eq!(permit.settle(TOKENS, 50), Ok(1));
        }
    });
    assert_eq!(
        world.clock.elapsed() - start,
        Duration::from_secs(1),
        "five at once, and ten more"
    );
}

#[test]
fn a_charge_that_was_too_low_is_reported_to_the_store() {
    const TOKENS: Cost = Cost::new("tokens");
    let world = World::new(Fault::None);
    let build = || {
        let rate = Remote::rate(Key::new("rate").unwrap(), Quota::per_second(10).burst(10)).on(&world.clock);
        world.build(rate.prefetch(Prefetch {
            low: 5,
            ..Prefetch::up_to(5)
        }))
    };
    let (one, other) = (build(), build());
    let gate = one.per(TOKENS);
    // Five are at hand at each; nothing is left.
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 5)).unwrap();
    permit.settle(TOKENS, 9).unwrap();
    assert_eq!(
        other.try_acquire(5).map(drop).map_err(|refused| refused.reason()),
        Ok(())
    );
    let start = world.clock.elapsed();
    world.clock.run(async { drop(other.acquire(1).await.unwrap()) });
    assert!(
        world.clock.elapsed() - start >= Duration::from_millis(500),
        "the debt of four is paid first"
    );
}

/// A rate grants for later. A grant to a waiter that has gone is there for the next at a known instant.
#[test]
fn a_grant_for_later_is_ready_then_and_not_before() {
    let world = World::new(Fault::None);
    let rate = Remote::rate(Key::new("calls").unwrap(), Quota::per_second(10).burst(3));
    let remote = world.build(rate.on(&world.clock));
    drop(now(remote.acquire(3)).unwrap());
    {
        let mut waits = pin!(remote.acquire(2));
        assert!(poll(waits.as_mut()).is_pending());
    }
    let ready = |n| {
        let refusal = remote.try_acquire(n).unwrap_err();
        assert_eq!(refusal.reason(), Reason::RateExceeded);
        let (ask, reading) = (Ask::many(n), ClockReading::default());
        remote.look(&Demand::new(&ask, &reading)).unwrap_err().wait()
    };
    let begun = world.clock.now();
    let at = world.clock.clock().after(begun, Duration::from_millis(200));
    for n in [1, 2] {
        assert_eq!(ready(n), Wait::Until { nanos: 200_000_000, at });
    }
    assert_eq!(ready(3), Wait::EVENT, "that is more than was granted");
    world
        .clock
        .advance(Duration::from_millis(200) - Duration::from_nanos(1));
    assert_eq!(ready(2), Wait::Until { nanos: 1, at });
    world.clock.advance(Duration::from_nanos(1));
    drop(remote.try_acquire(2).unwrap());
}

/// A lost grant, of a request that has gone, is repeated beside a refusal: the end of the refusal says nothing of it.
#[test]
fn a_grant_beside_a_refusal_does_not_stop_the_next_request() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let world = World::new(Fault::None);
    let window = Remote::window(Key::new("shared").unwrap(), 10, HOUR).ttl(TTL);
    let remote = world.build(window.on(&world.clock));
    world.line.set(Fault::Unheard(1));
    assert!(poll(pin!(remote.acquire_now(4)).as_mut()).is_pending());
    let mut waits = pin!(remote.acquire(8));
    assert!(poll(waits.as_mut()).is_pending());
    for _ in 0..8 {
        world.clock.advance(TTL / 4);
        assert!(poll(waits.as_mut()).is_pending());
    }
    let syncs = remote.stats().syncs;
    world.clock.advance(TTL);
    assert!(remote.stats().syncs > syncs, "its place is to be kept");
    world.clock.advance(HOUR + HOUR / 32);
    assert!(poll(waits.as_mut()).is_ready());
    assert!(now(remote.acquire_now(3)).is_err());
}

/// One step is under way at a time, and all changes meanwhile go into the next one.
#[test]
fn a_storm_of_cancels_costs_no_more_steps_than_round_trips() {
    const TRIP: Duration = Duration::from_millis(10);
    const STORM: u32 = 1_000;
    for with_policy in [true, false] {
        let world = World::new(Fault::None);
        let held = world.build(world.permits(1));
        let held = now(held.acquire(1)).unwrap();
        let remote = Arc::new(world.build(world.permits(1).ttl(Duration::from_secs(600))));
        let shared = Policy::builder()
            .on(&world.clock)
            .limit(Arc::clone(&remote))
            .build()
            .unwrap();
        world.line.set(Fault::Late(TRIP));
        let wait = || -> Pin<Box<dyn Future<Output = bool>>> {
            let (shared, remote) = (shared.clone(), Arc::clone(&remote));
            match with_policy {
                true => Box::pin(async move { shared.admit(Ask::one()).await.is_ok() }),
                false => Box::pin(async move { remote.acquire(1).await.is_ok() }),
            }
        };
        let storm = || {
            let mut waits: Vec<_> = (0..STORM).map(|_| wait()).collect();
            assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
            world.clock.advance(10 * TRIP);
            (waits, remote.stats().syncs)
        };
        // All at once.
        let (waits, before) = storm();
        drop(waits);
        world.clock.advance(10 * TRIP);
        let syncs = remote.stats().syncs - before;
        assert!((1..=2).contains(&syncs), "{syncs} steps, with a policy: {with_policy}");
        // One after the other, ten in a round trip.
        let (waits, before) = storm();
        for wait in waits {
            drop(wait);
            world.clock.advance(TRIP / 10);
        }
        world.clock.advance(10 * TRIP);
        let syncs = remote.stats().syncs - before;
        assert!(
            syncs <= u64::from(STORM / 10 + 2),
            "{syncs} steps, with a policy: {with_policy}"
        );
        drop(held);
    }
}

/// A store whose clock stands still while it is away finds all leases alive when it is back.
#[test]
fn a_session_that_ended_in_a_long_outage_is_ended_at_the_store_once_it_is_back() {
    let (world, there) = (World::new(Fault::None), ManualClock::new());
    let line = Arc::new(Faulty {
        store: Memory::new(&there),
        clock: world.clock.clock().clone(),
        fault: Mutex::new(Fault::None),
    });
    let remote = world.permits(1).in_place(Arc::clone(&line)).unwrap();
    let held = now(remote.acquire(1)).unwrap();
    for fault in [Fault::Cut, Fault::Silent] {
        line.set(fault);
        // Enough for many attempts.
        for _ in 0..60 {
            world.clock.advance(TTL / 4);
        }
        assert!(held.is_lost());
        line.set(Fault::None);
        // One step of the store that succeeds, not a time to live.
        world.clock.advance(Duration::from_secs(2));
        drop(now(remote.acquire(1)).unwrap());
    }
    line.set(Fault::Cut);
    // A closed limiter does not try for ever.
    assert!(poll(pin!(remote.close()).as_mut()).is_pending());
    world.clock.advance(TTL);
    now(remote.close());
}

/// No step is so long that others wait for it: it carries a part of many waiters, and the next step another.
#[test]
fn many_waiters_come_to_the_store_in_several_steps_and_in_order() {
    const WAITERS: usize = 1_000;
    let world = World::new(Fault::None);
    let other = world.build(world.permits(1));
    let held = now(other.acquire(1)).unwrap();
    let remote = world.build(world.permits(1).ttl(Duration::from_secs(600)));
    world.line.set(Fault::Late(Duration::from_millis(10)));
    let mut waits: Vec<_> = (0..WAITERS).map(|_| Box::pin(remote.acquire(1))).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    world.clock.advance(Duration::from_millis(500));
    let (steps, waiting) = (remote.stats().syncs, remote.stats().waiting);
    assert!(
        steps >= 4 && waiting == WAITERS as u64,
        "{steps} steps, {waiting} waiting"
    );
    world.line.set(Fault::None);
    drop(held);
    for mut wait in waits.into_iter() {
        world.clock.advance(Duration::from_millis(50));
        let Poll::Ready(Ok(permit)) = poll(wait.as_mut()) else {
            panic!("the next in order has none")
        };
        drop(permit);
    }
}

/// A change does not wait for a store that is away. It is carried out once the store is back.
#[test]
fn a_limit_is_not_set_while_the_store_is_unavailable_and_is_afterwards() {
    let world = World::new(Fault::None);
    let remote = world.build(world.permits(2));
    // No unit is here, and the store was not asked.
    assert_eq!(remote.try_acquire(1).unwrap_err().reason(), Reason::RoundTrip);
    drop(now(remote.acquire(1)).unwrap());
    world.line.set(Fault::Cut);
    {
        let mut change = pin!(remote.set_limit(3));
        assert!(poll(change.as_mut()).is_pending());
        world.clock.advance(TTL * 2);
        assert_eq!(poll(change.as_mut()), Poll::Ready(Err(RemoteError::Unavailable)));
    }
    assert_eq!(now(remote.set_limit(4)), Err(RemoteError::Unavailable));
    world.line.set(Fault::None);
    world.clock.advance(TTL);
    assert_eq!(remote.stats().limit, 4);
    world.line.set(Fault::Cut);
    let mut change = pin!(remote.set_limit(5));
    assert!(poll(change.as_mut()).is_pending());
    assert!(poll(pin!(remote.close()).as_mut()).is_pending());
    assert_eq!(poll(change.as_mut()), Poll::Ready(Err(RemoteError::Closed)));
}
