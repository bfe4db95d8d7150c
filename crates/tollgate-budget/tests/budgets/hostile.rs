//! Wakers that panic, numbers at their end, keys without measure, and budgets that are dropped.

use crate::{budgets, counts};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tollgate::{Ask, ManualClock, Policy};
use tollgate_budget::{Account, Limit, Meter, OUTPUT, Period, Rule};

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker");
    }
}

fn two_limits() -> [Rule; 2] {
    [
        Rule::new("user")
            .per(["user"])
            .limit(Limit::in_flight(3))
            .limit(Limit::cost(OUTPUT, 100, Period::Minute)),
        Rule::new("all").limit(Limit::cost(OUTPUT, 1_000, Period::Minute)),
    ]
}

/// Does `act` with a meter of 90 units, beside another of 10, while a policy waits for room by a waker that panics.
fn beside_a_panicking_waker(account: &Account, act: impl FnOnce(Meter)) {
    let _other = account.reserve(Ask::one().cost(OUTPUT, 10)).unwrap();
    let meter = account.reserve(Ask::one().cost(OUTPUT, 90)).unwrap();
    let policy = Policy::builder()
        .limit(account.clone())
        .max_wait(Duration::from_secs(90))
        .build()
        .unwrap();
    let mut waiting = pin!(policy.admit(Ask::one().cost(OUTPUT, 1)));
    let waker = Waker::from(Arc::new(Panics));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    act(meter);
    // The waiter has been admitted, and holds one unit until it is dropped.
    assert_eq!(counts(account)[1].1 % 10, 1, "{:?}", counts(account));
}

#[test]
fn a_waker_that_panics_gives_nothing_back_twice() {
    let acts: [fn(Meter); 3] = [|meter| meter.cancel(), |mut meter| drop(meter.settle(OUTPUT, 0)), drop];
    for act in acts {
        let account = budgets(&ManualClock::new(), two_limits()).account(&[("user", "a")]);
        let held = account.reserve(Ask::one().cost(OUTPUT, 0)).unwrap();
        beside_a_panicking_waker(&account, act);
        // All but the call that is held has ended.
        assert_eq!(counts(&account), [(0, 1), (0, 0), (0, 0)]);
        drop(held);
    }
}

/// Given policies that wait at different levels of an account, when the waker of the first panics, then the other is told as well.
#[test]
fn a_waker_that_panics_keeps_no_wake_up_from_another_level() {
    let budgets = budgets(&ManualClock::new(), two_limits());
    let (ann, bob) = (budgets.account(&[("user", "ann")]), budgets.account(&[("user", "bob")]));
    let full: Vec<_> = (0..9)
        .map(|user| {
            budgets
                .account(&[("user", &format!("{user}"))])
                .reserve(Ask::one().cost(OUTPUT, 100))
        })
        .collect();
    let held = ann.reserve(Ask::one().cost(OUTPUT, 100)).unwrap();
    let policy = |account: &Account| {
        let wait = Duration::from_secs(90);
        Policy::builder().limit(account.clone()).max_wait(wait).build().unwrap()
    };
    let (first, second) = (policy(&ann), policy(&bob));
    let (mut one, mut two) = (
        pin!(first.admit(Ask::one().cost(OUTPUT, 1))),
        pin!(second.admit(Ask::one().cost(OUTPUT, 1))),
    );
    let waker = Waker::from(Arc::new(Panics));
    assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(two.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(held);
    assert_eq!(counts(&bob)[1], (0, 1), "it has been admitted");
    drop(full);
}

#[test]
fn a_charge_beyond_all_numbers_frees_nothing_of_others() {
    let clock = ManualClock::new();
    let account = budgets(&clock, two_limits()).account(&[("user", "a")]);
    let other = account.reserve(Ask::one().cost(OUTPUT, 60)).unwrap();
    let mut meter = account.reserve(Ask::one().cost(OUTPUT, 0)).unwrap();
    assert!(meter.extend(OUTPUT, u64::MAX).is_err());
    meter.settle(OUTPUT, 0).unwrap();
    drop(meter);
    assert!(account.reserve(Ask::one().cost(OUTPUT, 60)).is_err());
    drop(other);
    clock.advance(Duration::from_secs(60));
    assert!(account.reserve(Ask::one().cost(OUTPUT, 60)).is_ok());
}

/// Given a level that is over, when a request of a period before is settled to more, then the level is not blamed for it.
#[test]
fn a_settlement_that_charges_nothing_exceeds_nothing() {
    let clock = ManualClock::new();
    let rule = Rule::new("all").limit(Limit::cost(OUTPUT, 100, Period::Minute));
    let account = budgets(&clock, [rule]).account(&[]);
    let mut old = account.reserve(Ask::one().cost(OUTPUT, 10)).unwrap();
    clock.advance(Duration::from_secs(60));
    let mut new = account.reserve(Ask::one().cost(OUTPUT, 10)).unwrap();
    assert!(new.extend(OUTPUT, 150).is_err());
    assert!(old.settle(OUTPUT, 90).is_ok());
    assert_eq!(counts(&account), [(0, 150)]);
}

#[test]
fn a_key_without_measure_counts_on_the_overflow_level() {
    let budgets = budgets(&ManualClock::new(), two_limits());
    let long = "x".repeat(1_025);
    let account = budgets.account(&[("user", &long)]);
    assert!(account.usage().next().unwrap().is_overflow());
    assert!(budgets.is_empty());
    // Also a value that no rule names is not kept.
    let before = allocation_counter::measure(|| {
        for request in 0..100 {
            budgets.account(&[("user", "a"), ("request", &format!("{request}{long}{long}"))]);
        }
    });
    assert!(before.bytes_current < 10_000, "{} bytes", before.bytes_current);
}

#[test]
fn dropped_budgets_leave_nothing() {
    let clock = ManualClock::new();
    let use_all = || {
        let budgets = budgets(&clock, two_limits());
        let account = budgets.account(&[("user", "a")]);
        let meter = account.reserve(Ask::one().cost(OUTPUT, 10)).unwrap();
        drop((budgets, account));
        drop(meter);
    };
    // Zones and the like are kept for good.
    use_all();
    assert_eq!(allocation_counter::measure(use_all).bytes_current, 0);
}
