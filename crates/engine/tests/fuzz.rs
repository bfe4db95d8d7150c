//! Random programs on families of pools: trees of tasks that wait for their children, up and down, with groups, gates, changes of
//! limits, cancels and joins that give up. Each finishes, each task is accounted for once, and nothing is left.
//!
//! `ENGINE_SECONDS=600 cargo test --release -p tollgate-engine --test fuzz` runs new programs for ten minutes.

use futures::stream::{FuturesUnordered, StreamExt};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tollgate::{Policy, Quota, Semaphore, TokenBucket};
use tollgate_engine::*;

struct Random(AtomicU64);

impl Random {
    fn below(&self, n: u64) -> u64 {
        let x = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % n
    }
}

#[derive(Clone)]
enum Any {
    Threads(WorkerPool, Option<Group>),
    Tasks(TaskPool, Option<Group>),
}

struct World {
    pools: Vec<Any>,
    random: Random,
    started: AtomicUsize,
    ended: AtomicUsize,
    refused: AtomicUsize,
    aborted: AtomicBool,
    /// Handles that any task may wait for.
    given: Mutex<Vec<JoinHandle<()>>>,
}

/// A task's panic, which its waiter is told.
struct Expected;

fn wishes(world: &World, group: Option<Group>) -> Wishes {
    let priority = [Priority::Low, Priority::Normal, Priority::Normal, Priority::High][world.random.below(4) as usize];
    Wishes {
        priority,
        group: group.filter(|_| world.random.below(2) == 0),
        ..Wishes::default()
    }
}

/// A task's children, of which it waits for some.
fn on_thread(world: &Arc<World>, depth: u64) {
    world.started.fetch_add(1, Relaxed);
    let mut handles = Vec::new();
    for _ in 0..if depth == 0 { 0 } else { world.random.below(4) } {
        if let Some(handle) = submit(world, depth - 1) {
            handles.push(handle);
        }
    }
    if world.random.below(16) == 0 {
        let at = world.random.below(world.pools.len() as u64) as usize;
        let waited = match &world.pools[at] {
            Any::Threads(pool, _) => pool.wait_idle(),
            Any::Tasks(pool, _) => pool.wait_idle(),
        };
        world.refused.fetch_add(usize::from(waited.is_err()), Relaxed);
    }
    for handle in handles {
        match world.random.below(9) {
            0 => drop(handle.cancel()),
            1 => drop(handle),
            8 => {
                let taken = exchanged(world, handle);
                joined(world, taken.join());
            }
            2 => match handle.join_timeout(Duration::from_micros(world.random.below(200))) {
                Err(JoinError::TimedOut(handle)) if world.random.below(2) == 0 => joined(world, handle.join()),
                result => joined(world, result),
            },
            _ => joined(world, handle.join()),
        }
    }
    world.ended.fetch_add(1, Relaxed);
    if world.random.below(16) == 0 {
        std::panic::resume_unwind(Box::new(Expected));
    }
}

/// Gives the handle away for that of some other task.
fn exchanged(world: &World, handle: JoinHandle<()>) -> JoinHandle<()> {
    let mut given = world.given.lock().unwrap();
    given.push(handle);
    let at = world.random.below(given.len() as u64) as usize;
    given.swap_remove(at)
}

fn joined(world: &World, result: Result<(), JoinError<()>>) {
    match result {
        Ok(()) | Err(JoinError::Task(TaskError::Cancelled)) | Err(JoinError::TimedOut(_)) => {}
        Err(JoinError::Task(TaskError::Panicked(payload))) if payload.is::<Expected>() => {}
        Err(JoinError::Task(TaskError::Abandoned)) if world.aborted.load(Relaxed) => {}
        Err(JoinError::WouldDeadlock(_) | JoinError::TooManyParked(_)) => _ = world.refused.fetch_add(1, Relaxed),
        Err(why) => panic!("{why:?}"),
    }
}

async fn on_task(world: Arc<World>, depth: u64) {
    world.started.fetch_add(1, Relaxed);
    let mut handles = Vec::new();
    for _ in 0..if depth == 0 { 0 } else { world.random.below(4) } {
        // Waiting for room would block the runtime.
        if let Some(handle) = submit_now(&world, depth - 1) {
            handles.push(handle);
        }
        if world.random.below(4) == 0 {
            tokio::task::yield_now().await;
        }
    }
    if world.random.below(4) == 0 {
        // Polls only those that were woken.
        let mut rest: FuturesUnordered<_> = handles.drain(..).collect();
        while let Some(result) = rest.next().await {
            awaited(&world, result);
        }
    }
    for mut handle in handles {
        match world.random.below(8) {
            0 => drop(handle.cancel()),
            1 => drop(handle),
            2 => {
                // It is polled a few times, and given up.
                let mut polls = world.random.below(4);
                std::future::poll_fn(|cx| {
                    if polls == 0 || std::pin::Pin::new(&mut handle).poll(cx).is_ready() {
                        return std::task::Poll::Ready(());
                    }
                    polls -= 1;
                    cx.waker().wake_by_ref();
                    std::task::Poll::Pending
                })
                .await;
            }
            3 => awaited(&world, exchanged(&world, handle).await),
            _ => awaited(&world, handle.await),
        }
    }
    world.ended.fetch_add(1, Relaxed);
    if world.random.below(16) == 0 {
        std::panic::resume_unwind(Box::new(Expected));
    }
}

fn awaited(world: &World, result: Result<Result<(), TaskError>, WouldDeadlock>) {
    match result {
        Ok(Ok(()) | Err(TaskError::Cancelled)) => {}
        Ok(Err(TaskError::Panicked(payload))) if payload.is::<Expected>() => {}
        Ok(Err(TaskError::Abandoned)) if world.aborted.load(Relaxed) => {}
        Err(WouldDeadlock) => _ = world.refused.fetch_add(1, Relaxed),
        Ok(Err(why)) => panic!("{why:?}"),
    }
}

fn submit(world: &Arc<World>, depth: u64) -> Option<JoinHandle<()>> {
    let at = world.random.below(world.pools.len() as u64) as usize;
    submit_to(world, depth, at, world.random.below(4) != 0)
}

fn submit_now(world: &Arc<World>, depth: u64) -> Option<JoinHandle<()>> {
    let at = world.random.below(world.pools.len() as u64) as usize;
    submit_to(world, depth, at, false)
}

fn submit_to(world: &Arc<World>, depth: u64, at: usize, waits: bool) -> Option<JoinHandle<()>> {
    let inner = Arc::clone(world);
    match &world.pools[at] {
        Any::Threads(pool, group) => pool
            .submit_with(&wishes(world, *group), waits, move || on_thread(&inner, depth))
            .ok(),
        Any::Tasks(pool, group) => pool.submit_with(&wishes(world, *group), on_task(inner, depth)).ok(),
    }
}

fn numbers(pool: &Any) -> Numbers {
    match pool {
        Any::Threads(pool, _) => pool.numbers(),
        Any::Tasks(pool, _) => pool.numbers(),
    }
}

/// One program.
fn program(seed: u64, runtime: &tokio::runtime::Runtime) {
    let random = Random(AtomicU64::new(seed.wrapping_mul(7919)));
    let _inside = runtime.enter();
    let semaphores = [(); 3].map(|()| Arc::new(Semaphore::new(1 + random.below(3) as usize)));
    // A rate, a semaphore, or nothing.
    let kind = |random: &Random| random.below(4);
    let bucket = || TokenBucket::new(Quota::per_second(20_000).burst(1 + random.below(3)));
    let mut pools = Vec::new();
    for _ in 0..1 + random.below(3) {
        let (limit, queue) = (1 + random.below(3) as usize, 1 + random.below(8) as usize);
        let max_parked = [8, 256][random.below(2) as usize];
        let threads = random.below(2) == 0;
        let grouped = random.below(3) == 0;
        let limit_of_group = 1 + random.below(2) as usize;
        pools.push(if threads {
            let shared = &semaphores[random.below(3) as usize];
            let pool = match kind(&random) {
                0 => WorkerPool::gated(limit, queue, max_parked, Policy::new(bucket()), Vec::new()),
                1 => {
                    let policy = Policy::new(Arc::clone(shared));
                    WorkerPool::gated(limit, queue, max_parked, policy, vec![Arc::clone(shared)])
                }
                _ => WorkerPool::new(limit, queue, max_parked),
            };
            let group = grouped.then(|| pool.group(limit_of_group));
            Any::Threads(pool, group)
        } else {
            let shared = &semaphores[random.below(3) as usize];
            let pool = match kind(&random) {
                0 => TaskPool::gated(limit, queue, Policy::new(bucket()), Vec::new()),
                1 => {
                    let policy = Policy::new(Arc::clone(shared));
                    TaskPool::gated(limit, queue, policy, vec![Arc::clone(shared)])
                }
                _ => TaskPool::new(limit, queue),
            };
            let group = grouped.then(|| pool.group(limit_of_group));
            Any::Tasks(pool, group)
        });
    }
    let world = Arc::new(World {
        pools,
        random,
        started: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
        aborted: AtomicBool::new(false),
        given: Mutex::default(),
    });
    let finished = Arc::new(AtomicBool::new(false));
    let watch = std::thread::spawn({
        let (world, finished, semaphores) = (Arc::clone(&world), Arc::clone(&finished), semaphores.clone());
        move || {
            let mut last = (usize::MAX, Instant::now());
            while !finished.load(Relaxed) {
                std::thread::park_timeout(Duration::from_millis(50));
                let now = world.started.load(Relaxed) + world.ended.load(Relaxed);
                if now != last.0 {
                    last = (now, Instant::now());
                } else if last.1.elapsed() > Duration::from_secs(10) {
                    eprintln!("program {seed} hangs; {semaphores:?}");
                    for pool in &world.pools {
                        match pool {
                            Any::Threads(pool, _) => eprintln!("threads: {}", pool.describe()),
                            Any::Tasks(pool, _) => eprintln!("tasks: {}", pool.describe()),
                        }
                    }
                    std::process::exit(3);
                }
            }
        }
    });
    let mut handles = Vec::new();
    for _ in 0..20 {
        let depth = 1 + world.random.below(5);
        handles.extend(submit(&world, depth));
        if world.random.below(100) == 0 {
            world.aborted.store(true, Relaxed);
            let at = world.random.below(world.pools.len() as u64) as usize;
            match &world.pools[at] {
                Any::Threads(pool, _) => pool.abort(),
                Any::Tasks(pool, _) => pool.abort(),
            };
        }
        if world.random.below(4) == 0 {
            let at = world.random.below(world.pools.len() as u64) as usize;
            let limit = world.random.below(4) as usize;
            match &world.pools[at] {
                Any::Threads(pool, _) => pool.set_limit(limit),
                Any::Tasks(pool, _) => pool.set_limit(limit),
            }
            if limit == 0 {
                std::thread::yield_now();
                match &world.pools[at] {
                    Any::Threads(pool, _) => pool.set_limit(1),
                    Any::Tasks(pool, _) => pool.set_limit(1),
                }
            }
        }
    }
    for handle in handles {
        joined(&world, handle.join());
    }
    let idle = |pool: &Any| match pool {
        Any::Threads(pool, _) => pool.wait_idle().unwrap(),
        Any::Tasks(pool, _) => pool.wait_idle().unwrap(),
    };
    // A task of one pool may submit to another until all are idle at once.
    while world.pools.iter().any(|pool| numbers(pool).unfinished > 0) {
        world.pools.iter().for_each(idle);
    }
    finished.store(true, Relaxed);
    watch.thread().unpark();
    watch.join().unwrap();
    assert_eq!(world.started.load(Relaxed), world.ended.load(Relaxed));
    for pool in &world.pools {
        let numbers = numbers(pool);
        assert_eq!(
            (numbers.running, numbers.parked, numbers.queued),
            (0, 0, 0),
            "program {seed}"
        );
    }
    // An admission that came for a task that was cancelled is given back after the task has ended.
    let end = Instant::now() + Duration::from_secs(10);
    for shared in &semaphores {
        while shared.in_use() > 0 {
            assert!(
                Instant::now() < end,
                "program {seed}: {} permits are out",
                shared.in_use()
            );
            std::thread::yield_now();
        }
        assert_eq!(shared.waiting(), 0, "program {seed}");
    }
}

#[test]
fn each_random_program_finishes_and_leaves_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("ENGINE_SEED") {
        return program(seed, &runtime);
    }
    let end = number("ENGINE_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut seed = 0;
    while end.map_or(seed < 150, |end| Instant::now() < end) {
        program(seed, &runtime);
        seed += 1;
    }
    println!("{seed} programs");
}
