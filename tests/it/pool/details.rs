//! Small things that pools promise: bounds that are just met, numbers, ends, and what errors are made of.

use crate::pool::threads::Busy;
use std::error::Error;
use std::future::pending;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::task::yield_now;
use tollgate::pool::{GroupError, MAX_QUEUE, MAX_WORKERS, TaskError, TaskPool};
use tollgate::{Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[test]
fn threads_have_numbers_of_their_own_and_end_with_the_last_handle() {
    let (tell, told) = mpsc::channel();
    let pool = WorkerPool::builder().workers(3).spawn_with(move |worker| {
        let tell = tell.clone();
        thread::spawn(move || {
            let index = worker.index();
            worker.run();
            tell.send(index).unwrap();
        });
        Ok(())
    });
    let pool = pool.build().unwrap();
    assert_eq!(pool.stats().limit, 3);
    drop(pool.clone());
    assert_eq!(pool.run(|| 1).unwrap(), 1);
    drop(pool);
    let mut ended: Vec<_> = (0..3).map(|_| told.recv_timeout(LONG).unwrap()).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2]);
}

#[tokio::test]
async fn runners_end_with_the_last_handle() {
    let pool = TaskPool::builder(2).build().unwrap();
    assert_eq!(pool.run(async { 1 }).await.unwrap(), 1);
    settle().await;
    assert_eq!((pool.stats().limit, pool.stats().idle, pool.stats().threads), (2, 1, 1));
    let metrics = tokio::runtime::Handle::current().metrics();
    assert_eq!(metrics.num_alive_tasks(), 1);
    drop(pool);
    settle().await;
    assert_eq!(metrics.num_alive_tasks(), 0);
}

#[tokio::test]
async fn a_group_of_tasks_is_cancelled() {
    let pool = TaskPool::builder(1).build().unwrap();
    let mut group = pool.group();
    for _ in 0..3 {
        group.submit(pending::<Result<(), ()>>()).await.unwrap();
    }
    settle().await;
    group.cancel();
    let ends = group.join_all().await;
    assert!(
        ends.iter()
            .all(|end| matches!(end, Err(GroupError::Task(TaskError::Cancelled))))
    );
    assert_eq!(ends.len(), 3);
}

#[test]
fn errors_say_what_they_come_of() {
    let fails = WorkerPool::builder().spawn_with(|_| Err(io::Error::other("no thread today")));
    let error = fails.build().unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), "no thread today");
    let error = WorkerPool::builder().workers(0).build().unwrap_err();
    assert!(error.source().is_none());

    /// An error that comes of another.
    #[derive(Debug)]
    struct Outer(io::Error);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }
    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }
    let pool = WorkerPool::builder().workers(1).build().unwrap();
    let mut group = pool.group::<(), _>();
    group.submit(|| Err(Outer(io::Error::other("inner")))).unwrap();
    assert_eq!(group.join().unwrap_err().source().unwrap().to_string(), "inner");
}

#[tokio::test]
async fn bounds_that_are_just_met_are_met() {
    assert!(TaskPool::builder(MAX_WORKERS).max_queue(MAX_QUEUE).build().is_ok());
    assert!(TaskPool::builder(MAX_WORKERS + 1).build().is_err());
    assert!(TaskPool::builder(1).max_queue(MAX_QUEUE + 1).build().is_err());
    let pool = WorkerPool::builder()
        .workers(1)
        .max_queue(2)
        .max_queue_weight(5)
        .build()
        .unwrap();
    let busy = Busy::on(&pool);
    let fits = pool.weight(5).try_submit(|| 5).unwrap();
    let over = pool.weight(6).try_submit(|| 6).unwrap_err();
    assert_eq!(over.to_string(), "a task of weight 6 does not fit a queue that holds 5");
    busy.end();
    assert_eq!(fits.join().unwrap(), 5);
    assert_eq!(pool.weight(5).run_one(), 5);
}

/// A helper that reads like a method.
trait RunOne {
    fn run_one(self) -> u32;
}

impl RunOne for WorkerPool {
    fn run_one(self) -> u32 {
        self.submit(|| 5).unwrap().join().unwrap()
    }
}

/// Given a pool without slots, then what is handed back was never started, and a report of it is not clean; a caller that
/// runs it and stops doing so has dropped it.
#[tokio::test]
async fn a_returned_task_is_dropped_with_its_runner() {
    let none = Arc::new(Semaphore::new(0));
    let pool = TaskPool::builder(1).slots(none).build().unwrap();
    let handle = pool.submit(pending::<()>()).await.unwrap();
    let report = pool.abort();
    assert!(!report.is_clean());
    assert_eq!(report.running, 0);
    let task = report.unstarted.into_iter().next().unwrap();
    let mut running = Box::pin(task.run());
    assert!(futures::poll!(&mut running).is_pending());
    drop(running);
    assert!(matches!(handle.try_join(), Ok(Err(TaskError::Aborted))));
}
