//! Limits that are lowered for a while: what asks for more waits, and holds up none that fit.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
#[cfg(feature = "channel")]
use tollgate::ChannelSemaphore;
use tollgate::policy::Partitions;
use tollgate::{Limiter, LimiterExt, ManualClock, Order, Policy, Reason, Semaphore};

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
        self.set_limit(limit).unwrap();
    }
}

fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn semaphores() -> [Arc<Semaphore>; 4] {
    [
        Semaphore::builder(5),
        Semaphore::builder(5).overtakes(2),
        Semaphore::builder(5).order(Order::Lifo),
        Semaphore::builder(5).order(Order::RoundRobin { classes: 2 }),
    ]
    .map(|builder| Arc::new(builder.build().unwrap()))
}

#[cfg(feature = "channel")]
fn channel() -> Arc<ChannelSemaphore> {
    Arc::new(ChannelSemaphore::new(5).unwrap())
}

/// Given a limit that has dipped, when a policy asks for more than that, then it waits, and those that fit are admitted meanwhile,
/// by the same policy and by another one. It is admitted when the limit is raised again.
fn waits_beside_those_that_fit<L: Dips>(slots: Arc<L>) {
    let [one, other] = [(); 2].map(|()| Policy::new(Arc::clone(&slots)));
    slots.set(2);
    let mut large = Box::pin(one.admit(4));
    assert!(poll(&mut large).is_pending());
    for policy in [&one, &other] {
        assert!(matches!(poll(&mut Box::pin(policy.admit(2))), Poll::Ready(Ok(_))));
        assert!(policy.try_admit(1).is_ok());
        let held = slots.try_admit(2).unwrap();
        let mut small = Box::pin(policy.admit(1));
        assert!(poll(&mut small).is_pending());
        drop(held);
        assert!(matches!(poll(&mut small), Poll::Ready(Ok(_))));
    }
    assert!(poll(&mut large).is_pending());
    slots.set(4);
    assert!(matches!(poll(&mut large), Poll::Ready(Ok(_))));
}

#[test]
fn an_ask_above_a_limit_that_has_dipped_holds_up_none_that_fit() {
    semaphores().into_iter().for_each(waits_beside_those_that_fit);
    #[cfg(feature = "channel")]
    waits_beside_those_that_fit(channel());
}

/// Given a policy that has a place in the queue of a semaphore, when the limit dips below what it asks for, by a change or since a
/// permit is forgotten, then it gives up the place: those behind it that fit are admitted. It is admitted when the limit is raised.
fn gives_up_its_place<L: Dips>(slots: Arc<L>, forgets: bool) {
    let [one, other] = [(); 2].map(|()| Policy::new(Arc::clone(&slots)));
    let held = slots.try_admit(2).unwrap();
    let mut rest: Vec<_> = (0..2).map(|_| slots.try_admit(1).unwrap()).collect();
    let mut large = Box::pin(one.admit(5));
    let mut small = Box::pin(other.admit(2));
    assert!(poll(&mut large).is_pending());
    assert!(poll(&mut small).is_pending());
    match forgets {
        true => held.forget(),
        false => {
            slots.set(3);
            drop(held);
        }
    }
    rest.pop();
    let admitted = poll(&mut small);
    assert!(matches!(admitted, Poll::Ready(Ok(_))));
    assert!(poll(&mut large).is_pending());
    drop((rest, admitted));
    slots.set(5);
    assert!(matches!(poll(&mut large), Poll::Ready(Ok(_))));
}

#[test]
fn a_place_in_a_queue_is_given_up_when_the_limit_dips_below_it() {
    for forgets in [false, true] {
        for slots in semaphores() {
            gives_up_its_place(slots, forgets);
        }
        #[cfg(feature = "channel")]
        gives_up_its_place(channel(), forgets);
    }
}

/// The place that is given up was the last: a semaphore without waiters is taken without its queue, as before.
#[test]
fn a_semaphore_is_as_before_when_the_last_place_is_given_up() {
    for slots in semaphores() {
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
}

/// A hand-over is kept, whatever the limit is then.
#[test]
fn a_grant_that_was_not_looked_at_outlasts_a_dip() {
    let slots = Arc::new(Semaphore::new(5));
    let policy = Policy::new(Arc::clone(&slots));
    let held = slots.try_acquire_many(3).unwrap();
    let mut large = Box::pin(policy.admit(4));
    assert!(poll(&mut large).is_pending());
    drop(held);
    slots.set_limit(2);
    assert!(matches!(poll(&mut large), Poll::Ready(Ok(_))));
}

/// An ask for more than a limit ever was is refused, with a wait and without one, and holds up none.
#[track_caller]
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
fn an_ask_above_every_limit_so_far_is_oversized() {
    let of_class = |shared: Result<Partitions, _>, class: usize| Arc::clone(shared.unwrap().class(class));
    is_oversized(of_class(Partitions::lent(2, 2), 0), 3);
    is_oversized(of_class(Partitions::levels(2, &[1.0, 0.5]), 0), 3);
    is_oversized(of_class(Partitions::levels(2, &[1.0, 0.5]), 1), 2);
    is_oversized(of_class(Partitions::guaranteed(2, &[0.5, 0.5]), 0), 2);
    is_oversized(of_class(Partitions::guaranteed(2, &[0.5, 0.0]), 0), 3);
    #[cfg(feature = "channel")]
    is_oversized(channel(), 6);
}

/// Given classes that may hold nothing, by their parts or since the limit is zero, then an ask waits for a change of that.
#[test]
fn an_ask_of_a_class_that_may_hold_nothing_waits() {
    let paused = Partitions::lent(0, 1).unwrap();
    let closed = Partitions::levels(4, &[0.0]).unwrap();
    let [mut one, mut other] = [&paused, &closed].map(|shared| {
        let policy = Policy::new(Arc::clone(shared.class(0)));
        Box::pin(async move { policy.admit(3).await.is_ok() })
    });
    assert!(poll(&mut one).is_pending() && poll(&mut other).is_pending());
    paused.set_limit(3);
    closed.set_parts(&[1.0]).unwrap();
    assert!(matches!(poll(&mut one), Poll::Ready(true)));
    assert!(matches!(poll(&mut other), Poll::Ready(true)));
}

#[test]
fn a_demand_that_no_partition_can_hold_blocks_none_of_its_own_policy() {
    let shared = Partitions::lent(3, 2).unwrap();
    let policy = Policy::new(Arc::clone(shared.class(0)));
    shared.set_limit(2);
    let mut large = Box::pin(policy.admit(3));
    assert!(poll(&mut large).is_pending());
    assert!(matches!(poll(&mut Box::pin(policy.admit(2))), Poll::Ready(Ok(_))));
    shared.set_limit(3);
    assert!(matches!(poll(&mut large), Poll::Ready(Ok(_))));
}
