//! Pools behind a policy: a task that is too late, or was cancelled, asks the policy for nothing.

use super::pool::Busy;
use std::time::Duration;
use tollgate::pool::{JoinHandle, TaskError};
use tollgate::{ManualClock, Policy, Quota, TokenBucket, WorkerPool};

/// A policy that lets three start now, and then one an hour.
fn three(clock: &ManualClock) -> Policy<TokenBucket> {
    Policy::new(TokenBucket::new(Quota::per_hour(1).burst(3)).on(clock))
}

/// Given three tokens, a task that runs, two that are too late behind it, and two more, when the first ends, then the last
/// two start as well.
#[test]
fn a_task_that_is_too_late_takes_no_token() {
    let clock = ManualClock::new();
    let pool = WorkerPool::builder().workers(1).on(&clock).admit_by(three(&clock));
    let pool = pool.build().unwrap();
    let busy = Busy::on(&pool);
    let soon = pool.deadline(Duration::from_millis(1));
    let late: Vec<JoinHandle<()>> = (0..2)
        .map(|_| soon.submit(|| unreachable!("it is late")).unwrap())
        .collect();
    let live: Vec<JoinHandle<()>> = (0..2).map(|_| pool.submit(|| ()).unwrap()).collect();
    clock.advance(Duration::from_millis(2));
    busy.end();
    late.into_iter()
        .for_each(|late| assert!(matches!(late.join(), Err(TaskError::Expired))));
    live.into_iter().for_each(|live| live.join().unwrap());
    assert_eq!(pool.stats().expired, 2);
}

/// The same for two that were cancelled while the queue was long.
#[test]
fn a_task_that_was_cancelled_takes_no_token() {
    let clock = ManualClock::new();
    let pool = WorkerPool::builder().workers(1).on(&clock).admit_by(three(&clock));
    let pool = pool.build().unwrap();
    let busy = Busy::on(&pool);
    let gone: Vec<JoinHandle<()>> = (0..2)
        .map(|_| pool.submit(|| unreachable!("it is cancelled")).unwrap())
        .collect();
    let mut live: Vec<JoinHandle<()>> = (0..6).map(|_| pool.submit(|| ()).unwrap()).collect();
    assert!(gone.iter().all(|gone| gone.cancel()));
    busy.end();
    live.drain(..2).for_each(|live| live.join().unwrap());
    assert_eq!(pool.abort().unstarted.len(), 4);
}

#[cfg(feature = "tokio")]
mod of_tasks {
    use super::three;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use tollgate::ManualClock;
    use tollgate::pool::{TaskError, TaskHandle, TaskPool};

    /// Lets all other tasks of a current-thread runtime run until they wait.
    async fn settle() {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    async fn busy(clock: &ManualClock) -> (TaskPool, oneshot::Sender<()>) {
        let pool = TaskPool::builder(1).on(clock).admit_by(three(clock)).build().unwrap();
        let (open, gate) = oneshot::channel();
        drop(pool.submit(gate).await.unwrap());
        settle().await;
        (pool, open)
    }

    #[tokio::test]
    async fn a_task_that_is_too_late_takes_no_token() {
        let clock = ManualClock::new();
        let (pool, open) = busy(&clock).await;
        let soon = pool.deadline(Duration::from_millis(1));
        let (late, _) = soon
            .submit_all((0..2).map(|_| async { unreachable!("it is late") }))
            .await;
        let (live, _) = pool.submit_all((0..2).map(|_| async {})).await;
        clock.advance(Duration::from_millis(2));
        open.send(()).unwrap();
        settle().await;
        assert!(live.iter().all(TaskHandle::is_finished));
        for late in late {
            let late: Result<(), _> = late.await;
            assert!(matches!(late, Err(TaskError::Expired)));
        }
        assert_eq!(pool.stats().expired, 2);
    }

    #[tokio::test]
    async fn a_task_that_was_cancelled_takes_no_token() {
        let clock = ManualClock::new();
        let (pool, open) = busy(&clock).await;
        let (gone, _) = pool
            .submit_all((0..2).map(|_| async { unreachable!("it is cancelled") }))
            .await;
        let (live, _) = pool.submit_all((0..6).map(|_| async {})).await;
        assert!(gone.iter().all(|gone: &TaskHandle<()>| gone.cancel()));
        open.send(()).unwrap();
        settle().await;
        assert!(live[..2].iter().all(TaskHandle::is_finished));
        assert_eq!(pool.abort().unstarted.len(), 4);
    }
}
