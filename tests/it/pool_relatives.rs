//! Tasks that wait for a task of another pool of their family while all slots of that one are taken.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::pool::{PoolBuilder, TaskPool};
use tollgate::{TaskHandle, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

fn workers(n: usize) -> PoolBuilder {
    WorkerPool::builder().workers(n)
}

/// Tells when it is woken.
struct Bell(Mutex<Sender<()>>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

fn bell() -> (Waker, Receiver<()>) {
    let (rings, rung) = mpsc::channel();
    (Waker::from(Arc::new(Bell(Mutex::new(rings)))), rung)
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Two threads, and a sub-pool for one task at a time, which a task of the pool runs in passing until it is let go.
struct Family {
    pool: WorkerPool,
    small: WorkerPool,
    passing: TaskHandle<()>,
    release: Sender<()>,
    /// Ends the task that has run the other in passing.
    end: Sender<()>,
}

impl Family {
    fn new() -> Self {
        let pool = workers(2).build().unwrap();
        let small = pool.sub_pool(workers(1).queue(1)).unwrap();
        let (started, has_started) = mpsc::channel();
        let (free, freed) = mpsc::channel::<()>();
        let tell = started.clone();
        // Until then nobody but the task itself can run what it submits.
        let blocks = pool.submit(move || {
            tell.send(()).unwrap();
            freed.recv().unwrap();
        });
        has_started.recv_timeout(LONG).unwrap();
        let (release, released) = mpsc::channel::<()>();
        let (end, ended) = mpsc::channel::<()>();
        let below = small.clone();
        let passing = pool.submit(move || {
            let inner = below.submit(move || {
                started.send(()).unwrap();
                released.recv().unwrap();
            });
            inner.unwrap().join().unwrap();
            // It goes on for as long as it likes.
            ended.recv().unwrap();
        });
        has_started.recv_timeout(LONG).unwrap();
        free.send(()).unwrap();
        blocks.unwrap().join().unwrap();
        Self {
            pool,
            small,
            passing: passing.unwrap(),
            release,
            end,
        }
    }

    fn end(self) {
        self.end.send(()).unwrap();
        self.passing.join().unwrap();
        assert!(self.pool.shutdown(LONG).is_clean());
    }
}

/// Given a pool both of whose threads are busy, one of them with a task below in passing and the other waiting for the
/// next task below, when the first has ended, then the other runs that itself: nobody else could.
#[test]
fn who_waits_below_runs_the_task_when_a_slot_is_given_up() {
    let family = Family::new();
    let (small, (looked, has_looked)) = (family.small.clone(), mpsc::channel());
    let waits = family.pool.submit(move || {
        let mut handle = pin!(small.submit(|| 7).unwrap());
        let (waker, rung) = bell();
        assert!(poll(handle.as_mut(), &waker).is_pending());
        looked.send(()).unwrap();
        rung.recv_timeout(LONG).expect("it is called");
        poll(handle, &waker)
    });
    has_looked.recv_timeout(LONG).unwrap();
    family.release.send(()).unwrap();
    let Poll::Ready(result) = waits.unwrap().join().unwrap() else {
        panic!("the task waits")
    };
    assert_eq!(result.unwrap(), 7);
    family.end();
}

/// Given the same where the queue below is full, then what was to wait for room runs at once.
#[test]
fn who_waits_for_room_below_runs_the_task_when_a_slot_is_given_up() {
    let family = Family::new();
    let (small, (looked, has_looked)) = (family.small.clone(), mpsc::channel());
    let waits = family.pool.submit(move || {
        let first = small.submit(|| 1).unwrap();
        let mut second = pin!(small.submit_async(|| 2));
        let (waker, rung) = bell();
        assert!(poll(second.as_mut(), &waker).is_pending());
        looked.send(()).unwrap();
        rung.recv_timeout(LONG).expect("it is called");
        let Poll::Ready(second) = poll(second, &waker) else {
            panic!("the submission waits")
        };
        let second = second.unwrap();
        assert!(second.is_finished() && !first.is_finished());
        first.join().unwrap() + second.join().unwrap()
    });
    has_looked.recv_timeout(LONG).unwrap();
    family.release.send(()).unwrap();
    assert_eq!(waits.unwrap().join().unwrap(), 3);
    family.end();
}

/// Given pools of async tasks in the same state, then the same.
#[tokio::test]
async fn a_task_that_waits_below_runs_what_it_waits_for_when_a_slot_is_given_up() {
    let pool = TaskPool::builder(2).build().unwrap();
    let small = pool.sub_pool(TaskPool::builder(1).queue(1)).unwrap();
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let below = small.clone();
    let passing = pool.submit(async move {
        let inner = below.submit(async { released.await.unwrap() }).await.unwrap();
        inner.await.unwrap();
        ended.await.unwrap();
    });
    let passing = passing.await.unwrap();
    while small.slots().available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let waits = pool.submit(async move {
        let first = small.submit(async { 1 }).await.unwrap();
        let second = small.submit(async { 2 }).await.unwrap();
        // It found no room, and so had a slot.
        assert!(second.is_finished() && !first.is_finished());
        first.await.unwrap() + second.await.unwrap()
    });
    let waits = waits.await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    assert_eq!(
        tokio::time::timeout(LONG, waits).await.expect("it is called").unwrap(),
        3
    );
    end.send(()).unwrap();
    passing.await.unwrap();
    assert!(pool.shutdown(LONG).await.is_clean());
}
