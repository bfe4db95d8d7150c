//! Several policies at a rate, at classes and at a channel: the next is woken when the one before it has been admitted, or has gone.

use loom::thread;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::policy::Partitions;
use tollgate::{Limiter, LimiterExt, ManualClock, Policy, Quota, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// One that waits in the queue of a policy of its own, for one unit.
struct Waiter {
    future: Pin<Box<dyn Future<Output = bool> + Send>>,
    count: Arc<Count>,
    /// Wake-ups that the last poll has answered.
    seen: usize,
}

impl Waiter {
    fn of<L: Limiter + 'static>(limiter: &Arc<L>, clock: &ManualClock) -> Self
    where
        L::Ticket: Send,
    {
        let policy = Policy::builder().on(clock).limit(Arc::clone(limiter)).build().unwrap();
        Self {
            future: Box::pin(async move { policy.admit_owned(1).await.map(|permit| permit.forget()).is_ok() }),
            count: Arc::default(),
            seen: 0,
        }
    }

    fn poll(&mut self) -> Poll<bool> {
        self.seen = self.count.0.load(Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.count));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// What it waits for is there: it has been admitted, or is woken and admitted then.
    #[track_caller]
    fn served(&mut self, polled: Poll<bool>) {
        let admitted = match polled {
            Poll::Pending => {
                assert!(
                    self.count.0.load(Ordering::SeqCst) > self.seen,
                    "asleep, and it could be admitted"
                );
                self.poll()
            }
            ready => ready,
        };
        assert_eq!(admitted, Poll::Ready(true));
    }
}

fn bucket(clock: &ManualClock, burst: u64) -> Arc<TokenBucket> {
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(burst)).on(clock));
    bucket.try_acquire(burst).unwrap();
    bucket
}

/// Given a queue whose head is first and due, when it leaves beside another that joins, then that one is admitted, or told.
#[test]
fn a_head_that_leaves_beside_one_that_joins_passes_its_turn_on() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 1);
        let mut first = Waiter::of(&bucket, &clock);
        assert!(first.poll().is_pending());
        clock.advance(SECOND);
        let mut second = Waiter::of(&bucket, &clock);
        let leaver = thread::spawn(move || drop(first));
        let polled = second.poll();
        leaver.join().unwrap();
        second.served(polled);
    });
}

/// Given the head of one queue, and that of another that joins beside the instants of both, then both are admitted, or woken.
#[test]
fn two_heads_whose_instants_come_beside_a_join_are_both_admitted() {
    crate::bounded(2, || {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 2);
        let [mut first, mut second] = [0, 1].map(|_| Waiter::of(&bucket, &clock));
        assert!(first.poll().is_pending());
        let advances = {
            let clock = clock.clone();
            thread::spawn(move || clock.advance(2 * SECOND))
        };
        let polled = second.poll();
        advances.join().unwrap();
        second.served(polled);
        first.served(Poll::Pending);
        assert_eq!(bucket.available(), 0);
    });
}

/// Given two heads that wait for one token, when it is given back beside the first, which leaves, then the second is admitted.
#[test]
fn a_refund_beside_a_head_that_leaves_reaches_the_next() {
    crate::bounded(2, || {
        let clock = ManualClock::new();
        let bucket = Arc::new(TokenBucket::new(Quota::per_hour(1).burst(1)).on(&clock));
        let held = bucket.try_admit_owned(1).unwrap();
        let [mut first, mut second] = [0, 1].map(|_| Waiter::of(&bucket, &clock));
        assert!(first.poll().is_pending() && second.poll().is_pending());
        let cancels = thread::spawn(move || held.cancel());
        drop(first);
        cancels.join().unwrap();
        second.served(Poll::Pending);
    });
}

/// Given one slot of two classes that is held, when it comes back beside a policy that joins, then that is admitted, or
/// told.
#[test]
fn a_slot_that_comes_back_beside_a_policy_that_joins_is_not_lost() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let shared = Partitions::lent(1, 2).unwrap();
        let held = shared.class(0).try_admit_owned(1).unwrap();
        let mut waiter = Waiter::of(shared.class(1), &clock);
        let releaser = thread::spawn(move || drop(held));
        let polled = waiter.poll();
        releaser.join().unwrap();
        waiter.served(polled);
    });
}

/// Given policies of two classes that wait for two slots, when both slots come back, then both policies are notified.
#[test]
fn slots_that_come_back_are_both_handed_on() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let shared = Partitions::lent(2, 2).unwrap();
        let held = [0, 1].map(|class| shared.class(class).try_admit_owned(1).unwrap());
        let mut waiters = [0, 1].map(|class| Waiter::of(shared.class(class), &clock));
        assert!(waiters[0].poll().is_pending());
        let releaser = thread::spawn(move || held.map(drop));
        let polled = waiters[1].poll();
        releaser.join().unwrap();
        let [first, second] = &mut waiters;
        second.served(polled);
        first.served(Poll::Pending);
    });
}

/// The same with the permits of a channel.
#[cfg(feature = "channel")]
#[test]
fn permits_of_a_channel_that_come_back_are_both_handed_on() {
    crate::bounded(2, || {
        let clock = ManualClock::new();
        let channel = Arc::new(tollgate::ChannelSemaphore::new(2));
        let held = [0, 1].map(|_| channel.receiver().try_recv().unwrap());
        let mut waiters = [0, 1].map(|_| Waiter::of(&channel, &clock));
        assert!(waiters[0].poll().is_pending());
        let releaser = thread::spawn(move || held.map(drop));
        let polled = waiters[1].poll();
        releaser.join().unwrap();
        let [first, second] = &mut waiters;
        second.served(polled);
        first.served(Poll::Pending);
    });
}
