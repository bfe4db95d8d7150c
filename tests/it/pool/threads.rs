//! Worker pools: what threads alone have. What async tasks do as well is in `pool::parity`.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use tollgate::pool::PoolBuilder;
use tollgate::{JoinHandle, WorkerPool};

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

/// Keeps a worker busy until it is let go.
pub(crate) struct Busy {
    release: mpsc::Sender<()>,
    handle: JoinHandle<()>,
}

impl Busy {
    pub(crate) fn on(pool: &WorkerPool) -> Self {
        let (release, released) = mpsc::channel();
        let (start, started) = mpsc::channel();
        let handle = pool.submit(move || {
            start.send(()).unwrap();
            let _ = released.recv();
        });
        started.recv().unwrap();
        Self {
            release,
            handle: handle.unwrap(),
        }
    }

    pub(crate) fn end(self) {
        drop(self.release);
        self.handle.join().unwrap();
    }
}

fn panics<T>() -> T {
    resume_unwind(Box::new("on purpose"))
}

#[test]
fn tasks_of_a_scope_borrow() {
    let mut counts = [0_usize; 8];
    let words = ["a", "bc", "def"];
    let total = WorkerPool::builder()
        .workers(2)
        .scope(|pool| {
            for count in &mut counts {
                pool.execute(|| *count = words.len()).unwrap();
            }
            pool.submit(|| words.iter().map(|word| word.len()).sum::<usize>())
                .unwrap()
                .join()
                .unwrap()
        })
        .unwrap();
    assert_eq!((counts, total), ([3; 8], 6));
}

#[test]
fn a_scope_whose_body_panics_ends() {
    let ran = AtomicUsize::new(0);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        one().scope(|pool| {
            let first = pool.submit(|| ran.fetch_add(1, Ordering::SeqCst)).unwrap();
            first.join().unwrap();
            panics::<()>();
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn bad_numbers_are_named() {
    let build = |builder: PoolBuilder| builder.build().unwrap_err().to_string();
    assert!(build(WorkerPool::builder().workers(0)).contains("0 to 0 workers"));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 5..=2;
    assert!(build(WorkerPool::builder().workers(reversed)).contains("5 to 2 workers"));
    assert!(build(WorkerPool::builder().workers(1 << 20)).contains("1 to 65536"));
    assert!(build(one().max_queue(0)).contains("a queue of 0 tasks"));
    assert!(build(one().max_queue(usize::MAX)).contains("2147483647"));
    assert!(build(one().max_queue_weight(0)).contains("weight of 0"));
}

#[test]
fn threads_have_names_and_run_the_hook_first() {
    thread_local!(static READY: Cell<bool> = const { Cell::new(false) });
    let pool = one()
        .name("sums")
        .stack_size(1 << 20)
        .on_start(|| READY.set(true))
        .build()
        .unwrap();
    let seen = pool.run(|| (READY.get(), thread::current().name().map(str::to_owned)));
    assert_eq!(seen.unwrap(), (true, Some("sums-0".into())));
}
