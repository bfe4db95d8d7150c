//! Tasks that submit to their own full pool: they do not wait for room that only they could make.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use tollgate::WorkerPool;
use tollgate::pool::{TaskPool, Turned};

/// Given a task that submits three others to its own full pool, then they are queued beyond the bound and run after it, in order;
/// a submission that does not wait, and one from outside, find no room until the excess has started.
#[test]
fn a_task_that_submits_to_its_own_full_pool_does_not_wait_and_runs_nothing_itself() {
    let pool = WorkerPool::builder().workers(1).queue(1).build().unwrap();
    let here = pool.clone();
    let (ran, order) = mpsc::channel();
    let outer = pool.submit(move || {
        let tasks = [1, 2, 3].map(|n| {
            let ran = ran.clone();
            here.submit(move || ran.send(n).unwrap()).unwrap()
        });
        assert_eq!(here.stats().queued, 3);
        assert_eq!(here.try_submit(|| ()).unwrap_err().reason, Turned::Full);
        let outside = here.clone();
        let refused = thread::spawn(move || outside.submit_timeout(|| (), Duration::ZERO).unwrap_err().reason);
        assert_eq!(refused.join().unwrap(), Turned::TimedOut);
        ran.send(0).unwrap();
        tasks
    });
    for task in outer.unwrap().join().unwrap() {
        task.join().unwrap();
    }
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(pool.submit(|| ()).unwrap().join().is_ok());
}

/// The same for tasks that weigh more than the queue has left.
#[test]
fn a_task_that_submits_to_its_own_full_pool_overdraws_its_weight() {
    let pool = WorkerPool::builder()
        .workers(1)
        .queue(10)
        .queue_weight(4)
        .build()
        .unwrap();
    let here = pool.clone();
    let outer = pool.submit(move || [(); 3].map(|()| here.weight(3).submit(|| ()).unwrap()));
    for task in outer.unwrap().join().unwrap() {
        task.join().unwrap();
    }
    assert!(pool.wait_idle());
    assert!(pool.weight(4).try_submit(|| ()).is_ok());
}

/// Given pages that submit pages to a pool with a short queue, then none runs on the stack of another.
#[test]
fn a_crawler_runs_in_constant_stack() {
    const PAGES: usize = 20_000;
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
        .queue(10)
        .stack_size(128 << 10)
        .build()
        .unwrap();
    let (here, left) = (pool.clone(), Arc::new(AtomicUsize::new(PAGES)));
    pool.execute(move || page(&here, &left)).unwrap();
    assert!(pool.wait_idle());
    assert_eq!(pool.stats().finished, PAGES as u64 + 1);
}

/// Given an async task that submits three others to its own full pool, then it does not wait, and they run after it.
#[tokio::test(start_paused = true)]
async fn an_async_task_that_submits_to_its_own_full_pool_does_not_wait() {
    let pool = TaskPool::builder(1).queue(1).build().unwrap();
    let here = pool.clone();
    let order = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&order);
    let outer = pool.submit(async move {
        let mut tasks = Vec::new();
        for n in [1, 2, 3] {
            let noted = Arc::clone(&noted);
            tasks.push(here.submit(async move { noted.lock().unwrap().push(n) }).await.unwrap());
        }
        assert_eq!(here.stats().queued, 3);
        assert_eq!(here.try_submit(async {}).unwrap_err().reason, Turned::Full);
        noted.lock().unwrap().push(0);
        tasks
    });
    for task in outer.await.unwrap().await.unwrap() {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
}

/// Given a task that submits far more children than its pool's queue holds and joins them all, then a join costs no look at all of
/// the queue.
#[test]
fn joins_of_many_children_beyond_the_bound_end() {
    const CHILDREN: u64 = 30_000;
    let pool = WorkerPool::builder().workers(1).queue(10).build().unwrap();
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
    let pool = TaskPool::builder(1).queue(1).build().unwrap();
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
