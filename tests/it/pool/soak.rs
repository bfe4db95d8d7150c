//! Everything at once on pools of both kinds, for as long as `TOLLGATE_SOAK_SECONDS` says: submissions, cancels, waits that are
//! given up, resizes, changes of the policy's limits, panics of tasks, drops, wakers and hooks, shutdowns, and pools anew. Each task runs
//! at most once and is dropped once, and no thread, permit or place is left.

use crate::pool::kinds::{Handle, Kind, LONG, Pool, block_on, pool};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::pool::{Overflow, Priority, TaskError};
use tollgate::{Inherit, LimiterExt as _, Policy, Quota, Semaphore, TokenBucket};

const SUBMITTERS: usize = 3;
const EACH: usize = 150;
const QUEUE: usize = 12;

/// A random number below `n`, of a sequence of its own for each `seed`.
fn below(seed: &mut u64, n: usize) -> usize {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % n
}

#[derive(Default)]
struct Tally {
    made: AtomicUsize,
    dropped: AtomicUsize,
    ran: AtomicUsize,
    accepted: AtomicUsize,
}

/// Travels with a task. Its drop may panic.
struct Load(Arc<Tally>, bool);

impl Load {
    fn of(tally: &Arc<Tally>, panics: bool) -> Self {
        tally.made.fetch_add(1, SeqCst);
        Self(Arc::clone(tally), panics)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, SeqCst);
        if self.1 && !thread::panicking() {
            resume_unwind(Box::new("dropped"));
        }
    }
}

struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("woken"));
    }
}

fn task(pool: Pool, tally: &Arc<Tally>, mut seed: u64, depth: usize) -> impl Future<Output = usize> + Send + use<> {
    let load = Load::of(tally, below(&mut seed, 20) == 0);
    async move {
        load.0.ran.fetch_add(1, SeqCst);
        match below(&mut seed, 8) {
            0 => resume_unwind(Box::new("task")),
            1 | 2 => tokio::task::yield_now().await,
            3 | 4 if depth > 0 => {
                let child: Pin<Box<dyn Future<Output = usize> + Send>> =
                    Box::pin(task(pool.clone(), &load.0, seed, depth - 1));
                if let Ok(child) = pool.try_submit(child) {
                    load.0.accepted.fetch_add(1, SeqCst);
                    let _ = child.join().await;
                }
            }
            _ => {}
        }
        depth
    }
}

async fn submits(pool: Pool, tally: Arc<Tally>, mut seed: u64) {
    let mut handles: Vec<Handle<usize>> = Vec::new();
    for _ in 0..EACH {
        let mut to = pool.priority([Priority::Low, Priority::Normal, Priority::High][below(&mut seed, 3)]);
        to = to.weight(1 + below(&mut seed, 3) as u32);
        if below(&mut seed, 6) == 0 {
            to = to.deadline(Duration::from_micros(below(&mut seed, 400) as u64));
        }
        let task = task(pool.clone(), &tally, seed, 2);
        let submitted = match below(&mut seed, 3) {
            0 => to.try_submit(task),
            1 => to.submit_timeout(task, Duration::from_micros(200)).await,
            _ => to.submit_async(task).await,
        };
        let mut handle = match submitted {
            Ok(handle) => handle,
            Err(rejected) => {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(rejected)));
                continue;
            }
        };
        tally.accepted.fetch_add(1, SeqCst);
        match below(&mut seed, 6) {
            0 => _ = handle.cancel(),
            1 => {
                let waker = Waker::from(Arc::new(PanickingWaker));
                if Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_ready() {
                    continue;
                }
            }
            2 => continue,
            3 => {
                let _ = handle.join_timeout(Duration::from_micros(50)).await;
                continue;
            }
            _ => {}
        }
        handles.push(handle);
        while handles.len() > QUEUE {
            let handle = handles.swap_remove(below(&mut seed, QUEUE));
            if let Err(why) = handle.join().await {
                assert!(!matches!(why, TaskError::TooManyParked), "{why:?}");
            }
        }
    }
    for handle in handles {
        let _ = handle.join().await;
    }
}

async fn round(kind: Kind, mut seed: u64, seen: Arc<Mutex<Option<Pool>>>) {
    let overflows = [
        Overflow::Block,
        Overflow::Reject,
        Overflow::DropOldest,
        Overflow::DropNewest,
    ];
    let overflow = overflows[below(&mut seed, 4)];
    let slots = Arc::new(Semaphore::new(2));
    let quota = |n: usize| Quota::per_second(50_000 * n as u64);
    let (rate, in_flight) = (Arc::new(TokenBucket::new(quota(3))), Arc::new(Semaphore::new(3)));
    let policy = Policy::new((Arc::clone(&rate), Arc::clone(&in_flight)));
    macro_rules! of {
        ($($set:ident($to:expr)),*) => {
            pool!(
                kind, 2, max_queue(QUEUE), max_queue_weight(20), overflow(overflow),
                on_panic(|_| resume_unwind(Box::new("hook"))), on_discard(|_| resume_unwind(Box::new("hook")))
                $(, $set($to))*
            )
        };
    }
    let pool = match below(&mut seed, 4) {
        0 => of!(admit_by(policy.clone())),
        1 => of!(slots(Arc::clone(&slots))),
        _ => of!(),
    };
    *seen.lock().unwrap() = Some(pool.clone());
    let tally = Arc::new(Tally::default());
    let submitters = (0..SUBMITTERS as u64).map(|n| {
        let (pool, tally) = (pool.clone(), Arc::clone(&tally));
        match kind {
            Kind::Threads => Err(thread::spawn(move || block_on(submits(pool, tally, seed ^ n)))),
            Kind::Tasks => Ok(tokio::spawn(submits(pool, tally, seed ^ n))),
        }
    });
    let submitters: Vec<_> = submitters.collect();
    for _ in 0..below(&mut seed, 200) {
        pool.set_limit(1 + below(&mut seed, 4)).unwrap();
        let n = 1 + below(&mut seed, 4);
        rate.set_quota(quota(n), Inherit::AsIs);
        in_flight.set_limit(n);
        let _ = pool.wait_idle_timeout(Duration::from_micros(20)).await;
        tokio::task::yield_now().await;
    }
    let mut report = match below(&mut seed, 3) {
        0 => pool.abort(),
        _ => {
            pool.shutdown(Duration::from_micros(below(&mut seed, 20_000) as u64))
                .await
        }
    };
    // A task may wait for one that the report lists.
    while report.left().0 > 0 {
        drop(report.first());
    }
    let waits = report.wait().await;
    for submitter in submitters {
        match submitter {
            Ok(task) => task.await.unwrap(),
            Err(thread) => thread
                .join()
                .unwrap_or_else(|payload| panic!("thread {:?}", payload.downcast_ref::<&str>())),
        }
    }
    assert!(waits && pool.shutdown(LONG).await.is_clean(), "{kind:?} {seed}");
    let stats = pool.stats();
    assert_eq!(
        (stats.threads, stats.queued, stats.unfinished),
        (0, 0, 0),
        "{kind:?} {seed}: {stats:?}"
    );
    let [made, dropped, ran, accepted] =
        [&tally.made, &tally.dropped, &tally.ran, &tally.accepted].map(|count| count.load(SeqCst));
    assert!(
        made == dropped && ran <= accepted,
        "{kind:?} {seed}: {made} {dropped} {ran} {accepted}"
    );
    // Submitted tasks include those that a full queue discarded at once.
    assert!(stats.submitted as usize <= accepted, "{kind:?} {seed}: {stats:?}");
    assert_eq!(
        (slots.in_use(), slots.waiting(), policy.waiting()),
        (0, 0, 0),
        "{kind:?} {seed}"
    );
    assert!(policy.try_admit(tollgate::Ask::one()).is_ok() || policy.waiting() == 0);
}

#[test]
#[ignore = "as long as TOLLGATE_SOAK_SECONDS says"]
fn everything_at_once_leaves_nothing() {
    let seconds = std::env::var("TOLLGATE_SOAK_SECONDS").map_or(10, |seconds| seconds.parse().unwrap());
    let (end, mut seed) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < end {
        for kind in [Kind::Threads, Kind::Tasks] {
            let (tell, told) = mpsc::channel();
            let seen = Arc::new(Mutex::new(None));
            let pool = Arc::clone(&seen);
            let runs = thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_time()
                    .build();
                runtime.unwrap().block_on(round(kind, seed, pool));
                let _ = tell.send(());
            });
            match told.recv_timeout(4 * LONG) {
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!(
                        "{kind:?} {seed} stands still: {:?}",
                        seen.lock().unwrap().as_ref().map(Pool::stats)
                    );
                }
                _ => runs
                    .join()
                    .unwrap_or_else(|payload| panic!("{kind:?} {seed}: {:?}", payload.downcast_ref::<&str>())),
            }
        }
        seed += 1;
    }
    println!("{seed} rounds of both kinds");
}
