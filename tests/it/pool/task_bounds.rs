//! Waits for idleness and for the end of a pool of async tasks that are given up.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use tollgate::ManualClock;
use tollgate::pool::{TaskHandle, TaskPool};

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

/// Does nothing.
struct Idler;

impl Wake for Idler {
    fn wake(self: Arc<Self>) {}
}

/// Given a pool that is never idle, when a wait for that is given up, then nothing of the waiter is kept.
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
