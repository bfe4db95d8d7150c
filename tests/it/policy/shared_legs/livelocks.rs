//! Small worlds in which heads once moved each other without end, or in which one stopped another for good.

use super::event;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::policy::Partitions;
use tollgate::{Ask, Cost, FirstOf, Legs, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};

const MS: Duration = Duration::from_millis(1);
const TOKENS: Cost = Cost::new("tokens");

type Wait<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Waits that are polled by hand.
#[derive(Default)]
struct Waits<'a>(Vec<Wait<'a>>);

impl<'a> Waits<'a> {
    fn push(&mut self, wait: impl Future<Output = ()> + 'a) {
        self.0.push(Box::pin(wait));
        self.poll();
    }
    fn poll(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        event(|| self.0.retain_mut(|wait| wait.as_mut().poll(&mut cx).is_pending()));
    }
}

#[test]
fn three_policies_at_two_rates_are_served() {
    let clock = ManualClock::new();
    let tokens = Arc::new(TokenBucket::new(Quota::per_second(10).burst(3)).on(&clock));
    let calls = Arc::new(TokenBucket::new(Quota::per_second(8).burst(3)).on(&clock));
    let both = || Policy::new((Arc::clone(&tokens).per(TOKENS), super::Counted(Arc::clone(&calls))));
    let (a, b, c) = (both(), both(), Policy::new(super::Counted(Arc::clone(&tokens))));
    let mut waits = Waits::default();
    for (who, calls, tokens) in [
        ('a', 2, 1),
        ('a', 2, 1),
        ('b', 2, 1),
        ('c', 2, 0),
        ('c', 1, 0),
        ('a', 1, 0),
    ] {
        let ask = Ask::many(calls).cost(TOKENS, tokens);
        let (a, b, c) = (a.clone(), b.clone(), c.clone());
        waits.push(async move {
            match who {
                'a' => a.admit(ask).await.unwrap().forget(),
                'b' => b.admit(ask).await.unwrap().forget(),
                _ => c.admit(ask).await.unwrap().forget(),
            }
        });
    }
    for _ in 0..40 {
        clock.advance(50 * MS);
        waits.poll();
    }
    assert!(waits.0.is_empty());
}

#[test]
fn a_semaphore_and_a_class_are_handed_on() {
    let clock = ManualClock::new();
    let connection = Arc::new(Semaphore::new(1));
    let places = Partitions::lent(3, 2).unwrap();
    let both = |class: usize| {
        let legs = Legs::new()
            .and(Arc::clone(&connection))
            .and(super::Counted(Arc::clone(places.class(class))));
        Policy::builder().limit(legs).on(&clock).build().unwrap()
    };
    let (a, b) = (both(0), both(1));
    let c = Policy::builder()
        .limit(Arc::clone(places.class(0)))
        .on(&clock)
        .build()
        .unwrap();
    let mut waits = Waits::default();
    let first = a.try_admit(1).unwrap();
    waits.push(async { drop(b.admit(1).await.unwrap()) });
    let others = c.try_admit(2).unwrap();
    waits.push(async { drop(a.admit(1).await.unwrap()) });
    waits.push(async { drop(c.admit(1).await.unwrap()) });
    assert_eq!(waits.0.len(), 3);
    event(|| drop(first));
    event(|| drop(others));
    (0..10).for_each(|_| waits.poll());
    assert!(waits.0.is_empty());
    drop(waits);
    assert_eq!((connection.in_use(), places.in_use()), (0, 0));
}

#[test]
fn a_rate_and_a_class_are_handed_on() {
    let clock = ManualClock::new();
    let rate = Arc::new(TokenBucket::new(Quota::per_second(10).burst(2)).on(&clock));
    let places = Partitions::lent(3, 2).unwrap();
    let both = |class: usize| Policy::new((Arc::clone(&rate), super::Counted(Arc::clone(places.class(class)))));
    let (a, b) = (both(0), both(1));
    let held = a.try_admit(2).unwrap();
    let mut waits = Waits::default();
    waits.push(async { drop(b.admit(2).await.unwrap()) });
    clock.advance(60 * MS);
    waits.push(async { drop(a.admit(2).await.unwrap()) });
    for _ in 0..4 {
        clock.advance(60 * MS);
        waits.poll();
    }
    event(|| drop(held));
    for _ in 0..10 {
        clock.advance(60 * MS);
        waits.poll();
    }
    assert!(waits.0.is_empty());
}

/// Work that holds one leg and asks for another goes on beside a head that waits for both.
#[test]
fn work_that_asks_for_a_second_leg_is_not_stopped_by_a_head_that_waits_for_both() {
    for first in [0, 1] {
        let clock = ManualClock::new();
        let legs = [0, 1].map(|_| Arc::new(Semaphore::new(1)));
        let both = Policy::builder()
            .limit((Arc::clone(&legs[0]), Arc::clone(&legs[1])))
            .on(&clock)
            .build()
            .unwrap();
        let alone = legs
            .each_ref()
            .map(|leg| Policy::builder().limit(Arc::clone(leg)).on(&clock).build().unwrap());
        let (x, y) = (&alone[first], &alone[1 - first]);
        let (held_x, held_y) = (x.try_admit(1).unwrap(), y.try_admit(1).unwrap());
        let (nested, whole) = (Cell::new(false), Cell::new(false));
        let mut waits = Waits::default();
        waits.push(async {
            drop(both.admit(1).await.unwrap());
            whole.set(true);
        });
        clock.advance(10 * MS);
        waits.push(async {
            let outer = x.admit(1).await.unwrap();
            drop((y.admit(1).await.unwrap(), outer));
            nested.set(true);
        });
        event(|| drop(held_x));
        waits.poll();
        clock.advance(30 * MS);
        event(|| drop(held_y));
        for _ in 0..400 {
            waits.poll();
            clock.advance(5 * MS);
        }
        assert!(
            nested.get() && whole.get(),
            "leg {first} first: nested {}, both {}",
            nested.get(),
            whole.get()
        );
    }
}

#[test]
fn an_ask_above_the_limit_of_a_class_is_oversized() {
    let parts = [
        Partitions::lent(2, 2),
        Partitions::levels(2, &[1.0, 0.5]),
        Partitions::guaranteed(2, &[0.5, 0.5]),
    ];
    for parts in parts.map(Result::unwrap) {
        let clock = ManualClock::new();
        let policy = Policy::builder()
            .limit(Arc::clone(parts.class(0)))
            .on(&clock)
            .build()
            .unwrap();
        let refused = clock
            .run(policy.admit_timeout(3, Duration::from_secs(86_400)))
            .unwrap_err();
        assert_eq!(
            (refused.reason(), clock.elapsed()),
            (Reason::Oversized, Duration::ZERO),
            "{parts:?}"
        );
        assert_eq!(policy.try_admit(3).unwrap_err().reason(), Reason::Oversized);
    }
}

/// A waiter at a rate inside a `FirstOf` is served as early as one at the bare rate.
#[test]
fn a_waiter_at_a_first_of_is_told_when_it_is_the_oldest() {
    let admitted_at = |first_of: bool, scale: u64| {
        let clock = ManualClock::new();
        let slots = Arc::new(Semaphore::new(3 * scale as usize));
        let plan = Arc::new(Semaphore::new(scale as usize));
        let bucket = Arc::new(TokenBucket::new(Quota::per_second(2 * scale).burst(4 * scale)).on(&clock));
        let leg = || match first_of {
            true => FirstOf::new("plan", Arc::clone(&plan))
                .or("overflow", Arc::clone(&bucket))
                .boxed(),
            false => Arc::clone(&bucket).boxed(),
        };
        let strict = || Policy::builder();
        let other = strict()
            .limit((Arc::clone(&slots), leg()))
            .on(&clock)
            .lateness(Duration::ZERO)
            .build()
            .unwrap();
        let policy = strict()
            .limit(leg())
            .on(&clock)
            .lateness(Duration::ZERO)
            .build()
            .unwrap();
        let _held = other.try_admit(scale).unwrap();
        bucket.try_acquire(if first_of { 3 } else { 2 } * scale).unwrap();
        clock.advance(310 * MS);
        let at = Cell::new(Duration::ZERO);
        let minute = Duration::from_secs(60);
        clock.run(async {
            let large = async { drop(other.admit_timeout(3 * scale, minute).await) };
            let small = async { drop(other.admit_timeout(scale, minute).await) };
            let waits = async {
                policy.admit(scale).await.unwrap().forget();
                at.set(clock.elapsed());
            };
            futures::join!(large, small, waits);
        });
        at.get()
    };
    for scale in [1, 1_000] {
        assert_eq!(admitted_at(true, scale), admitted_at(false, scale), "scale {scale}");
    }
}

/// The place that a policy gives up when its last handle goes frees the next.
#[test]
fn a_policy_that_is_dropped_while_its_head_waits_stops_no_other() {
    let clock = ManualClock::new();
    let rate = Arc::new(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock));
    rate.try_acquire(1).unwrap();
    let (gone, stays) = (Policy::new(Arc::clone(&rate)), Policy::new(Arc::clone(&rate)));
    let mut cx = Context::from_waker(Waker::noop());
    {
        let mut waits = Box::pin(gone.admit(1));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
    }
    drop(gone);
    let mut waits = Box::pin(stays.admit(1));
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    clock.advance(Duration::from_secs(1));
    assert!(matches!(waits.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
}
