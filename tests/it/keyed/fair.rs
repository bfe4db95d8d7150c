//! One budget for many keys: no key gets more than its part while another wants it, and nothing lies idle.

use std::time::Duration;
use tollgate::keyed::{FairBudget, FairShare, FairTicket, Shared};
use tollgate::{
    Ask, ClockReading, Cost, Demand, Keyed, Limiter, LimiterExt, ManualClock, Policy, Quota, Reason, Ticket,
    TokenBucket, Wait,
};

const SECOND: Duration = Duration::from_secs(1);

fn tenants(clock: &ManualClock, max: usize, rate: u64, burst: u64) -> (Keyed<u64, FairShare>, FairBudget) {
    let budget = FairBudget::new(Quota::per_second(rate).burst(burst)).on(clock);
    let shared = budget.clone();
    (Keyed::new(max, move |_: &u64| shared.share()), budget)
}

#[test]
fn a_refusal_names_the_instant_at_which_a_lone_caller_succeeds() {
    let clock = ManualClock::new();
    let (map, _) = tenants(&clock, 10, 10, 10);
    let (a, b) = (map.get(&1).unwrap(), map.get(&2).unwrap());
    a.try_acquire(10).unwrap();
    assert_eq!(
        a.try_acquire(4).unwrap_err().retry_after(),
        Some(Duration::from_millis(400))
    );
    // With another waiter that lacks one token, half of the flow goes there until it has it.
    b.try_acquire(1).unwrap();
    let refused = a.try_acquire(4).unwrap_err();
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(500)));
    assert_eq!((refused.reason(), refused.leg()), (Reason::RateExceeded, "fair_share"));
    clock.advance(Duration::from_nanos(499_999_999));
    assert!(a.try_acquire(4).is_err());
    clock.advance(Duration::from_nanos(1));
    a.try_acquire(4).unwrap();
    assert_eq!(a.try_acquire(11).unwrap_err().reason(), Reason::Oversized);
    // Who goes leaves its part.
    b.try_acquire(10).unwrap();
    drop((b, map.remove(&2)));
    clock.advance(Duration::from_millis(100));
    assert_eq!(a.available(), 1);
}

/// Given a tenant that floods and nine that ask modestly, when they all wait at policies over one budget, then the modest
/// ones get all they ask for, and the one that floods what is left, to the last token.
#[test]
fn a_flood_takes_what_the_others_leave() {
    let clock = ManualClock::new();
    let budget = FairBudget::new(Quota::per_second(100).burst(2)).on(&clock);
    let map = Keyed::new(100, move |_: &u64| Policy::new(budget.share()));
    let served = std::cell::RefCell::new([0u32; 10]);
    clock.run(async {
        let flood = async {
            let handle = map.get(&0).unwrap();
            loop {
                drop(handle.admit(1).await.unwrap());
                served.borrow_mut()[0] += 1;
            }
        };
        let modest = (1..10u64).map(|key| {
            let (map, served, clock) = (&map, &served, &clock);
            async move {
                let handle = map.get(&key).unwrap();
                for _ in 0..50 {
                    // Five a second each.
                    drop(handle.admit(1).await.unwrap());
                    served.borrow_mut()[key as usize] += 1;
                    clock.sleep(Duration::from_millis(200)).await;
                }
            }
        });
        let modest = Box::pin(futures::future::join_all(modest));
        futures::future::select(Box::pin(flood), modest).await;
        let seconds = clock.elapsed().as_secs_f64();
        assert!((10.0..10.5).contains(&seconds), "no modest key waits: {seconds}");
        assert_eq!(served.borrow()[1..], [50; 9]);
        let rest = seconds * 100.0 - 450.0;
        let flood = f64::from(served.borrow()[0]);
        assert!((flood - rest).abs() <= 22.0, "{flood} of {rest}");
    });
}

#[test]
fn a_full_share_may_go_and_one_that_is_not_stays() {
    let clock = ManualClock::new();
    let (map, _) = tenants(&clock, 2, 1, 1);
    map.get(&1).unwrap().try_acquire(1).unwrap();
    map.get(&2).unwrap().try_acquire(1).unwrap();
    assert!(map.get(&3).is_err());
    clock.advance(SECOND);
    assert!(map.get(&3).is_err(), "each has a half");
    clock.advance(SECOND);
    assert!(map.get(&3).is_ok());
}

#[test]
fn refunds_never_exceed_the_free_capacity() {
    const BYTES: Cost = Cost::new("bytes");
    let clock = ManualClock::new();
    let share = FairBudget::new(Quota::per_second(10).burst(10)).on(&clock).share();
    let reserved = share.try_admit(6).unwrap();
    clock.advance(Duration::from_millis(500));
    share.try_acquire(9).unwrap();
    // Five of the six have come back meanwhile: one is left to give.
    reserved.cancel();
    assert_eq!(share.available(), 1);
    clock.advance(Duration::from_millis(900));

    let priced = share.per(BYTES);
    let mut permit = priced.try_admit(Ask::one().cost(BYTES, 10)).unwrap();
    permit.settle(BYTES, 3).unwrap();
    drop(permit);
    let mut permit = priced.try_admit(Ask::one().cost(BYTES, 7)).unwrap();
    permit.settle(BYTES, 12).unwrap();
    drop(permit);
    assert!(priced.try_admit(Ask::one().cost(BYTES, 1)).is_err());
    clock.advance(Duration::from_millis(600));
    assert!(priced.try_admit(Ask::one().cost(BYTES, 1)).is_ok());
}

/// With a bucket behind it that all have in common, the bursts of the shares do not add up.
#[test]
fn a_common_bucket_bounds_the_bursts_of_all() {
    let clock = ManualClock::new();
    let budget = FairBudget::new(Quota::per_second(10).burst(5)).on(&clock);
    let all = Shared::new(TokenBucket::new(Quota::per_second(10).burst(8)).on(&clock));
    let map = Keyed::new(100, move |_: &u64| budget.share().and(all.clone()));
    let admitted = (0..100)
        .filter(|key| map.get(key).unwrap().try_admit(1).is_ok())
        .count();
    assert_eq!(admitted, 8);
}

#[test]
fn slow_and_fast_rates_do_not_drift() {
    for (count, seconds) in [
        (1, 365 * 86_400),
        (7, 1),
        (1_000_000_000, 1),
        (999_999_937, 1),
        (86_399, 86_400),
    ] {
        let quota = Quota::new(count, Duration::from_secs(seconds)).unwrap();
        let quota = quota.with_burst(count.min(1 << 30)).unwrap();
        let clock = ManualClock::new();
        let share = FairBudget::new(quota).on(&clock).share();
        share.try_acquire(share.available()).unwrap();
        let (mut taken, mut passed) = (0u128, 0u64);
        let mut step = 1u64;
        while passed < 30 * 365 * 86_400 * 1_000_000_000 / 10 {
            step = (step * 7 + 13) % (seconds * 500_000_000) + 1;
            clock.advance(Duration::from_nanos(step));
            passed += step;
            let there = share.available();
            share.try_acquire(there).unwrap();
            taken += u128::from(there);
            if taken > 1 << 34 || step < 13 {
                break;
            }
        }
        let exact = u128::from(passed) * u128::from(count) / (u128::from(seconds) * 1_000_000_000);
        assert!(
            taken.abs_diff(exact) <= 1,
            "{count} per {seconds} s: {taken}, exactly {exact}"
        );
    }
}

/// As in every other rate.
#[test]
fn zero_and_unlimited_have_names() {
    let clock = ManualClock::new();
    let open = FairBudget::new(Quota::unlimited()).on(&clock).share();
    for n in [u64::MAX, 1, 0, u64::MAX] {
        open.try_acquire(n).unwrap();
        open.try_admit(n).unwrap().cancel();
    }
    assert_eq!(open.available(), u64::MAX);
    let tokens = Cost::new("tokens");
    let gate = (&open).per(tokens);
    let mut permit = gate.try_admit(Ask::one().cost(tokens, 5)).unwrap();
    assert_eq!(permit.settle(tokens, 7).unwrap(), 1);
    drop(permit);
    drop(gate);
    let mut as_new = false;
    open.describe(&mut |leg| as_new = leg.is_as_new);
    assert!(as_new);

    let budget = FairBudget::new(Quota::zero().burst(5)).on(&clock);
    let (one, other) = (budget.share(), budget.share());
    one.try_acquire(5).unwrap();
    let refused = one.try_acquire(1).unwrap_err();
    assert_eq!((refused.reason(), refused.retry_after()), (Reason::RateExceeded, None));
    clock.advance(Duration::from_secs(365 * 86_400));
    assert_eq!((one.available(), other.available()), (0, 5));
    let ask = Ask::many(1);
    let reading = ClockReading::default();
    let refused = one.look(&Demand::new(&ask, &reading)).unwrap_err();
    assert_eq!((refused.wait(), refused.is_retryable()), (Wait::SPENT, false));
}

/// Given two shares that both lack tokens, and one that waits at the first, when the second goes, then the waiter is woken
/// in time, and admitted in half of the time that it had to wait for.
#[test]
fn a_removed_share_notifies_the_waiters_of_the_others() {
    let clock = ManualClock::new();
    let budget = FairBudget::new(Quota::per_second(2).burst(2)).on(&clock);
    let (one, other) = (std::sync::Arc::new(budget.share()), budget.share());
    one.try_acquire(2).unwrap();
    other.try_acquire(2).unwrap();
    let policy = Policy::new(one);
    clock.run(async {
        let waits = async {
            policy.admit(2).await.unwrap().forget();
            assert_eq!(clock.elapsed(), SECOND);
        };
        futures::join!(waits, async { drop(other) });
    });
}

#[test]
fn a_ticket_is_the_same_after_it_was_words() {
    let (words, mut again) = ([1, 2, 3], [0; 3]);
    FairTicket::read(&words).write(&mut again);
    assert_eq!(again, words);
}
