//! Tasks of a task pool that wait for others: they lend their slots, and the others go on whatever becomes of the handles.

use futures::StreamExt;
use futures::future::{join_all, poll_fn};
use futures::stream::FuturesUnordered;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tollgate::pool::{Overflow, TaskHandle, TaskPool};
use tollgate::{Policy, Semaphore};

const MOMENT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(60);

/// What a program comes to: one that stands still does not, and the clock runs on by itself.
async fn end_of<F: Future>(program: F) -> F::Output {
    timeout(LONG, program).await.expect("it stands still")
}

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

fn pool(limit: usize) -> TaskPool {
    TaskPool::builder(limit).build().unwrap()
}

/// Runs a program as a task of a pool.
async fn in_task<F>(pool: &TaskPool, program: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let task = pool.submit(program).await.unwrap();
    end_of(task).await.unwrap()
}

/// A task that waits to be let go.
async fn gated(pool: &TaskPool) -> (oneshot::Sender<()>, TaskHandle<u32>) {
    let (open, gate) = oneshot::channel();
    let task = async move {
        gate.await.unwrap();
        7
    };
    (open, pool.submit(task).await.unwrap())
}

/// Counts how many are inside at once.
#[derive(Clone, Default)]
struct Gauge(Arc<(AtomicUsize, AtomicUsize)>);

impl Gauge {
    async fn inside<F: Future>(self, work: F) -> F::Output {
        let (now, peak) = &*self.0;
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let output = work.await;
        now.fetch_sub(1, Ordering::SeqCst);
        output
    }

    fn peak(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

/// Given a pool of one whose task has polled a handle under a time-out and kept it, then it can await another first.
#[tokio::test(start_paused = true)]
async fn a_handle_that_is_kept_holds_up_no_other() {
    let pool = pool(1);
    let here = pool.clone();
    let program = async move {
        let mut first = here.submit(sleep(10 * MOMENT)).await.unwrap();
        let second = here.submit(async { 2 }).await.unwrap();
        assert!(timeout(MOMENT, &mut first).await.is_err());
        let two = second.await.unwrap();
        first.await.unwrap();
        two
    };
    assert_eq!(in_task(&pool, program).await, 2);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given one that waits for what its waiter does after awaiting another, and so keeps the slot that its waiter has lent, then the
/// other needs one more slot, and has it.
#[tokio::test(start_paused = true)]
async fn a_kept_handle_may_wait_for_what_comes_after_the_next() {
    let pool = pool(2);
    let here = pool.clone();
    let program = async move {
        let (open, mut first) = gated(&here).await;
        assert!(timeout(MOMENT, &mut first).await.is_err());
        let two = here.run(async { 2 }).await.unwrap();
        open.send(()).unwrap();
        two + first.await.unwrap()
    };
    assert_eq!(in_task(&pool, program).await, 9);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// The same where the first was awaited by a group.
#[tokio::test(start_paused = true)]
async fn a_group_that_is_kept_holds_up_no_other() {
    let pool = pool(2);
    let here = pool.clone();
    let program = async move {
        let mut group = here.group::<_, ()>();
        let (open, gate) = oneshot::channel::<()>();
        group
            .submit(async move {
                gate.await.unwrap();
                Ok(1)
            })
            .await
            .unwrap();
        group.submit(async { Ok(2) }).await.unwrap();
        assert!(timeout(MOMENT, group.next()).await.is_err());
        let four = here.run(async { 4 }).await.unwrap();
        open.send(()).unwrap();
        four + group.join().await.unwrap().into_iter().sum::<u32>()
    };
    assert_eq!(in_task(&pool, program).await, 7);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given a task on the slot of its waiter, when the waiter does something else, then the task goes on: be it that the handle is
/// kept, or that the future is gone which polled it.
#[tokio::test(start_paused = true)]
async fn a_task_on_a_lent_slot_goes_on_while_its_waiter_does_something_else() {
    for through_others in [false, true] {
        let pool = pool(1);
        let here = pool.clone();
        let (done, told) = oneshot::channel::<()>();
        let outer = pool
            .submit(async move {
                let mut inner = here.submit(sleep(5 * MOMENT)).await.unwrap();
                if through_others {
                    let mut others: FuturesUnordered<_> = [&mut inner].into_iter().collect();
                    assert!(timeout(MOMENT, others.next()).await.is_err());
                } else {
                    tokio::select! {
                        _ = &mut inner => panic!("it takes longer"),
                        () = sleep(MOMENT) => {}
                    }
                }
                told.await.unwrap();
                assert!(inner.is_finished());
                inner.await.unwrap();
            })
            .await
            .unwrap();
        sleep(6 * MOMENT).await;
        assert_eq!((pool.stats().finished, pool.stats().unfinished), (1, 1));
        done.send(()).unwrap();
        end_of(outer).await.unwrap();
        assert!(pool.shutdown(LONG).await.is_clean());
    }
}

/// Given a task that was awaited, when its waiter ends and hands the handle to a stranger, then it runs within the bound.
#[tokio::test(start_paused = true)]
async fn a_handle_that_is_handed_on_stays_within_the_bound() {
    let pool = pool(1);
    let gauge = Gauge::default();
    let (here, inner) = (pool.clone(), gauge.clone());
    let handle = in_task(&pool, async move {
        let mut handle = here.submit(inner.inside(sleep(MOMENT))).await.unwrap();
        assert!(futures::poll!(&mut handle).is_pending());
        Some(handle)
    });
    let handle = handle.await.unwrap();
    let other = pool.submit(gauge.clone().inside(sleep(MOMENT))).await.unwrap();
    let (first, second) = end_of(async { tokio::join!(handle, other) }).await;
    first.unwrap();
    second.unwrap();
    assert_eq!(gauge.peak(), 1);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// The same where the waiter goes on: the task keeps the slot that it was lent, and the stranger does not run it.
#[tokio::test(start_paused = true)]
async fn a_task_whose_handle_is_awaited_elsewhere_keeps_the_lent_slot() {
    let pool = pool(1);
    let here = pool.clone();
    let (give, given) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let outer = pool
        .submit(async move {
            let (open, mut inner) = gated(&here).await;
            assert!(futures::poll!(&mut inner).is_pending());
            assert!(give.send((open, inner)).is_ok());
            released.await.unwrap();
        })
        .await
        .unwrap();
    let (open, inner) = given.await.unwrap();
    let polled_here = Arc::new(AtomicBool::new(false));
    let mut inner = pin!(inner);
    assert!(futures::poll!(inner.as_mut()).is_pending());
    let probe = Arc::clone(&polled_here);
    let next = pool
        .submit(async move { probe.store(true, Ordering::SeqCst) })
        .await
        .unwrap();
    open.send(()).unwrap();
    assert_eq!(end_of(inner).await.unwrap(), 7);
    assert!(!polled_here.load(Ordering::SeqCst), "the only slot is taken");
    release.send(()).unwrap();
    end_of(outer).await.unwrap();
    end_of(next).await.unwrap();
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given a chain of three in a pool of one, when the first awaits the third, for which the second has waited, then all end.
#[tokio::test(start_paused = true)]
async fn a_handle_may_come_from_a_task_below() {
    let pool = pool(1);
    let (here, below) = (pool.clone(), pool.clone());
    let program = async move {
        let (give, given) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        let second = async move {
            let (open, mut third) = gated(&below).await;
            assert!(futures::poll!(&mut third).is_pending());
            assert!(give.send((open, third)).is_ok());
            released.await.unwrap();
        };
        let second = here.submit(second).await.unwrap();
        let mut second = second;
        assert!(futures::poll!(&mut second).is_pending());
        let (open, mut third) = given.await.unwrap();
        yield_now().await;
        assert!(futures::poll!(&mut third).is_pending());
        open.send(()).unwrap();
        assert_eq!(third.await.unwrap(), 7);
        release.send(()).unwrap();
        second.await.unwrap();
    };
    in_task(&pool, program).await;
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given many that are awaited together in a pool of one, beside something that wakes their waiter all the time, and by a
/// future that polls only what was woken, then one of them runs at a time.
#[tokio::test(start_paused = true)]
async fn of_many_that_are_awaited_one_runs_at_a_time() {
    for unordered in [false, true] {
        let pool = TaskPool::builder(1).max_queue(100).build().unwrap();
        let gauge = Gauge::default();
        let (here, inner) = (pool.clone(), gauge.clone());
        let program = async move {
            let mut handles = Vec::new();
            for _ in 0..10 {
                handles.push(here.submit(inner.clone().inside(sleep(10 * MOMENT))).await.unwrap());
            }
            let all: Pin<Box<dyn Future<Output = usize> + Send>> = if unordered {
                Box::pin(
                    handles
                        .into_iter()
                        .collect::<FuturesUnordered<_>>()
                        .map(Result::unwrap)
                        .count(),
                )
            } else {
                Box::pin(async { join_all(handles).await.len() })
            };
            let ticks = async {
                loop {
                    sleep(MOMENT).await;
                }
            };
            tokio::select! {
                n = all => n,
                () = ticks => unreachable!(),
            }
        };
        assert_eq!(in_task(&pool, program).await, 10);
        assert_eq!(gauge.peak(), 1);
        assert!(pool.shutdown(LONG).await.is_clean());
    }
}

/// A task that is awaited and then cancelled, or whose handle is dropped, leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn an_awaited_task_ends_with_a_cancel_and_leaves_its_slot_free() {
    let pool = pool(1);
    let here = pool.clone();
    let program = async move {
        let (_open, mut first) = gated(&here).await;
        assert!(futures::poll!(&mut first).is_pending());
        assert!(first.cancel());
        assert_eq!(here.run(async { 2 }).await.unwrap(), 2);
        assert!(first.await.is_err());
        let (open, mut left) = gated(&here).await;
        assert!(futures::poll!(&mut left).is_pending());
        drop(left);
        yield_now().await;
        assert!(!open.is_closed());
        open
    };
    let open = in_task(&pool, program).await;
    settle().await;
    assert_eq!(pool.stats().unfinished, 1);
    open.send(()).unwrap();
    assert!(end_of(pool.wait_idle()).await);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// A task that wakes itself lets its waiter, and others, have their turns in between.
#[tokio::test(start_paused = true)]
async fn a_busy_task_on_a_lent_slot_yields() {
    let pool = pool(1);
    let here = pool.clone();
    let (stop, stopped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (sees, sets) = (Arc::clone(&stop), stop);
    let ended = Arc::clone(&stopped);
    let program = async move {
        let spins = async move {
            while !sees.load(Ordering::SeqCst) {
                yield_now().await;
            }
            ended.store(true, Ordering::SeqCst);
        };
        let mut inner = here.submit(spins).await.unwrap();
        assert!(futures::poll!(&mut inner).is_pending());
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            if polls == 100 {
                sets.store(true, Ordering::SeqCst);
            }
            cx.waker().wake_by_ref();
            if stopped.load(Ordering::SeqCst) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        inner.await.unwrap();
    };
    in_task(&pool, program).await;
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// A stage of a pipeline: its submitter has given the handle up, and ended, before the wait or during it.
#[tokio::test(start_paused = true)]
async fn permits_of_an_ended_submitter_block_no_join() {
    for during in [false, true] {
        let stage = TaskPool::builder(1).admit_by(Policy::new(Semaphore::new(1)));
        let (stage, free) = (stage.build().unwrap(), pool(2));
        let last = TaskPool::builder(1)
            .admit_by(Policy::new(Semaphore::new(1)))
            .build()
            .unwrap();
        let (go, gone) = oneshot::channel::<()>();
        let (open, gate) = oneshot::channel::<()>();
        let (below, end) = (free.clone(), last.clone());
        let first = stage.run(async move {
            let next = async move {
                gone.await.unwrap();
                end.submit(async { gate.await.unwrap() }).await.unwrap().await.unwrap();
            };
            let handle = below.submit(next).await.unwrap();
            if during {
                go.send(()).unwrap();
                settle().await;
                return (handle, None);
            }
            (handle, Some(go))
        });
        let (handle, go) = end_of(first).await.unwrap();
        drop(handle);
        if let Some(go) = go {
            go.send(()).unwrap();
            settle().await;
        }
        // A task that holds the permit of the last stage waits for one of the first, whose permit is free.
        let again = stage.clone();
        let waits = last.try_submit(async move { again.submit(async { 7 }).await.unwrap().await });
        open.send(()).unwrap();
        assert_eq!(end_of(waits.unwrap()).await.unwrap().unwrap(), 7);
    }
}

/// Given a task whose handle was awaited and given up by another task than its submitter, when that waits for it again, and a cycle of
/// permits would be closed, then one of the waits is refused.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_taken_up_again_is_judged_again() {
    let gated = [(); 2].map(|()| {
        let builder = TaskPool::builder(2).admit_by(Policy::new(Semaphore::new(1)));
        builder.build().unwrap()
    });
    let free = pool(2);
    let [p, q] = gated;
    // It waits for a task that needs the permit of the second pool.
    let of_q = q.clone();
    let below = free
        .submit(async move { of_q.submit(async {}).await.unwrap().await.is_err() })
        .await
        .unwrap();
    let (begin, begun) = oneshot::channel::<()>();
    let of_p = p.clone();
    let holds_q = q.try_submit(async move {
        begun.await.unwrap();
        of_p.submit(async {}).await.unwrap().await.is_err()
    });
    let holds_q = holds_q.unwrap();
    settle().await;
    let holds_p = p.try_submit(async move {
        let below = below.join_timeout(Duration::ZERO).await.unwrap_err();
        begin.send(()).unwrap();
        settle().await;
        below.await.is_err()
    });
    let refused = end_of(async { tokio::join!(holds_p.unwrap(), holds_q) }).await;
    assert!(refused.0.unwrap() || refused.1.unwrap(), "all wait for each other");
    for pool in [p, q, free] {
        assert!(pool.shutdown(LONG).await.is_clean());
    }
}

/// Given a task that runs one which a full queue has evicted, when that waits for a task of the pool of one, then the slot is lent.
#[tokio::test(start_paused = true)]
async fn a_future_run_within_a_task_waits_as_that_task() {
    let (give, given) = std::sync::mpsc::channel();
    let builder = TaskPool::builder(1).max_queue(1).overflow(Overflow::DropOldest);
    let pool = builder
        .on_discard(move |task| give.send(task).unwrap())
        .build()
        .unwrap();
    let here = pool.clone();
    let outer = pool.try_submit(async move {
        let below = here.clone();
        let first = here
            .try_submit(async move { below.try_submit(async { 7 }).unwrap().await.unwrap() })
            .unwrap();
        let second = here.try_submit(async {}).unwrap();
        drop(second);
        assert!(given.try_recv().unwrap().run().await);
        first.await.unwrap()
    });
    assert_eq!(end_of(outer.unwrap()).await.unwrap(), 7);
}
