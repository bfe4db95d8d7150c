//! Groups of async tasks: how a failure ends the rest.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;
use tollgate::pool::{GroupError, TaskError, TaskPool};

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn pool(limit: usize) -> TaskPool {
    TaskPool::builder(limit).build().unwrap()
}

/// Never ends, and holds `held` until it is dropped.
async fn holds(held: Arc<()>) -> Result<u32, &'static str> {
    std::future::pending::<()>().await;
    drop(held);
    Ok(0)
}

/// Given a task that gives up its wait for a member of a limited group of another pool, then that pool is idle once the member has
/// ended.
#[tokio::test(start_paused = true)]
async fn a_wait_for_a_member_that_is_given_up_keeps_no_pool_from_being_idle() {
    let (outer, inner) = (pool(1), pool(1));
    let waits = outer.try_submit(async move {
        let (open, opened) = oneshot::channel::<()>();
        let before = inner.try_submit(opened).unwrap();
        let mut group = inner.group().limit(1).unwrap();
        group.submit(async { Ok::<_, &str>(1) }).await.unwrap();
        let patience = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(patience, group.next()).await.is_err());
        open.send(()).unwrap();
        before.await.unwrap().unwrap();
        inner.wait_idle().await;
        group.next().await.unwrap().1.unwrap()
    });
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), waits.unwrap());
    assert_eq!(ended.await.expect("it stands still").unwrap(), 1);
}

/// Given tasks that run, one of which fails, or panics, while the group is not polled, then the others are dropped all the
/// same; and the failure is the first result.
#[tokio::test]
async fn a_failure_drops_what_runs_whether_the_group_is_polled_or_not() {
    for panics in [false, true] {
        let (pool, held) = (pool(4), Arc::new(()));
        let mut group = pool.group();
        let flag = group.stop_flag();
        group.submit(holds(Arc::clone(&held))).await.unwrap();
        let (fail, told) = oneshot::channel::<()>();
        let failing = async move {
            told.await.unwrap();
            if panics {
                resume_unwind(Box::new("on purpose"));
            }
            Err("no")
        };
        group.submit(failing).await.unwrap();
        group.submit(holds(Arc::clone(&held))).await.unwrap();
        settle().await;
        assert_eq!((Arc::strong_count(&held), flag.is_stopped()), (3, false));
        fail.send(()).unwrap();
        settle().await;
        assert_eq!((Arc::strong_count(&held), flag.is_stopped()), (1, true));
        assert_eq!((pool.stats().unfinished, group.outstanding()), (0, 3));
        match group.next().await {
            Some((1, Err(GroupError::Error("no")))) => assert!(!panics),
            Some((1, Err(GroupError::Task(TaskError::Panicked(_))))) => assert!(panics),
            other => panic!("{other:?}"),
        }
        for id in [0, 2] {
            let ended = group.next().await;
            assert!(matches!(ended, Some((n, Err(GroupError::Task(TaskError::Cancelled)))) if n == id));
        }
        assert!(group.next().await.is_none());
    }
}

/// Given a group that has failed, when a task is submitted, then it does not start, and its room is free at once.
#[tokio::test]
async fn members_after_the_failure_are_cancelled() {
    let pool = TaskPool::builder(1).max_queue(1).build().unwrap();
    let mut group = pool.group::<u32, _>();
    group.submit(async { Err("no") }).await.unwrap();
    settle().await;
    let (open, gate) = oneshot::channel::<()>();
    let busy = pool.submit(gate).await.unwrap();
    settle().await;
    for _ in 0..3 {
        group.submit(async { unreachable!("it was cancelled") }).await.unwrap();
    }
    assert_eq!(pool.stats().queued, 0);
    open.send(()).unwrap();
    busy.await.unwrap().unwrap();
    assert_eq!(group.join().await.unwrap_err().into_error(), Some("no"));
}

/// Given a group that keeps going, and one that has ended well, then no task is dropped.
#[tokio::test]
async fn nothing_is_dropped_without_a_failure_that_counts() {
    let (pool, held) = (pool(4), Arc::new(()));
    let mut group = pool.group().keep_going();
    group.submit(holds(Arc::clone(&held))).await.unwrap();
    group.submit(async { Err("no") }).await.unwrap();
    group.submit(async { Ok(1) }).await.unwrap();
    settle().await;
    assert!(matches!(group.next().await, Some((1, Err(GroupError::Error("no"))))));
    assert!(matches!(group.next().await, Some((2, Ok(1)))));
    settle().await;
    assert_eq!((Arc::strong_count(&held), group.outstanding()), (2, 1));
    drop(group);
    settle().await;
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Many groups on several threads, each with a failure among its tasks: its join tells of that, and all others are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_failure_is_told_and_nothing_runs_on() {
    let (pool, held, ran) = (pool(3), Arc::new(()), Arc::new(AtomicUsize::new(0)));
    for round in 0..200usize {
        let mut group = pool.group();
        for n in 0..6 {
            let (held, ran) = (Arc::clone(&held), Arc::clone(&ran));
            let task = async move {
                let _held = held;
                ran.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                match n {
                    _ if n == round % 3 => Err(n),
                    0 => std::future::pending().await,
                    _ => Ok(n),
                }
            };
            group.submit(task).await.unwrap();
        }
        assert_eq!(group.join().await.unwrap_err().into_error(), Some(round % 3));
        assert!(pool.wait_idle().await);
        assert_eq!(Arc::strong_count(&held), 1);
    }
    assert!(ran.load(Ordering::Relaxed) >= 200);
}
