//! Groups of tasks, and pools within pools.

use super::pool::Busy;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tollgate::pool::{Failed, Overflow, PoolBuilder, TaskError, Turned};
use tollgate::{ManualClock, WorkerPool};

fn workers(n: usize) -> PoolBuilder {
    WorkerPool::builder().workers(n)
}

#[test]
fn a_group_gives_its_results_in_the_order_of_submission() {
    let pool = workers(3).build().unwrap();
    let mut group = pool.group::<_, ()>();
    for n in 0..500 {
        assert_eq!(group.submit(move || Ok(n)).unwrap(), n);
    }
    assert_eq!(group.join().unwrap(), (0..500).collect::<Vec<_>>());
}

#[test]
fn a_group_gives_its_results_as_they_end() {
    let pool = workers(2).build().unwrap();
    let (release, released) = mpsc::channel::<()>();
    let mut group = pool.group::<_, ()>();
    let slow = move || {
        let _ = released.recv();
        Ok("slow")
    };
    group.submit(slow).unwrap();
    group.submit(|| Ok("fast")).unwrap();
    assert!(matches!(group.next(), Some((1, Ok("fast")))));
    release.send(()).unwrap();
    assert!(matches!(group.next(), Some((0, Ok("slow")))));
    assert!(group.next().is_none() && group.is_empty());
}

#[test]
fn the_first_error_keeps_the_rest_from_starting() {
    let pool = workers(1).build().unwrap();
    let busy = Busy::on(&pool);
    let ran = Arc::new(AtomicUsize::new(0));
    let mut group = pool.group();
    let flag = group.stop_flag();
    group.submit(|| Err("first")).unwrap();
    for _ in 0..100 {
        let ran = Arc::clone(&ran);
        group.submit(move || Ok(ran.fetch_add(1, Ordering::SeqCst))).unwrap();
    }
    assert!(!flag.is_stopped());
    busy.end();
    assert_eq!(group.join().unwrap_err().into_error(), Some("first"));
    assert!(flag.is_stopped());
    assert!(pool.wait_idle());
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[test]
fn a_panic_ends_a_group_as_an_error_does() {
    let pool = workers(1).build().unwrap();
    let mut group = pool.group::<(), ()>();
    group.submit(|| resume_unwind(Box::new("on purpose"))).unwrap();
    assert!(matches!(group.join(), Err(Failed::Task(TaskError::Panicked(_)))));
}

#[test]
fn a_group_that_keeps_going_gives_every_outcome() {
    let pool = workers(2).build().unwrap();
    let mut group = pool.group().keep_going();
    for n in 0..10 {
        group.submit(move || if n % 2 == 0 { Ok(n) } else { Err(n) }).unwrap();
    }
    let outcomes: Vec<_> = group
        .join_all()
        .into_iter()
        .map(|outcome| outcome.map_err(Failed::into_error))
        .collect();
    let expected = (0..10).map(|n| if n % 2 == 0 { Ok(n) } else { Err(Some(n)) });
    assert_eq!(outcomes, expected.collect::<Vec<_>>());
}

#[test]
fn a_dropped_group_cancels_what_has_not_started_and_a_full_queue_hands_back() {
    let pool = workers(1).queue(2).overflow(Overflow::Reject).build().unwrap();
    let busy = Busy::on(&pool);
    let mut group = pool.group::<i32, ()>();
    group.submit(|| unreachable!("it was cancelled")).unwrap();
    group.submit(|| unreachable!("it was cancelled")).unwrap();
    let rejected = group.submit(|| Ok(3)).unwrap_err();
    assert_eq!((rejected.reason, (rejected.task)()), (Turned::Full, Ok(3)));
    assert_eq!(group.len(), 2);
    drop(group);
    // There is room at once.
    assert_eq!(pool.stats().queued, 0);
    let next = pool.submit(|| 4).unwrap();
    busy.end();
    assert_eq!(next.join().unwrap(), 4);
}

#[test]
fn groups_nest_on_one_worker() {
    fn tree(pool: &WorkerPool, depth: u32) -> u32 {
        if depth == 0 {
            return 1;
        }
        let mut group = pool.group::<u32, ()>();
        for _ in 0..3 {
            let pool = pool.clone();
            group.submit(move || Ok(tree(&pool, depth - 1))).unwrap();
        }
        group.join().unwrap().into_iter().sum()
    }
    let pool = workers(1).queue(4).build().unwrap();
    let inner = pool.clone();
    assert_eq!(pool.run(move || tree(&inner, 5)).unwrap(), 243);
}

#[tokio::test]
async fn a_group_is_awaited() {
    let pool = workers(2).build().unwrap();
    let mut group = pool.group::<_, ()>();
    for n in 0..50 {
        group.submit(move || Ok(n)).unwrap();
    }
    let (_, first) = group.next_async().await.unwrap();
    let rest = group.join_async().await.unwrap();
    assert_eq!(first.unwrap() + rest.into_iter().sum::<i32>(), 49 * 25);
}

#[test]
fn a_task_that_is_too_late_is_not_run_by_whoever_waits_for_it() {
    let clock = ManualClock::new();
    let pool = workers(1).on(&clock).build().unwrap();
    let inner = pool.clone();
    let late = pool.run(move || {
        let late = inner.deadline(Duration::from_secs(1)).submit(|| ()).unwrap();
        clock.advance(Duration::from_secs(2));
        late.join()
    });
    assert!(matches!(late.unwrap(), Err(TaskError::Expired)));
    assert!(pool.wait_idle());
    assert_eq!(pool.stats().expired, 1);
}
