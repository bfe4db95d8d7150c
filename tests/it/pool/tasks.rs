//! The pool of async tasks.

use crate::pool::kinds::Bomb;
use futures::FutureExt;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tollgate::pool::{Overflow, PoolError, RejectReason, TaskError, TaskHandle, TaskPool};
use tollgate::{ManualClock, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Keeps a runner busy until it is let go.
struct Busy(oneshot::Sender<()>, TaskHandle<()>);

impl Busy {
    async fn on(pool: &TaskPool) -> Self {
        let (release, released) = oneshot::channel();
        let handle = pool.submit(async { released.await.unwrap() }).await.unwrap();
        settle().await;
        Self(release, handle)
    }

    async fn end(self) {
        self.0.send(()).unwrap();
        self.1.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_gives_the_result_of_its_task_and_the_limit_holds() {
    let pool = TaskPool::builder(7).build().unwrap();
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut handles = Vec::new();
    for n in 0..5_000 {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        let task = async move {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::SeqCst);
            n
        };
        handles.push(pool.submit(task).await.unwrap());
    }
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.await.unwrap(), n);
    }
    assert!(peak.load(Ordering::SeqCst) <= 7);
    assert!(pool.wait_idle().await);
    assert_eq!(pool.stats().finished, 5_000);
    assert!(pool.stats().peak_threads <= 7);
    assert!(pool.shutdown(LONG).await.is_clean());
    assert_eq!(pool.stats().threads, 0);
}

#[tokio::test(start_paused = true)]
async fn a_submission_with_a_time_out_hands_the_task_back() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1).max_queue(1).on(&clock).build().unwrap();
    let busy = Busy::on(&pool).await;
    let queued = pool.submit(async {}).await.unwrap();
    let late = pool.submit_timeout(async { 3 }, Duration::from_secs(1));
    tokio::pin!(late);
    assert!(futures::poll!(&mut late).is_pending());
    clock.advance(Duration::from_secs(1));
    let rejected = late.await.unwrap_err();
    assert_eq!((rejected.reason, rejected.task.await), (RejectReason::TimedOut, 3));
    busy.end().await;
    queued.await.unwrap();
}

#[tokio::test]
async fn a_future_that_panics_when_it_is_dropped_while_it_runs_does_no_harm() {
    let pool = TaskPool::builder(1).build().unwrap();
    let bomb = Bomb;
    let running = pool.submit(async move {
        pending::<()>().await;
        drop(bomb);
    });
    let running = running.await.unwrap();
    settle().await;
    assert!(running.cancel());
    assert!(matches!(running.await, Err(TaskError::Aborted)));
    assert_eq!(pool.run(async { 1 }).await.unwrap(), 1);
    assert!(pool.wait_idle().await);
    assert_eq!((pool.stats().threads, pool.stats().finished), (1, 1));
}

/// Keeps out bb8#59, bb8#67.
#[tokio::test]
async fn a_task_is_cancelled_before_and_while_it_runs() {
    let pool = TaskPool::builder(1)
        .max_queue(1)
        .overflow(Overflow::Reject)
        .build()
        .unwrap();
    let running = pool.submit(pending::<()>()).await.unwrap();
    settle().await;
    let queued = pool.submit(async { 1 }).await.unwrap();
    assert!(queued.cancel() && !queued.cancel());
    // There is room at once.
    let next = pool.submit(async { 2 }).await.unwrap();
    assert!(running.cancel());
    assert!(matches!(queued.await, Err(TaskError::Cancelled)));
    assert!(matches!(running.await, Err(TaskError::Aborted)));
    assert_eq!(next.await.unwrap(), 2);
    assert!(pool.wait_idle().await);
}

#[tokio::test]
async fn a_helped_task_whose_handle_is_dropped_goes_on() {
    let pool = TaskPool::builder(1).build().unwrap();
    let (release, released) = oneshot::channel::<()>();
    let (tell, told) = oneshot::channel();
    let inner = pool.clone();
    let outer = pool.submit(async move {
        let mut helped = inner
            .submit(async move {
                released.await.unwrap();
                tell.send(5).unwrap();
            })
            .await
            .unwrap();
        assert!(futures::poll!(&mut helped).is_pending());
        drop(helped);
    });
    outer.await.unwrap().await.unwrap();
    release.send(()).unwrap();
    assert_eq!(told.await.unwrap(), 5);
    assert!(pool.wait_idle().await);
    assert!(pool.shutdown(LONG).await.is_clean());
}

#[tokio::test]
async fn abort_drops_what_runs() {
    let pool = TaskPool::builder(2).build().unwrap();
    let running = [
        pool.submit(pending::<()>()).await.unwrap(),
        pool.submit(pending()).await.unwrap(),
    ];
    settle().await;
    let queued = pool.submit(async {}).await.unwrap();
    let report = pool.abort();
    assert_eq!((report.unstarted.len(), report.running), (1, 2));
    drop(report);
    for handle in running {
        assert!(matches!(handle.await, Err(TaskError::Aborted)));
    }
    assert!(matches!(queued.await, Err(TaskError::Abandoned)));
    assert!(pool.shutdown(LONG).await.is_clean());
}

#[test]
fn a_runtime_shutdown_leaves_no_waiter() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(matches!(TaskPool::builder(1).build(), Err(PoolError::NoRuntime)));
    let pool = TaskPool::builder(1).runtime(runtime.handle()).build().unwrap();
    let (running, queued) = runtime.block_on(async {
        let running = pool.submit(pending::<()>()).await.unwrap();
        settle().await;
        (running, pool.submit(pending::<()>()).await.unwrap())
    });
    drop(runtime);
    assert!(matches!(futures::executor::block_on(running), Err(TaskError::Aborted)));
    assert!(matches!(futures::executor::block_on(queued), Err(TaskError::Abandoned)));
    assert_eq!(pool.stats().threads, 0);
}

/// Given submitters, resizes and cancels on several threads, when the pool has ended, then each task that was let in has
/// run once or been reported once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_task_is_accounted_for_once_under_everything_at_once() {
    for round in 0..20 {
        let pool = TaskPool::builder(3).max_queue(20).build().unwrap();
        let ran: Arc<Vec<_>> = Arc::new((0..1_600).map(|_| AtomicUsize::new(0)).collect());
        let submitters = (0..8_usize).map(|submitter| {
            let (pool, ran) = (pool.clone(), Arc::clone(&ran));
            tokio::spawn(async move {
                let mut handles = Vec::new();
                for id in submitter * 200..(submitter + 1) * 200 {
                    let ran = Arc::clone(&ran);
                    let task = async move {
                        ran[id].fetch_add(1, Ordering::SeqCst);
                        if id % 3 == 0 {
                            tokio::task::yield_now().await;
                        }
                        if id.is_multiple_of(7) {
                            resume_unwind(Box::new(id));
                        }
                        ran[id].fetch_add(10, Ordering::SeqCst);
                        id
                    };
                    assert!(pool.stats().queued <= 20);
                    let Ok(handle) = pool.submit(task).await else { break };
                    if id % 5 == 0 {
                        handle.cancel();
                    }
                    handles.push((id, handle));
                    if id % 11 == 0 {
                        pool.set_limit(1 + id % 5).unwrap();
                    }
                }
                for (id, handle) in handles {
                    match handle.await {
                        Ok(result) => assert_eq!((result, ran[id].load(Ordering::SeqCst)), (id, 11)),
                        Err(TaskError::Panicked(_) | TaskError::Aborted) => {
                            assert_eq!(ran[id].load(Ordering::SeqCst), 1);
                        }
                        Err(_) => assert_eq!(ran[id].load(Ordering::SeqCst), 0),
                    }
                }
            })
        });
        let submitters: Vec<_> = submitters.collect();
        while pool.stats().finished < round * 60 {
            tokio::task::yield_now().await;
        }
        drop(pool.abort());
        for submitter in submitters {
            submitter.await.unwrap();
        }
        let _ = pool.shutdown(LONG).await;
        assert_eq!((pool.stats().threads, pool.stats().unfinished), (0, 0));
    }
}

#[tokio::test]
async fn a_batch_that_is_dropped_while_it_waits_runs_what_it_has_queued() {
    let pool = TaskPool::builder(1).max_queue(4).build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let tasks = (0..10).map(|_| {
        let ran = Arc::clone(&ran);
        async move { ran.fetch_add(1, Ordering::Relaxed) }
    });
    assert!(pool.submit_all(tasks).now_or_never().is_none());
    assert!(pool.wait_idle().await);
    assert_eq!((ran.load(Ordering::Relaxed), Arc::strong_count(&ran)), (4, 1));
}

#[tokio::test]
async fn a_wait_for_idleness_has_an_end() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1).on(&clock).build().unwrap();
    assert!(pool.wait_idle_timeout(LONG).await);
    let (release, released) = oneshot::channel::<()>();
    let busy = pool.submit(released).await.unwrap();
    let waits = pool.wait_idle_timeout(LONG);
    tokio::pin!(waits);
    assert!(futures::poll!(&mut waits).is_pending());
    clock.advance(LONG - Duration::from_nanos(1));
    assert!(futures::poll!(&mut waits).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert!(!waits.await);
    // A task of the pool would wait for itself.
    let inner = pool.clone();
    let asks = pool
        .submit(async move { inner.wait_idle_timeout(LONG).await })
        .await
        .unwrap();
    release.send(()).unwrap();
    busy.await.unwrap().unwrap();
    assert!(!asks.await.unwrap());
}

#[tokio::test]
async fn a_handle_waits_no_longer_than_it_is_told() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1).on(&clock).build().unwrap();
    let (release, released) = oneshot::channel::<()>();
    let handle = pool.submit(released).await.unwrap();
    let handle = handle.try_join().unwrap_err();
    let joins = tokio::spawn(handle.join_timeout(LONG));
    while !clock.advance_to_next_timer() {
        yield_now().await;
    }
    let handle = joins.await.unwrap().unwrap_err();
    release.send(()).unwrap();
    assert!(pool.wait_idle().await);
    assert!(handle.is_finished());
    assert!(handle.try_join().unwrap().is_ok());
    let quick = pool.submit(async { 3 }).await.unwrap();
    assert_eq!(quick.join_timeout(LONG).await.unwrap().unwrap(), 3);
}

/// Given a task that polls another of its pool itself, when it has waited long enough, then a runner goes on with that.
#[tokio::test]
async fn a_helped_task_whose_waiter_has_waited_long_enough_goes_on() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1).on(&clock).build().unwrap();
    let (release, released) = oneshot::channel::<()>();
    let inner = pool.clone();
    let outer = pool.submit(async move {
        let handle = inner.submit(released).await.unwrap();
        Some(handle.join_timeout(LONG).await.unwrap_err())
    });
    let outer = outer.await.unwrap();
    while !clock.advance_to_next_timer() {
        yield_now().await;
    }
    let handle = outer.await.unwrap().unwrap();
    release.send(()).unwrap();
    handle.await.unwrap().unwrap();
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given threads that belong to no runtime, then they submit and join as they would with a pool of threads.
#[test]
fn threads_submit_and_join() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let pool = TaskPool::builder(1)
        .max_queue(1)
        .runtime(runtime.handle())
        .build()
        .unwrap();
    let threads = WorkerPool::builder().workers(4).build().unwrap();
    let sums: Vec<_> = (0..4)
        .map(|t| {
            let pool = pool.clone();
            let submit = move || {
                let handles: Vec<_> = (0..100)
                    .map(|n| pool.submit_blocking(async move { t * 100 + n }).unwrap())
                    .collect();
                handles
                    .into_iter()
                    .map(|handle| tollgate::Clock::real().run(handle).unwrap())
                    .sum::<i32>()
            };
            threads.submit(submit).unwrap()
        })
        .collect();
    let sum: i32 = sums.into_iter().map(|sum| sum.join().unwrap()).sum();
    assert_eq!(sum, 399 * 200);
    pool.close();
    assert_eq!(pool.submit_blocking(async {}).unwrap_err().reason, RejectReason::Closed);
}

/// Given a task whose handle is gone, when it panics where it is run after the end of its pool, then its runner sees
/// the panic, as with a pool of threads.
#[tokio::test]
async fn a_returned_task_panics_where_it_is_run() {
    let builder = TaskPool::builder(1).on_panic(|_| unreachable!("it is the panic of its owner"));
    let pool = builder.build().unwrap();
    pool.execute(async { resume_unwind(Box::new(5)) }).await.unwrap();
    let mut report = pool.abort();
    let unstarted = report.unstarted.pop().unwrap();
    let payload = tokio::spawn(unstarted.run()).await.unwrap_err().into_panic();
    assert_eq!(*payload.downcast::<i32>().unwrap(), 5);
}
