//! Who else may say how many tasks of a pool run: an adaptive limit, and a pool around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tollgate::{Policy, Semaphore};

const LONG: Duration = Duration::from_secs(60);

/// Given a pool of async tasks with a bound of three, in another with a bound of four whose permits it asks for too, then no
/// more than three of its own run at once, and four in all.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_pool_within_another_keeps_both_bounds() {
    use tollgate::pool::TaskPool;
    #[derive(Default)]
    struct Gauge(AtomicUsize, AtomicUsize);
    impl Gauge {
        async fn inside(&self) {
            let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            self.1.fetch_max(now, Ordering::SeqCst);
        }
        fn leave(&self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let whole = Arc::new(Semaphore::new(4));
    let outer = TaskPool::builder(4).slots(Arc::clone(&whole)).build().unwrap();
    let policy = Policy::new(Arc::clone(&whole));
    let inner = TaskPool::builder(3).admit_by(policy).build().unwrap();
    let (all, own) = (Arc::new(Gauge::default()), Arc::new(Gauge::default()));
    for n in 0..80 {
        let (gauge, other) = (Arc::clone(&all), Arc::clone(&all));
        let task = async move {
            gauge.inside().await;
            tokio::task::yield_now().await;
            gauge.leave();
        };
        // Each asks for one permit at a time, so with as many tasks each would have half of them.
        if n < 40 {
            drop(outer.submit(task).await.unwrap());
        }
        let gauge = Arc::clone(&own);
        let task = async move {
            other.inside().await;
            gauge.inside().await;
            tokio::task::yield_now().await;
            gauge.leave();
            other.leave();
        };
        drop(inner.submit(task).await.unwrap());
    }
    assert!(inner.shutdown(LONG).await.is_clean());
    assert!(outer.shutdown(LONG).await.is_clean());
    assert_eq!((all.1.load(Ordering::SeqCst), own.1.load(Ordering::SeqCst)), (4, 3));
    assert_eq!(whole.available_permits(), 4);
}
