//! Tests of tasks on threads that wait for tasks: run on the waiter's stack, on lent slots, or refused.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;
use tollgate::pool::{Overflow, PoolBuilder, TaskError};
use tollgate::{Ask, JoinHandle, LimiterExt, Policy, Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

/// Returns the depth to which tasks waited for their children, or the first refusal.
fn nested(pool: &WorkerPool, depth: usize) -> Result<usize, TaskError> {
    if depth == 0 {
        return Ok(0);
    }
    let here = pool.clone();
    let below = pool.submit(move || nested(&here, depth - 1)).unwrap();
    Ok(below.join()?? + 1)
}

/// As [`nested`], by waits with a time-out, which run no task on the waiter's stack.
fn timed(pool: &WorkerPool, depth: usize) -> Result<usize, TaskError> {
    if depth == 0 {
        return Ok(0);
    }
    let here = pool.clone();
    let below = pool.submit(move || timed(&here, depth - 1)).unwrap();
    Ok(below.join_timeout(LONG).expect("it does not end")?? + 1)
}

/// Given one worker, then tasks wait for their children thousands deep, 17 on each thread. The wait for which no thread is left
/// is refused, and the pool goes on.
#[test]
fn tasks_wait_for_their_children_as_deep_as_there_are_threads() {
    let pool = WorkerPool::builder().workers(1).build().unwrap();
    let here = pool.clone();
    assert_eq!(pool.run(move || nested(&here, 2_000)).unwrap().unwrap(), 2_000);
    let here = pool.clone();
    let refused = pool.run(move || nested(&here, 6_000)).unwrap();
    assert!(matches!(refused, Err(TaskError::TooManyParked)), "{refused:?}");
    let here = pool.clone();
    assert_eq!(pool.run(move || nested(&here, 100)).unwrap().unwrap(), 100);
    assert!(pool.stats().peak_threads <= 257);
    assert!(pool.shutdown(LONG).is_clean());
}

/// As above, with time-outs: no task runs on its waiter's stack.
#[test]
fn no_more_threads_are_started_than_are_allowed() {
    let pool = WorkerPool::builder().workers(2).build().unwrap();
    let here = pool.clone();
    assert_eq!(pool.run(move || timed(&here, 200)).unwrap().unwrap(), 200);
    let here = pool.clone();
    let refused = pool.run(move || timed(&here, 300)).unwrap();
    assert!(matches!(refused, Err(TaskError::TooManyParked)), "{refused:?}");
    assert!(pool.stats().peak_threads <= 258);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a queue of one, when each task submits two more, 20,000 deep, then all run, none on its submitter's stack.
#[test]
fn a_crawl_through_a_full_queue_keeps_to_its_stack() {
    fn visit(pool: &WorkerPool, left: usize, seen: &Arc<AtomicUsize>) {
        seen.fetch_add(1, Relaxed);
        if left == 0 {
            return;
        }
        let leaf = Arc::clone(seen);
        pool.execute(move || _ = leaf.fetch_add(1, Relaxed)).unwrap();
        let (here, seen) = (pool.clone(), Arc::clone(seen));
        pool.execute(move || visit(&here, left - 1, &seen)).unwrap();
    }
    let builder = WorkerPool::builder().workers(1).max_queue(1).stack_size(256 << 10);
    let (pool, seen) = (builder.build().unwrap(), Arc::default());
    let (here, mark) = (pool.clone(), Arc::clone(&seen));
    pool.execute(move || visit(&here, 20_000, &mark)).unwrap();
    assert!(pool.wait_idle());
    assert_eq!(seen.load(Relaxed), 40_001);
}

/// Given a task that submits while it holds a lock, when the submitted task takes the lock, then it does not run in the submitter.
#[test]
fn a_submission_under_a_lock_runs_nothing() {
    let pool = WorkerPool::builder().workers(2).max_queue(8).build().unwrap();
    let sum = Arc::new(Mutex::new(0));
    let (here, total, (tell, told)) = (pool.clone(), Arc::clone(&sum), mpsc::channel());
    pool.execute(move || {
        let mut guard = total.lock().unwrap();
        for n in 0..20 {
            let total = Arc::clone(&total);
            here.execute(move || *total.lock().unwrap() += n).unwrap();
            *guard += 1;
        }
        drop(guard);
        tell.send(()).unwrap();
    })
    .unwrap();
    told.recv_timeout(LONG).expect("it waits for its own lock");
    assert!(pool.wait_idle());
    assert_eq!(*sum.lock().unwrap(), 20 + 190);
}

/// Given a policy of one permit, when the task that holds it waits for another, then the wait is refused. The kept handle gives the
/// result once the first task has ended.
#[test]
fn a_handle_is_kept_when_its_wait_is_refused() {
    let in_flight = Arc::new(Semaphore::new(1));
    let unqueued = Policy::builder()
        .max_queue(0)
        .limit(Arc::clone(&in_flight))
        .build()
        .unwrap();
    for policy in [Policy::new(Arc::clone(&in_flight)), unqueued] {
        let pool = WorkerPool::builder().workers(1).admit_by(policy).build().unwrap();
        let here = pool.clone();
        let outer = pool.submit(move || {
            let mut inner = here.submit(|| 7).unwrap();
            assert!(matches!(inner.join_by_ref(), Err(TaskError::WouldDeadlock)));
            inner
        });
        assert_eq!(outer.unwrap().join().unwrap().join().unwrap(), 7);
        assert!(pool.shutdown(LONG).is_clean());
        assert_eq!(in_flight.available_permits(), 1);
    }
}

/// Given a policy of permits, when each task submits the next and ends, 100,000 times, then ended tasks leave nothing behind.
#[test]
fn a_chain_of_tasks_that_hold_permits_keeps_nothing() {
    fn next(pool: &WorkerPool, left: usize, done: mpsc::Sender<()>) {
        if left == 0 {
            return done.send(()).unwrap();
        }
        let here = pool.clone();
        drop(pool.submit(move || next(&here, left - 1, done)).unwrap());
    }
    let builder = WorkerPool::builder().workers(1).stack_size(256 << 10);
    let pool = builder.admit_by(Policy::new(Semaphore::new(1))).build().unwrap();
    let (here, (tell, told)) = (pool.clone(), mpsc::channel());
    pool.execute(move || next(&here, 100_000, tell)).unwrap();
    told.recv_timeout(LONG).expect("it does not end");
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a task that holds a permit, when it runs in a hook a task that it submitted elsewhere, then its next wait is refused.
#[test]
fn a_task_that_runs_what_it_has_submitted_waits_for_no_end_of_itself() {
    let gated = WorkerPool::builder()
        .workers(1)
        .admit_by(Policy::new(Semaphore::new(1)));
    let gated = gated.build().unwrap();
    let full = WorkerPool::builder()
        .workers(1)
        .max_queue(1)
        .overflow(Overflow::DropNewest);
    let full = full.on_discard(|task| assert!(task.run())).build().unwrap();
    let (begun, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (begins, ends) = (Arc::clone(&begun), Arc::clone(&end));
    full.execute(move || _ = (begins.wait(), ends.wait())).unwrap();
    begun.wait();
    full.execute(|| ()).unwrap();
    let (here, there) = (gated.clone(), full.clone());
    let outer = gated.submit(move || {
        assert_eq!(there.submit(|| 7).unwrap().join().unwrap(), 7);
        matches!(here.submit(|| ()).unwrap().join(), Err(TaskError::WouldDeadlock))
    });
    assert!(outer.unwrap().join_timeout(LONG).expect("it does not end").unwrap());
    end.wait();
    assert!(gated.shutdown(LONG).is_clean() && full.shutdown(LONG).is_clean());
}

/// A pool of one worker with a queue of one, whose hook runs an evicted task on the thread that submits.
fn runs_the_evicted(builder: PoolBuilder) -> WorkerPool {
    let builder = builder.workers(1).max_queue(1).overflow(Overflow::DropOldest);
    builder.on_discard(|task| _ = task.run()).build().unwrap()
}

/// Given a task that a full queue hands back and that its hook runs, when it waits for a task, then that one is listed as awaited, and
/// runs on the slot that the waiter of the hook's task lends.
#[test]
fn a_task_that_a_hook_runs_may_wait_for_its_own() {
    let pool = runs_the_evicted(WorkerPool::builder());
    let (here, there) = (pool.clone(), pool.clone());
    let (queue, queued) = mpsc::channel();
    let (go, goes) = mpsc::channel();
    let outer = pool.submit(move || {
        let evicted = here.submit(move || {
            let third = there.submit(|| 7).unwrap();
            go.send(()).unwrap();
            third.join().unwrap()
        });
        queue.send(()).unwrap();
        goes.recv().unwrap();
        evicted.unwrap().join().unwrap()
    });
    queued.recv_timeout(LONG).unwrap();
    let (here, (tell, told)) = (pool.clone(), mpsc::channel());
    thread::spawn(move || {
        here.execute(|| ()).unwrap();
        tell.send(outer.unwrap().join().unwrap()).unwrap();
    });
    let result = told.recv_timeout(LONG);
    assert_eq!(result.expect("the three tasks wait for each other"), 7);
    assert!(pool.shutdown(LONG).is_clean());
}

/// As above, when the third task needs the permit that the first holds while it waits for the hook's task.
#[test]
fn a_wait_of_a_task_that_a_hook_runs_is_refused_when_it_would_not_end() {
    let gated = WorkerPool::builder()
        .workers(1)
        .admit_by(Policy::new(Semaphore::new(1)));
    let gated = gated.build().unwrap();
    let full = runs_the_evicted(WorkerPool::builder());
    let (begun, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (begins, ends) = (Arc::clone(&begun), Arc::clone(&end));
    full.execute(move || _ = (begins.wait(), ends.wait())).unwrap();
    begun.wait();
    let (here, there) = (gated.clone(), full.clone());
    let (queue, queued) = mpsc::channel();
    let outer = gated.submit(move || {
        let evicted = there.submit(move || here.submit(|| 7).unwrap().join());
        queue.send(()).unwrap();
        evicted.unwrap().join().unwrap()
    });
    queued.recv_timeout(LONG).unwrap();
    let (here, (tell, told)) = (full.clone(), mpsc::channel());
    thread::spawn(move || {
        here.execute(|| ()).unwrap();
        tell.send(outer.unwrap().join().unwrap()).unwrap();
    });
    let result = told.recv_timeout(LONG).expect("the three tasks wait for each other");
    assert!(matches!(result, Err(TaskError::WouldDeadlock)), "{result:?}");
    end.wait();
    assert!(gated.shutdown(LONG).is_clean() && full.shutdown(LONG).is_clean());
}

/// Given a policy with one of ten permits free, when a task that wants all ten is cancelled, then the next starts, which wants one.
#[test]
fn a_cancelled_task_at_the_policy_lets_the_next_pass() {
    let policy = Policy::new(Semaphore::new(10));
    let pool = WorkerPool::builder()
        .workers(2)
        .admit_by(policy.clone())
        .build()
        .unwrap();
    let held = policy.try_admit(9).unwrap();
    let all = pool.ask(Ask::many(10)).submit(|| ()).unwrap();
    let one = pool.submit(|| 7).unwrap();
    while policy.waiting() == 0 {
        thread::yield_now();
    }
    assert!(all.cancel());
    assert_eq!(one.join_timeout(LONG).expect("it does not end").unwrap(), 7);
    drop(held);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a busy worker with cancelled and other tasks in its local queue, when the second worker has no work left, then it skips
/// the cancelled tasks and takes the others.
#[test]
fn cancelled_tasks_in_a_local_queue_hide_no_others() {
    let pool = WorkerPool::builder().workers(2).build().unwrap();
    let gates = [(); 3].map(|()| (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2))));
    let blocks = |n: usize| {
        let (begun, end) = (Arc::clone(&gates[n].0), Arc::clone(&gates[n].1));
        move || _ = (begun.wait(), end.wait())
    };
    for (n, gate) in gates.iter().enumerate().take(2) {
        pool.execute(blocks(n)).unwrap();
        gate.0.wait();
    }
    pool.execute(blocks(2)).unwrap();
    let tasks: Vec<_> = (0..19).map(|n| pool.submit(move || n).unwrap()).collect();
    gates[0].1.wait();
    // The worker has the next four tasks in its local queue.
    gates[2].0.wait();
    assert!(tasks[0].cancel() && tasks[1].cancel());
    gates[1].1.wait();
    for (n, task) in tasks.into_iter().enumerate().skip(2) {
        assert_eq!(task.join_timeout(LONG).expect("it does not end").unwrap(), n);
    }
    gates[2].1.wait();
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a spare thread that cannot be started at first, then it is started later, and the task that waits for it ends.
#[test]
fn a_thread_that_could_not_be_started_is_started_later() {
    let starts = AtomicUsize::new(0);
    let builder = WorkerPool::builder().workers(1).spawn_with(move |worker| {
        if starts.fetch_add(1, Relaxed) == 1 {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        thread::Builder::new().spawn(|| worker.run()).map(drop)
    });
    let pool = builder.build().unwrap();
    let here = pool.clone();
    let outer = pool.submit(move || {
        here.submit(|| 7)
            .unwrap()
            .join_timeout(LONG)
            .expect("it does not end")
            .unwrap()
    });
    assert_eq!(outer.unwrap().join().unwrap(), 7);
    assert_eq!(pool.stats().failed_starts, 1);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given an elastic pool of up to 100 threads, when 300 tasks wait for their children, then its own and its spare threads suffice.
#[test]
fn a_large_pool_lets_more_wait() {
    let pool = WorkerPool::builder().workers(1..=100).build().unwrap();
    let here = pool.clone();
    assert_eq!(pool.run(move || timed(&here, 300)).unwrap().unwrap(), 300);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a worker with tasks in its local queue, when its task lends the slot, then they wait until the slot is free again.
#[test]
fn tasks_in_a_local_queue_start_on_no_lent_slot() {
    let pool = WorkerPool::builder().workers(1).build().unwrap();
    let (begun, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (begins, goes) = (Arc::clone(&begun), Arc::clone(&go));
    pool.execute(move || _ = (begins.wait(), goes.wait())).unwrap();
    begun.wait();
    let running = Arc::new(AtomicUsize::new(0));
    let (end, ends) = mpsc::channel::<()>();
    let (here, runs) = (pool.clone(), Arc::clone(&running));
    let outer = pool.submit(move || {
        let (begin, begun) = mpsc::channel();
        let long = here.submit(move || {
            runs.fetch_add(1, Relaxed);
            begin.send(()).unwrap();
            _ = ends.recv();
            runs.fetch_sub(1, Relaxed);
        });
        let mut long = long.unwrap();
        let polled = Future::poll(std::pin::Pin::new(&mut long), &mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        begun.recv().unwrap();
        drop(long);
    });
    let others: Vec<_> = (0..20)
        .map(|_| {
            let running = Arc::clone(&running);
            pool.submit(move || running.load(Relaxed)).unwrap()
        })
        .collect();
    go.wait();
    outer.unwrap().join().unwrap();
    end.send(()).unwrap();
    for other in others {
        assert_eq!(other.join_timeout(LONG).expect("it does not end").unwrap(), 0);
    }
    assert!(pool.shutdown(LONG).is_clean());
}

/// Waits, when it is dropped, for a task of a pool.
struct JoinsOnDrop(Option<JoinHandle<i32>>);

impl Drop for JoinsOnDrop {
    fn drop(&mut self) {
        assert_eq!(self.0.take().map(|handle| handle.join().unwrap()), Some(7));
    }
}

/// Given two workers, when one drops a late task whose drop waits for another task of the pool, then the other runs that task.
#[test]
fn a_task_that_waits_as_it_is_dropped_keeps_no_other_from_its_start() {
    for gated in [false, true] {
        let clock = tollgate::ManualClock::new();
        let mut builder = WorkerPool::builder().workers(2).on(&clock);
        if gated {
            builder = builder.admit_by(Policy::new(
                tollgate::TokenBucket::new(tollgate::Quota::per_second(1).burst(9)).on(&clock),
            ));
        }
        let pool = builder.build().unwrap();
        let (begun, end) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3)));
        for _ in 0..2 {
            let (begins, ends) = (Arc::clone(&begun), Arc::clone(&end));
            pool.execute(move || _ = (begins.wait(), ends.wait())).unwrap();
        }
        begun.wait();
        let awaited = JoinsOnDrop(Some(pool.submit(|| 7).unwrap()));
        let late = pool.priority(tollgate::pool::Priority::High).deadline(Duration::ZERO);
        let late = late.submit(move || drop(awaited)).unwrap();
        clock.advance(Duration::from_nanos(1));
        end.wait();
        assert!(matches!(
            late.join_timeout(LONG).expect("it does not end"),
            Err(TaskError::Expired)
        ));
        assert_eq!(
            pool.submit(|| 8)
                .unwrap()
                .join_timeout(LONG)
                .expect("it does not end")
                .unwrap(),
            8
        );
        assert!(pool.shutdown(LONG).is_clean());
    }
}

/// Given a hook that waits on its own thread for the thread that it starts, then the task that needs the new thread is not missed.
#[test]
fn a_hook_that_parks_its_thread_takes_no_wake_up() {
    let builder = WorkerPool::builder()
        .workers(1)
        .admit_by(Policy::new(tollgate::TokenBucket::new(
            tollgate::Quota::per_second(1_000_000).burst(1_000),
        )));
    let builder = builder.spawn_with(|worker| {
        let (tell, told) = mpsc::channel();
        thread::Builder::new().spawn(move || {
            tell.send(()).unwrap();
            worker.run();
        })?;
        told.recv().unwrap();
        Ok(())
    });
    let pool = builder.build().unwrap();
    let here = pool.clone();
    let outer = pool.submit(move || here.submit(|| 7).unwrap().join().unwrap());
    assert_eq!(outer.unwrap().join_timeout(LONG).expect("it does not end").unwrap(), 7);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a limit lowered below the number of waiting tasks, then an awaited task finds a thread.
#[test]
fn a_lowered_limit_leaves_a_thread_for_what_is_awaited() {
    let (pool, other) = (
        WorkerPool::builder().workers(300).build().unwrap(),
        WorkerPool::builder().workers(1).build().unwrap(),
    );
    let (begun, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    let (goes, here) = (Arc::clone(&go), pool.clone());
    let below = other.submit(move || {
        goes.wait();
        here.submit(|| 7)
            .unwrap()
            .join_timeout(LONG)
            .expect("it does not end")
            .unwrap()
    });
    let below = Arc::new(Mutex::new(Some(below.unwrap())));
    let tasks: Vec<_> = (0..300)
        .map(|_| {
            let (begun, there, below) = (Arc::clone(&begun), other.clone(), Arc::clone(&below));
            pool.submit(move || {
                let first = below.lock().unwrap().take();
                let mut waits = first.unwrap_or_else(|| there.submit(|| 7).unwrap());
                begun.fetch_add(1, Relaxed);
                // One that begins to wait after the limit was lowered is one too many until others have ended.
                loop {
                    match waits.join_by_ref() {
                        Err(TaskError::TooManyParked) => thread::yield_now(),
                        ended => break ended.unwrap(),
                    }
                }
            })
            .unwrap()
        })
        .collect();
    while begun.load(Relaxed) < 300 {
        thread::yield_now();
    }
    pool.set_limit(1).unwrap();
    go.wait();
    for task in tasks {
        assert_eq!(task.join_timeout(LONG).expect("it does not end").unwrap(), 7);
    }
    assert!(pool.shutdown(LONG).is_clean() && other.shutdown(LONG).is_clean());
}

/// Given a pool of one whose task goes on after a wait, while another task is queued, then the spare thread sleeps: without a free slot
/// it finds nothing, however often it looks.
#[test]
fn a_spare_thread_without_a_slot_sleeps() {
    super::kinds::watched("it", || {
        let pool = WorkerPool::builder().workers(1).build().unwrap();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let (tell, is_back) = mpsc::channel();
        let here = pool.clone();
        let outer = pool.submit(move || {
            here.execute(|| ()).unwrap();
            let below = here.submit(|| ()).unwrap();
            below.join_timeout(LONG).expect("it does not end").unwrap();
            tell.send(()).unwrap();
            let _ = goes_on.recv();
        });
        is_back.recv().unwrap();
        while pool.stats().idle == 0 {
            thread::yield_now();
        }
        assert_eq!(pool.stats().threads, 2);
        drop(go_on);
        outer.unwrap().join().unwrap();
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Given a task that ends with a handle that it has polled, then its slot goes to other tasks, and the handle waits for the task like any other.
#[test]
fn a_task_may_end_with_a_handle_that_it_has_polled() {
    let pool = WorkerPool::builder().workers(1).build().unwrap();
    for joins in [true, false] {
        let (here, (send, sent)) = (pool.clone(), mpsc::channel());
        let polls = move || {
            let mut inner = here.submit(|| 7).unwrap();
            let polled = Pin::new(&mut inner).poll(&mut Context::from_waker(Waker::noop()));
            send.send((inner, polled.is_pending())).unwrap();
        };
        pool.run(polls).unwrap();
        let (inner, was_pending) = sent.recv().unwrap();
        assert_eq!((pool.run(|| 1).unwrap(), was_pending), (1, true));
        if joins {
            assert_eq!(inner.join().unwrap(), 7);
        }
        assert_eq!(pool.run(|| 2).unwrap(), 2);
    }
    assert!(pool.wait_idle());
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given members of a group that run one at a time, and a task that waits for them, then it runs none beside another.
#[test]
fn a_task_that_waits_for_a_limited_group_does_not_exceed_the_limit() {
    let pool = WorkerPool::builder().workers(2).build().unwrap();
    let mut group = pool.group::<_, ()>().limit(1).unwrap();
    let now = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let now = Arc::clone(&now);
        let member = move || {
            let others = now.fetch_add(1, Relaxed);
            (0..2_000).for_each(|_| thread::yield_now());
            now.fetch_sub(1, Relaxed);
            Ok(others)
        };
        group.submit(member).unwrap();
    }
    assert_eq!(pool.run(move || group.join().unwrap()).unwrap(), [0; 4]);
}
