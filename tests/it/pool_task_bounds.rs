//! Pools of async tasks at their bounds: deadlines to the tick, pools that shrink over several levels, and who goes first.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate::ManualClock;
use tollgate::pool::{TaskError, TaskHandle, TaskPool};

const LONG: Duration = Duration::from_secs(60);

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn gated(pool: &TaskPool) -> (oneshot::Sender<()>, TaskHandle<()>) {
    let (open, gate) = oneshot::channel();
    let handle = pool.submit(async { gate.await.unwrap() }).await.unwrap();
    settle().await;
    (open, handle)
}

/// A task may start at its deadline, and no later, awaited by a task of the pool or not.
#[tokio::test]
async fn a_deadline_holds_to_the_tick() {
    for (late, is_awaited) in [(false, false), (true, false), (false, true), (true, true)] {
        let clock = ManualClock::new();
        let pool = TaskPool::builder(1).on(&clock).build().unwrap();
        let (inner, timer) = (pool.clone(), clock.clone());
        let outer = pool.submit(async move {
            let within = Duration::from_secs(1);
            let task = inner.deadline(within).submit(async {}).await.unwrap();
            timer.advance(within);
            if late {
                timer.advance(Duration::from_micros(1));
            }
            if is_awaited { Ok(task.await) } else { Err(task) }
        });
        let started = match outer.await.unwrap().await.unwrap() {
            Ok(started) => started,
            Err(task) => task.await,
        };
        match started {
            Ok(()) => assert!(!late),
            Err(TaskError::Expired) => assert!(late),
            other => panic!("{other:?}"),
        }
        assert_eq!(pool.stats().expired, u64::from(late));
    }
}

/// In a task of the pool a shutdown does not wait.
#[tokio::test(start_paused = true)]
async fn a_shutdown_from_inside_does_not_wait() {
    let pool = TaskPool::builder(2).build().unwrap();
    let (inner, start) = (pool.clone(), Instant::now());
    let report = pool.run(async move { inner.shutdown(LONG).await }).await.unwrap();
    assert_eq!((report.running > 0, start.elapsed()), (true, Duration::ZERO));
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given three tasks in the queue, when the second is awaited by a task of the pool, then it alone starts on the slot that this lends.
#[tokio::test]
async fn what_is_awaited_starts_before_what_is_not() {
    let pool = TaskPool::builder(1).build().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |n| {
        let order = Arc::clone(&order);
        async move {
            tokio::task::yield_now().await;
            order.lock().unwrap().push(n);
        }
    };
    let (awaited, first, last) = (note("awaited"), note("first"), note("last"));
    let inner = pool.clone();
    let outer = pool.submit(async move {
        let first = inner.submit(first).await.unwrap();
        let awaited = inner.submit(awaited).await.unwrap();
        let last = inner.submit(last).await.unwrap();
        awaited.await.unwrap();
        [first, last]
    });
    for task in outer.await.unwrap().await.unwrap() {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), ["awaited", "first", "last"]);
}

/// Does nothing.
struct Idler;

impl Wake for Idler {
    fn wake(self: Arc<Self>) {}
}

/// Given a pool that is never idle, when a wait for that is given up, then nothing of whoever waited is kept.
#[tokio::test]
async fn a_wait_for_idleness_that_is_given_up_leaves_nothing() {
    let pool = TaskPool::builder(1).build().unwrap();
    let (end, busy) = gated(&pool).await;
    let idler = Arc::new(Idler);
    let waker = Waker::from(Arc::clone(&idler));
    for bounded in [false, true] {
        let mut wait: Pin<Box<dyn Future<Output = bool>>> = if bounded {
            Box::pin(pool.wait_idle_timeout(LONG))
        } else {
            Box::pin(pool.wait_idle())
        };
        for _ in 0..3 {
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(Arc::strong_count(&idler) > 2);
        drop(wait);
        assert_eq!(Arc::strong_count(&idler), 2);
    }
    end.send(()).unwrap();
    busy.await.unwrap();
    assert!(pool.wait_idle().await);
}

/// Given a task that does not end, when waits for the end are given up or time out, then nothing of them is kept.
#[tokio::test]
async fn a_wait_for_the_end_that_is_given_up_leaves_nothing() {
    let clock = ManualClock::new();
    let pool = TaskPool::builder(1).on(&clock).build().unwrap();
    let (end, busy) = gated(&pool).await;
    let idler = Arc::new(Idler);
    let waker = Waker::from(Arc::clone(&idler));
    for in_time in [false, true] {
        let mut wait = Box::pin(pool.shutdown(LONG));
        for _ in 0..3 {
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(Arc::strong_count(&idler) > 2);
        if !in_time {
            clock.advance(LONG);
            match wait.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(report) => assert_eq!(report.running, 1),
                Poll::Pending => panic!("its time is over"),
            }
        }
        drop(wait);
        assert_eq!(Arc::strong_count(&idler), 2);
    }
    let mut ends = Box::pin(pool.shutdown(LONG));
    assert!(futures::poll!(&mut ends).is_pending());
    end.send(()).unwrap();
    busy.await.unwrap();
    assert!(ends.await.is_clean());
}
