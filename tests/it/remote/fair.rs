//! Processes with several callers each that want all they can get of a rate or window by calls, in virtual time: each has an equal part.

use crate::remote::faults::sleep;
use crate::remote::world::World;
use futures::future::{join_all, select};
use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::{
    Backend, Key, Memory, Remote, RemoteBuilder, Rule, Session, StoreError, SyncReply, SyncRequest,
};
use tollgate::{Clock, Quota};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const PROCESSES: usize = 8;

/// A store some time away.
struct Far {
    store: Arc<Memory>,
    clock: Clock,
    delay: Duration,
}

impl Backend for Far {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        sleep(&self.clock, self.delay).await;
        let reply = self.store.sync(key, rule, sync).await;
        sleep(&self.clock, self.delay).await;
        reply
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.store.notified(key, session).await;
    }
}

/// Plays processes of `callers` each, which begin one after the other and hold what they get for some time. Returns the admissions of
/// each process in six seconds.
fn shares(build: impl Fn(Key) -> RemoteBuilder, callers: impl Fn(usize) -> usize, holds: Duration) -> Vec<f64> {
    let world = World::new();
    let (from, end) = (SECOND, 7 * SECOND);
    let begun = world.clock.elapsed();
    let each = RefCell::new(vec![0.0; PROCESSES]);
    let all: Vec<_> = (0..PROCESSES)
        .map(|which| {
            let far = Far {
                store: Arc::clone(&world.store),
                clock: world.clock.clock().clone(),
                delay: Duration::from_micros(100 + 13 * which as u64),
            };
            let builder = build(world.key.clone()).client(which as u64 + 1);
            builder.on(&world.clock).build(far).unwrap()
        })
        .collect();
    let (limits, drivers): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let caller = async |which: usize, number: usize| {
        sleep(world.clock.clock(), (which * number) as u32 * MS).await;
        loop {
            let permit = limits[which].acquire(1).await.unwrap();
            if (from..end).contains(&(world.clock.elapsed() - begun)) {
                each.borrow_mut()[which] += 1.0;
            }
            if !holds.is_zero() {
                sleep(world.clock.clock(), holds).await;
            }
            drop(permit);
        }
    };
    let callers = (0..PROCESSES).flat_map(|which| (0..callers(which)).map(move |number| (which, number)));
    world.clock.run(async {
        let callers = join_all(callers.map(|(which, number)| caller(which, number)));
        let work = futures::future::join(join_all(drivers), callers);
        select(pin!(work), pin!(sleep(world.clock.clock(), end))).await;
    });
    each.into_inner()
}

fn jain(each: &[f64]) -> f64 {
    let squares: f64 = each.iter().map(|one| one * one).sum();
    each.iter().sum::<f64>().powi(2) / (each.len() as f64 * squares)
}

fn rate(key: Key) -> RemoteBuilder {
    Remote::rate(key, Quota::per_second(400).burst(80))
}

fn window(key: Key) -> RemoteBuilder {
    Remote::window(key, 100, SECOND / 2)
}

/// Given eight processes with eight callers each that ask again at once, or after some work, then each process has an equal part of all
/// that there is: what it asks for at once, it asks for at once again.
#[test]
fn processes_share_a_rate_and_a_window_equally() {
    for (build, all) in [(rate as fn(_) -> _, 2_400.0), (window, 1_200.0)] {
        for holds in [Duration::ZERO, MS / 2] {
            let each = shares(build, |_| 8, holds);
            assert!(jain(&each) >= 0.98, "{each:?}");
            assert!(each.iter().sum::<f64>() >= 0.97 * all, "{each:?}");
        }
    }
}

/// Given many waiters for a bucket that fills in less than a request waits for others, then none of its refill is lost.
#[test]
fn waiters_of_a_low_burst_have_the_whole_rate() {
    let world = World::new();
    let rate = world.make(Remote::rate(world.key.clone(), Quota::per_second(2_000).burst(1)));
    let begun = world.clock.elapsed();
    let waiter = async || drop(rate.acquire(1).await.expect("the store is there"));
    world.clock.run(join_all((0..200).map(|_| waiter())));
    let took = world.clock.elapsed() - begun;
    assert!(took <= 105 * MS, "{took:?}");
}
