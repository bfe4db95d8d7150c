//! Shedding at the edges: wake-ups and windows.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{Ask, Cost, Limiter, LimiterExt, ManualClock, Outcome, Policy};
use tollgate_resilience::shed::{RetryBudget, Throttler};

/// Given a policy that waits for a whole retry, then deposits wake it when there is one, and not before.
#[test]
fn a_waiter_for_a_retry_wakes_when_a_whole_one_is_there() {
    let clock = ManualClock::new();
    let budget = Arc::new(RetryBudget::new(0.4, 3).unwrap());
    budget.try_admit(3).unwrap().finish(Outcome::Success);
    assert_eq!(budget.available(), 0);
    let policy = Policy::builder().on(&clock).limit(Arc::clone(&budget)).build().unwrap();
    clock.run(async {
        let mut waits = pin!(policy.admit(1));
        let mut pending = async |n: usize| {
            for _ in 0..n {
                budget.deposit();
                let is_pending = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_pending())).await;
                assert!(is_pending);
            }
        };
        pending(2).await;
        budget.deposit();
        drop(waits.await.unwrap());
    });
    assert_eq!(budget.available(), 0, "1.2 have been there");
    // Two fifths a time: after a fifth, and three times that, and four.
    let whole = [1, 1, 1, 1, 1].map(|_| {
        budget.deposit();
        budget.available()
    });
    assert_eq!(whole, [0, 1, 1, 1, 2]);
    // Cancelled requests are back, as many as they were, up to the most that is kept.
    budget.try_admit(2).unwrap().cancel();
    assert_eq!(budget.available(), 2);
    assert!(budget.try_admit(3).is_err());
    assert!(format!("{budget:?}").contains("available: 2"));
}

/// Given a thread that waits for a retry, when deposits make one whole, then it is served.
#[test]
fn a_blocked_thread_wakes_for_a_whole_retry() {
    let budget = Arc::new(RetryBudget::new(0.5, 1).unwrap());
    drop(budget.try_admit(1).unwrap());
    let policy = Policy::new(Arc::clone(&budget));
    let other = policy.clone();
    let thread = std::thread::spawn(move || other.admit_blocking(1).map(drop).is_ok());
    while policy.waiting() == 0 {
        std::thread::yield_now();
    }
    budget.deposit();
    budget.deposit();
    assert!(thread.join().unwrap());
}

/// Requests and successes count for the window, and are gone after it.
#[test]
fn a_throttler_looks_at_its_window_alone() {
    let clock = ManualClock::new();
    let throttler = Throttler::new(0.5, 0.9, Duration::from_secs(10)).unwrap().on(&clock);
    throttler.describe(&mut |leg| assert!(leg.clock.is_some_and(|seen| seen.is_same(&clock))));
    for _ in 0..4 {
        throttler.try_admit(5).unwrap().finish(Outcome::Success);
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(throttler.rate(), 0.0);
    // 20 were accepted, which allows 40; of 100 that are not, the part above that is refused.
    for _ in 0..100 {
        let _ = throttler.try_admit(1).map(|permit| permit.finish(Outcome::Overload));
    }
    let rate = throttler.rate();
    assert!((rate - 80.0 / 121.0).abs() < 1e-9, "{rate}");
    assert!(format!("{throttler:?}").contains("rate: 0.66"), "{throttler:?}");
    clock.advance(Duration::from_secs(20));
    assert_eq!(throttler.rate(), 0.0);
}

/// Given clients that choose the largest cost in each segment of the window, then the throttler saturates: it drops as often as it may,
/// and has forgotten them after the window.
#[test]
fn the_largest_costs_saturate_a_throttler() {
    const COST: Cost = Cost::new("cost");
    let clock = ManualClock::new();
    let throttler = Throttler::new(0.5, 0.9, Duration::from_secs(10)).unwrap();
    let throttler = Arc::new(throttler.on(&clock));
    let by_cost = Arc::clone(&throttler).per(COST);
    for outcome in [Outcome::Overload, Outcome::Success].repeat(5) {
        if let Ok(permit) = by_cost.try_admit(Ask::one().cost(COST, u64::MAX)) {
            permit.finish(outcome);
        }
        assert!((0.0..=0.9).contains(&throttler.rate()));
        clock.advance(Duration::from_secs(1));
    }
    clock.advance(Duration::from_secs(10));
    assert_eq!(throttler.rate(), 0.0);
    assert!(by_cost.try_admit(Ask::one().cost(COST, 1)).is_ok());
}

/// Given a policy that waits whose head is dropped, then it asks once in each tenth of the window, however often it looks.
#[test]
fn a_dropped_head_asks_once_in_each_tenth_of_the_window() {
    let mut drops = 0;
    for seed in 0..60 {
        let clock = ManualClock::new();
        let throttler = Throttler::new(1.0, 0.9, Duration::from_secs(10)).unwrap();
        let throttler = Arc::new(throttler.on(&clock).seed(seed));
        for outcome in [Outcome::Success, Outcome::Overload] {
            throttler.try_admit(100).unwrap().finish(outcome);
        }
        let rate = |asks: u32| (100.0 + 10.0 * f64::from(asks)) / (201.0 + 10.0 * f64::from(asks));
        let policy = Policy::builder()
            .on(&clock)
            .limit(Arc::clone(&throttler))
            .build()
            .unwrap();
        let mut waits = pin!(policy.admit(10));
        let mut is_dropped = || {
            waits
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        };
        // As a newcomer, and as the head.
        for asks in 2..10 {
            if !is_dropped() {
                break;
            }
            drops += 1;
            for _ in 0..9 {
                assert_eq!(throttler.rate(), rate(asks), "{seed}");
                clock.advance(Duration::from_millis(100));
                assert!(is_dropped());
            }
            clock.advance(Duration::from_millis(100));
        }
    }
    assert!(drops > 5, "{drops}");
}
