//! Pools of threads: random programs of tasks that submit to each other's pools, wait, give up and cancel.

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::pool::{GroupError, ShutdownReport, TaskError};
use tollgate::{JoinHandle, ManualClock, Policy, Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(3_600);

/// The pool's threads are the model's. Its clock stands still.
fn pool(workers: usize, policy: Option<Policy<Semaphore>>) -> WorkerPool {
    let builder = WorkerPool::builder()
        .workers(workers)
        .max_queue(64)
        .on(&ManualClock::new());
    let builder = builder.spawn_with(|worker| {
        thread::spawn(move || worker.run());
        Ok(())
    });
    match policy {
        Some(policy) => builder.admit_by(policy).build().unwrap(),
        None => builder.build().unwrap(),
    }
}

/// How many tasks have been taken, and how many have run or been told why not.
#[derive(Default)]
struct Counts {
    taken: AtomicUsize,
    begun: AtomicUsize,
}

#[derive(Clone)]
struct World {
    pools: Arc<Vec<WorkerPool>>,
    counts: Arc<Counts>,
}

impl World {
    /// A task that submits up to two others, to any of the pools.
    fn submit(&self, depth: usize) -> Option<JoinHandle<()>> {
        let at = thread_rng().gen_range(0..self.pools.len());
        let here = self.clone();
        let submitted = self.pools[at].submit(move || {
            here.counts.begun.fetch_add(1, Ordering::SeqCst);
            if depth > 0 {
                here.step(depth - 1);
            }
        });
        let handle = submitted.ok()?;
        self.counts.taken.fetch_add(1, Ordering::SeqCst);
        Some(handle)
    }

    /// A group of which one task runs at a time.
    fn group(&self, depth: usize) {
        let at = thread_rng().gen_range(0..self.pools.len());
        let mut group = self.pools[at].group::<(), ()>().limit(1).unwrap();
        let inside = Arc::new(AtomicUsize::new(0));
        for _ in 0..thread_rng().gen_range(1..4) {
            let (here, inside) = (self.clone(), Arc::clone(&inside));
            let submitted = group.submit(move || {
                here.counts.begun.fetch_add(1, Ordering::SeqCst);
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two of the group run at once");
                thread::yield_now();
                if depth > 0 {
                    here.step(depth - 1);
                }
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            });
            self.counts
                .taken
                .fetch_add(usize::from(submitted.is_ok()), Ordering::SeqCst);
        }
        if thread_rng().gen_range(0..4) == 0 {
            group.cancel();
        }
        for end in group.join_all() {
            assert!(!matches!(end, Err(GroupError::Task(TaskError::Panicked(_)))), "{end:?}");
        }
    }

    fn step(&self, depth: usize) {
        if thread_rng().gen_range(0..3) == 0 {
            self.group(depth);
        }
        let handles: Vec<_> = (0..thread_rng().gen_range(0..3))
            .filter_map(|_| self.submit(depth))
            .collect();
        for mut handle in handles {
            let outcome = match thread_rng().gen_range(0..6) {
                0 => {
                    let polled = Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop()));
                    thread::yield_now();
                    drop((polled, handle));
                    continue;
                }
                1 => {
                    handle.cancel();
                    handle.join()
                }
                2 => handle.join_timeout(LONG).expect("nothing ends it before"),
                _ => handle.join(),
            };
            let ends = matches!(
                outcome,
                Ok(()) | Err(TaskError::Cancelled | TaskError::Abandoned | TaskError::WouldDeadlock)
            );
            assert!(ends, "{outcome:?}");
        }
    }
}

/// Given pools of one or two workers, behind a policy or not, whose tasks wait for each other, while another thread submits, and resizes or
/// aborts one of them, then all ends, and each task has run once or is listed, or was cancelled.
#[test]
fn families_of_pools_end() {
    super::check(50_000, || {
        let policies = [None, Some(Policy::new(Semaphore::new(1)))];
        let which = thread_rng().gen_range(0..3);
        let pools = (0..2).map(|n| {
            let policy = if which == 2 && n == 0 {
                policies[1].clone()
            } else {
                None
            };
            pool(thread_rng().gen_range(1..3), policy)
        });
        let world = World {
            pools: Arc::new(pools.collect()),
            counts: Arc::default(),
        };
        let other = world.clone();
        let submitter = thread::spawn(move || other.step(1));
        let root = world.submit(2);
        let first = &world.pools[0];
        let report = match thread_rng().gen_range(0..4) {
            0 => Some(first.abort()),
            1 => {
                first.set_limit(thread_rng().gen_range(1..3)).unwrap();
                None
            }
            _ => None,
        };
        let listed = report
            .as_ref()
            .map_or(0, |report: &ShutdownReport<tollgate::pool::Threads<'_>>| {
                report.unstarted.len()
            });
        drop(report);
        if let Some(root) = root {
            let _ = root.join();
        }
        submitter.join().unwrap();
        for pool in world.pools.iter() {
            assert!(pool.shutdown(LONG).is_clean());
            let stats = pool.stats();
            assert_eq!((stats.unfinished, stats.queued, stats.threads), (0, 0, 0));
        }
        let (taken, begun) = (&world.counts.taken, &world.counts.begun);
        assert!(begun.load(Ordering::SeqCst) + listed <= taken.load(Ordering::SeqCst));
    });
}

/// Given a pool of two, a group of one whose tasks are awaited one after the other, and another that is waited for from outside, then one
/// task of each runs at a time, and all do.
#[test]
fn groups_with_a_limit_run_their_tasks_one_by_one() {
    super::check(20_000, || {
        let pool = pool(2, None);
        let world = World {
            pools: Arc::new(vec![pool.clone()]),
            counts: Arc::default(),
        };
        let inner = world.clone();
        let outer = pool.submit(move || inner.group(0)).unwrap();
        world.group(0);
        outer.join().unwrap();
        assert!(pool.shutdown(LONG).is_clean());
        let stats = pool.stats();
        assert_eq!((stats.unfinished, stats.queued, stats.threads), (0, 0, 0));
    });
}

/// Given a task that has polled a handle, when another thread drops that as the task ends, or as it waits for the next, then the slot is
/// taken back once: the pool of one goes on.
#[test]
fn a_handle_that_is_dropped_elsewhere_takes_the_slot_back_once() {
    super::check(20_000, || {
        let pool = pool(1, None);
        let (here, waits_again) = (pool.clone(), thread_rng().gen_range(0..2) == 0);
        let (tell, told) = shuttle::sync::mpsc::channel::<JoinHandle<()>>();
        let drops = thread::spawn(move || drop(told.recv()));
        let outer = pool.submit(move || {
            let mut first = here.submit(|| ()).unwrap();
            if Pin::new(&mut first)
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
            {
                tell.send(first).unwrap();
            }
            if waits_again {
                here.submit(|| ())
                    .unwrap()
                    .join_timeout(LONG)
                    .expect("nothing ends it before")
                    .unwrap();
            }
        });
        outer.unwrap().join().unwrap();
        drops.join().unwrap();
        pool.submit(|| ()).unwrap().join().unwrap();
        assert!(pool.shutdown(LONG).is_clean());
    });
}
