//! The worker pool: queue and overflow, handles, panics, nesting, scopes, resizing, the end.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use tollgate::pool::{Overflow, PoolBuilder, PoolError, Priority, TaskError, Turned};
use tollgate::{JoinHandle, ManualClock, Policy, Quota, Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

/// Keeps a worker busy until it is let go.
pub(crate) struct Busy {
    release: mpsc::Sender<()>,
    handle: JoinHandle<()>,
}

impl Busy {
    pub(crate) fn on(pool: &WorkerPool) -> Self {
        let (release, released) = mpsc::channel();
        let (start, started) = mpsc::channel();
        let handle = pool.submit(move || {
            start.send(()).unwrap();
            let _ = released.recv();
        });
        started.recv().unwrap();
        Self {
            release,
            handle: handle.unwrap(),
        }
    }

    pub(crate) fn end(self) {
        drop(self.release);
        self.handle.join().unwrap();
    }
}

fn panics<T>() -> T {
    resume_unwind(Box::new("on purpose"))
}

#[test]
fn what_a_task_returns_is_what_its_handle_gives() {
    let pool = WorkerPool::builder().workers(2).build().unwrap();
    let handles: Vec<_> = (0..1_000).map(|n| pool.submit(move || n * 2).unwrap()).collect();
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.join().unwrap(), n * 2);
    }
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(pool.stats().finished, 1_000);
    assert_eq!(pool.stats().threads, 0);
}

#[tokio::test]
async fn a_handle_is_a_future_and_so_is_a_submission() {
    let pool = one().queue(1).build().unwrap();
    assert_eq!(pool.submit(|| 7).unwrap().await.unwrap(), 7);
    let busy = Busy::on(&pool);
    let queued = pool.submit(|| 1).unwrap();
    let waits = pool.submit_async(|| 2);
    tokio::pin!(waits);
    assert!(futures::poll!(&mut waits).is_pending());
    busy.end();
    assert_eq!(waits.await.unwrap().await.unwrap(), 2);
    assert_eq!(queued.await.unwrap(), 1);
}

#[test]
fn a_full_queue_hands_the_task_back() {
    let pool = one().queue(2).overflow(Overflow::Reject).build().unwrap();
    let busy = Busy::on(&pool);
    let queued = [pool.submit(|| 1).unwrap(), pool.submit(|| 2).unwrap()];
    let rejected = pool.submit(|| 3).unwrap_err();
    assert_eq!(rejected.reason, Turned::Full);
    assert_eq!((rejected.task)(), 3);
    assert_eq!(pool.stats().queued, 2);
    busy.end();
    assert_eq!(queued.map(|handle| handle.join().unwrap()), [1, 2]);
}

#[test]
fn a_submission_with_a_time_out_hands_the_task_back() {
    let pool = one().queue(1).build().unwrap();
    let busy = Busy::on(&pool);
    let queued = pool.submit(|| ()).unwrap();
    let rejected = pool.submit_timeout(|| 3, Duration::from_millis(1)).unwrap_err();
    assert_eq!((rejected.reason, (rejected.task)()), (Turned::TimedOut, 3));
    assert_eq!(pool.try_submit(|| 3).unwrap_err().reason, Turned::Full);
    busy.end();
    queued.join().unwrap();
}

#[test]
fn a_submitter_that_waits_gets_the_room_of_the_next_task_that_starts() {
    let pool = one().queue(1).build().unwrap();
    let busy = Busy::on(&pool);
    let queued = pool.submit(|| 1).unwrap();
    let submitter = {
        let pool = pool.clone();
        thread::spawn(move || pool.submit(|| 2).unwrap().join().unwrap())
    };
    busy.end();
    assert_eq!((queued.join().unwrap(), submitter.join().unwrap()), (1, 2));
}

#[test]
fn the_oldest_of_the_lowest_priority_is_thrown_out() {
    let discarded = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&discarded);
    let pool = one()
        .queue(2)
        .overflow(Overflow::DropOldest)
        .on_discard(move |task| {
            count.fetch_add(1, Ordering::SeqCst);
            assert_eq!(task.priority(), Priority::Low);
        })
        .build()
        .unwrap();
    let busy = Busy::on(&pool);
    let normal = pool.submit(|| 1).unwrap();
    let low = pool.priority(Priority::Low).submit(|| 2).unwrap();
    let newest = pool.submit(|| 3).unwrap();
    assert!(matches!(low.join(), Err(TaskError::Discarded)));
    busy.end();
    assert_eq!((normal.join().unwrap(), newest.join().unwrap()), (1, 3));
    assert_eq!(discarded.load(Ordering::SeqCst), 1);
    assert_eq!(pool.stats().discarded, 1);
}

#[test]
fn the_newest_is_thrown_out_and_its_handle_told() {
    let pool = one().queue(1).overflow(Overflow::DropNewest).build().unwrap();
    let busy = Busy::on(&pool);
    let first = pool.submit(|| 1).unwrap();
    let second = pool.submit(|| 2).unwrap();
    assert!(matches!(second.join(), Err(TaskError::Discarded)));
    busy.end();
    assert_eq!(first.join().unwrap(), 1);
}

#[test]
fn a_queue_is_bounded_by_weight_as_well() {
    let pool = one()
        .queue(100)
        .queue_weight(10)
        .overflow(Overflow::Reject)
        .build()
        .unwrap();
    let busy = Busy::on(&pool);
    let heavy = pool.weight(8).submit(|| ()).unwrap();
    assert_eq!(pool.weight(3).submit(|| ()).unwrap_err().reason, Turned::Full);
    let light = pool.weight(2).submit(|| ()).unwrap();
    let oversized = pool.weight(11).submit(|| ()).unwrap_err().reason;
    assert_eq!(
        oversized,
        Turned::Oversized {
            weight: 11,
            allowed: 10
        }
    );
    busy.end();
    heavy.join().unwrap();
    light.join().unwrap();
    assert!(pool.weight(10).submit(|| ()).is_ok());
}

#[test]
fn a_panic_is_returned_with_its_payload_and_the_worker_survives() {
    let orphans = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&orphans);
    let pool = one()
        .on_panic(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            panics::<()>();
        })
        .build()
        .unwrap();
    for _ in 0..10 {
        let error = pool.submit(panics::<()>).unwrap().join().unwrap_err();
        assert_eq!(*error.into_panic().unwrap().downcast::<&str>().unwrap(), "on purpose");
        pool.execute(panics::<()>).unwrap();
    }
    assert_eq!(pool.submit(|| 1).unwrap().join().unwrap(), 1);
    assert!(pool.wait_idle());
    let stats = pool.stats();
    assert_eq!((stats.threads, stats.panicked, stats.finished), (1, 20, 21));
    assert_eq!(orphans.load(Ordering::SeqCst), 10);
}

/// Panics when it is dropped.
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new("dropped"));
    }
}

#[test]
fn panics_of_drops_do_no_harm_wherever_they_happen() {
    let pool = one().build().unwrap();
    // What the task has captured: dropped with the task.
    let bomb = Bomb;
    let captured = pool.submit(move || {
        let _bomb = bomb;
    });
    assert!(matches!(captured.unwrap().join(), Err(TaskError::Panicked(_))));
    // A result that nobody wants, and a payload that panics in turn.
    drop(pool.submit(|| Bomb).unwrap());
    drop(
        pool.submit(|| resume_unwind(Box::new(Bomb)))
            .map(|handle: JoinHandle<()>| handle),
    );
    pool.execute(|| resume_unwind(Box::new(Bomb))).unwrap();
    // A task that is cancelled, and one that the end of the pool drops.
    let busy = Busy::on(&pool);
    let bomb = Bomb;
    let cancelled = pool
        .submit(move || {
            let _bomb = bomb;
        })
        .unwrap();
    assert!(cancelled.cancel());
    let bomb = Bomb;
    pool.execute(move || {
        let _bomb = bomb;
    })
    .unwrap();
    let report = pool.abort();
    assert_eq!((report.unstarted.len(), report.running), (1, 1));
    drop(report);
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
}

#[test]
fn a_task_is_cancelled_until_it_starts_and_makes_room() {
    let pool = one().queue(1).overflow(Overflow::Reject).build().unwrap();
    let busy = Busy::on(&pool);
    let handle = pool.submit(|| unreachable!("it was cancelled")).unwrap();
    assert!(handle.cancel());
    assert!(!handle.cancel());
    let after: JoinHandle<()> = pool.submit(|| ()).unwrap();
    let outcome: Result<(), TaskError> = handle.join();
    assert!(matches!(outcome, Err(TaskError::Cancelled)));
    busy.end();
    after.join().unwrap();
    assert!(pool.wait_idle());
    assert_eq!(pool.stats().finished, 2);
}

#[test]
fn a_handle_waits_no_longer_than_it_is_told() {
    let pool = one().build().unwrap();
    let busy = Busy::on(&pool);
    let handle = pool.submit(|| 5).unwrap();
    let handle = handle.try_join().unwrap_err();
    let handle = handle.join_timeout(Duration::from_millis(1)).unwrap_err();
    assert!(!handle.is_finished());
    busy.end();
    assert_eq!(handle.join_timeout(LONG).unwrap().unwrap(), 5);
}

#[test]
fn a_task_that_has_not_started_by_its_deadline_is_given_up() {
    let clock = ManualClock::new();
    let pool = one().on(&clock).build().unwrap();
    let busy = Busy::on(&pool);
    let late = pool.deadline(Duration::from_secs(1)).submit(|| ()).unwrap();
    let exact = pool.deadline(Duration::from_secs(2)).submit(|| ()).unwrap();
    clock.advance(Duration::from_secs(2));
    busy.end();
    assert!(matches!(late.join(), Err(TaskError::Expired)));
    exact.join().unwrap();
    assert!(pool.wait_idle());
    assert_eq!(pool.stats().expired, 1);
}

#[test]
fn priorities_go_first_and_within_them_whoever_came_first() {
    let pool = one().build().unwrap();
    let busy = Busy::on(&pool);
    let order = Arc::new(Mutex::new(Vec::new()));
    for (n, priority) in [Priority::Low, Priority::Normal, Priority::High]
        .repeat(2)
        .into_iter()
        .enumerate()
    {
        let order = Arc::clone(&order);
        pool.priority(priority)
            .execute(move || order.lock().unwrap().push(n))
            .unwrap();
    }
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(*order.lock().unwrap(), [2, 5, 1, 4, 0, 3]);
}

#[test]
fn tasks_wait_for_tasks_to_any_depth_on_one_worker() {
    fn nest(pool: &WorkerPool, depth: usize) -> usize {
        if depth == 0 {
            return 0;
        }
        let inner = pool.clone();
        1 + pool.submit(move || nest(&inner, depth - 1)).unwrap().join().unwrap()
    }
    let pool = one().queue(1).build().unwrap();
    let inner = pool.clone();
    assert_eq!(pool.submit(move || nest(&inner, 100)).unwrap().join().unwrap(), 100);
    assert!(pool.shutdown(LONG).is_clean());
}

#[test]
fn a_task_blocks_on_the_futures_of_tasks_behind_it() {
    let pool = one().build().unwrap();
    let inner = pool.clone();
    let sum = pool
        .submit(move || {
            let parts = (0..10).map(|n| inner.submit(move || n).unwrap());
            let parts = futures::future::join_all(parts);
            let parts = futures::executor::block_on(parts);
            parts.into_iter().map(Result::unwrap).sum::<i32>()
        })
        .unwrap();
    assert_eq!(sum.join().unwrap(), 45);
}

#[test]
fn a_batch_is_queued_in_order_and_what_does_not_fit_comes_back() {
    let pool = one().queue(100).overflow(Overflow::Reject).build().unwrap();
    let busy = Busy::on(&pool);
    let (handles, rejected) = pool.submit_all((0..150).map(|n| move || n));
    assert_eq!((handles.len(), rejected.len()), (100, 50));
    assert_eq!((rejected[0].task)(), 100);
    busy.end();
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.join().unwrap(), n);
    }
    let ran = Arc::new(AtomicUsize::new(0));
    let tasks = (0..100).map(|_| {
        let ran = Arc::clone(&ran);
        move || _ = ran.fetch_add(1, Ordering::SeqCst)
    });
    assert!(pool.execute_all(tasks).is_empty());
    assert!(pool.wait_idle());
    assert_eq!(ran.load(Ordering::SeqCst), 100);
}

#[test]
fn a_batch_that_waits_for_room_is_taken_whole() {
    let pool = one().queue(3).build().unwrap();
    let (handles, rejected) = pool.submit_all((0..200).map(|n| move || n));
    assert!(rejected.is_empty());
    let sum: usize = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
    assert_eq!(sum, 199 * 100);
}

#[test]
fn tasks_of_a_scope_borrow() {
    let mut counts = [0_usize; 8];
    let words = ["a", "bc", "def"];
    let total = WorkerPool::builder()
        .workers(2)
        .scope(|pool| {
            for count in &mut counts {
                pool.execute(|| *count = words.len()).unwrap();
            }
            pool.submit(|| words.iter().map(|word| word.len()).sum::<usize>())
                .unwrap()
                .join()
                .unwrap()
        })
        .unwrap();
    assert_eq!((counts, total), ([3; 8], 6));
}

#[test]
fn a_scope_whose_body_panics_ends() {
    let ran = AtomicUsize::new(0);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        one().scope(|pool| {
            let first = pool.submit(|| ran.fetch_add(1, Ordering::SeqCst)).unwrap();
            first.join().unwrap();
            panics::<()>();
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn shutdown_lists_exactly_the_tasks_that_never_started() {
    let pool = one().build().unwrap();
    let busy = Busy::on(&pool);
    let handles: Vec<_> = (0..10).map(|n| pool.submit(move || n).unwrap()).collect();
    assert!(handles[3].cancel());
    let report = pool.shutdown(Duration::ZERO);
    assert_eq!((report.unstarted.len(), report.running), (9, 1));
    assert_eq!(pool.submit(|| ()).unwrap_err().reason, Turned::Closed);
    // What is handed back can still be run; what is dropped tells its handle.
    let mut unstarted = report.unstarted.into_iter();
    assert!(unstarted.next().unwrap().run());
    drop(unstarted);
    let outcomes: Vec<_> = handles.into_iter().map(JoinHandle::join).collect();
    assert!(matches!(outcomes[0], Ok(0)));
    assert!(matches!(outcomes[3], Err(TaskError::Cancelled)));
    let abandoned = |outcome: &&Result<i32, TaskError>| matches!(outcome, Err(TaskError::Abandoned));
    assert_eq!(outcomes.iter().filter(abandoned).count(), 8);
    busy.end();
}

#[test]
fn a_pool_that_was_never_used_ends() {
    for workers in [1, 3] {
        let pool = WorkerPool::builder().workers(workers).build().unwrap();
        assert!(pool.wait_idle());
        assert!(pool.shutdown(LONG).is_clean());
        assert!(pool.shutdown(LONG).is_clean());
        assert!(pool.wait_idle());
        assert_eq!(pool.stats().threads, 0);
    }
}

#[test]
fn a_dropped_pool_runs_what_it_has() {
    let (tell, told) = mpsc::channel();
    let pool = one().build().unwrap();
    let busy = Busy::on(&pool);
    for n in 0..10 {
        let tell = tell.clone();
        pool.execute(move || tell.send(n).unwrap()).unwrap();
    }
    drop((pool, tell));
    busy.end();
    assert_eq!(told.iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_pool_is_ended_and_waited_for_from_inside_without_a_deadlock() {
    let pool = one().build().unwrap();
    let inner = pool.clone();
    let handle = pool
        .submit(move || {
            let queued = inner.submit(|| ()).unwrap();
            assert!(!inner.wait_idle());
            let report = inner.shutdown(LONG);
            assert_eq!((report.unstarted.len(), report.running), (1, 1));
            drop(report);
            matches!(queued.join(), Err(TaskError::Abandoned))
        })
        .unwrap();
    assert!(handle.join().unwrap());
}

#[test]
fn several_wait_for_idleness_and_all_are_told() {
    let pool = WorkerPool::builder().workers(2).build().unwrap();
    let busy = Busy::on(&pool);
    let barrier = Arc::new(Barrier::new(7));
    let waiters: Vec<_> = (0..6)
        .map(|_| {
            let (pool, barrier) = (pool.clone(), Arc::clone(&barrier));
            thread::spawn(move || {
                barrier.wait();
                pool.wait_idle()
            })
        })
        .collect();
    barrier.wait();
    assert!(!pool.wait_idle_timeout(Duration::from_millis(1)));
    busy.end();
    assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
}

#[test]
fn a_resize_is_effective_at_once_in_both_directions() {
    let pool = WorkerPool::builder().workers(3).build().unwrap();
    let mut busy: Vec<_> = (0..3).map(|_| Busy::on(&pool)).collect();
    pool.resize(1).unwrap();
    let queued = pool.submit(|| 1).unwrap();
    busy.pop().unwrap().end();
    busy.pop().unwrap().end();
    // One still runs, and it holds the only slot.
    let queued = queued.join_timeout(Duration::from_millis(1)).unwrap_err();
    pool.resize(2).unwrap();
    assert_eq!(queued.join().unwrap(), 1);
    busy.pop().unwrap().end();
    assert!(pool.wait_idle());
    // Those that are too many are on their way out.
    while pool.stats().threads > 2 {
        thread::yield_now();
    }
    let bad = pool.resize(0).unwrap_err();
    assert!(matches!(bad, PoolError::Workers { least: 0, most: 0 }));
    assert!(pool.shutdown(LONG).is_clean());
}

#[test]
fn a_pool_whose_slots_have_no_permits_is_paused() {
    let slots = Arc::new(Semaphore::new(0));
    let pool = WorkerPool::builder()
        .workers(2)
        .slots(Arc::clone(&slots))
        .build()
        .unwrap();
    let handle = pool.submit(|| 1).unwrap();
    let handle = handle.join_timeout(Duration::from_millis(1)).unwrap_err();
    slots.set_limit(1);
    assert_eq!(handle.join().unwrap(), 1);
    slots.set_limit(0);
    let handle = pool.submit(|| 2).unwrap();
    assert_eq!(pool.shutdown(Duration::from_millis(1)).unstarted.len(), 1);
    assert!(matches!(handle.join(), Err(TaskError::Abandoned)));
}

#[test]
fn pools_that_share_slots_are_bounded_together() {
    let slots = Arc::new(Semaphore::new(2));
    let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let pools: Vec<_> = (0..3)
        .map(|_| {
            WorkerPool::builder()
                .workers(2)
                .slots(Arc::clone(&slots))
                .build()
                .unwrap()
        })
        .collect();
    for n in 0..600 {
        let (running, peak) = (Arc::clone(&running), Arc::clone(&peak));
        pools[n % 3]
            .execute(move || {
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
            })
            .unwrap();
    }
    for pool in &pools {
        assert!(pool.shutdown(LONG).is_clean());
    }
    assert!(peak.load(Ordering::SeqCst) <= 2);
    assert_eq!(slots.available_permits(), 2);
}

#[test]
fn a_policy_admits_the_tasks() {
    let clock = ManualClock::new();
    let bucket = tollgate::TokenBucket::new(Quota::per_second(1).burst(2)).on(&clock);
    let pool = one().on(&clock).admit_by(Policy::new(bucket)).build().unwrap();
    let tasks: Vec<_> = (0..4).map(|n| pool.submit(move || n).unwrap()).collect();
    let mut tasks = tasks.into_iter();
    assert_eq!(tasks.next().unwrap().join().unwrap(), 0);
    assert_eq!(tasks.next().unwrap().join().unwrap(), 1);
    let third = tasks
        .next()
        .unwrap()
        .join_timeout(Duration::from_millis(1))
        .unwrap_err();
    // Time passes once the worker waits for it.
    while !clock.advance_to_next_timer() {
        thread::yield_now();
    }
    assert_eq!(third.join().unwrap(), 2);
    // The fourth waits for admission: it has not started, and is handed back.
    let report = pool.shutdown(Duration::ZERO);
    assert_eq!(report.unstarted.len(), 1);
    let _ = pool.shutdown(LONG);
    let never = one().admit_by(Policy::new(Semaphore::new(1))).build().unwrap();
    let refused = never.ask(tollgate::Ask::many(u64::MAX)).submit(|| ()).unwrap().join();
    assert!(matches!(refused, Err(TaskError::Refused(_))));
}

#[test]
fn bad_numbers_are_named() {
    let build = |builder: PoolBuilder| builder.build().unwrap_err().to_string();
    assert!(build(WorkerPool::builder().workers(0)).contains("0 to 0 workers"));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 5..=2;
    assert!(build(WorkerPool::builder().workers(reversed)).contains("5 to 2 workers"));
    assert!(build(WorkerPool::builder().workers(1 << 20)).contains("1 to 65536"));
    assert!(build(one().queue(0)).contains("a queue of 0 tasks"));
    assert!(build(one().queue(usize::MAX)).contains("2147483647"));
    assert!(build(one().queue_weight(0)).contains("weight of 0"));
}

#[test]
fn threads_have_names_and_run_the_hook_first() {
    thread_local!(static READY: Cell<bool> = const { Cell::new(false) });
    let pool = one()
        .name("sums")
        .stack_size(1 << 20)
        .on_start(|| READY.set(true))
        .build()
        .unwrap();
    let seen = pool.run(|| (READY.get(), thread::current().name().map(str::to_owned)));
    assert_eq!(seen.unwrap(), (true, Some("sums-0".into())));
}
