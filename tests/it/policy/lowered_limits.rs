//! Limits that are lowered for a while: what asks for more is refused at once, and holds up none that fit.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
#[cfg(feature = "channel")]
use tollgate::ChannelSemaphore;
use tollgate::policy::Partitions;
use tollgate::{Ask, Cost, Limiter, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};

const SLOTS: Cost = Cost::new("slots");

/// A semaphore of either kind, whose limit is 5 at first.
trait Dips: Limiter + 'static {
    fn set(&self, limit: usize);
}

impl Dips for Semaphore {
    fn set(&self, limit: usize) {
        self.set_limit(limit);
    }
}

#[cfg(feature = "channel")]
impl Dips for ChannelSemaphore {
    fn set(&self, limit: usize) {
        self.set_limit(limit);
    }
}

fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Given a limit that has dipped, when a policy asks for more than that, then it is refused at once, and those that fit are admitted.
fn refuses_what_does_not_fit<L: Dips>(slots: Arc<L>) {
    let policy = Policy::new(Arc::clone(&slots));
    slots.set(2);
    let Poll::Ready(Err(refused)) = poll(&mut Box::pin(policy.admit(4))) else {
        panic!("it waits")
    };
    assert_eq!(refused.reason(), Reason::Oversized);
    assert!(matches!(poll(&mut Box::pin(policy.admit(2))), Poll::Ready(Ok(_))));
    slots.set(4);
    assert!(matches!(poll(&mut Box::pin(policy.admit(4))), Poll::Ready(Ok(_))));
}

/// Given a policy that has a place in the queue of a semaphore, when the limit dips below what it asks for, then its waiter is refused,
/// and those behind it that fit are admitted.
fn gives_up_its_place<L: Dips>(slots: Arc<L>) {
    let [one, other] = [(); 2].map(|()| Policy::new(Arc::clone(&slots)));
    let held = slots.try_admit(2).unwrap();
    let mut rest: Vec<_> = (0..2).map(|_| slots.try_admit(1).unwrap()).collect();
    let mut large = Box::pin(one.admit(5));
    let mut small = Box::pin(other.admit(2));
    assert!(poll(&mut large).is_pending());
    assert!(poll(&mut small).is_pending());
    slots.set(3);
    let Poll::Ready(Err(refused)) = poll(&mut large) else {
        panic!("it waits")
    };
    assert_eq!(refused.reason(), Reason::Oversized);
    drop(held);
    rest.pop();
    assert!(matches!(poll(&mut small), Poll::Ready(Ok(_))));
    drop(rest);
    slots.set(5);
    assert!(matches!(poll(&mut Box::pin(one.admit(5))), Poll::Ready(Ok(_))));
}

#[test]
fn an_ask_above_a_limit_that_has_dipped_is_oversized_and_holds_up_none_that_fit() {
    refuses_what_does_not_fit(Arc::new(Semaphore::new(5)));
    gives_up_its_place(Arc::new(Semaphore::new(5)));
    #[cfg(feature = "channel")]
    {
        refuses_what_does_not_fit(Arc::new(ChannelSemaphore::new(5)));
        gives_up_its_place(Arc::new(ChannelSemaphore::new(5)));
    }
}

/// The place that is given up was the last: a semaphore without waiters is taken without its queue, as before.
#[test]
fn a_semaphore_is_as_before_when_the_last_place_is_given_up() {
    let slots = Arc::new(Semaphore::new(5));
    let policy = Policy::new(Arc::clone(&slots));
    let held = slots.try_acquire_many(3).unwrap();
    let mut large = Box::pin(policy.admit(4));
    assert!(poll(&mut large).is_pending());
    assert_eq!(slots.waiting(), 1);
    slots.set_limit(3);
    assert_eq!((slots.waiting(), slots.in_use()), (0, 3));
    drop(held);
    assert_eq!((slots.available_permits(), slots.in_use()), (3, 0));
    drop(slots.try_acquire_many(3).unwrap());
    drop(large);
    assert_eq!((slots.waiting(), slots.available_permits()), (0, 3));
}

/// What was granted and not redeemed comes back when the limit dips below it: no limit is exceeded.
#[test]
fn an_admission_that_was_delivered_outlasts_a_dip() {
    let slots = Arc::new(Semaphore::new(5));
    let policy = Policy::new(Arc::clone(&slots));
    let held = slots.try_acquire_many(3).unwrap();
    let mut large = Box::pin(policy.admit(4));
    assert!(poll(&mut large).is_pending());
    drop(held);
    slots.set_limit(2);
    assert!(matches!(poll(&mut large), Poll::Ready(Ok(_))));
}

/// An ask for more than a limit is refused, with a wait and without one, and holds up none.
#[track_caller]
/// Given a waiter for all permits, when free ones are forgotten, then it is refused.
#[test]
fn an_ask_above_what_is_left_of_a_limit_is_refused() {
    let (slots, clock) = (Arc::new(Semaphore::new(3)), ManualClock::new());
    let minute = TokenBucket::new(Quota::per_minute(1)).on(&clock);
    let policy = Policy::new(minute.and(Arc::clone(&slots).per(SLOTS)));
    drop(policy.try_admit(Ask::one().cost(SLOTS, 1)).unwrap());
    let mut waiter = Box::pin(policy.admit(Ask::one().cost(SLOTS, 3)));
    assert!(poll(&mut waiter).is_pending());
    assert_eq!(slots.forget_permits(1), 1);
    let Poll::Ready(Err(refused)) = poll(&mut waiter) else {
        panic!("it waits")
    };
    assert_eq!(refused.reason(), Reason::Oversized);
}

fn is_oversized(limiter: Arc<impl Limiter + 'static>, units: u64) {
    let clock = ManualClock::new();
    let policy = Policy::builder().limit(limiter).on(&clock).build().unwrap();
    let refused = clock.run(policy.admit_timeout(units, Duration::from_secs(86_400)));
    assert_eq!(refused.map(drop).unwrap_err().reason(), Reason::Oversized);
    assert_eq!(policy.try_admit(units).unwrap_err().reason(), Reason::Oversized);
    assert_eq!((clock.elapsed(), policy.waiting()), (Duration::ZERO, 0));
    drop(policy.try_admit(units - 1).unwrap());
}

#[test]
fn an_ask_above_the_limit_of_a_class_is_oversized() {
    let of_class = |shared: Result<Arc<Partitions>, _>, class: usize| Arc::clone(shared.unwrap().class(class));
    is_oversized(of_class(Partitions::lent(2, 2).map(Into::into), 0), 3);
    is_oversized(of_class(Partitions::levels(2, &[1.0, 0.5]).map(Into::into), 0), 3);
    is_oversized(of_class(Partitions::levels(2, &[1.0, 0.5]).map(Into::into), 1), 2);
    is_oversized(of_class(Partitions::guaranteed(2, &[0.5, 0.5]).map(Into::into), 0), 2);
    is_oversized(of_class(Partitions::guaranteed(2, &[0.5, 0.0]).map(Into::into), 0), 3);
    #[cfg(feature = "channel")]
    is_oversized(Arc::new(ChannelSemaphore::new(5)), 6);
}
