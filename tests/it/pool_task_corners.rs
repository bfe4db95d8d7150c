//! Corners of pools of async tasks: what is counted, what is told to whom, and what still runs while a pool ends.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tollgate::Semaphore;
use tollgate::pool::{TaskError, TaskPool};

const LONG: Duration = Duration::from_secs(60);

/// A pool of one whose runner is busy until the sender is dropped.
async fn busy(builder: tollgate::pool::tasks::TaskPoolBuilder) -> (TaskPool, oneshot::Sender<()>) {
    let pool = builder.build().unwrap();
    let (release, released) = oneshot::channel::<()>();
    let (start, started) = oneshot::channel();
    let task = async move {
        start.send(()).unwrap();
        let _ = released.await;
    };
    drop(pool.submit(task).await.unwrap());
    started.await.unwrap();
    (pool, release)
}

/// Given a pool whose slots have no permits, when it is closed, then what waits is run when a permit comes, and a runner that
/// has nothing to do leaves without one.
#[tokio::test(start_paused = true)]
async fn a_runner_without_a_slot_waits_for_its_task_and_for_nothing_else() {
    let slots = Arc::new(Semaphore::new(0));
    let build = || TaskPool::builder(1).slots(Arc::clone(&slots)).build().unwrap();
    for gives in [false, true] {
        let pool = build();
        pool.resize(1).unwrap();
        slots.set_limit(0);
        let task = pool.submit(async { 7 }).await.unwrap();
        while slots.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        if gives {
            pool.close();
            slots.set_limit(1);
            assert_eq!(task.await.unwrap(), 7);
        } else {
            assert!(task.cancel());
        }
        assert!(pool.shutdown(LONG).await.is_clean());
        assert_eq!((pool.stats().threads, pool.stats().unfinished), (0, 0));
        slots.set_limit(1);
    }
    assert_eq!((slots.available_permits(), slots.waiting()), (1, 0));
}

/// Given a member that its owner polls after an abort, when that run is dropped, then no member has failed.
#[tokio::test]
async fn a_member_that_is_dropped_stops_no_group() {
    let (pool, _release) = busy(TaskPool::builder(1)).await;
    let mut group = pool.group::<u32, ()>();
    let stop = group.stop_flag();
    group.submit(std::future::pending()).await.unwrap();
    let report = pool.abort();
    let member = report.unstarted.into_iter().next().unwrap();
    assert!(futures::poll!(std::pin::pin!(member.run())).is_pending());
    assert!(!stop.is_stopped());
}

/// Given a runtime that is shut down while two runners are busy and tasks wait, then nobody takes their place, and every
/// handle is told.
#[test]
fn a_runtime_that_is_shut_down_under_load_leaves_nobody_waiting() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pool = TaskPool::builder(3).runtime(runtime.handle()).build().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let tell = tell.clone();
            let task = async move {
                tell.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            pool.try_submit(task).unwrap()
        })
        .collect();
    for _ in 0..3 {
        told.recv().unwrap();
    }
    let waiting: Vec<_> = (0..6).map(|_| pool.try_submit(async {}).unwrap()).collect();
    drop(runtime);
    for handle in busy {
        assert!(matches!(handle.join_blocking(), Err(TaskError::Aborted)));
    }
    for handle in waiting {
        assert!(matches!(handle.join_blocking(), Err(TaskError::Abandoned)));
    }
    assert_eq!(pool.stats().unfinished, 0);
    assert_eq!(pool.stats().threads, 0);
}
