//! The channel semaphore's protocol, by the names of `src/semaphore/channel/mod.rs`, over a channel that stands in for crossbeam's.

use loom::thread;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{ChannelSemaphore, ChannelToken, LimiterExt, ManualClock, Permit, Policy, Reason};

fn semaphore(limit: usize) -> Arc<ChannelSemaphore> {
    Arc::new(ChannelSemaphore::new(limit))
}

fn hold(semaphore: &ChannelSemaphore) -> ChannelToken {
    take(semaphore).unwrap()
}

fn take(semaphore: &ChannelSemaphore) -> Option<ChannelToken> {
    semaphore.receiver().try_recv().ok()
}

/// Why the next caller is refused.
fn refused(semaphore: &ChannelSemaphore) -> Option<Reason> {
    semaphore.try_admit(1).err().map(|refusal| refusal.reason())
}

fn policy(semaphore: &Arc<ChannelSemaphore>) -> Policy<Arc<ChannelSemaphore>> {
    let builder = Policy::builder().limit(Arc::clone(semaphore));
    builder.on(&ManualClock::new()).build().unwrap()
}

/// Nothing was lost and nothing minted: all of `limit` is free.
#[track_caller]
fn untouched(semaphore: &ChannelSemaphore, limit: usize) {
    assert_eq!((semaphore.limit(), semaphore.available_permits()), (limit, limit));
    assert_eq!((semaphore.in_use(), semaphore.debt()), (0, 0));
}

/// Counts its wake-ups.
#[derive(Default)]
struct Count(std::sync::atomic::AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A future and the wake-ups that it has had.
struct Waiter<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    count: Arc<Count>,
}

impl<'a, T> Waiter<'a, T> {
    fn of(future: impl Future<Output = T> + 'a) -> Self {
        let (future, count) = (Box::pin(future), Arc::default());
        Self { future, count }
    }

    fn poll(&mut self) -> Poll<T> {
        let waker = Waker::from(Arc::clone(&self.count));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn woken(&self) -> bool {
        self.count.0.load(std::sync::atomic::Ordering::SeqCst) > 0
    }
}

#[test]
fn one_permit_is_taken_once() {
    crate::exhaustive(|| {
        let semaphore = semaphore(1);
        let other = Arc::clone(&semaphore);
        let there = thread::spawn(move || take(&other));
        let here = take(&semaphore);
        let there = there.join().unwrap();
        assert!(here.is_some() ^ there.is_some(), "one, and exactly one, has the permit");
        drop((here, there));
        untouched(&semaphore, 1);
    });
}

/// Given two held of two, when one comes back beside a shrink to one, then from the shrink on no caller is admitted: the
/// other is still held.
/// Keeps out megaeth#188.
#[test]
fn a_return_beside_a_shrink_admits_none_beyond_it() {
    crate::exhaustive(|| {
        let semaphore = semaphore(2);
        let (back, kept) = (hold(&semaphore), hold(&semaphore));
        let returner = thread::spawn(move || drop(back));
        semaphore.set_limit(1);
        let seen = refused(&semaphore);
        returner.join().unwrap();
        assert_eq!(seen, Some(Reason::Saturated));
        assert_eq!(refused(&semaphore), Some(Reason::Saturated));
        drop(kept);
        untouched(&semaphore, 1);
    });
}

/// The same for a caller that takes meanwhile: at most as many are held as the limit says.
#[test]
fn a_taker_beside_a_return_and_a_shrink_stays_within_the_limit() {
    crate::bounded(3, || {
        let semaphore = semaphore(2);
        let (back, kept) = (hold(&semaphore), hold(&semaphore));
        let returner = thread::spawn(move || drop(back));
        let (shrinker, taker) = (Arc::clone(&semaphore), Arc::clone(&semaphore));
        let shrinker = thread::spawn(move || shrinker.set_limit(1));
        let taken = take(&taker);
        returner.join().unwrap();
        shrinker.join().unwrap();
        // Taken before the shrink, it is debt; after it, nothing could be taken.
        assert_eq!(semaphore.debt(), usize::from(taken.is_some()));
        assert_eq!(semaphore.available_permits(), 0);
        drop((taken, kept));
        untouched(&semaphore, 1);
    });
}

/// Given a debt of one, when a permit comes back beside a raise that forgives it, then it is one or the other, not both.
#[test]
fn a_return_beside_a_raise_pays_once() {
    crate::exhaustive(|| {
        let semaphore = semaphore(2);
        let (back, kept) = (hold(&semaphore), hold(&semaphore));
        semaphore.set_limit(1);
        let returner = thread::spawn(move || drop(back));
        semaphore.set_limit(2);
        returner.join().unwrap();
        assert_eq!((semaphore.in_use(), semaphore.available_permits()), (1, 1));
        drop(kept);
        untouched(&semaphore, 2);
    });
}

#[test]
fn two_changes_of_the_limit_leave_one_of_the_two() {
    crate::exhaustive(|| {
        let semaphore = semaphore(1);
        let other = Arc::clone(&semaphore);
        let raiser = thread::spawn(move || other.set_limit(3));
        semaphore.set_limit(0);
        raiser.join().unwrap();
        let limit = semaphore.limit();
        assert!(limit == 0 || limit == 3);
        untouched(&semaphore, limit);
    });
}

/// A thread that blocks is woken by a permit that comes back, by a raise, and by the close.
#[test]
fn a_blocked_thread_is_served_or_refused() {
    for event in 0..3 {
        crate::exhaustive(move || {
            let semaphore = semaphore(1);
            let held = hold(&semaphore);
            let waiter = Arc::clone(&semaphore);
            let waiter = thread::spawn(move || waiter.receiver().recv().is_ok());
            let mut held = Some(held);
            match event {
                0 => drop(held.take()),
                1 => semaphore.set_limit(2),
                _ => semaphore.close(),
            }
            assert_eq!(waiter.join().unwrap(), event < 2);
        });
    }
}

/// Given a permit that comes back beside the close, then nothing is free once both are done, and a caller is refused.
/// Keeps out crossbeam#971, crossbeam#1187.
#[test]
fn a_return_beside_the_close_leaves_nothing_free() {
    crate::exhaustive(|| {
        let semaphore = semaphore(2);
        let held = hold(&semaphore);
        let returner = thread::spawn(move || drop(held));
        semaphore.close();
        let seen = refused(&semaphore);
        returner.join().unwrap();
        assert_eq!(seen, Some(Reason::Closed));
        assert_eq!(refused(&semaphore), Some(Reason::Closed));
        assert_eq!((semaphore.in_use(), semaphore.available_permits()), (0, 0));
    });
}

/// Given two free, when one asks for both beside a caller for a single one, then each has all it asked for or
/// nothing.
#[test]
fn several_beside_a_single_one_are_all_or_nothing() {
    crate::exhaustive(|| {
        let semaphore = semaphore(2);
        let other = Arc::clone(&semaphore);
        let single = thread::spawn(move || take(&other));
        let both = semaphore.try_admit(2).ok();
        let single = single.join().unwrap();
        assert!(both.is_none() || single.is_none());
        let held = if both.is_some() {
            2
        } else {
            usize::from(single.is_some())
        };
        assert_eq!((semaphore.in_use(), semaphore.available_permits()), (held, 2 - held));
        drop((both, single));
        untouched(&semaphore, 2);
    });
}

#[test]
fn a_return_beside_a_policy_that_joins_is_not_lost() {
    // A policy takes too many steps to see all of them.
    crate::bounded(3, || {
        let semaphore = semaphore(1);
        let held = hold(&semaphore);
        let policy = policy(&semaphore);
        let mut waiter = Waiter::of(policy.admit(1));
        let returner = thread::spawn(move || drop(held));
        let at_once = waiter.poll().is_ready();
        returner.join().unwrap();
        if !at_once {
            assert!(waiter.woken(), "it is free, and the waiter was not woken");
            assert!(matches!(waiter.poll(), Poll::Ready(Ok(_))));
        }
        drop(waiter);
        untouched(&semaphore, 1);
    });
}

/// Given a policy that waits for one of two, when both come back, and an attempt for both fails because a caller takes
/// one meanwhile, then the policy, which may have asked while they were away, has the other.
#[test]
fn a_failed_attempt_for_several_wakes_the_waiters_that_it_kept_out() {
    crate::bounded(3, || {
        let semaphore = semaphore(2);
        let held = semaphore.try_admit(2).unwrap();
        let policy = policy(&semaphore);
        let mut waiter = Waiter::of(policy.admit(1));
        assert!(waiter.poll().is_pending());
        let (several, single) = (Arc::clone(&semaphore), Arc::clone(&semaphore));
        let several = thread::spawn(move || drop(several.try_admit(2)));
        let single = thread::spawn(move || take(&single));
        drop(held);
        several.join().unwrap();
        let single = single.join().unwrap();
        assert!(waiter.woken(), "one is free, and the waiter was not woken");
        assert!(matches!(waiter.poll(), Poll::Ready(Ok(_))));
        drop((waiter, single));
        untouched(&semaphore, 2);
    });
}

/// The permit of a policy and a permit that was taken alone are one of a kind.
#[test]
fn an_admission_beside_a_shrink_is_debt_until_it_is_cancelled() {
    crate::exhaustive(|| {
        let semaphore = semaphore(1);
        let other = Arc::clone(&semaphore);
        let shrinker = thread::spawn(move || other.set_limit(0));
        let admitted = semaphore.try_admit(1).ok();
        shrinker.join().unwrap();
        assert_eq!(semaphore.debt(), usize::from(admitted.is_some()));
        admitted.into_iter().for_each(Permit::cancel);
        untouched(&semaphore, 0);
    });
}
