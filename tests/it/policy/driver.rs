//! Who drives the queue of a policy: timers of a runtime, a thread or a manual clock; and what users' code may do to others.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::sync::{Place, Watch};
use tollgate::{
    Ask, Cost, Demand, Description, Inherit, Legs, Limiter, LimiterExt, ManualClock, Order, Outcome, Policy, Quota,
    Reason, Refusal, Role, Semaphore, TokenBucket,
};

const MS: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn ten_a_second() -> Policy<TokenBucket> {
    Policy::new(TokenBucket::new(Quota::per_second(10).burst(1)))
}

/// A test of tokio that pauses the clock waits in virtual time.
#[tokio::test(start_paused = true)]
async fn the_paused_clock_of_a_runtime_moves_the_queue() {
    let (policy, start) = (ten_a_second(), tokio::time::Instant::now());
    for _ in 0..601 {
        policy.admit(1).await.unwrap().forget();
    }
    let waited = start.elapsed();
    assert!(waited >= 60_000 * MS && waited < 62_000 * MS, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_time_out_ends_by_the_paused_clock_of_a_runtime() {
    let (policy, start) = (Policy::new(Semaphore::new(1)), tokio::time::Instant::now());
    let held = policy.admit(1).await.unwrap();
    let late = policy.admit_timeout(1, 3_600_000 * MS).await.unwrap_err();
    assert_eq!(
        (late.reason(), late.cause()),
        (Reason::TimedOut, Some(Reason::Saturated))
    );
    assert!(start.elapsed() >= 3_600_000 * MS);
    drop(held);
}

/// A waiter outlives the runtime whose task was the timer.
#[test]
fn a_runtime_that_is_shut_down_leaves_the_timer_to_the_shared_thread() {
    let policy = ten_a_second();
    policy.admit_blocking(1).unwrap().forget();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut wait = Box::pin(policy.admit_owned(1));
    runtime.block_on(std::future::poll_fn(|cx| {
        assert!(wait.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    }));
    drop(runtime);
    // It is served by the timer, and not by this thread.
    futures::executor::block_on(wait).unwrap().forget();
}

/// A runtime that no thread runs does not stop a waiter of another thread.
#[test]
fn a_waiter_from_outside_a_runtime_is_served_while_that_runtime_rests() {
    let policy = ten_a_second();
    policy.admit_blocking(1).unwrap().forget();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut rests = Box::pin(policy.admit_owned(1));
    runtime.block_on(std::future::poll_fn(|cx| {
        assert!(rests.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    }));
    policy.admit_blocking(1).unwrap().forget();
    assert!(runtime.block_on(rests).is_ok());
}

/// A leg that takes a second by the clock to admit a waiter.
struct Slow(TokenBucket, ManualClock);

impl Limiter for Slow {
    type Ticket = <TokenBucket as Limiter>::Ticket;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        if demand.role() != Role::Newcomer {
            self.1.advance(Duration::from_secs(1));
        }
        self.0.try_reserve(demand)
    }
    fn cancel(&self, ticket: Self::Ticket) {
        self.0.cancel(ticket);
    }
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
        self.0.finish(ticket, outcome);
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.0.look(demand)
    }
    fn leave(&self, place: &Place) {
        self.0.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.0.describe(visit);
    }
}

#[test]
fn a_leg_that_blocks_is_counted_and_delays_others_by_no_more() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock);
    let policy = Policy::new(Slow(bucket, clock.clone()));
    policy.limiter().0.try_acquire(1).unwrap();
    let other = Policy::new(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock));
    clock.run(async {
        other.admit(1).await.unwrap().forget();
        let slow = policy.admit(1);
        let quick = async {
            other.admit(1).await.unwrap().forget();
            clock.elapsed()
        };
        let (slow, quick) = futures::join!(slow, quick);
        assert!(slow.is_ok() && quick <= Duration::from_millis(2_000), "{quick:?}");
    });
    assert_eq!(policy.waits().slowest_leg, Duration::from_secs(1));
}

/// Ten thousand policies that hand one permit on in a row need no stack for it.
#[test]
fn wake_ups_do_not_nest() {
    let slots = Arc::new(Semaphore::new(1));
    let clock = ManualClock::new();
    let policies: Vec<_> = (0..10_000)
        .map(|_| Policy::builder().limit(Arc::clone(&slots)).on(&clock).build().unwrap())
        .collect();
    let held = slots.try_acquire().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits: Vec<_> = policies.iter().map(|policy| Box::pin(policy.admit(1))).collect();
    for wait in &mut waits {
        assert!(wait.as_mut().poll(&mut cx).is_pending());
    }
    drop(held);
    // Each future that goes gives its permit to the next.
    drop(waits);
    assert_eq!((slots.in_use(), slots.waiting()), (0, 0));
}

/// Work that takes a tenth of a second at a slot under twice its load: calls that could not end in time do not start.
#[test]
fn work_that_could_not_end_in_time_does_not_start() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(Semaphore::new(1))
        .work_time(100 * MS)
        .on(&clock)
        .build()
        .unwrap();
    let done = std::cell::Cell::new(0);
    clock.run(futures::future::join_all((0..1_200_u32).map(|call| {
        let (policy, clock, done) = (&policy, &clock, &done);
        async move {
            clock.sleep(call * 50 * MS).await;
            let begun = clock.elapsed();
            if let Ok(permit) = policy.admit_timeout(1, 1_000 * MS).await {
                clock.sleep(100 * MS).await;
                drop(permit);
                done.set(done.get() + u32::from(clock.elapsed() - begun <= 1_000 * MS));
            }
        }
    })));
    assert!(done.get() >= 480, "{} of 600 in time", done.get());
}

#[test]
fn a_closed_policy_refuses_its_waiters_and_ends_no_permit() {
    let clock = ManualClock::new();
    let slots = Arc::new(Semaphore::new(1));
    let policy = Policy::builder().limit(Arc::clone(&slots)).on(&clock).build().unwrap();
    let held = policy.try_admit(1).unwrap();
    let count = Arc::<Count>::default();
    let mut wait = pin!(policy.admit(1));
    let waker = Waker::from(Arc::clone(&count));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    policy.close();
    assert_eq!((count.0.load(SeqCst), policy.waiting(), slots.waiting()), (1, 0, 0));
    match wait.poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(Err(refused)) => assert_eq!(refused.reason(), Reason::Closed),
        _ => panic!("it waits, or is admitted"),
    }
    assert_eq!(slots.in_use(), 1);
    drop(held);
    assert_eq!(slots.in_use(), 0);
}

/// A deadline that a change of the quota makes too early ends its wait at the change.
#[test]
fn a_deadline_is_judged_anew_after_a_change() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(10)).on(&clock));
    bucket.try_acquire(10).unwrap();
    let policy = Policy::new(Arc::clone(&bucket));
    let mut wait = pin!(policy.admit_timeout(5, Duration::from_secs(6)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    bucket.set_quota(Quota::per_minute(1).burst(10), Inherit::AsIs);
    match wait.poll(&mut cx) {
        Poll::Ready(Err(refused)) => assert_eq!(refused.reason(), Reason::TimedOut),
        _ => panic!("it waits, or is admitted"),
    }
}

#[test]
fn a_closed_policy_refuses_the_waiters_of_a_policy_around_it() {
    let clock = ManualClock::new();
    let inner = Policy::builder().limit(Semaphore::new(1)).on(&clock).build().unwrap();
    let outer = Policy::builder().limit(inner.clone()).on(&clock).build().unwrap();
    let held = outer.try_admit(1).unwrap();
    let mut waiter = pin!(outer.admit(1));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waiter.as_mut().poll(&mut cx).is_pending());
    inner.close();
    let Poll::Ready(Err(refusal)) = waiter.as_mut().poll(&mut cx) else {
        panic!("it is refused, and not only when the permit comes back")
    };
    assert_eq!(refusal.reason(), Reason::Closed);
    drop(held);
    assert_eq!(outer.try_admit(1).unwrap_err().reason(), Reason::Closed);
}

/// Given two tasks that drain one policy for an hour, when the last waiter goes, then both are woken.
#[test]
fn all_who_drain_a_policy_are_told_of_its_end() {
    let clock = ManualClock::new();
    let policy = Policy::builder().limit(Semaphore::new(1)).on(&clock).build().unwrap();
    let held = policy.try_admit(1).unwrap();
    let mut waiter = pin!(policy.admit(1));
    assert!(
        waiter
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    let woken = [0, 1].map(|_| Arc::new(Count::default()));
    let mut drains = [0, 1].map(|_| Box::pin(policy.drain(3_600_000 * MS)));
    for (drain, woken) in drains.iter_mut().zip(&woken) {
        let waker = Waker::from(Arc::clone(woken));
        assert!(drain.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(held);
    assert_eq!(woken.map(|woken| woken.0.load(SeqCst)), [1, 1]);
    for mut drain in drains {
        let drained = drain.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(drained, Poll::Ready(0));
    }
}

/// Given a policy as a leg that counts a cost, when its queue is asked past, then the request still is for that cost.
#[test]
fn a_policy_as_a_leg_counts_as_the_leg_does() {
    const TOKENS: Cost = Cost::new("tokens");
    for order in [Order::Lifo, Order::Fifo] {
        let clock = ManualClock::new();
        let bucket = Arc::new(TokenBucket::new(Quota::per_second(100).burst(600)).on(&clock));
        let inner = Policy::builder()
            .limit(Arc::clone(&bucket))
            .order(order.clone())
            .on(&clock);
        let inner = inner.build().unwrap();
        let leg = inner.clone().per(TOKENS);
        bucket.try_acquire(400).unwrap();
        let mut waiter = pin!(inner.admit(600));
        assert!(
            waiter
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let taken = leg.try_admit(Ask::one().cost(TOKENS, 200));
        match order {
            Order::Lifo => {
                assert!(taken.is_ok());
                assert_eq!(bucket.available(), 0);
            }
            _ => assert_eq!(taken.unwrap_err().retry_after(), Some(6_000 * MS)),
        }
    }
}

/// Given a semaphore that two policies share, when the deadline of the older head comes, then the next head of its policy has its age, and is
/// granted the next permit.
#[test]
fn the_next_head_has_the_age_of_one_that_was_too_late() {
    let (clock, slots) = (ManualClock::new(), Arc::new(Semaphore::new(1)));
    let build = || Policy::builder().limit(Arc::clone(&slots)).on(&clock).build().unwrap();
    let (policies, held) = ([build(), build()], slots.try_acquire().unwrap());
    let mut cx = Context::from_waker(Waker::noop());
    let mut first = pin!(policies[0].admit_timeout(1, 1_000 * MS));
    let mut next = pin!(policies[0].admit(1));
    let mut other = pin!(policies[1].admit(1));
    assert!(first.as_mut().poll(&mut cx).is_pending());
    assert!(next.as_mut().poll(&mut cx).is_pending());
    assert!(other.as_mut().poll(&mut cx).is_pending());
    clock.advance(1_000 * MS);
    assert!(matches!(first.as_mut().poll(&mut cx), Poll::Ready(Err(_))));
    drop(held);
    let admitted = next.as_mut().poll(&mut cx);
    assert!(matches!(admitted, Poll::Ready(Ok(_))));
    assert!(other.as_mut().poll(&mut cx).is_pending());
}

/// Given a drained rate in shadow mode beside one that has a token in a second, when a caller waits, then it waits for that second.
#[test]
fn a_waiter_has_no_place_at_a_leg_in_shadow_mode() {
    for shadow_first in [true, false] {
        let clock = ManualClock::new();
        let rate = |count, ms| TokenBucket::new(Quota::new(count, ms * MS).unwrap().burst(1)).on(&clock);
        let (trial, obeyed) = (Arc::new(rate(1, 10_000)), Arc::new(rate(1, 1_000)));
        let (shadow, leg) = (Arc::clone(&trial).shadow(), Arc::clone(&obeyed));
        let mut legs = Legs::new();
        match shadow_first {
            true => (legs.push(shadow), legs.push(leg)),
            false => (legs.push(leg), legs.push(shadow)),
        };
        let policy = Policy::new(legs);
        trial.try_acquire(1).unwrap();
        obeyed.try_acquire(1).unwrap();
        drop(clock.run(policy.admit(1)).unwrap());
        assert_eq!(clock.elapsed(), 1_000 * MS, "shadow first: {shadow_first}");
    }
}
