//! Programs of several threads under schedules drawn at random, and by priorities (PCT). Build with
//! `RUSTFLAGS="--cfg tollgate_shuttle"`. A lost wake-up shows as a deadlock, which shuttle reports.
//!
//! The schedules are the same in each run, and so is what they find. `SHUTTLE_RANDOM_SEED` draws others.
#![cfg(tollgate_shuttle)]

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::{Config, Runner, thread};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tollgate::{Ask, Eviction, Order, Policy, PolicyBuilder, Semaphore};

#[cfg(feature = "fan-out")]
mod tasks;
#[cfg(feature = "pool")]
mod threads;
mod worlds;

const SEED: u64 = 0x5EED;
const THREADS: usize = 3;
const STEPS: usize = 4;
const LIMIT: usize = 3;

/// Half of the schedules are uniform, half keep priorities and change them at three points. `TOLLGATE_TIMES` multiplies their number.
fn check(schedules: usize, program: fn()) {
    let times = std::env::var("TOLLGATE_TIMES").map_or(1, |times| times.parse().unwrap());
    let schedules: usize = times * schedules;
    let random = RandomScheduler::new_from_seed(SEED, schedules / 2);
    Runner::new(random, Config::default()).run(program);
    let by_priority = PctScheduler::new_from_seed(SEED, 3, schedules / 2);
    Runner::new(by_priority, Config::default()).run(program);
}

/// A semaphore, and a policy that claims its permits in the same queue.
struct Gate {
    semaphore: Arc<Semaphore>,
    policy: Policy<Arc<Semaphore>>,
}

type Builder = PolicyBuilder<Arc<Semaphore>>;

/// One step of a thread: waits, parks, waits in a policy, waits and gives up, tries, resizes, watches.
fn step(Gate { semaphore, policy }: &Gate) {
    let mut rng = thread_rng();
    let (n, class) = (rng.gen_range(1..=LIMIT as u32), rng.gen_range(0..3));
    let ask = Ask::many(n.into()).class(class);
    match rng.gen_range(0..11) {
        0 | 1 => drop(block_on(semaphore.acquire_many(n))),
        2 => drop(semaphore.blocking_acquire_many(n)),
        3 => drop(block_on(policy.admit(ask))),
        4 | 5 => {
            let mut given_up = Box::pin(semaphore.acquire_many(n));
            let polled = poll(given_up.as_mut());
            thread::yield_now();
            drop((given_up, polled));
        }
        6 => {
            let mut given_up = Box::pin(policy.admit(ask));
            let polled = poll(given_up.as_mut());
            thread::yield_now();
            drop((given_up, polled));
        }
        7 | 8 => drop(semaphore.try_acquire_many(n)),
        9 => semaphore.set_limit(rng.gen_range(LIMIT..=LIMIT + 2)),
        _ => drop(poll(Box::pin(semaphore.until_idle()).as_mut())),
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Threads at one semaphore and at a policy over it; in the end everything is back, and the queues are empty. One of them may close the
/// semaphore midway.
fn run(queue: fn(Builder) -> Builder) {
    let (semaphore, closes) = (Arc::new(Semaphore::new(LIMIT)), thread_rng().gen_bool(0.25));
    let policy = queue(Policy::builder().limit(Arc::clone(&semaphore))).build().unwrap();
    let gate = Arc::new(Gate { semaphore, policy });
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                for round in 0..STEPS {
                    step(&gate);
                    if closes && (thread, round) == (0, STEPS / 2) {
                        gate.semaphore.close();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let Gate { semaphore, policy } = &*gate;
    block_on(semaphore.until_idle());
    assert_eq!((semaphore.in_use(), semaphore.waiting(), policy.waiting()), (0, 0, 0));
    assert_eq!(semaphore.available_permits(), semaphore.limit());
}

macro_rules! programs {
    ($($name:ident: $queue:expr;)+) => {
        $(#[test]
        fn $name() {
            check(100_000, || run($queue));
        })+
    };
}

programs! {
    // Keeps out tokio#795, parking_lot#505.
    first_come_first_served: |policy| policy;
    last_come_first_served: |policy| policy.order(Order::Lifo);
    by_priority: |policy| policy.order(Order::Priority { classes: 3, patience: 2 });
    by_shares: |policy| policy.order(Order::Shares(vec![3, 2, 1]));
    bounded: |policy| policy.order(Order::RoundRobin).max_queue(1).eviction(Eviction::Oldest);
}
