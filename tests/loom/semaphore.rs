//! The semaphore's word and its queue: what is published, handed over, cancelled, resized and closed.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{LimiterExt, ManualClock, Policy, Semaphore};

#[derive(Default)]
struct Count(std::sync::atomic::AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Count {
    fn woken(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst) > 0
    }
}

fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

/// Data that only the semaphore orders: every access of its own is relaxed.
#[derive(Default)]
struct Data(AtomicUsize);

impl Data {
    fn add(&self) {
        let seen = self.0.load(Ordering::Relaxed);
        self.0.store(seen + 1, Ordering::Relaxed);
    }
    fn seen(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Given one permit and two threads that try for it, then whoever has it second sees what the first did.
#[test]
fn a_released_permit_publishes_what_was_done_under_it() {
    crate::exhaustive(|| {
        let shared = Arc::new((Semaphore::new(1), Data::default()));
        let add = |shared: &(Semaphore, Data)| match shared.0.try_acquire() {
            Ok(permit) => {
                shared.1.add();
                drop(permit);
                1
            }
            Err(_) => 0,
        };
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || add(&other));
        let added = add(&shared);
        let added = added + thread.join().unwrap();
        assert_eq!(shared.1.seen(), added);
        assert_eq!(shared.0.available_permits(), 1);
    });
}

/// Given a waiter for two permits that two threads release one after the other, then it sees what both did.
#[test]
fn a_hand_over_publishes_what_every_release_published() {
    crate::bounded(2, || {
        let semaphore = Arc::new(Semaphore::new(2));
        let data = Arc::new([Data::default(), Data::default()]);
        let count = Arc::new(Count::default());
        let held = [0, 1].map(|index| (index, Arc::clone(&semaphore).try_acquire_owned().unwrap()));
        let mut wait = Box::pin(semaphore.acquire_many(2));
        assert!(poll(wait.as_mut(), &count).is_pending());
        let threads = held.map(|(index, permit)| {
            let data = Arc::clone(&data);
            thread::spawn(move || {
                data[index].0.store(1, Ordering::Relaxed);
                drop(permit);
            })
        });
        if let Poll::Ready(permit) = poll(wait.as_mut(), &count) {
            assert_eq!((data[0].seen(), data[1].seen()), (1, 1));
            drop(permit);
            for thread in threads {
                thread.join().unwrap();
            }
        } else {
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(count.woken() && poll(wait.as_mut(), &count).is_ready());
        }
        drop(wait);
        assert_eq!(semaphore.available_permits(), 2);
    });
}

/// Given a release beside a waiter that joins, then the waiter is admitted or woken.
#[test]
fn a_release_beside_a_join_is_not_lost() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = Arc::clone(&semaphore).try_acquire_owned().unwrap();
        let thread = thread::spawn(move || drop(held));
        let count = Arc::new(Count::default());
        let mut wait = Box::pin(semaphore.acquire());
        let first = poll(wait.as_mut(), &count).is_ready();
        thread.join().unwrap();
        assert!(first || (count.woken() && poll(wait.as_mut(), &count).is_ready()));
        drop(wait);
        assert_eq!((semaphore.available_permits(), semaphore.waiting()), (1, 0));
    });
}

/// Given two in line and a release beside the first one's leaving, then the second is admitted, whether the first had
/// been granted the permit or not.
#[test]
fn a_cancel_at_the_grant_hands_on() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = Arc::clone(&semaphore).try_acquire_owned().unwrap();
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let mut first = Box::pin(semaphore.acquire());
        let mut second = Box::pin(semaphore.acquire());
        assert!(poll(first.as_mut(), &counts[0]).is_pending());
        assert!(poll(second.as_mut(), &counts[1]).is_pending());
        let thread = thread::spawn(move || drop(held));
        drop(first);
        thread.join().unwrap();
        assert!(counts[1].woken() && poll(second.as_mut(), &counts[1]).is_ready());
        drop(second);
        assert_eq!(semaphore.available_permits(), 1);
    });
}

/// Given a large head and a small one behind it that fits, when the head leaves beside a resize that changes nothing for
/// it, then the small one is admitted.
#[test]
fn a_head_that_leaves_frees_the_one_behind() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let mut large = Box::pin(semaphore.acquire_many(3));
        let mut small = Box::pin(semaphore.acquire());
        assert!(poll(large.as_mut(), &counts[0]).is_pending());
        assert!(poll(small.as_mut(), &counts[1]).is_pending());
        let other = Arc::clone(&semaphore);
        let thread = thread::spawn(move || other.try_acquire().is_ok());
        drop(large);
        let barged = thread.join().unwrap();
        assert!(
            counts[1].woken() && poll(small.as_mut(), &counts[1]).is_ready(),
            "barged: {barged}"
        );
    });
}

/// Given a waiter, when the limit grows and shrinks beside a release, then nobody is admitted beyond the limit, and
/// whoever fits in the end is.
#[test]
fn a_resize_beside_a_hand_over_loses_and_mints_nothing() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = Arc::clone(&semaphore).try_acquire_owned().unwrap();
        let count = Arc::new(Count::default());
        let mut wait = Box::pin(semaphore.acquire_many(2));
        assert!(poll(wait.as_mut(), &count).is_pending());
        let thread = thread::spawn(move || drop(held));
        semaphore.set_limit(0);
        semaphore.set_limit(2);
        thread.join().unwrap();
        assert!(count.woken());
        let Poll::Ready(Ok(permit)) = poll(wait.as_mut(), &count) else {
            panic!("two are free, and the waiter sleeps")
        };
        assert_eq!((semaphore.in_use(), semaphore.available_permits()), (2, 0));
        drop(permit);
        assert_eq!(
            (semaphore.available_permits(), semaphore.limit(), semaphore.debt()),
            (2, 2, 0)
        );
    });
}

/// Given a waiter that joins beside a close, then it is told.
#[test]
fn a_close_beside_a_wait_ends_it() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let closer = Arc::clone(&semaphore);
        let thread = thread::spawn(move || closer.close());
        let count = Arc::new(Count::default());
        let mut wait = Box::pin(semaphore.acquire());
        let first = poll(wait.as_mut(), &count);
        thread.join().unwrap();
        match first {
            Poll::Ready(result) => assert!(result.is_err()),
            Poll::Pending => assert!(count.woken() && matches!(poll(wait.as_mut(), &count), Poll::Ready(Err(_)))),
        }
        assert!(semaphore.is_closed());
    });
}

/// Given a policy that has joined the queue like any waiter, when it gives up beside the release that it waits for,
/// then the permit is not lost with its claim.
#[test]
fn a_claim_that_is_given_up_at_its_grant_hands_on() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let policy = Policy::builder()
            .clock(&ManualClock::new())
            .over(Arc::clone(&semaphore))
            .unwrap();
        let held = Arc::clone(&semaphore).try_acquire_owned().unwrap();
        let count = Arc::new(Count::default());
        let mut wait = Box::pin(policy.admit(1));
        assert!(poll(wait.as_mut(), &count).is_pending());
        let thread = thread::spawn(move || drop(held));
        drop(wait);
        thread.join().unwrap();
        assert_eq!((semaphore.waiting(), semaphore.available_permits()), (0, 1));
        assert!(policy.try_admit(1).is_ok());
    });
}
