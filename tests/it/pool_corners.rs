//! Corners of pools: what is counted, what is told to whom, and what still runs while a pool ends.

use super::pool::Busy;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tollgate::pool::PoolBuilder;
use tollgate::{Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

/// Cancelled tasks leave the queue when they are in the majority, or when somebody needs their room.
#[test]
fn cancelled_tasks_are_taken_out_in_time() {
    let pool = one().queue(100).build().unwrap();
    let busy = Busy::on(&pool);
    let tasks: Vec<_> = (0..4).map(|_| pool.submit(|| ()).unwrap()).collect();
    let queued = |n: usize| {
        assert!(tasks[n].cancel());
        pool.stats().queued
    };
    assert_eq!([queued(0), queued(1), queued(2)], [4, 4, 1]);
    assert_eq!(pool.stats().unfinished, 2);
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
    let stats = pool.stats();
    assert_eq!((stats.submitted, stats.finished, stats.unfinished), (5, 2, 0));
}

/// Given a pool whose slots have no permits, when it is closed, then what waits is run when a permit comes, and a worker that
/// has nothing to do leaves without one.
#[test]
fn a_worker_without_a_slot_waits_for_its_task_and_for_nothing_else() {
    let slots = Arc::new(Semaphore::new(0));
    let build = || one().slots(Arc::clone(&slots)).build().unwrap();
    let idle = build();
    assert!(idle.shutdown(LONG).is_clean());
    assert_eq!(idle.stats().threads, 0);
    let pool = build();
    let task = pool.submit(|| 7).unwrap();
    while slots.waiting() == 0 {
        thread::yield_now();
    }
    pool.close();
    slots.add_permits(1);
    assert_eq!(task.join().unwrap(), 7);
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!((pool.stats().threads, slots.available_permits()), (0, 1));
}
