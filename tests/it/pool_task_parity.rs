//! What a pool of threads can do, a pool of async tasks can do as well.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tollgate::pool::{Overflow, TaskError, TaskPool, TaskPoolBuilder, Turned};
use tollgate::{ManualClock, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

fn panics() {
    resume_unwind(Box::new(1));
}

/// A builder, and what its hook has been told, as numbers.
fn told(limit: usize) -> (TaskPoolBuilder, Arc<Mutex<Vec<i32>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let builder = TaskPool::builder(limit).on_panic(move |payload| {
        tell.lock().unwrap().push(*payload.downcast::<i32>().unwrap());
    });
    (builder, told)
}

#[tokio::test]
async fn what_nobody_waits_for_runs_and_its_panics_go_to_the_hook() {
    let (builder, told) = told(1);
    let pool = builder.build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    for n in 0..4 {
        let ran = Arc::clone(&ran);
        let task = async move {
            yield_now().await;
            ran.fetch_add(1, Ordering::Relaxed);
            if n % 2 == 1 {
                resume_unwind(Box::new(n));
            }
        };
        pool.execute(task).await.unwrap();
    }
    // One that has a handle is nobody else's business.
    let watched = pool.submit(async { resume_unwind(Box::new(7)) }).await.unwrap();
    assert!(matches!(watched.await, Err::<(), _>(TaskError::Panicked(_))));
    // One that has none any more is.
    drop(pool.submit(async { resume_unwind(Box::new(9)) as () }).await.unwrap());
    assert!(pool.wait_idle().await);
    assert_eq!(ran.load(Ordering::Relaxed), 4);
    assert_eq!(*told.lock().unwrap(), [1, 3, 9]);
    let stats = pool.stats();
    assert_eq!((stats.submitted, stats.finished, stats.panicked), (6, 6, 4));
}

#[tokio::test]
async fn a_batch_that_nobody_waits_for_is_run_whole_and_handed_back_when_the_pool_is_closed() {
    let (builder, told) = told(2);
    let pool = builder.queue(3).build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let tasks = (0..200).map(|n| {
        let ran = Arc::clone(&ran);
        async move {
            ran.fetch_add(1, Ordering::Relaxed);
            if n == 150 {
                resume_unwind(Box::new(n));
            }
        }
    });
    assert!(pool.execute_all(tasks).await.is_empty());
    assert!(pool.wait_idle().await);
    assert_eq!((ran.load(Ordering::Relaxed), &*told.lock().unwrap()), (200, &vec![150]));
    pool.close();
    let rejected = pool.execute_all((0..70).map(|_| async {})).await;
    assert_eq!(rejected.len(), 70);
    assert!(rejected.iter().all(|back| back.reason == Turned::Closed));
    assert_eq!(pool.execute(async {}).await.unwrap_err().reason, Turned::Closed);
}

#[tokio::test]
async fn run_gives_the_result_or_says_why_there_is_none() {
    let pool = TaskPool::builder(1)
        .queue(1)
        .overflow(Overflow::Reject)
        .build()
        .unwrap();
    assert_eq!(pool.run(async { 7 }).await.unwrap(), 7);
    assert!(matches!(
        pool.run(async { resume_unwind(Box::new(1)) }).await,
        Err::<(), _>(TaskError::Panicked(_))
    ));
    let (release, released) = oneshot::channel::<()>();
    let busy = pool.submit(released).await.unwrap();
    while pool.stats().queued > 0 {
        yield_now().await;
    }
    let queued = pool.try_submit(async {}).unwrap();
    assert!(matches!(pool.run(async {}).await, Err(TaskError::Discarded)));
    release.send(()).unwrap();
    busy.await.unwrap().unwrap();
    queued.await.unwrap();
    pool.close();
    assert!(matches!(pool.run(async {}).await, Err(TaskError::Abandoned)));
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
    let pool = TaskPool::builder(1).queue(1).runtime(runtime.handle()).build().unwrap();
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
                    .map(|handle| handle.join_blocking().unwrap())
                    .sum::<i32>()
            };
            threads.submit(submit).unwrap()
        })
        .collect();
    let sum: i32 = sums.into_iter().map(|sum| sum.join().unwrap()).sum();
    assert_eq!(sum, 399 * 200);
    pool.close();
    assert_eq!(pool.submit_blocking(async {}).unwrap_err().reason, Turned::Closed);
}

/// Given a task whose handle is gone, when it panics where it is run after the end of its pool, then whoever runs it sees
/// the panic, as with a pool of threads.
#[tokio::test]
async fn what_is_handed_back_panics_where_it_is_run() {
    let (builder, told) = told(1);
    let pool = builder.build().unwrap();
    pool.execute(async { resume_unwind(Box::new(5)) }).await.unwrap();
    let mut report = pool.abort();
    let unstarted = report.unstarted.pop().unwrap();
    let payload = tokio::spawn(unstarted.run()).await.unwrap_err().into_panic();
    assert_eq!(*payload.downcast::<i32>().unwrap(), 5);
    assert!(told.lock().unwrap().is_empty());

    // And on threads the hook is told as well, once the handle is gone.
    let told = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&told);
    let threads = WorkerPool::builder()
        .workers(1)
        .on_panic(move |_| _ = tell.fetch_add(1, Ordering::Relaxed));
    let threads = threads.build().unwrap();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let handle = threads.submit(move || {
        gone.recv().unwrap();
        panics();
    });
    drop(handle.unwrap());
    go.send(()).unwrap();
    let kept = threads.submit(|| resume_unwind(Box::new(1)) as ()).unwrap();
    assert!(kept.join().is_err());
    assert!(threads.shutdown(LONG).is_clean());
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

/// Given tasks that still run when a shutdown has given up, then its report can be waited for: from outside until they have ended, and
/// in a task of the pool not at all.
#[tokio::test]
async fn a_report_can_be_waited_for() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(2).on(&clock).build().unwrap();
    let (release, released) = oneshot::channel::<()>();
    let busy = pool.submit(released).await.unwrap();
    let here = pool.clone();
    let inside = pool.submit(async move { here.shutdown(Duration::ZERO).await.wait().await });
    assert!(!inside.await.unwrap().await.unwrap());
    let report = pool.shutdown(Duration::ZERO).await;
    assert_eq!((report.running, report.is_clean()), (1, false));
    let mut waits = Box::pin(report.wait_timeout(LONG));
    assert!(futures::poll!(&mut waits).is_pending());
    clock.advance(LONG);
    assert!(!waits.await);
    let mut waits = Box::pin(report.wait());
    assert!(futures::poll!(&mut waits).is_pending());
    release.send(()).unwrap();
    assert!(waits.await);
    busy.await.unwrap().unwrap();
    assert_eq!(pool.stats().threads, 0);

    let threads = WorkerPool::builder().workers(2).build().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (start, started) = std::sync::mpsc::channel();
    let busy = threads.submit(move || {
        start.send(()).unwrap();
        released.recv().unwrap();
    });
    let busy = busy.unwrap();
    started.recv().unwrap();
    let here = threads.clone();
    assert!(!threads.run(move || here.abort().wait()).unwrap());
    let report = threads.shutdown(Duration::ZERO);
    assert!(!report.wait_timeout(Duration::ZERO));
    release.send(()).unwrap();
    assert!(report.wait());
    busy.join().unwrap();
    assert_eq!(threads.stats().threads, 0);
}
