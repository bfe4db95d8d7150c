//! What a worker has taken from the queue and not started, while it is busy with a long task.

use crate::pool::threads::Busy;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tollgate::WorkerPool;

const LONG: Duration = Duration::from_secs(20);
/// The most that are taken past a local queue, for each worker.
const PATIENCE: usize = 128;
/// The most that a worker has at hand at once.
const BATCH: usize = 16;

/// Submits itself again, and one more, each time it is run, so that the queue does not run empty.
fn feed(pool: &WorkerPool, fed: &Arc<AtomicUsize>, enough: &Arc<AtomicBool>, most: usize) {
    let (again, fed, enough) = (pool.clone(), Arc::clone(fed), Arc::clone(enough));
    let task = move || {
        if fed.fetch_add(1, Ordering::SeqCst) < most && !enough.load(Ordering::SeqCst) {
            feed(&again, &fed, &enough, most);
        }
    };
    pool.execute(task).unwrap();
}

/// Given two workers, of which one takes a long task and several behind it, and the other has a queue that never runs empty,
/// then those behind the long one run when that number has been taken past them, and no later.
#[test]
fn tasks_behind_a_long_one_are_passed_up_to_the_bound() {
    let pool = WorkerPool::builder().workers(2).max_queue(10_000).build().unwrap();
    let (one, two) = (Busy::on(&pool), Busy::on(&pool));
    let (fed, enough) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (started, has_started) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let long = pool.submit(move || {
        started.send(()).unwrap();
        let _ = released.recv();
    });
    let behind: Vec<_> = (0..BATCH)
        .map(|_| {
            let fed = Arc::clone(&fed);
            pool.submit(move || fed.load(Ordering::SeqCst)).unwrap()
        })
        .collect();
    for _ in 0..100 {
        feed(&pool, &fed, &enough, 9_000);
    }
    // This one takes the long task, and a part of what is behind it.
    one.end();
    has_started.recv().unwrap();
    two.end();
    for handle in behind {
        let passed = match handle.join_timeout(LONG) {
            Ok(passed) => passed.unwrap(),
            Err(_) => panic!("it is overlooked"),
        };
        assert!(passed <= 2 * PATIENCE + BATCH, "{passed} have passed it");
    }
    enough.store(true, Ordering::SeqCst);
    drop(release);
    long.unwrap().join().unwrap();
    assert!(pool.wait_idle_timeout(LONG));
    assert!(pool.shutdown(LONG).is_clean());
}
