//! Conditional limits: A is throttled while B is above a mark, whatever B is made of.

use std::sync::Arc;
use std::time::Duration;
use tollgate::policy::conditional::{LoadMetric, Meter, Trigger};
use tollgate::{
    Ask, BoxLimiter, Keyed, LeakyBucket, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, Semaphore,
    SlidingWindow, TokenBucket,
};

const SECOND: Duration = Duration::from_secs(1);

/// B, whatever it is, admits one more.
type Press = Box<dyn Fn(u64)>;

/// Three kinds of B: composed of two limiters, one of many keys, and one that spaces its work and is waited for.
fn rows(clock: &ManualClock, meter: &Arc<Meter>) -> Vec<(&'static str, Press)> {
    let composite = {
        let window = SlidingWindow::new(1_000, Duration::from_secs(60)).unwrap().on(clock);
        let gate = meter.watch(window.and(Semaphore::new(100)));
        Box::new(move |_| drop(gate.try_admit(Ask::one()).unwrap()))
    };
    let keyed = {
        let (meter, clock) = (Arc::clone(meter), clock.clone());
        let tenants: Keyed<u64, _> = Keyed::new(100, move |_: &u64| {
            Arc::new(meter.watch(TokenBucket::new(Quota::per_second(100)).on(&clock)))
        });
        Box::new(move |n| drop(tenants.get(&n).unwrap().try_admit(Ask::one()).unwrap()))
    };
    let paced = {
        let policy = Policy::new(meter.watch(LeakyBucket::new(Quota::per_second(100)).on(clock)));
        let clock = clock.clone();
        Box::new(move |_| drop(clock.run(policy.admit(Ask::one())).unwrap()))
    };
    vec![("composite", composite as Press), ("keyed", keyed), ("paced", paced)]
}

/// Given A that is held to one a minute while B admits more than 5 a second, until it admits 2 or fewer, when B is pressed
/// and let go, then A is throttled from the sixth on, and A's waiters are admitted at the instant at which B's rate
/// has fallen: for a B that is composed, keyed, or paced.
#[test]
fn a_link_is_true_whatever_b_is_made_of() {
    for row in 0..3 {
        let clock = ManualClock::new();
        let meter = Meter::new(&clock, SECOND);
        let (name, press) = rows(&clock, &meter).swap_remove(row);
        let busy = Trigger::above(meter.load(LoadMetric::Rate, 1.0), 5.0)
            .below(2.0)
            .on(&clock);
        let applies = busy.clone();
        let a = Arc::new(TokenBucket::new(Quota::per_minute(1)).on(&clock).when(busy));
        let gate = Policy::new(Arc::clone(&a));
        for n in 0..5 {
            press(n);
            assert!(gate.try_admit(100).is_ok(), "{name}: {n}");
        }
        press(5);
        assert!(applies.is_exceeded(), "{name}");
        assert!(gate.try_admit(1).is_ok(), "{name}: its one a minute");
        let refused = gate.try_admit(1).unwrap_err();
        let retry = refused.retry_after().unwrap();
        assert!(
            retry <= SECOND,
            "{name}: the load falls before the minute is over, after {retry:?}"
        );
        let before = clock.elapsed();
        drop(clock.run(gate.admit(100)).unwrap());
        assert_eq!(clock.elapsed() - before, retry, "{name}");
        assert!(
            meter.read(LoadMetric::Rate) <= 2.0,
            "{name}: {}",
            meter.read(LoadMetric::Rate)
        );
        assert!(!applies.is_exceeded(), "{name}");
    }
}

/// Given a limit that applies while the mean latency is above 100 ms, when slow work ends, then it applies, and a fast end
/// admits the waiters at once.
#[test]
fn a_latency_trigger_sees_faster_work() {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, 60 * SECOND);
    let work = meter.watch(Semaphore::new(10));
    let slow = Trigger::above(meter.load(LoadMetric::Latency, 1.0), 0.1).on(&clock);
    let gate = Policy::new(TokenBucket::new(Quota::zero()).on(&clock).when(slow));
    let (first, second) = (work.try_admit(1).unwrap(), work.try_admit(1).unwrap());
    clock.advance(Duration::from_millis(150));
    drop(first);
    assert_eq!(meter.read(LoadMetric::Latency), 0.15);
    assert!(gate.try_admit(1).is_err());
    let mut waiting = Box::pin(gate.admit(1));
    let mut poll = || {
        let waker = std::task::Waker::noop();
        waiting
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker))
            .is_ready()
    };
    assert!(!poll());
    drop(work.try_admit(1).unwrap());
    assert!(poll(), "the mean is 75 ms");
    drop(second);
}

/// Given a semaphore that applies only while B refuses, when B's refusals are forgotten, then the waiters for the
/// semaphore are admitted then, although no permit comes back.
#[test]
fn a_waiter_for_a_conditional_semaphore_is_admitted_when_the_load_falls() {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, SECOND);
    let b = meter.watch(Semaphore::new(0));
    let refusing = Trigger::above(meter.load(LoadMetric::Refusals, 1.0), 0.0).on(&clock);
    let gate = Policy::new(Semaphore::new(0).when(refusing));
    assert!(b.try_admit(1).is_err());
    assert!(gate.try_admit(1).is_err());
    drop(clock.run(gate.admit(1)).unwrap());
    assert_eq!(clock.elapsed(), SECOND);
}

#[test]
fn metered_units_are_counted_once() {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, SECOND);
    let gate: BoxLimiter = meter.watch(Semaphore::new(3)).boxed();
    let held = gate.try_admit(2).unwrap();
    gate.try_admit(1).unwrap().cancel();
    assert!(gate.try_admit(2).is_err());
    let read = |metrics: [LoadMetric; 3]| metrics.map(|metric| meter.read(metric));
    let all = [LoadMetric::Rate, LoadMetric::Refusals, LoadMetric::Use];
    assert_eq!(read(all), [2.0, 1.0, 2.0]);
    clock.advance(Duration::from_millis(20));
    drop(held);
    assert_eq!(
        (meter.read(LoadMetric::Latency), meter.read(LoadMetric::Use)),
        (0.02, 0.0)
    );
    clock.advance(SECOND);
    assert_eq!(
        (meter.read(LoadMetric::Rate), meter.read(LoadMetric::Latency)),
        (0.0, 0.0)
    );
    gate.try_admit(1).unwrap().forget();
    assert_eq!(meter.read(LoadMetric::Use), 0.0);
    assert_eq!((meter.read(LoadMetric::Rate), meter.over()), (1.0, SECOND));
}

/// Given a policy whose first leg applies while the second admits more than half a request per second, when a caller asks, then it does
/// not count itself: it is admitted, and the next waits until the rate has fallen. What is rolled back is not counted.
#[test]
fn a_request_does_not_count_at_the_legs_before_the_metered_one() {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, SECOND);
    let busy = Trigger::above(meter.load(LoadMetric::Rate, 1.0), 0.5).on(&clock);
    let metered = meter.watch(TokenBucket::new(Quota::per_second(100)).on(&clock));
    let gate = Policy::new(TokenBucket::new(Quota::zero()).on(&clock).when(busy).and(metered));
    gate.try_admit(1).unwrap().finish(Outcome::Success);
    assert!(gate.try_admit(1).is_err());
    clock.run(gate.admit(1)).unwrap().finish(Outcome::Success);
    assert_eq!(clock.elapsed(), SECOND);
    assert_eq!(meter.read(LoadMetric::Rate), 1.0);
}

/// Limiters in a keyed map that are metered, linked or on trial are as new when their contents are.
#[test]
fn a_wrapped_limiter_becomes_as_new_again() {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, SECOND);
    let bucket = || TokenBucket::new(Quota::per_second(1)).on(&clock);
    let metered = meter.watch(bucket());
    let trial = bucket().shadow();
    let busy = Trigger::above(meter.load(LoadMetric::Rate, 1.0), 1.5)
        .below(0.5)
        .on(&clock);
    let linked = bucket().when(busy);
    fn as_new(limiter: &impl Limiter) -> bool {
        let mut all = true;
        limiter.describe(&mut |leg| all &= leg.is_as_new);
        all
    }
    let fresh = || (as_new(&metered), as_new(&trial), as_new(&linked));
    assert_eq!(fresh(), (true, true, true));
    metered.try_admit(1).unwrap().finish(Outcome::Success);
    trial.try_admit(1).unwrap().finish(Outcome::Success);
    assert_eq!(fresh(), (false, false, true), "one a second is not busy");
    clock.advance(SECOND / 2);
    drop(trial.try_admit(1));
    assert_eq!(trial.shadow_stats().unwrap().refused, 1);
    clock.advance(SECOND / 2);
    assert_eq!(fresh(), (true, true, true));
    // One key is dropped for the next, although it was metered.
    let (meter, clock) = (Arc::clone(&meter), clock.clone());
    let tenants: Keyed<u64, _> = Keyed::new(1, move |_: &u64| {
        Arc::new(meter.watch(TokenBucket::new(Quota::per_second(1)).on(&clock)))
    });
    drop(tenants.get(&1).unwrap());
    assert!(tenants.get(&2).is_ok());
}
