//! Empty tasks, one submitter, two workers: this engine beside the pool that it is to replace, in turn.
//!
//! `cargo bench -p tollgate-engine --bench speed`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

fn latch(n: usize, submit: impl Fn(Arc<(AtomicUsize, std::thread::Thread)>)) -> f64 {
    let left = Arc::new((AtomicUsize::new(n), std::thread::current()));
    let start = Instant::now();
    for _ in 0..n {
        submit(Arc::clone(&left));
    }
    while left.0.load(Ordering::Acquire) > 0 {
        std::thread::park();
    }
    start.elapsed().as_nanos() as f64 / n as f64
}

fn one(left: &(AtomicUsize, std::thread::Thread)) {
    if left.0.fetch_sub(1, Ordering::AcqRel) == 1 {
        left.1.unpark();
    }
}

fn main() {
    const N: usize = 20_000;
    const QUEUE: usize = 1 << 16;
    let engine = tollgate_engine::WorkerPool::new(2, QUEUE, 256);
    let pool = tollgate::WorkerPool::builder().workers(2).queue(QUEUE).build().unwrap();
    let mut rows = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..200 {
        rows[0].push(latch(N, |left| engine.execute(move || one(&left)).unwrap()));
        rows[1].push(latch(N, |left| pool.execute(move || one(&left)).unwrap()));
        rows[2].push(latch(N, |left| drop(engine.submit(move || one(&left)).unwrap())));
        rows[3].push(latch(N, |left| drop(pool.submit(move || one(&left)).unwrap())));
    }
    for (name, row) in ["engine, execute", "pool, execute", "engine, submit", "pool, submit"]
        .iter()
        .zip(&mut rows)
    {
        row.sort_by(f64::total_cmp);
        println!(
            "{name:16} p10 {:6.1} ns  p50 {:6.1} ns",
            row[row.len() / 10],
            row[row.len() / 2]
        );
    }
}
