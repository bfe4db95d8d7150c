//! A fleet that shares a rate by leases, at saturation, in virtual time: what it uses, how equally, at what cost for the store, and how
//! soon the parts of dead machines are back.

use crate::remote::capacity::Spent;
use crate::remote::faults::sleep;
use crate::remote::world::World;
use futures::future::{join_all, select};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate::Quota;
use tollgate::remote::{Backend, Key, Memory, Remote, Rule, Session, StoreError, SyncReply, SyncRequest};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(10);
/// The machines start in the course of a second, find their parts, are measured, and then some of them die.
const MEASURED: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(50));
const END: Duration = Duration::from_secs(80);

/// The store, as long as the machine lives.
struct Mortal {
    store: Arc<Memory>,
    dead: Arc<AtomicBool>,
}

impl Backend for Mortal {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        // Relaxed: one thread.
        if self.dead.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.store.sync(key, rule, sync).await
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.store.notified(key, session).await;
    }
}

/// What a fleet reaches.
#[derive(Debug)]
struct Reached {
    /// The used part of the rate before the deaths.
    used: f64,
    /// Jain's index of the machines' shares before the deaths.
    jain: f64,
    /// Steps at the store in the busiest second.
    steps: u64,
    /// When the living had 95 % of the dead machines' units, after the deaths.
    back: Duration,
    /// The used part of the rate in the last ten seconds.
    used_later: f64,
    /// The most tokens in a span beyond its refill, rounded up.
    excess: u64,
}

/// Machines that each want all they can get of `2 x machines` tokens a second and a burst of `burst`, one at a time.
fn fleet(machines: usize, burst: u64) -> Reached {
    let world = World::new();
    let rate = machines as u64 * 2;
    let quota = Quota::per_second(rate).burst(burst);
    let spent = Spent::default();
    let all: Vec<_> = (0..machines)
        .map(|which| {
            let dead = Arc::new(AtomicBool::new(false));
            let mortal = Mortal {
                store: Arc::clone(&world.store),
                dead: Arc::clone(&dead),
            };
            let rate = Remote::rate(world.key.clone(), quota).capacity().ttl(TTL);
            let rate = rate.client(which as u64 + 1).on(&world.clock);
            (rate.in_place(mortal).unwrap(), dead)
        })
        .collect();
    let each = RefCell::new(vec![0_u64; machines]);
    let measures = Cell::new(false);
    let machine = async |which: usize, (rate, _): &(Remote<Mortal>, _)| {
        sleep(world.clock.clock(), SECOND * which as u32 / machines as u32).await;
        loop {
            drop(rate.acquire(1).await.unwrap());
            spent.add(world.clock.elapsed(), 1);
            if measures.get() {
                each.borrow_mut()[which] += 1;
            }
        }
    };
    let dying = machines * 3 / 10;
    let deaths = MEASURED.1;
    let begun = world.clock.elapsed();
    let mut reached = None;
    world.clock.run(async {
        let lives = join_all(all.iter().enumerate().map(async |(which, all)| {
            let ends = if which < dying { deaths } else { END };
            let ends = pin!(sleep(world.clock.clock(), ends));
            select(pin!(machine(which, all)), ends).await;
        }));
        let watches = async {
            let syncs = || all.iter().map(|(machine, _)| machine.stats().syncs).sum::<u64>();
            let held = |all: &[(Remote<Mortal>, _)]| all.iter().map(|(rate, _)| rate.stats().units_held).sum::<u64>();
            let (mut last, mut steps, mut back, mut lost) = (0, 0, None, 0);
            for tick in 1..=(END.as_millis() / 100) as u32 {
                let at = 100 * tick * MS;
                sleep(world.clock.clock(), at - (world.clock.elapsed() - begun)).await;
                if tick % 10 == 0 {
                    let now = syncs();
                    steps = steps.max(now - last);
                    last = now;
                }
                measures.set((MEASURED.0..MEASURED.1).contains(&at));
                if at == deaths {
                    let (dead, living) = all.split_at(dying);
                    dead.iter().for_each(|(_, dead)| dead.store(true, Ordering::Relaxed));
                    lost = held(dead);
                    back = Some((held(living) + lost * 95 / 100, None));
                }
                if let Some((enough, at_last @ None)) = &mut back
                    && held(&all[dying..]) >= *enough
                {
                    *at_last = Some(at - deaths);
                }
            }
            assert!(lost > 0);
            reached = Some((steps, back.and_then(|(_, at)| at)));
        };
        futures::future::join(lives, watches).await;
    });
    let (steps, back) = reached.expect("it was watched");
    let each = each.into_inner();
    let sum = each.iter().sum::<u64>() as f64;
    let squares: f64 = each.iter().map(|&one| (one as f64).powi(2)).sum();
    let could = |span: Duration| rate as f64 * span.as_secs_f64();
    let last = begun + END - 10 * SECOND;
    let reached = Reached {
        used: sum / could(MEASURED.1 - MEASURED.0),
        jain: sum.powi(2) / (machines as f64 * squares),
        steps,
        back: back.expect("the units of the dead are back"),
        used_later: spent.since(last) as f64 / could(10 * SECOND),
        excess: spent.excess(rate).div_ceil(1_000_000),
    };
    println!("{machines} machines, a burst of {burst}: {reached:?}");
    assert!(reached.excess <= burst, "{reached:?}");
    reached
}

fn meets_the_bars(machines: usize, burst: u64) {
    let reached = fleet(machines, burst);
    assert!(reached.used >= 0.97 && reached.used_later >= 0.97, "{reached:?}");
    assert!(reached.jain >= 0.98, "{reached:?}");
    assert!(reached.back <= TTL * 13 / 10, "{reached:?}");
    assert!(reached.steps <= 25_000, "{reached:?}");
}

/// Given a fleet of which each machine waits for all it can get, then the rate is used, equally, and soon again by the living when some
/// die.
#[test]
fn a_fleet_shares_a_rate() {
    meets_the_bars(300, 300);
}

/// For `ci/deep`.
#[test]
#[ignore = "minutes of one processor"]
fn ten_thousand_machines_share_a_rate() {
    let machines = std::env::var("TOLLGATE_FLEET").map_or(10_000, |given| given.parse().expect("a number"));
    for burst in [1, 4] {
        meets_the_bars(machines, machines as u64 * burst);
    }
}
