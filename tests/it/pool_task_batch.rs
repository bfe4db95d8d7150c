//! Many async tasks submitted at once.

use futures::FutureExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate::pool::{Overflow, TaskPool, Turned};

#[tokio::test]
async fn a_batch_is_run_in_order_and_through_a_queue_that_is_smaller() {
    for queue in [1, 7, 1_000] {
        let pool = TaskPool::builder(1).queue(queue).build().unwrap();
        let next = Arc::new(AtomicUsize::new(0));
        let tasks = (0..300).map(|n| {
            let next = Arc::clone(&next);
            async move { (n, next.fetch_add(1, Ordering::Relaxed)) }
        });
        let (handles, rejected) = pool.submit_all(tasks).await;
        assert!(rejected.is_empty());
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.await.unwrap(), (n, n));
        }
        assert_eq!(pool.stats().submitted, 300);
    }
}

#[tokio::test]
async fn what_a_batch_finds_no_room_for_is_handed_back() {
    let pool = TaskPool::builder(1)
        .queue(3)
        .overflow(Overflow::Reject)
        .build()
        .unwrap();
    // Nothing runs before this task waits.
    let (handles, rejected) = pool.submit_all((0..5).map(|n| async move { n })).await;
    assert_eq!((handles.len(), rejected.len()), (3, 2));
    for (n, rejected) in (3..).zip(rejected) {
        assert_eq!((rejected.reason, rejected.task.await), (Turned::Full, n));
    }
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.await.unwrap(), n);
    }
    pool.close();
    let (handles, rejected) = pool.submit_all((0..100).map(|n| async move { n })).await;
    assert!(handles.is_empty());
    for (n, rejected) in rejected.into_iter().enumerate() {
        assert_eq!((rejected.reason, rejected.task.await), (Turned::Closed, n));
    }
}

#[tokio::test]
async fn a_batch_that_is_dropped_while_it_waits_runs_what_it_has_queued() {
    let pool = TaskPool::builder(1).queue(4).build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let tasks = (0..10).map(|_| {
        let ran = Arc::clone(&ran);
        async move { ran.fetch_add(1, Ordering::Relaxed) }
    });
    assert!(pool.submit_all(tasks).now_or_never().is_none());
    assert!(pool.wait_idle().await);
    assert_eq!((ran.load(Ordering::Relaxed), Arc::strong_count(&ran)), (4, 1));
}
