//! Machines that share permits over a store that loses and delays requests, loses replies, and receives old requests again;
//! some of them die. In virtual time, on one thread: the held permits are known at each instant.

use futures::future::{Either, join_all, select};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tollgate::remote::{
    Backend, Key, Memory, Notification, Prefetch, Remote, RemoteBuilder, Rule, Session, StoreError, SyncReply,
    SyncRequest,
};
use tollgate::{Clock, ManualClock, Quota};

const TTL: Duration = Duration::from_secs(2);

/// A line of numbers that look like chance.
#[derive(Debug)]
pub(crate) struct Dice(Mutex<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// Below `sides`. (Steele and others, SplitMix64.)
    pub(crate) fn roll(&self, sides: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

pub(crate) async fn sleep(clock: &Clock, time: Duration) {
    clock.sleep(time).await;
}

/// A line to the store, of the worst kind.
pub(crate) struct Line {
    store: Arc<Memory>,
    clock: Clock,
    dice: Dice,
    /// Of a hundred messages.
    lost: u64,
    /// Requests that have been sent, to arrive once more.
    sent: Mutex<Vec<(Key, Rule, SyncRequest)>>,
    /// The last message that came.
    told: Mutex<HashMap<Session, Notification>>,
}

impl Line {
    async fn delay(&self) {
        sleep(&self.clock, Duration::from_micros(self.dice.roll(40_000))).await;
    }

    /// Lost in one of two ways: the connection breaks, or no reply arrives.
    async fn lose(&self) -> Result<SyncReply, StoreError> {
        if self.dice.roll(2) == 0 {
            pending::<()>().await;
        }
        Err(StoreError::Unreachable { why: "cut".into() })
    }
}

impl Backend for Line {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        self.delay().await;
        if self.dice.roll(100) < self.lost {
            return self.lose().await;
        }
        let again = {
            let mut sent = self.sent.lock().unwrap();
            sent.push((key.clone(), *rule, sync.clone()));
            // Not the first step of a session that has ended: it would begin again, and last for a time to live.
            let at = self.dice.roll(sent.len() as u64) as usize;
            (self.dice.roll(10) == 0)
                .then(|| sent[at].clone())
                .filter(|old| !old.2.begin)
        };
        if let Some((key, rule, old)) = again {
            let _ = self.store.sync(&key, &rule, &old).await;
        }
        let reply = self.store.sync(key, rule, sync).await;
        if self.dice.roll(100) < self.lost {
            return self.lose().await;
        }
        self.delay().await;
        reply
    }

    async fn notified(&self, key: &Key, session: Session) {
        loop {
            self.store.notified(key, session).await;
            // As it was when it was sent, whatever is said and answered meanwhile.
            let told = self.store.notification(key, session);
            self.delay().await;
            if self.dice.roll(100) >= self.lost {
                self.told.lock().unwrap().insert(session, told);
                return;
            }
        }
    }

    fn notification(&self, _: &Key, session: Session) -> Notification {
        self.told.lock().unwrap().remove(&session).unwrap_or_default()
    }

    fn leave(&self, key: &Key, session: Session) {
        self.store.leave(key, session);
    }
}

/// The units held by valid permits, and the tokens that were seen.
struct Witness {
    limit: u64,
    held: Cell<u64>,
    most: Cell<u64>,
    fences: RefCell<BTreeSet<tollgate::remote::Fence>>,
}

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<Memory>,
    pub(crate) dice: Dice,
    lost: u64,
}

impl World {
    pub(crate) fn new(seed: u64, lost: u64) -> Self {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000));
        let store = Arc::new(Memory::new(&clock));
        Self {
            clock,
            store,
            dice: Dice::new(seed),
            lost,
        }
    }

    pub(crate) fn line(&self) -> Line {
        Line {
            store: Arc::clone(&self.store),
            clock: self.clock.clock().clone(),
            dice: Dice::new(self.dice.roll(u64::MAX)),
            lost: self.lost,
            sent: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// Runs `all`, which must end within an hour.
    pub(crate) fn run(&self, all: impl Future<Output = ()>) {
        let hour = sleep(&self.clock, Duration::from_secs(3_600));
        let ended = self
            .clock
            .run(async { matches!(select(pin!(all), pin!(hour)).await, Either::Left(_)) });
        assert!(ended, "a waiter waits for ever");
    }

    /// A worker that wants a permit now and then, holds it for some time, and gives up sometimes.
    async fn client(&self, remote: &Remote<Line>, witness: &Witness, rounds: u32) {
        for _ in 0..rounds {
            sleep(&self.clock, Duration::from_millis(self.dice.roll(100))).await;
            let n = 1 + self.dice.roll(3);
            let patience = match self.dice.roll(4) {
                0 => Duration::from_millis(self.dice.roll(200)),
                _ => Duration::from_secs(1_000),
            };
            let (wait, end) = (pin!(remote.acquire(n)), pin!(sleep(&self.clock, patience)));
            let acquired = select(wait, end).await;
            let permit = match acquired {
                Either::Left((Ok(permit), _)) => permit,
                Either::Left((Err(_), _)) | Either::Right(_) => continue,
            };
            // It may be lost between its grant and this instant.
            if permit.is_lost() {
                continue;
            }
            assert!(
                witness.fences.borrow_mut().insert(permit.fence().unwrap()),
                "a token was given twice"
            );
            witness.held.set(witness.held.get() + n);
            witness.most.set(witness.most.get().max(witness.held.get()));
            assert!(
                witness.held.get() <= witness.limit,
                "{} of {}",
                witness.held.get(),
                witness.limit
            );
            let work = sleep(&self.clock, Duration::from_millis(self.dice.roll(300)));
            select(pin!(work), pin!(permit.lost())).await;
            witness.held.set(witness.held.get() - n);
        }
    }

    /// A machine with three clients, until they have done their rounds.
    async fn machine(&self, builder: RemoteBuilder, witness: &Witness) {
        let (remote, driver) = builder.build(self.line()).unwrap();
        let clients = async {
            join_all((0..3).map(|_| self.client(&remote, witness, 15))).await;
            remote.close().await;
        };
        futures::future::join(clients, driver).await;
    }
}

fn permits(world: &World) -> RemoteBuilder {
    // It may be away for long, and is waited for.
    Remote::permits(Key::new("shared").unwrap(), 5)
        .on(&world.clock)
        .ttl(TTL)
        .timeout(Duration::from_millis(200))
        .unavailable_after(Duration::from_secs(86_400))
}

/// Never more is held than there is, whatever is lost; every waiter is served; nothing stays behind.
fn holds(seed: u64, lost: u64, prefetch: Option<Prefetch>) {
    let world = World::new(seed, lost);
    let witness = Witness {
        limit: 5,
        held: Cell::new(0),
        most: Cell::new(0),
        fences: RefCell::default(),
    };
    let build = |n: u64| {
        let builder = permits(&world).client(n);
        match prefetch {
            Some(prefetch) if n % 2 == 0 => builder.prefetch(prefetch),
            _ => builder,
        }
    };
    world.run(async {
        join_all((0..4).map(|n| world.machine(build(n), &witness))).await;
    });
    assert_eq!(witness.most.get(), 5, "there was enough demand to see the limit");
    // What an answer that was lost had begun ends by itself.
    world.clock.advance(TTL * 2);
    assert_eq!(world.store.keys(), 0);
}

proptest! {
    #![proptest_config(crate::cases(12))]

    #[test]
    fn permits_are_never_over_admitted_whatever_is_lost(seed in any::<u64>(), lost in 0u64..30) {
        holds(seed, lost, None);
    }

    #[test]
    fn blocks_are_never_over_admitted_whatever_is_lost(seed in any::<u64>(), lost in 0u64..30) {
        holds(seed, lost, Some(Prefetch::up_to(4)));
    }

    /// Given machines that spend tokens by the block, then no span holds more than burst, what comes meanwhile, and a block
    /// for each machine.
    #[test]
    fn rates_by_the_block_stay_within_their_bound(seed in any::<u64>(), lost in 0u64..30, most in 1u64..8) {
        let (machines, burst, rate) = (3, 10, 50);
        let world = World::new(seed, lost);
        let quota = Quota::per_second(rate).burst(burst);
        let spent = RefCell::new(Vec::new());
        let machine = |n: u64| {
            let builder = Remote::rate(Key::new("rate").unwrap(), quota).on(&world.clock).client(n).ttl(TTL);
            let (remote, driver) = builder
                .timeout(Duration::from_millis(200))
                .unavailable_after(Duration::from_secs(86_400))
                .prefetch(Prefetch::up_to(most))
                .build(world.line())
                .unwrap();
            let (world, spent) = (&world, &spent);
            async move {
                let client = async {
                    for _ in 0..100 {
                        if remote.acquire(1).await.is_ok() {
                            spent.borrow_mut().push(world.clock.elapsed());
                        }
                        sleep(&world.clock, Duration::from_millis(world.dice.roll(50))).await;
                    }
                    remote.close().await;
                };
                futures::future::join(client, driver).await;
            }
        };
        world.run(async { drop(join_all((0..machines).map(machine)).await) });
        let spent = spent.into_inner();
        prop_assert_eq!(spent.len(), 300);
        for (at, start) in spent.iter().enumerate() {
            for (n, end) in spent[at..].iter().enumerate() {
                let came = (*end - *start).as_nanos() * u128::from(rate) / 1_000_000_000;
                let bound = u128::from(burst + machines * most) + came;
                prop_assert!((n as u128) < bound, "{} in {:?}, more than {}", n + 1, *end - *start, bound);
            }
        }
    }
}

/// Given many machines that keep blocks at hand, and spend them all at the same instants, then a span holds the burst and what comes in it
/// and in the expiry before it: a bound without the number of machines.
#[test]
fn blocks_of_many_machines_hold_no_more_than_the_refill_of_their_expiry() {
    let (machines, most, burst, rate) = (20, 5, 5, 100);
    let expiry = Duration::from_millis(200);
    let world = World::new(1, 0);
    let spent = RefCell::new(Vec::new());
    let machine = |n: u64| {
        let quota = Quota::per_second(rate).burst(burst);
        let builder = Remote::rate(Key::new("rate").unwrap(), quota)
            .on(&world.clock)
            .client(n);
        let prefetch = Prefetch {
            low: most,
            expiry,
            ..Prefetch::up_to(most)
        };
        let (remote, driver) = builder.ttl(TTL).prefetch(prefetch).build(world.line()).unwrap();
        let (world, spent) = (&world, &spent);
        async move {
            let client = async {
                let first = world.clock.elapsed();
                for round in 1..40 {
                    let at = first + round * Duration::from_millis(170);
                    sleep(world.clock.clock(), at - world.clock.elapsed()).await;
                    while remote.try_acquire(1).is_ok() {
                        spent.borrow_mut().push(world.clock.elapsed());
                    }
                }
                remote.close().await;
            };
            futures::future::join(client, driver).await;
        }
    };
    world.run(async { drop(join_all((0..machines).map(machine)).await) });
    let (mut level, mut last, mut excess) = (0.0_f64, Duration::ZERO, 0.0_f64);
    for at in spent.into_inner() {
        level = (level - (at - last).as_secs_f64() * rate as f64).max(0.0) + 1.0;
        (last, excess) = (at, excess.max(level));
    }
    let bound = burst as f64 + expiry.as_secs_f64() * rate as f64;
    assert!(excess > bound / 2.0 && excess <= bound, "{excess} of {bound}");
}

#[test]
fn waiters_are_served_within_a_time_to_live_of_a_death() {
    for seed in 0..20 {
        let world = World::new(seed, 0);
        let key = || Key::new("shared").unwrap();
        let dies = Duration::from_millis(500 + world.dice.roll(500));
        let start = world.clock.elapsed();
        let gap = RefCell::new((start, Duration::ZERO));
        let served = || {
            let (last, most) = *gap.borrow();
            let now = world.clock.elapsed();
            *gap.borrow_mut() = (now, most.max(now - last));
        };
        let machine = |n: u64| {
            let builder = Remote::permits(key(), 2).on(&world.clock).ttl(TTL).client(n);
            let (remote, driver) = builder.build(world.line()).unwrap();
            let (world, served) = (&world, &served);
            async move {
                let clients = join_all((0..4).map(|_| async {
                    while world.clock.elapsed() - start < Duration::from_secs(6) {
                        let Ok(permit) = remote.acquire(1).await else { return };
                        served();
                        sleep(&world.clock, Duration::from_millis(10)).await;
                        drop(permit);
                    }
                }));
                let clients = async {
                    clients.await;
                    remote.close().await;
                };
                let life = if n < 3 { dies } else { Duration::from_secs(60) };
                let all = pin!(futures::future::join(clients, driver));
                select(all, pin!(sleep(&world.clock, life))).await;
            }
        };
        // Three of six die, and leave places in the queue.
        world.run(async { drop(join_all((0..6).map(machine)).await) });
        let most = gap.borrow().1;
        assert!(most <= TTL + TTL / 10, "seed {seed}: no waiter was served for {most:?}");
    }
}
