//! What is cancelled takes no room: whoever finds a queue full finds it full of tasks that wait.

use std::time::Duration;
use tollgate::pool::{PoolBuilder, TaskPool, Turned};
use tollgate::{JoinHandle, WorkerPool};

use crate::pool::Busy;

const LONG: Duration = Duration::from_secs(60);

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

/// Given a queue whose weight one of three tasks takes, when that is cancelled, then what comes next has the room, whatever
/// there was at the cancel.
#[test]
fn a_cancelled_task_gives_its_weight_to_the_next() {
    let pool = one().queue_weight(10).build().unwrap();
    let busy = Busy::on(&pool);
    let tasks = [4, 3, 2].map(|weight| pool.weight(weight).submit(|| ()).unwrap());
    assert!(tasks[0].cancel());
    let next = pool.weight(5).try_submit(|| 7).unwrap();
    assert_eq!(pool.weight(1).try_submit(|| ()).unwrap_err().reason, Turned::Full);
    busy.end();
    assert_eq!(next.join().unwrap(), 7);
    assert!(pool.shutdown(LONG).is_clean());
}

/// The same for places, which others have filled up after the cancel.
#[test]
fn a_cancelled_task_gives_its_place_to_the_next() {
    let pool = one().queue(4).build().unwrap();
    let busy = Busy::on(&pool);
    let tasks = [(); 3].map(|()| pool.submit(|| ()).unwrap());
    assert!(tasks[0].cancel());
    let fourth = pool.submit(|| 4).unwrap();
    let fifth = pool.try_submit(|| 5).unwrap();
    assert_eq!(pool.try_submit(|| ()).unwrap_err().reason, Turned::Full);
    busy.end();
    assert_eq!((fourth.join().unwrap(), fifth.join().unwrap()), (4, 5));
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a worker that has taken several tasks at once and is busy with the first, when one of the others is cancelled,
/// then that one's place is free as well.
#[test]
fn a_task_that_is_cancelled_where_a_worker_keeps_it_gives_its_place_to_the_next() {
    let pool = one().queue(32).build().unwrap();
    let first = Busy::on(&pool);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (start, started) = std::sync::mpsc::channel();
    let second = pool.submit(move || {
        start.send(()).unwrap();
        let _ = released.recv();
    });
    let tasks: Vec<JoinHandle<()>> = (0..30).map(|_| pool.submit(|| ()).unwrap()).collect();
    first.end();
    started.recv_timeout(LONG).unwrap();
    // The first of them lies with the worker.
    assert!(tasks[0].cancel());
    while let Ok(handle) = pool.try_submit(|| ()) {
        drop(handle);
        assert!(pool.stats().queued <= 32);
    }
    // All that waits is live.
    assert_eq!(pool.stats().queued, 32);
    drop(release);
    second.unwrap().join().unwrap();
    assert!(pool.shutdown(LONG).is_clean());
    // The busy ones, those that were not cancelled, and what had room after that.
    assert_eq!(pool.stats().finished, 2 + 29 + 3);
}

#[tokio::test]
async fn a_cancelled_async_task_gives_its_room_to_the_next() {
    let builder = TaskPool::builder(1).queue(4).queue_weight(10);
    let pool = builder.build().unwrap();
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let (start, started) = tokio::sync::oneshot::channel();
    let busy = pool.try_submit(async move {
        start.send(()).unwrap();
        let _ = released.await;
    });
    started.await.unwrap();
    let heavy = |weight| pool.weight(weight).try_submit(async {});
    let tasks = [4, 3, 2].map(|weight| heavy(weight).unwrap());
    assert!(tasks[0].cancel());
    let next = heavy(5).unwrap();
    assert_eq!(heavy(1).unwrap_err().reason, Turned::Full);
    assert!(next.cancel());
    drop(heavy(1).unwrap());
    let last = heavy(1).unwrap();
    assert_eq!(heavy(1).unwrap_err().reason, Turned::Full);
    drop(release);
    last.await.unwrap();
    busy.unwrap().await.unwrap();
    assert!(pool.shutdown(LONG).await.is_clean());
}
