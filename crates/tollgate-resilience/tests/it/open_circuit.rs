//! A policy does not wait for an open circuit.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Reason, Semaphore};
use tollgate_resilience::{BreakerState, CircuitBreaker, OpenTime};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Count {
    fn new() -> Arc<Self> {
        Arc::default()
    }
    fn get(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn counted<F: Future + ?Sized>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

fn breaker(clock: &ManualClock) -> CircuitBreaker {
    CircuitBreaker::builder()
        .count_window(2)
        .minimum_calls(2)
        .probes(1)
        .open_for(OpenTime::fixed(Duration::from_secs(2)))
        .on(clock)
        .build()
        .unwrap()
}

fn open(breaker: &CircuitBreaker) {
    for _ in 0..2 {
        breaker.try_admit(1).unwrap().finish(Outcome::Failure);
    }
    assert_eq!(breaker.state(), BreakerState::Open);
}

/// Whichever leg is asked first, and whether the circuit was open on arrival or opens while others wait.
#[test]
fn an_open_circuit_is_not_waited_for() {
    let clock = ManualClock::new();
    let breaker = Arc::new(breaker(&clock));
    let slots = Arc::new(Semaphore::new(1));
    let builder = Policy::builder().max_wait(Duration::from_secs(5)).on(&clock);
    let policy = builder
        .limit(Arc::clone(&slots).and(Arc::clone(&breaker)))
        .build()
        .unwrap();
    let held = slots.try_acquire().unwrap();
    let counts = [Count::new(), Count::new()];
    let mut waits = [Box::pin(policy.admit(1)), Box::pin(policy.admit(1))];
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(counted(wait.as_mut(), count).is_pending());
    }
    open(&breaker);
    let mut newcomer = Box::pin(policy.admit(1));
    for (wait, count) in waits
        .iter_mut()
        .chain([&mut newcomer])
        .zip(counts.iter().chain([&Count::new()]))
    {
        let Poll::Ready(Err(refusal)) = counted(wait.as_mut(), count) else {
            panic!("it waits for the circuit");
        };
        assert_eq!((refusal.reason(), refusal.leg()), (Reason::CircuitOpen, "breaker"));
        assert_eq!(refusal.retry_after(), Some(Duration::from_secs(2)));
    }
    assert_eq!(counts.each_ref().map(|count| count.get()), [1, 1]);
    assert_eq!(policy.waiting(), 0);
    drop(held);
}

/// Given a waiter for a circuit that opens before its deadline, when the circuit is held off until after it, then the waiter is refused
/// at once.
#[test]
fn a_waiter_is_judged_anew_when_its_circuit_is_held_off() {
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let breaker = CircuitBreaker::builder().wait_while_open().on(&clock).build().unwrap();
    breaker.trip(second);
    let policy = Policy::builder().limit(breaker).on(&clock).build().unwrap();
    let (count, mut waits) = (Count::new(), Box::pin(policy.admit_timeout(1, 2 * second)));
    assert!(counted(waits.as_mut(), &count).is_pending());
    policy.limiter().hold_off(second);
    assert!(
        counted(waits.as_mut(), &count).is_pending(),
        "that is no longer than it was"
    );
    policy.limiter().hold_off(5 * second);
    let Poll::Ready(Err(refusal)) = counted(waits.as_mut(), &count) else {
        panic!("it waits in vain");
    };
    assert_eq!(
        (refusal.reason(), refusal.cause()),
        (Reason::TimedOut, Some(Reason::CircuitOpen))
    );
    assert_eq!((count.get(), clock.elapsed()), (1, Duration::ZERO));
}
