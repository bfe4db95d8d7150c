//! Attacks on the engine: waits that are not seen, panics beside the lock, runtimes that end, and orders that starve.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::{LimiterExt, Policy, Quota, Semaphore, TokenBucket};
use tollgate_engine::*;

/// Runs the program on a thread of its own; a program that hangs fails the test.
fn within<T: Send + 'static>(program: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(program()));
    match is_done.recv_timeout(Duration::from_secs(5)) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the program hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the program panicked"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn gated(limit: usize, queue: usize, semaphore: &Arc<Semaphore>) -> WorkerPool {
    let policy = Policy::new(Arc::clone(semaphore));
    WorkerPool::gated(limit, queue, 64, policy, vec![Arc::clone(semaphore)])
}

/// A channel whose receiver several tasks share.
fn gate() -> (mpsc::Sender<()>, Arc<Mutex<mpsc::Receiver<()>>>) {
    let (open, opened) = mpsc::channel();
    (open, Arc::new(Mutex::new(opened)))
}

fn in_group(group: Group) -> Wishes {
    Wishes {
        group: Some(group),
        ..Wishes::default()
    }
}

fn prioritized(priority: Priority) -> Wishes {
    Wishes {
        priority,
        ..Wishes::default()
    }
}

/// Panics when it is dropped, unless the thread panics already.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a drop panics");
        }
    }
}

struct PanicsOnWake;

impl Wake for PanicsOnWake {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

// ---- waits ----

/// A set of futures polls only those that were woken. A task that waits for the others polls no handle then.
#[test]
fn a_task_that_awaits_the_rest_of_a_set_of_handles_lends_its_slot() {
    use futures::stream::{FuturesUnordered, StreamExt};
    let ended = within(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let pool = Arc::new(TaskPool::new(1, 100));
        let inner = Arc::clone(&pool);
        let parent = async move {
            let mut children: FuturesUnordered<_> = (0..40).map(|_| inner.submit(async {}).unwrap()).collect();
            let mut ended = 0;
            while let Some(Ok(Ok(()))) = children.next().await {
                ended += 1;
            }
            ended
        };
        pool.submit(parent).unwrap().join().unwrap()
    });
    assert_eq!(ended, 40);
}

#[test]
fn a_task_that_awaits_all_of_many_handles_lends_its_slot() {
    let ended = within(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let pool = Arc::new(TaskPool::new(1, 100));
        let inner = Arc::clone(&pool);
        let parent = async move {
            let children = (0..100).map(|_| inner.submit(async {}).unwrap());
            futures::future::join_all(children).await.len()
        };
        pool.submit(parent).unwrap().join().unwrap()
    });
    assert_eq!(ended, 100);
}

/// Two semaphores, taken in both orders by tasks that wait for their own children.
#[test]
fn tasks_that_hold_two_semaphores_in_opposite_orders_end() {
    let refused = within(|| {
        let semaphores = [Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1))];
        let pools = Arc::new(semaphores.each_ref().map(|semaphore| gated(2, 10, semaphore)));
        let both = Arc::new(std::sync::Barrier::new(2));
        let refused = Arc::new(AtomicUsize::new(0));
        let outer = [0, 1].map(|at| {
            let (inner, both, refused) = (Arc::clone(&pools), Arc::clone(&both), Arc::clone(&refused));
            let task = move || {
                both.wait();
                let child = inner[1 - at].submit(|| ()).unwrap();
                if let Err(JoinError::WouldDeadlock(_)) = child.join() {
                    refused.fetch_add(1, SeqCst);
                }
            };
            pools[at].submit(task).unwrap()
        });
        outer.into_iter().for_each(|outer| outer.join().unwrap());
        refused.load(SeqCst)
    });
    assert_eq!(refused, 1, "one of the two waits can be served");
}

/// The same for async tasks, and through a pool without a policy.
#[test]
fn async_tasks_that_hold_two_semaphores_in_opposite_orders_end() {
    let refused = within(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let pools = [Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1))]
            .map(|semaphore| TaskPool::gated(2, 10, Policy::new(Arc::clone(&semaphore)), vec![semaphore]));
        let pools = Arc::new(pools);
        let free = TaskPool::new(2, 10);
        let both = Arc::new(tokio::sync::Barrier::new(2));
        let outer = [0, 1].map(|at| {
            let (inner, both, free) = (Arc::clone(&pools), Arc::clone(&both), free.clone());
            let task = async move {
                both.wait().await;
                let between = free.submit(async move {
                    let child = inner[1 - at].submit(async {}).unwrap();
                    usize::from(child.await.is_err())
                });
                between.unwrap().await.unwrap().unwrap()
            };
            pools[at].submit(task).unwrap()
        });
        outer.map(|outer| outer.join().unwrap()).iter().sum::<usize>()
    });
    assert_eq!(refused, 1, "one of the two waits can be served");
}

/// A stage of a pipeline: its submitter has given the handle up, and ended.
#[test]
fn a_task_whose_submitter_has_ended_may_wait_for_the_permit_that_the_submitter_held() {
    let joined = within(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let (stage, free) = (Arc::new(gated(1, 10, &semaphore)), WorkerPool::new(1, 10, 16));
        let (go, gone) = mpsc::channel();
        let (report, reported) = mpsc::channel();
        let (again, below) = (Arc::clone(&stage), free.clone());
        let first = stage.submit(move || {
            let next = below.submit(move || {
                gone.recv().unwrap();
                report.send(again.submit(|| 7).unwrap().join().ok()).unwrap();
            });
            drop(next.unwrap());
        });
        first.unwrap().join().unwrap();
        go.send(()).unwrap();
        reported.recv().unwrap()
    });
    assert_eq!(joined, Some(7));
}

/// Handles that were given away: a task that waits for its own, and two that wait for each other.
#[test]
fn tasks_that_wait_for_each_other_are_told() {
    let refused = within(|| {
        let pool = WorkerPool::new(2, 10, 16);
        let (give, given) = mpsc::channel::<JoinHandle<bool>>();
        let own = pool.submit(move || matches!(given.recv().unwrap().join(), Err(JoinError::WouldDeadlock(_))));
        give.send(own.unwrap()).unwrap();
        let refused = Arc::new(AtomicUsize::new(0));
        let channels = [mpsc::channel::<JoinHandle<()>>(), mpsc::channel::<JoinHandle<()>>()];
        let [to_first, to_second] = channels.map(|(give, given)| {
            let refused = Arc::clone(&refused);
            let waits = move || {
                if let Err(JoinError::WouldDeadlock(_)) = given.recv().unwrap().join() {
                    refused.fetch_add(1, SeqCst);
                }
            };
            (give, pool.submit(waits).unwrap())
        });
        to_first.0.send(to_second.1).unwrap();
        to_second.0.send(to_first.1).unwrap();
        pool.wait_idle().unwrap();
        refused.load(SeqCst)
    });
    assert_eq!(refused, 1, "one of the two waits can be served");
}

/// The holder of a permit is given the handle of a task that waits for that permit already.
#[test]
fn a_wait_for_the_task_of_another_that_needs_the_permit_of_the_waiter_is_refused() {
    let refused = within(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let (holders, free) = (gated(2, 10, &semaphore), WorkerPool::new(1, 10, 16));
        let (give, given) = mpsc::channel::<JoinHandle<()>>();
        let (entered, has_entered) = mpsc::channel();
        let pool = holders.clone();
        let holder = holders.submit(move || {
            entered.send(()).unwrap();
            matches!(given.recv().unwrap().join(), Err(JoinError::WouldDeadlock(_)))
        });
        has_entered.recv().unwrap();
        let waits = free
            .submit(move || pool.submit(|| ()).unwrap().join().unwrap())
            .unwrap();
        while free.numbers().parked == 0 {
            std::thread::yield_now();
        }
        give.send(waits).unwrap();
        holder.unwrap().join().unwrap()
    });
    assert!(refused);
}

/// A task waits until a pool is idle, whose task is given the handle of that waiter.
#[test]
fn a_wait_for_the_task_that_waits_for_the_pool_of_the_waiter_to_be_idle_is_refused() {
    let refused = within(|| {
        let (pool, other) = (WorkerPool::new(1, 10, 16), WorkerPool::new(1, 10, 16));
        let (give, given) = mpsc::channel::<JoinHandle<()>>();
        let busy = pool.submit(move || matches!(given.recv().unwrap().join(), Err(JoinError::WouldDeadlock(_))));
        let idle = pool.clone();
        let waits = other.submit(move || idle.wait_idle().unwrap()).unwrap();
        while other.numbers().parked == 0 {
            std::thread::yield_now();
        }
        give.send(waits).unwrap();
        busy.unwrap().join().unwrap()
    });
    assert!(refused);
}

/// The wait for an entry that the gate cannot admit is given up: the next that is awaited is asked for.
#[test]
fn a_wait_that_is_given_up_lets_the_gate_be_asked_for_the_next() {
    within(|| {
        let semaphore = Arc::new(Semaphore::new(3));
        let policy = Policy::new(Arc::clone(&semaphore));
        let pool = Arc::new(WorkerPool::gated(1, 10, 64, policy, Vec::new()));
        let free = Arc::new(WorkerPool::new(4, 10, 64));
        // The holder waits for a task elsewhere, and lends its slot.
        let (release, released) = mpsc::channel::<()>();
        let elsewhere = Arc::clone(&free);
        let holder = pool.submit(move || {
            elsewhere
                .submit(move || released.recv().unwrap())
                .unwrap()
                .join()
                .unwrap();
        });
        let holder = holder.unwrap();
        let heavy = Wishes {
            ask: tollgate::Ask::many(3),
            ..Wishes::default()
        };
        let (pool_of, other) = (Arc::clone(&pool), Arc::clone(&free));
        let waiter = free.submit(move || {
            let mut cannot = pool_of.submit_with(&heavy, true, || ()).unwrap();
            assert!(
                Pin::new(&mut cannot)
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
            while pool_of.numbers().parked == 0 || semaphore.waiting() == 0 {
                std::thread::yield_now();
            }
            let can = other.submit(move || {
                let mut can = pool_of.submit(|| ()).unwrap();
                let polled = Pin::new(&mut can).poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending());
                can
            });
            let can = can.unwrap().join().unwrap();
            drop(cannot);
            can.join().unwrap();
        });
        waiter.unwrap().join().unwrap();
        release.send(()).unwrap();
        holder.join().unwrap();
    });
}

#[test]
fn a_queue_of_none_still_takes_a_task_for_an_idle_worker() {
    assert_eq!(
        within(|| WorkerPool::new(1, 0, 16).submit(|| 7).unwrap().join().unwrap()),
        7
    );
}

/// A task cannot wait until its own pool is idle, nor can one for which a task of that pool waits.
#[test]
fn a_task_that_waits_for_its_own_pool_to_be_idle_is_told() {
    within(|| {
        let (pool, other) = (WorkerPool::new(1, 10, 16), WorkerPool::new(1, 10, 16));
        let (inner, between) = (pool.clone(), other.clone());
        let task = move || {
            let direct = inner.wait_idle().is_err();
            let through = between.submit(move || inner.wait_idle().is_err());
            (direct, through.unwrap().join().unwrap())
        };
        assert_eq!(pool.submit(task).unwrap().join().unwrap(), (true, true));
    });
}

/// Two pools of one worker: a task of the first waits until the second is idle, whose task waits for one of the first.
#[test]
fn a_task_that_waits_for_another_pool_to_be_idle_lends_its_slot() {
    within(|| {
        let (upper, lower) = (WorkerPool::new(1, 10, 16), WorkerPool::new(1, 10, 16));
        let (up, low) = (upper.clone(), lower.clone());
        let outer = upper.submit(move || {
            low.execute(move || up.submit(|| ()).unwrap().join().unwrap()).unwrap();
            low.wait_idle().unwrap();
        });
        outer.unwrap().join().unwrap();
    });
}

#[test]
fn the_longest_patience_is_no_panic() {
    let pool = WorkerPool::new(1, 10, 16);
    assert_eq!(pool.submit(|| 7).unwrap().join_timeout(Duration::MAX).unwrap(), 7);
}

// ---- limits ----

/// One task resumed while another ran on its slot: nothing starts before that is repaid, on the stack of the waiter neither.
#[test]
fn no_task_starts_inline_above_the_limit() {
    let (most, limit) = within(|| {
        let pool = WorkerPool::new(2, 10, 16);
        let (open, opened) = gate();
        let (entered, has_entered) = mpsc::channel();
        let inner = pool.clone();
        let other = Arc::clone(&opened);
        let beside = pool.submit(move || {
            entered.send(()).unwrap();
            other.lock().unwrap().recv().unwrap();
        });
        has_entered.recv().unwrap();
        pool.set_limit(1);
        let (begun, has_begun) = mpsc::channel();
        pool.set_limit(2);
        let parent = pool.submit(move || {
            inner.set_limit(1);
            let numbers = inner.clone();
            let child = inner.submit(move || {
                let numbers = numbers.numbers();
                begun.send((numbers.running, numbers.limit)).unwrap();
            });
            // The child can start only after the other task has ended, for which the waiter must not be needed.
            open.send(()).unwrap();
            child.unwrap().join().unwrap();
        });
        parent.unwrap().join().unwrap();
        beside.unwrap().join().unwrap();
        has_begun.recv().unwrap()
    });
    assert!(most <= limit, "{most} tasks run right after a start, of {limit}");
}

#[test]
fn a_group_belongs_to_one_pool() {
    within(|| {
        let (pool, other) = (WorkerPool::new(1, 10, 16), WorkerPool::new(1, 10, 16));
        let group = other.group(1);
        let refused = catch_unwind(AssertUnwindSafe(|| pool.submit_with(&in_group(group), true, || ())));
        assert!(refused.is_err());
        assert_eq!(pool.submit(|| 7).unwrap().join().unwrap(), 7, "the pool works on");
    });
}

#[test]
fn a_pool_of_one_runs_its_tasks_on_one_thread() {
    let threads = within(|| {
        let pool = WorkerPool::new(1, 1_000, 16);
        let (ran, on) = mpsc::channel();
        for _ in 0..1_000 {
            let ran = ran.clone();
            pool.execute(move || ran.send(std::thread::current().id()).unwrap())
                .unwrap();
        }
        drop(ran);
        on.iter().collect::<HashSet<_>>().len()
    });
    assert_eq!(threads, 1);
}

#[test]
fn a_lowered_limit_ends_the_threads_that_idle() {
    within(|| {
        let pool = WorkerPool::new(8, 100, 16);
        let all = Arc::new(std::sync::Barrier::new(8));
        for _ in 0..8 {
            let all = Arc::clone(&all);
            pool.execute(move || _ = all.wait()).unwrap();
        }
        pool.wait_idle().unwrap();
        pool.set_limit(1);
        while pool.numbers().workers > 1 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_pool_that_is_dropped_while_it_is_paused_ends_its_tasks() {
    within(|| {
        let pool = WorkerPool::new(0, 10, 16);
        let handle = pool.submit(|| ()).unwrap();
        drop(pool);
        assert!(matches!(handle.join(), Err(JoinError::Task(TaskError::Abandoned))));
    });
}

/// Many tasks may wait where no spare thread is needed for it.
#[test]
fn a_wait_that_needs_no_spare_thread_is_not_refused() {
    within(|| {
        let (pool, other) = (WorkerPool::new(4, 10, 1), WorkerPool::new(4, 10, 1));
        let all = Arc::new(std::sync::Barrier::new(4));
        let outer: Vec<_> = (0..4)
            .map(|_| {
                let (all, other) = (Arc::clone(&all), other.clone());
                pool.submit(move || {
                    let child = other.submit(move || _ = all.wait()).unwrap();
                    child.join().is_ok()
                })
                .unwrap()
            })
            .collect();
        assert!(outer.into_iter().all(|outer| outer.join().unwrap()));
    });
}

// ---- starvation ----

/// A task that submits the next, for ever, on a runtime with one thread.
#[test]
fn a_pool_that_always_has_a_task_leaves_its_runtime_time_for_others() {
    fn next(pool: TaskPool, stop: Arc<AtomicBool>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if !stop.load(SeqCst) {
                drop(pool.submit(next(pool.clone(), Arc::clone(&stop))).unwrap());
            }
        })
    }
    within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (pool, stop) = (TaskPool::new(1, 10), Arc::new(AtomicBool::new(false)));
            drop(pool.submit(next(pool.clone(), Arc::clone(&stop))).unwrap());
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            stop.store(true, SeqCst);
        });
    });
}

/// Tasks of the highest and of the lowest priority are always queued.
#[test]
fn a_priority_between_two_streams_is_served() {
    let passed = within(|| {
        let pool = WorkerPool::new(1, 100_000, 16);
        let (order, (open, opened)) = (Arc::new(Mutex::new(Vec::new())), gate());
        pool.execute(move || opened.lock().unwrap().recv().unwrap()).unwrap();
        let submit = |priority, number: usize| {
            let order = Arc::clone(&order);
            drop(pool.submit_with(&prioritized(priority), true, move || order.lock().unwrap().push(number)));
        };
        submit(Priority::Normal, usize::MAX);
        (0..10_000).for_each(|n| submit(Priority::High, n));
        (0..1_000).for_each(|n| submit(Priority::Low, n));
        open.send(()).unwrap();
        pool.wait_idle().unwrap();
        let order = order.lock().unwrap();
        order.iter().position(|&number| number == usize::MAX).unwrap()
    });
    assert!(passed <= 100, "{passed} tasks passed it");
}

/// A group of one, with a stream of preferred members.
#[test]
fn a_low_priority_within_a_group_is_served() {
    let passed = within(|| {
        let pool = WorkerPool::new(2, 100_000, 16);
        let group = pool.group(1);
        let (order, (open, opened)) = (Arc::new(Mutex::new(Vec::new())), gate());
        let (entered, has_entered) = mpsc::channel();
        let member = move || {
            entered.send(()).unwrap();
            opened.lock().unwrap().recv().unwrap();
        };
        drop(pool.submit_with(&in_group(group), true, member).unwrap());
        has_entered.recv().unwrap();
        let submit = |priority, number: usize| {
            let order = Arc::clone(&order);
            let wishes = Wishes {
                priority,
                ..in_group(group)
            };
            drop(pool.submit_with(&wishes, true, move || order.lock().unwrap().push(number)));
        };
        submit(Priority::Low, usize::MAX);
        (0..10_000).for_each(|n| submit(Priority::High, n));
        open.send(()).unwrap();
        pool.wait_idle().unwrap();
        let order = order.lock().unwrap();
        order.iter().position(|&number| number == usize::MAX).unwrap()
    });
    assert!(passed <= 100, "{passed} tasks passed it");
}

// ---- panics ----

/// The task's end is carried through, and the pool has all of its slots.
fn works_on(pool: &WorkerPool) {
    assert_eq!(pool.submit(|| 7).unwrap().join().unwrap(), 7);
    pool.wait_idle().unwrap();
    let numbers = pool.numbers();
    assert_eq!((numbers.running, numbers.unfinished), (0, 0));
}

#[test]
fn a_waker_that_panics_costs_no_worker() {
    within(|| {
        let pool = WorkerPool::new(1, 10, 16);
        let (go, gone) = mpsc::channel::<()>();
        let mut handle = pool.submit(move || gone.recv().unwrap()).unwrap();
        let waker = Waker::from(Arc::new(PanicsOnWake));
        assert!(
            Pin::new(&mut handle)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        go.send(()).unwrap();
        works_on(&pool);
        handle.join().unwrap();
    });
}

#[test]
fn a_result_whose_drop_panics_costs_no_worker() {
    within(|| {
        let pool = WorkerPool::new(1, 10, 16);
        let (go, gone) = mpsc::channel::<()>();
        let handle = pool.submit(move || {
            gone.recv().unwrap();
            PanicsOnDrop
        });
        drop(handle);
        go.send(()).unwrap();
        works_on(&pool);
    });
}

#[test]
fn a_payload_whose_drop_panics_costs_no_worker() {
    within(|| {
        let pool = WorkerPool::new(1, 10, 16);
        pool.execute(|| std::panic::panic_any(PanicsOnDrop)).unwrap();
        works_on(&pool);
    });
}

/// The same inside the task that waits.
#[test]
fn a_waker_that_panics_inline_costs_no_slot() {
    within(|| {
        let pool = WorkerPool::new(1, 10, 16);
        let inner = pool.clone();
        let parent = pool.submit(move || {
            let mut child = inner.submit(|| 7).unwrap();
            let waker = Waker::from(Arc::new(PanicsOnWake));
            assert!(Pin::new(&mut child).poll(&mut Context::from_waker(&waker)).is_pending());
            child.join().unwrap()
        });
        assert_eq!(parent.unwrap().join().unwrap(), 7);
        works_on(&pool);
    });
}

#[test]
fn a_future_whose_drop_panics_costs_no_runner_and_has_a_result() {
    within(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let pool = TaskPool::new(1, 10);
        let task = async {
            let bomb = PanicsOnDrop;
            std::future::poll_fn(|_| Poll::Ready(())).await;
            std::mem::forget(bomb);
        };
        pool.submit(task).unwrap().join().unwrap();
        struct Task(#[allow(dead_code)] PanicsOnDrop);
        impl Future for Task {
            type Output = u8;
            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u8> {
                Poll::Ready(7)
            }
        }
        assert!(matches!(pool.submit(Task(PanicsOnDrop)).unwrap().join(), Ok(7)));
        drop(pool.submit(async { PanicsOnDrop }).unwrap());
        pool.submit(async {}).unwrap().join().unwrap();
    });
}

#[test]
fn closures_whose_drops_panic_are_all_ended_when_they_are_cancelled() {
    within(|| {
        let pool = WorkerPool::new(0, 10, 16);
        let submit = || {
            let bomb = PanicsOnDrop;
            pool.submit(move || drop(bomb)).unwrap()
        };
        let (first, second, third) = (submit(), submit(), submit());
        let _ = catch_unwind(AssertUnwindSafe(|| first.cancel()));
        assert!(matches!(first.join(), Err(JoinError::Task(TaskError::Cancelled))));
        let _ = catch_unwind(AssertUnwindSafe(|| pool.abort()));
        assert!(matches!(second.join(), Err(JoinError::Task(TaskError::Abandoned))));
        assert!(matches!(third.join(), Err(JoinError::Task(TaskError::Abandoned))));
    });
}

// ---- ends ----

#[test]
fn handles_to_the_tasks_of_a_runtime_that_ended_are_ready() {
    within(|| {
        let runtime = runtime();
        let inside = runtime.enter();
        let pool = TaskPool::new(1, 10);
        let (entered, has_entered) = mpsc::channel();
        let runs = pool
            .submit(async move {
                entered.send(()).unwrap();
                std::future::pending::<()>().await;
            })
            .unwrap();
        let queued = pool.submit(async {}).unwrap();
        has_entered.recv().unwrap();
        drop(inside);
        drop(runtime);
        assert!(matches!(runs.join(), Err(JoinError::Task(TaskError::Abandoned))));
        assert!(matches!(queued.join(), Err(JoinError::Task(TaskError::Abandoned))));
        match pool.submit(async {}) {
            Ok(handle) => assert!(matches!(handle.join(), Err(JoinError::Task(TaskError::Abandoned)))),
            Err(reason) => assert_eq!(reason, RejectReason::Closed),
        }
        pool.wait_idle().unwrap();
    });
}

/// No runner has been polled yet.
#[test]
fn a_pool_of_a_runtime_that_has_ended_abandons_its_tasks() {
    within(|| {
        let runtime = runtime();
        let pool = {
            let _inside = runtime.enter();
            TaskPool::new(1, 10)
        };
        drop(runtime);
        match pool.submit(async {}) {
            Ok(handle) => assert!(matches!(handle.join(), Err(JoinError::Task(TaskError::Abandoned)))),
            Err(reason) => assert_eq!(reason, RejectReason::Closed),
        }
        pool.wait_idle().unwrap();
    });
}

#[test]
fn a_handle_outlives_its_pool() {
    within(|| {
        let pool = WorkerPool::new(1, 10, 16);
        let (go, gone) = mpsc::channel::<()>();
        let first = pool.submit(move || gone.recv().unwrap()).unwrap();
        let second = pool.submit(|| 7).unwrap();
        drop(pool);
        go.send(()).unwrap();
        first.join().unwrap();
        assert_eq!(second.join().unwrap(), 7);
    });
}

#[test]
fn a_runtime_that_ends_while_its_task_waits_leaves_nothing() {
    within(|| {
        let runtime = runtime();
        let inside = runtime.enter();
        let (pool, threads) = (TaskPool::new(1, 10), WorkerPool::new(1, 10, 16));
        let (go, gone) = mpsc::channel::<()>();
        let child = threads.submit(move || gone.recv().unwrap()).unwrap();
        let parent = pool.submit(async move { drop(child.await) }).unwrap();
        let waiter = threads_that_wait(&threads, parent);
        while pool.numbers().parked == 0 {
            std::thread::yield_now();
        }
        drop(inside);
        drop(runtime);
        go.send(()).unwrap();
        assert!(waiter.join().unwrap());
        pool.wait_idle().unwrap();
        threads.wait_idle().unwrap();
        let numbers = pool.numbers();
        assert_eq!((numbers.running, numbers.parked, numbers.workers), (0, 0, 0));
    });
}

/// A thread task that waits for the async one, and says whether that was abandoned.
fn threads_that_wait(threads: &WorkerPool, handle: JoinHandle<()>) -> JoinHandle<bool> {
    let waits = move || matches!(handle.join(), Err(JoinError::Task(TaskError::Abandoned)));
    threads.submit(waits).unwrap()
}

/// The called runner stands in the slot of a runtime's thread that is busy: another runner takes what others submit.
#[test]
fn a_submission_does_not_wait_for_a_runner_that_was_called_on_a_busy_thread() {
    within(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let pool = TaskPool::new(3, 10);
        // Three runners idle.
        let all = Arc::new(tokio::sync::Barrier::new(3));
        for _ in 0..3 {
            let all = Arc::clone(&all);
            drop(pool.submit(async move { _ = all.wait().await }).unwrap());
        }
        pool.wait_idle().unwrap();
        let (entered, has_entered) = mpsc::channel();
        let (open, opened) = mpsc::channel();
        let inner = pool.clone();
        let busy = pool.submit(async move {
            drop(inner.submit(async {}).unwrap());
            entered.send(()).unwrap();
            opened.recv().unwrap();
        });
        has_entered.recv().unwrap();
        drop(pool.submit(async move { open.send(()).unwrap() }).unwrap());
        busy.unwrap().join().unwrap();
    });
}

/// Each task of a chain waits until the next has started, gives the wait up and ends: its slot goes to the next.
#[test]
#[ignore = "open: a chain of waits that are given up passes its slot on"]
fn a_newcomer_is_not_passed_for_ever_by_tasks_that_give_their_waits_up() {
    fn link(
        pool: TaskPool,
        number: usize,
        started: Option<tokio::sync::oneshot::Sender<()>>,
        links: Arc<(AtomicUsize, AtomicBool)>,
        queued: Option<tokio::sync::oneshot::Receiver<()>>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if let Some(started) = started {
                let _ = started.send(());
            }
            if let Some(queued) = queued {
                queued.await.unwrap();
            }
            links.0.store(number, SeqCst);
            if number == 1_000 || links.1.load(SeqCst) {
                return;
            }
            let (tell, told) = tokio::sync::oneshot::channel();
            let next = pool
                .submit(link(pool.clone(), number + 1, Some(tell), links, None))
                .unwrap();
            futures::future::select(next, told).await;
        })
    }
    let passed = within(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let pool = TaskPool::new(1, 10);
        let links = Arc::new((AtomicUsize::new(0), AtomicBool::new(false)));
        let (tell, queued) = tokio::sync::oneshot::channel();
        drop(
            pool.submit(link(pool.clone(), 0, None, Arc::clone(&links), Some(queued)))
                .unwrap(),
        );
        let newcomer = pool.submit(async move {
            links.1.store(true, SeqCst);
            links.0.load(SeqCst)
        });
        tell.send(()).unwrap();
        newcomer.unwrap().join().unwrap()
    });
    assert!(passed < 1_000, "{passed} tasks passed it");
}

/// The gate admits after the waiter has taken its slot back: nothing can start, and the token is not spent.
#[test]
fn an_admission_that_comes_too_late_is_given_back() {
    let left = within(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let bucket = Arc::new(TokenBucket::new(Quota::per_hour(10).burst(10)));
        let semaphore = Arc::new(Semaphore::new(2));
        let policy = Policy::new(Arc::clone(&bucket).and(Arc::clone(&semaphore)));
        let line = policy.clone();
        let pool = TaskPool::gated(1, 10, policy, Vec::new());
        let other = TaskPool::new(1, 10);
        let outside = semaphore.try_admit(1).unwrap();
        let (open, opened) = tokio::sync::oneshot::channel();
        let (resumed, has_resumed) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let (inner, elsewhere) = (pool.clone(), other.clone());
        let holder = pool.submit(async move {
            let queued = inner.submit(async {}).unwrap();
            let ends = elsewhere.submit(async move { opened.await.unwrap() }).unwrap();
            let both = futures::future::select(queued, ends).await;
            resumed.send(()).unwrap();
            ended.recv().unwrap();
            drop(both);
        });
        while line.waiting() == 0 {
            std::thread::yield_now();
        }
        open.send(()).unwrap();
        has_resumed.recv().unwrap();
        drop(outside);
        // The asker has been admitted, and has given the permit back.
        while line.waiting() > 0 || semaphore.in_use() > 1 {
            std::thread::yield_now();
        }
        let left = bucket.available();
        end.send(()).unwrap();
        holder.unwrap().join().unwrap();
        left
    });
    assert_eq!(left, 9, "one token is spent, for the holder");
}

/// As deep as without a policy: sixteen times the threads.
#[test]
#[ignore = "open: a pool with a policy runs nothing inline"]
fn tasks_behind_a_rate_wait_deeper_than_there_are_threads() {
    fn tree(pool: &Arc<WorkerPool>, depth: usize) -> bool {
        if depth == 0 {
            return true;
        }
        let inner = Arc::clone(pool);
        let child = pool.submit(move || tree(&inner, depth - 1)).unwrap();
        child.join().is_ok_and(|ended| ended)
    }
    let ended = within(|| {
        let bucket = TokenBucket::new(Quota::per_second(100_000).burst(1_000));
        let pool = Arc::new(WorkerPool::gated(1, 10, 8, Policy::new(bucket), Vec::new()));
        let inner = Arc::clone(&pool);
        pool.submit(move || tree(&inner, 100)).unwrap().join().unwrap()
    });
    assert!(ended);
}

/// A producer waits for room in the pool whose tasks wait elsewhere: that starts no more of them than the limit.
#[test]
#[ignore = "open: a producer makes every entry startable on lent slots"]
fn a_producer_that_waits_for_room_has_no_task_refused_its_wait() {
    let refused = within(|| {
        let [producers, parents, children] = [1, 1, 8].map(|limit| WorkerPool::new(limit, 1, 4));
        let (open, opened) = gate();
        let refused = Arc::new(AtomicUsize::new(0));
        let (middle, below, count) = (parents.clone(), children.clone(), Arc::clone(&refused));
        let producer = producers.submit(move || {
            for _ in 0..16 {
                let (below, opened, count) = (below.clone(), Arc::clone(&opened), Arc::clone(&count));
                let parent = move || {
                    let child = below.submit(move || opened.lock().unwrap().recv().unwrap()).unwrap();
                    if let Err(JoinError::TooManyParked(_)) = child.join() {
                        count.fetch_add(1, SeqCst);
                    }
                };
                drop(middle.submit(parent).unwrap());
            }
        });
        while parents.numbers().parked == 0 || (refused.load(SeqCst) == 0 && parents.numbers().parked > 1) {
            std::thread::yield_now();
        }
        (0..16).for_each(|_| open.send(()).unwrap());
        producer.unwrap().join().unwrap();
        parents.wait_idle().unwrap();
        refused.load(SeqCst)
    });
    assert_eq!(refused, 0);
}

/// A handle that was polled and leaked by a task that has ended: the wait is over.
#[test]
#[ignore = "open: a leaked handle keeps its edges"]
fn a_leaked_handle_refuses_no_wait_after_its_waiter_has_ended() {
    let served = within(|| {
        let semaphores = [(); 2].map(|()| Arc::new(Semaphore::new(4)));
        let [first, second] = semaphores.each_ref().map(|semaphore| gated(2, 10, semaphore));
        let (leaks, waits) = (second.clone(), first.clone());
        let leak = first.submit(move || {
            let (go, gone) = mpsc::channel::<()>();
            let mut handle = leaks.submit(move || gone.recv().unwrap()).unwrap();
            let polled = Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            go.send(()).unwrap();
            std::mem::forget(handle);
        });
        leak.unwrap().join().unwrap();
        first.wait_idle().unwrap();
        let served = second.submit(move || waits.submit(|| ()).unwrap().join().is_ok());
        served.unwrap().join().unwrap()
    });
    assert!(served);
}
