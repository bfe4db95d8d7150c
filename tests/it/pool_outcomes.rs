//! What pools tell of the ends of tasks, to whoever admits them; and what ends with a scope, or with a limit that gets lower.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tollgate::pool::TaskPool;
use tollgate::{CircuitBreaker, Policy, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

fn panics<T>() -> T {
    resume_unwind(Box::new("on purpose"))
}

/// Given a breaker that admits the tasks, then it learns of each how it has ended: a panic is a failure.
#[test]
fn whoever_admits_tasks_is_told_how_they_ended() {
    let breaker = Arc::new(CircuitBreaker::new());
    let told = || (breaker.metrics().calls, breaker.metrics().failed);
    let policy = Policy::new(Arc::clone(&breaker));
    let pool = WorkerPool::builder().workers(1).admit_by(policy).build().unwrap();
    for n in 0..5 {
        pool.execute(move || {
            if n == 2 {
                panics::<()>();
            }
        })
        .unwrap();
    }
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(told(), (5, 1));
}

#[tokio::test]
async fn whoever_admits_async_tasks_is_told_how_they_ended() {
    let breaker = Arc::new(CircuitBreaker::new());
    let told = || (breaker.metrics().calls, breaker.metrics().failed);
    let policy = Policy::new(Arc::clone(&breaker));
    let pool = TaskPool::builder(1).admit_by(policy).build().unwrap();
    for n in 0..5 {
        drop(
            pool.submit(async move {
                if n == 2 {
                    panics::<()>();
                }
            })
            .await
            .unwrap(),
        );
    }
    assert!(pool.shutdown(LONG).await.is_clean());
    assert_eq!(told(), (5, 1));
}

/// Given a task that runs until another is dropped, which is queued behind it, when the body of their scope panics, then what is
/// queued is dropped unrun, and so the scope ends.
#[test]
fn a_scope_whose_body_panics_drops_what_is_queued() {
    let ran = AtomicBool::new(false);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        WorkerPool::builder().workers(1).scope(|pool| {
            let (start, started) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let ran = &ran;
            pool.execute(move || {
                start.send(()).unwrap();
                let _ = released.recv();
            })
            .unwrap();
            started.recv().unwrap();
            pool.execute(move || {
                ran.store(true, Ordering::SeqCst);
                drop(release);
            })
            .unwrap();
            panics::<()>();
        })
    }));
    assert!(panicked.is_err());
    assert!(!ran.load(Ordering::SeqCst));
}

/// Given workers that all sleep, when there shall be fewer, then those too many go at once.
#[test]
fn workers_that_sleep_go_when_there_shall_be_fewer() {
    let (tell, told) = mpsc::channel();
    let pool = WorkerPool::builder().workers(4).spawn_with(move |worker| {
        let tell = tell.clone();
        thread::spawn(move || {
            worker.run();
            let _ = tell.send(());
        });
        Ok(())
    });
    let pool = pool.build().unwrap();
    assert!(pool.wait_idle());
    pool.resize(1).unwrap();
    (0..3).for_each(|_| told.recv_timeout(LONG).unwrap());
    assert_eq!(pool.stats().threads, 1);
    assert_eq!(pool.run(|| 7).unwrap(), 7);
}
