//! What one response of an upstream does to all callers.

mod simulated;

use futures::future::join_all;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tollgate::status::State;
use tollgate::{Ask, Cost, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, Reason, TokenBucket};
use tollgate_resilience::upstream::{Feedback, RemainingQuota, Upstream};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn over(clock: &ManualClock, rate: Quota) -> (Arc<Upstream>, Policy<impl Limiter + 'static>) {
    let upstream = Arc::new(Upstream::builder().rate(rate).on(clock).build().unwrap());
    let policy = Policy::new(Arc::clone(&upstream).and(TokenBucket::new(rate).on(clock)));
    (upstream, policy)
}

/// 64 tasks call at 200/s with a burst of 200, and one of the first responses is a 429 for 3 s. The bucket has saved its burst by the time
/// at which the pause ends.
#[test]
fn from_a_refusal_on_no_task_sends_before_the_instant_and_the_first_second_carries_at_most_the_rate() {
    let clock = ManualClock::new();
    let (upstream, policy) = over(&clock, Quota::per_second(200).burst(200));
    let sent = Mutex::new(Vec::new());
    let read = Mutex::new(None);
    let task = async |task: u64| {
        for round in 0..20 {
            let (permit, call) = loop {
                let permit = policy.admit(1).await.unwrap();
                if let Some(call) = upstream.begin(&Ask::one()) {
                    break (permit, call);
                }
            };
            sent.lock().unwrap().push(clock.elapsed());
            clock.sleep(MILLI * (20 + task as u32)).await;
            let refused = (task, round) == (5, 1);
            if refused {
                upstream.observe(&call, &Feedback::throttled(Some(3 * SECOND)));
                *read.lock().unwrap() = Some((clock.elapsed(), sent.lock().unwrap().len()));
            } else {
                upstream.observe(&call, &Feedback::default());
            }
            permit.finish(if refused { Outcome::Overload } else { Outcome::Success });
        }
    };
    clock.run(join_all((0..64).map(task)));
    let (sent, (read, under_way)) = (sent.into_inner().unwrap(), read.into_inner().unwrap().unwrap());
    let until = read + 3 * SECOND;
    let within = |from: Duration, to: Duration| sent.iter().filter(|at| (from..to).contains(*at)).count();
    assert!(under_way >= 64, "calls were under way");
    assert_eq!(sent[under_way..].iter().filter(|at| **at < until).count(), 0);
    let first = within(until, until + SECOND + MILLI);
    assert!((40..=200).contains(&first), "{first} in the first second");
    assert_eq!(sent.len(), 64 * 20);
    assert_eq!(upstream.stats().pauses, 1);
}

#[test]
fn waiters_are_admitted_in_their_order_after_a_pause() {
    let clock = ManualClock::new();
    let (upstream, policy) = over(&clock, Quota::per_second(100));
    upstream.pause(SECOND);
    let order = Mutex::new(Vec::new());
    let waiter = async |number: usize| {
        policy.admit(1).await.unwrap().forget();
        order.lock().unwrap().push(number);
    };
    clock.run(join_all((0..30).map(waiter)));
    assert_eq!(order.into_inner().unwrap(), Vec::from_iter(0..30));
}

#[test]
fn a_call_that_was_admitted_before_a_pause_does_not_begin_in_it() {
    let clock = ManualClock::new();
    let (upstream, policy) = over(&clock, Quota::per_second(100));
    let permit = policy.try_admit(1).unwrap();
    upstream.pause(SECOND);
    assert!(upstream.begin(&Ask::one()).is_none());
    drop(permit);
    clock.advance(SECOND);
    assert!(upstream.begin(&Ask::one()).is_some());
}

#[test]
fn a_resumed_upstream_wakes_its_waiters() {
    let clock = ManualClock::new();
    let (upstream, policy) = over(&clock, Quota::per_second(100));
    upstream.pause(600 * SECOND);
    clock.run(async {
        let resume = async {
            clock.sleep(SECOND).await;
            upstream.resume();
        };
        let (permit, ()) = futures::join!(policy.admit(1), resume);
        drop(permit.unwrap());
    });
    assert_eq!(clock.elapsed(), SECOND);
}

#[test]
fn a_larger_quota_wakes_the_waiters_for_it() {
    let clock = ManualClock::new();
    let (upstream, policy) = over(&clock, Quota::per_second(100));
    let left = |left| Feedback::default().quota(RemainingQuota::of_calls(left).reset(600 * SECOND));
    clock.run(async {
        let (first, second) = (policy.admit(1).await.unwrap(), policy.admit(1).await.unwrap());
        let begin = || upstream.begin(&Ask::one()).unwrap();
        let (one, two) = (begin(), begin());
        upstream.observe(&one, &left(0));
        first.finish(Outcome::Success);
        let answer = async {
            clock.sleep(SECOND).await;
            upstream.observe(&two, &left(3));
            second.finish(Outcome::Success);
        };
        let (third, ()) = futures::join!(policy.admit(1), answer);
        drop(third.unwrap());
    });
    assert_eq!(clock.elapsed(), SECOND);
}

#[test]
fn a_settled_cost_comes_back_to_the_quota() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
    let ask = Ask::one().cost(TOKENS, 60);
    let first = upstream.try_admit(ask).unwrap();
    let call = upstream.begin(&ask).unwrap();
    let quota = RemainingQuota::of(TOKENS, 100).limit(100).reset(60 * SECOND);
    upstream.observe(&call, &Feedback::default().quota(quota));
    first.finish(Outcome::Success);
    let mut second = upstream.try_admit(ask).unwrap();
    assert!(upstream.try_admit(ask).is_err());
    second.settle(TOKENS, 30).unwrap();
    let third = upstream.try_admit(ask).unwrap();
    let available = || {
        let mut seen = None;
        upstream.describe(&mut |leg| {
            if let State::Rate { available, .. } = leg.state {
                assert_eq!(leg.cost, Some(TOKENS));
                seen = Some(available);
            }
        });
        seen
    };
    assert_eq!(available(), Some(10));
    drop((second, third));
    assert_eq!(available(), Some(10), "what was sent is spent");
}

/// The same in a box: its ticket is long.
#[test]
fn an_upstream_in_a_box_takes_back_what_was_reserved() {
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
    let boxed = Arc::clone(&upstream).boxed();
    let first = boxed.try_admit(1).unwrap();
    let call = upstream.begin(&Ask::one()).unwrap();
    let quota = RemainingQuota::of_calls(2).limit(10).reset(60 * SECOND);
    upstream.observe(&call, &Feedback::default().quota(quota));
    first.finish(Outcome::Success);
    let reserved = boxed.try_admit(2).unwrap();
    assert!(boxed.try_admit(1).is_err());
    reserved.cancel();
    assert!(boxed.try_admit(2).is_ok());
}

/// Given a waiter whose deadline is after a pause, when the pause is made longer than that, then the waiter is refused at once.
#[test]
fn a_waiter_is_judged_anew_when_the_pause_becomes_longer() {
    let clock = ManualClock::new();
    let (upstream, policy) = over(&clock, Quota::per_second(100));
    upstream.pause(SECOND);
    clock.run(async {
        let longer = async {
            clock.sleep(SECOND / 2).await;
            upstream.pause(5 * SECOND);
        };
        let (waited, ()) = futures::join!(policy.admit_timeout(1, 3 * SECOND), longer);
        let refused = waited.unwrap_err();
        assert_eq!((refused.reason(), refused.leg()), (Reason::TimedOut, "upstream"));
    });
    assert_eq!(clock.elapsed(), SECOND / 2);
}

/// Given two policies that share an upstream, then the one whose head is older gets what comes back first.
#[test]
fn policies_take_turns_at_what_an_upstream_has_left() {
    let clock = ManualClock::new();
    let (upstream, first) = over(&clock, Quota::per_second(100));
    let second = Policy::builder()
        .limit(Arc::clone(&upstream))
        .on(&clock)
        .build()
        .unwrap();
    let call = upstream.begin(&Ask::one()).unwrap();
    let quota = RemainingQuota::of_calls(0).limit(1).reset(SECOND).window(SECOND);
    upstream.observe(&call, &Feedback::default().quota(quota));
    let order = Mutex::new(Vec::new());
    clock.run(async {
        let wait = async |older: bool| {
            match older {
                true => first.admit(1).await.unwrap().forget(),
                false => second.admit(1).await.unwrap().forget(),
            }
            order.lock().unwrap().push((older, clock.elapsed()));
        };
        futures::join!(wait(true), wait(false), wait(true), wait(false));
    });
    let order = order.into_inner().unwrap();
    assert_eq!(
        order.iter().map(|(older, _)| *older).collect::<Vec<_>>(),
        [true, false, true, false]
    );
    assert!(order.windows(2).all(|pair| pair[1].1 - pair[0].1 >= SECOND));
}
