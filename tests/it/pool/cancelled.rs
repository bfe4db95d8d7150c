//! A task that was cancelled takes no room, also where a worker keeps it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tollgate::pool::PoolBuilder;
use tollgate::{JoinHandle, WorkerPool};

use crate::pool::threads::Busy;

const LONG: Duration = Duration::from_secs(60);

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

/// Given a worker that has taken several tasks at once and is busy with the first, when one of the others is cancelled,
/// then that one's place is free as well.
#[test]
fn a_task_that_is_cancelled_where_a_worker_keeps_it_gives_its_place_to_the_next() {
    let pool = one().max_queue(32).build().unwrap();
    let first = Busy::on(&pool);
    let (release, released) = mpsc::channel::<()>();
    let (start, started) = mpsc::channel();
    let second = pool.submit(move || {
        start.send(()).unwrap();
        let _ = released.recv();
    });
    let tasks: Vec<JoinHandle<()>> = (0..30).map(|_| pool.submit(|| ()).unwrap()).collect();
    first.end();
    started.recv_timeout(LONG).unwrap();
    // The first of them lies with the worker.
    assert!(tasks[0].cancel());
    while let Ok(handle) = pool.try_submit(|| ()) {
        drop(handle);
        assert!(pool.stats().queued <= 32);
    }
    // All that waits is live.
    assert_eq!(pool.stats().queued, 32);
    drop(release);
    second.unwrap().join().unwrap();
    assert!(pool.shutdown(LONG).is_clean());
    // The busy ones, those that were not cancelled, and what had room after that.
    assert_eq!(pool.stats().finished, 2 + 29 + 3);
}

/// Given a worker that takes tasks to start them later, and that drops those that were cancelled, then only live tasks count as queued.
#[test]
fn cancelled_tasks_that_a_worker_has_dropped_count_no_longer() {
    let pool = one().max_queue(64).build().unwrap();
    let first = Busy::on(&pool);
    let block = || {
        let (release, released) = mpsc::channel::<()>();
        let (start, started) = mpsc::channel();
        let task = move || {
            start.send(()).unwrap();
            let _ = released.recv();
        };
        (pool.submit(task).unwrap(), release, started)
    };
    let tasks = |n: usize| -> Vec<JoinHandle<()>> { (0..n).map(|_| pool.submit(|| ()).unwrap()).collect() };
    let (_second, release, started) = block();
    let cancelled = tasks(10);
    let (_third, release_third, third_started) = block();
    let live = tasks(19);
    first.end();
    started.recv_timeout(LONG).unwrap();
    assert!(cancelled.iter().all(JoinHandle::cancel));
    assert_eq!(pool.stats().queued, 20);
    drop(release);
    third_started.recv_timeout(LONG).unwrap();
    assert_eq!(pool.stats().queued, 19);
    drop(release_third);
    live.into_iter().for_each(|task| task.join().unwrap());
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a pool whose only thread fails to start after the only task was cancelled, then the next submission starts a thread.
#[test]
fn a_cancelled_task_does_not_end_a_pool_whose_thread_fails_to_start() {
    let worker = Arc::new(Mutex::new(None));
    let (kept, times) = (Arc::clone(&worker), AtomicUsize::new(0));
    let spawns = move |worker: tollgate::pool::WorkerThread<'static>| {
        if times.fetch_add(1, Ordering::SeqCst) == 0 {
            *kept.lock().unwrap() = Some(worker);
        } else {
            std::thread::spawn(|| worker.run());
        }
        Ok(())
    };
    let pool = one().spawn_with(spawns).build().unwrap();
    let task = pool.submit(|| ()).unwrap();
    assert!(task.cancel());
    let never = worker.lock().unwrap().take();
    drop(never.expect("no thread was asked for"));
    assert_eq!(pool.run(|| 7).unwrap(), 7);
    assert_eq!(pool.stats().failed_starts, 1);
}
