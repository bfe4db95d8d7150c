//! Random programs on families of pools, of threads or of async tasks: trees of tasks that wait for their children, up and down the pools, behind rates,
//! semaphores and shared slots, with changes of limits, cancels, waits that are given up and handles that are given away. Each
//! program ends, each task is accounted for, and nothing is left. Wild programs have full queues that evict and reject as well, tasks
//! without handles, and submissions that are given up; they run for as long as `TOLLGATE_FUZZ_SECONDS` says.

use crate::pool::kinds::{Handle, Kind, LONG, Pool, block_on, pool, watched};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use std::future::poll_fn;
use std::ops::Range;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tollgate::pool::{Overflow, Priority, TaskError};
use tollgate::{Clock, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};

struct Random(AtomicU64);

impl Random {
    fn below(&self, n: usize) -> usize {
        let x = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % n as u64) as usize
    }
}

struct World {
    pools: Vec<Pool>,
    random: Random,
    started: AtomicUsize,
    ended: AtomicUsize,
    refused: AtomicUsize,
    /// Handles that any task may wait for.
    given: Mutex<Vec<Handle<()>>>,
    wild: bool,
}

/// A task's panic, which its waiter is told.
struct Expected;

/// Counts a task that has started and ends, however it does.
struct Started(Arc<World>);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
    }
}

impl World {
    async fn submit(self: &Arc<Self>, depth: usize, own: Option<usize>) -> Option<Handle<()>> {
        let at = self.random.below(self.pools.len());
        let priority = [Priority::Low, Priority::Normal, Priority::High][self.random.below(3)];
        let pool = self.pools[at].priority(priority);
        let task = task(Arc::clone(self), depth, at);
        if self.wild && own.is_some() {
            match self.random.below(6) {
                0 if own == Some(at) => {
                    let _ = pool.execute(task).await;
                    return None;
                }
                1 => return pool.submit_timeout(task, Duration::from_micros(200)).await.ok(),
                _ => {}
            }
        }
        // A task does not wait for room in its own pool. In others it might wait for ever.
        if own.is_none_or(|own| own == at) {
            pool.submit(task).await.ok()
        } else {
            pool.try_submit(task).ok()
        }
    }

    /// Gives the handle away for that of some other task.
    fn exchanged(&self, handle: Handle<()>) -> Handle<()> {
        let mut given = self.given.lock().unwrap();
        given.push(handle);
        let at = self.random.below(given.len());
        given.swap_remove(at)
    }

    fn awaited(&self, result: Result<(), TaskError>) {
        match result {
            Ok(()) | Err(TaskError::Cancelled | TaskError::Aborted) => {}
            Err(why @ TaskError::Panicked(_)) => assert!(why.into_panic().unwrap().is::<Expected>()),
            Err(TaskError::Discarded) if self.wild => {}
            Err(TaskError::WouldDeadlock) => _ = self.refused.fetch_add(1, Relaxed),
            Err(why) => panic!("{why:?}"),
        }
    }
}

fn task(world: Arc<World>, depth: usize, own: usize) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        world.started.fetch_add(1, Relaxed);
        let started = Started(Arc::clone(&world));
        let random = &world.random;
        let mut handles = Vec::new();
        for _ in 0..if depth == 0 { 0 } else { random.below(4) } {
            handles.extend(world.submit(depth - 1, Some(own)).await);
            if random.below(4) == 0 {
                yield_now().await;
            }
        }
        if random.below(4) == 0 {
            // Polls only those that were woken.
            let mut rest: FuturesUnordered<_> = handles.drain(..).collect();
            while let Some(result) = rest.next().await {
                world.awaited(result);
            }
        }
        for mut handle in handles {
            match random.below(8) {
                0 => _ = handle.cancel(),
                1 => drop(handle),
                2 => {
                    // It is polled a few times, and given up.
                    let mut polls = random.below(4);
                    poll_fn(|cx| {
                        if polls == 0 || Pin::new(&mut handle).poll(cx).is_ready() {
                            return Poll::Ready(());
                        }
                        polls -= 1;
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    })
                    .await;
                }
                // A cycle of threads that wait by handles of other tasks is not seen.
                3 if !matches!((world.wild, &handle), (true, Handle::Threads(_))) => {
                    let other = world.exchanged(handle);
                    world.awaited(other.join().await);
                }
                4 => match handle.join_timeout(Duration::ZERO).await {
                    Ok(result) => world.awaited(result),
                    Err(handle) => world.awaited(handle.join().await),
                },
                _ => world.awaited(handle.join().await),
            }
        }
        drop(started);
        if random.below(16) == 0 {
            resume_unwind(Box::new(Expected));
        }
    })
}

/// The numbers of the programs to run: of a few, or as `TOLLGATE_PROGRAMS` says, `first..end`.
fn seeds(few: Range<u64>) -> Range<u64> {
    let Ok(given) = std::env::var("TOLLGATE_PROGRAMS") else {
        return few;
    };
    let (first, end) = given.split_once("..").expect("first..end");
    first.parse().unwrap()..end.parse().unwrap()
}

/// One program. Returns how many waits were refused.
async fn program(kind: Kind, seed: u64, clock: Clock, wild: bool) -> usize {
    let random = Random(AtomicU64::new(seed.wrapping_mul(7919)));
    let semaphores = [(); 3].map(|()| Arc::new(Semaphore::new(1 + random.below(3))));
    let bucket = || TokenBucket::new(Quota::per_second(20_000).burst(1 + random.below(3) as u64)).on(&clock);
    let overflow = || match if wild { random.below(6) } else { 0 } {
        0..3 => Overflow::Block,
        3 => Overflow::Reject,
        4 => Overflow::DropOldest,
        _ => Overflow::DropNewest,
    };
    macro_rules! family {
        ($($set:ident($to:expr)),*) => {
            pool!(kind, 1 + random.below(3), max_queue(1 + random.below(8)), overflow(overflow()), on(&clock) $(, $set($to))*)
        };
    }
    let pools = (0..1 + random.below(3)).map(|_| {
        let shared = Arc::clone(&semaphores[random.below(3)]);
        match random.below(7) {
            0 => family!(admit_by(Policy::new(bucket()))),
            1 => family!(admit_by(Policy::new(shared))),
            2 => family!(admit_by(Policy::new(bucket().and(shared)))),
            3 => family!(slots(shared)),
            4 => family!(slots(shared), admit_by(Policy::new(bucket()))),
            _ => family!(),
        }
    });
    let pools = pools.collect();
    let world = Arc::new(World {
        pools,
        random,
        started: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
        given: Mutex::default(),
        wild,
    });
    let mut handles = Vec::new();
    for _ in 0..12 {
        let deepest = if world.random.below(8) == 0 { 12 } else { 5 };
        let depth = 1 + world.random.below(deepest);
        handles.extend(world.submit(depth, None).await);
        if world.random.below(4) == 0 {
            let at = world.random.below(world.pools.len());
            world.pools[at].set_limit(1 + world.random.below(3)).unwrap();
        }
    }
    for handle in handles {
        world.awaited(handle.join().await);
    }
    // A task of one pool may submit to another until all are idle at once: each was idle, and nothing was submitted meanwhile.
    let submitted = || world.pools.iter().map(|pool| pool.stats().submitted).sum::<u64>();
    loop {
        let before = submitted();
        if world.pools.iter().all(|pool| pool.stats().unfinished == 0) && submitted() == before {
            break;
        }
        for pool in &world.pools {
            assert!(pool.wait_idle().await);
        }
    }
    world.given.lock().unwrap().clear();
    assert_eq!(world.started.load(Relaxed), world.ended.load(Relaxed), "program {seed}");
    for pool in &world.pools {
        assert!(pool.shutdown(LONG).await.is_clean(), "program {seed}");
        assert_eq!(pool.stats().threads, 0);
    }
    for shared in &semaphores {
        assert_eq!((shared.in_use(), shared.waiting()), (0, 0), "program {seed}");
    }
    world.refused.load(Relaxed)
}

/// On one thread, in virtual time: the same at each run.
#[test]
fn each_random_program_ends_and_leaves_nothing() {
    let (mut refused, seeds) = (0, seeds(0..1_000));
    for seed in seeds.clone() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        refused += runtime.block_on(async {
            let clock = ManualClock::new();
            let program = tokio::spawn(program(Kind::Tasks, seed, clock.clock().clone(), false));
            for _ in 0..50_000 {
                if program.is_finished() {
                    break;
                }
                clock.advance(Duration::from_micros(10));
                yield_now().await;
            }
            assert!(program.is_finished(), "program {seed} stands still");
            program.await.unwrap()
        });
    }
    assert!(refused >= seeds.count() / 9, "{refused} waits of holders were refused");
}

/// On two threads, in real time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_random_program_ends_on_several_threads() {
    for seed in seeds(1_000..1_300) {
        let ended = tokio::time::timeout(LONG, program(Kind::Tasks, seed, Clock::default(), false)).await;
        assert!(ended.is_ok(), "program {seed} stands still");
    }
}

#[test]
fn each_random_program_ends_on_worker_pools() {
    let (mut refused, seeds) = (0, seeds(2_000..2_200));
    for seed in seeds.clone() {
        refused += watched(format_args!("program {seed}"), move || {
            block_on(program(Kind::Threads, seed, Clock::default(), false))
        });
    }
    assert!(refused >= seeds.count() / 9, "{refused} waits of holders were refused");
}

#[test]
#[ignore = "as long as TOLLGATE_FUZZ_SECONDS says"]
fn each_wild_random_program_ends() {
    let seconds = std::env::var("TOLLGATE_FUZZ_SECONDS").map_or(10, |seconds| seconds.parse().unwrap());
    let first = std::env::var("TOLLGATE_PROGRAMS").map_or(0, |first| first.parse().unwrap());
    for kind in [Kind::Threads, Kind::Tasks] {
        let (end, mut seed, mut refused) = (Instant::now() + Duration::from_secs(seconds), first, 0);
        while Instant::now() < end {
            refused += watched(format_args!("{kind:?}, program {seed}"), move || match kind {
                Kind::Threads => block_on(program(kind, seed, Clock::default(), true)),
                Kind::Tasks => {
                    let threads = tokio::runtime::Builder::new_multi_thread()
                        .worker_threads(2)
                        .enable_time()
                        .build();
                    threads.unwrap().block_on(program(kind, seed, Clock::default(), true))
                }
            });
            seed += 1;
        }
        println!(
            "{kind:?}: {} programs, {refused} waits of holders were refused",
            seed - first
        );
    }
}
