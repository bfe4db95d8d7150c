//! Waits that deadlocked, or overflowed the stack, before a task that waits lent its slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use tollgate::{Policy, Quota, Semaphore, TokenBucket};
use tollgate_engine::*;

fn tree(pools: &Arc<Vec<WorkerPool>>, depth: usize, at: usize) -> usize {
    if depth == 0 {
        return 1;
    }
    let next = (at + 1) % pools.len();
    let inner = Arc::clone(pools);
    let child = pools[next].submit(move || tree(&inner, depth - 1, next)).unwrap();
    1 + child.join().unwrap()
}

fn depth_of(pools: usize, limit: usize, depth: usize, max_parked: usize) -> usize {
    let pools: Vec<_> = (0..pools).map(|_| WorkerPool::new(limit, 1, max_parked)).collect();
    let pools = Arc::new(pools);
    let inner = Arc::clone(&pools);
    let root = pools[0].submit(move || tree(&inner, depth, 0)).unwrap();
    root.join().unwrap()
}

#[test]
fn tasks_that_wait_up_and_down_a_family_of_single_workers_end() {
    assert_eq!(depth_of(2, 1, 200, 256), 201);
    assert_eq!(depth_of(3, 1, 200, 256), 201);
}

#[test]
fn threads_wait_to_a_depth_of_sixteen_times_the_most_that_park() {
    let deep = MAX_INLINE as usize * 32;
    assert_eq!(depth_of(1, 1, deep, 32), deep + 1);
}

#[test]
fn a_join_beyond_the_most_that_park_is_refused_and_gives_the_handle_back() {
    fn task(pools: &Arc<[WorkerPool; 2]>, at: usize, refused: &Arc<AtomicUsize>) {
        let (inner, count) = (Arc::clone(pools), Arc::clone(refused));
        if refused.load(Relaxed) > 0 {
            return;
        }
        let child = pools[1 - at].submit(move || task(&inner, 1 - at, &count)).unwrap();
        if let Err(JoinError::TooManyParked(handle)) = child.join() {
            refused.fetch_add(1, Relaxed);
            assert!(handle.join_timeout(std::time::Duration::ZERO).is_err() || refused.load(Relaxed) > 0);
        }
    }
    let pools = Arc::new([WorkerPool::new(1, 4, 3), WorkerPool::new(1, 4, 3)]);
    let refused = Arc::new(AtomicUsize::new(0));
    let (inner, count) = (Arc::clone(&pools), Arc::clone(&refused));
    pools[0]
        .submit(move || task(&inner, 0, &count))
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(refused.load(Relaxed), 1);
}

#[test]
fn async_tasks_wait_to_any_depth() {
    fn tree(pool: Arc<TaskPool>, depth: usize) -> std::pin::Pin<Box<dyn Future<Output = usize> + Send>> {
        Box::pin(async move {
            if depth == 0 {
                return 1;
            }
            let child = pool.submit(tree(Arc::clone(&pool), depth - 1)).unwrap();
            1 + child.await.unwrap().unwrap()
        })
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let pool = Arc::new(TaskPool::new(1, 4));
        let root = pool.submit(tree(Arc::clone(&pool), 10_000)).unwrap();
        assert_eq!(root.await.unwrap().unwrap(), 10_001);
        assert_eq!((pool.numbers().parked, pool.numbers().running), (0, 0));
    });
}

/// Given a crawler whose pages submit two pages each to their own pool with a short queue, then all pages are crawled, and none runs
/// on the stack of another.
#[test]
fn a_crawler_runs_in_constant_stack() {
    const PAGES: usize = 100_000;
    fn page(pool: &Arc<WorkerPool>, left: &Arc<AtomicUsize>, done: &mpsc::Sender<()>) {
        for _ in 0..2 {
            if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                let (inner, count, sender) = (Arc::clone(pool), Arc::clone(left), done.clone());
                pool.execute(move || page(&inner, &count, &sender)).unwrap();
            }
        }
        let _ = done.send(());
    }
    let pool = Arc::new(WorkerPool::new(2, 10, 256));
    let left = Arc::new(AtomicUsize::new(PAGES));
    let (sender, done) = mpsc::channel();
    let (inner, count) = (Arc::clone(&pool), Arc::clone(&left));
    pool.execute(move || page(&inner, &count, &sender)).unwrap();
    assert_eq!(done.iter().take(PAGES + 1).count(), PAGES + 1);
}

#[test]
fn a_join_that_needs_a_permit_of_the_waiter_would_deadlock_whatever_the_timing() {
    let semaphore = Arc::new(Semaphore::new(5));
    let gated = |pool: usize| {
        let policy = Policy::new(Arc::clone(&semaphore));
        Arc::new(WorkerPool::gated(pool, 10, 16, policy, vec![Arc::clone(&semaphore)]))
    };
    let (upper, lower, free) = (gated(2), gated(2), Arc::new(WorkerPool::new(1, 10, 16)));
    let (low, between) = (Arc::clone(&lower), Arc::clone(&free));
    let refusals = upper.submit(move || {
        let direct = low.submit(|| ()).unwrap();
        while !direct.is_finished() {
            std::thread::yield_now();
        }
        // Even a task that has ended: the answer does not depend on the timing.
        let direct = matches!(direct.join(), Err(JoinError::WouldDeadlock(_)));
        let low = Arc::clone(&low);
        let through = between.submit(move || {
            let deep = low.submit(|| ()).unwrap();
            matches!(deep.join(), Err(JoinError::WouldDeadlock(_)))
        });
        (direct, through.unwrap().join().unwrap())
    });
    assert_eq!(refusals.unwrap().join().unwrap(), (true, true));
}

#[test]
fn tasks_behind_a_rate_wait_for_each_other() {
    let bucket = TokenBucket::new(Quota::per_second(1_000).burst(1));
    let pool = Arc::new(WorkerPool::gated(1, 10, 16, Policy::new(bucket), Vec::new()));
    let inner = Arc::clone(&pool);
    let outer = pool
        .submit(move || inner.submit(|| 7).unwrap().join().unwrap())
        .unwrap();
    assert_eq!(outer.join().unwrap(), 7);
}

#[test]
fn a_group_bounds_its_tasks_and_lets_others_pass() {
    let pool = WorkerPool::new(4, 100, 16);
    let wishes = Wishes {
        group: Some(pool.group(1)),
        ..Wishes::default()
    };
    let (entered, has_entered) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let members: Vec<_> = (0..3)
        .map(|n| {
            let (entered, released) = (entered.clone(), Arc::clone(&released));
            let task = move || {
                entered.send(n).unwrap();
                released.lock().unwrap().recv().unwrap();
            };
            pool.submit_with(&wishes, true, task).unwrap()
        })
        .collect();
    assert_eq!(has_entered.recv(), Ok(0));
    // Three slots are free, and others take them.
    pool.submit(|| ()).unwrap().join().unwrap();
    assert!(has_entered.try_recv().is_err());
    (0..3).for_each(|_| release.send(()).unwrap());
    members.into_iter().for_each(|member| member.join().unwrap());
    assert_eq!(has_entered.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn submitters_of_two_full_pools_that_wait_for_each_other_end() {
    let pools = Arc::new([WorkerPool::new(1, 1, 64), WorkerPool::new(1, 1, 64)]);
    fn task(pools: &Arc<[WorkerPool; 2]>, at: usize, depth: usize) -> usize {
        if depth == 0 {
            return 1;
        }
        let handles: Vec<_> = (0..2)
            .filter_map(|_| {
                let inner = Arc::clone(pools);
                pools[1 - at].submit(move || task(&inner, 1 - at, depth - 1)).ok()
            })
            .collect();
        1 + handles
            .into_iter()
            .filter_map(|handle| handle.join().ok())
            .sum::<usize>()
    }
    let inner = Arc::clone(&pools);
    let root = pools[0].submit(move || task(&inner, 0, 5)).unwrap();
    assert_eq!(root.join().unwrap(), 63);
}
