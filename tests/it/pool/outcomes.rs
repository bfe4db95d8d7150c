//! What ends with a scope, and with a limit that gets lower.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tollgate::WorkerPool;

const LONG: Duration = Duration::from_secs(60);

fn panics<T>() -> T {
    resume_unwind(Box::new("on purpose"))
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
    pool.set_limit(1).unwrap();
    (0..3).for_each(|_| told.recv_timeout(LONG).unwrap());
    assert_eq!(pool.stats().threads, 1);
    assert_eq!(pool.run(|| 7).unwrap(), 7);
}
