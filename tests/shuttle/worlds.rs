//! Policies that share legs, on threads: every wait ends, no limit is exceeded, and all comes back.

use super::{check, poll};
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use std::time::Duration;
use tollgate::policy::{Class, Partitions};
use tollgate::{Legs, LimiterExt as _, ManualClock, Order, Policy, Quota, Semaphore, TokenBucket};

const THREADS: usize = 3;
const ADMISSIONS: usize = 3;
/// The permits of the semaphore, and of both classes together.
const LIMIT: usize = 2;
/// What a tick adds to the bucket's level: half a token.
const TICK: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Semaphore,
    Bucket,
    Class(usize),
}

struct World {
    clock: ManualClock,
    semaphore: Arc<Semaphore>,
    classes: Arc<Partitions>,
    policies: Vec<(Policy<Legs>, Vec<Kind>)>,
    /// The units that are held: of the semaphore, of the classes.
    held: [AtomicUsize; 2],
}

impl World {
    fn new() -> Self {
        let mut rng = thread_rng();
        let clock = ManualClock::new();
        let semaphore = Arc::new(Semaphore::new(LIMIT));
        let bucket = Arc::new(TokenBucket::new(Quota::per_second(100).burst(2)).on(&clock));
        let classes = Arc::new(Partitions::lent(LIMIT, 2).unwrap());
        let class = [0, 1].map(|class| Arc::<Class>::clone(classes.class(class)));
        let policies = (0..rng.gen_range(2..4)).map(|_| {
            let mut kinds = vec![Kind::Semaphore, Kind::Bucket, Kind::Class(rng.gen_range(0..2))];
            for _ in 0..rng.gen_range(0..3) {
                kinds.swap_remove(rng.gen_range(0..kinds.len()));
            }
            let mut legs = Legs::new();
            for kind in &kinds {
                match *kind {
                    Kind::Semaphore => legs.push(Arc::clone(&semaphore)),
                    Kind::Bucket => legs.push(Arc::clone(&bucket)),
                    Kind::Class(number) => legs.push(Arc::clone(&class[number])),
                }
            }
            let order = [Order::Fifo, Order::Lifo, Order::RoundRobin, Order::Shares(vec![2, 1])];
            let order = order[rng.gen_range(0..order.len())].clone();
            let policy = Policy::builder().limit(legs).order(order).on(&clock).build();
            (policy.unwrap(), kinds)
        });
        let policies = policies.collect();
        Self {
            clock,
            semaphore,
            classes,
            policies,
            held: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    fn held_by(&self, kinds: &[Kind]) -> impl Iterator<Item = &AtomicUsize> {
        let of = [
            kinds.contains(&Kind::Semaphore),
            kinds.iter().any(|kind| matches!(kind, Kind::Class(_))),
        ];
        self.held.iter().zip(of).filter_map(|(held, uses)| uses.then_some(held))
    }

    /// Waits in a policy and works, or gives up, or uses the semaphore past all policies.
    fn step(&self) {
        let mut rng = thread_rng();
        let (policy, kinds) = &self.policies[rng.gen_range(0..self.policies.len())];
        let units = rng.gen_range(1..=LIMIT as u64);
        match rng.gen_range(0..8) {
            0 => {
                let mut given_up = Box::pin(policy.admit(units));
                let polled = poll(given_up.as_mut());
                thread::yield_now();
                drop((given_up, polled));
            }
            1 => drop(block_on(self.semaphore.acquire())),
            2 => drop(policy.try_admit(units)),
            how => {
                let permit = block_on(policy.admit(units)).unwrap();
                for held in self.held_by(kinds) {
                    let before = held.fetch_add(units as usize, Ordering::SeqCst);
                    assert!(
                        before + units as usize <= LIMIT,
                        "{before} and {units} are held of {LIMIT}"
                    );
                }
                thread::yield_now();
                for held in self.held_by(kinds) {
                    held.fetch_sub(units as usize, Ordering::SeqCst);
                }
                match how {
                    3 => permit.cancel(),
                    _ => drop(permit),
                }
            }
        }
    }
}

fn run() {
    let (world, at_work) = (Arc::new(World::new()), Arc::new(AtomicUsize::new(THREADS)));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (world, at_work) = (Arc::clone(&world), Arc::clone(&at_work));
            thread::spawn(move || {
                (0..ADMISSIONS).for_each(|_| world.step());
                at_work.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    while at_work.load(Ordering::SeqCst) > 0 {
        world.clock.advance(TICK);
        thread::yield_now();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!((world.semaphore.in_use(), world.classes.in_use()), (0, 0));
    for (policy, _) in &world.policies {
        assert_eq!(policy.waiting(), 0);
    }
    assert_eq!(world.semaphore.waiting(), 0);
}

/// Given two or three policies over up to three shared legs, when threads wait in them, give up, cancel and use a leg past them while the clock
/// goes on, then every wait ends within the steps that a schedule may have.
#[test]
fn policies_that_share_legs() {
    check(20_000, run);
}
