//! The waterfall: the first of several sources that admits.

use futures::FutureExt;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tollgate::policy::explain::LegVerdict;
use tollgate::{
    Ask, Cost, FirstOf, FixedWindow, Legs, LimiterExt, ManualClock, Permit, Policy, Quota, Reason, Semaphore,
    TokenBucket, Wait,
};

const TOKENS: Cost = Cost::new("tokens");
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn tokens(units: u64) -> Ask {
    Ask::one().cost(TOKENS, units)
}

/// The name of the source that a policy of sources took from.
fn source<'a>(policy: &'a Policy<FirstOf>, permit: &Permit<&Policy<FirstOf>>) -> &'a str {
    policy.limiter().source(permit.ticket().unwrap())
}

type Windows = [Arc<FixedWindow>; 3];

/// Three windows of these limits, asked in order.
fn windows(clock: &ManualClock, limits: [u64; 3]) -> (Windows, FirstOf) {
    let windows = limits.map(|limit| Arc::new(FixedWindow::new(limit, MINUTE).unwrap().on(clock)));
    let source = |window: &Arc<FixedWindow>| Arc::clone(window).per(TOKENS);
    let [plan, credits, metered] = &windows;
    let billing = FirstOf::new("plan", source(plan))
        .or("credits", source(credits))
        .or("metered", source(metered));
    (windows, billing)
}

proptest! {
    /// Given any program of admissions, settlements, cancellations and ends, then each source has used what a list of the admissions
    /// says: of the first that had room, and settled there.
    #[test]
    fn each_source_has_used_what_was_taken_from_it(
        limits in prop::array::uniform3(0u64..40),
        steps in prop::collection::vec((0u8..4, 0usize..8, 0u64..30), 1..60),
    ) {
        let clock = ManualClock::new();
        let (windows, billing) = windows(&clock, limits);
        let names = ["plan", "credits", "metered"];
        let mut used = [0u64; 3];
        let mut running: Vec<(Permit<&FirstOf>, usize, u64)> = Vec::new();
        for (what, which, units) in steps {
            let which = which % running.len().max(1);
            match (what, running.get_mut(which)) {
                (1, Some((permit, source, held))) => {
                    // A window that is overdrawn gives back less: that is for its own tests.
                    let units = units.min(*held + limits[*source].saturating_sub(used[*source]));
                    permit.settle(TOKENS, units).unwrap();
                    used[*source] = used[*source] - *held + units;
                    *held = units;
                }
                (2, Some(_)) => drop(running.swap_remove(which)),
                (3, _) => {
                    // Whether it is admitted or not, nothing is left of it.
                    let _ = billing.try_admit(tokens(units)).map(Permit::cancel);
                }
                _ => {
                    let has_room = |source: &usize| units == 0 || used[*source] + units <= limits[*source];
                    let expected = (0..3).find(has_room);
                    let admitted = billing.try_admit(tokens(units)).ok();
                    let source = admitted.as_ref().map(|permit| billing.source(permit.ticket().unwrap()));
                    prop_assert_eq!(source, expected.map(|source| names[source]));
                    if let (Some(permit), Some(source)) = (admitted, expected) {
                        used[source] += units;
                        running.push((permit, source, units));
                    }
                }
            }
            let left = windows.each_ref().map(|window| window.available());
            let expected = [0, 1, 2].map(|source| limits[source].saturating_sub(used[source]));
            prop_assert_eq!(left, expected);
        }
    }
}

#[test]
fn a_refusal_is_that_of_the_source_that_admits_first() {
    let clock = ManualClock::new();
    let bucket = |quota| TokenBucket::new(quota).on(&clock);
    let hourly = bucket(Quota::per_hour(1).burst(2));
    let quick = bucket(Quota::per_second(1).burst(1));
    let either = FirstOf::new("hourly", hourly).or("quick", quick);
    for _ in 0..3 {
        either.try_admit(1).unwrap().forget();
    }
    let refused = either.try_admit(1).unwrap_err();
    assert_eq!(
        (refused.leg(), refused.retry_after()),
        ("quick", Some(Duration::from_secs(1)))
    );
    // Two never fit into the second.
    let refused = either.try_admit(2).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("hourly", Reason::RateExceeded));
    let refused = either.try_admit(3).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("hourly", Reason::Oversized));
    assert!(matches!(refused.wait(), Wait::Never));
}

#[test]
fn a_cost_that_a_source_misses_is_not_made_up_for_by_the_next() {
    let clock = ManualClock::new();
    let (_, billing) = windows(&clock, [10, 10, 10]);
    let unlimited = Semaphore::new(100);
    let policy = Policy::new(billing.or("unlimited", unlimited));
    assert_eq!(policy.try_admit(1).unwrap_err().reason(), Reason::Unpriced);
    let waited = clock.run(policy.admit(1)).unwrap_err();
    assert_eq!((waited.reason(), waited.leg()), (Reason::Unpriced, "plan"));
}

#[test]
fn a_waiter_is_admitted_by_the_source_that_has_room_first() {
    let clock = ManualClock::new();
    let bucket = |quota| TokenBucket::new(quota).on(&clock);
    let slow = bucket(Quota::per_minute(1).burst(1));
    let quick = bucket(Quota::per_second(1).burst(1));
    let policy = Policy::builder()
        .limit(FirstOf::new("slow", slow).or("quick", quick))
        .on(&clock);
    let policy = policy.build().unwrap();
    clock.run(async {
        let mut sources = Vec::new();
        for _ in 0..63 {
            let permit = policy.admit(1).await.unwrap();
            sources.push(source(&policy, &permit) == "slow");
        }
        // The bucket of a minute gives one at the start and one after a minute.
        assert_eq!(clock.elapsed(), MINUTE);
        let of_slow: Vec<_> = (0..63).filter(|&n| sources[n]).collect();
        assert_eq!(of_slow.len(), 2, "{of_slow:?}");
    });
}

#[test]
fn a_waiter_is_admitted_by_the_permits_of_any_source() {
    for ends in [0, 1] {
        let policy = Policy::new(FirstOf::new("one", Semaphore::new(1)).or("two", Semaphore::new(1)));
        let mut held = [policy.try_admit(1).unwrap(), policy.try_admit(1).unwrap()].map(Some);
        let mut waiter = std::pin::pin!(policy.admit(1));
        assert!(waiter.as_mut().now_or_never().is_none());
        drop(held[ends].take());
        let admitted = waiter.now_or_never().expect("it is admitted").unwrap();
        assert_eq!(source(&policy, &admitted), ["one", "two"][ends]);
        // The place in the queue of the other is given up: the other two permits are there.
        drop((admitted, held));
        let again = [policy.try_admit(1), policy.try_admit(1)].map(Result::unwrap);
        assert_eq!(again.each_ref().map(|permit| source(&policy, permit)), ["one", "two"]);
    }
}

/// Given a head that waits at a bucket of ten seconds or for a permit, when the permit is there and another leg refuses for a second, then the
/// head waits for that second alone.
#[test]
fn a_source_that_is_ready_is_not_waited_for() {
    let clock = ManualClock::new();
    let bucket = |quota: Quota| Arc::new(TokenBucket::new(quota.burst(1)).on(&clock));
    let (slow, slots, rate) = (
        bucket(Quota::new(1, 10 * SECOND).unwrap()),
        Arc::new(Semaphore::new(1)),
        bucket(Quota::per_second(1)),
    );
    let sources = FirstOf::new("slow", Arc::clone(&slow)).or("slots", Arc::clone(&slots));
    let policy = Policy::new((sources, Arc::clone(&rate)));
    slow.try_acquire(1).unwrap();
    let held = slots.try_acquire().unwrap();
    let mut waiter = std::pin::pin!(policy.admit(1));
    assert!(waiter.as_mut().now_or_never().is_none());
    clock.advance(2 * SECOND);
    rate.try_acquire(1).unwrap();
    drop(held);
    assert!(waiter.as_mut().now_or_never().is_none());
    clock.advance(SECOND);
    assert!(waiter.now_or_never().expect("all of its legs are ready").is_ok());
}

#[test]
fn those_ahead_may_be_admitted_by_another_source() {
    let clock = ManualClock::new();
    let bucket = || TokenBucket::new(Quota::per_second(1).burst(5)).on(&clock);
    let policy = Policy::builder()
        .limit(FirstOf::new("one", bucket()).or("two", bucket()))
        .on(&clock);
    let policy = policy.build().unwrap();
    for _ in 0..2 {
        policy.try_admit(5).unwrap().forget();
    }
    clock.run(async {
        let patience = Duration::from_secs(5);
        let first = policy.admit_timeout(5, patience);
        let second = policy.admit_timeout(5, patience);
        let (first, second) = futures::join!(first, second);
        let sources = [first.unwrap(), second.unwrap()];
        assert_eq!(sources.each_ref().map(|permit| source(&policy, permit)), ["one", "two"]);
    });
    assert_eq!(clock.elapsed(), Duration::from_secs(5));
}

#[test]
fn a_later_leg_that_refuses_gives_back_to_the_source() {
    let clock = ManualClock::new();
    let (windows, billing) = windows(&clock, [10, 20, 30]);
    let policy = Policy::builder()
        .limit(billing)
        .limit(Semaphore::new(1))
        .on(&clock)
        .build()
        .unwrap();
    let permit = policy.try_admit(tokens(15)).unwrap();
    assert_eq!(policy.limiter().0.source(&permit.ticket().unwrap().0), "credits");
    assert_eq!(policy.try_admit(tokens(25)).unwrap_err().leg(), "semaphore");
    assert_eq!(windows.each_ref().map(|window| window.available()), [10, 5, 30]);
}

#[test]
fn sources_nest_and_have_tickets_of_any_length() {
    let clock = ManualClock::new();
    let (windows, billing) = windows(&clock, [10, 20, 30]);
    // More words than stand in a ticket.
    let long = |permits| (0..14).map(move |_| Semaphore::new(permits).boxed()).collect::<Legs>();
    let long = FirstOf::new("narrow", long(0)).or("wide", long(1).and(billing));
    let policy = Policy::new(FirstOf::new("closed", Semaphore::new(0)).or("long", long));
    let mut permit = policy.try_admit(tokens(25)).unwrap();
    assert_eq!(source(&policy, &permit), "long");
    permit.settle(TOKENS, 4).unwrap();
    assert_eq!(windows.each_ref().map(|window| window.available()), [10, 20, 26]);
    assert_eq!(policy.try_admit(tokens(1)).unwrap_err().reason(), Reason::Saturated);
    drop(permit);
    assert!(policy.try_admit(tokens(1)).is_ok());
}

#[test]
fn a_decision_names_the_source_and_shows_each() {
    let clock = ManualClock::new();
    let (_, billing) = windows(&clock, [10, 20, 30]);
    let policy = Policy::builder()
        .limit(billing.named("billing"))
        .limit(Semaphore::new(2))
        .on(&clock);
    let policy = policy.build().unwrap();
    let decision = policy.explain(tokens(15));
    let leg = &decision.legs[0];
    assert_eq!((&*leg.leg, leg.source()), ("billing", Some("credits")));
    assert_eq!(leg.to_string(), "`billing` admits, asked for 15 of 20, from `credits`");
    assert_eq!(
        (&*leg.sources[0].leg, leg.sources[0].verdict),
        ("plan", LegVerdict::Never)
    );
    for _ in 0..2 {
        policy.limiter().try_admit(tokens(20)).unwrap().forget();
    }
    let decision = policy.explain(tokens(20));
    let refused = decision.refused_by().unwrap();
    assert_eq!((&*refused.leg, refused.verdict), ("billing", LegVerdict::After(MINUTE)));
    assert_eq!(refused.source(), None);
    assert_eq!(policy.try_admit(tokens(20)).unwrap_err().leg(), "billing");
}
