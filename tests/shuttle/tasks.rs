//! Pools of async tasks, and fan-out: every task is accounted for once, and no waiter is left.

use futures::StreamExt;
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tollgate::fan_out::fan_out;
use tollgate::pool::{GroupError, TaskError, TaskHandle, TaskPool};
use tollgate::{ManualClock, Policy, Semaphore};

const LONG: Duration = Duration::from_secs(3_600);

fn pool(limit: usize) -> TaskPool {
    let builder = TaskPool::builder(limit).max_queue(2);
    builder.on(&ManualClock::new()).build().unwrap()
}

/// Pending once: others have their turn.
async fn pause() {
    let mut paused = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Given runners that fall asleep between two submissions of two threads, then all four tasks run, and the end is clean.
#[test]
fn a_runner_that_falls_asleep_beside_a_submission_is_woken() {
    super::check(10_000, || {
        let pool = pool(2);
        let submitters: Vec<_> = (0..2)
            .map(|n| {
                let pool = pool.clone();
                thread::spawn(move || {
                    block_on(async {
                        for m in 0..2 {
                            let handle = pool.submit(async move { 10 * n + m }).await.unwrap();
                            assert_eq!(handle.await.unwrap(), 10 * n + m);
                        }
                    });
                })
            })
            .collect();
        for submitter in submitters {
            submitter.join().unwrap();
        }
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// Given a task that waits for one behind it, which no helper polls, when the pool of one is resized to two, then both end.
#[test]
fn a_raised_limit_starts_the_queued_tasks() {
    super::check(10_000, || {
        let pool = pool(1);
        let flag = Arc::new(Semaphore::new(0));
        let (sets, sees) = (Arc::clone(&flag), flag);
        let waits = async move { sees.acquire().await.unwrap().forget() };
        let waits = block_on(pool.submit(waits)).unwrap();
        let sets = block_on(pool.submit(async move { sets.add_permits(1) })).unwrap();
        let other = pool.clone();
        let resizer = thread::spawn(move || other.set_limit(2).unwrap());
        resizer.join().unwrap();
        block_on(async {
            waits.await.unwrap();
            sets.await.unwrap();
        });
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// The same when the limit of its slots is raised, by a thread that knows no pool, at any moment.
#[test]
fn a_limit_raised_elsewhere_starts_the_queued_tasks() {
    super::check(10_000, || {
        let slots = Arc::new(Semaphore::new(1));
        let builder = TaskPool::builder(1).on(&ManualClock::new());
        let pool = builder.slots(Arc::clone(&slots)).build().unwrap();
        let raiser = thread::spawn(move || slots.set_limit(2));
        let flag = Arc::new(Semaphore::new(0));
        let (sets, sees) = (Arc::clone(&flag), flag);
        let waits = async move { sees.acquire().await.unwrap().forget() };
        let waits = block_on(pool.submit(waits)).unwrap();
        let sets = block_on(pool.submit(async move { sets.add_permits(1) })).unwrap();
        block_on(async {
            waits.await.unwrap();
            sets.await.unwrap();
        });
        raiser.join().unwrap();
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// The same for a fan-out whose first item waits for the second.
#[test]
fn a_limit_that_others_raise_starts_an_item() {
    super::check(10_000, || {
        let slots = Arc::new(Semaphore::new(1));
        let flag = Arc::new(Semaphore::new(0));
        let results = fan_out(0..2, &slots).buffer(0).map(move |n| {
            let flag = Arc::clone(&flag);
            async move {
                if n == 0 {
                    flag.acquire().await.unwrap().forget();
                } else {
                    flag.add_permits(1);
                }
            }
        });
        let raiser = thread::spawn(move || slots.set_limit(2));
        let ended = block_on(results.filter(|result| std::future::ready(result.is_ok())).count());
        assert_eq!(ended, 2);
        raiser.join().unwrap();
    });
}

/// Given tasks that end, pause, or panic, some of them cancelled, submitted by two threads while a third resizes and then
/// ends the pool, then each task that was let in has run or been reported, once, and its handle has learned which.
#[test]
fn every_task_is_accounted_for_once() {
    super::check(20_000, || {
        let pool = pool(2);
        let ran = Arc::new(AtomicUsize::new(0));
        let submitters: Vec<_> = (0..2)
            .map(|_| {
                let (pool, ran) = (pool.clone(), Arc::clone(&ran));
                thread::spawn(move || block_on(submit_some(&pool, &ran)))
            })
            .collect();
        pool.set_limit(thread_rng().gen_range(1..=3)).unwrap();
        let report = match thread_rng().gen_range(0..2) {
            0 => block_on(pool.shutdown(LONG)),
            _ => pool.abort(),
        };
        let listed = report.unstarted.len();
        drop(report);
        let ends: Vec<_> = submitters.into_iter().map(|thread| thread.join().unwrap()).collect();
        let (let_in, gone) = ends.iter().fold((0, 0), |sum, end| (sum.0 + end.0, sum.1 + end.1));
        assert_eq!(ran.load(Ordering::SeqCst) + gone, let_in);
        assert!(listed <= gone, "{listed} were listed, {gone} have not run");
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// Submits three tasks; returns how many were let in, and how many of them have not run to their ends.
async fn submit_some(pool: &TaskPool, ran: &Arc<AtomicUsize>) -> (usize, usize) {
    let (mut let_in, mut gone) = (0, 0);
    for _ in 0..3 {
        let (kind, cancels) = (thread_rng().gen_range(0..3), thread_rng().gen_range(0..3) == 0);
        let counts = Arc::clone(ran);
        let task = async move {
            if kind == 1 {
                pause().await;
            }
            let before = counts.fetch_add(1, Ordering::SeqCst);
            if kind == 2 {
                resume_unwind(Box::new(before));
            }
        };
        let Ok(handle) = pool.submit(task).await else { continue };
        let_in += 1;
        if cancels {
            handle.cancel();
        }
        match handle.await {
            Ok(()) => assert_ne!(kind, 2),
            Err(TaskError::Panicked(_)) => assert_eq!(kind, 2),
            Err(TaskError::Cancelled | TaskError::Aborted | TaskError::Abandoned) => gone += 1,
            Err(other) => panic!("{other}"),
        }
    }
    (let_in, gone)
}

/// A task that counts how many of its kind are being polled.
async fn counted(now: Arc<AtomicUsize>, limit: usize) {
    for last in [false, true] {
        let before = now.fetch_add(1, Ordering::SeqCst);
        assert!(before < limit, "one more beside {before}");
        thread::yield_now();
        now.fetch_sub(1, Ordering::SeqCst);
        if !last {
            pause().await;
        }
    }
}

/// Polls the handle of a task once, and then awaits another, or drops the first handle, or returns it.
async fn wait_somehow(pool: TaskPool, now: Arc<AtomicUsize>, limit: usize) -> Option<TaskHandle<()>> {
    let mut first = pool.submit(counted(Arc::clone(&now), limit)).await.unwrap();
    let second = pool.submit(counted(now, limit)).await.unwrap();
    let done = poll_fn(|cx| Poll::Ready(Pin::new(&mut first).poll(cx)))
        .await
        .is_ready();
    match thread_rng().gen_range(0..4) {
        _ if done => second.await.unwrap(),
        0 => {
            drop(first);
            second.await.unwrap();
        }
        1 => {
            second.await.unwrap();
            first.await.unwrap();
        }
        2 => {
            let again = first.join_timeout(Duration::ZERO).await;
            pause().await;
            second.await.unwrap();
            match again {
                Ok(done) => done.unwrap(),
                Err(first) => first.await.unwrap(),
            }
        }
        _ => {
            drop(second);
            return Some(first);
        }
    }
    None
}

/// Given tasks that wait for others and then for something else, drop the handle, or hand it on, then all end, and no more of those
/// that are awaited are polled at once than there are slots.
#[test]
fn an_awaited_task_runs_within_the_bound() {
    super::check(10_000, || {
        let limit = thread_rng().gen_range(1..=2);
        let pool = pool(limit);
        let now = Arc::new(AtomicUsize::new(0));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let waiter = wait_somehow(pool.clone(), Arc::clone(&now), limit);
                let pool = pool.clone();
                thread::spawn(move || {
                    block_on(async {
                        if let Some(left) = pool.run(waiter).await.unwrap() {
                            left.await.unwrap();
                        }
                    })
                })
            })
            .collect();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// Given seven items, some of which pause, and two or four at a time, where of four one is taken ahead, then all results come, in order,
/// or as they end; and a consumer
/// that stops early stops the rest.
#[test]
fn a_fan_out_gives_every_result() {
    super::check(10_000, || {
        let (ordered, most) = (thread_rng().gen_range(0..2) == 0, thread_rng().gen_range(0..10usize));
        let items = fan_out(0..7u32, 2 * thread_rng().gen_range(1..=2usize));
        let items = if ordered { items.ordered() } else { items };
        let results = items.map(|n| async move {
            if n % 2 == 0 {
                pause().await;
            }
            n
        });
        let mut got: Vec<_> = block_on(results.map(Result::unwrap).take(most).collect());
        assert_eq!(got.len(), most.min(7));
        if !ordered {
            got.sort_unstable();
            got.dedup();
            assert_eq!(got.len(), most.min(7));
        } else {
            assert_eq!(got, (0..most.min(7) as u32).collect::<Vec<_>>());
        }
    });
}

/// Lets a waiter in when it is dropped.
struct Gone(Arc<Semaphore>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

/// Given items that run at once, of which one fails while the source still gives others, and a consumer that does not look, then
/// the source and the items that would never end are dropped, the one that is taken ahead at a limit of four as well.
#[test]
fn a_failure_drops_the_running_items_before_a_consumer_looks() {
    super::check(10_000, || {
        let (ordered, gone) = (thread_rng().gen_range(0..2) == 0, Arc::new(Semaphore::new(0)));
        let items = fan_out(0..6u32, thread_rng().gen_range(3..=4usize));
        let held = Arc::new(Gone(Arc::clone(&gone)));
        let items = if ordered { items.ordered() } else { items };
        let fails = if ordered { 0 } else { thread_rng().gen_range(0..3) };
        let mut results = items.try_map(move |n| {
            let held = Arc::clone(&held);
            async move {
                pause().await;
                if n == fails {
                    return Err(n);
                }
                let _held = held;
                std::future::pending::<Result<(), _>>().await
            }
        });
        block_on(async {
            gone.acquire().await.unwrap().forget();
            assert_eq!(results.next().await.unwrap().unwrap_err().into_error(), Some(fails));
        });
    });
}

/// Given a source that panics while items run, or one is ahead, then these give their results. The panic is one more result, the last if
/// they come in order.
#[test]
fn a_source_that_panics_beside_running_items_leaves_them_their_results() {
    super::check(10_000, || {
        let (ordered, good) = (thread_rng().gen_range(0..2) == 0, thread_rng().gen_range(0..6u32));
        let source = (0..=good).inspect(move |n| {
            if *n == good {
                resume_unwind(Box::new(()));
            }
        });
        let items = fan_out(source, 2 * thread_rng().gen_range(1..=2usize));
        let items = if ordered { items.ordered() } else { items };
        let results = items.map(|n| async move {
            if n % 2 == 0 {
                pause().await;
            }
            n
        });
        let mut results: Vec<_> = block_on(results.collect());
        if ordered {
            assert!(matches!(results.pop(), Some(Err(TaskError::Panicked(_)))));
        }
        let (mut good_ones, panics): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(panics.len(), usize::from(!ordered));
        if !ordered {
            good_ones.sort_unstable_by_key(|result| *result.as_ref().unwrap());
        }
        assert!(good_ones.into_iter().map(Result::unwrap).eq(0..good));
    });
}

/// Given three members of a group that run at once, one of which fails while others are being submitted, while the
/// group is not polled, then all of them end: those that would never are dropped.
#[test]
fn a_failure_beside_a_submission_drops_the_running_tasks() {
    super::check(10_000, || {
        let pool = pool(3);
        let mut group = pool.group::<(), usize>();
        let fails = thread_rng().gen_range(0..3);
        block_on(async {
            for n in 0..3 {
                let task = async move {
                    pause().await;
                    if n == fails {
                        return Err(n);
                    }
                    std::future::pending().await
                };
                group.submit(task).await.unwrap();
            }
            assert!(pool.wait_idle().await);
            assert_eq!(group.join().await.unwrap_err().into_error(), Some(fails));
        });
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// Given a closed gate, and a runner that takes the task while that is cancelled, or the pool aborted, then its handle learns it,
/// and the runner goes.
#[test]
fn a_task_at_a_closed_gate_is_taken_out() {
    super::check(10_000, || {
        let closed = Policy::new(Semaphore::new(0));
        let builder = TaskPool::builder(1).on(&ManualClock::new());
        let pool = builder.admit_by(closed).build().unwrap();
        let handle = pool.try_submit(async {}).unwrap();
        // The runner is a task of the model, which may run now.
        block_on(pause());
        if thread_rng().gen_bool(0.5) {
            assert!(handle.cancel());
            assert!(matches!(block_on(handle), Err(TaskError::Cancelled)));
        } else {
            let report = pool.abort();
            assert_eq!((report.unstarted.len(), report.running), (1, 0));
            drop(report);
            assert!(matches!(block_on(handle), Err(TaskError::Abandoned)));
        }
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// Given a task that asks for more than there is, and one behind it that fits, when the first is cancelled at any moment, then the
/// other runs.
#[test]
fn a_task_behind_one_that_is_cancelled_at_the_gate_runs() {
    super::check(10_000, || {
        let permits = Arc::new(Semaphore::new(2));
        let builder = TaskPool::builder(2).on(&ManualClock::new());
        let pool = builder.admit_by(Policy::new(Arc::clone(&permits))).build().unwrap();
        let held = permits.try_acquire().unwrap();
        let heavy = pool.ask(2).try_submit(async {}).unwrap();
        let light = pool.try_submit(async { 7 }).unwrap();
        let canceller = thread::spawn(move || assert!(heavy.cancel()));
        assert_eq!(block_on(light).unwrap(), 7);
        canceller.join().unwrap();
        drop(held);
        assert!(block_on(pool.shutdown(LONG)).is_clean());
        assert_eq!(permits.available_permits(), 2);
    });
}

/// Given tasks that wait for a task of their own, and are cancelled, while the limit falls and rises, then each ends, and the slots are
/// as before.
#[test]
fn a_lent_slot_comes_back() {
    super::check(10_000, || {
        let pool = pool(1);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let here = pool.clone();
                let cancels = thread_rng().gen_bool(0.5);
                let waits = async move {
                    let inner = here.submit(pause()).await.unwrap();
                    inner.await.unwrap();
                };
                let pool = pool.clone();
                thread::spawn(move || {
                    block_on(async {
                        let waiter = pool.submit(waits).await.unwrap();
                        if cancels {
                            pause().await;
                            waiter.cancel();
                        }
                        match waiter.await {
                            Ok(()) => {}
                            Err(TaskError::Aborted | TaskError::Cancelled) => assert!(cancels),
                            Err(why) => panic!("{why}"),
                        }
                    })
                })
            })
            .collect();
        pool.set_limit(2).unwrap();
        pool.set_limit(1).unwrap();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert!(block_on(pool.wait_idle()));
        // One slot: of two tasks the second runs behind the first.
        let now = Arc::new(AtomicUsize::new(0));
        let [first, second] = [(); 2].map(|()| pool.try_submit(counted(Arc::clone(&now), 1)).unwrap());
        block_on(async {
            first.await.unwrap();
            second.await.unwrap();
        });
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// Given a policy of one at a time, and tasks of which one submits another and one is cancelled, while the pool is shut down, then each has run once, or its handle learns why not, and every permit is back.
#[test]
fn every_task_behind_a_gate_is_accounted_for_once() {
    super::check(10_000, || {
        let (gate, slots) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(2)));
        let builder = TaskPool::builder(2).max_queue(4).on(&ManualClock::new());
        let builder = builder.slots(Arc::clone(&slots));
        let pool = builder.admit_by(Policy::new(Arc::clone(&gate))).build().unwrap();
        let ran = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let task = |n: usize| {
            let ran = Arc::clone(&ran[n]);
            async move {
                ran.fetch_add(1, Ordering::SeqCst);
                pause().await;
            }
        };
        let here = pool.clone();
        let (outer, inner) = (task(0), task(1));
        let outer = pool.try_submit(async move {
            outer.await;
            here.try_submit(inner).ok()
        });
        let (outer, other) = (outer.unwrap(), pool.try_submit(task(2)).unwrap());
        let canceller = thread::spawn(move || {
            let cancelled = thread_rng().gen_bool(0.5) && other.cancel();
            (cancelled, block_on(other))
        });
        let ends = pool.clone();
        let ender = thread::spawn(move || drop(block_on(ends.shutdown(Duration::ZERO))));
        let (cancelled, other) = canceller.join().unwrap();
        let (outer, inner) = match block_on(outer) {
            Ok(inner) => (Ok(()), inner.map(block_on)),
            Err(why) => (Err(why), None),
        };
        ender.join().unwrap();
        assert!(block_on(pool.shutdown(LONG)).is_clean());
        let ran = ran.map(|ran| ran.load(Ordering::SeqCst));
        for (n, outcome) in [Some(outer), inner, Some(other)].into_iter().enumerate() {
            let times = match outcome {
                Some(Ok(())) | Some(Err(TaskError::Aborted)) => 1,
                None | Some(Err(TaskError::Cancelled | TaskError::Abandoned)) => 0,
                Some(Err(why)) => panic!("{why}"),
            };
            // An aborted task has started, though it need not have been polled.
            assert!(
                ran[n] == times || (n == 2 && cancelled && ran[n] < times),
                "{ran:?} {n}"
            );
        }
        assert_eq!((gate.available_permits(), slots.available_permits()), (1, 2));
    });
}

/// Given a runner that takes a task beside an abort, then the task is listed, or it has begun.
#[test]
fn an_abort_beside_the_start_lists_the_task_or_finds_it_begun() {
    super::check(10_000, || {
        let pool = pool(1);
        let ran = Arc::new(AtomicUsize::new(0));
        let mark = Arc::clone(&ran);
        let task = async move {
            mark.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        };
        let handle = pool.try_submit(task).unwrap();
        block_on(pause());
        let report = pool.abort();
        let listed = report.unstarted.len();
        drop(report);
        let begun = match block_on(handle) {
            Err(TaskError::Aborted) => 1,
            Err(TaskError::Abandoned) => 0,
            other => panic!("{other:?}"),
        };
        assert_eq!((begun, listed), (ran.load(Ordering::SeqCst), 1 - begun));
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}

/// Given a group of which one task runs at a time, that is waited for in a task or from outside, beside other tasks, an abort, or a resize,
/// then no two of its tasks run at once, and each ends.
#[test]
fn a_group_with_a_limit_runs_its_tasks_one_by_one() {
    super::check(20_000, || {
        let pool = pool(2);
        let here = pool.clone();
        let group = async move {
            let mut group = here.group::<(), ()>().limit(1).unwrap();
            let now = Arc::new(AtomicUsize::new(0));
            for _ in 0..3 {
                let now = Arc::clone(&now);
                let task = async move {
                    assert_eq!(now.fetch_add(1, Ordering::SeqCst), 0, "two of the group run at once");
                    pause().await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                let _ = group.submit(task).await;
            }
            for end in group.join_all().await {
                assert!(!matches!(end, Err(GroupError::Task(TaskError::Panicked(_)))), "{end:?}");
            }
        };
        let inside = thread_rng().gen_range(0..2) == 0;
        let other = pool.clone();
        let beside = thread::spawn(move || match thread_rng().gen_range(0..3) {
            0 => drop(other.abort()),
            1 => other.set_limit(thread_rng().gen_range(1..=3)).unwrap(),
            _ => drop(block_on(other.submit(pause()))),
        });
        if inside {
            if let Ok(outer) = block_on(pool.submit(group)) {
                let ended = block_on(outer);
                assert!(!matches!(ended, Err(TaskError::Panicked(_))), "{ended:?}");
            }
        } else {
            block_on(group);
        }
        beside.join().unwrap();
        assert!(block_on(pool.shutdown(LONG)).is_clean());
    });
}
