//! What composites say of waiting: when to come back, which queues and clocks they contain, and errors that leave a function.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::policy::conditional::{Meter, Trigger};
use tollgate::policy::spec::{LegRule, LegSpec, LoadMetric, PolicySpec, When};
use tollgate::{
    Ask, Cost, Limiter, LimiterExt, ManualClock, Policy, PolicyBuilder, PolicyError, Quota, Reason, Refusal, Rejection,
    RunError, Semaphore, TokenBucket,
};

const TOKENS: Cost = Cost::new("tokens");

fn bucket(clock: &ManualClock, quota: Quota) -> TokenBucket {
    TokenBucket::new(quota).on(clock)
}

/// What a refusal says of the next attempt: the leg that refuses, the retry time, and the leg of that time.
fn refused(gate: &impl Limiter, ask: Ask) -> (&str, Option<Duration>, &str) {
    let refusal = gate.try_admit(ask).unwrap_err();
    let rejection = refusal.to_rejection();
    assert_eq!(rejection.retry_after, refusal.retry_after());
    assert_eq!(&*rejection.retry_leg.unwrap_or(rejection.leg), refusal.retry_leg());
    (refusal.leg(), refusal.retry_after(), refusal.retry_leg())
}

#[test]
fn a_refusal_says_when_all_legs_are_ready_and_which_is_last() {
    let clock = ManualClock::new();
    let second = || bucket(&clock, Quota::per_second(1).burst(1)).named("second");
    let minute = || bucket(&clock, Quota::per_minute(1).burst(1)).named("minute");
    let expected = ("second", Some(Duration::from_secs(60)), "minute");
    let chain = second().and(Semaphore::new(5)).and(minute());
    let built = Policy::builder().limit(second()).limit(minute()).build().unwrap();
    let nested = Policy::builder().limit(second().and(minute())).build().unwrap();
    let boxed = second().and(minute()).boxed();
    let live = PolicySpec::new([
        LegSpec::new("second", LegRule::token_bucket(Quota::per_second(1).burst(1))),
        LegSpec::new("minute", LegRule::token_bucket(Quota::per_minute(1).burst(1))),
    ]);
    let live = live.build(&clock).unwrap();
    fn check(gate: &impl Limiter, expected: (&str, Option<Duration>, &str)) {
        gate.try_admit(1).unwrap().forget();
        assert_eq!(refused(gate, Ask::one()), expected);
    }
    check(&chain, expected);
    check(&built, expected);
    check(&nested, expected);
    check(&boxed, expected);
    check(&live, expected);
    clock.advance(Duration::from_secs(59));
    assert_eq!(
        refused(&built, Ask::one()),
        ("minute", Some(Duration::from_secs(1)), "minute")
    );
    clock.advance(Duration::from_secs(1));
    assert!(built.try_admit(1).is_ok() && chain.try_admit(1).is_ok() && live.try_admit(1).is_ok());
}

#[test]
fn each_leg_is_asked_in_its_own_measure_when_it_could_be_ready() {
    let clock = ManualClock::new();
    let calls = bucket(&clock, Quota::per_second(1).burst(1)).per_call().named("calls");
    let tokens = bucket(&clock, Quota::per_second(1).burst(100))
        .per(TOKENS)
        .named("tokens");
    let gate = calls.and(tokens);
    gate.try_admit(Ask::one().cost(TOKENS, 90)).unwrap().forget();
    let refused = |tokens| refused(&gate, Ask::one().cost(TOKENS, tokens));
    assert_eq!(refused(50), ("calls", Some(Duration::from_secs(40)), "tokens"));
    assert_eq!(refused(10), ("calls", Some(Duration::from_secs(1)), "calls"));
    // A composite that counts a cost itself sees its units.
    let one = bucket(&clock, Quota::per_second(10).burst(10)).named("one");
    let two = bucket(&clock, Quota::per_second(1).burst(10)).named("two");
    let both = one.and(two).per(TOKENS);
    both.try_admit(Ask::one().cost(TOKENS, 10)).unwrap().forget();
    let refusal = both.try_admit(Ask::one().cost(TOKENS, 5)).unwrap_err();
    assert_eq!(
        (refusal.retry_after(), refusal.retry_leg()),
        (Some(Duration::from_secs(5)), "two")
    );
}

#[test]
fn a_leg_behind_a_saturated_one_still_says_when() {
    let clock = ManualClock::new();
    let gate = Semaphore::new(1).named("permits");
    let gate = gate.and(bucket(&clock, Quota::per_minute(1).burst(1)).named("minute"));
    let held = gate.try_admit(1).unwrap();
    assert_eq!(
        refused(&gate, Ask::one()),
        ("permits", Some(Duration::from_secs(60)), "minute")
    );
    drop(held);
    assert_eq!(
        refused(&gate, Ask::one()),
        ("minute", Some(Duration::from_secs(60)), "minute")
    );
}

#[test]
fn a_refusal_that_another_leg_makes_final_names_no_instant() {
    let clock = ManualClock::new();
    let closed = Arc::new(Semaphore::new(1));
    let gate = bucket(&clock, Quota::per_second(1).burst(1)).and(Arc::clone(&closed));
    gate.try_admit(1).unwrap().forget();
    closed.close();
    assert_eq!(gate.try_admit(1).unwrap_err().retry_after(), None);
}

fn by_value() -> Result<(), Box<dyn Error>> {
    let gate = Semaphore::new(0);
    let _permit = gate.try_admit(1)?;
    Ok(())
}

fn reserved() -> Result<(), Box<dyn Error + Send + Sync>> {
    let gate = Semaphore::new(0).named("gate");
    let _reservation = gate.reserve(1)?;
    Ok(())
}

async fn waited() -> Result<(), Box<dyn Error>> {
    let policy = Policy::builder().limit(Semaphore::new(0)).max_queue(0).build()?;
    let _permit = policy.admit(1).await?;
    Ok(())
}

async fn ran(policy: &Policy<impl Limiter + 'static>, fails: bool) -> Result<u32, Box<dyn Error>> {
    let work = async || {
        if fails {
            Err("seven of nine".parse::<u32>().unwrap_err())
        } else {
            Ok(7)
        }
    };
    Ok(policy.run(1, work).await?)
}

#[test]
fn a_refusal_leaves_a_function_as_a_boxed_error() {
    let clock = ManualClock::new();
    let leg = |error: Box<dyn Error>| error.downcast::<Rejection>().unwrap().leg;
    assert_eq!(&*leg(by_value().unwrap_err()), "semaphore");
    assert_eq!(&*leg(reserved().unwrap_err()), "gate");
    assert_eq!(&*leg(clock.run(waited()).unwrap_err()), "semaphore");
    let shut = Policy::builder()
        .limit(Semaphore::new(0))
        .max_queue(0)
        .on(&clock)
        .build()
        .unwrap();
    assert_eq!(&*leg(clock.run(ran(&shut, false)).unwrap_err()), "semaphore");
    let open = Policy::builder().limit(Semaphore::new(1)).on(&clock).build().unwrap();
    assert_eq!(clock.run(ran(&open, false)).unwrap(), 7);
    let failed = clock.run(ran(&open, true)).unwrap_err();
    assert!(failed.is::<std::num::ParseIntError>());
    let refused: RunError<'_, String> = RunError::Refused(shut.try_admit(1).unwrap_err());
    assert!(<Box<dyn Error + Send + Sync>>::from(refused).is::<Rejection>());
}

#[test]
fn an_adapter_hides_no_queue() {
    let clock = ManualClock::new();
    let semaphore = Arc::new(Semaphore::new(5));
    let meter = Meter::new(&clock, Duration::from_secs(1));
    let mark = || Trigger::above(meter.load(LoadMetric::Use, 1.0), 1.0).on(&clock);
    fn refused<L: Limiter + 'static>(builder: PolicyBuilder<L>, semaphore: &Arc<Semaphore>) {
        let built = builder.limit(Arc::clone(semaphore)).build();
        assert_eq!(built.unwrap_err(), PolicyError::SameQueue { leg: 1 });
    }
    let leg = || Arc::clone(&semaphore);
    let builder = || Policy::builder().on(&clock);
    refused(builder().limit(leg().shadow()), &semaphore);
    refused(builder().limit(leg().when(mark())), &semaphore);
    refused(builder().limit(meter.watch(leg())), &semaphore);
    refused(builder().limit(leg().per_call().named("a").boxed()), &semaphore);
    refused(builder().limit(leg().per(TOKENS).and(Semaphore::new(1))), &semaphore);
    refused(builder().limit(builder().limit(leg()).build().unwrap()), &semaphore);
    let bypass = builder()
        .limit(leg())
        .build()
        .unwrap()
        .bypass_queue(Duration::from_secs(1));
    refused(builder().limit(bypass), &semaphore);
}

#[derive(Default)]
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn one_queue_in_two_legs_is_never_waited_for() {
    let semaphore = Arc::new(Semaphore::new(2));
    let policy = Policy::new(Arc::clone(&semaphore).and(Arc::clone(&semaphore)));
    drop(policy.try_admit(1).expect("two are free"));
    let held = semaphore.try_acquire().unwrap();
    let mut wait = pin!(policy.admit(1));
    let counts = Arc::<Counts>::default();
    let polled = wait
        .as_mut()
        .poll(&mut Context::from_waker(&Waker::from(Arc::clone(&counts))));
    let Poll::Ready(Err(refusal)) = polled else {
        panic!("{polled:?}")
    };
    assert_eq!(refusal.reason(), Reason::Misconfigured);
    assert!(matches!(policy.admit_blocking(1), Err(refusal) if refusal.reason() == Reason::Misconfigured));
    drop(held);
    assert_eq!(
        policy
            .limiter()
            .try_admit(1)
            .map(drop)
            .map_err(|refused: Refusal<'_>| refused.reason()),
        Ok(())
    );
    assert_eq!(counts.0.load(Ordering::Relaxed), 0);
}

#[test]
fn another_clock_inside_a_chain_is_noticed() {
    let (clock, other) = (ManualClock::new(), ManualClock::new());
    other.advance(Duration::from_secs(7_200));
    let quota = Quota::per_second(1).burst(1);
    let mixed = || bucket(&clock, quota).and(Semaphore::new(9)).and(bucket(&other, quota));
    let built = Policy::builder().limit(Semaphore::new(1)).limit(mixed()).build();
    assert_eq!(built.unwrap_err(), PolicyError::OtherClock { leg: 1 });
    let over = Policy::builder().limit(mixed().per_call().named("mixed")).build();
    assert_eq!(over.unwrap_err(), PolicyError::OtherClock { leg: 0 });
    let boxed = Policy::builder().limit(mixed().boxed()).build();
    assert_eq!(boxed.unwrap_err(), PolicyError::OtherClock { leg: 0 });
    // Without a builder it admits on the spot, and waits for nothing.
    let policy = Policy::new(mixed());
    policy.try_admit(1).unwrap().forget();
    let refused = policy.admit_blocking(1).unwrap_err();
    assert_eq!(refused.reason(), Reason::Misconfigured);
    clock.advance(Duration::from_secs(1));
    other.advance(Duration::from_secs(1));
    assert!(policy.admit_blocking(1).is_ok());
}

/// The load of a policy as data falls when a reservation is given back.
#[test]
fn a_reservation_that_ends_the_load_wakes_the_waiter() {
    let clock = ManualClock::new();
    let spec = PolicySpec::new([
        LegSpec::new("permits", LegRule::semaphore(3)),
        LegSpec::new("throttle", LegRule::semaphore(0)).when(When::above("permits", LoadMetric::Use, 0.5)),
    ]);
    let policy = spec.build(&clock).unwrap();
    let reservation = policy.reserve(2).unwrap();
    let counts = Arc::<Counts>::default();
    let waker = Waker::from(Arc::clone(&counts));
    let mut wait = pin!(policy.admit(1));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(reservation);
    assert_eq!(counts.0.load(Ordering::Relaxed), 1);
    assert!(matches!(
        wait.as_mut().poll(&mut Context::from_waker(&waker)),
        Poll::Ready(Ok(_))
    ));
}

/// Permits that are forgotten are gone, and no load: the leg that applies above a load lets the next caller pass.
#[test]
fn a_forgotten_permit_is_no_load() {
    let clock = ManualClock::new();
    let spec = PolicySpec::new([
        LegSpec::new("permits", LegRule::semaphore(4)),
        LegSpec::new("throttle", LegRule::semaphore(0)).when(When::above("permits", LoadMetric::Use, 0.4)),
    ]);
    let policy = spec.build(&clock).unwrap();
    let permit = policy.try_admit(2).unwrap();
    assert!(policy.try_admit(1).is_err(), "half of the permits are in use");
    permit.forget();
    assert!(policy.try_admit(1).is_ok());
}

/// A turn that was granted before the limit sank admits no request; its permits wake the waiter once it is allowed.
#[test]
fn a_turn_that_a_lowered_limit_forbids_is_given_back() {
    let clock = ManualClock::new();
    let mut spec = PolicySpec::new([
        LegSpec::new("window", LegRule::fixed_window(100, Duration::from_secs(1))),
        LegSpec::new("permits", LegRule::semaphore(2)),
    ]);
    let policy = spec.build(&clock).unwrap();
    let (one, two) = (policy.try_admit(1).unwrap(), policy.try_admit(1).unwrap());
    let mut wait = pin!(policy.admit(1));
    let mut poll = || wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    spec.legs[1].rule = LegRule::semaphore(1);
    policy.apply(spec.clone()).unwrap();
    drop(one);
    assert!(poll().is_pending());
    drop(two);
    assert!(poll().is_ready());
}
