//! Pools of async tasks within pools: sub-pools.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tollgate::pool::{AsyncHandle, Overflow, TaskError, TaskPool, Turned};
use tollgate::{ManualClock, Semaphore};

const LONG: Duration = Duration::from_secs(60);

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

/// Keeps a runner busy until it is let go.
struct Busy(oneshot::Sender<()>, AsyncHandle<()>);

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

/// How many run, and the most that did.
#[derive(Default)]
struct Count(AtomicUsize, AtomicUsize);

impl Count {
    async fn pass(&self) {
        self.1
            .fetch_max(self.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        yield_now().await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn peak(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sub_pool_keeps_its_own_bound_beside_that_of_its_parent() {
    let pool = TaskPool::builder(4).queue(10_000).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(2).queue(10_000)).unwrap();
    let (inner, all) = (Arc::new(Count::default()), Arc::new(Count::default()));
    for _ in 0..1_000 {
        let (mine, both) = (Arc::clone(&inner), Arc::clone(&all));
        let task = async move {
            futures::join!(mine.pass(), both.pass());
        };
        small.execute(task).await.unwrap();
        let both = Arc::clone(&all);
        pool.execute(async move { both.pass().await }).await.unwrap();
    }
    assert!(small.wait_idle().await && pool.wait_idle().await);
    assert!(inner.peak() <= 2 && all.peak() <= 4, "{} {}", inner.peak(), all.peak());
    assert_eq!(small.stats().finished, 1_000);
    assert_eq!((pool.stats().finished, pool.stats().submitted), (1_000, 1_000));
    assert!(pool.shutdown(LONG).await.is_clean());
    assert_eq!(small.submit(async {}).await.unwrap_err().reason, Turned::Closed);
    assert_eq!((small.stats().threads, small.stats().unfinished), (0, 0));
}

/// Given a busy sub-pool, then the tasks of its parent wait for no more than sixteen of it.
#[tokio::test]
async fn a_sub_pool_lets_others_have_the_runner_from_time_to_time() {
    let pool = TaskPool::builder(1).queue(100).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1).queue(100)).unwrap();
    let busy = Busy::on(&pool).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 0..40 {
        let order = Arc::clone(&order);
        small
            .execute(async move { order.lock().unwrap().push(n) })
            .await
            .unwrap();
    }
    let seen = Arc::clone(&order);
    let before = pool.submit(async move { seen.lock().unwrap().len() }).await.unwrap();
    busy.end().await;
    assert_eq!(before.await.unwrap(), 16);
    assert!(pool.wait_idle().await);
    assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
}

/// Given a parent that is made smaller, then a sub-pool gives its runner up after the task that it has.
#[tokio::test]
async fn a_parent_that_shrinks_is_obeyed_below() {
    let pool = TaskPool::builder(2).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1)).unwrap();
    let busy = Busy::on(&pool).await;
    let first = Busy::on(&small).await;
    let second = small.submit(async {}).await.unwrap();
    pool.resize(1).unwrap();
    first.end().await;
    settle().await;
    assert!(!second.is_finished() && pool.slots().debt() == 0);
    busy.end().await;
    second.await.unwrap();
    assert!(pool.shutdown(LONG).await.is_clean());
}

type Boxed = Pin<Box<dyn Future<Output = usize> + Send>>;

fn hop(up: TaskPool, down: TaskPool, depth: usize) -> Boxed {
    Box::pin(async move {
        if depth == 0 {
            return 0;
        }
        let next = hop(down, up.clone(), depth - 1);
        1 + up.submit(next).await.unwrap().await.unwrap()
    })
}

#[tokio::test]
async fn tasks_wait_for_tasks_up_and_down_the_family_on_one_runner() {
    let pool = TaskPool::builder(1).queue(1).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1).queue(1)).unwrap();
    assert_eq!(hop(pool.clone(), small.clone(), 40).await, 40);
    assert_eq!(hop(small.clone(), pool.clone(), 41).await, 41);
    // Far more than the queue of either holds.
    let inner = small.clone();
    let sum = pool.run(async move {
        let (handles, rejected) = inner.submit_all((0..100).map(|n| async move { n })).await;
        assert!(rejected.is_empty());
        let mut sum = 0;
        for handle in handles {
            sum += handle.await.unwrap();
        }
        sum
    });
    assert_eq!(sum.await.unwrap(), 4950);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given a task of the parent that runs one of the sub-pool in passing, when it drops the handle, then a runner goes on
/// with that task, though there was none.
#[tokio::test]
async fn a_task_that_was_run_in_passing_goes_on_below() {
    let pool = TaskPool::builder(1).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1)).unwrap();
    let (release, released) = oneshot::channel::<()>();
    let (tell, told) = oneshot::channel();
    let inner = small.clone();
    pool.run(async move {
        let mut handle = inner
            .submit(async { tell.send(released.await).unwrap() })
            .await
            .unwrap();
        assert!(futures::poll!(&mut handle).is_pending());
        // It holds the only slot of the sub-pool.
        assert_eq!(inner.slots().available_permits(), 0);
    })
    .await
    .unwrap();
    settle().await;
    release.send(()).unwrap();
    told.await.unwrap().unwrap();
    assert!(pool.shutdown(LONG).await.is_clean());
    assert_eq!(small.stats().finished, 1);
}

/// Given a sub-pool whose only slot is taken, then a task of its parent does not run its tasks in passing.
#[tokio::test]
async fn nobody_runs_in_passing_beyond_the_bound() {
    let pool = TaskPool::builder(3).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1)).unwrap();
    let busy = Busy::on(&small).await;
    let (inner, count) = (small.clone(), Arc::new(Count::default()));
    let counts = Arc::clone(&count);
    let outer = pool.submit(async move {
        let handle = inner.submit(async move { counts.pass().await }).await.unwrap();
        handle.await.unwrap();
    });
    let outer = outer.await.unwrap();
    settle().await;
    assert_eq!(count.peak(), 0);
    busy.end().await;
    outer.await.unwrap();
    assert_eq!(count.peak(), 1);
}

#[tokio::test]
async fn the_end_of_a_pool_lists_the_tasks_of_its_sub_pools() {
    let pool = TaskPool::builder(1).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1)).unwrap();
    let below = small.sub_pool(TaskPool::builder(1)).unwrap();
    let busy = Busy::on(&pool).await;
    let mut handles = Vec::new();
    for n in 0..3 {
        handles.push(small.submit(async move { n }).await.unwrap());
    }
    handles.push(below.submit(async { 3 }).await.unwrap());
    handles.push(pool.submit(async { 4 }).await.unwrap());
    let report = pool.shutdown(Duration::ZERO).await;
    assert_eq!((report.unstarted.len(), report.running), (5, 1));
    let mut unstarted = report.unstarted.into_iter();
    assert!(unstarted.next().unwrap().run().await);
    drop(unstarted);
    busy.end().await;
    let mut ends = Vec::new();
    for handle in handles {
        ends.push(handle.await.map_err(|why| assert!(matches!(why, TaskError::Abandoned))));
    }
    assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 1);
    assert!(small.wait_idle().await && below.wait_idle().await);
}

#[tokio::test]
async fn abort_drops_what_runs_below() {
    let pool = TaskPool::builder(2).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(2)).unwrap();
    let busy = Busy::on(&small).await;
    let waits = small.submit(std::future::pending::<()>()).await.unwrap();
    settle().await;
    let report = pool.abort();
    assert_eq!((report.unstarted.len(), small.stats().unfinished), (0, 0));
    assert!(matches!(waits.await, Err(TaskError::Aborted)));
    assert!(matches!(busy.1.await, Err(TaskError::Aborted)));
    let _ = pool.shutdown(LONG).await;
    assert_eq!((pool.stats().threads, pool.stats().unfinished), (0, 0));
}

#[tokio::test]
async fn a_sub_pool_keeps_its_parent_open_and_runs_what_it_has_when_both_are_dropped() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let pool = TaskPool::builder(1).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1)).unwrap();
    drop(pool);
    for n in 0..50 {
        let tell = tell.clone();
        small.execute(async move { tell.send(n).unwrap() }).await.unwrap();
    }
    drop((small, tell));
    let mut seen = Vec::new();
    while let Some(n) = told.recv().await {
        seen.push(n);
    }
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_sub_pool_of_a_closed_pool_is_closed_and_a_bad_number_named() {
    let pool = TaskPool::builder(1).build().unwrap();
    let error = pool.sub_pool(TaskPool::builder(0)).unwrap_err().to_string();
    assert!(error.starts_with("0 to 0 workers were asked for"), "{error}");
    pool.close();
    let small = pool.sub_pool(TaskPool::builder(1)).unwrap();
    assert_eq!(small.try_submit(async {}).unwrap_err().reason, Turned::Closed);
}

/// Given a sub-pool without a clock of its own, then its deadlines go by that of the pool above.
#[tokio::test]
async fn a_sub_pool_takes_the_clock_from_above() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1).on(&clock).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1)).unwrap();
    let busy = Busy::on(&pool).await;
    let late = small.deadline(Duration::from_secs(1)).submit(async {}).await.unwrap();
    clock.advance(Duration::from_secs(2));
    busy.end().await;
    assert!(matches!(late.await, Err(TaskError::Expired)));
}

/// Given a family whose queues are full, then who works for it runs what it submits, and who does not is handed it back.
#[tokio::test]
async fn a_relative_runs_what_finds_no_room_with_a_slot_of_its_own() {
    let pool = TaskPool::builder(1).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1).queue(1)).unwrap();
    let (inner, slots) = (small.clone(), Arc::clone(small.slots()));
    let outer = pool.run(async move {
        let queued = inner.try_submit(async { 1 }).unwrap();
        let here = inner
            .submit(async move { 2 + slots.available_permits() })
            .await
            .unwrap();
        assert!(here.is_finished());
        here.await.unwrap() + queued.await.unwrap()
    });
    assert_eq!(outer.await.unwrap(), 3);
    // It was given back.
    assert_eq!(small.slots().available_permits(), 1);
    let busy = Busy::on(&pool).await;
    let _first = small.try_submit(async {}).unwrap();
    assert_eq!(small.try_submit(async {}).unwrap_err().reason, Turned::Full);
    busy.end().await;
}

/// Given a sub-pool that shares its slots with others, then no more of its tasks run than it gets permits.
#[tokio::test]
async fn slots_that_a_sub_pool_shares_are_waited_for() {
    let slots = Arc::new(Semaphore::new(1));
    let pool = TaskPool::builder(2).build().unwrap();
    let small = TaskPool::builder(1)
        .slots(Arc::clone(&slots))
        .overflow(Overflow::Reject);
    let small = pool.sub_pool(small).unwrap();
    let permit = slots.acquire().await.unwrap();
    let waits = small.submit(async {}).await.unwrap();
    settle().await;
    assert!(!waits.is_finished());
    drop(permit);
    waits.await.unwrap();
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given eight submitters to a pool and two below it, resizes, panics and cancels, when the family is ended, then each
/// task that was let in has run once or been reported once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_task_of_a_family_is_accounted_for_once() {
    for round in 0..12 {
        let pool = TaskPool::builder(3).queue(20).build().unwrap();
        let small = pool.sub_pool(TaskPool::builder(2).queue(20)).unwrap();
        let below = small.sub_pool(TaskPool::builder(1).queue(20)).unwrap();
        let family = [pool.clone(), small, below];
        let ran: Arc<Vec<_>> = Arc::new((0..1_600).map(|_| AtomicUsize::new(0)).collect());
        let submitters = (0..8_usize).map(|submitter| {
            let (family, ran) = (family.clone(), Arc::clone(&ran));
            tokio::spawn(async move {
                let mut handles = Vec::new();
                for id in submitter * 200..(submitter + 1) * 200 {
                    let pool = &family[id % 3];
                    let (other, counts) = (family[(id + 1) % 3].clone(), Arc::clone(&ran));
                    let task = async move {
                        counts[id].fetch_add(1, Ordering::SeqCst);
                        match id % 5 {
                            0 => yield_now().await,
                            // Whatever comes of it: it must not hang.
                            1 => _ = other.run(yield_now()).await,
                            2 => std::panic::resume_unwind(Box::new(id)),
                            _ => {}
                        }
                        counts[id].fetch_add(10, Ordering::SeqCst);
                        id
                    };
                    assert!(pool.stats().queued <= 20, "{:?}", pool.stats());
                    let Ok(handle) = pool.submit(task).await else { break };
                    if id % 7 == 0 {
                        handle.cancel();
                    }
                    handles.push((id, handle));
                    if id % 11 == 0 {
                        pool.resize(1 + id % 4).unwrap();
                    }
                }
                for (id, handle) in handles {
                    let result = handle.await;
                    let count = ran[id].load(Ordering::SeqCst);
                    match result {
                        Ok(result) => assert_eq!((result, count), (id, 11)),
                        Err(TaskError::Panicked(_) | TaskError::Aborted) => assert_eq!(count, 1),
                        Err(_) => assert_eq!(count, 0),
                    }
                }
            })
        });
        let submitters: Vec<_> = submitters.collect();
        while pool.stats().finished < round * 20 {
            yield_now().await;
        }
        if round % 2 == 0 {
            drop(pool.abort());
        } else {
            assert!(pool.shutdown(LONG).await.is_clean());
        }
        for submitter in submitters {
            submitter.await.unwrap();
        }
        let _ = pool.shutdown(LONG).await;
        for pool in family {
            assert_eq!((pool.stats().threads, pool.stats().unfinished), (0, 0));
        }
    }
}
