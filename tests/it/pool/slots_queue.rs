//! Slots with a queue of their own: permits that come back, or are added, while a pool waits for them.

use crate::pool::threads::Busy;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tollgate::pool::PoolBuilder;
use tollgate::{JoinHandle, Quota, Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(10);

#[track_caller]
fn ends<T: Send>(handle: JoinHandle<T>) -> T {
    match handle.join_timeout(LONG) {
        Ok(result) => result.unwrap(),
        Err(_) => panic!("no worker runs the task"),
    }
}

fn elastic(slots: &Arc<Semaphore>) -> PoolBuilder {
    WorkerPool::builder().workers(1..=4).slots(Arc::clone(slots))
}

/// One worker of the pool is busy, and there is no other: before it slept there might have been.
fn busy(pool: &WorkerPool) -> Busy {
    while pool.stats().idle < 1 {
        thread::yield_now();
    }
    let busy = Busy::on(pool);
    assert_eq!(pool.stats().threads, 1);
    busy
}

/// Given an elastic pool whose slots are all taken, and a task queued. When the limit is raised, then a thread is started
/// for it, and not before.
#[test]
fn a_raised_limit_starts_the_thread_that_was_missing() {
    let slots = Arc::new(Semaphore::new(1));
    // Two more threads, whatever the schedule: a second, and one that asks for the next slot.
    let growth = Quota::per_hour(1).burst(2);
    let pool = elastic(&slots).growth(growth).build().unwrap();
    let busy = busy(&pool);
    let handles: Vec<_> = (0..5).map(|n| pool.submit(move || n).unwrap()).collect();
    slots.set_limit(2);
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(ends(handle), n);
    }
    assert!(pool.stats().peak_threads <= 3);
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
}

/// The same for slots of the pool's own.
#[test]
fn a_limit_of_its_own_that_is_raised_starts_the_thread_that_was_missing() {
    let pool = WorkerPool::builder().workers(1).build().unwrap();
    let busy = busy(&pool);
    let queued = pool.submit(|| 7).unwrap();
    assert_eq!(pool.stats().threads, 1);
    pool.set_limit(1..=4).unwrap();
    assert_eq!(ends(queued), 7);
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
}

/// And when another holder gives a permit back: while it has no waiter, or its waiters want more than there is and go.
#[test]
fn a_permit_that_comes_back_starts_the_thread_that_was_missing() {
    let slots = Arc::new(Semaphore::new(2));
    let held = slots.try_acquire().unwrap();
    let pool = elastic(&slots).build().unwrap();
    let busy = busy(&pool);
    let queued = pool.submit(|| 1).unwrap();
    drop(held);
    assert_eq!(ends(queued), 1);
    let held = slots.blocking_acquire().unwrap();
    let mut two = Box::pin(slots.acquire_many(2));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(two.as_mut().poll(&mut cx).is_pending());
    drop(held);
    let queued = pool.submit(|| 2).unwrap();
    assert!(!queued.is_finished());
    drop(two);
    assert_eq!(ends(queued), 2);
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!((slots.available_permits(), slots.waiting()), (2, 0));
}

/// What a pool has left to be called by goes when it has been called, or the pool has gone.
#[test]
fn a_pool_that_has_gone_leaves_nothing_with_its_slots() {
    let slots = Arc::new(Semaphore::new(1));
    let pool = elastic(&slots).build().unwrap();
    let busy = busy(&pool);
    let queued = pool.submit(|| 7).unwrap();
    busy.end();
    assert_eq!(ends(queued), 7);
    assert!(pool.shutdown(LONG).is_clean());
    drop(pool);
    // Its threads let go of it a moment after they have been counted out.
    while Arc::strong_count(&slots) > 1 {
        thread::yield_now();
    }
    slots.set_limit(5);
    assert_eq!(slots.available_permits(), 5);
}

/// Given workers that are busy, when their slots are closed, then what they run ends, and the rest is abandoned.
#[test]
fn slots_that_are_closed_end_a_pool_whose_workers_are_busy() {
    let slots = Arc::new(Semaphore::new(1));
    let pool = WorkerPool::builder()
        .workers(1)
        .slots(Arc::clone(&slots))
        .build()
        .unwrap();
    let busy = Busy::on(&pool);
    let queued: Vec<_> = (0..40).map(|n| pool.submit(move || n).unwrap()).collect();
    slots.close();
    busy.end();
    assert!(queued.into_iter().all(|handle| handle.join().is_err()));
    assert!(pool.submit(|| 7).is_err());
    assert!(pool.shutdown(LONG).is_clean());
}

#[cfg(feature = "tokio")]
mod tasks {
    use super::LONG;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use tokio::time::timeout;
    use tollgate::Semaphore;
    use tollgate::pool::TaskPool;

    /// Given a pool whose runners are all busy, and two tasks queued. When the limit of its slots is raised, then one more runs
    /// at once; and when it falls and rises again, it has stayed so.
    #[tokio::test(start_paused = true)]
    async fn a_raised_limit_starts_the_runner_that_was_missing() {
        let slots = Arc::new(Semaphore::new(1));
        let own = TaskPool::builder(1).build().unwrap();
        let shared = TaskPool::builder(4).slots(Arc::clone(&slots)).build().unwrap();
        // Where slots are shared, one more runner waits for one.
        for (pool, waits) in [(own, 0), (shared, 1)] {
            let set_limit = |limit| match waits {
                0 => pool.set_limit(limit).unwrap(),
                _ => slots.set_limit(limit),
            };
            let (free, freed) = oneshot::channel::<()>();
            let busy = pool.submit(freed).await.unwrap();
            let (free_other, freed) = oneshot::channel::<()>();
            let other = pool.submit(freed).await.unwrap();
            let last = pool.submit(async { 7 }).await.unwrap();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!((pool.stats().threads, pool.stats().queued), (1 + waits, 2));
            set_limit(2);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!((pool.stats().threads, pool.stats().queued), (2 + waits, 1));
            set_limit(1);
            set_limit(3);
            assert_eq!(timeout(LONG, last).await.unwrap().unwrap(), 7);
            drop((free, free_other));
            assert!(busy.await.is_ok() && other.await.is_ok());
            assert!(pool.shutdown(Duration::from_secs(1)).await.is_clean());
        }
    }
}

#[cfg(feature = "fan-out")]
mod fan_outs {
    use futures::StreamExt;
    use std::sync::Arc;
    use tokio::sync::{mpsc, oneshot};
    use tollgate::Semaphore;
    use tollgate::fan_out::fan_out;

    /// Given a fan-out whose items all take long, with or without room for results that wait, in order or not. When its limit
    /// is raised, then more of them start, although nothing has ended.
    #[tokio::test(start_paused = true)]
    async fn a_raised_limit_starts_items_that_were_held_back() {
        for (ordered, buffer) in [
            (false, None),
            (false, Some(0)),
            (true, None),
            (true, Some(0)),
            (true, Some(1)),
        ] {
            let slots = Arc::new(Semaphore::new(2));
            let (start, mut started) = mpsc::unbounded_channel();
            let mut items = fan_out(0..10, &slots);
            if ordered {
                items = items.ordered();
            }
            if let Some(buffer) = buffer {
                items = items.buffer(buffer);
            }
            let mut results = items.map(move |n| {
                let (free, freed) = oneshot::channel::<()>();
                start.send((n, free)).unwrap();
                async move {
                    let _ = freed.await;
                    n
                }
            });
            let consumer = tokio::spawn(async move {
                let mut got = 0;
                while let Some(result) = results.next().await {
                    result.unwrap();
                    got += 1;
                }
                got
            });
            let yields = || async {
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            };
            yields().await;
            let mut running = Vec::new();
            while let Ok(item) = started.try_recv() {
                running.push(item);
            }
            let before = running.len();
            assert!((2..=3).contains(&before), "one is asked for ahead of its slot at most");
            if ordered {
                // The second has ended and waits for the first: its room may be all there is.
                drop(running.remove(1));
                yields().await;
                while let Ok(item) = started.try_recv() {
                    running.push(item);
                }
            }
            let before = running.len();
            slots.set_limit(slots.limit() + 3);
            yields().await;
            while let Ok(item) = started.try_recv() {
                running.push(item);
            }
            assert!(
                running.len() >= before + 2,
                "{ordered} {buffer:?}: {before} and no more"
            );
            drop(running);
            while let Some((_, free)) = started.recv().await {
                drop(free);
            }
            assert_eq!(consumer.await.unwrap(), 10);
        }
    }
}
