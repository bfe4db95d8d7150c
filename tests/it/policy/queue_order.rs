//! The queue of a policy: order, wake-ups, deadlines, lateness, and the effect of a dropped or unpolled future on others.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::{Ask, Cost, Inherit, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};

const MS: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

/// Counts how often a future is polled.
async fn counting<F: Future>(future: F, polls: &Cell<usize>) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.set(polls.get() + 1);
        future.as_mut().poll(cx)
    })
    .await
}

/// Given a thousand who wait for a rate of a thousand a second, when time passes by itself, then they are admitted in
/// order, each exactly at its own instant, with two polls each.
/// Keeps out async-lock#41, leaky-bucket#35, leaky-bucket#9, leaky-bucket#30.
#[test]
fn a_thousand_waiters_at_a_thousand_a_second_sleep_once_each() {
    let clock = ManualClock::new();
    let policy = Policy::new(TokenBucket::new(Quota::per_second(1_000).burst(1)).on(&clock));
    drop(policy.try_admit(1).unwrap());
    let order = RefCell::new(Vec::new());
    let polls = Cell::new(0);
    clock.run(futures::future::join_all((0..1_000u32).map(|index| {
        let wait = policy.admit(1);
        let (order, clock, polls) = (&order, &clock, &polls);
        async move {
            counting(wait, polls).await.unwrap().forget();
            assert_eq!(clock.elapsed(), MS * (index + 1));
            order.borrow_mut().push(index);
        }
    })));
    assert_eq!(*order.borrow(), (0..1_000).collect::<Vec<_>>());
    // `join_all` polls what was woken only, so every poll is a first one or a wake-up.
    assert_eq!(polls.get(), 2_000);
}

/// Runs `waiters` loops that admit one after the other, on timers that fire once a millisecond, for a virtual second.
fn admitted_on_coarse_timers(waiters: usize, lateness: Option<Duration>) -> usize {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(5_000).burst(1)).on(&clock);
    let mut builder = Policy::builder();
    if let Some(lateness) = lateness {
        builder = builder.lateness(lateness);
    }
    let policy = builder.limit(bucket).build().unwrap();
    let admitted = Rc::new(Cell::new(0));
    let mut pool = futures::executor::LocalPool::new();
    for _ in 0..waiters {
        let (policy, admitted) = (policy.clone(), Rc::clone(&admitted));
        futures::task::LocalSpawnExt::spawn_local(&pool.spawner(), async move {
            loop {
                policy.admit(1).await.unwrap().forget();
                admitted.set(admitted.get() + 1);
            }
        })
        .unwrap();
    }
    for _ in 0..1_000 {
        pool.run_until_stalled();
        clock.advance(MS);
    }
    pool.run_until_stalled();
    admitted.get()
}

/// Given 5,000 a second at burst 1 and timers of a millisecond, then one waiter and thirty-two both get 5,000 a second.
#[test]
fn a_rate_above_the_grain_of_the_timers_is_met_exactly() {
    for waiters in [1, 32] {
        let admitted = admitted_on_coarse_timers(waiters, None);
        assert!(admitted.abs_diff(5_000) <= 1, "{waiters} waiters: {admitted}");
    }
}

/// Given a strict policy in the same place, then nothing is made up for: the timer serves one at its instant, its task the next at the end
/// of each tick, and the other three are lost.
#[test]
fn a_strict_policy_makes_up_for_nothing() {
    let admitted = admitted_on_coarse_timers(1, Some(Duration::ZERO));
    assert_eq!(admitted, 2_001);
}

/// Given a head whose future is not polled, when its turn comes, then those behind it are served at their own instants,
/// and the head has its permit when it is looked at.
#[test]
fn an_unpolled_head_blocks_no_waiter() {
    let clock = ManualClock::new();
    let policy = Policy::new(TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock));
    drop(policy.try_admit(1).unwrap());
    let count = Arc::new(Count::default());
    let mut head = pin!(policy.admit(1));
    assert!(poll(head.as_mut(), &count).is_pending());
    clock.run(async {
        for _ in 0..3 {
            policy.admit(1).await.unwrap().forget();
        }
    });
    assert_eq!(clock.elapsed(), Duration::from_millis(400));
    assert!(poll(head, &count).is_ready());
}

/// Given three who wait at ten a second, when the middle one leaves, then the last is served a tenth of a second
/// earlier.
#[test]
fn a_waiter_that_leaves_lets_those_behind_it_move_up() {
    let clock = ManualClock::new();
    let policy = Policy::new(TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock));
    drop(policy.try_admit(1).unwrap());
    let mut pool = futures::executor::LocalPool::new();
    let served = Rc::new(RefCell::new(Vec::new()));
    let mut handles = Vec::new();
    for index in 0..3 {
        let (policy, served, clock) = (policy.clone(), Rc::clone(&served), clock.clone());
        let task = async move {
            policy.admit(1).await.unwrap().forget();
            served.borrow_mut().push((index, clock.elapsed().as_millis()));
        };
        handles.push(futures::task::LocalSpawnExt::spawn_local_with_handle(&pool.spawner(), task).unwrap());
        pool.run_until_stalled();
    }
    drop(handles.remove(1));
    while pool.try_run_one() || clock.advance_to_next_timer() {}
    pool.run_until_stalled();
    assert_eq!(*served.borrow(), [(0, 100), (2, 200)]);
}

/// Given a wait that would end after its deadline, then it fails at once, names the leg, and says how long it takes.
#[test]
fn a_wait_that_cannot_end_in_time_fails_at_once() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(
            TokenBucket::new(Quota::per_second(1).burst(1))
                .on(&clock)
                .named("requests"),
        )
        .max_wait(Duration::from_secs(2))
        .build()
        .unwrap();
    clock.run(async {
        drop(policy.admit(1).await.unwrap());
        let two = futures::future::join(policy.admit(1), policy.admit(1));
        let three = futures::future::join(two, async {
            let refused = policy.admit(1).await.unwrap_err();
            assert_eq!(refused.reason(), Reason::TimedOut);
            assert_eq!(refused.leg(), "requests");
            assert_eq!(refused.retry_after(), Some(Duration::from_secs(3)));
            assert_eq!(clock.elapsed(), Duration::ZERO);
        });
        let ((first, second), ()) = three.await;
        assert!(first.is_ok() && second.is_ok());
    });
}

/// Given a semaphore that is not released, when a patience runs out, then the wait ends exactly then and leaves no
/// trace.
#[test]
fn a_wait_for_a_release_ends_at_its_deadline() {
    let clock = ManualClock::new();
    let slots = Arc::new(Semaphore::new(1));
    let policy = Policy::builder()
        .on(&clock)
        .limit(Arc::clone(&slots).named("in flight"))
        .build()
        .unwrap();
    clock.run(async {
        let held = policy.admit(1).await.unwrap();
        let refused = policy.admit_timeout(1, Duration::from_secs(3)).await.unwrap_err();
        assert_eq!((refused.reason(), refused.leg()), (Reason::TimedOut, "in flight"));
        assert_eq!(clock.elapsed(), Duration::from_secs(3));
        drop(held);
        assert_eq!(slots.available_permits(), 1);
        assert_eq!(policy.waiting(), 0);
    });
}

/// Given a full queue, then one more is refused as `QueueFull`, and admitted once there is room again.
#[test]
fn a_full_queue_refuses() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock))
        .max_queue(1)
        .build()
        .unwrap();
    clock.run(async {
        drop(policy.admit(1).await.unwrap());
        let (waited, refused) = futures::future::join(policy.admit(1), policy.admit(1)).await;
        assert!(waited.is_ok());
        assert_eq!(refused.unwrap_err().reason(), Reason::QueueFull);
        assert!(policy.admit(1).await.is_ok());
    });
}

/// Given a rate and a semaphore, when the rate is ready long before the semaphore is, then no token is spent while the
/// semaphore is waited for, and the release admits at once.
#[test]
fn nothing_is_held_while_the_turn_of_another_leg_is_waited_for() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock));
    let slots = Arc::new(Semaphore::new(1));
    let policy = Policy::builder()
        .limit(Arc::clone(&bucket).per(TOKENS))
        .limit(Arc::clone(&slots))
        .build()
        .unwrap();
    clock.run(async {
        let held = slots.acquire().await.unwrap();
        let mut waiter = pin!(policy.admit(Ask::one().cost(TOKENS, 4)));
        let count = Arc::new(Count::default());
        assert!(poll(waiter.as_mut(), &count).is_pending());
        assert_eq!(bucket.available(), 10);
        drop(held);
        assert_eq!(
            slots.available_permits(),
            0,
            "the claim was handed the permit in its turn"
        );
        assert_eq!(bucket.available(), 6);
        assert!(poll(waiter, &count).is_ready());
        assert_eq!(slots.available_permits(), 1);
    });
}

/// Given a waiter for tokens, when another's charge is settled downwards, then the waiter is admitted at once.
#[test]
fn a_settlement_admits_the_waiters_for_its_tokens() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let policy = Policy::new(TokenBucket::new(Quota::per_minute(1_000)).on(&clock).per(TOKENS));
    clock.run(async {
        let mut first = policy.admit(Ask::one().cost(TOKENS, 1_000)).await.unwrap();
        let second = policy.admit(Ask::one().cost(TOKENS, 500));
        let settle = async {
            clock.sleep(MS).await;
            first.settle(TOKENS, 400).unwrap();
        };
        let (second, ()) = futures::future::join(second, settle).await;
        assert!(second.is_ok());
        assert_eq!(clock.elapsed(), MS);
    });
}

/// Given threads that park, when another thread lets time pass, then each is admitted.
#[test]
fn blocked_threads_wait_in_the_same_queue() {
    let clock = ManualClock::new();
    let policy = Policy::new(TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock));
    drop(policy.try_admit(1).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| policy.admit_blocking(1).unwrap().forget());
        }
        while policy.waiting() < 2 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_millis(100));
        while policy.waiting() > 1 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_millis(100));
    });
    assert_eq!(policy.waiting(), 0);
}

/// Given a policy as a leg of another, when the inner queue has a waiter, then the outer is served after it.
#[test]
fn an_outer_policy_waits_until_the_inner_queue_has_emptied() {
    let clock = ManualClock::new();
    let inner = Policy::new(TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock));
    let outer = Policy::new(inner.clone());
    drop(inner.try_admit(1).unwrap());
    clock.run(async {
        let (first, second) = futures::future::join(
            async {
                inner.admit(1).await.unwrap().forget();
                clock.elapsed()
            },
            async {
                outer.admit(1).await.unwrap().forget();
                clock.elapsed()
            },
        )
        .await;
        assert_eq!(first, Duration::from_millis(100));
        assert_eq!(second, Duration::from_millis(200));
    });
}

/// Two policies that wait for an event of one limiter are both notified.
#[test]
fn an_event_reaches_each_policy_that_waits_for_it() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::zero().burst(1)).on(&clock));
    bucket.try_acquire(1).unwrap();
    let policies = [(); 20].map(|()| Policy::new(Arc::clone(&bucket)));
    let counts = [(); 20].map(|()| Arc::<Count>::default());
    let mut waits: Vec<_> = policies.iter().map(|policy| Box::pin(policy.admit(1))).collect();
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(poll(wait.as_mut(), count).is_pending());
    }
    bucket.set_quota(Quota::per_second(1).burst(20), Inherit::Reset);
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(count.0.load(Ordering::SeqCst) > 0);
        assert!(poll(wait.as_mut(), count).is_ready());
    }
}

/// Given a wait that has ended and whose future is kept, while its permit is in use.
/// Then no timer of it is left: a driver of the clock would stop there in vain.
#[test]
fn a_wait_that_has_ended_leaves_no_timer() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(Semaphore::new(1))
        .max_wait(Duration::from_secs(5))
        .on(&clock)
        .build()
        .unwrap();
    let held = policy.try_admit(1).unwrap();
    let mut wait = std::pin::pin!(policy.admit(1));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    drop(held);
    let polled = wait.as_mut().poll(&mut cx);
    assert!(matches!(polled, std::task::Poll::Ready(Ok(_))));
    assert!(!clock.advance_to_next_timer());
}
