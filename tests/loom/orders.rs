//! Lines that are not plainly first come, first served: overtaken, with classes, bounded.

use loom::thread;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{AcquireError, Ask, Eviction, Order, Policy, Semaphore, SemaphorePermit};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Acquired = Result<SemaphorePermit<'static>, AcquireError>;

struct Waiter {
    future: Pin<Box<dyn Future<Output = Acquired>>>,
    count: Arc<Count>,
    /// Wake-ups that the last poll has answered.
    seen: usize,
}

impl Waiter {
    fn of(semaphore: &'static Semaphore, class: u8) -> Self {
        Self {
            future: Box::pin(semaphore.request(1).class(class).acquire()),
            count: Arc::default(),
            seen: 0,
        }
    }

    fn poll(&mut self) -> Poll<Acquired> {
        self.seen = self.count.0.load(Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.count));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn queued(mut self) -> Self {
        assert!(self.poll().is_pending());
        self
    }

    fn woken(&self) -> bool {
        self.count.0.load(Ordering::SeqCst) > self.seen
    }

    /// Everything is free: it has been notified, or its poll reports it.
    #[track_caller]
    fn served(&mut self) -> Acquired {
        assert!(self.woken(), "asleep, and all permits are free");
        match self.poll() {
            Poll::Ready(acquired) => acquired,
            Poll::Pending => panic!("woken for nothing"),
        }
    }
}

/// Lives as long as the model: permits and futures borrow it.
fn leaked(semaphore: Semaphore) -> &'static Semaphore {
    Box::leak(Box::new(semaphore))
}

#[track_caller]
fn untouched(semaphore: &Semaphore) {
    assert_eq!(
        (semaphore.in_use(), semaphore.waiting(), semaphore.available_permits()),
        (0, 0, 1)
    );
}

/// The one that was woken finds nothing, and waits again, while its overtaker releases.
/// Keeps out go-huggingface#60.
#[test]
fn a_head_that_is_overtaken_beside_its_look_is_woken_again() {
    crate::exhaustive(|| {
        let semaphore = leaked(Semaphore::builder(1).overtakes(1).build().unwrap());
        let held = semaphore.try_acquire().unwrap();
        let mut waiter = Waiter::of(semaphore, 0).queued();
        drop(held);
        let overtaker = thread::spawn(move || drop(semaphore.try_acquire()));
        let at_once = waiter.poll();
        overtaker.join().unwrap();
        if at_once.is_pending() {
            assert!(waiter.served().is_ok());
        }
        drop(at_once);
        untouched(semaphore);
    });
}

/// A waiter that has been overtaken often enough is handed its permit, whatever newcomer is beside the release.
#[test]
fn a_head_that_was_overtaken_once_is_handed_its_permit_beside_a_second() {
    crate::exhaustive(|| {
        let semaphore = leaked(Semaphore::builder(1).overtakes(1).build().unwrap());
        let held = semaphore.try_acquire().unwrap();
        let mut waiter = Waiter::of(semaphore, 0).queued();
        let others = thread::spawn(move || (0..2).filter(|_| semaphore.try_acquire().is_ok()).count());
        drop(held);
        assert!(others.join().unwrap() <= 1, "it is overtaken at most once");
        assert!(waiter.served().is_ok());
        untouched(semaphore);
    });
}

/// A queued policy is handed its turn, even where others may overtake.
#[test]
fn a_queued_policy_is_woken_beside_an_overtaker() {
    crate::exhaustive(|| {
        let semaphore = leaked(Semaphore::builder(1).overtakes(3).build().unwrap());
        let policy = Box::leak(Box::new(Policy::new(semaphore)));
        let held = semaphore.try_acquire().unwrap();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut admitted = Box::pin(policy.admit(Ask::one()));
        assert!(admitted.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let overtaker = thread::spawn(move || drop(semaphore.try_acquire()));
        drop(held);
        overtaker.join().unwrap();
        assert!(
            count.0.load(Ordering::SeqCst) > 0,
            "its turn has come, and it was not woken"
        );
        let admitted = admitted.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(admitted, Poll::Ready(Ok(_))));
        drop(admitted);
        untouched(semaphore);
    });
}

#[test]
fn a_head_that_was_woken_and_leaves_beside_an_overtaker_wakes_the_next() {
    crate::exhaustive(|| {
        let semaphore = leaked(Semaphore::builder(1).overtakes(1).build().unwrap());
        let held = semaphore.try_acquire().unwrap();
        let first = Waiter::of(semaphore, 0).queued();
        let mut second = Waiter::of(semaphore, 0).queued();
        drop(held);
        let overtaker = thread::spawn(move || drop(semaphore.try_acquire()));
        drop(first);
        overtaker.join().unwrap();
        assert!(second.served().is_ok());
        untouched(semaphore);
    });
}

#[test]
fn a_grant_by_class_that_is_dropped_goes_to_the_next() {
    crate::exhaustive(|| {
        let order = Order::Priority {
            classes: 2,
            patience: 1,
        };
        let semaphore = leaked(Semaphore::builder(1).order(order).build().unwrap());
        let held = semaphore.try_acquire().unwrap();
        let mut low = Waiter::of(semaphore, 1).queued();
        let high = Waiter::of(semaphore, 0).queued();
        let releaser = thread::spawn(move || drop(held));
        drop(high);
        releaser.join().unwrap();
        assert!(low.served().is_ok());
        untouched(semaphore);
    });
}

#[test]
fn a_waiter_evicted_beside_a_release_is_granted_or_refused() {
    crate::exhaustive(|| {
        let builder = Semaphore::builder(1).max_queue(1).eviction(Eviction::Oldest);
        let semaphore = leaked(builder.build().unwrap());
        let held = semaphore.try_acquire().unwrap();
        let mut oldest = Waiter::of(semaphore, 0).queued();
        let releaser = thread::spawn(move || drop(held));
        let mut newest = Waiter::of(semaphore, 0);
        let at_once = newest.poll();
        releaser.join().unwrap();
        let granted = match oldest.served() {
            Ok(permit) => {
                drop(permit);
                true
            }
            Err(error) => !error.is_evicted(),
        };
        if at_once.is_pending() {
            assert!(newest.served().is_ok());
        } else {
            assert!(granted);
        }
        drop(at_once);
        untouched(semaphore);
    });
}

/// A release beside a thread that begins to watch is seen by it, or notifies it.
/// Writes under the permits are seen by the drainer, also where the flag was set already.
#[test]
fn a_drain_of_a_closed_semaphore_sees_the_writes() {
    crate::exhaustive(|| {
        let semaphore = leaked(Semaphore::new(1));
        let data = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let held = semaphore.try_acquire().unwrap();
        semaphore.close();
        let written = Arc::clone(&data);
        let releaser = thread::spawn(move || {
            written.store(1, loom::sync::atomic::Ordering::Relaxed);
            drop(held);
        });
        let mut idle = Box::pin(semaphore.until_idle());
        if idle.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            let seen = data.load(loom::sync::atomic::Ordering::Relaxed);
            assert_eq!(seen, 1, "the drain is over, and the work is not seen");
        }
        drop(idle);
        releaser.join().unwrap();
    });
}

/// Keeps out rustfs#4498.
#[test]
fn a_drain_that_begins_beside_the_last_release_ends() {
    crate::exhaustive(|| {
        let semaphore = leaked(Semaphore::new(1));
        let held = semaphore.try_acquire().unwrap();
        let releaser = thread::spawn(move || drop(held));
        let mut idle = Box::pin(semaphore.until_idle());
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        let at_once = idle.as_mut().poll(&mut Context::from_waker(&waker));
        releaser.join().unwrap();
        assert!(at_once.is_ready() || count.0.load(Ordering::SeqCst) == 1);
        drop(idle);
        untouched(semaphore);
        assert!(semaphore.try_acquire().is_ok());
    });
}

/// Writes under a permit are seen under the next, also where the lock is taken for a watcher.
#[test]
fn writes_under_a_permit_are_seen_while_another_thread_watches() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::builder(1).build().unwrap());
        let data = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let held = Arc::clone(&semaphore).try_acquire_owned().unwrap();
        let mut idle = Box::pin(semaphore.until_idle());
        let waker = Waker::from(Arc::<Count>::default());
        assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let written = Arc::clone(&data);
        let holder = thread::spawn(move || {
            written.store(1, loom::sync::atomic::Ordering::Relaxed);
            drop(held);
        });
        if let Ok(_permit) = semaphore.try_acquire() {
            assert_eq!(data.load(loom::sync::atomic::Ordering::Relaxed), 1);
        }
        drop(idle);
        holder.join().unwrap();
    });
}

/// The same for a waiter that is granted by the rules: two permits that come back one by one.
#[test]
fn writes_under_all_permits_are_seen_by_a_scheduled_waiter() {
    crate::bounded(3, || {
        let order = Order::Priority {
            classes: 2,
            patience: 1,
        };
        let semaphore: &'static Semaphore = Box::leak(Box::new(Semaphore::builder(2).order(order).build().unwrap()));
        let data = [0, 1].map(|_| Arc::new(loom::sync::atomic::AtomicUsize::new(0)));
        let held = [0, 1].map(|_| semaphore.try_acquire().unwrap());
        let waker = Waker::from(Arc::<Count>::default());
        let mut both = Box::pin(semaphore.request(2).class(1).acquire());
        assert!(both.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let holders: Vec<_> = (held.into_iter().zip(data.clone()))
            .map(|(permit, data)| {
                thread::spawn(move || {
                    data.store(1, loom::sync::atomic::Ordering::Relaxed);
                    drop(permit);
                })
            })
            .collect();
        if let Poll::Ready(granted) = both.as_mut().poll(&mut Context::from_waker(&waker)) {
            assert!(granted.is_ok());
            for data in &data {
                assert_eq!(data.load(loom::sync::atomic::Ordering::Relaxed), 1);
            }
        }
        drop(both);
        holders.into_iter().for_each(|holder| holder.join().unwrap());
    });
}
