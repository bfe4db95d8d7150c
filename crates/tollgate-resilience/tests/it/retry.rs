//! Retries: the schedule's driver, its budget, its deadline, and what is left when it is dropped.

use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Quota, Semaphore, TokenBucket};
use tollgate_resilience::retry::{Backoff, Repeat, Retry, RetryError};
use tollgate_resilience::shed::RetryBudget;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn backoff() -> Backoff {
    Backoff::new(ms(100), ms(1_000)).unwrap()
}

fn retry() -> Retry {
    Retry::new(backoff()).seed(1)
}

fn slots(clock: &ManualClock, permits: usize) -> Policy<Arc<Semaphore>> {
    let builder = Policy::builder().on(clock).limit(Arc::new(Semaphore::new(permits)));
    builder.build().unwrap()
}

type Failure = Result<(), u32>;

#[test]
fn an_attempt_is_repeated_until_it_succeeds_or_may_not_be() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 1);
    // Attempts until success, and the attempts that are made.
    for (succeeds_at, fatal_at, most, made) in [(1, 9, 3, 1), (3, 9, 3, 3), (4, 9, 3, 3), (4, 2, 9, 2), (9, 9, 0, 1)] {
        let attempt = Cell::new(0);
        let work = async || {
            attempt.set(attempt.get() + 1);
            if attempt.get() < succeeds_at {
                Err(attempt.get())
            } else {
                Ok(())
            }
        };
        let judge = |error: &u32| {
            if *error < fatal_at {
                Repeat::Backoff
            } else {
                Repeat::Never
            }
        };
        let result = clock.run(retry().attempts(most).run(&policy, 1, work, judge));
        assert_eq!(attempt.get(), made);
        match result {
            Ok(()) => assert_eq!(made, succeeds_at),
            Err(RetryError::Failed(error)) => assert_eq!(error, made),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Given 2,000 requests to a resource that fails all of them, then with a budget of a tenth it is asked at most 1.1 times
/// for each, and the reserve once; without a budget it is asked three times for each.
#[test]
fn a_total_outage_is_amplified_by_the_budget_at_most() {
    const REQUESTS: usize = 2_000;
    const RESERVE: u64 = 10;
    let amplification = |budget: Option<Arc<RetryBudget>>| {
        let clock = ManualClock::new();
        let policy = Policy::new(TokenBucket::new(Quota::per_second(100).burst(1)).on(&clock));
        let retry = match &budget {
            Some(budget) => retry().budget(budget),
            None => retry(),
        };
        let asked = Cell::new(0);
        let work = async || {
            asked.set(asked.get() + 1);
            clock.sleep(ms(20)).await;
            Failure::Err(503)
        };
        let request = async || {
            let result = retry.run(&policy, 1, work, |_| Repeat::Backoff).await;
            assert!(matches!(result, Err(RetryError::Failed(503))));
        };
        clock.run(futures::future::join_all((0..REQUESTS).map(|_| request())));
        asked.get()
    };
    let budget = Arc::new(RetryBudget::new(0.1, RESERVE).unwrap());
    let (with_budget, naive) = (amplification(Some(budget)), amplification(None));
    assert!(
        with_budget <= REQUESTS * 11 / 10 + RESERVE as usize,
        "{with_budget} of {REQUESTS}"
    );
    assert!(
        with_budget > REQUESTS * 105 / 100,
        "the budget is used: {with_budget} of {REQUESTS}"
    );
    assert_eq!(naive, 3 * REQUESTS);
}

/// Given hints of the server, shorter and longer than the schedule, then the attempts start after the longer of the two delays.
#[test]
fn a_hint_of_the_server_replaces_a_shorter_delay_of_the_schedule() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 1);
    let starts = RefCell::new(Vec::new());
    let work = async || {
        starts.borrow_mut().push(clock.elapsed());
        Failure::Err(429)
    };
    let mut hints = [ms(5), ms(9_000)].into_iter();
    let judge = |_: &Failure| (Outcome::Overload, Repeat::hinted(hints.next()));
    let retry = retry().attempts(4).retry_after_jitter(0.0);
    let result = clock.run(retry.run_classified(&policy, 1, work, judge));
    assert!(matches!(result, Err(RetryError::Failed(429))));
    let starts = starts.into_inner();
    let delays: Vec<_> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((ms(100)..=ms(300)).contains(&delays[0]), "{delays:?}");
    assert_eq!(delays[1], ms(9_000));
    assert!((ms(100)..=ms(1_000)).contains(&delays[2]), "{delays:?}");
}

#[test]
fn a_delay_that_the_program_chooses_is_exact() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 1);
    let starts = RefCell::new(Vec::new());
    let work = async || {
        starts.borrow_mut().push(clock.elapsed());
        Failure::Err(503)
    };
    let mut delays = [ms(0), ms(5), ms(9_000)].into_iter();
    let judge = |_: &u32| delays.next().map_or(Repeat::Never, Repeat::After);
    let retry = retry().attempts(9).max_retry_after(ms(1));
    assert!(clock.run(retry.run(&policy, 1, work, judge)).is_err());
    assert_eq!(starts.into_inner(), [ms(0), ms(0), ms(5), ms(9_005)]);
}

#[test]
fn a_hint_of_zero_does_not_switch_the_back_off_off() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 1);
    let work = async || Failure::Err(429);
    let judge = |_: &u32| Repeat::hinted(Some(ms(0)));
    assert!(clock.run(retry().attempts(8).run(&policy, 1, work, judge)).is_err());
    assert!(clock.elapsed() >= 7 * ms(100), "{:?}", clock.elapsed());
}

#[test]
fn callers_with_one_hint_come_back_spread_and_none_before_it() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 10_000);
    let retry = Retry::new(Backoff::default()).seed(1);
    let starts = RefCell::new(Vec::new());
    let caller = async || {
        let is_first = Cell::new(true);
        let work = async || match is_first.replace(false) {
            true => Err(429),
            false => {
                starts.borrow_mut().push(clock.elapsed());
                Ok(())
            }
        };
        retry
            .run(&policy, 1, work, |_| Repeat::hinted(Some(ms(2_000))))
            .await
            .unwrap();
    };
    clock.run(futures::future::join_all((0..1_000).map(|_| caller())));
    let starts = starts.into_inner();
    assert!(starts.iter().all(|at| (ms(2_000)..=ms(2_200)).contains(at)));
    let mut instants: Vec<_> = starts.iter().map(Duration::as_millis).collect();
    instants.dedup();
    assert!(instants.len() > 100, "1,000 callers in {} milliseconds", instants.len());
}

/// Given the longest hint that there is, and jitters that are out of bounds, then the delay is that of the maximum, and up to twice
/// as long.
#[test]
fn no_hint_causes_a_delay_beyond_the_maximum_and_its_jitter() {
    for (jitter, most) in [(f64::NAN, 1_000), (-1.0, 1_000), (0.5, 1_500), (f64::INFINITY, 2_000)] {
        let clock = ManualClock::new();
        let policy = slots(&clock, 1);
        let retry = retry()
            .attempts(2)
            .max_retry_after(ms(1_000))
            .retry_after_jitter(jitter);
        let judge = |_: &u32| Repeat::hinted(Some(Duration::MAX));
        let result = clock.run(retry.run(&policy, 1, async || Failure::Err(429), judge));
        assert!(matches!(result, Err(RetryError::Failed(429))));
        assert!(
            (ms(1_000)..=ms(most)).contains(&clock.elapsed()),
            "{jitter}: {:?}",
            clock.elapsed()
        );
    }
}

/// Given no maximum and no deadline, then the longest hint is a delay like any other.
#[test]
fn the_longest_hint_without_a_maximum_overflows_nothing() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 1);
    let retry = retry()
        .deadline(ms(1_000))
        .max_retry_after(Duration::MAX)
        .retry_after_jitter(1.0);
    let result = clock.run(retry.run(
        &policy,
        1,
        async || Failure::Err(429),
        |_| Repeat::hinted(Some(Duration::MAX)),
    ));
    assert!(matches!(result, Err(RetryError::Failed(429))));
    assert_eq!(clock.elapsed(), ms(0));
}

/// Given a deadline, then no attempt starts that would start after it, no attempt runs beyond it, and the caller does not wait
/// for what cannot be.
#[test]
fn nothing_happens_beyond_the_deadline() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 1);
    let run = |deadline: u64, takes: u64, hint: u64| {
        let (before, starts) = (clock.elapsed(), Cell::new(0));
        let work = async || {
            starts.set(starts.get() + 1);
            clock.sleep(ms(takes)).await;
            Failure::Err(starts.get())
        };
        let judge = |_: &u32| Repeat::After(ms(hint));
        let result = clock.run(retry().attempts(9).deadline(ms(deadline)).run(&policy, 1, work, judge));
        assert_eq!(policy.limiter().in_use(), 0);
        let last = match result {
            Err(RetryError::Failed(error)) => error,
            Err(RetryError::TimedOut) => 0,
            other => panic!("{other:?}"),
        };
        (last, starts.get(), (clock.elapsed() - before).as_millis() as u64)
    };
    assert_eq!(run(1_000, 100, 10_000), (1, 1, 100), "the hint is beyond it");
    assert_eq!(run(1_000, 100, 900), (1, 1, 100), "the delay ends at it");
    assert_eq!(run(1_000, 100, 899), (1, 2, 1_000), "the second attempt is dropped");
    assert_eq!(run(1_000, 100, 300), (3, 3, 900));
    assert_eq!(run(1_000, 5_000, 0), (0, 1, 1_000), "the first attempt is dropped");
}

/// Given that each attempt waits for its admission, then an admission that cannot come before the deadline ends it at once,
/// with the result of the attempt before, and its retry goes back to the budget.
#[test]
fn each_attempt_has_an_admission_and_a_refused_retry_costs_nothing() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(2)).on(&clock));
    let policy = Policy::new(Arc::clone(&bucket));
    let budget = Arc::new(RetryBudget::new(0.0, 5).unwrap());
    let retry = retry().attempts(9).budget(&budget).deadline(ms(2_500));
    let starts = RefCell::new(Vec::new());
    let work = async || {
        starts.borrow_mut().push(clock.elapsed());
        Failure::Err(503)
    };
    let result = clock.run(retry.run(&policy, 1, work, |_| Repeat::After(ms(10))));
    assert!(matches!(result, Err(RetryError::Failed(503))));
    assert_eq!(starts.take(), [ms(0), ms(10), ms(1_000), ms(2_000)]);
    assert_eq!((clock.elapsed(), budget.available()), (ms(2_010), 2));
    let refused = clock.run(retry.run(&policy, 3, work, |_| Repeat::Backoff));
    assert!(matches!(refused, Err(RetryError::Refused(_))) && starts.take().is_empty());
    assert_eq!(budget.available(), 2);
}

/// Only a first attempt that was admitted deposits.
#[test]
fn first_attempts_deposit_and_retries_do_not() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 1);
    let budget = Arc::new(RetryBudget::new(1.0, 10).unwrap());
    let drained: Vec<_> = (0..10).map(|_| budget.try_admit(1).unwrap()).collect();
    drop(drained);
    let retry = retry().budget(&budget);
    let failing = || clock.run(retry.run(&policy, 1, async || Failure::Err(1), |_| Repeat::Backoff));
    failing().unwrap_err();
    assert_eq!(budget.available(), 0, "one in, one out, and none for the third attempt");
    let held = policy.try_admit(1).unwrap();
    let waiting = retry.run(&policy, 1, async || Ok::<_, ()>(()), |()| Repeat::Backoff);
    assert!(pin!(waiting).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(budget.available(), 0);
    drop(held);
    clock
        .run(retry.run(&policy, 1, async || Ok::<_, ()>(()), |()| Repeat::Backoff))
        .unwrap();
    assert_eq!(budget.available(), 1);
}

/// With the real clock in a runtime whose clock is paused, all of it is by the runtime's clock. The future may be spawned.
#[tokio::test(start_paused = true)]
async fn a_paused_runtime_is_followed() {
    let policy = Policy::new(Semaphore::new(1));
    let started = tokio::time::Instant::now();
    let task = tokio::spawn(async move {
        let work = async || {
            tokio::time::sleep(ms(1_000)).await;
            Failure::Err(1)
        };
        let retry = retry().attempts(9).deadline(Duration::from_secs(86_400));
        let result = retry
            .run(&policy, 1, work, |_| Repeat::After(Duration::from_secs(36_000)))
            .await;
        matches!(result, Err(RetryError::Failed(1)))
    });
    assert!(task.await.unwrap());
    // Three attempts: a fourth would start after the deadline.
    assert_eq!(started.elapsed().as_secs(), 2 * 36_001 + 1);
}

/// A future that notes whether its permit is still held when it is dropped, and then may panic.
struct Dropped<'a> {
    semaphore: &'a Semaphore,
    held: &'a AtomicUsize,
    panics: bool,
}

impl Future for Dropped<'_> {
    type Output = Failure;
    fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Failure> {
        Poll::Pending
    }
}

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.held.fetch_add(self.semaphore.in_use(), SeqCst);
        assert!(!self.panics, "hostile");
    }
}

/// Given work that panics when it is dropped, at the deadline or with the caller's future, then its permit comes back all the
/// same, after it, and the next caller is served.
#[test]
fn work_is_dropped_before_its_permit_also_if_the_drop_panics() {
    for (at_deadline, panics) in [(true, false), (true, true), (false, false), (false, true)] {
        let clock = ManualClock::new();
        let policy = slots(&clock, 1);
        let semaphore: &Semaphore = policy.limiter();
        let held = AtomicUsize::new(0);
        let work = || Dropped {
            semaphore,
            held: &held,
            panics,
        };
        let retry = retry().deadline(ms(500));
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let mut running = Box::pin(retry.run(&policy, 1, work, |_| Repeat::Backoff));
            if at_deadline {
                drop(clock.run(running));
            } else {
                let _ = running.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
        }));
        assert_eq!(caught.is_err(), panics);
        assert_eq!((held.into_inner(), semaphore.in_use(), policy.waiting()), (1, 0, 0));
        clock
            .run(retry.run(&policy, 1, async || Ok::<_, ()>(()), |()| Repeat::Never))
            .unwrap();
    }
}

/// A result whose drop panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "hostile");
    }
}

#[test]
fn a_result_that_panics_as_it_is_dropped_loses_nothing() {
    let clock = ManualClock::new();
    let policy = slots(&clock, 1);
    let budget = Arc::new(RetryBudget::new(0.0, 5).unwrap());
    let retry = retry().budget(&budget);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        clock
            .run(retry.run(&policy, 1, async || Err::<(), _>(Bomb), |_| Repeat::Backoff))
            .map_err(drop)
    }));
    assert!(caught.is_err());
    // The first result is dropped when the second is there, for which a third attempt was reserved.
    assert_eq!((policy.limiter().in_use(), budget.available()), (0, 4));
}

proptest! {
    #![proptest_config(crate::cases(128))]

    /// Given that the future is dropped after any poll, beside others that take the permits and tokens, then no permit is
    /// out, no waiter is left, and the budget lacks exactly the retries whose attempts have started.
    #[test]
    fn a_cancel_at_any_await_loses_nothing(
        polls in 0..40usize,
        takes in prop::collection::vec(0..300u64, 1..6),
        holds in prop::collection::vec(0..500u64, 0..6),
        deadline in prop::option::of(0..3_000u64),
        hint in prop::option::of(0..500u64),
    ) {
        let clock = ManualClock::new();
        let semaphore = Arc::new(Semaphore::new(1));
        let bucket = TokenBucket::new(Quota::per_second(20).burst(1)).on(&clock);
        let policy = Policy::new(bucket.and(Arc::clone(&semaphore)));
        let budget = Arc::new(RetryBudget::new(0.0, 3).unwrap());
        let mut retry = retry().attempts(5).budget(&budget);
        if let Some(deadline) = deadline {
            retry = retry.deadline(ms(deadline));
        }
        let (starts, running) = (Cell::new(0), Cell::new(0i32));
        struct Running<'a>(&'a Cell<i32>);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        let work = async || {
            let nth = starts.get();
            starts.set(nth + 1);
            running.set(running.get() + 1);
            assert_eq!((running.get(), semaphore.in_use()), (1, 1), "one admission per attempt");
            let _running = Running(&running);
            clock.sleep(ms(takes[nth % takes.len()])).await;
            Failure::Err(1)
        };
        let others = async {
            for hold in &holds {
                let permit = policy.admit(1).await.unwrap();
                clock.sleep(ms(*hold)).await;
                drop(permit);
                clock.sleep(ms(10)).await;
            }
            pending::<()>().await;
        };
        let mut cx = Context::from_waker(Waker::noop());
        {
            let mut others = Box::pin(others);
            let mut cancelled = Box::pin(retry.run(&policy, 1, work, |_| Repeat::hinted(hint.map(ms))));
            for _ in 0..polls {
                let _ = others.as_mut().poll(&mut cx);
                if cancelled.as_mut().poll(&mut cx).is_ready() {
                    break;
                }
                clock.advance_to_next_timer();
            }
            // Of those that have ended, nothing more is polled.
        }
        prop_assert_eq!((semaphore.in_use(), policy.waiting(), running.get()), (0, 0, 0));
        prop_assert_eq!(budget.available(), 3 - starts.get().saturating_sub(1) as u64);
        prop_assert!(starts.get() <= 4, "three retries are there");
        clock.advance(Duration::from_secs(1));
        prop_assert!(policy.try_admit(1).is_ok());
    }
}
