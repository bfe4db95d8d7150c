//! Async fan-out: 10,000 tasks that yield once, at most 64 at once, on a runtime of two threads; CPU time per task.

use crate::harness::{Rows, Sample, cpu_nanos};
use futures::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Runtime;
use tollgate::fan_out::fan_out;
use tollgate::pool::TaskPool;

const TASKS: usize = 10_000;
const LIMIT: usize = 64;

/// A side that runs `work`, which is to count every task, once per sample.
fn side<'a, F>(runtime: &'a Runtime, work: impl Fn(Arc<AtomicUsize>) -> F + 'a) -> Sample<'a>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    Box::new(move || {
        let count = Arc::new(AtomicUsize::new(0));
        let spent = cpu_nanos(|| {
            let work = work(Arc::clone(&count));
            // On the runtime's own threads: `block_on` would make a third.
            let _ended = runtime.block_on(runtime.spawn(work));
        });
        assert_eq!(count.load(Ordering::SeqCst), TASKS);
        spent / TASKS as f64
    })
}

async fn task(count: Arc<AtomicUsize>, yields: bool) {
    if yields {
        tokio::task::yield_now().await;
    }
    count.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn rows(rows: &Rows) {
    both(rows, "fan-out/empty-cpu", false);
    both(rows, "fan-out/yield-cpu", true);
}

fn both(rows: &Rows, name: &str, yields: bool) {
    if !rows.wants(name) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    let ours = side(&runtime, move |count| async move {
        let results = fan_out(0..TASKS, LIMIT).map(move |_| task(Arc::clone(&count), yields));
        assert_eq!(results.count().await, TASKS);
    });
    let ordered = side(&runtime, move |count| async move {
        let results = fan_out(0..TASKS, LIMIT)
            .ordered()
            .map(move |_| task(Arc::clone(&count), yields));
        assert_eq!(results.count().await, TASKS);
    });
    let joinset = side(&runtime, move |count| async move {
        let limit = Arc::new(tokio::sync::Semaphore::new(LIMIT));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let permit = Arc::clone(&limit).acquire_owned().await.expect("open");
            let count = Arc::clone(&count);
            tasks.spawn(async move {
                task(count, yields).await;
                drop(permit);
            });
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    });
    let tracker = side(&runtime, move |count| async move {
        let limit = Arc::new(tokio::sync::Semaphore::new(LIMIT));
        let tasks = tokio_util::task::TaskTracker::new();
        for _ in 0..TASKS {
            let permit = Arc::clone(&limit).acquire_owned().await.expect("open");
            let count = Arc::clone(&count);
            tasks.spawn(async move {
                task(count, yields).await;
                drop(permit);
            });
        }
        tasks.close();
        tasks.wait().await;
    });
    let buffered = side(&runtime, move |count| async move {
        let results = futures::stream::iter(0..TASKS)
            .map(|_| task(Arc::clone(&count), yields))
            .buffer_unordered(LIMIT);
        assert_eq!(results.count().await, TASKS);
    });
    let spawned = side(&runtime, move |count| async move {
        let results = futures::stream::iter(0..TASKS)
            .map(|_| tokio::spawn(task(Arc::clone(&count), yields)))
            .buffer_unordered(LIMIT);
        assert_eq!(results.count().await, TASKS);
    });
    let pooled = side(&runtime, move |count| async move {
        let pool = TaskPool::builder(LIMIT).build().expect("a pool");
        for _ in 0..TASKS {
            drop(pool.submit(task(Arc::clone(&count), yields)).await);
        }
        assert!(pool.wait_idle().await);
    });
    let batched = side(&runtime, move |count| async move {
        let pool = TaskPool::builder(LIMIT).build().expect("a pool");
        let tasks = (0..TASKS).map(|_| task(Arc::clone(&count), yields));
        drop(pool.submit_all(tasks).await);
        assert!(pool.wait_idle().await);
    });
    rows.sampled(
        name,
        40,
        vec![
            ("tollgate", ours),
            ("tollgate-ordered", ordered),
            ("TaskPool", pooled),
            ("TaskPool-batch", batched),
            ("JoinSet+Semaphore", joinset),
            ("TaskTracker+Sem.", tracker),
            ("buffer_unordered", buffered),
            ("buffer_un.-spawned", spawned),
        ],
    );
}
