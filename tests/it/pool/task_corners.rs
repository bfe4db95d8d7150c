//! Corners of pools of async tasks: what is counted, what is told to whom, and what still runs while a pool ends.

use tokio::sync::oneshot;
use tollgate::pool::{TaskError, TaskPool};

/// A pool of one whose runner is busy until the sender is dropped.
async fn busy(builder: tollgate::pool::TaskPoolBuilder) -> (TaskPool, oneshot::Sender<()>) {
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

/// Given a runtime that is shut down while two runners are busy and tasks wait, then no runner takes their place, and every
/// handle is told.
#[test]
fn a_runtime_shutdown_under_load_leaves_no_waiter() {
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
        assert!(matches!(tollgate::Clock::real().run(handle), Err(TaskError::Aborted)));
    }
    for handle in waiting {
        assert!(matches!(tollgate::Clock::real().run(handle), Err(TaskError::Abandoned)));
    }
    assert_eq!(pool.stats().unfinished, 0);
    assert_eq!(pool.stats().threads, 0);
}
