//! The limit changed over and over beside busy tasks: no caller is admitted above the limit in force.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tollgate::Semaphore;

const TASKS: usize = 64;
const CHANGES: u64 = 5_000;

/// The shared state: a version that is odd while the limit changes, and how many are inside.
#[derive(Default)]
struct Seen {
    version: AtomicU64,
    limit: AtomicUsize,
    inside: AtomicUsize,
    checked: AtomicU64,
    ended: AtomicBool,
}

impl Seen {
    /// One admission: the number inside right after it is no more than the limit that was in force all the while.
    async fn admit(&self, semaphore: &Semaphore, n: u32) {
        let before = self.version.load(Ordering::SeqCst);
        let limit = self.limit.load(Ordering::SeqCst);
        let permit = semaphore.acquire_many(n).await.unwrap();
        let inside = self.inside.fetch_add(n as usize, Ordering::SeqCst) + n as usize;
        if before % 2 == 0 && self.version.load(Ordering::SeqCst) == before {
            assert!(inside <= limit, "{inside} inside, and {limit} allowed");
            self.checked.fetch_add(1, Ordering::SeqCst);
        }
        tokio::task::yield_now().await;
        self.inside.fetch_sub(n as usize, Ordering::SeqCst);
        drop(permit);
    }
}

/// Keeps out golang/sync#14.
#[test]
fn admissions_stay_within_the_limit_in_force() {
    let semaphore = Arc::new(Semaphore::new(8));
    let seen = Arc::new(Seen::default());
    seen.limit.store(8, Ordering::SeqCst);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (semaphore, seen) = (Arc::clone(&semaphore), Arc::clone(&seen));
            runtime.spawn(async move {
                while !seen.ended.load(Ordering::SeqCst) {
                    seen.admit(&semaphore, 1 + task as u32 % 3).await;
                }
            })
        })
        .collect();
    for change in 0..CHANGES {
        let limit = [1, 40, 3, 0, 17, 8][change as usize % 6];
        seen.version.fetch_add(1, Ordering::SeqCst);
        semaphore.set_limit(limit);
        seen.limit.store(limit, Ordering::SeqCst);
        seen.version.fetch_add(1, Ordering::SeqCst);
        // Now and then time for some to come in under this limit.
        let checked = seen.checked.load(Ordering::SeqCst);
        while change % 8 == 0 && limit >= 3 && seen.checked.load(Ordering::SeqCst) == checked {
            std::thread::yield_now();
        }
    }
    seen.ended.store(true, Ordering::SeqCst);
    semaphore.set_limit(8);
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
        semaphore.until_idle().await;
    });
    assert!(seen.checked.load(Ordering::SeqCst) >= CHANGES / 16);
    assert_eq!(
        (semaphore.available_permits(), semaphore.limit(), semaphore.debt()),
        (8, 8, 0)
    );
}
