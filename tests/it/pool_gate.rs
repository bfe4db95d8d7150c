//! Tasks of a worker pool behind a policy that wait for tasks of their pool.

use std::sync::Arc;
use std::time::Duration;
use tollgate::pool::PoolBuilder;
use tollgate::{Policy, Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

/// Given a policy that lets one task run at a time, then tasks may wait for tasks to any depth: the inner ones run under the
/// permit of the outer.
#[test]
fn tasks_may_wait_for_tasks_under_one_permit() {
    fn nested(pool: &WorkerPool, depth: u32) -> u32 {
        let here = pool.clone();
        let inner = pool.submit(move || match depth {
            0 => 1,
            depth => 1 + nested(&here, depth - 1),
        });
        let inner = inner.unwrap().join_timeout(Duration::from_secs(10));
        inner.expect("it stands still").unwrap()
    }
    let in_flight = Arc::new(Semaphore::new(1));
    let pool = one().admit_by(Policy::new(Arc::clone(&in_flight))).build().unwrap();
    assert_eq!(nested(&pool, 4), 5);
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(in_flight.available_permits(), 1);
}

/// Given a policy of one at a time that lets nobody wait, then a task that waits for another runs it all the same.
#[test]
fn a_policy_without_a_line_does_not_keep_a_task_from_what_it_waits_for() {
    let policy = Policy::builder().max_queue(0).over(Semaphore::new(1)).unwrap();
    let pool = one().admit_by(policy).build().unwrap();
    let here = pool.clone();
    let outer = pool.submit(move || here.submit(|| 7).unwrap().join().unwrap());
    assert_eq!(outer.unwrap().join().unwrap(), 7);
    assert!(pool.shutdown(LONG).is_clean());
}
