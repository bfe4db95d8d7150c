//! Tasks that submit to their own full pool: they do not wait for room that only they could make.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tollgate::WorkerPool;
use tollgate::pool::TaskPool;

/// Given pages that submit pages to a pool with a short queue, then none runs on the stack of another.
#[test]
fn a_crawler_runs_in_constant_stack() {
    // `ci/deep` builds with optimisations.
    const PAGES: usize = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    fn page(pool: &WorkerPool, left: &Arc<AtomicUsize>) {
        for _ in 0..2 {
            if left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                let (here, left) = (pool.clone(), Arc::clone(left));
                pool.execute(move || page(&here, &left)).unwrap();
            }
        }
    }
    let pool = WorkerPool::builder()
        .workers(2)
        .max_queue(10)
        .stack_size(128 << 10)
        .build()
        .unwrap();
    let (here, left) = (pool.clone(), Arc::new(AtomicUsize::new(PAGES)));
    pool.execute(move || page(&here, &left)).unwrap();
    assert!(pool.wait_idle());
    assert_eq!(pool.stats().finished, PAGES as u64 + 1);
}

/// Given a task that submits far more children than its pool's queue holds and joins them all, then a join costs no look at all of
/// the queue.
#[test]
fn joins_of_many_children_beyond_the_bound_end() {
    const CHILDREN: u64 = 30_000;
    let pool = WorkerPool::builder().workers(1).max_queue(10).build().unwrap();
    let here = pool.clone();
    let sum = pool.run(move || {
        let children: Vec<_> = (0..CHILDREN).map(|n| here.submit(move || n).unwrap()).collect();
        children.into_iter().map(|child| child.join().unwrap()).sum::<u64>()
    });
    assert_eq!(sum.unwrap(), CHILDREN * (CHILDREN - 1) / 2);
}

/// Given a submission that waits for room outside, when it is moved into a task of the pool, then it waits no more.
#[tokio::test(start_paused = true)]
async fn a_submission_that_is_moved_into_the_pool_does_not_wait() {
    let pool = TaskPool::builder(1).max_queue(1).build().unwrap();
    let (give, given) = tokio::sync::oneshot::channel::<std::pin::Pin<Box<dyn Future<Output = bool> + Send>>>();
    let outer = pool.try_submit(async move { given.await.unwrap().await }).unwrap();
    tokio::task::yield_now().await;
    let queued = pool.try_submit(async {}).unwrap();
    let inner = pool.clone();
    let mut waits: std::pin::Pin<Box<dyn Future<Output = bool> + Send>> =
        Box::pin(async move { inner.submit(async {}).await.is_ok() });
    assert!(futures::poll!(&mut waits).is_pending());
    assert!(give.send(waits).is_ok());
    let ended = tokio::time::timeout(Duration::from_secs(60), outer).await;
    assert!(ended.expect("it waits for itself").unwrap());
    queued.await.unwrap();
}
