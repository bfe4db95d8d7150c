//! The semaphore's protocols, by the names of `src/semaphore/README.md`: what a permit publishes, the hand-over, leaving the
//! queue, resizing, closing, watching, and the places in which policies wait.
//!
//! The protected data is read and written relaxed: only the semaphore orders it.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{
    AcquireError, Limiter, ManualClock, OwnedSemaphorePermit, Permit, Policy, Refusal, Semaphore, TryAcquireError,
};

/// Counts its wake-ups.
#[derive(Default)]
struct Count(std::sync::atomic::AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A future and the wake-ups that it has had.
struct Waiter<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    count: Arc<Count>,
}

impl<T> Waiter<T> {
    fn of(future: impl Future<Output = T> + 'static) -> Self {
        let (future, count) = (Box::pin(future), Arc::default());
        Self { future, count }
    }

    fn poll(&mut self) -> Poll<T> {
        let waker = Waker::from(Arc::clone(&self.count));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Is queued by now.
    fn queued(mut self) -> Self {
        assert!(self.poll().is_pending());
        self
    }

    fn woken(&self) -> bool {
        self.count.0.load(std::sync::atomic::Ordering::SeqCst) > 0
    }

    /// Its wait is over, and it was woken.
    #[track_caller]
    fn served(&mut self) -> T {
        assert!(self.woken(), "the wait is over, and the waiter was not woken");
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("woken for nothing"),
        }
    }
}

type Acquired = Result<OwnedSemaphorePermit, AcquireError>;

fn acquire(semaphore: &Arc<Semaphore>, n: u32) -> Waiter<Acquired> {
    Waiter::of(Arc::clone(semaphore).acquire_many_owned(n))
}

fn hold(semaphore: &Arc<Semaphore>, n: u32) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).try_acquire_many_owned(n).unwrap()
}

/// A thread and a future wait in one queue: the release serves the first, and that one's release the other.
#[test]
fn a_blocked_thread_and_a_future_beside_a_release_are_both_served() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        let blocked = {
            let semaphore = Arc::clone(&semaphore);
            thread::spawn(move || drop(semaphore.blocking_acquire().unwrap()))
        };
        let mut future = acquire(&semaphore, 1).queued();
        drop(held);
        // The first that came has it now, and passes it on.
        let first = future.woken();
        if first {
            drop(future.served());
        }
        blocked.join().unwrap();
        if !first {
            drop(future.served());
        }
        untouched(&semaphore, 1);
    });
}

/// Writes under `permit`, and gives it back, on another thread.
fn write_and_release(permit: OwnedSemaphorePermit) -> (Arc<AtomicU64>, thread::JoinHandle<()>) {
    let data = Arc::new(AtomicU64::new(0));
    let written = Arc::clone(&data);
    let releaser = thread::spawn(move || {
        written.store(1, Ordering::Relaxed);
        drop(permit);
    });
    (data, releaser)
}

/// Nothing was lost and nothing minted: all of `limit` is free, and the queue is empty.
#[track_caller]
fn untouched(semaphore: &Semaphore, limit: usize) {
    assert_eq!((semaphore.limit(), semaphore.available_permits()), (limit, limit));
    assert_eq!((semaphore.waiting(), semaphore.in_use()), (0, 0));
}

/// Keeps out asyncband#28.
#[test]
fn one_permit_is_taken_once() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let other = Arc::clone(&semaphore);
        let there = thread::spawn(move || other.try_acquire_owned().ok());
        let here = Arc::clone(&semaphore).try_acquire_owned().ok();
        let there = there.join().unwrap();
        assert!(here.is_some() ^ there.is_some(), "one, and exactly one, has the permit");
        drop((here, there));
        untouched(&semaphore, 1);
    });
}

#[test]
fn writes_under_a_permit_are_seen_under_the_next() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let (data, releaser) = write_and_release(hold(&semaphore, 1));
        if let Ok(_permit) = semaphore.try_acquire() {
            assert_eq!(data.load(Ordering::Relaxed), 1);
        }
        releaser.join().unwrap();
        untouched(&semaphore, 1);
    });
}

/// Both releases are seen, although only the second of them suffices and only its thread hands over.
/// Keeps out tokio#1788.
#[test]
fn writes_under_added_up_permits_are_seen_after_the_hand_over() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(2));
        let (mine, theirs) = (hold(&semaphore, 1), hold(&semaphore, 1));
        let mut waiter = acquire(&semaphore, 2).queued();
        let (data, releaser) = write_and_release(theirs);
        drop(mine);
        if let Poll::Ready(permit) = waiter.poll() {
            assert_eq!(data.load(Ordering::Relaxed), 1);
            drop(permit);
            releaser.join().unwrap();
        } else {
            releaser.join().unwrap();
            assert!(waiter.served().is_ok());
        }
        untouched(&semaphore, 2);
    });
}

/// Keeps out tokio#525, event-listener#138.
#[test]
fn a_release_beside_a_join_is_not_lost() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let (data, releaser) = write_and_release(hold(&semaphore, 1));
        let mut waiter = acquire(&semaphore, 1);
        let permit = match waiter.poll() {
            Poll::Ready(permit) => {
                assert_eq!(data.load(Ordering::Relaxed), 1);
                releaser.join().unwrap();
                permit
            }
            Poll::Pending => {
                releaser.join().unwrap();
                waiter.served()
            }
        };
        drop(permit.unwrap());
        untouched(&semaphore, 1);
    });
}

/// Two are free, and a newcomer takes them both or waits for neither: meanwhile no caller is refused a free one.
#[test]
fn a_join_that_finds_its_permits_free_refuses_none_meanwhile() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(3));
        let held = hold(&semaphore, 2);
        let other = Arc::clone(&semaphore);
        let joiner = thread::spawn(move || acquire(&other, 2).poll().is_ready());
        drop(held);
        // From here on three are free, or two are taken, or two were waited for and have been handed over.
        let third = semaphore.try_acquire().is_ok();
        joiner.join().unwrap();
        assert!(third, "one was free all the time, and no waiter wanted it");
        untouched(&semaphore, 3);
    });
}

/// Keeps out tokio#904, kotlinx.coroutines#1477.
#[test]
fn a_grant_that_is_dropped_goes_to_the_next() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        let first = acquire(&semaphore, 1).queued();
        let mut second = acquire(&semaphore, 1).queued();
        let releaser = thread::spawn(move || drop(held));
        drop(first);
        releaser.join().unwrap();
        assert!(second.served().is_ok());
        untouched(&semaphore, 1);
    });
}

/// Keeps out go#37852.
#[test]
fn a_head_that_leaves_beside_a_release_frees_the_one_behind() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(3));
        let (_kept, held) = (hold(&semaphore, 1), hold(&semaphore, 1));
        let large = acquire(&semaphore, 3).queued();
        let mut small = acquire(&semaphore, 2).queued();
        let releaser = thread::spawn(move || drop(held));
        drop(large);
        releaser.join().unwrap();
        assert!(small.served().is_ok());
    });
}

/// Keeps out golang/sync#14.
#[test]
fn a_raised_limit_beside_a_release_is_handed_over() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        let mut waiter = acquire(&semaphore, 2).queued();
        let other = Arc::clone(&semaphore);
        let raiser = thread::spawn(move || other.set_limit(2));
        drop(held);
        raiser.join().unwrap();
        assert!(waiter.served().is_ok());
        untouched(&semaphore, 2);
    });
}

/// Keeps out megaeth#188.
#[test]
fn a_lowered_limit_beside_a_hand_over_loses_nothing() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(2));
        let (kept, held) = (hold(&semaphore, 1), hold(&semaphore, 1));
        let mut waiter = acquire(&semaphore, 1).queued();
        let other = Arc::clone(&semaphore);
        let lowerer = thread::spawn(move || other.set_limit(1));
        drop(held);
        lowerer.join().unwrap();
        // Served before the shrink, and in debt; or not before the debt is paid.
        assert_eq!(semaphore.debt(), usize::from(waiter.woken()));
        drop(kept);
        assert!(waiter.served().is_ok());
        untouched(&semaphore, 1);
    });
}

#[test]
fn added_permits_beside_a_join_are_not_lost() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let data = Arc::new(AtomicU64::new(0));
        let (other, written) = (Arc::clone(&semaphore), Arc::clone(&data));
        let adder = thread::spawn(move || {
            written.store(1, Ordering::Relaxed);
            other.add_permits(1);
        });
        let mut waiter = acquire(&semaphore, 1);
        let at_once = waiter.poll();
        if at_once.is_ready() {
            assert_eq!(data.load(Ordering::Relaxed), 1);
        }
        adder.join().unwrap();
        if at_once.is_pending() {
            assert!(waiter.served().is_ok());
        }
        drop(at_once);
        untouched(&semaphore, 1);
    });
}

#[test]
fn writes_before_a_raise_are_seen_under_its_permits() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let data = Arc::new(AtomicU64::new(0));
        let (other, written) = (Arc::clone(&semaphore), Arc::clone(&data));
        let raiser = thread::spawn(move || {
            written.store(1, Ordering::Relaxed);
            other.set_limit(1);
        });
        if let Ok(_permit) = semaphore.try_acquire() {
            assert_eq!(data.load(Ordering::Relaxed), 1);
        }
        raiser.join().unwrap();
        untouched(&semaphore, 1);
    });
}

#[test]
fn permits_that_are_forgotten_beside_an_acquire_are_gone_once() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(2));
        let other = Arc::clone(&semaphore);
        let forgetter = thread::spawn(move || other.forget_permits(2));
        let taken = semaphore.try_acquire().is_ok_and(|permit| {
            permit.forget();
            true
        });
        let forgotten = forgetter.join().unwrap();
        assert_eq!(forgotten + usize::from(taken), 2);
        untouched(&semaphore, 0);
    });
}

/// Keeps out e2b#3629.
#[test]
fn a_close_beside_a_join_reaches_the_newcomer() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let other = Arc::clone(&semaphore);
        let closer = thread::spawn(move || other.close());
        let mut waiter = acquire(&semaphore, 1);
        let at_once = waiter.poll();
        closer.join().unwrap();
        match at_once {
            Poll::Ready(result) => assert!(result.is_err()),
            Poll::Pending => assert!(waiter.served().is_err()),
        }
        assert!(semaphore.is_closed());
        assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::Closed);
        assert_eq!(semaphore.waiting(), 0);
    });
}

#[test]
fn a_close_beside_a_hand_over_loses_nothing() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        let mut waiter = acquire(&semaphore, 1).queued();
        let other = Arc::clone(&semaphore);
        let closer = thread::spawn(move || other.close());
        drop(held);
        let polled = waiter.poll();
        closer.join().unwrap();
        if polled.is_pending() {
            let _ = waiter.served();
        }
        drop((polled, waiter));
        assert!(semaphore.is_closed());
        untouched(&semaphore, 1);
    });
}

fn policy<L: Limiter + 'static>(limiter: L) -> Policy<L> {
    Policy::builder()
        .limit(limiter)
        .on(&ManualClock::new())
        .build()
        .unwrap()
}

fn admit<L: Limiter + 'static>(policy: &Policy<L>, n: u64) -> Waiter<Result<Permit<Policy<L>>, Refusal>> {
    let policy = policy.clone();
    Waiter::of(async move { policy.admit_owned(n).await })
}

#[test]
fn a_head_beside_a_release_is_not_lost() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let policy = policy(Arc::clone(&semaphore));
        let held = hold(&semaphore, 1);
        let releaser = thread::spawn(move || drop(held));
        let mut waiter = admit(&policy, 1);
        let at_once = waiter.poll().is_ready();
        releaser.join().unwrap();
        assert!(at_once || waiter.served().is_ok());
        assert_eq!(policy.waiting(), 0);
        untouched(&semaphore, 1);
    });
}

#[test]
fn a_head_that_is_left_beside_a_release_serves_the_lone_acquirer_behind_it() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let policy = policy(Arc::clone(&semaphore));
        let held = hold(&semaphore, 1);
        let head = admit(&policy, 1).queued();
        let mut lone = acquire(&semaphore, 1).queued();
        let releaser = thread::spawn(move || drop(held));
        drop(head);
        releaser.join().unwrap();
        assert!(lone.served().is_ok());
        assert_eq!(policy.waiting(), 0);
        untouched(&semaphore, 1);
    });
}

/// Keeps out kotlinx.coroutines#1477.
#[test]
fn a_head_behind_a_lone_acquirer_that_leaves_beside_a_release_is_served() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let policy = policy(Arc::clone(&semaphore));
        let held = hold(&semaphore, 1);
        let lone = acquire(&semaphore, 1).queued();
        let mut head = admit(&policy, 1).queued();
        let releaser = thread::spawn(move || drop(held));
        drop(lone);
        releaser.join().unwrap();
        assert!(head.served().is_ok());
        assert_eq!(policy.waiting(), 0);
        untouched(&semaphore, 1);
    });
}

/// Keeps out tokio#2325.
#[test]
fn two_releases_a_join_and_a_cancelled_waiter() {
    crate::bounded(2, || {
        let semaphore = Arc::new(Semaphore::new(2));
        let releasers = [(); 2].map(|()| hold(&semaphore, 1));
        let large = acquire(&semaphore, 2).queued();
        let releasers = releasers.map(|held| thread::spawn(move || drop(held)));
        drop(large);
        let mut small = acquire(&semaphore, 1);
        let at_once = small.poll();
        for releaser in releasers {
            releaser.join().unwrap();
        }
        if at_once.is_pending() {
            assert!(small.served().is_ok());
        }
        drop(at_once);
        untouched(&semaphore, 2);
    });
}

#[test]
fn a_raise_a_release_and_a_join_on_three_threads() {
    crate::bounded(2, || {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        let other = Arc::clone(&semaphore);
        let raiser = thread::spawn(move || other.set_limit(2));
        let releaser = thread::spawn(move || drop(held));
        let mut waiter = acquire(&semaphore, 2);
        let at_once = waiter.poll();
        raiser.join().unwrap();
        releaser.join().unwrap();
        if at_once.is_pending() {
            assert!(waiter.served().is_ok());
        }
        drop(at_once);
        untouched(&semaphore, 2);
    });
}

/// Given a policy that joins the queue of a semaphore for two beside a limit that sinks to one, then it is refused, since it would hold
/// up one that fits.
#[test]
fn a_policy_that_joins_beside_a_limit_that_sinks_below_its_ask_is_refused() {
    crate::bounded(2, || {
        let semaphore = Arc::new(Semaphore::new(2));
        let policy = policy(Arc::clone(&semaphore));
        let held = hold(&semaphore, 1);
        let shrinks = {
            let semaphore = Arc::clone(&semaphore);
            thread::spawn(move || semaphore.set_limit(1))
        };
        let mut waiter = admit(&policy, 2);
        let at_once = waiter.poll();
        shrinks.join().unwrap();
        let refused = match at_once {
            Poll::Ready(result) => result.is_err(),
            Poll::Pending => waiter.served().is_err(),
        };
        assert!(refused);
        drop(held);
        untouched(&semaphore, 1);
    });
}

/// Given an older head that has waited elsewhere, when it asks for the permit that a younger head was granted and is about to redeem, then
/// one of the two has it, and the other has it next.
#[test]
fn an_older_head_takes_a_grant_back_while_its_owner_redeems_it() {
    crate::bounded(2, || {
        let (semaphore, other) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        let older = policy((Arc::clone(&other), Arc::clone(&semaphore)));
        let younger = policy(Arc::clone(&semaphore));
        let elsewhere = hold(&other, 1);
        let mut old = admit(&older, 1).queued();
        let held = hold(&semaphore, 1);
        let mut young = admit(&younger, 1).queued();
        let releaser = thread::spawn(move || drop(elsewhere));
        drop(held);
        releaser.join().unwrap();
        assert!(semaphore.in_use() == 1 && old.woken() ^ young.woken(), "one has it");
        if old.woken() {
            drop(old.served().unwrap());
            drop(young.served().unwrap());
        } else {
            drop(young.served().unwrap());
            drop(old.served().unwrap());
        }
        untouched(&semaphore, 1);
        untouched(&other, 1);
    });
}

/// A release beside a thread that begins to watch is seen by it, or wakes it. Writes under the permits are seen by the drainer, also where
/// the flag was set already.
#[test]
fn a_drain_of_a_closed_semaphore_sees_the_writes() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        semaphore.close();
        let (data, releaser) = write_and_release(held);
        if until_idle(&semaphore).poll().is_ready() {
            assert_eq!(
                data.load(Ordering::Relaxed),
                1,
                "the drain is over, and the work is not seen"
            );
        }
        releaser.join().unwrap();
    });
}

/// Keeps out rustfs#4498.
#[test]
fn a_drain_that_begins_beside_the_last_release_ends() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        let releaser = thread::spawn(move || drop(held));
        let mut idle = until_idle(&semaphore);
        let at_once = idle.poll().is_ready();
        releaser.join().unwrap();
        if !at_once {
            idle.served();
        }
        drop(idle);
        untouched(&semaphore, 1);
        assert!(semaphore.try_acquire().is_ok());
    });
}

/// The same beside a waiter that is handed the permit: the flag is set for it already.
#[test]
fn a_drain_that_begins_beside_a_hand_over_ends() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        let waiter = acquire(&semaphore, 1).queued();
        let releaser = thread::spawn(move || drop(held));
        let mut idle = until_idle(&semaphore);
        // Between the release and the hand-over no permit is held.
        let at_once = idle.poll().is_ready();
        releaser.join().unwrap();
        drop(waiter);
        if !at_once {
            idle.served();
        }
        drop(idle);
        untouched(&semaphore, 1);
    });
}

/// Writes under a permit are seen under the next, also where the lock is taken for a watcher.
#[test]
fn writes_under_a_permit_are_seen_while_another_thread_watches() {
    crate::exhaustive(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let held = hold(&semaphore, 1);
        let idle = until_idle(&semaphore).queued();
        let (data, holder) = write_and_release(held);
        if let Ok(_permit) = semaphore.try_acquire() {
            assert_eq!(data.load(Ordering::Relaxed), 1);
        }
        drop(idle);
        holder.join().unwrap();
    });
}

fn until_idle(semaphore: &Arc<Semaphore>) -> Waiter<()> {
    let semaphore = Arc::clone(semaphore);
    Waiter::of(async move { semaphore.until_idle().await })
}
