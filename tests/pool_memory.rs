//! What a worker pool takes after many tasks is what it takes after few.
//!
//! A binary of its own, since counting bytes replaces the allocator. They are counted per thread: so the pool's one
//! worker is the thread that counts, and its tasks submit the others.
#![cfg(all(feature = "pool", not(tollgate_loom), not(tollgate_shuttle)))]

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tollgate::WorkerPool;
#[cfg(feature = "tokio")]
use tollgate::pool::TaskPool;
use tollgate::pool::{Overflow, Priority, RejectReason};

/// The number of tasks that each step makes, itself included.
const STEP: u64 = 14;

/// Submits tasks of every kind, and the next step, until none are left.
fn step(pool: &WorkerPool, left: u64) {
    assert!(pool.execute_all((0..8).map(|_| || ())).is_empty());
    drop(pool.submit(|| [0u8; 100]).unwrap());
    drop(pool.submit(|| resume_unwind(Box::new(1))).unwrap());
    pool.submit(|| 1).unwrap().cancel();
    assert!(pool.priority(Priority::High).submit(|| 2).unwrap().join().is_ok());
    drop(
        pool.deadline(Duration::from_secs(3_600))
            .weight(3)
            .submit(|| 4)
            .unwrap(),
    );
    if left == 0 {
        return pool.close();
    }
    let next = pool.clone();
    pool.execute(move || step(&next, left.saturating_sub(STEP))).unwrap();
}

/// The most bytes that were held at once, and those that are still held at the end of `tasks` tasks.
fn bytes_of(tasks: u64) -> (u64, i64) {
    let bytes = allocation_counter::measure(|| {
        let worker = Arc::new(Mutex::new(None));
        let given = Arc::clone(&worker);
        let pool = WorkerPool::builder()
            .workers(1)
            .max_queue(64)
            .spawn_with(move |worker| {
                *given.lock().unwrap() = Some(worker);
                Ok(())
            });
        let pool = pool.build().unwrap();
        let first = pool.clone();
        pool.execute(move || step(&first, tasks)).unwrap();
        let worker = worker.lock().unwrap().take().unwrap();
        worker.run();
        let stats = pool.stats();
        assert!(stats.submitted >= tasks && stats.unfinished == 0, "{stats:?}");
        // What it holds counts.
        std::mem::forget(pool);
    });
    (bytes.bytes_max, bytes.bytes_current)
}

fn grows_by_a_twentieth_at_most(few: u64, many: u64) {
    // The thread's own first.
    let _ = bytes_of(STEP);
    let ((few_most, few_left), (many_most, many_left)) = (bytes_of(few), bytes_of(many));
    println!("{few_most} bytes at most, {few_left} left; {many_most} at most, {many_left} left");
    assert!(many_most * 20 <= few_most * 21);
    assert!(many_left * 20 <= few_left * 21);
}

/// Given tasks with handles that wait for a worker, then each takes at most 96 bytes beside its closure.
#[test]
fn a_queued_task_takes_few_bytes_beside_its_closure() {
    const TASKS: usize = 1 << 16;
    let worker = Arc::new(Mutex::new(None));
    let given = Arc::clone(&worker);
    let pool = WorkerPool::builder()
        .workers(1)
        .max_queue(TASKS)
        .spawn_with(move |worker| {
            *given.lock().unwrap() = Some(worker);
            Ok(())
        });
    let pool = pool.build().unwrap();
    let mut handles = Vec::with_capacity(TASKS);
    let bytes = allocation_counter::measure(|| {
        for n in 0..TASKS {
            let closure = move || _ = std::hint::black_box(n);
            assert_eq!(size_of_val(&closure), 8);
            handles.push(pool.submit(closure).unwrap());
        }
    });
    let beside = bytes.bytes_current as f64 / TASKS as f64 - 8.0;
    println!("{beside} bytes beside the closure");
    assert!(beside <= 96.0, "{beside}");
    drop(worker);
}

#[test]
fn a_hundred_thousand_tasks_take_no_more_than_ten_thousand() {
    grows_by_a_twentieth_at_most(10_000, 100_000);
}

#[test]
#[ignore = "takes long; ci/deep runs it"]
fn ten_million_tasks_take_no_more_than_a_million() {
    grows_by_a_twentieth_at_most(1_000_000, 10_000_000);
}

/// Given a full queue, when tasks are submitted that it refuses, then no memory is allocated for them, and each comes back.
#[test]
fn a_refused_task_allocates_nothing() {
    let pool = WorkerPool::builder()
        .workers(1)
        .max_queue(4)
        .overflow(Overflow::Reject)
        .spawn_with(|worker| {
            std::mem::forget(worker);
            Ok(())
        });
    let pool = pool.build().unwrap();
    assert!(pool.execute_all((0..4).map(|_| || ())).is_empty());
    let refused = |n: u64| {
        let task = move || n;
        let back = [pool.submit(task), pool.try_submit(task)].map(|refused| refused.unwrap_err());
        assert!(back.iter().all(|back| back.reason == RejectReason::Full));
        assert_eq!(back.map(|back| (back.task)()), [n; 2]);
    };
    // The thread's own first.
    refused(0);
    let allocated = allocation_counter::measure(|| (1..100).for_each(refused));
    assert_eq!(allocated.count_total, 0);
}

/// Given a full queue of async tasks, when tasks are submitted that it refuses, then no memory is allocated for them, and each comes back.
#[test]
#[cfg(feature = "tokio")]
fn a_refused_async_task_allocates_nothing() {
    use futures::future::{FutureExt as _, ready};
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let pool = TaskPool::builder(1).max_queue(1).overflow(Overflow::Reject);
    let pool = pool.runtime(runtime.handle()).build().unwrap();
    drop(pool.try_submit(ready(0)).unwrap());
    let refused = |n: u64| {
        let later = pool.submit(ready(n)).now_or_never().expect("it does not wait");
        let back = [pool.try_submit(ready(n)), later].map(|refused| refused.unwrap_err());
        assert!(back.iter().all(|back| back.reason == RejectReason::Full));
        assert_eq!(back.map(|back| back.task.into_inner()), [n; 2]);
    };
    // The thread's own first.
    refused(0);
    let allocated = allocation_counter::measure(|| (1..100).for_each(refused));
    assert_eq!(allocated.count_total, 0);
}
