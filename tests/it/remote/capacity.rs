//! Rates whose capacity is leased: no span holds more than the burst and the refill, whatever happens.

use crate::remote::faults::{World as Faulty, sleep};
use crate::remote::world::{World, now, poll};
use futures::future::{Either, join, join_all, select};
use proptest::prelude::*;
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{
    Backend, Key, Memory, Prefetch, Remote, RemoteBuilder, RemoteError, Rule, Session, StoreError, SyncReply,
    SyncRequest,
};
use tollgate::{Ask, Cost, LimiterExt, ManualClock, Quota, Reason};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const TOKENS: Cost = Cost::new("tokens");
const TTL: Duration = Duration::from_secs(2);

/// Admissions: the microsecond, and the tokens that were not given back.
#[derive(Default)]
pub(super) struct Spent(RefCell<Vec<(u64, u64)>>);

impl Spent {
    pub(super) fn add(&self, at: Duration, n: u64) -> usize {
        let mut spent = self.0.borrow_mut();
        spent.push((at.as_micros() as u64, n));
        spent.len() - 1
    }

    fn reduce(&self, which: usize, to: u64) {
        self.0.borrow_mut()[which].1 = to;
    }

    fn tokens(&self) -> u64 {
        self.0.borrow().iter().map(|(_, n)| n).sum()
    }

    /// The tokens from an instant on.
    pub(super) fn since(&self, from: Duration) -> u64 {
        let from = from.as_micros() as u64;
        let spent = self.0.borrow();
        spent.iter().filter(|(at, _)| *at >= from).map(|(_, n)| n).sum()
    }

    /// The most in any span beyond the refill of `rate` a second, in millionths of a token.
    pub(super) fn excess(&self, rate: u64) -> u64 {
        let (mut level, mut last, mut most) = (0_u64, 0, 0);
        for &(at, n) in &*self.0.borrow() {
            level = level.saturating_sub((at - last) * rate) + n * 1_000_000;
            (last, most) = (at, most.max(level));
        }
        most
    }
}

/// Runs `inner`, but not between two instants, as of a suspended process.
async fn suspended(clock: &ManualClock, from: Duration, until: Duration, inner: impl Future<Output = ()>) {
    let clock = (clock, clock.clock());
    let mut inner = pin!(inner);
    let begun = clock.0.elapsed();
    let mut wakes = pin!(async {
        sleep(clock.1, from - begun).await;
        sleep(clock.1, until - from).await;
    });
    let mut is_awake = false;
    poll_fn(|cx| {
        is_awake = is_awake || wakes.as_mut().poll(cx).is_ready();
        if (from..until).contains(&clock.0.elapsed()) {
            return Poll::Pending;
        }
        inner.as_mut().poll(cx)
    })
    .await;
}

fn leased(world: &Faulty, quota: Quota, client: u64) -> RemoteBuilder {
    Remote::rate(Key::new("rate").unwrap(), quota)
        .on(world.clock.clock())
        .client(client)
        .ttl(TTL)
        .timeout(200 * MS)
        .unavailable_after(Duration::from_secs(86_400))
        .capacity()
}

/// Machines with callers that ask, give up, cancel and settle, over a store that loses, delays and repeats. Some machines are
/// suspended for longer than their lease, some die, and the store forgets nothing.
fn every_span(seed: u64, lost: u64, rate: u64, burst: u64) {
    let world = Faulty::new(seed, lost);
    let quota = Quota::per_second(rate).burst(burst);
    let spent = Spent::default();
    let begun = world.clock.elapsed();
    let life = Duration::from_secs(20);
    let caller = async |remote: &Arc<Remote<_>>| {
        let settled = Arc::clone(remote).per(TOKENS);
        while world.clock.elapsed() < begun + life {
            sleep(world.clock.clock(), world.dice.roll(40) as u32 * MS).await;
            let n = 1 + world.dice.roll(burst.min(4));
            if world.dice.roll(4) == 0 {
                // Reserved, and cancelled some time later.
                if let Ok(reserved) = remote.try_admit(Ask::many(n)) {
                    let at = spent.add(world.clock.elapsed(), n);
                    sleep(world.clock.clock(), world.dice.roll(900) as u32 * MS).await;
                    reserved.cancel();
                    spent.reduce(at, 0);
                }
                continue;
            }
            let (wait, end) = (pin!(remote.acquire(n)), pin!(sleep(world.clock.clock(), 700 * MS)));
            let Either::Left((Ok(permit), _)) = select(wait, end).await else {
                continue;
            };
            spent.add(world.clock.elapsed(), n);
            drop(permit);
            if let Ok(mut permit) = settled.try_admit(Ask::one().cost(TOKENS, n)) {
                let at = spent.add(world.clock.elapsed(), n);
                sleep(world.clock.clock(), world.dice.roll(60) as u32 * MS).await;
                let actual = world.dice.roll(n + 1);
                assert_eq!(permit.settle(TOKENS, actual), Ok(1));
                spent.reduce(at, actual);
            }
        }
    };
    let machine = async |client: u64| {
        let (remote, driver) = leased(&world, quota, client).build(world.line()).unwrap();
        let remote = Arc::new(remote);
        let callers = async {
            join_all((0..3).map(|_| caller(&remote))).await;
            remote.close().await;
        };
        let all = async {
            join(callers, driver).await;
        };
        let from = begun + Duration::from_millis(1 + world.dice.roll(9_000));
        let until = from + Duration::from_millis(1 + world.dice.roll(3_000));
        let dies = if client == 0 { life / 2 } else { 10 * life };
        let all = pin!(suspended(&world.clock, from, until, all));
        select(all, pin!(sleep(world.clock.clock(), dies))).await;
    };
    world.run(async { drop(join_all((0..[4, 1, 2][seed as usize / 6 % 3]).map(machine)).await) });
    let excess = spent.excess(rate);
    assert!(
        excess <= burst * 1_000_000,
        "seed {seed}, lost {lost}: {excess} millionths of a token, of {burst} tokens at {rate} a second"
    );
    if lost < 10 && burst >= 40 {
        assert!(
            spent.tokens() > rate * 20 / 5,
            "seed {seed}: only {} were spent",
            spent.tokens()
        );
    }
}

#[test]
fn no_span_holds_more_than_the_burst_and_the_refill() {
    for seed in 0..60 {
        every_span(
            seed,
            [0, 5, 20][seed as usize % 3],
            [20, 50][seed as usize % 2],
            [4, 10, 40][seed as usize / 2 % 3],
        );
    }
}

proptest! {
    #![proptest_config(crate::cases(8))]

    #[test]
    fn no_span_holds_more_whatever_is_drawn(seed in any::<u64>(), lost in 0u64..30, rate in 1u64..80, burst in 1u64..60) {
        every_span(seed, lost.max(10), rate, burst);
    }
}

/// A hundred a second, twenty at once.
fn machine(world: &World) -> Remote<Arc<Memory>> {
    let quota = Quota::per_second(100).burst(20);
    world.make(Remote::rate(world.key.clone(), quota).capacity().ttl(TTL))
}

fn at_once<B: Backend>(rate: &Remote<B>) -> usize {
    (0..99).take_while(|_| rate.try_acquire(1).is_ok()).count()
}

/// The admissions of machines that try all the time.
fn tried<B: Backend>(world: &World, machines: &[Remote<B>], time: Duration) -> Vec<usize> {
    let until = world.clock.elapsed() + time;
    let mut all = vec![0; machines.len()];
    while world.clock.elapsed() < until {
        world.clock.advance(5 * MS);
        for (machine, all) in machines.iter().zip(&mut all) {
            *all += at_once(machine);
        }
    }
    all
}

#[test]
fn a_part_comes_empty_and_fills_at_its_rate() {
    let world = World::new();
    let rate = machine(&world);
    assert_eq!(at_once(&rate), 0);
    world.clock.advance(10 * MS);
    assert_eq!(at_once(&rate), 1);
    world.clock.advance(SECOND);
    assert_eq!(at_once(&rate), 20);
    let stats = rate.stats();
    assert_eq!((stats.limit, stats.held, stats.in_use), (20, 20, 20));
}

/// Given tokens that were taken without the lock, then each is counted, and none is there once a waiter is first.
#[test]
fn tokens_at_hand_are_counted_one_by_one_and_overtake_no_waiter() {
    let world = World::new();
    let rate = machine(&world);
    at_once(&rate);
    world.clock.advance(SECOND);
    assert_eq!((at_once(&rate), rate.stats().admitted), (20, 20));
    world.clock.advance(100 * MS);
    for left in [9, 8, 7] {
        drop(rate.try_acquire(1).unwrap());
        assert_eq!(rate.stats().available_here, left);
    }
    (0..3).for_each(|_| drop(rate.try_acquire(1).unwrap()));
    assert_eq!(rate.try_acquire(5).unwrap_err().reason(), Reason::RateExceeded);
    drop(rate.try_acquire(1).unwrap());
    let mut wait = pin!(rate.acquire(10));
    assert!(poll(wait.as_mut()).is_pending());
    assert!(rate.try_acquire(1).is_err(), "three are there");
    // A renewal rounds the level down, by less than a microsecond, and comes at an instant drawn at random.
    world.clock.advance(70 * MS + Duration::from_micros(1));
    assert!(matches!(poll(wait.as_mut()), Poll::Ready(Ok(_))));
    assert_eq!((rate.stats().available_here, rate.stats().admitted), (0, 28));
    world.clock.advance(SECOND);
    assert_eq!(at_once(&rate), 20);
}

#[test]
fn machines_in_need_share_equally_and_an_idle_one_leaves_all_to_them() {
    let world = World::new();
    let machines = [machine(&world), machine(&world), machine(&world)];
    tried(&world, &machines, 4 * TTL);
    let shared = tried(&world, &machines, 5 * SECOND);
    let all: usize = shared.iter().sum();
    assert!((485..=501).contains(&all), "{shared:?}");
    assert!(shared.iter().all(|&one| (150..=185).contains(&one)), "{shared:?}");
    tried(&world, &machines[..1], 4 * TTL);
    let alone = tried(&world, &machines[..1], 5 * SECOND);
    assert!(alone[0] >= 165, "{alone:?}");
}

/// Each needs four fifths of the burst at once.
#[test]
fn large_asks_gather_one_after_the_other() {
    let world = World::new();
    let machines = [machine(&world), machine(&world), machine(&world)];
    let served = RefCell::new([0; 3]);
    world.clock.run(async {
        let ends = sleep(world.clock.clock(), 30 * SECOND);
        let asks = join_all(machines.iter().enumerate().map(async |(which, machine)| {
            loop {
                drop(machine.acquire(16).await.unwrap());
                served.borrow_mut()[which] += 1;
            }
        }));
        select(pin!(asks), pin!(ends)).await;
    });
    let served = served.into_inner();
    assert!(served.iter().all(|&served| served >= 20), "{served:?}");
}

#[test]
fn a_waiter_moves_to_the_next_lease() {
    let world = World::new();
    let quota = Quota::per_second(10).burst(20);
    let rate = world.make(Remote::rate(world.key.clone(), quota).capacity().ttl(TTL));
    let mut waits = Box::pin(rate.acquire(20));
    assert!(poll(waits.as_mut()).is_pending());
    // Found with the next renewal, in three quarters of a third of the time to live or somewhat later. What was gained until then is
    // lost.
    world.store.clear();
    for _ in 0..24 {
        world.clock.advance(100 * MS);
        assert!(poll(waits.as_mut()).is_pending());
    }
    world.clock.advance(300 * MS);
    assert!(poll(waits.as_mut()).is_ready());
}

#[test]
fn a_cancel_comes_back_as_far_as_it_is_not_refilled() {
    for (delay, back) in [(0, 20), (50, 20), (100, 20), (150, 20)] {
        let world = World::new();
        let rate = machine(&world);
        at_once(&rate);
        world.clock.advance(SECOND);
        let reserved = rate.try_admit(Ask::many(20)).unwrap();
        world.clock.advance(delay * MS);
        reserved.cancel();
        assert_eq!(at_once(&rate), back, "after {delay} ms");
    }
    // With half of them here, only the rest that the whole rate has not refilled comes back.
    let world = World::new();
    let machines = [machine(&world), machine(&world)];
    tried(&world, &machines, 4 * TTL);
    world.clock.advance(SECOND);
    let reserved = machines[0].try_admit(Ask::many(9)).unwrap();
    at_once(&machines[0]);
    world.clock.advance(50 * MS);
    reserved.cancel();
    let here = at_once(&machines[0]);
    assert!(
        (6..=7).contains(&here),
        "{here}: two or three gained, and four of nine are back"
    );
}

#[test]
fn a_cancel_that_the_rate_has_refilled_adds_to_no_span() {
    let world = World::new();
    let rate = machine(&world);
    let spent = Spent::default();
    at_once(&rate);
    for _ in 0..3 {
        world.clock.advance(200 * MS);
        let reserved = rate.try_admit(Ask::many(20)).unwrap();
        world.clock.advance(200 * MS);
        spent.add(world.clock.elapsed(), at_once(&rate) as u64);
        reserved.cancel();
        spent.add(world.clock.elapsed(), at_once(&rate) as u64);
    }
    assert_eq!((spent.excess(100), spent.tokens()), (20_000_000, 60));
}

#[test]
fn a_charge_beyond_the_level_is_repaid_before_the_next_token() {
    let world = World::new();
    let rate = machine(&world);
    at_once(&rate);
    world.clock.advance(SECOND);
    let rate = Arc::new(rate);
    let settled = Arc::clone(&rate).per(TOKENS);
    let mut admitted = settled.try_admit(Ask::one().cost(TOKENS, 1)).unwrap();
    assert_eq!(admitted.settle(TOKENS, 120), Ok(1));
    for _ in 0..10 {
        assert_eq!(at_once(&rate), 0);
        world.clock.advance(100 * MS);
    }
    world.clock.advance(10 * MS);
    assert_eq!(at_once(&rate), 1);
}

#[test]
fn a_lease_refuses_unsupported_settings() {
    let world = World::new();
    let rate = machine(&world);
    assert_eq!(now(rate.acquire_now(1)).unwrap_err().reason(), Reason::RateExceeded);
    assert_eq!(now(rate.acquire(21)).unwrap_err().reason(), Reason::Oversized);
    let changed = now(rate.set_quota(Quota::per_second(1)));
    assert!(matches!(changed, Err(RemoteError::Rule { .. })), "{changed:?}");
    let key = || world.key.clone();
    for (builder, error) in [
        (
            Remote::permits(key(), 1),
            "a capacity lease was given, and a number of permits has none",
        ),
        (
            Remote::window(key(), 1, SECOND),
            "a capacity lease was given, and a window has none",
        ),
        (
            Remote::rate(key(), Quota::per_second(9)).prefetch(Prefetch::up_to(1)),
            "a prefetch was given, and a capacity lease has none",
        ),
    ] {
        let built = builder.capacity().in_place(Arc::clone(&world.store));
        assert_eq!(built.unwrap_err().to_string(), error);
    }
}

/// A store that counts permits alone, and sessions of a second at least.
#[derive(Clone)]
struct Clockless(Arc<Memory>);

impl Backend for Clockless {
    fn supports(&self, rule: &Rule, ttl: Duration) -> Result<(), RemoteError> {
        let (what, allowed) = ("time to live", (SECOND, 60 * SECOND));
        match rule {
            Rule::Permits { .. } if ttl < allowed.0 => Err(RemoteError::Duration {
                what,
                given: ttl,
                allowed,
            }),
            Rule::Permits { .. } => Ok(()),
            _ => Err(RemoteError::Unsupported {
                what: "time",
                store: "it",
            }),
        }
    }

    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        assert!(matches!(rule, Rule::Permits { .. }), "{rule:?}");
        self.0.sync(key, rule, sync).await
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.0.notified(key, session).await;
    }
}

#[test]
fn a_store_without_rates_leases_them_unasked() {
    let world = World::new();
    let store = Clockless(Arc::clone(&world.store));
    let build = |builder: RemoteBuilder| builder.on(&world.clock).in_place(store.clone());
    let rate = || Remote::rate(world.key.clone(), Quota::per_second(100).burst(20)).ttl(TTL);
    let unasked = build(rate()).unwrap();
    assert!(unasked.try_acquire(1).is_err());
    world.clock.advance(SECOND);
    assert_eq!(at_once(&unasked), 20);
    // It is one limit with a lease that is asked for.
    let machines = [unasked, build(rate().capacity()).unwrap()];
    tried(&world, &machines, 4 * TTL);
    assert_eq!(machines.map(|machine| machine.stats().held), [10, 10]);
    // What cannot be leased stays unsupported, and a lease needs what permits need.
    for (builder, error) in [
        (rate().prefetch(Prefetch::up_to(1)), "it cannot do time"),
        (
            Remote::window(world.key.clone(), 1, SECOND).ttl(TTL),
            "it cannot do time",
        ),
        (rate().ttl(SECOND / 2), "time to live"),
    ] {
        let refused = build(builder).unwrap_err().to_string();
        assert!(refused.contains(error), "{refused}");
    }
}

/// Given jobs that take what there is once an hour, each in another process, then of a rate of ten an hour all of a day is served, as it is
/// by single steps.
#[test]
fn a_sparse_rate_is_served_as_by_single_steps() {
    let served = |builder: &dyn Fn(RemoteBuilder) -> RemoteBuilder| {
        let world = World::new();
        let processes = [(); 3].map(|()| {
            let rate = Remote::rate(world.key.clone(), Quota::per_hour(10).burst(10));
            world.make(builder(rate))
        });
        (0..24).fold(0, |served, hour| {
            let job = (0..12)
                .filter(|_| now(processes[hour % 3].acquire_now(1)).is_ok())
                .count();
            world.clock.advance(3_600 * SECOND);
            served + job
        })
    };
    assert_eq!(served(&|rate| rate), 240);
    assert_eq!(served(&|rate| rate.capacity()), 240);
}

/// From a token a second on a rate is leased.
#[test]
fn a_rate_of_a_token_a_second_is_leased() {
    let world = World::new();
    let leases = |quota: Quota| {
        let rate = world.make(Remote::rate(world.key.clone(), quota).capacity());
        let _ = now(rate.acquire_now(1));
        rate.stats().units_held > 0
    };
    assert!(leases(Quota::per_second(1)) && leases(Quota::per_minute(60)));
    assert!(!leases(Quota::per_minute(59)));
}
