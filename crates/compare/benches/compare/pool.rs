//! Worker pools: empty tasks and tasks of a microsecond, one submitter, two workers, each side with a pool that lives
//! through the whole row. A batch ends when all its tasks have. Peers but rayon have no bound on their queues; ours
//! holds 4,096 tasks and its submitter waits for room.

use crate::harness::{Batch, Rows, Sample, cpu_nanos, quantile};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tollgate::WorkerPool;

const WORKERS: usize = 2;
const QUEUE: usize = 1 << 16;

/// Counts tasks down, and wakes the waiter for the last.
#[derive(Default)]
struct Countdown {
    left: AtomicU64,
    done: Mutex<bool>,
    ended: Condvar,
}

impl Countdown {
    fn start(&self, n: u64) {
        *self.done.lock().expect("no task panics") = false;
        self.left.store(n, Ordering::SeqCst);
    }

    fn one(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            *self.done.lock().expect("no task panics") = true;
            self.ended.notify_all();
        }
    }

    fn wait(&self) {
        let mut done = self.done.lock().expect("no task panics");
        while !*done {
            done = self.ended.wait(done).expect("no task panics");
        }
    }
}

/// A task that computes for so long.
fn spin(length: Duration) {
    if !length.is_zero() {
        let start = Instant::now();
        while start.elapsed() < length {
            std::hint::spin_loop();
        }
    }
}

/// A side that submits `n` tasks by `submit` and waits for the last.
fn side<'a>(length: Duration, submit: impl Fn(Box<dyn Fn() -> Task + 'a>, u64) + 'a) -> Batch<'a> {
    let countdown = Arc::new(Countdown::default());
    Box::new(move |n| {
        countdown.start(n);
        let made = Arc::clone(&countdown);
        submit(Box::new(move || Task(Arc::clone(&made), length)), n);
        countdown.wait();
    })
}

struct Task(Arc<Countdown>, Duration);

impl Task {
    #[inline]
    fn run(self) {
        spin(self.1);
        self.0.one();
    }
}

fn ours() -> WorkerPool {
    WorkerPool::builder()
        .workers(WORKERS)
        .max_queue(QUEUE)
        .build()
        .expect("a pool")
}

pub(crate) fn rows(rows: &Rows) {
    threads(rows, "pool/empty", Duration::ZERO);
    threads(rows, "pool/1us", Duration::from_micros(1));
    cpu(rows, "pool/empty-cpu", Duration::ZERO);
    cpu(rows, "pool/1us-cpu", Duration::from_micros(1));
    elastic(rows);
    tail(rows);
}

fn threads(rows: &Rows, name: &str, length: Duration) {
    let batched = format!("{name}-batch");
    if !rows.wants(name) && !rows.wants(&batched) {
        return;
    }
    let pool = ours();
    let peers = Peers::new();
    rows.wall(
        name,
        peers.with(
            length,
            side(length, |task, n| {
                for _ in 0..n {
                    let task = task();
                    pool.execute(move || task.run()).expect("room");
                }
            }),
        ),
    );
    rows.wall(
        &batched,
        peers.with(
            length,
            side(length, |task, n| {
                let tasks = (0..n).map(|_| {
                    let task = task();
                    move || task.run()
                });
                assert!(pool.execute_all(tasks).is_empty());
            }),
        ),
    );
    let with_handles = format!("{name}-handles");
    rows.wall(
        &with_handles,
        peers.with(
            length,
            side(length, |task, n| {
                for _ in 0..n {
                    let task = task();
                    drop(pool.submit(move || task.run()).expect("room"));
                }
            }),
        ),
    );
}

/// The same by the CPU time of the process: it does not depend on what else the machine does.
fn cpu(rows: &Rows, name: &str, length: Duration) {
    const TASKS: u64 = 20_000;
    if !rows.wants(name) {
        return;
    }
    let pool = ours();
    let peers = Peers::new();
    let batched = side(length, |task, n| {
        let tasks = (0..n).map(|_| {
            let task = task();
            move || task.run()
        });
        assert!(pool.execute_all(tasks).is_empty());
    });
    let single = side(length, |task, n| {
        for _ in 0..n {
            let task = task();
            pool.execute(move || task.run()).expect("room");
        }
    });
    let mut sides = peers.with(length, single);
    sides.push(("ours-batch", batched));
    // What the tasks take by themselves: the rest is overhead.
    let alone = side(length, |task, n| (0..n).for_each(|_| task().run()));
    sides.push(("no pool", alone));
    let sides = sides.into_iter().map(|(peer, mut batch)| {
        let sample: Sample<'_> = Box::new(move || cpu_nanos(|| batch(TASKS)) / TASKS as f64);
        (peer, sample)
    });
    rows.sampled(name, 40, sides.collect());
}

struct Peers {
    threadpool: threadpool::ThreadPool,
    rusty: rusty_pool::ThreadPool,
    rayon: rayon::ThreadPool,
}

impl Peers {
    fn new() -> Self {
        Self {
            threadpool: threadpool::ThreadPool::new(WORKERS),
            rusty: rusty_pool::ThreadPool::new(WORKERS, WORKERS, Duration::from_secs(60)),
            rayon: rayon::ThreadPoolBuilder::new()
                .num_threads(WORKERS)
                .build()
                .expect("a pool"),
        }
    }

    fn with<'a>(&'a self, length: Duration, ours: Batch<'a>) -> Vec<(&'static str, Batch<'a>)> {
        let threadpool = side(length, move |task, n| {
            for _ in 0..n {
                let task = task();
                self.threadpool.execute(move || task.run());
            }
        });
        let rusty = side(length, move |task, n| {
            for _ in 0..n {
                let task = task();
                self.rusty.execute(move || task.run());
            }
        });
        let rayon = side(length, move |task, n| {
            for _ in 0..n {
                let task = task();
                self.rayon.spawn(move || task.run());
            }
        });
        vec![
            ("tollgate", ours),
            ("threadpool", threadpool),
            ("rusty_pool", rusty),
            ("rayon", rayon),
        ]
    }
}

/// A fixed and an elastic pool of ours, each made for one burst of 2,000 tasks of 10 us: CPU time per task.
fn elastic(rows: &Rows) {
    const TASKS: u32 = 2_000;
    let name = "pool/fixed-elastic-cpu";
    if !rows.wants(name) {
        return;
    }
    let burst = |pool: WorkerPool| {
        cpu_nanos(|| {
            for _ in 0..TASKS {
                pool.execute(|| spin(Duration::from_micros(10))).expect("room");
            }
            assert!(pool.shutdown(Duration::from_secs(60)).is_clean());
        }) / f64::from(TASKS)
    };
    let builder = || WorkerPool::builder().max_queue(QUEUE);
    rows.sampled(
        name,
        10,
        vec![
            (
                "fixed-2",
                Box::new(move || burst(builder().workers(2).build().expect("a pool"))),
            ),
            (
                "elastic-1..=32",
                Box::new(move || burst(builder().workers(1..=32).build().expect("a pool"))),
            ),
            (
                "fixed-32",
                Box::new(move || burst(builder().workers(32).build().expect("a pool"))),
            ),
        ],
    );
}

/// The 99th percentile of the time from a submission to the start of its task, of 2,000 tasks of 10 us. The submitter spins until the
/// next is due, each 20 us. So on two processors it takes one, and the tasks half of the other.
fn tail(rows: &Rows) {
    const TASKS: usize = 2_000;
    const LENGTH: Duration = Duration::from_micros(10);
    const EVERY: Duration = Duration::from_micros(20);
    let name = "pool/start-p99";
    if !rows.wants(name) {
        return;
    }
    type Submit<'a> = Box<dyn Fn(Box<dyn FnOnce() + Send>) + 'a>;
    let (pool, peers) = (ours(), Peers::new());
    let sides: [(&str, Submit<'_>); 4] = [
        ("tollgate", Box::new(|task| pool.execute(task).expect("room"))),
        ("threadpool", Box::new(|task| peers.threadpool.execute(task))),
        ("rusty_pool", Box::new(|task| peers.rusty.execute(task))),
        ("rayon", Box::new(|task| peers.rayon.spawn(task))),
    ];
    let sides = sides.into_iter().map(|(peer, submit)| {
        let sample: Sample<'_> = Box::new(move || {
            let countdown = Arc::new(Countdown::default());
            countdown.start(TASKS as u64);
            let waits: Arc<[AtomicU64]> = (0..TASKS).map(|_| AtomicU64::new(0)).collect();
            let start = Instant::now();
            for task in 0..TASKS {
                while start.elapsed() < EVERY * task as u32 {
                    std::hint::spin_loop();
                }
                let (ends, waits, submitted) = (Arc::clone(&countdown), Arc::clone(&waits), Instant::now());
                submit(Box::new(move || {
                    waits[task].store(submitted.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    spin(LENGTH);
                    ends.one();
                }));
            }
            countdown.wait();
            let mut waits: Vec<_> = waits.iter().map(|wait| wait.load(Ordering::Relaxed) as f64).collect();
            quantile(0.99, &mut waits)
        });
        (peer, sample)
    });
    rows.medians(name, 40, sides.collect());
}
