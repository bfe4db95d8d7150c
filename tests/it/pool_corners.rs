//! Corners of pools: what is counted, what is told to whom, and what still runs while a pool ends.

use super::pool::Busy;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tollgate::pool::{Overflow, PoolBuilder, Priority, TaskError, Turned};
use tollgate::{Ask, JoinHandle, Policy, Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

#[test]
fn a_task_that_never_started_says_what_it_was_and_a_report_when_it_is_not_clean() {
    let pool = one().build().unwrap();
    assert!(pool.abort().is_clean());
    let pool = one().build().unwrap();
    let busy = Busy::on(&pool);
    let heavy = pool.priority(Priority::High).weight(3);
    let handle = heavy.submit(|| ()).unwrap();
    let report = pool.abort();
    assert_eq!((report.unstarted.len(), report.running), (1, 1));
    assert!(!report.is_clean());
    assert_eq!(report.unstarted[0].weight(), 3);
    assert_eq!(report.unstarted[0].priority(), Priority::High);
    drop(report);
    let error = handle.join().unwrap_err();
    assert!(!error.has_started() && error.into_panic().is_err());
    // Nothing waits, and one task still runs.
    let report = pool.abort();
    assert_eq!((report.unstarted.len(), report.running), (0, 1));
    assert!(!report.is_clean());
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
}

#[test]
fn what_has_panicked_had_started() {
    let pool = one().build().unwrap();
    let handle: JoinHandle<()> = pool.submit(|| resume_unwind(Box::new("on purpose"))).unwrap();
    let error = handle.join().unwrap_err();
    assert!(error.has_started());
    assert_eq!(error.to_string(), "the task panicked: on purpose");
    assert_eq!(format!("{error:?}"), "Panicked(\"on purpose\")");
}

#[test]
fn a_closed_pool_takes_nothing_and_runs_what_it_has() {
    let pool = one().build().unwrap();
    let busy = Busy::on(&pool);
    let queued = pool.submit(|| 7).unwrap();
    pool.close();
    assert_eq!(pool.submit(|| 8).unwrap_err().reason, Turned::Closed);
    assert_eq!(pool.execute_all([|| ()]).len(), 1);
    assert!(matches!(pool.run(|| 8), Err(TaskError::Abandoned)));
    busy.end();
    assert_eq!(queued.join().unwrap(), 7);
    assert!(pool.shutdown(LONG).is_clean());
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

#[test]
fn a_task_that_is_refused_or_too_late_is_done_with() {
    let pool = one().admit_by(Policy::new(Semaphore::new(1))).build().unwrap();
    let refused = pool.ask(Ask::many(u64::MAX)).submit(|| ()).unwrap();
    assert!(matches!(refused.join(), Err(TaskError::Refused(_))));
    assert_eq!(pool.ask(Ask::one()).submit(|| 7).unwrap().join().unwrap(), 7);
    assert!(pool.wait_idle());
    let stats = pool.stats();
    assert_eq!((stats.unfinished, stats.finished, stats.queued), (0, 1, 0));
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

/// Closed slots end a pool, and what waits is told.
#[test]
fn closed_slots_end_a_pool() {
    let slots = Arc::new(Semaphore::new(0));
    let pool = one().slots(Arc::clone(&slots)).build().unwrap();
    let task = pool.submit(|| 7).unwrap();
    slots.close();
    assert!(matches!(task.join(), Err(TaskError::Abandoned)));
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!((pool.stats().threads, pool.stats().unfinished), (0, 0));
}

#[test]
fn a_group_counts_what_is_to_come() {
    let pool = one().build().unwrap();
    let busy = Busy::on(&pool);
    let mut group = pool.group::<_, ()>();
    assert!(group.is_empty());
    assert_eq!(group.len(), 0);
    for n in 0..3 {
        group.submit(move || Ok(n)).unwrap();
    }
    assert!(!group.is_empty() && group.len() == 3);
    busy.end();
    assert_eq!(group.next().map(|(id, _)| id), Some(0));
    assert_eq!(group.len(), 2);
    assert_eq!(group.join().unwrap(), [1, 2]);
}

/// A queue bounded by weight gets back what each task weighed, whichever way the task leaves.
#[test]
fn weight_comes_back_whichever_way_a_task_leaves() {
    let builder = one().queue(10).queue_weight(10).overflow(Overflow::Reject);
    let pool = builder.build().unwrap();
    let busy = Busy::on(&pool);
    let cancelled = pool.weight(9).submit(|| ()).unwrap();
    let light = pool.submit(|| ()).unwrap();
    assert_eq!(pool.try_submit(|| ()).unwrap_err().reason, Turned::Full);
    assert!(cancelled.cancel());
    let heavy = pool.weight(9).submit(|| ()).unwrap();
    assert_eq!(pool.try_submit(|| ()).unwrap_err().reason, Turned::Full);
    busy.end();
    light.join().unwrap();
    heavy.join().unwrap();
    assert!(pool.wait_idle());
    let busy = Busy::on(&pool);
    assert!(pool.weight(10).submit(|| ()).is_ok());
    busy.end();
}
