//! Worker pools within worker pools, under load and at their end.

use super::pool::Busy;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tollgate::pool::{PoolBuilder, TaskError};
use tollgate::{ManualClock, WorkerPool};

const LONG: Duration = Duration::from_secs(60);

fn workers(n: usize) -> PoolBuilder {
    WorkerPool::builder().workers(n)
}

/// Given a parent that is made smaller, then a sub-pool gives its thread up after the task that it has.
#[test]
fn a_parent_that_shrinks_is_obeyed_below() {
    let pool = workers(2).build().unwrap();
    let small = pool.sub_pool(workers(1)).unwrap();
    let busy = Busy::on(&pool);
    let first = Busy::on(&small);
    let (tell, told) = mpsc::channel();
    let tells = tell.clone();
    small.execute(move || tells.send("below").unwrap()).unwrap();
    pool.resize(1).unwrap();
    // It stands in line before whatever comes back to it from below.
    pool.execute(move || tell.send("above").unwrap()).unwrap();
    first.end();
    // The thread is given up before anything else ends.
    while pool.slots().debt() > 0 {
        thread::yield_now();
    }
    busy.end();
    assert_eq!(told.iter().collect::<Vec<_>>(), ["above", "below"]);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a worker of a sub-pool that waits for its slot, when what it was to run has been run elsewhere, then it does not
/// keep the thread.
#[test]
fn a_worker_without_a_slot_or_a_task_gives_the_thread_back() {
    let pool = workers(1).build().unwrap();
    let small = pool.sub_pool(workers(1)).unwrap();
    let busy = Busy::on(&pool);
    let cancelled = small.submit(|| ()).unwrap();
    let permit = small.slots().try_acquire().unwrap();
    assert!(cancelled.cancel());
    busy.end();
    assert_eq!(pool.run(|| 7).unwrap(), 7);
    drop(permit);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given who waits for a sub-pool of one worker to be idle, when the worker makes room for others again and again, then
/// that does not make it forget who waits.
#[test]
fn who_waits_for_a_sub_pool_is_not_forgotten_when_its_worker_comes_back() {
    let pool = workers(1).build().unwrap();
    let small = pool.sub_pool(workers(1)).unwrap();
    for _ in 0..20 {
        let busy = Busy::on(&pool);
        for _ in 0..40 {
            small.execute(|| ()).unwrap();
        }
        let (waits, (tell, told)) = (small.clone(), mpsc::channel());
        let waiter = thread::spawn(move || {
            tell.send(()).unwrap();
            assert!(waits.wait_idle_timeout(LONG));
        });
        told.recv().unwrap();
        // For it to fall asleep: it is found asleep or not, and is told in either case.
        (0..100).for_each(|_| thread::yield_now());
        busy.end();
        waiter.join().unwrap();
    }
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a sub-pool without a clock of its own, then its deadlines go by that of the pool above.
#[test]
fn a_sub_pool_takes_the_clock_from_above() {
    let clock = ManualClock::new();
    let pool = workers(1).on(&clock).build().unwrap();
    let small = pool.sub_pool(workers(1)).unwrap();
    let busy = Busy::on(&pool);
    let late = small.deadline(Duration::from_secs(1)).submit(|| ()).unwrap();
    clock.advance(Duration::from_secs(2));
    busy.end();
    assert!(matches!(late.join(), Err(TaskError::Expired)));
}

/// Given eight submitters to a pool and two below it, resizes, panics and cancels, when the family is ended, then each
/// task that was let in has run once or been reported once, and an end that waits leaves nothing.
#[test]
fn every_task_of_a_family_is_accounted_for_once() {
    for round in 0..12_usize {
        let pool = workers(3).queue(20).build().unwrap();
        let small = pool.sub_pool(workers(2).queue(20)).unwrap();
        let below = small.sub_pool(workers(1).queue(20)).unwrap();
        let family = [pool.clone(), small, below];
        let ran: Arc<Vec<_>> = Arc::new((0..1_600).map(|_| AtomicUsize::new(0)).collect());
        let submitters = (0..8_usize).map(|submitter| {
            let (family, ran) = (family.clone(), Arc::clone(&ran));
            thread::spawn(move || {
                let mut handles = Vec::new();
                for id in submitter * 200..(submitter + 1) * 200 {
                    let pool = &family[id % 3];
                    let (other, counts) = (family[(id + 1) % 3].clone(), Arc::clone(&ran));
                    let task = move || {
                        counts[id].fetch_add(1, Ordering::SeqCst);
                        match id % 5 {
                            0 => thread::yield_now(),
                            // Whatever comes of it: it must not hang.
                            1 => _ = other.run(|| ()),
                            2 => resume_unwind(Box::new(id)),
                            _ => {}
                        }
                        counts[id].fetch_add(10, Ordering::SeqCst);
                        id
                    };
                    assert!(pool.stats().queued <= 20, "{:?}", pool.stats());
                    let Ok(handle) = pool.submit(task) else { break };
                    if id % 7 == 0 {
                        handle.cancel();
                    }
                    handles.push((id, handle));
                    if id % 11 == 0 {
                        pool.resize(1 + id % 4).unwrap();
                    }
                }
                for (id, handle) in handles {
                    let result = handle.join();
                    let count = ran[id].load(Ordering::SeqCst);
                    match result {
                        Ok(result) => assert_eq!((result, count), (id, 11)),
                        Err(TaskError::Panicked(_)) => assert_eq!(count, 1),
                        Err(_) => assert_eq!(count, 0),
                    }
                }
            })
        });
        let submitters: Vec<_> = submitters.collect();
        while pool.stats().finished < round as u64 * 20 {
            thread::yield_now();
        }
        if round % 2 == 0 {
            drop(pool.abort());
        } else {
            let report = pool.shutdown(LONG);
            assert!(report.is_clean(), "{report:?}");
        }
        for submitter in submitters {
            submitter.join().unwrap();
        }
        let _ = pool.shutdown(LONG);
        for pool in family {
            assert_eq!((pool.stats().threads, pool.stats().unfinished), (0, 0));
        }
    }
}
