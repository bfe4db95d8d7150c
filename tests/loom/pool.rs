//! The worker pool: one worker, or two, beside the thread that submits.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;
use tollgate::pool::{PoolBuilder, Priority, TaskError, Workers};
use tollgate::{ManualClock, Policy, Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(3_600);

/// The pool's threads are the model's.
fn modelled(workers: impl Into<Workers>) -> PoolBuilder {
    WorkerPool::builder()
        .workers(workers)
        .max_queue(2)
        .spawn_with(|worker| {
            super::spawn(move || worker.run());
            Ok(())
        })
}

/// Keeps out bb8#122.
#[test]
fn a_task_that_is_submitted_while_the_worker_falls_asleep_is_run() {
    super::bounded(4, || {
        let pool = modelled(1).build().unwrap();
        assert_eq!(pool.submit(|| 7).unwrap().join().unwrap(), 7);
        assert!(pool.shutdown(LONG).is_clean());
    });
}

#[test]
fn two_tasks_one_after_the_other_are_both_run() {
    super::bounded(4, || {
        let pool = modelled(1).build().unwrap();
        assert_eq!(pool.submit(|| 1).unwrap().join().unwrap(), 1);
        let ran = Arc::new(AtomicUsize::new(0));
        let mark = Arc::clone(&ran);
        pool.execute(move || _ = mark.fetch_add(1, Ordering::Relaxed)).unwrap();
        assert!(pool.shutdown(LONG).is_clean());
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    });
}

/// The first submitter calls the worker, or finds it awake. The other may find it called, or about to sleep again.
/// Keeps out rayon#929, rayon#913, rayon#919.
#[test]
fn two_submissions_beside_a_worker_that_falls_asleep_are_both_run() {
    super::bounded(2, || {
        let pool = modelled(1).build().unwrap();
        let other = pool.clone();
        let submitter = thread::spawn(move || other.run(|| 1).unwrap());
        assert_eq!(pool.run(|| 2).unwrap(), 2);
        assert_eq!(submitter.join().unwrap(), 1);
        assert!(pool.shutdown(LONG).is_clean());
    });
}

#[test]
fn two_workers_share_two_tasks() {
    super::bounded(1, || {
        let pool = modelled(2).build().unwrap();
        let (one, two) = (pool.submit(|| 1).unwrap(), pool.submit(|| 2).unwrap());
        assert_eq!((one.join().unwrap(), two.join().unwrap()), (1, 2));
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Keeps out rayon#37.
#[test]
fn a_panic_is_given_to_the_handle_and_the_worker_goes_on() {
    super::bounded(4, || {
        let pool = modelled(1).build().unwrap();
        let panics = pool.submit(|| resume_unwind(Box::new(3)));
        let failed: Result<(), TaskError> = panics.unwrap().join();
        assert!(matches!(failed, Err(TaskError::Panicked(_))));
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Given a handle that goes beside the end of its task, then the result is dropped, although the worker still has the task's memory.
#[test]
fn a_result_whose_handle_goes_beside_the_end_is_dropped() {
    super::bounded(2, || {
        let pool = modelled(1).build().unwrap();
        let result = Arc::new(());
        let given = Arc::clone(&result);
        drop(pool.submit(move || given).unwrap());
        assert!(pool.wait_idle());
        assert_eq!(Arc::strong_count(&result), 1);
        assert!(pool.shutdown(LONG).is_clean());
    });
}

#[test]
fn a_cancel_beside_the_start_is_one_of_the_two() {
    super::bounded(4, || {
        let pool = modelled(1).build().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let mark = Arc::clone(&ran);
        let handle = pool.submit(move || _ = mark.fetch_add(1, Ordering::Relaxed)).unwrap();
        let cancelled = handle.cancel();
        let outcome = handle.join();
        assert_eq!(cancelled, matches!(outcome, Err(TaskError::Cancelled)));
        assert!(pool.shutdown(LONG).is_clean());
        assert_eq!(ran.load(Ordering::Relaxed), usize::from(!cancelled));
    });
}

#[test]
fn an_abort_beside_the_start_lists_the_task_or_lets_it_end() {
    super::bounded(4, || {
        let pool = modelled(1).build().unwrap();
        let handle = pool.submit(|| 7).unwrap();
        let report = pool.abort();
        let listed = report.unstarted.len();
        drop(report);
        match handle.join() {
            Ok(7) => assert_eq!(listed, 0),
            Err(TaskError::Abandoned) => assert_eq!(listed, 1),
            other => panic!("{other:?}"),
        }
        let _ = pool.shutdown(LONG);
    });
}

/// A batch stands in the queue as one, and on the worker's local queue in part: wherever the end comes, each of its tasks has run
/// or is listed.
/// Keeps out tokio#1853, tokio#1982.
#[test]
fn an_abort_beside_a_batch_lists_the_tasks_that_have_not_run() {
    super::bounded(2, || {
        let pool = modelled(1).max_queue(3).build().unwrap();
        let ran = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let mark = |ran: &Arc<AtomicUsize>| {
            let ran = Arc::clone(ran);
            move || _ = ran.fetch_add(1, Ordering::Relaxed)
        };
        assert!(pool.execute_all(ran.iter().map(mark)).is_empty());
        let listed = pool.abort().unstarted.len();
        let _ = pool.shutdown(LONG);
        let ran = ran.map(|ran| ran.load(Ordering::Relaxed));
        assert!(ran.iter().all(|&times| times <= 1));
        assert_eq!(ran.iter().sum::<usize>() + listed, 3);
    });
}

#[test]
fn a_batch_beside_the_end_is_run_or_handed_back() {
    super::bounded(2, || {
        let pool = modelled(1).build().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let (other, mark) = (pool.clone(), Arc::clone(&ran));
        let submitter = thread::spawn(move || {
            let task = |_| {
                let mark = Arc::clone(&mark);
                move || _ = mark.fetch_add(1, Ordering::Relaxed)
            };
            for rejected in other.execute_all((0..2).map(task)) {
                (rejected.task)();
            }
        });
        assert!(pool.shutdown(LONG).is_clean());
        submitter.join().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    });
}

/// Keeps out tokio#1853, tokio#1982.
#[test]
fn a_submission_beside_the_end_is_run_or_handed_back() {
    super::bounded(2, || {
        let pool = modelled(1).build().unwrap();
        // The injector takes the places of the next submissions as well.
        pool.execute(|| ()).unwrap();
        let other = pool.clone();
        let submitter = thread::spawn(move || match other.submit(|| 7) {
            Ok(handle) => matches!(handle.join(), Ok(7)),
            Err(rejected) => (rejected.task)() == 7,
        });
        assert!(pool.shutdown(LONG).is_clean());
        assert!(submitter.join().unwrap());
    });
}

/// Keeps out threadpool#63, threadpool#89.
#[test]
fn two_wait_for_the_end_of_one_task() {
    super::bounded(2, || {
        let pool = modelled(1).build().unwrap();
        pool.execute(|| ()).unwrap();
        let other = pool.clone();
        let waiter = thread::spawn(move || other.wait_idle());
        assert!(pool.wait_idle());
        assert!(waiter.join().unwrap());
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Keeps out thingsboard#16144.
#[test]
fn a_worker_that_is_too_many_leaves_beside_a_submission() {
    super::bounded(1, || {
        let pool = modelled(2).build().unwrap();
        pool.set_limit(1).unwrap();
        assert_eq!(pool.submit(|| 7).unwrap().join().unwrap(), 7);
        while pool.stats().threads > 1 {
            thread::yield_now();
        }
        assert!(pool.shutdown(LONG).is_clean());
    });
}

#[test]
fn a_resize_beside_a_submission_lets_the_task_end_and_a_worker_go() {
    super::bounded(1, || {
        let pool = modelled(2).build().unwrap();
        let other = pool.clone();
        let resizer = thread::spawn(move || other.set_limit(1).unwrap());
        assert_eq!(pool.submit(|| 7).unwrap().join().unwrap(), 7);
        resizer.join().unwrap();
        // No submission follows: a worker that sleeps must have been called to leave.
        while pool.stats().threads > 1 {
            thread::yield_now();
        }
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// A worker keeps its slot from task to task, but not while it sleeps, and a waiter for it gets it.
#[test]
fn a_permit_that_a_worker_keeps_goes_to_its_waiter() {
    super::bounded(2, || {
        let slots = Arc::new(Semaphore::new(1));
        let pool = modelled(1).slots(Arc::clone(&slots)).build().unwrap();
        let handle = pool.submit(|| 7).unwrap();
        drop(slots.blocking_acquire().unwrap());
        assert_eq!(handle.join().unwrap(), 7);
        assert!(pool.shutdown(LONG).is_clean());
        assert_eq!((slots.available_permits(), slots.waiting()), (1, 0));
    });
}

#[test]
fn two_pools_that_share_a_permit_both_run_their_tasks() {
    super::bounded(1, || {
        let slots = Arc::new(Semaphore::new(1));
        let pools = [(); 2].map(|()| modelled(1).slots(Arc::clone(&slots)).build().unwrap());
        let handles = [0, 1].map(|n: usize| pools[n].submit(move || n).unwrap());
        assert_eq!(handles.map(|handle| handle.join().unwrap()), [0, 1]);
        for pool in pools {
            assert!(pool.shutdown(LONG).is_clean());
        }
        assert_eq!((slots.available_permits(), slots.waiting()), (1, 0));
    });
}

/// The worker takes the task, and waits for an admission that never comes: wherever the end comes, the task is listed.
#[test]
fn an_abort_beside_a_worker_at_a_closed_gate_lists_the_task() {
    super::bounded(3, || {
        let closed = Policy::new(Semaphore::new(0));
        let pool = modelled(1).admit_by(closed).build().unwrap();
        let handle = pool.submit(|| ()).unwrap();
        let report = pool.abort();
        assert_eq!((report.unstarted.len(), report.running), (1, 0));
        drop(report);
        assert!(matches!(handle.join(), Err(TaskError::Abandoned)));
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// The same for a cancel: no worker waits at the gate for a task that has ended.
#[test]
fn a_cancel_beside_a_worker_at_a_closed_gate_lets_it_go() {
    super::bounded(3, || {
        let closed = Policy::new(Semaphore::new(0));
        let pool = modelled(1).admit_by(closed).build().unwrap();
        let handle = pool.submit(|| ()).unwrap();
        assert!(handle.cancel());
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Given a task that never starts, when it is cancelled beside the end of the pool, then the report counts nothing as running.
#[test]
fn a_cancel_beside_the_end_leaves_nothing_running() {
    super::bounded(3, || {
        let closed = Policy::new(Semaphore::new(0));
        let pool = modelled(1).admit_by(closed).build().unwrap();
        let handle = pool.submit(|| ()).unwrap();
        let cancels = super::spawn(move || handle.cancel());
        let report = pool.abort();
        assert_eq!((report.unstarted.len() <= 1, report.running), (true, 0));
        drop(report);
        let _ = cancels.join();
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Given a task at the gate that asks for more than there is, when one of a higher priority that fits is submitted, then that runs.
#[test]
fn a_task_that_is_first_beside_an_asker_for_another_is_asked_for() {
    super::bounded(1, || {
        let permits = Arc::new(Semaphore::new(2));
        let held = permits.try_acquire().unwrap();
        let pool = modelled(1).admit_by(Policy::new(Arc::clone(&permits))).build().unwrap();
        let heavy = pool.ask(2).submit(|| ()).unwrap();
        let light = pool.priority(Priority::High).submit(|| 7).unwrap();
        assert_eq!(light.join().unwrap(), 7);
        assert!(heavy.cancel());
        assert!(pool.shutdown(LONG).is_clean());
        drop(held);
        assert_eq!(permits.available_permits(), 2);
    });
}

/// A worker that waits for its admission gives its slot up. The admission may come before, and another holder may have the
/// slot then: the task runs.
#[test]
fn an_admission_beside_the_holder_of_the_slot_is_not_lost() {
    super::bounded(2, || {
        let (slots, gate) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        let held = gate.try_acquire().unwrap();
        let builder = modelled(1).slots(Arc::clone(&slots));
        // By a real clock the length of a wait would differ from run to run, and with it the count that it is added to.
        let policy = Policy::builder()
            .limit(Arc::clone(&gate))
            .on(&ManualClock::new())
            .build()
            .unwrap();
        let pool = builder.admit_by(policy).build().unwrap();
        let handle = pool.submit(|| 7).unwrap();
        let other = Arc::clone(&slots);
        let other = thread::spawn(move || drop(other.try_acquire()));
        drop(held);
        assert_eq!(handle.join().unwrap(), 7);
        other.join().unwrap();
        assert!(pool.shutdown(LONG).is_clean());
        assert_eq!((slots.available_permits(), gate.available_permits()), (1, 1));
    });
}

/// A task that waits for another runs it, unless a report lists that: it is run once, or listed.
#[test]
fn an_abort_beside_a_waiter_that_runs_its_task_lists_the_tasks_that_have_not_run() {
    super::bounded(2, || {
        let pool = modelled(1).build().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let (here, mark) = (pool.clone(), Arc::clone(&ran));
        let task = pool.execute(move || {
            let inner = Arc::clone(&mark);
            let inner = here.submit(move || _ = inner.fetch_add(1, Ordering::Relaxed));
            let waits = inner.ok().map(|inner| inner.join());
            // Neither let in, nor abandoned: it has run.
            if let Some(Ok(())) = waits {
                mark.fetch_add(10, Ordering::Relaxed);
            }
        });
        task.unwrap();
        let report = pool.abort();
        let (listed, running) = (report.unstarted.len(), report.running);
        drop(report);
        let _ = pool.shutdown(LONG);
        let ran = ran.load(Ordering::Relaxed);
        assert!(ran == 0 || (ran == 11 && listed == 0), "{ran} {listed} {running}");
    });
}

/// The first task waits for the second, which no thread is there for, and no slot: wherever the limit is raised, it is started.
#[test]
fn a_raised_limit_beside_a_submission_starts_the_thread_that_is_missing() {
    super::bounded(1, || {
        let slots = Arc::new(Semaphore::new(1));
        let pool = modelled(1..=2).slots(Arc::clone(&slots)).build().unwrap();
        let (tell, told) = loom::sync::mpsc::channel();
        let waits = pool.submit(move || told.recv().unwrap()).unwrap();
        let raises = thread::spawn(move || slots.set_limit(2));
        pool.execute(move || tell.send(()).unwrap()).unwrap();
        waits.join().unwrap();
        raises.join().unwrap();
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// The same with a permit that another holder gives back.
#[test]
fn a_permit_that_comes_back_beside_a_submission_starts_the_thread_that_is_missing() {
    super::bounded(1, || {
        let slots = Arc::new(Semaphore::new(2));
        let held = Arc::clone(&slots).try_acquire_owned().unwrap();
        let pool = modelled(1..=2).slots(slots).build().unwrap();
        // Awake, and without its slot, it would be taken to need a second beside it.
        while pool.stats().idle < 1 {
            thread::yield_now();
        }
        let ((start, started), (tell, told)) = (loom::sync::mpsc::channel(), loom::sync::mpsc::channel());
        let waits = move || {
            start.send(()).unwrap();
            told.recv().unwrap();
        };
        let waits = pool.submit(waits).unwrap();
        started.recv().unwrap();
        let releases = thread::spawn(move || drop(held));
        pool.execute(move || tell.send(()).unwrap()).unwrap();
        waits.join().unwrap();
        releases.join().unwrap();
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// A worker runs a task that its own waits for, while the pool is aborted: that one is run, or listed.
#[test]
fn an_abort_beside_a_task_that_is_run_in_passing_lists_it_or_leaves_it_alone() {
    super::bounded(2, || {
        let pool = modelled(1).build().unwrap();
        let (ran, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (below, mark, tell) = (pool.clone(), Arc::clone(&ran), Arc::clone(&told));
        let outer = pool.execute(move || {
            let inner = below.try_submit(move || mark.fetch_add(1, Ordering::Relaxed));
            if let Ok(inner) = inner {
                let result = inner.join();
                tell.store(1 + usize::from(result.is_err()), Ordering::Relaxed);
            }
        });
        outer.unwrap();
        let report = pool.abort();
        let listed = report.unstarted.len();
        drop(report);
        let _ = pool.shutdown(LONG);
        match (told.load(Ordering::Relaxed), ran.load(Ordering::Relaxed)) {
            (0 | 2, ran) => assert_eq!(ran, 0),
            (_, ran) => assert_eq!((ran, listed), (1, 0)),
        }
        assert!(told.load(Ordering::Relaxed) != 2 || listed == 1, "told, and not listed");
    });
}

/// Given a queue of one, when its task is cancelled beside a submitter that waits for room, then the submitter gets that room.
#[test]
fn a_cancel_beside_a_submitter_that_waits_gives_it_the_room() {
    super::bounded(2, || {
        let pool = modelled(1).max_queue(1).build().unwrap();
        let task = pool.submit(|| ()).unwrap();
        let other = pool.clone();
        let submitter = thread::spawn(move || other.submit(|| 7).unwrap().join().unwrap());
        let _ = task.cancel();
        assert_eq!(submitter.join().unwrap(), 7);
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Given a full queue, when its task is cancelled beside two submissions that do not wait, then one of them at most gets the place.
#[test]
fn a_place_that_a_cancel_frees_is_taken_once() {
    super::bounded(3, || {
        let pool = WorkerPool::builder().workers(1).max_queue(1);
        // The worker never runs.
        let pool = pool.spawn_with(|worker| Ok(std::mem::forget(worker))).build().unwrap();
        let queued = pool.submit(|| ()).unwrap();
        let other = pool.clone();
        let submitter = thread::spawn(move || other.try_submit(|| ()).is_ok());
        assert!(queued.cancel());
        let accepted = [pool.try_submit(|| ()).is_ok(), submitter.join().unwrap()];
        assert_ne!(accepted, [true; 2]);
        assert_eq!(pool.abort().unstarted.len(), 1);
    });
}

/// Given a queue of three, of which the worker takes two tasks at once, when it starts the second beside a submitter that waits, then that
/// is served, although the task does not end.
#[test]
fn a_start_beside_a_submitter_that_waits_serves_it() {
    super::bounded(1, || {
        let pool = modelled(1).max_queue(3).build().unwrap();
        let (go, goes) = loom::sync::mpsc::channel();
        let second = move || goes.recv().unwrap();
        let tasks: [Box<dyn FnOnce() + Send>; 3] = [Box::new(|| ()), Box::new(second), Box::new(|| ())];
        assert!(pool.execute_all(tasks).is_empty());
        assert!(pool.execute_all([|| (); 2]).is_empty());
        go.send(()).unwrap();
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Given a queue of three, of which the worker takes two tasks at once, when these have ended, then two others find room, although the worker
/// reports their starts together, and late.
#[test]
fn submissions_beside_a_worker_that_reports_late_find_room() {
    super::bounded(1, || {
        let pool = modelled(1).max_queue(3).build().unwrap();
        let (tasks, rejected) = pool.submit_all([(); 3].map(|()| || ()));
        assert!(rejected.is_empty());
        let [first, second, third] = tasks.try_into().unwrap();
        first.join().unwrap();
        second.join().unwrap();
        let room = [(); 2].map(|()| pool.try_submit(|| ()).is_ok());
        assert_eq!(room, [true; 2]);
        drop(third);
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Given a queue of one, when a task overdraws it by submitting two beside a submission that waits for room, then all are run, and
/// there is room for one again.
#[test]
fn a_queue_that_is_overdrawn_beside_a_submitter_that_waits_loses_nothing() {
    super::bounded(2, || {
        let pool = modelled(1).max_queue(1).build().unwrap();
        let here = pool.clone();
        let outer = pool
            .submit(move || [(); 2].map(|()| here.submit(|| ()).unwrap()))
            .unwrap();
        let waits = pool.submit(|| ()).unwrap();
        for task in outer.join().unwrap() {
            task.join().unwrap();
        }
        waits.join().unwrap();
        pool.try_submit(|| ()).unwrap().join().unwrap();
        assert!(pool.shutdown(LONG).is_clean());
    });
}

/// Given one worker whose task waits for another, then that one runs on the slot that is lent; beside an abort it runs, or is listed.
#[test]
fn a_task_that_is_awaited_runs_on_the_slot_of_its_waiter() {
    for aborts in [false, true] {
        super::bounded(1, move || {
            let pool = modelled(1).build().unwrap();
            let (here, ran) = (pool.clone(), Arc::new(AtomicUsize::new(0)));
            let mark = Arc::clone(&ran);
            let outer = pool.submit(move || {
                let inner = here.submit(move || _ = mark.fetch_add(1, Ordering::Relaxed)).ok()?;
                // Not in passing, as a join would.
                inner.join_timeout(LONG).ok()
            });
            let listed = aborts.then(|| pool.abort().unstarted.len());
            let joined = outer.unwrap().join();
            match listed {
                None => assert!(matches!(joined, Ok(Some(Ok(()))))),
                Some(listed) => {
                    let begun = joined.is_ok() && !matches!(joined, Ok(None));
                    let ran = ran.load(Ordering::Relaxed);
                    assert_eq!(ran + listed, if begun { 1 } else { listed }, "{joined:?}");
                }
            }
            assert!(pool.shutdown(LONG).is_clean());
        });
    }
}

/// Given two workers, when a task waits for one that the other worker may take from the queue meanwhile, then that runs once.
#[test]
fn an_awaited_task_beside_a_worker_that_takes_it_runs_once() {
    super::bounded(1, || {
        let pool = modelled(2).build().unwrap();
        let (here, ran) = (pool.clone(), Arc::new(AtomicUsize::new(0)));
        let mark = Arc::clone(&ran);
        let outer = pool.submit(move || {
            let inner = here.submit(move || mark.fetch_add(1, Ordering::Relaxed)).unwrap();
            inner.join_timeout(LONG).unwrap().unwrap()
        });
        assert_eq!(outer.unwrap().join().unwrap(), 0);
        assert!(pool.shutdown(LONG).is_clean());
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    });
}

/// Tasks of two pools of one worker wait for each other, up and down.
#[test]
fn two_pools_whose_tasks_wait_for_each_other_go_on() {
    super::bounded(1, || {
        let pools = [(); 2].map(|()| modelled(1).build().unwrap());
        let (above, below) = (pools[0].clone(), pools[1].clone());
        let outer = pools[0].submit(move || {
            let middle = below.submit(move || above.submit(|| 7).unwrap().join_timeout(LONG).unwrap().unwrap());
            middle.unwrap().join().unwrap()
        });
        assert_eq!(outer.unwrap().join().unwrap(), 7);
        for pool in pools {
            assert!(pool.shutdown(LONG).is_clean());
        }
    });
}

/// Given two workers and a group of one, when its first task ends beside the look at the second, then the second runs, after the first.
#[test]
fn the_end_of_a_task_beside_the_look_at_the_next_of_its_group_starts_it() {
    super::bounded(2, || {
        let pool = modelled(2).build().unwrap();
        let mut group = pool.group::<_, ()>().limit(1).unwrap();
        let inside = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let inside = Arc::clone(&inside);
            let task = move || {
                // Relaxed: the group orders its tasks, as each sees what those before it did.
                let before = inside.load(Ordering::Relaxed);
                inside.store(before + 1, Ordering::Relaxed);
                Ok(before)
            };
            group.submit(task).unwrap();
        }
        assert_eq!(group.join().unwrap(), [0, 1]);
        assert!(pool.shutdown(LONG).is_clean());
    });
}
