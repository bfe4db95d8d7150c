//! The lease and the place of a process at a key, beside stores that are slow, other limits, renamed legs and reloads.

use crate::remote::keyed::{Fault, Line, World, bucket};
use crate::remote::world::poll;
use std::collections::BTreeMap;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;
use tollgate::remote::{
    Backend, Key, KeyLeg, KeyedLimits, Memory, RemoteError, RemoteKeyed, RemoteLeg, Rule, Session, Step, StepReply,
    StoreError, SyncReply, SyncRequest,
};
use tollgate::{Ask, Cost, ManualClock};

const TTL: Duration = Duration::from_secs(9);
const TOKENS: Cost = Cost::new("tokens");

fn spec(limit: u64) -> KeyedLimits {
    let legs = [
        bucket("tokens", "100000/s").per(TOKENS),
        RemoteLeg::permits("in-flight", limit),
    ];
    KeyedLimits::new(100, "free", legs)
}

/// One permit, of a leg that has another name.
fn renamed() -> KeyedLimits {
    let tokens = bucket("tokens", "100000/s").per(TOKENS);
    spec(1).tier("free", [tokens, RemoteLeg::permits("calls", 1)])
}

fn ask(calls: u64) -> Ask {
    Ask::many(calls).cost(TOKENS, 10)
}

fn process(world: &World, spec: KeyedLimits) -> RemoteKeyed<Arc<Line>> {
    world.builder(spec).ttl(TTL).in_place(Arc::clone(&world.line)).unwrap()
}

/// A store that takes its time for the way back, and counts; after `most` steps it answers no more.
struct Slow {
    store: Memory,
    clock: ManualClock,
    delay: Duration,
    steps: AtomicUsize,
    most: usize,
}

impl Slow {
    fn new(clock: &ManualClock, delay: Duration, most: usize) -> Arc<Self> {
        Arc::new(Self {
            store: Memory::new(clock),
            clock: clock.clone(),
            delay,
            steps: AtomicUsize::new(0),
            most,
        })
    }

    fn steps(&self) -> usize {
        self.steps.load(Ordering::SeqCst)
    }
}

impl Backend for Slow {
    async fn sync(&self, _: &Key, _: &Rule, _: &SyncRequest) -> Result<SyncReply, StoreError> {
        unreachable!()
    }

    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        self.store.notified(key, session)
    }

    fn leave(&self, key: &Key, session: Session) {
        self.store.leave(key, session);
    }

    fn supports_steps(&self) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn step(&self, key: &Key, legs: &[KeyLeg], step: &Step) -> Result<StepReply, StoreError> {
        if self.steps.fetch_add(1, Ordering::SeqCst) >= self.most {
            return pending().await;
        }
        let reply = self.store.step(key, legs, step).await;
        if !self.delay.is_zero() {
            self.clock.sleep(self.delay).await;
        }
        reply
    }
}

/// A permit that is held is renewed three times in a time to live, also at a store that takes a millisecond.
#[test]
fn a_renewal_is_one_step_at_a_store_that_is_not_instant() {
    let world = World::new();
    let slow = Slow::new(&world.clock, Duration::from_millis(1), usize::MAX);
    let one = world.builder(spec(2)).ttl(TTL).in_place(Arc::clone(&slow)).unwrap();
    let key = one.get("acme").unwrap();
    let _held = world.clock.run(key.acquire_now(ask(1))).unwrap();
    let before = slow.steps();
    world.clock.advance(10 * TTL);
    let steps = slow.steps() - before;
    assert!(steps <= 31, "{steps} steps in ten times to live");
}

/// Two processes with another limit each, one of which wants more than the limit of the other: neither sends without end.
#[test]
fn two_limits_do_not_send_without_end() {
    let world = World::new();
    let store = Slow::new(&world.clock, Duration::ZERO, 1_000);
    let process = |limit| {
        world
            .builder(spec(limit))
            .ttl(TTL)
            .in_place(Arc::clone(&store))
            .unwrap()
    };
    let (holder, old, new) = (process(2), process(2), process(1));
    let holder = holder.get("acme").unwrap();
    let (old, new) = (old.get("acme").unwrap(), new.get("acme").unwrap());
    let _held = world.clock.run(holder.acquire_now(ask(1))).unwrap();
    let mut two = pin!(old.acquire(ask(2)));
    assert!(poll(two.as_mut()).is_pending());
    let mut one = pin!(new.acquire(ask(1)));
    assert!(poll(one.as_mut()).is_pending());
    let steps = store.steps();
    assert!(steps < 20, "{steps} steps, and no time has passed");
}

/// A waiter keeps its place while its process sends many corrections.
#[test]
fn a_place_outlives_a_full_step() {
    let world = World::new();
    let (one, other) = (process(&world, spec(70)), process(&world, spec(70)));
    let (one, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let mut held: Vec<_> = (0..70)
        .map(|_| world.clock.run(one.acquire_now(ask(1))).unwrap())
        .collect();
    let mut first = pin!(one.acquire(ask(1)));
    assert!(poll(first.as_mut()).is_pending());
    let mut second = pin!(other.acquire(ask(1)));
    assert!(poll(second.as_mut()).is_pending());
    world.line.set(Fault::Cut);
    for permit in &mut held {
        permit.settle(TOKENS, 1).unwrap();
    }
    world.line.set(Fault::None);
    world.clock.advance(Duration::from_millis(200));
    drop(held.pop());
    let (first, second) = (poll(first.as_mut()).is_ready(), poll(second.as_mut()).is_ready());
    assert_eq!((first, second), (true, false), "first come, first served");
}

/// A waiter keeps its place when the tiers are read again, and a permit from after that is settled.
#[test]
fn a_place_outlives_a_reload() {
    let world = World::new();
    let (one, other) = (process(&world, spec(1)), process(&world, spec(1)));
    let (before, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    one.apply(&spec(1)).unwrap();
    let after = one.get("acme").unwrap();
    let mut held = world.clock.run(after.acquire_now(ask(1))).unwrap();
    let mut first = pin!(before.acquire(ask(1)));
    assert!(poll(first.as_mut()).is_pending());
    let mut second = pin!(other.acquire(ask(1)));
    assert!(poll(second.as_mut()).is_pending());
    held.settle(TOKENS, 1).unwrap();
    drop(held);
    let (first, second) = (poll(first.as_mut()).is_ready(), poll(second.as_mut()).is_ready());
    assert_eq!((first, second), (true, false), "first come, first served");
}

/// A permit of a leg that has another name now goes back all the same.
#[test]
fn a_permit_of_a_renamed_leg_goes_back() {
    let world = World::new();
    let (one, other) = (process(&world, spec(1)), process(&world, spec(1)));
    let other = other.get("acme").unwrap();
    let old = world.clock.run(one.get("acme").unwrap().acquire_now(ask(1))).unwrap();
    one.apply(&renamed()).unwrap();
    let _new = world.clock.run(one.get("acme").unwrap().acquire_now(ask(1))).unwrap();
    drop(old);
    let mut waits = pin!(other.acquire(ask(1)));
    for _ in 0..100 {
        if poll(waits.as_mut()).is_ready() {
            return;
        }
        world.clock.advance(TTL);
    }
    panic!("it is not there after a hundred times to live");
}

/// An ask that needs no permits waits for its rate.
#[test]
fn an_ask_without_permits_waits() {
    let world = World::new();
    let legs = [
        bucket("requests", "1/s burst 1"),
        RemoteLeg::permits("gpu", 2).per(Cost::new("gpu")),
    ];
    let one = process(&world, KeyedLimits::new(100, "free", legs));
    let key = one.get("acme").unwrap();
    let ask = Ask::one().cost(Cost::new("gpu"), 0);
    drop(world.clock.run(key.acquire_now(ask)).unwrap());
    let second = world
        .clock
        .run(key.acquire(ask))
        .map(drop)
        .map_err(|refusal| refusal.reason());
    assert_eq!(second, Ok(()));
}

/// An ask whose step is given up ends.
#[test]
fn an_ask_ends_though_the_process_was_suspended() {
    let world = World::new();
    let (keyed, driver) = world.builder(spec(2)).ttl(TTL).build(Arc::clone(&world.line)).unwrap();
    let (key, mut driver) = (keyed.get("acme").unwrap(), Box::pin(driver));
    world.line.set(Fault::Cut);
    let mut asks = pin!(key.acquire_now(ask(1)));
    assert!(poll(asks.as_mut()).is_pending());
    assert!(poll(driver.as_mut()).is_pending());
    // The process sleeps between two repetitions, and the store is back.
    world.clock.advance(Duration::from_secs(3_600));
    world.line.set(Fault::None);
    for _ in 0..100 {
        assert!(poll(driver.as_mut()).is_pending());
        if poll(asks.as_mut()).is_ready() {
            return;
        }
        world.clock.advance(TTL);
    }
    panic!("it waits for ever");
}

/// A permit of a leg that has another name now ends with its lease.
#[test]
fn a_permit_of_a_renamed_leg_is_not_held_twice() {
    let world = World::new();
    let lines = [(); 2].map(|()| world.line.another());
    let [one, other] = lines
        .each_ref()
        .map(|line| world.builder(spec(1)).ttl(TTL).in_place(Arc::clone(line)).unwrap());
    let other = other.get("acme").unwrap();
    let held = world.clock.run(one.get("acme").unwrap().acquire_now(ask(1))).unwrap();
    one.apply(&renamed()).unwrap();
    drop(world.clock.run(one.get("acme").unwrap().acquire_now(ask(1))).unwrap());
    // A renewal does not arrive for two thirds of a time to live, as long as the lease lasts.
    lines[0].set(Fault::Cut);
    world.clock.advance(TTL + Duration::from_millis(10));
    assert!(held.is_lost());
    let also = world.clock.run(other.acquire_now(ask(1))).unwrap();
    lines[0].set(Fault::None);
    for _ in 0..300 {
        world.clock.advance(Duration::from_millis(500));
        let valid = [held.is_lost(), also.is_lost()]
            .iter()
            .filter(|is_lost| !**is_lost)
            .count();
        assert!(valid <= 1, "{valid} of one");
    }
}

/// A time to live that is shorter than the way to the store: an ask ends, and takes no permits in vain.
#[test]
fn a_short_time_to_live_does_not_send_without_end() {
    let world = World::new();
    let slow = Slow::new(&world.clock, Duration::from_millis(60), usize::MAX);
    let one = world
        .builder(spec(2))
        .ttl(Duration::from_millis(50))
        .in_place(Arc::clone(&slow))
        .unwrap();
    let key = one.get("acme").unwrap();
    let mut waits = pin!(key.acquire(ask(1)));
    for _ in 0..1_000 {
        if poll(waits.as_mut()).is_ready() {
            return;
        }
        world.clock.advance(Duration::from_millis(100));
    }
    panic!("{} steps, and it still waits", slow.steps());
}

/// A permit that is handed out is not lost already.
#[test]
fn a_permit_that_is_handed_out_is_not_lost() {
    let world = World::new();
    let lines = [(); 2].map(|()| world.line.another());
    let [one, other] = lines
        .each_ref()
        .map(|line| world.builder(spec(1)).ttl(TTL).in_place(Arc::clone(line)).unwrap());
    let (one, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let held = world.clock.run(other.acquire_now(ask(1))).unwrap();
    let mut waits = pin!(one.acquire(ask(1)));
    assert!(poll(waits.as_mut()).is_pending());
    drop(held);
    lines[0].set(Fault::Cut);
    world.clock.advance(2 * TTL);
    // By now another has it.
    let _held = world.clock.run(other.acquire_now(ask(1))).unwrap();
    lines[0].set(Fault::None);
    if let Poll::Ready(Ok(permit)) = poll(waits.as_mut()) {
        assert!(!permit.is_lost(), "it was lost before it was handed out");
    }
}

/// A permit that was lost stays so, though the store has renewed it.
#[test]
fn a_lost_permit_stays_lost() {
    let world = World::new();
    let one = process(&world, spec(1));
    let key = one.get("acme").unwrap();
    let held = world.clock.run(key.acquire_now(ask(1))).unwrap();
    world.clock.advance(TTL / 3 - Duration::from_millis(1));
    world.line.set(Fault::Unheard);
    world.clock.advance(TTL * 66 / 100 + Duration::from_millis(1));
    assert!(held.is_lost());
    world.line.set(Fault::None);
    world.clock.advance(Duration::from_millis(400));
    assert!(held.is_lost(), "it was lost before");
}

/// Its numbers tell what is held, awaited and lost.
#[test]
fn the_statistics_tell_leases_waiters_losses_and_failures() {
    let world = World::new();
    let one = process(&world, spec(2));
    let keys = ["acme", "umbrella"].map(|key| one.get(key).unwrap());
    let held = keys
        .each_ref()
        .map(|key| world.clock.run(key.acquire_now(ask(1))).unwrap());
    assert!(world.clock.run(keys[0].acquire_now(ask(2))).is_err());
    let mut waits = pin!(keys[0].acquire(ask(2)));
    assert!(poll(waits.as_mut()).is_pending());
    let stats = one.stats();
    assert_eq!((stats.keys, stats.leases, stats.permits, stats.waiting), (2, 2, 2, 1));
    assert_eq!(
        (stats.admitted, stats.refused, stats.losses, stats.failures),
        (2, 1, 0, 0)
    );
    world.line.set(Fault::Cut);
    world.clock.advance(2 * TTL);
    assert!(held.iter().all(|permit| permit.is_lost()));
    assert!(one.stats().unavailable && one.stats().failures > 0);
    world.line.set(Fault::None);
    world.clock.advance(TTL);
    let stats = one.stats();
    assert!(!stats.unavailable, "it is back");
    assert_eq!((stats.leases, stats.permits, stats.losses), (0, 0, 2));
}

/// A waiter has a place, also when it was the rate that refused it.
#[test]
fn a_waiter_for_a_rate_is_not_overtaken() {
    let world = World::new();
    let legs = || {
        let legs = [bucket("requests", "1/s burst 4"), RemoteLeg::permits("in-flight", 4)];
        KeyedLimits::new(100, "free", legs)
    };
    let (one, other) = (process(&world, legs()), process(&world, legs()));
    let (one, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    drop(world.clock.run(other.acquire_now(4)).unwrap());
    let mut waits = pin!(one.acquire(2));
    assert!(poll(waits.as_mut()).is_pending());
    let mut overtook = 0;
    for _ in 0..100 {
        world.clock.advance(Duration::from_secs(1));
        if poll(waits.as_mut()).is_ready() {
            return;
        }
        overtook += usize::from(world.clock.run(other.acquire_now(1)).is_ok());
    }
    panic!("overtaken {overtook} times");
}

/// A store that passes messages on as `Redis` does: to subscriptions that are open, which a step with waiters opens and `leave` closes.
struct Hub {
    store: Memory,
    open: Mutex<BTreeMap<u64, (bool, Option<Waker>)>>,
    seen: Mutex<Vec<u64>>,
}

struct Tap {
    hub: Arc<Hub>,
    clock: ManualClock,
    delay: Duration,
}

impl Backend for Tap {
    async fn sync(&self, _: &Key, _: &Rule, _: &SyncRequest) -> Result<SyncReply, StoreError> {
        unreachable!()
    }

    fn notified(&self, _: &Key, session: Session) -> impl Future<Output = ()> + Send {
        std::future::poll_fn(move |cx| {
            let mut open = self.hub.open.lock().unwrap();
            let (said, waker) = open.entry(session.client).or_default();
            if std::mem::take(said) {
                return Poll::Ready(());
            }
            *waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn leave(&self, _: &Key, session: Session) {
        self.hub.open.lock().unwrap().remove(&session.client);
    }

    fn supports_steps(&self) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn step(&self, key: &Key, legs: &[KeyLeg], step: &Step) -> Result<StepReply, StoreError> {
        if step.lease.is_some_and(|lease| lease.waiting < step.takes.len()) {
            self.hub.open.lock().unwrap().entry(step.client).or_default();
            self.hub.seen.lock().unwrap().push(step.client);
        }
        // The driver runs in between, as it does while a request is on its way.
        if !self.delay.is_zero() {
            self.clock.sleep(Duration::from_millis(1)).await;
        }
        let reply = self.hub.store.step(key, legs, step).await;
        let seen = self.hub.seen.lock().unwrap().clone();
        for client in seen {
            let told = poll(pin!(self.hub.store.notified(key, Session::of_place(client)))).is_ready();
            let mut open = self.hub.open.lock().unwrap();
            if let Some((said, waker)) = open.get_mut(&client).filter(|_| told) {
                *said = true;
                let waker = waker.take();
                drop(open);
                waker.into_iter().for_each(Waker::wake);
            }
        }
        if !self.delay.is_zero() {
            self.clock.sleep(self.delay).await;
        }
        reply
    }
}

/// A message for a place that is left while the wait for the place before ends is heard.
#[test]
fn a_message_is_heard_while_places_change() {
    let world = World::new();
    let hub = Arc::new(Hub {
        store: Memory::new(&world.clock),
        open: Mutex::default(),
        seen: Mutex::default(),
    });
    let process = |delay| {
        let tap = Tap {
            hub: Arc::clone(&hub),
            clock: world.clock.clone(),
            delay: Duration::from_millis(delay),
        };
        world.builder(spec(2)).ttl(TTL).in_place(tap).unwrap()
    };
    let (one, other) = (process(10), process(0));
    let (one, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let a = world.clock.run(other.acquire_now(ask(1))).unwrap();
    let b = world.clock.run(other.acquire_now(ask(1))).unwrap();
    let mut first = pin!(one.acquire(ask(1)));
    assert!(poll(first.as_mut()).is_pending());
    world.clock.advance(Duration::from_millis(100));
    drop(a);
    let mut second = pin!(one.acquire(ask(1)));
    world.clock.advance(Duration::from_millis(5));
    assert!(poll(second.as_mut()).is_pending());
    // The first is served; the step of the second arrives, and its reply is on its way.
    world.clock.advance(Duration::from_millis(10));
    let Poll::Ready(Ok(_first)) = poll(first.as_mut()) else {
        panic!("it is free")
    };
    drop(b);
    world.clock.advance(Duration::from_secs(2));
    assert!(poll(second.as_mut()).is_ready(), "a permit is free, and it still waits");
}
