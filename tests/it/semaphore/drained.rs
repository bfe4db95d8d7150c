//! Waiting until a semaphore has come to rest.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{Ask, LimiterExt, Semaphore};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

#[test]
fn a_drain_ends_when_all_are_back() {
    let semaphore = Semaphore::new(3);
    let count = Arc::default();
    let (one, two) = (semaphore.try_acquire().unwrap(), semaphore.try_acquire_many(2).unwrap());
    semaphore.close();
    let mut idle = pin!(semaphore.until_idle());
    assert!(poll(idle.as_mut(), &count).is_pending());
    drop(two);
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    drop(one);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(poll(idle, &count).is_ready());
    assert!(semaphore.is_closed());
}

/// A watcher keeps no caller from acquiring, by whatever way, and no waiter from its grant in turn.
/// Keeps out rustfs#4498.
#[test]
fn watching_disturbs_no_waiter() {
    let semaphore = Arc::new(Semaphore::new(2));
    let count = Arc::default();
    let held = semaphore.try_acquire().unwrap();
    let mut idle = Box::pin(semaphore.until_idle());
    assert!(poll(idle.as_mut(), &count).is_pending());
    let second = semaphore.try_acquire().unwrap();
    assert!(semaphore.try_acquire().is_err());
    let mut waiter = pin!(semaphore.acquire());
    assert!(poll(waiter.as_mut(), &count).is_pending());
    drop(second);
    let Poll::Ready(Ok(third)) = poll(waiter, &count) else {
        panic!("it has been handed the permit")
    };
    drop(third);
    assert!(poll(pin!(semaphore.acquire()), &count).is_ready());
    assert!(semaphore.try_admit(Ask::one()).is_ok());
    assert_eq!(semaphore.available_permits(), 1);
    assert_eq!(semaphore.forget_permits(1), 1);
    // A permit that is forgotten is not held any more.
    let told = count.0.load(Ordering::SeqCst);
    held.forget();
    assert_eq!(count.0.load(Ordering::SeqCst), told + 1);
    assert!(poll(idle.as_mut(), &count).is_ready());
    drop(idle);
    semaphore.add_permits(1);
    assert!(semaphore.try_acquire().is_ok());
}

#[test]
fn a_dropped_drain_future_leaves_no_trace() {
    let semaphore = Semaphore::new(1);
    let count = Arc::default();
    let held = semaphore.try_acquire().unwrap();
    let mut first = Box::pin(semaphore.until_idle());
    let mut second = Box::pin(semaphore.until_idle());
    assert!(poll(first.as_mut(), &count).is_pending() && poll(second.as_mut(), &count).is_pending());
    drop(first);
    drop(held);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    drop(second);
    drop(semaphore.try_acquire().unwrap());
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
}
