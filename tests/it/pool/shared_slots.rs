//! Pools that share one permit: each task costs one hand-over at most, and both pools get on.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::Semaphore;
use tollgate::pool::WorkerPool;

const LONG: Duration = Duration::from_secs(60);
const TASKS: usize = 300;

/// The longest run of tasks of one pool while the other had some left.
fn longest_run(order: &[usize]) -> usize {
    let last = |pool| order.iter().rposition(|&of| of == pool).unwrap_or(0);
    let both = &order[..=last(0).min(last(1))];
    both.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap_or(0)
}

/// Given two pools of one worker on one permit, held until 300 tasks are queued in each.
/// When it is let go,
/// then both run all of them.
#[test]
fn two_busy_pools_that_share_a_permit_both_get_on() {
    let slots = Arc::new(Semaphore::new(1));
    let order = Arc::new(Mutex::new(Vec::new()));
    let held = slots.try_acquire().unwrap();
    let builder = || WorkerPool::builder().workers(1).slots(Arc::clone(&slots));
    let pools = [builder().build().unwrap(), builder().build().unwrap()];
    for (n, pool) in pools.iter().enumerate() {
        for _ in 0..TASKS {
            let order = Arc::clone(&order);
            pool.execute(move || order.lock().unwrap().push(n)).unwrap();
        }
    }
    while slots.waiting() < 2 {
        std::thread::yield_now();
    }
    drop(held);
    for pool in &pools {
        assert!(pool.shutdown(LONG).is_clean());
    }
    assert_eq!(order.lock().unwrap().len(), 2 * TASKS);
}

/// Given a waiter behind the worker of a pool whose one permit is held, and 20 tasks queued.
/// When the permit is let go,
/// then the worker starts one task with it and hands it on, neither earlier nor later, and so each time anew.
#[test]
fn a_worker_starts_one_task_with_a_permit_that_others_wait_for() {
    let slots = Arc::new(Semaphore::new(1));
    let mut held = slots.try_acquire().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let pool = WorkerPool::builder().workers(1).slots(Arc::clone(&slots));
    let pool = pool.build().unwrap();
    for _ in 0..20 {
        let ran = Arc::clone(&ran);
        pool.execute(move || _ = ran.fetch_add(1, Ordering::SeqCst)).unwrap();
    }
    for turn in 1..=20 {
        while slots.waiting() == 0 {
            std::thread::yield_now();
        }
        let mut next = pin!(slots.acquire());
        assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(held);
        held = futures::executor::block_on(next).unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), turn);
    }
    drop(held);
    assert!(pool.shutdown(LONG).is_clean());
}

/// The same for async pools on one thread, where the order is known: they take turns, task by task.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn two_task_pools_that_share_a_permit_take_turns() {
    use tollgate::pool::TaskPool;
    let slots = Arc::new(Semaphore::new(1));
    let order = Arc::new(Mutex::new(Vec::new()));
    let held = slots.try_acquire().unwrap();
    let builder = || TaskPool::builder(1).slots(Arc::clone(&slots));
    let pools = [builder().build().unwrap(), builder().build().unwrap()];
    for (n, pool) in pools.iter().enumerate() {
        for _ in 0..TASKS {
            let order = Arc::clone(&order);
            let task = async move {
                tokio::task::yield_now().await;
                order.lock().unwrap().push(n);
            };
            drop(pool.submit(task).await.unwrap());
        }
    }
    while slots.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    drop(held);
    for pool in &pools {
        assert!(pool.shutdown(LONG).await.is_clean());
    }
    let order = order.lock().unwrap();
    assert_eq!((order.len(), longest_run(&order)), (2 * TASKS, 1));
}
