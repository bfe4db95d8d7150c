//! Random worlds on threads, in real time.

use super::Draws;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::policy::Partitions;
use tollgate::{Inherit, Legs, LimiterExt, Policy, Quota, Semaphore, SlidingWindow, TokenBucket};

#[derive(Clone)]
enum Shared {
    Bucket(Arc<TokenBucket>),
    Semaphore(Arc<Semaphore>, usize),
    Window(Arc<SlidingWindow>),
}

const THREADS: u64 = 4;
const ASKS: u64 = 100;

fn play(seed: u64, done: &AtomicU64) {
    let mut draws = Draws::new(seed);
    let legs: Vec<Shared> = (0..draws.within(2, 5))
        .map(|_| match draws.within(0, 5) {
            0 | 1 => {
                let quota = Quota::per_second(draws.within(20_000, 200_000)).burst(draws.within(3, 8));
                Shared::Bucket(Arc::new(TokenBucket::new(quota)))
            }
            2 => {
                let window = SlidingWindow::new(draws.within(20, 60), Duration::from_millis(2));
                Shared::Window(Arc::new(window.unwrap()))
            }
            _ => {
                let limit = draws.within(3, 7) as usize;
                Shared::Semaphore(Arc::new(Semaphore::new(limit)), limit)
            }
        })
        .collect();
    let policies: Vec<Policy<Legs>> = (0..draws.within(3, 6))
        .map(|_| {
            let mut left = legs.clone();
            let mut all = Legs::new();
            for _ in 0..draws.within(1, 1 + legs.len() as u64) {
                match left.swap_remove(draws.within(0, left.len() as u64) as usize) {
                    Shared::Bucket(bucket) => all.push(bucket),
                    Shared::Semaphore(semaphore, _) => all.push(semaphore),
                    Shared::Window(window) => all.push(window),
                }
            }
            Policy::new(all)
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (policies, legs) = (&policies, &legs);
            let mut draws = Draws::new(seed * THREADS + thread + 1);
            scope.spawn(move || {
                for _ in 0..ASKS {
                    let policy = &policies[draws.within(0, policies.len() as u64) as usize];
                    let units = draws.within(1, 4);
                    match draws.within(0, 10) {
                        0 => {
                            // A wait that is given up.
                            let mut wait = Box::pin(policy.admit(units));
                            let _ = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                        }
                        1 if thread == 0 => match &legs[draws.within(0, legs.len() as u64) as usize] {
                            Shared::Semaphore(semaphore, limit) => {
                                semaphore.set_limit(limit + draws.within(0, 3) as usize);
                            }
                            Shared::Bucket(bucket) => {
                                let quota = Quota::per_second(draws.within(20_000, 200_000)).burst(draws.within(3, 8));
                                bucket.set_quota(quota, Inherit::AsIs);
                            }
                            Shared::Window(window) => window.set_limit(draws.within(10, 60), Inherit::AsIs),
                        },
                        2 => drop(policy.admit_blocking_timeout(units, Duration::from_micros(draws.within(0, 400)))),
                        3 => _ = policy.try_admit(units).map(tollgate::Permit::cancel),
                        4 => policy.admit_blocking(units).unwrap().cancel(),
                        _ => drop(policy.admit_blocking(units).unwrap()),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    for leg in &legs {
        if let Shared::Semaphore(semaphore, _) = leg {
            assert_eq!(semaphore.in_use(), 0, "world {seed}");
        }
    }
    assert!(policies.iter().all(|policy| policy.waiting() == 0), "world {seed}");
}

/// Runs `work` on a thread; fails when it has not ended after a minute, which only bounds the failure.
#[track_caller]
fn ends(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Ok(()) => worker.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(worker.join().unwrap_err()),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} has not ended after a minute"),
    }
}

#[test]
fn all_asks_of_random_worlds_end() {
    let worlds = std::env::var("WORLDS")
        .ok()
        .and_then(|given| given.parse().ok())
        .unwrap_or(40);
    for seed in 0..worlds {
        let done = Arc::new(AtomicU64::new(0));
        ends(&format!("world {seed}"), move || play(seed, &done));
    }
}

/// A service of three policies over one semaphore and two classes: all go on being served.
#[test]
fn a_service_on_a_runtime_goes_on() {
    ends("the service", || {
        let connections = Arc::new(Semaphore::new(4));
        let places = Partitions::lent(8, 2).unwrap();
        let policies: Vec<Policy<Legs>> = (0..3)
            .map(|at| {
                Policy::new(match at {
                    2 => Legs::new().and(Arc::clone(places.class(0))),
                    class => Legs::new()
                        .and(Arc::clone(&connections))
                        .and(Arc::clone(places.class(class))),
                })
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for policy in &policies {
                for task in 0..30_u64 {
                    let policy = policy.clone();
                    tasks.spawn(async move {
                        let mut draws = Draws::new(task);
                        for _ in 0..20 {
                            let permit = policy.admit(1 + draws.within(0, 2)).await.unwrap();
                            tokio::task::yield_now().await;
                            drop(permit);
                        }
                    });
                }
            }
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
        });
        assert_eq!((connections.in_use(), places.in_use()), (0, 0));
    });
}
