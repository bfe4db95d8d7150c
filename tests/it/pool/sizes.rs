//! Closures of all sizes: small ones lie in the queue, larger ones and those of a wide alignment elsewhere. And the size of a pool.

use crate::pool::threads::Busy;
use std::hint::black_box;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use tollgate::WorkerPool;
use tollgate::pool::{Overflow, Priority};

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Wide(u8);

/// Given closures that hold a count of references and so much `ballast`, when one is thrown out, one panics, some run, and the
/// others are handed back by the end, to be run there or dropped, then each has run so often as it should have, and none holds
/// its reference any more.
fn each_is_run_or_dropped_once<B: Copy + Send + 'static>(ballast: B) {
    let builder = WorkerPool::builder().workers(1).max_queue(5);
    let pool = builder.overflow(Overflow::DropOldest).build().unwrap();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let task = |n: u32| {
        let ran = Arc::clone(&ran);
        move || {
            black_box(&ballast);
            ran.lock().unwrap().push(n);
            if n == 2 {
                resume_unwind(Box::new("on purpose"));
            }
        }
    };
    let busy = Busy::on(&pool);
    (0..4).for_each(|n| pool.execute(task(n)).unwrap());
    pool.priority(Priority::High).execute(task(4)).unwrap();
    // The sixth throws the first out.
    pool.execute(task(5)).unwrap();
    busy.end();
    assert!(pool.wait_idle());
    assert_eq!(*ran.lock().unwrap(), [4, 1, 2, 3, 5]);
    assert_eq!((pool.stats().panicked, Arc::strong_count(&ran)), (1, 1));

    let busy = Busy::on(&pool);
    assert!(pool.execute_all((6..9).map(task)).is_empty());
    let mut unstarted = pool.abort().unstarted.into_iter();
    assert!(unstarted.next().unwrap().run());
    drop(unstarted);
    assert_eq!((ran.lock().unwrap().pop(), Arc::strong_count(&ran)), (Some(6), 1));
    let handed_back = pool.execute(task(9)).unwrap_err();
    (handed_back.task)();
    drop(handed_back);
    assert_eq!((ran.lock().unwrap().pop(), Arc::strong_count(&ran)), (Some(9), 1));
    busy.end();
}

#[test]
fn each_closure_is_run_or_dropped_once_whatever_its_size() {
    each_is_run_or_dropped_once(());
    each_is_run_or_dropped_once([1u8; 3]);
    each_is_run_or_dropped_once([1u64; 4]);
    each_is_run_or_dropped_once([1u64; 5]);
    each_is_run_or_dropped_once([1u64; 6]);
    each_is_run_or_dropped_once([1u64; 500]);
    each_is_run_or_dropped_once(Wide(1));
    assert_eq!(Wide(1).0, 1);
}

/// Given a process that may use one processor of several, then a pool has one worker unless told otherwise.
#[test]
#[cfg(target_os = "linux")]
fn the_processors_that_a_process_may_use_are_its_workers() {
    const NAME: &str = "pool::sizes::the_processors_that_a_process_may_use_are_its_workers";
    let workers = || WorkerPool::builder().build().unwrap().stats().limit;
    if std::env::var_os("TOLLGATE_ONE_PROCESSOR").is_some() {
        return assert_eq!(workers(), 1);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = allowed.unwrap().trim().split([',', '-']).next().unwrap();
    let child = std::process::Command::new("taskset")
        .args(["--cpu-list", first])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME])
        .env("TOLLGATE_ONE_PROCESSOR", "1")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert_eq!(workers(), std::thread::available_parallelism().unwrap().get());
}
