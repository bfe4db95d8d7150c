//! The class of an ask: the order of a policy's queue.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{
    Ask, Eviction, LimiterExt, ManualClock, Order, OrderError, Policy, PolicyError, Quota, Reason, Semaphore,
    TokenBucket,
};

type Wait<'a, P> = Pin<Box<dyn Future<Output = P> + 'a>>;

/// The waits of one program, by the number of their start.
struct Waits<'a, P> {
    waiting: Vec<(usize, Wait<'a, P>)>,
    held: Vec<(usize, P)>,
}

impl<'a, P> Waits<'a, P> {
    fn new() -> Self {
        Self {
            waiting: Vec::new(),
            held: Vec::new(),
        }
    }

    fn start(&mut self, number: usize, wait: impl Future<Output = P> + 'a) {
        self.waiting.push((number, Box::pin(wait)));
    }

    /// Polls all in the order of their start. Returns the numbers that hold an admission then.
    fn look(&mut self) -> Vec<usize> {
        let mut context = Context::from_waker(Waker::noop());
        for (number, mut wait) in std::mem::take(&mut self.waiting) {
            match wait.as_mut().poll(&mut context) {
                Poll::Ready(admitted) => self.held.push((number, admitted)),
                Poll::Pending => self.waiting.push((number, wait)),
            }
        }
        self.held.iter().map(|(number, _)| *number).collect()
    }
}

/// Given many waiters of a later class, then a newcomer of an earlier one is not refused for the time that those take, and one
/// that comes behind its own class is.
#[test]
fn only_waiters_of_the_same_class_count_as_before_a_newcomer() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .order(Order::Priority {
            classes: 2,
            patience: 99,
        })
        .limit(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock).named("rate"))
        .build()
        .unwrap();
    policy.try_admit(1).unwrap().forget();
    let mut waits = Waits::new();
    for number in 0..5 {
        waits.start(number, policy.admit(Ask::one().class(1)));
    }
    assert!(waits.look().is_empty());
    let patience = Duration::from_millis(1500);
    clock.run(async {
        let late = policy.admit_timeout(Ask::one().class(1), patience).await.unwrap_err();
        assert_eq!(
            (late.reason(), late.cause(), late.leg()),
            (Reason::TimedOut, Some(Reason::RateExceeded), "rate")
        );
        assert!(clock.elapsed().is_zero());
        policy
            .admit_timeout(Ask::one().class(0), patience)
            .await
            .unwrap()
            .forget();
        assert_eq!(clock.elapsed(), Duration::from_secs(1));
    });
}

/// Given a full queue, then an evicted waiter is the oldest of the last class, and a newcomer of a later class is refused. Both
/// refusals name the leg that was in the way.
#[test]
fn the_oldest_waiter_of_the_last_class_is_evicted_and_never_for_a_later_class() {
    let policy = Policy::builder()
        .order(Order::Priority {
            classes: 2,
            patience: 99,
        })
        .eviction(Eviction::Oldest)
        .max_queue(3)
        .limit(Semaphore::new(1).named("slots"))
        .build()
        .unwrap();
    let held = policy.try_admit(1).unwrap();
    let mut waits = Waits::new();
    for (number, class) in [1, 1, 0, 0, 0, 1].into_iter().enumerate() {
        waits.start(number, policy.admit(Ask::one().class(class)));
        waits.look();
    }
    assert_eq!(waits.look(), [0, 1, 5]);
    for (_, refused) in waits.held.drain(..) {
        let refused = refused.unwrap_err();
        assert_eq!(
            (refused.reason(), refused.cause(), refused.leg()),
            (Reason::QueueFull, Some(Reason::Saturated), "slots")
        );
    }
    drop(held);
    assert_eq!(waits.look(), [2]);
}

#[test]
fn an_order_without_classes_is_refused() {
    let built = |order| Policy::builder().order(order).limit(Semaphore::new(1)).build().err();
    let none = OrderError::Classes { given: 0 };
    assert_eq!(built(Order::Shares(Vec::new())), Some(PolicyError::Order(none)));
    assert_eq!(
        built(Order::Shares(vec![1, 0])),
        Some(PolicyError::Order(OrderError::Weight))
    );
    assert_eq!(built(Order::Shares(vec![1])), None);
    let most = usize::from(Order::MAX_CLASSES);
    assert_eq!(built(Order::Shares(vec![1; most])), None);
    let many = OrderError::Classes { given: most + 1 };
    assert_eq!(built(Order::Shares(vec![1; most + 1])), Some(PolicyError::Order(many)));
}
