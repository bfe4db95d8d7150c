//! What pools count: tasks, places, weight, turns. All of it is exact at any moment that a task can see.

use crate::pool::threads::Busy;
use futures::FutureExt;
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use tokio::task::yield_now;
use tollgate::WorkerPool;
use tollgate::pool::{GroupError, Overflow, PoolBuilder, RejectReason, TaskError, TaskHandle, TaskPool};

const LONG: Duration = Duration::from_secs(60);

fn one_worker(queue: usize) -> PoolBuilder {
    WorkerPool::builder().workers(1).max_queue(queue)
}

/// Given twenty tasks of which a worker takes several at once, when one in their midst looks, then those before it have
/// ended and those behind it wait.
#[test]
fn the_tasks_that_have_not_ended_are_counted_in_the_midst_of_several() {
    let batch = |pool: &WorkerPool, tasks: Vec<Box<dyn FnOnce() + Send>>| assert!(pool.execute_all(tasks).is_empty());
    let single = |pool: &WorkerPool, tasks: Vec<Box<dyn FnOnce() + Send>>| {
        tasks.into_iter().for_each(|task| pool.execute(task).unwrap());
    };
    for submit in [batch as fn(&_, _), single] {
        let pool = one_worker(100).build().unwrap();
        let busy = Busy::on(&pool);
        let (tell, told) = mpsc::channel();
        let tasks = (0..20).map(|_| {
            let (pool, tell) = (pool.clone(), tell.clone());
            Box::new(move || tell.send((pool.stats().unfinished, pool.stats().queued)).unwrap()) as Box<_>
        });
        submit(&pool, tasks.collect());
        assert_eq!((pool.stats().unfinished, pool.stats().queued), (21, 20));
        busy.end();
        assert!(pool.wait_idle());
        let seen: Vec<_> = told.try_iter().collect();
        assert_eq!(seen, (0..20).rev().map(|left| (left + 1, left)).collect::<Vec<_>>());
    }
}

/// A batch whose tasks do not fit into one piece of memory, of any size, comes out in order, each task once.
#[test]
fn a_batch_runs_in_order_whatever_its_tasks_weigh() {
    fn runs<const BYTES: usize>(tasks: usize) {
        let pool = one_worker(500).build().unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let task = |n: usize| {
            let (ran, ballast) = (Arc::clone(&ran), [1u8; BYTES]);
            move || {
                ran.lock()
                    .unwrap()
                    .push(n + ballast.iter().map(|&byte| usize::from(byte)).sum::<usize>() - BYTES);
            }
        };
        let busy = Busy::on(&pool);
        assert!(pool.execute_all((0..tasks).map(task)).is_empty());
        busy.end();
        assert!(pool.wait_idle());
        assert_eq!(*ran.lock().unwrap(), (0..tasks).collect::<Vec<_>>());
    }
    runs::<0>(1);
    runs::<0>(33);
    runs::<100>(150);
    runs::<2_000>(70);
}

/// The numbers of the tasks that ran, in order.
#[derive(Default)]
struct Ran(Arc<Mutex<Vec<u32>>>);

impl Ran {
    fn task(&self, number: u32) -> impl FnOnce() + Send + use<> {
        let ran = Arc::clone(&self.0);
        move || ran.lock().unwrap().push(number)
    }

    fn numbers(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

/// Given a queue with batches in it, when the pool is ended at once, then every task of them is handed back, one by one, and
/// what is dropped, or run there, is so once.
#[test]
fn the_end_hands_a_batch_back_task_by_task() {
    let pool = one_worker(100).build().unwrap();
    let busy = Busy::on(&pool);
    let ran = Ran::default();
    let task = |n| ran.task(n);
    assert!(pool.execute_all((0..40).map(task)).is_empty());
    let report = pool.abort();
    assert_eq!(report.unstarted.len(), 40);
    for (n, unstarted) in report.unstarted.into_iter().enumerate() {
        if n % 2 == 0 {
            assert!(unstarted.run());
        }
    }
    busy.end();
    assert_eq!(ran.numbers(), (0..40).step_by(2).collect::<Vec<_>>());
    assert_eq!(Arc::strong_count(&ran.0), 1, "nothing is kept");
    let handed_back = pool.execute_all((40..43).map(task));
    assert!(
        handed_back
            .iter()
            .all(|rejected| rejected.reason == RejectReason::Closed)
    );
    handed_back.into_iter().for_each(|rejected| (rejected.task)());
    assert_eq!(ran.numbers()[20..], [40, 41, 42]);
}

/// The oldest of a batch is thrown out first, alone, and a panic of another is that task's own.
#[test]
fn tasks_of_a_batch_are_thrown_out_and_panic_one_by_one() {
    let pool = one_worker(5).overflow(Overflow::DropOldest).build().unwrap();
    let busy = Busy::on(&pool);
    let ran = Arc::new(Mutex::new(Vec::new()));
    let task = |n: u32| {
        let ran = Arc::clone(&ran);
        move || {
            ran.lock().unwrap().push(n);
            if n == 3 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        }
    };
    assert!(pool.execute_all((0..5).map(task)).is_empty());
    pool.execute(task(5)).unwrap();
    pool.execute(task(6)).unwrap();
    assert_eq!((pool.stats().discarded, pool.stats().queued), (2, 5));
    busy.end();
    assert!(pool.wait_idle());
    assert_eq!(*ran.lock().unwrap(), [2, 3, 4, 5, 6]);
    assert_eq!((pool.stats().finished, pool.stats().panicked), (6, 1));
}

/// Wishes hold for each task of a batch.
#[test]
fn a_batch_with_a_priority_goes_before_one_without() {
    let pool = one_worker(100).build().unwrap();
    let busy = Busy::on(&pool);
    let ran = Ran::default();
    let task = |n| ran.task(n);
    assert!(pool.execute_all((10..20).map(task)).is_empty());
    let high = pool.priority(tollgate::pool::Priority::High);
    assert!(high.execute_all((0..10).map(task)).is_empty());
    busy.end();
    assert!(pool.wait_idle());
    assert_eq!(ran.numbers(), (0..20).collect::<Vec<_>>());
}

/// Counts what became of a task: it has run, or was dropped.
struct Counted {
    ran: bool,
    counts: Arc<Mutex<[usize; 2]>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.lock().unwrap()[usize::from(self.ran)] += 1;
    }
}

/// Given batches of all lengths from four threads, resizes, panics, and an end in their midst, when all is over, then each
/// task has run once, or been handed back, thrown out, or listed, once; and the queue was never longer than allowed.
#[test]
fn every_task_of_a_batch_is_accounted_for_once_under_everything_at_once() {
    const QUEUE: usize = 40;
    let kinds = [
        Overflow::Block,
        Overflow::Reject,
        Overflow::DropOldest,
        Overflow::DropNewest,
    ];
    for (overflow, end_after) in kinds.into_iter().flat_map(|kind| [0, 3, 60].map(|end| (kind, end))) {
        let pool = WorkerPool::builder().workers(2).max_queue(QUEUE).overflow(overflow);
        let pool = pool.build().unwrap();
        let counts = Arc::new(Mutex::new([0; 2]));
        let submitters: Vec<_> = (0..4)
            .map(|submitter| {
                let (pool, counts) = (pool.clone(), Arc::clone(&counts));
                thread::spawn(move || {
                    let task = |n: usize| {
                        let task = Counted {
                            ran: false,
                            counts: Arc::clone(&counts),
                        };
                        move || {
                            let mut task = task;
                            task.ran = true;
                            if n == 7 {
                                std::panic::resume_unwind(Box::new(n));
                            }
                        }
                    };
                    let (mut made, mut handed_back) = (0, 0);
                    for batch in 0..30 {
                        let tasks = (batch * 7 + submitter) % 50;
                        made += tasks;
                        handed_back += pool.execute_all((0..tasks).map(task)).len();
                        assert!(pool.stats().queued <= QUEUE);
                    }
                    (made, handed_back)
                })
            })
            .collect();
        for round in 0..end_after {
            pool.set_limit(1 + round % 4).unwrap();
            thread::yield_now();
        }
        let report = pool.abort();
        let listed = report.unstarted.len();
        drop(report);
        let ends = submitters.into_iter().map(|submitter| submitter.join().unwrap());
        let (made, handed_back) = ends.fold((0, 0), |sum, end| (sum.0 + end.0, sum.1 + end.1));
        let _ = pool.shutdown(LONG);
        let [dropped, ran] = *counts.lock().unwrap();
        let stats = pool.stats();
        assert_eq!(ran + dropped, made);
        assert_eq!(
            handed_back + listed + usize::try_from(stats.discarded).unwrap(),
            dropped
        );
        assert_eq!(stats.finished, ran as u64);
        assert_eq!((stats.queued, stats.unfinished, stats.threads), (0, 0, 0));
    }
}

#[test]
fn an_async_submission_takes_one_place() {
    let pool = one_worker(1).build().unwrap();
    for n in 0..3 {
        let handle = pool.submit_async(move || n).now_or_never().expect("there is room");
        assert_eq!(handle.unwrap().join().unwrap(), n);
    }
}

/// Given room for a weight of four, when a batch comes twice, then four of each are let in: no more, and again no fewer.
#[test]
fn a_batch_is_let_in_by_weight_and_gives_it_back() {
    let pool = one_worker(100).max_queue_weight(4).overflow(Overflow::Reject);
    let pool = pool.build().unwrap();
    for _ in 0..2 {
        let busy = Busy::on(&pool);
        assert_eq!(pool.execute_all((0..8).map(|_| || ())).len(), 4);
        let turned = pool.weight(4).try_submit(|| ()).unwrap_err();
        assert_eq!(
            turned.reason,
            RejectReason::Full,
            "as much as there can be is not too much"
        );
        busy.end();
        assert!(pool.wait_idle());
    }
}

/// Given five tasks in a queue of ten, when three are cancelled, then they are gone; and one that was cancelled and is still
/// there is not thrown out.
#[test]
fn cancelled_tasks_leave_the_queue_when_they_are_most_of_it() {
    let pool = one_worker(10).build().unwrap();
    let busy = Busy::on(&pool);
    let handles: Vec<_> = (0..5).map(|_| pool.submit(|| ()).unwrap()).collect();
    assert!(handles[..3].iter().all(|handle| handle.cancel()));
    assert_eq!(pool.stats().queued, 2);
    busy.end();

    let pool = one_worker(4).overflow(Overflow::DropOldest).build().unwrap();
    let busy = Busy::on(&pool);
    let handles: Vec<_> = (0..3).map(|_| pool.submit(|| ()).unwrap()).collect();
    assert!(handles[0].cancel());
    pool.execute(|| ()).unwrap();
    pool.execute(|| ()).unwrap();
    assert_eq!((pool.stats().queued, pool.stats().discarded), (4, 0));
    busy.end();
}

#[tokio::test]
async fn a_task_that_is_cancelled_while_it_is_polled_ends() {
    let pool = TaskPool::builder(1).build().unwrap();
    let own = Arc::new(Mutex::new(None::<TaskHandle<()>>));
    let seen = Arc::clone(&own);
    let handle = pool.submit(poll_fn(move |_| {
        let handle = seen.lock().unwrap().take();
        assert!(handle.is_some_and(|handle| handle.cancel()));
        Poll::<()>::Pending
    }));
    *own.lock().unwrap() = Some(handle.await.unwrap());
    assert!(pool.wait_idle().await);
    assert_eq!(pool.run(async { 1 }).await.unwrap(), 1);
}

/// What the pool drops is not what the group has cancelled.
#[tokio::test]
async fn a_group_says_what_has_ended_its_task() {
    let pool = TaskPool::builder(1).build().unwrap();
    let mut group = pool.group::<(), ()>();
    group.submit(pending()).await.unwrap();
    for _ in 0..100 {
        yield_now().await;
    }
    drop(pool.abort());
    let (_, ended) = group.next().await.unwrap();
    assert!(matches!(ended, Err(GroupError::Task(TaskError::Aborted))), "{ended:?}");
}
