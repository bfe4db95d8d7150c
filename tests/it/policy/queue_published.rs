//! Queues that serve the newest first, or that evict the oldest: the published tables of .NET's rate limiters
//! in virtual time, and a model of who is admitted when.
//!
//! A tick is what the tables call a replenishment: a number of tokens at the end of each period.

use program::{Bounds, Queued, Step, TICK, Wait, look, queued, wait};
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{
    Eviction, LimiterExt, ManualClock, Order, Permit, Policy, PolicyBuilder, Quota, Reason, Semaphore, SlidingLog,
    TokenBucket,
};

#[path = "../../../fuzz/targets/queue.rs"]
mod program;

fn oldest_first() -> PolicyBuilder {
    Policy::builder()
}

fn newest_first() -> PolicyBuilder {
    Policy::builder().order(Order::Lifo).eviction(Eviction::Oldest)
}

fn waits<L: tollgate::Limiter>(wait: &mut Wait<'_, L>) -> bool {
    look(wait).is_none()
}

#[track_caller]
fn admitted<L: tollgate::Limiter>(wait: &mut Wait<'_, L>) {
    look(wait).expect("still waits").expect("was refused").forget();
}

#[track_caller]
fn refused<L: tollgate::Limiter>(wait: &mut Wait<'_, L>) {
    let refused = look(wait).expect("still waits").expect_err("was admitted");
    assert_eq!(refused.reason(), Reason::QueueFull);
}

fn takes(policy: &Queued, n: u64) -> bool {
    policy.try_admit(n).map(Permit::forget).is_ok()
}

#[test]
fn with_a_queue_of_one_the_second_is_refused_or_takes_the_place_of_the_first() {
    let clock = ManualClock::new();
    let oldest = queued(&clock, 1, 1, 1, oldest_first());
    assert!(takes(&oldest, 1));
    let (mut first, mut second) = (wait(&oldest, 1), wait(&oldest, 1));
    refused(&mut second);
    clock.advance(TICK);
    admitted(&mut first);

    let newest = queued(&clock, 1, 1, 1, newest_first());
    assert!(takes(&newest, 1));
    let mut first = wait(&newest, 1);
    assert!(waits(&mut first));
    let mut second = wait(&newest, 1);
    refused(&mut first);
    assert!(waits(&mut second));
    clock.advance(TICK);
    admitted(&mut second);
}

#[test]
fn the_newest_waiter_is_served_first_and_passes_those_that_wait_for_more() {
    let clock = ManualClock::new();
    let newest = queued(&clock, 2, 1, 3, newest_first());
    assert!(takes(&newest, 2));
    let (mut first, mut second) = (wait(&newest, 2), wait(&newest, 1));
    clock.advance(TICK);
    admitted(&mut second);
    assert!(waits(&mut first));
    clock.advance(TICK);
    assert!(waits(&mut first));
    clock.advance(TICK);
    admitted(&mut first);

    let oldest = queued(&clock, 2, 2, 3, oldest_first());
    assert!(takes(&oldest, 1));
    let mut first = wait(&oldest, 2);
    assert!(!takes(&oldest, 1), "a waiter came first");
    clock.advance(TICK);
    admitted(&mut first);

    let newest = queued(&clock, 2, 2, 3, newest_first());
    assert!(takes(&newest, 1));
    let mut first = wait(&newest, 2);
    assert!(waits(&mut first));
    assert!(takes(&newest, 1));
    clock.advance(TICK);
    admitted(&mut first);
}

/// A request for nothing is admitted whatever there is; published as refused, and waiting, while nothing is there. More
/// than the limit is not waited for in vain; published as an exception.
#[test]
fn nothing_is_always_there_and_more_than_the_limit_never() {
    let clock = ManualClock::new();
    let one = queued(&clock, 1, 1, 1, oldest_first());
    assert!(takes(&one, 0) && takes(&one, 1) && takes(&one, 0));
    admitted(&mut wait(&one, 0));
    let refused = one.try_admit(2).unwrap_err();
    assert_eq!((refused.reason(), refused.retry_after()), (Reason::Oversized, None));
}

/// (limit, per period of 20 s, taken, waiting, asked, seconds). The fourth is published as 20, which is too early.
#[test]
fn a_full_queue_names_the_instant_after_all_waiters_ahead() {
    let period = Duration::from_secs(20);
    for (limit, per, taken, waiting, asked, seconds) in [
        (2, 1, 2, 0, 2, 40),
        (2, 1, 2, 1, 2, 60),
        (2, 100, 2, 0, 2, 20),
        (2, 2, 2, 1, 2, 40),
        (3, 1, 2, 0, 3, 40),
    ] {
        let clock = ManualClock::new();
        let quota = Quota::new(per, period).unwrap().burst(limit).by_interval();
        let bucket = TokenBucket::new(quota).on(&clock);
        let policy = Policy::builder()
            .max_queue(waiting as usize)
            .limit(bucket)
            .build()
            .unwrap();
        assert!(takes(&policy, taken));
        let ahead: Vec<_> = (0..waiting).map(|_| wait(&policy, 1)).collect();
        let refused = look(&mut wait(&policy, asked)).unwrap().unwrap_err();
        assert_eq!(refused.reason(), Reason::QueueFull);
        assert_eq!(
            refused.retry_after(),
            Some(Duration::from_secs(seconds)),
            "{limit} {per} {waiting}"
        );
        drop(ahead);
    }
}

/// Four in three ticks, by the exact log. Segments let it a tick later.
#[test]
fn a_sliding_window_serves_the_newest_first() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(4, TICK * 3).unwrap().on(&clock);
    let queued = newest_first().max_queue(1).limit(log).build().unwrap();
    queued.try_admit(2).unwrap().forget();
    let mut first = wait(&queued, 3);
    clock.advance(TICK);
    assert!(waits(&mut first));
    queued.try_admit(2).unwrap().forget();
    clock.advance(TICK);
    let mut second = wait(&queued, 2);
    refused(&mut first);
    clock.advance(TICK - Duration::from_nanos(1));
    assert!(waits(&mut second));
    clock.advance(Duration::from_nanos(1));
    admitted(&mut second);
    assert_eq!(queued.limiter().available(), 0);

    let clock = ManualClock::new();
    let log = SlidingLog::new(3, TICK * 3).unwrap().on(&clock);
    let queued = oldest_first().max_queue(1).limit(log).build().unwrap();
    queued.try_admit(2).unwrap().forget();
    let (mut first, mut second) = (wait(&queued, 2), wait(&queued, 2));
    refused(&mut second);
    clock.advance(TICK * 2);
    assert!(waits(&mut first));
    clock.advance(TICK);
    admitted(&mut first);
}

/// Three wait; the open leg is closed: all fail, as does a later caller.
#[test]
fn waiters_at_a_closed_leg_are_refused_for_good() {
    for order in [oldest_first(), newest_first()] {
        let clock = ManualClock::new();
        let (open, bucket) = (
            std::sync::Arc::new(Semaphore::new(10)),
            TokenBucket::new(Quota::per_second(1)),
        );
        let queued = order
            .limit(std::sync::Arc::clone(&open).and(bucket.on(&clock)))
            .build()
            .unwrap();
        let held = queued.try_admit(1).unwrap();
        let mut three = [wait(&queued, 1), wait(&queued, 1), wait(&queued, 1)];
        assert!(three.iter_mut().all(waits));
        open.close();
        for wait in &mut three {
            assert_eq!(look(wait).unwrap().unwrap_err().reason(), Reason::Closed);
        }
        assert_eq!(queued.try_admit(1).unwrap_err().reason(), Reason::Closed);
        drop(held);
    }
}

/// Waiters for a semaphore on behalf of a policy leave its queue when a newer waiter comes, and when they are
/// evicted.
#[test]
fn a_newcomer_takes_the_place_in_a_semaphores_queue() {
    let semaphore = std::sync::Arc::new(Semaphore::new(1));
    let queued = newest_first()
        .max_queue(2)
        .limit(std::sync::Arc::clone(&semaphore))
        .build()
        .unwrap();
    let held = queued.try_admit(1).unwrap();
    let mut waiters: Vec<_> = (0..3).map(|_| wait(&queued, 1)).collect();
    refused(&mut waiters[0]);
    assert_eq!((queued.waiting(), semaphore.waiting()), (2, 1));
    drop(held);
    assert!(waits(&mut waiters[1]));
    let held = look(&mut waiters[2]).unwrap().unwrap();
    drop(held);
    drop(look(&mut waiters[1]).unwrap().unwrap());
    assert_eq!(
        (queued.waiting(), semaphore.waiting(), semaphore.available_permits()),
        (0, 0, 1)
    );
}

proptest! {
    #![proptest_config(crate::cases(256))]

    /// Given any who come, go and wait, in either order and with any bounds, then exactly those are admitted, and those sent
    /// away, who are by the rules.
    #[test]
    fn waiting_and_eviction_follow_the_model(
        steps in crate::ops(1..80, Step::decode), bounds in any::<[u8; 2]>().prop_map(Bounds::decode), limit in 5u64..9, per_tick in 1u64..4,
    ) {
        program::run(bounds, limit, per_tick, steps);
    }
}
