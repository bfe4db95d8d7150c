//! The worker pool under everything at once: growth, failing threads, resizes, panics, cancels and the end.

use crate::pool::threads::Busy;
use proptest::test_runner::{Config, TestRunner};
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tollgate::pool::{Overflow, TaskError};
use tollgate::{ManualClock, Quota, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn an_elastic_pool_grows_no_faster_than_it_may_and_shrinks_when_idle() {
    let clock = ManualClock::new();
    let pool = WorkerPool::builder()
        .workers(1..=8)
        .max_queue(20_000)
        .growth(Quota::per_second(1).burst(2))
        .keep_alive(Duration::from_secs(100))
        .on(&clock)
        .build()
        .unwrap();
    let first = Busy::on(&pool);
    let second = Busy::on(&pool);
    let third = Busy::on(&pool);
    for _ in 0..10_000 {
        pool.execute(|| ()).unwrap();
    }
    // One is always there and two have been started: the burst is spent, whatever is submitted.
    assert_eq!(pool.stats().threads, 3);
    clock.advance(Duration::from_secs(1));
    assert!(pool.wait_idle_timeout(Duration::ZERO) || pool.stats().threads <= 4);
    for busy in [first, second, third] {
        busy.end();
    }
    assert!(pool.wait_idle());
    assert!(pool.stats().peak_threads <= 4);
    // Idle threads leave when they have been so for long enough.
    while pool.stats().idle < pool.stats().threads {
        thread::yield_now();
    }
    while pool.stats().threads > 1 {
        clock.advance(Duration::from_secs(100));
        thread::yield_now();
    }
    assert_eq!(pool.run(|| 1).unwrap(), 1);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given threads that have slept for longer than the keep-alive because they belonged to the minimum, when the minimum is lowered, then
/// those above it end after one more keep-alive.
#[test]
fn idle_threads_end_after_the_minimum_was_lowered() {
    let keep_alive = Duration::from_secs(100);
    let clock = ManualClock::new();
    let builder = WorkerPool::builder().workers(6).keep_alive(keep_alive).on(&clock);
    let pool = builder.build().unwrap();
    while pool.stats().idle < 6 {
        thread::yield_now();
    }
    // The timer of each thread fires: of the last one after the others, however late it was set.
    for _ in 0..100 {
        clock.advance(keep_alive);
        thread::yield_now();
    }
    assert_eq!(pool.stats().threads, 6);
    pool.set_limit(2..=6).unwrap();
    while pool.stats().threads > 2 {
        clock.advance(keep_alive);
        thread::yield_now();
    }
    clock.advance(keep_alive);
    assert_eq!((pool.run(|| 1).unwrap(), pool.stats().threads), (1, 2));
    assert!(pool.shutdown(LONG).is_clean());
}

#[test]
fn a_pool_grows_later_without_any_further_submission() {
    let clock = ManualClock::new();
    let pool = WorkerPool::builder()
        .workers(1..=4)
        .growth(Quota::per_second(1).burst(1))
        .on(&clock)
        .build()
        .unwrap();
    let busy = [Busy::on(&pool), Busy::on(&pool)];
    let waits = pool.submit(|| 1).unwrap();
    let waits = waits.join_timeout(Duration::from_millis(1)).unwrap_err();
    assert_eq!(pool.stats().threads, 2);
    clock.advance(Duration::from_secs(1));
    assert_eq!(waits.join().unwrap(), 1);
    assert_eq!(pool.stats().threads, 3);
    busy.into_iter().for_each(Busy::end);
}

/// Keeps out tokio#8406.
#[test]
fn a_thread_that_cannot_be_started_loses_no_task() {
    let fails = Arc::new(AtomicBool::new(false));
    let hook = Arc::clone(&fails);
    let pool = WorkerPool::builder()
        .workers(1..=4)
        .spawn_with(move |worker| {
            if hook.load(Ordering::SeqCst) {
                return Err(io::Error::from(io::ErrorKind::WouldBlock));
            }
            thread::spawn(|| worker.run());
            Ok(())
        })
        .build()
        .unwrap();
    fails.store(true, Ordering::SeqCst);
    let busy = Busy::on(&pool);
    let handles: Vec<_> = (0..100).map(|n| pool.submit(move || n).unwrap()).collect();
    let stats = pool.stats();
    assert_eq!((stats.threads, stats.queued), (1, 100));
    assert!(stats.failed_starts > 0);
    busy.end();
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.join().unwrap(), n);
    }
    assert!(pool.set_limit(3).is_err());
    fails.store(false, Ordering::SeqCst);
    assert!(pool.set_limit(2..=3).is_ok());
    assert!(pool.stats().threads >= 2);
    assert!(pool.shutdown(LONG).is_clean());
    let never = WorkerPool::builder().spawn_with(|_| Err(io::Error::from(io::ErrorKind::OutOfMemory)));
    assert!(never.build().is_err());
}

/// Given eight submitters, resizes, panics, cancels and an end at a random moment, when all is over, then each task
/// that was let in has run once or been reported once, and the queue was never longer than allowed.
/// Keeps out deadpool#380, deadpool#205.
#[test]
fn every_task_is_accounted_for_once_under_everything_at_once() {
    const EACH: usize = 300;
    const QUEUE: usize = 50;
    let run = |overflow: Overflow, abort_after: usize, seed: usize| {
        let pool = WorkerPool::builder()
            .workers(1..=4)
            .growth(Quota::per_second(10_000).burst(10))
            .max_queue(QUEUE)
            .overflow(overflow)
            .build()
            .unwrap();
        let ran: Arc<Vec<AtomicUsize>> = Arc::new((0..8 * EACH).map(|_| AtomicUsize::new(0)).collect());
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let total = Arc::new(AtomicUsize::new(0));
        let submitters: Vec<_> = (0..8)
            .map(|submitter| {
                let (pool, ran) = (pool.clone(), Arc::clone(&ran));
                let (outcomes, total) = (Arc::clone(&outcomes), Arc::clone(&total));
                thread::spawn(move || {
                    for n in 0..EACH {
                        let id = submitter * EACH + n;
                        let mark = Arc::clone(&ran);
                        let submitted = pool.submit(move || {
                            mark[id].fetch_add(1, Ordering::SeqCst);
                            if id.is_multiple_of(7) {
                                resume_unwind(Box::new(id));
                            }
                            id
                        });
                        assert!(pool.stats().queued <= QUEUE);
                        total.fetch_add(1, Ordering::SeqCst);
                        let Ok(handle) = submitted else { continue };
                        if (id + seed).is_multiple_of(5) {
                            handle.cancel();
                        }
                        outcomes.lock().unwrap().push((id, handle));
                    }
                })
            })
            .collect();
        for size in (1..=4).cycle() {
            pool.set_limit(size..=size + 1).unwrap();
            if total.load(Ordering::SeqCst) >= abort_after {
                break;
            }
        }
        let report = pool.shutdown(Duration::from_micros(seed as u64));
        drop(report);
        for submitter in submitters {
            submitter.join().unwrap();
        }
        // Those that ran on have ended when the workers have gone.
        let _ = pool.shutdown(LONG);
        let outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
        let mut let_in = vec![false; 8 * EACH];
        for (id, handle) in outcomes {
            let_in[id] = true;
            let has_run = match handle.join() {
                Ok(result) => {
                    assert_eq!(result, id);
                    true
                }
                Err(why @ TaskError::Panicked(_)) => {
                    assert_eq!(*why.into_panic().unwrap().downcast::<usize>().unwrap(), id);
                    true
                }
                Err(_) => false,
            };
            assert_eq!(ran[id].load(Ordering::SeqCst), usize::from(has_run));
        }
        for (id, let_in) in let_in.into_iter().enumerate() {
            assert!(let_in || ran[id].load(Ordering::SeqCst) == 0);
        }
        assert_eq!(pool.stats().threads, 0);
    };
    let overflows = proptest::sample::select(vec![
        Overflow::Block,
        Overflow::Reject,
        Overflow::DropOldest,
        Overflow::DropNewest,
    ]);
    let mut runner = TestRunner::new(Config {
        cases: 24,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&(overflows, 0..8 * EACH, 0..1_000_usize), |(overflow, after, seed)| {
            run(overflow, after, seed);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_pool_grows_later_although_the_runtime_is_gone_in_which_it_was_asked_to() {
    let pool = WorkerPool::builder()
        .workers(1..=3)
        .growth(Quota::per_second(200).burst(1))
        .build()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let (busy, third) = runtime.block_on(async {
        let busy = [Busy::on(&pool), Busy::on(&pool)];
        (busy, pool.submit(|| 3).unwrap())
    });
    drop(runtime);
    assert_eq!(third.join().unwrap(), 3);
    busy.into_iter().for_each(Busy::end);
}
