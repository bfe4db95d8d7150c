//! The semaphore beside those of tokio, async-lock, async-semaphore (both are not fair: a release is up for grabs), saa and
//! futures-intrusive (built fair).

use crate::harness::{Rows, Sample, cpu_nanos, each, poll_once, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

const WAITERS: usize = 100_000;
const CANCELS: u32 = 5_000;
const ROUNDS: usize = 150;

/// A side that makes and queues `WAITERS` futures behind one permit and lets them through one by one. A waiter is paid
/// for whole, by both sides: one keeps it in the future, the other partly in the queue.
macro_rules! drain {
    ($name:literal, $semaphore:expr, $acquire:ident $(, $n:literal)?) => {
        (
            $name,
            Box::new(|| {
                let semaphore = $semaphore;
                let mut held = Some(ready(semaphore.$acquire($($n)?)));
                let nanos = cpu_nanos(|| {
                    let mut queue: Vec<_> = (0..WAITERS).map(|_| Box::pin(semaphore.$acquire($($n)?))).collect();
                    for waiter in &mut queue {
                        assert!(poll_once(waiter.as_mut()).is_pending());
                    }
                    for waiter in &mut queue {
                        drop(held.take());
                        match poll_once(waiter.as_mut()) {
                            Poll::Ready(permit) => held = Some(permit),
                            Poll::Pending => unreachable!("it is the head of the queue"),
                        }
                    }
                });
                nanos / WAITERS as f64
            }) as Sample<'_>,
        )
    };
}

/// A side that makes and queues `WAITERS` futures, and lets all of them through at once.
macro_rules! flood {
    ($name:literal, $semaphore:expr) => {
        (
            $name,
            Box::new(|| {
                let semaphore = $semaphore;
                let nanos = cpu_nanos(|| {
                    let mut queue: Vec<_> = (0..WAITERS).map(|_| Box::pin(semaphore.acquire())).collect();
                    for waiter in &mut queue {
                        assert!(poll_once(waiter.as_mut()).is_pending());
                    }
                    semaphore.add_permits(WAITERS);
                    for waiter in &mut queue {
                        assert!(poll_once(waiter.as_mut()).is_ready());
                    }
                });
                nanos / WAITERS as f64
            }) as Sample<'_>,
        )
    };
}

/// A side that queues and leaves, behind `ahead` others.
macro_rules! cancel {
    ($name:literal, $semaphore:expr, $acquire:ident, $ahead:expr) => {{
        let semaphore = $semaphore;
        (
            $name,
            Box::new(move || {
                let mut queue: Vec<_> = (0..$ahead).map(|_| Box::pin(semaphore.$acquire())).collect();
                for waiter in &mut queue {
                    assert!(poll_once(waiter.as_mut()).is_pending());
                }
                let start = std::time::Instant::now();
                for _ in 0..CANCELS {
                    let waiter = pin!(semaphore.$acquire());
                    assert!(poll_once(waiter).is_pending());
                }
                start.elapsed().as_nanos() as f64 / f64::from(CANCELS)
            }) as Sample<'_>,
        )
    }};
}

/// A side in which 64 tasks of one thread take turns at 4 permits, which each holds across one yield.
macro_rules! tasks {
    ($name:literal, $semaphore:expr, $acquire:ident $(, $n:literal)?) => {{
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let semaphore = Arc::new($semaphore);
        (
            $name,
            Box::new(move || {
                let nanos = cpu_nanos(|| {
                    runtime.block_on(async {
                        let tasks: Vec<_> = (0..64)
                            .map(|_| {
                                let semaphore = Arc::clone(&semaphore);
                                tokio::spawn(async move {
                                    for _ in 0..50 {
                                        let permit = semaphore.$acquire($($n)?).await;
                                        tokio::task::yield_now().await;
                                        drop(permit);
                                    }
                                })
                            })
                            .collect();
                        for task in tasks {
                            task.await.expect("no task panics");
                        }
                    });
                });
                nanos / (64.0 * 50.0)
            }) as Sample<'_>,
        )
    }};
}

/// A side in which four threads hand one permit around, each holding it for a moment.
fn blocked<'a>(name: &'a str, round: impl Fn() + Sync + 'a) -> (&'a str, Sample<'a>) {
    const THREADS: usize = 4;
    const ROUNDS: usize = 500;
    let side = move || {
        let nanos = cpu_nanos(|| {
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| (0..ROUNDS).for_each(|_| round()));
                }
            });
        });
        nanos / (THREADS * ROUNDS) as f64
    };
    (name, Box::new(side))
}

/// Work under a permit that is long enough for the others to arrive.
fn hold_a_moment() {
    for _ in 0..200 {
        std::hint::spin_loop();
    }
}

pub(crate) fn rows(rows: &Rows) {
    let ours = Arc::new(tollgate::Semaphore::new(64));
    let tokio = Arc::new(tokio::sync::Semaphore::new(64));
    let lock = Arc::new(async_lock::Semaphore::new(64));
    let old = async_semaphore::Semaphore::new(64);
    let saa = saa::Semaphore::with_permits(64);
    let intrusive = futures_intrusive::sync::SharedSemaphore::new(true, 64);

    rows.wall(
        "semaphore/try_acquire",
        vec![
            each!("tollgate", ours.try_acquire().is_ok()),
            each!("tokio", tokio.try_acquire().is_ok()),
            each!("async-lock", lock.try_acquire().is_some()),
            each!("async-semaphore", old.try_acquire().is_some()),
            each!("saa", saa.try_acquire() && saa.release()),
        ],
    );
    rows.wall(
        "semaphore/acquire",
        vec![
            each!("tollgate", ready(ours.acquire()).is_ok()),
            each!("tokio", ready(tokio.acquire()).is_ok()),
            each!("async-lock", drop(ready(lock.acquire()))),
            each!("async-semaphore", drop(ready(old.acquire()))),
            each!("saa", {
                ready(saa.acquire_async());
                saa.release()
            }),
        ],
    );
    rows.wall(
        "semaphore/acquire_many(8)",
        vec![
            each!("tollgate", ready(ours.acquire_many(8)).is_ok()),
            each!("tokio", ready(tokio.acquire_many(8)).is_ok()),
            each!("saa", ready(saa.acquire_many_async(8)) && saa.release_many(8)),
        ],
    );
    rows.wall(
        "semaphore/acquire_owned",
        vec![
            each!("tollgate", ready(Arc::clone(&ours).acquire_owned()).is_ok()),
            each!("tokio", ready(Arc::clone(&tokio).acquire_owned()).is_ok()),
            each!("async-lock", drop(ready(lock.acquire_arc()))),
            each!("futures-intrusive", drop(ready(intrusive.acquire(1)))),
        ],
    );
    rows.sampled(
        "semaphore/64-tasks-4-permits-cpu",
        ROUNDS,
        vec![
            tasks!("tollgate", tollgate::Semaphore::new(4), acquire),
            tasks!("tokio", tokio::sync::Semaphore::new(4), acquire),
            tasks!("async-lock", async_lock::Semaphore::new(4), acquire),
            tasks!(
                "futures-intrusive",
                futures_intrusive::sync::Semaphore::new(true, 4),
                acquire,
                1
            ),
        ],
    );
    rows.sampled(
        "semaphore/drain-100000-in-turn-cpu",
        15,
        vec![
            drain!("tollgate", tollgate::Semaphore::new(1), acquire),
            drain!("tokio", tokio::sync::Semaphore::new(1), acquire),
            drain!(
                "futures-intrusive",
                futures_intrusive::sync::Semaphore::new(true, 1),
                acquire,
                1
            ),
        ],
    );
    rows.sampled(
        "semaphore/drain-100000-at-once-cpu",
        15,
        vec![
            flood!("tollgate", tollgate::Semaphore::new(0)),
            flood!("tokio", tokio::sync::Semaphore::new(0)),
        ],
    );
    let (permit, lock) = (tollgate::Semaphore::new(1), parking_lot::Mutex::new(()));
    rows.sampled(
        "semaphore/blocking-4-threads-cpu",
        15,
        vec![
            blocked("tollgate", || {
                let _permit = permit.blocking_acquire();
                hold_a_moment();
            }),
            // Fair as ours: the head of the queue gets it, not the fastest caller.
            blocked("parking_lot", || {
                let guard = lock.lock();
                hold_a_moment();
                parking_lot::MutexGuard::unlock_fair(guard);
            }),
        ],
    );
    for (name, ahead) in [
        ("semaphore/cancel-behind-0", 0),
        ("semaphore/cancel-behind-10000", 10_000),
    ] {
        let sides = vec![
            cancel!("tollgate", tollgate::Semaphore::new(0), acquire, ahead),
            cancel!("tokio", tokio::sync::Semaphore::new(0), acquire, ahead),
            cancel!("async-lock", async_lock::Semaphore::new(0), acquire, ahead),
        ];
        rows.sampled(name, 60, sides);
    }
}
