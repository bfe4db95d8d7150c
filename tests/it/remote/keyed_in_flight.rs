//! Permits of each of many keys, in one step with their rates: leases, places and returns. In virtual time.

use crate::remote::keyed::{Fault, Line, World, bucket};
use crate::remote::world::poll;
use proptest::prelude::*;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{KeyedLimits, RemoteKey, RemoteKeyPermit, RemoteKeyed, RemoteLeg};
use tollgate::{Ask, LimiterExt, Policy, Reason};

const TTL: Duration = Duration::from_secs(9);

type Permit = RemoteKeyPermit<Arc<Line>>;

/// Ten calls a second and two in flight.
fn spec(limit: u64) -> KeyedLimits {
    let legs = [
        bucket("requests", "10/s burst 10"),
        RemoteLeg::permits("in-flight", limit),
    ];
    KeyedLimits::new(100, "free", legs)
}

impl World {
    /// A process.
    fn process(&self) -> RemoteKeyed<Arc<Line>> {
        self.builder(spec(2)).ttl(TTL).in_place(Arc::clone(&self.line)).unwrap()
    }

    fn now(&self, key: &RemoteKey<Arc<Line>>) -> Result<Permit, (Reason, String)> {
        let acquired = self.clock.run(key.acquire_now(1));
        acquired.map_err(|refusal| (refusal.reason(), refusal.leg().to_string()))
    }
}

fn saturated() -> (Reason, String) {
    (Reason::Saturated, "in-flight".into())
}

/// Given two processes, then they share the permits of a key, which come back when they are dropped, each with one step.
#[test]
fn processes_share_the_permits_of_a_key() {
    let world = World::new();
    let (one, other) = (world.process(), world.process());
    let (one, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let (first, second) = (world.now(&one).unwrap(), world.now(&other).unwrap());
    let steps = world.line.steps();
    assert_eq!(world.now(&one).map(drop), Err(saturated()));
    assert_eq!(world.line.steps(), steps + 1);
    drop(second);
    assert_eq!(world.line.steps(), steps + 2);
    let third = world.now(&one).unwrap();
    assert_eq!(world.line.steps(), steps + 3);
    // All or nothing: eight calls more are the rest of the rate, and the permits are all in use.
    assert_eq!(world.now(&other).map(drop), Err(saturated()));
    drop((first, third));
    let rest = world.clock.run(one.acquire_now(2)).unwrap();
    drop(rest);
    for _ in 0..5 {
        drop(world.now(&other).unwrap());
    }
    let refused = world.now(&other).map(drop);
    assert_eq!(
        refused,
        Err((Reason::RateExceeded, "requests".into())),
        "the refusal takes no permit"
    );
    world.clock.advance(Duration::from_secs(1));
    let _both = world.clock.run(other.acquire_now(2)).unwrap();
}

/// Given waiters of two processes, when permits come back, then they are served in the order in which their processes came.
#[test]
fn waiters_are_served_in_turn() {
    let world = World::new();
    let (one, other) = (world.process(), world.process());
    let (one, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let held = world.clock.run(one.acquire_now(2)).unwrap();
    let mut waits = [
        Box::pin(other.acquire(1)),
        Box::pin(one.acquire(2)),
        Box::pin(other.acquire(1)),
    ];
    for wait in &mut waits {
        assert!(poll(wait.as_mut()).is_pending());
    }
    assert_eq!(world.now(&one).map(drop), Err(saturated()), "it overtakes no waiter");
    drop(held);
    let [first, second, third] = &mut waits;
    let Poll::Ready(Ok(a)) = poll(first.as_mut()) else {
        panic!("the first")
    };
    assert!(poll(second.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
    drop(a);
    let Poll::Ready(Ok(b)) = poll(second.as_mut()) else {
        panic!("the second, who needs both")
    };
    assert!(poll(third.as_mut()).is_pending());
    drop(b);
    assert!(matches!(poll(third.as_mut()), Poll::Ready(Ok(_))));
}

/// Given a waiter that leaves, then those behind it are served.
#[test]
fn a_waiter_that_leaves_takes_its_place_along() {
    let world = World::new();
    let (one, other) = (world.process(), world.process());
    let (one, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let _held = world.now(&one).unwrap();
    {
        let mut large = pin!(one.acquire(2));
        assert!(poll(large.as_mut()).is_pending());
        let mut behind = pin!(other.acquire(1));
        assert!(poll(behind.as_mut()).is_pending(), "the place ahead needs it");
    }
    drop(world.now(&other).unwrap());
    let mut large = Box::pin(one.acquire(2));
    assert!(poll(large.as_mut()).is_pending());
    let mut behind = pin!(other.acquire(1));
    assert!(poll(behind.as_mut()).is_pending());
    drop(large);
    assert!(matches!(poll(behind.as_mut()), Poll::Ready(Ok(_))));
}

/// Given a permit that is held for long, then it is renewed and no other process gets it; when its process is cut off, it ends there first, and
/// then others have it.
#[test]
fn leases_are_renewed_and_end() {
    let world = World::new();
    let (one, other) = (world.process(), world.process());
    let (held, waits) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let held = world.clock.run(held.acquire_now(2)).unwrap();
    let mut waits = pin!(waits.acquire(1));
    let mut lost = pin!(held.lost());
    assert!(poll(waits.as_mut()).is_pending());
    let before = world.line.steps();
    for _ in 0..30 {
        world.clock.advance(TTL / 3);
        assert!(!held.is_lost());
        assert!(held.good_for().unwrap() >= TTL * 65 / 100);
        assert!(poll(lost.as_mut()).is_pending());
        assert!(poll(waits.as_mut()).is_pending());
    }
    let steps = world.line.steps() - before;
    assert!(
        steps <= 30 * 2 + 12,
        "{steps} steps: a renewal each, and one look at the end of a lease"
    );
    world.line.set(Fault::Cut);
    world.clock.advance(TTL * 98 / 100);
    assert!(!held.is_lost());
    let Poll::Ready(Err(refusal)) = poll(waits.as_mut()) else {
        panic!("the store is away")
    };
    assert_eq!(refusal.reason(), Reason::Unavailable);
    world.clock.advance(TTL / 50);
    assert!(held.is_lost());
    assert!(poll(lost.as_mut()).is_ready());
    assert_eq!(held.good_for(), Some(Duration::ZERO));
}

/// Given a store that has forgotten a lease, then its permits are lost with the next renewal, long before their deadline; and the last
/// process that watches a permit leaves nothing behind.
#[test]
fn a_forgotten_lease_is_lost_with_the_next_renewal() {
    let world = World::new();
    let one = world.process();
    let held = one.get("acme").unwrap();
    let held = world.clock.run(held.acquire_now(2)).unwrap();
    let mut given_up = Box::pin(held.lost());
    assert!(poll(given_up.as_mut()).is_pending());
    drop(given_up);
    world.line.store.clear();
    let begun = world.clock.elapsed();
    world.clock.run(held.lost());
    let waited = world.clock.elapsed() - begun;
    assert!(waited <= TTL / 3, "{waited:?}");
    assert!(held.is_lost());
    world.clock.run(held.lost());
    drop(held);
    world.clock.advance(2 * TTL);
    assert_eq!(one.stats().keys, 0);
}

/// Given a process whose driver has gone, as with the process, then its permits are there after a time to live.
#[test]
fn permits_of_the_dead_come_back() {
    let world = World::new();
    let other = world.process();
    let other = other.get("acme").unwrap();
    let dead = world.builder(spec(2)).ttl(TTL).build(Arc::clone(&world.line)).unwrap();
    let (dead, mut driver) = (dead.0.get("acme").unwrap(), Box::pin(dead.1));
    let mut acquires = pin!(dead.acquire_now(2));
    assert!(poll(acquires.as_mut()).is_pending() && poll(driver.as_mut()).is_pending());
    let Poll::Ready(Ok(held)) = poll(acquires.as_mut()) else {
        panic!("they are free")
    };
    drop(driver);
    let begun = world.clock.elapsed();
    let served = world.clock.run(other.acquire(1)).unwrap();
    assert!(held.is_lost());
    let waited = world.clock.elapsed() - begun;
    assert!(waited >= TTL && waited <= TTL + Duration::from_millis(1), "{waited:?}");
    drop(served);
}

/// A return whose reply is lost comes back once, and an admission whose reply is lost is there once.
#[test]
fn lost_replies_lose_no_permit() {
    let world = World::new();
    let (one, other) = (world.process(), world.process());
    let (one, other) = (one.get("acme").unwrap(), other.get("acme").unwrap());
    let first = world.now(&one).unwrap();
    world.line.set(Fault::Unheard);
    drop(first);
    let mut second = pin!(one.acquire_now(1));
    assert!(poll(second.as_mut()).is_pending());
    world.line.set(Fault::None);
    world.clock.advance(Duration::from_millis(200));
    let Poll::Ready(Ok(second)) = poll(second.as_mut()) else {
        panic!("it is there")
    };
    let third = world.now(&other).unwrap();
    assert_eq!(world.now(&other).map(drop), Err(saturated()));
    drop((second, third));
    drop(world.clock.run(other.acquire_now(2)).unwrap());
}

/// Given a policy of this process around a key, then it waits in turn, beside a leg of its own, and gives back what a later leg refuses.
#[test]
fn a_policy_waits_for_permits_of_a_key() {
    let world = World::new();
    let (one, other) = (world.process(), world.process());
    let held = world.clock.run(other.get("acme").unwrap().acquire_now(2)).unwrap();
    let own = Arc::new(tollgate::Semaphore::new(1));
    let policy = Policy::builder()
        .on(&world.clock)
        .limit(one.get("acme").unwrap())
        .limit(Arc::clone(&own))
        .build()
        .unwrap();
    let inner = own.try_admit(1).unwrap();
    let mut waits = pin!(policy.admit(Ask::one()));
    assert!(poll(waits.as_mut()).is_pending());
    drop(held);
    assert!(poll(waits.as_mut()).is_pending(), "the other leg is in use");
    drop(inner);
    let Poll::Ready(Ok(_permit)) = poll(waits.as_mut()) else {
        panic!("both are free")
    };
    let other = other.get("acme").unwrap();
    drop(world.now(&other).unwrap());
}

/// A key without permits in use leaves the process, and a closed limiter gives all back at once.
#[test]
fn nothing_is_left_behind() {
    let world = World::new();
    let (one, other) = (world.process(), world.process());
    let key = one.get("acme").unwrap();
    drop(world.now(&key).unwrap());
    assert_eq!(one.stats().keys, 0);
    let steps = world.line.steps();
    world.clock.advance(10 * TTL);
    assert_eq!(world.line.steps(), steps, "an idle process sends nothing");
    let held = world.clock.run(key.acquire_now(2)).unwrap();
    assert_eq!(one.stats().keys, 1);
    std::mem::forget(held);
    let other = other.get("acme").unwrap();
    assert_eq!(world.now(&other).map(drop), Err(saturated()));
    // A forgotten permit stays held as long as the process lives, however long.
    world.clock.advance(10 * TTL);
    assert_eq!(world.now(&other).map(drop), Err(saturated()));
}

/// Given two tiers, then a changed limit counts from the next admission on, and one that is lowered below a waiter's need refuses it.
#[test]
fn a_changed_limit_takes_effect_with_the_next_admission() {
    let world = World::new();
    let (one, other) = (world.process(), world.process());
    let held = world.clock.run(one.get("acme").unwrap().acquire_now(2)).unwrap();
    let (large, small) = (other.get("acme").unwrap(), other.get("acme").unwrap());
    let mut large = pin!(large.acquire(2));
    assert!(poll(large.as_mut()).is_pending());
    one.apply(&spec(1)).unwrap();
    assert_eq!(world.now(&one.get("acme").unwrap()).map(drop), Err(saturated()));
    drop((held, small));
    // Its own process has the old policy yet, and asks by it again as it renews its place.
    world.clock.advance(TTL / 3);
    assert!(matches!(poll(large.as_mut()), Poll::Ready(Ok(_))));
    drop(world.now(&one.get("acme").unwrap()));
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// A process asks for units, and waits for them or not.
    Ask(usize, u64, bool),
    /// A permit is dropped, or a waiter.
    Drop(usize),
    Leave(usize),
    /// The line of a process.
    Fault(usize, u8),
    /// Milliseconds pass.
    Wait(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (0..3_usize, 1..=2_u64, any::<bool>()).prop_map(|(process, units, waits)| Move::Ask(process, units, waits)),
        3 => any::<usize>().prop_map(Move::Drop),
        1 => any::<usize>().prop_map(Move::Leave),
        1 => (0..3_usize, 0..4_u8).prop_map(|(process, fault)| Move::Fault(process, fault)),
        3 => prop_oneof![1..300_u64, 2_000..12_000_u64].prop_map(Move::Wait),
    ];
    prop::collection::vec(one, 1..60)
}

type Waiting = Pin<Box<dyn Future<Output = Option<(u64, Permit)>>>>;

/// Permits of waiters that were served.
fn serve(waits: &mut Vec<Waiting>, held: &mut Vec<(u64, Permit)>) {
    waits.retain_mut(|wait| match poll(wait.as_mut()) {
        Poll::Ready(permit) => {
            held.extend(permit);
            false
        }
        Poll::Pending => true,
    });
}

proptest! {
    /// Whatever is asked, dropped, lost on the line and waited for: no more permits are valid than there are, none is lost for ever, no
    /// waiter stands still, and nothing is left.
    #[test]
    fn no_permit_is_there_twice_and_none_is_lost(moves in moves()) {
        let world = World::new();
        let lines = [(); 3].map(|()| world.line.another());
        let processes = lines.each_ref().map(|line| world.builder(spec(2)).ttl(TTL).in_place(Arc::clone(line)).unwrap());
        let (mut held, mut waits): (Vec<(u64, Permit)>, Vec<Waiting>) = Default::default();
        for step in moves {
            match step {
                Move::Ask(process, units, queued) => {
                    let key = processes[process].get("acme").unwrap();
                    waits.push(Box::pin(async move {
                        let permit = match queued {
                            true => key.acquire(units).await,
                            false => key.acquire_now(units).await,
                        };
                        permit.ok().map(|permit| (units, permit))
                    }));
                }
                Move::Drop(n) if !held.is_empty() => drop(held.swap_remove(n % held.len())),
                Move::Leave(n) if !waits.is_empty() => drop(waits.remove(n % waits.len())),
                Move::Drop(_) | Move::Leave(_) => {}
                Move::Fault(process, n) => {
                    lines[process].set([Fault::None, Fault::Cut, Fault::Silent, Fault::Unheard][usize::from(n)]);
                }
                Move::Wait(millis) => world.clock.advance(Duration::from_millis(millis)),
            }
            serve(&mut waits, &mut held);
            let valid: u64 = held.iter().filter(|(_, permit)| !permit.is_lost()).map(|(units, _)| units).sum();
            prop_assert!(valid <= 2, "{valid} of two");
        }
        lines.iter().for_each(|line| line.set(Fault::None));
        for _ in 0..waits.len() + 1 {
            held.clear();
            world.clock.advance(TTL);
            serve(&mut waits, &mut held);
        }
        prop_assert!(waits.is_empty(), "{} wait", waits.len());
        held.clear();
        world.clock.advance(5 * TTL);
        for process in &processes {
            let key = process.get("acme").unwrap();
            let all = world.clock.run(key.acquire_now(2));
            prop_assert!(all.is_ok());
            drop(all);
            prop_assert_eq!(process.stats().keys, 0);
        }
    }
}
