//! An adaptive limit says how many tasks of a pool run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tollgate::{Policy, Semaphore, WorkerPool};
use tollgate_resilience::adaptive::Adaptive;

const LONG: Duration = Duration::from_secs(60);

/// Given six tasks for four workers, under an adaptive limit of two, then any two have started. When the limit
/// becomes three, a third starts; when it falls to one, the next starts only when all three have ended.
#[test]
fn an_adaptive_limit_says_how_many_tasks_run() {
    let limit = Adaptive::builder(Semaphore::new(2)).bounds(1, 4).build();
    let limit = Arc::new(limit.unwrap());
    let pool = WorkerPool::builder()
        .workers(4)
        .admit_by(Policy::new(Arc::clone(&limit)));
    let pool = pool.build().unwrap();
    limit.pin(2);
    let running = Arc::new(AtomicUsize::new(0));
    let (start, started) = mpsc::channel();
    let (end, may_end) = crossbeam_channel::bounded::<()>(0);
    for _ in 0..6 {
        let (running, start, may_end) = (Arc::clone(&running), start.clone(), may_end.clone());
        let task = move || {
            start.send(running.fetch_add(1, Ordering::SeqCst) + 1).unwrap();
            may_end.recv().unwrap();
            running.fetch_sub(1, Ordering::SeqCst);
        };
        pool.execute(task).unwrap();
    }
    let next = || started.recv().unwrap();
    assert_eq!([next(), next()].iter().max(), Some(&2));
    limit.pin(3);
    assert_eq!(next(), 3);
    limit.pin(1);
    for _ in 0..3 {
        end.send(()).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(next(), 1);
        assert_eq!(running.load(Ordering::SeqCst), 1);
        end.send(()).unwrap();
    }
    assert!(pool.shutdown(LONG).is_clean());
}
