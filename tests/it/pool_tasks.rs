//! The pool of async tasks.

use super::pool::Bomb;
use futures::future::join_all;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tollgate::pool::{Failed, Overflow, PoolError, Priority, TaskError, TaskHandle, TaskPool, Turned};
use tollgate::{ManualClock, Policy, Quota, Semaphore, TokenBucket};

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
async fn what_a_task_returns_is_what_its_handle_gives_and_the_limit_holds() {
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

#[tokio::test]
async fn a_full_queue_is_dealt_with_as_was_asked() {
    let build = |overflow| TaskPool::builder(1).queue(1).overflow(overflow).build().unwrap();

    let pool = build(Overflow::Reject);
    let busy = Busy::on(&pool).await;
    let first = pool.submit(async { 1 }).await.unwrap();
    let rejected = pool.submit(async { 2 }).await.unwrap_err();
    assert_eq!((rejected.reason, rejected.task.await), (Turned::Full, 2));
    busy.end().await;
    assert_eq!(first.await.unwrap(), 1);

    let pool = build(Overflow::DropNewest);
    let busy = Busy::on(&pool).await;
    let first = pool.submit(async { 1 }).await.unwrap();
    let second = pool.submit(async { 2 }).await.unwrap();
    assert!(matches!(second.await, Err(TaskError::Discarded)));
    busy.end().await;
    assert_eq!(first.await.unwrap(), 1);

    let pool = build(Overflow::DropOldest);
    let busy = Busy::on(&pool).await;
    let first = pool.submit(async { 1 }).await.unwrap();
    let second = pool.submit(async { 2 }).await.unwrap();
    assert!(matches!(first.await, Err(TaskError::Discarded)));
    busy.end().await;
    assert_eq!((second.await.unwrap(), pool.stats().discarded), (2, 1));

    let pool = build(Overflow::Block);
    let busy = Busy::on(&pool).await;
    let first = pool.submit(async { 1 }).await.unwrap();
    let second = pool.submit(async { 2 });
    tokio::pin!(second);
    assert!(futures::poll!(&mut second).is_pending());
    assert_eq!(pool.try_submit(async { 3 }).unwrap_err().reason, Turned::Full);
    busy.end().await;
    assert_eq!((first.await.unwrap(), second.await.unwrap().await.unwrap()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_submission_with_a_time_out_hands_the_task_back() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1).queue(1).on(&clock).build().unwrap();
    let busy = Busy::on(&pool).await;
    let queued = pool.submit(async {}).await.unwrap();
    let late = pool.submit_timeout(async { 3 }, Duration::from_secs(1));
    tokio::pin!(late);
    assert!(futures::poll!(&mut late).is_pending());
    clock.advance(Duration::from_secs(1));
    let rejected = late.await.unwrap_err();
    assert_eq!((rejected.reason, rejected.task.await), (Turned::TimedOut, 3));
    busy.end().await;
    queued.await.unwrap();
}

#[tokio::test]
async fn panics_are_returned_and_the_runner_goes_on() {
    let pool = TaskPool::builder(1).build().unwrap();
    for _ in 0..5 {
        let handle = pool.submit(async { resume_unwind(Box::new("on purpose")) });
        let failed: Result<(), _> = handle.await.unwrap().await;
        let payload = failed.unwrap_err().into_panic().unwrap();
        assert_eq!(*payload.downcast::<&str>().unwrap(), "on purpose");
    }
    // In drops as well: of the future, of a result that nobody wants, of one that is cancelled.
    let bomb = Bomb;
    let held = pool.submit(async move {
        tokio::task::yield_now().await;
        let _bomb = bomb;
    });
    assert!(matches!(held.await.unwrap().await, Err(TaskError::Panicked(_))));
    drop(pool.submit(async { Bomb }).await.unwrap());
    settle().await;
    let bomb = Bomb;
    let running = pool.submit(async move {
        pending::<()>().await;
        drop(bomb);
    });
    let running = running.await.unwrap();
    settle().await;
    assert!(running.cancel());
    assert!(matches!(running.await, Err(TaskError::Aborted)));
    assert_eq!(pool.submit(async { 1 }).await.unwrap().await.unwrap(), 1);
    assert!(pool.wait_idle().await);
    let stats = pool.stats();
    assert_eq!((stats.threads, stats.panicked, stats.finished), (1, 6, 8));
}

#[tokio::test]
async fn a_task_is_cancelled_before_and_while_it_runs() {
    let pool = TaskPool::builder(1)
        .queue(1)
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
async fn priorities_weights_and_deadlines_hold() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1)
        .queue_weight(10)
        .overflow(Overflow::Reject)
        .on(&clock);
    let pool = pool.build().unwrap();
    let busy = Busy::on(&pool).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    for (n, priority) in [Priority::Low, Priority::Normal, Priority::High]
        .into_iter()
        .enumerate()
    {
        let order = Arc::clone(&order);
        let handle = pool
            .priority(priority)
            .submit(async move { order.lock().unwrap().push(n) });
        drop(handle.await.unwrap());
    }
    let late = pool.deadline(Duration::from_secs(1)).submit(async {}).await.unwrap();
    assert_eq!(pool.weight(7).submit(async {}).await.unwrap_err().reason, Turned::Full);
    let oversized = pool.weight(11).submit(async {}).await.unwrap_err().reason;
    assert!(matches!(
        oversized,
        Turned::Oversized {
            weight: 11,
            allowed: 10
        }
    ));
    drop(pool.weight(6).submit(async {}).await.unwrap());
    clock.advance(Duration::from_secs(2));
    busy.end().await;
    assert!(matches!(late.await, Err(TaskError::Expired)));
    assert!(pool.wait_idle().await);
    assert_eq!(*order.lock().unwrap(), [2, 1, 0]);
    assert_eq!(pool.stats().expired, 1);
}

fn nest(pool: TaskPool, depth: usize) -> std::pin::Pin<Box<dyn Future<Output = usize> + Send>> {
    Box::pin(async move {
        if depth == 0 {
            return 0;
        }
        let inner = nest(pool.clone(), depth - 1);
        1 + pool.submit(inner).await.unwrap().await.unwrap()
    })
}

#[tokio::test]
async fn tasks_wait_for_tasks_to_any_depth_in_a_pool_of_one() {
    let pool = TaskPool::builder(1).queue(1).build().unwrap();
    let deep = nest(pool.clone(), 100);
    assert_eq!(pool.submit(deep).await.unwrap().await.unwrap(), 100);
    // Several at once: one after the other, in the turn of the task that waits.
    let inner = pool.clone();
    let sum = pool.submit(async move {
        let mut handles = Vec::new();
        for n in 0..10 {
            let task = async move {
                tokio::task::yield_now().await;
                n
            };
            handles.push(inner.submit(task).await.unwrap());
        }
        let parts = join_all(handles).await;
        parts.into_iter().map(Result::unwrap).sum::<i32>()
    });
    assert_eq!(sum.await.unwrap().await.unwrap(), 45);
    assert!(pool.shutdown(LONG).await.is_clean());
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
async fn a_resize_is_effective_at_once_in_both_directions() {
    let pool = TaskPool::builder(3).build().unwrap();
    let mut busy = Vec::new();
    for _ in 0..3 {
        busy.push(Busy::on(&pool).await);
    }
    let queued = pool.submit(async { 1 }).await.unwrap();
    pool.resize(1).unwrap();
    busy.pop().unwrap().end().await;
    busy.pop().unwrap().end().await;
    settle().await;
    assert!(!queued.is_finished());
    pool.resize(2).unwrap();
    assert_eq!(queued.await.unwrap(), 1);
    busy.pop().unwrap().end().await;
    assert!(matches!(pool.resize(0), Err(PoolError::Workers { .. })));
    assert!(pool.shutdown(LONG).await.is_clean());
}

#[tokio::test]
async fn shutdown_lists_exactly_the_tasks_that_never_started() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1).on(&clock).build().unwrap();
    let busy = Busy::on(&pool).await;
    let mut handles = Vec::new();
    for n in 0..4 {
        handles.push(pool.submit(async move { n }).await.unwrap());
    }
    handles[2].cancel();
    let report = pool.shutdown(Duration::ZERO).await;
    assert_eq!((report.unstarted.len(), report.running), (3, 1));
    assert_eq!(pool.submit(async {}).await.unwrap_err().reason, Turned::Closed);
    let mut unstarted = report.unstarted.into_iter();
    assert!(unstarted.next().unwrap().run().await);
    drop(unstarted);
    let outcomes = join_all(handles).await;
    assert!(matches!(
        outcomes[..],
        [
            Ok(0),
            Err(TaskError::Abandoned),
            Err(TaskError::Cancelled),
            Err(TaskError::Abandoned)
        ]
    ));
    busy.end().await;
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
fn a_runtime_that_is_shut_down_leaves_nobody_waiting() {
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

#[tokio::test]
async fn a_dropped_pool_runs_what_it_has_and_one_never_used_ends() {
    let pool = TaskPool::builder(1).build().unwrap();
    assert!(pool.wait_idle().await);
    let mut handles = Vec::new();
    for n in 0..10 {
        handles.push(pool.submit(async move { n }).await.unwrap());
    }
    drop(pool);
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.await.unwrap(), n);
    }
    let unused = TaskPool::builder(1).build().unwrap();
    assert!(unused.shutdown(LONG).await.is_clean());
    assert!(unused.shutdown(LONG).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_policy_admits_the_tasks() {
    let start = tokio::time::Instant::now();
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(1).burst(2)).on(&clock);
    let pool = TaskPool::builder(4)
        .on(&clock)
        .admit_by(Policy::new(bucket))
        .build()
        .unwrap();
    let mut handles = Vec::new();
    for n in 0..4 {
        handles.push(pool.submit(async move { n }).await.unwrap());
    }
    settle().await;
    assert_eq!(handles.iter().filter(|handle| handle.is_finished()).count(), 2);
    clock.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(handles.iter().filter(|handle| handle.is_finished()).count(), 3);
    let report = pool.shutdown(Duration::ZERO).await;
    assert_eq!((report.unstarted.len(), report.running), (1, 0));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn closed_slots_abandon_what_waits() {
    let slots = Arc::new(Semaphore::new(0));
    let pool = TaskPool::builder(2).slots(Arc::clone(&slots)).build().unwrap();
    let waits = pool.submit(async {}).await.unwrap();
    settle().await;
    assert!(!waits.is_finished());
    slots.close();
    assert!(matches!(waits.await, Err(TaskError::Abandoned)));
    assert!(pool.shutdown(LONG).await.is_clean());
}

#[tokio::test]
async fn a_group_is_a_unit() {
    let pool = TaskPool::builder(2).build().unwrap();
    let mut group = pool.group::<_, ()>();
    for n in 0..100 {
        group.submit(async move { Ok(n) }).await.unwrap();
    }
    assert_eq!(group.join().await.unwrap(), (0..100).collect::<Vec<_>>());
    // The first error ends those that run, too.
    let held = Arc::new(());
    let mut group = pool.group();
    for n in 0..5 {
        let held = Arc::clone(&held);
        let task = async move {
            let _held = held;
            match n {
                1 => Err("one"),
                _ => pending().await,
            }
        };
        group.submit(task).await.unwrap();
    }
    let failed: Result<Vec<()>, _> = group.join().await;
    assert_eq!(failed.unwrap_err().into_error(), Some("one"));
    assert_eq!(Arc::strong_count(&held), 1);
    // Dropped as a whole.
    let mut group = pool.group::<(), ()>();
    for _ in 0..5 {
        let held = Arc::clone(&held);
        let task = async move {
            pending::<()>().await;
            drop(held);
            Ok(())
        };
        group.submit(task).await.unwrap();
    }
    settle().await;
    drop(group);
    settle().await;
    assert_eq!(Arc::strong_count(&held), 1);
    let mut group = pool.group().keep_going();
    for n in 0..4 {
        group
            .submit(async move { if n % 2 == 0 { Ok(n) } else { Err(n) } })
            .await
            .unwrap();
    }
    let outcomes: Vec<_> = group
        .join_all()
        .await
        .into_iter()
        .map(|outcome| outcome.map_err(Failed::into_error))
        .collect();
    assert_eq!(outcomes, [Ok(0), Err(Some(1)), Ok(2), Err(Some(3))]);
    assert!(pool.wait_idle().await);
}

fn tree(pool: TaskPool, depth: u32) -> std::pin::Pin<Box<dyn Future<Output = Result<u32, ()>> + Send>> {
    Box::pin(async move {
        if depth == 0 {
            return Ok(1);
        }
        let mut group = pool.group::<u32, ()>();
        for _ in 0..3 {
            group.submit(tree(pool.clone(), depth - 1)).await.unwrap();
        }
        Ok(group.join().await.unwrap().into_iter().sum())
    })
}

#[tokio::test]
async fn groups_nest_in_a_pool_of_one() {
    let pool = TaskPool::builder(1).queue(4).build().unwrap();
    let root = pool.submit(tree(pool.clone(), 5)).await.unwrap();
    assert_eq!(root.await.unwrap(), Ok(243));
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given submitters, resizes and cancels on several threads, when the pool has ended, then each task that was let in has
/// run once or been reported once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_task_is_accounted_for_once_under_everything_at_once() {
    for round in 0..20 {
        let pool = TaskPool::builder(3).queue(20).build().unwrap();
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
                        pool.resize(1 + id % 5).unwrap();
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
