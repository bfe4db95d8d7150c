//! What composites say of waiting: when to come back, which queues and clocks they contain, and errors that leave a function.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::policy::conditional::LoadMetric;
use tollgate::policy::conditional::{Meter, Trigger};
use tollgate::{
    Ask, Cost, FirstOf, Limiter, LimiterExt, ManualClock, Permit, Policy, PolicyBuilder, PolicyError, Quota, Reason,
    Refusal, RunError, Semaphore, TokenBucket,
};

const TOKENS: Cost = Cost::new("tokens");

fn bucket(clock: &ManualClock, quota: Quota) -> TokenBucket {
    TokenBucket::new(quota).on(clock)
}

/// What a refusal says of the next attempt: the leg that refuses, and the retry time.
fn refused(gate: &impl Limiter, ask: Ask) -> (String, Option<Duration>) {
    let refusal = gate.try_admit(ask).unwrap_err();
    (refusal.leg().to_owned(), refusal.retry_after())
}

fn says(leg: &str, seconds: u64) -> (String, Option<Duration>) {
    (leg.to_owned(), Some(Duration::from_secs(seconds)))
}

#[test]
fn a_refusal_says_when_all_legs_are_ready() {
    let clock = ManualClock::new();
    let second = || bucket(&clock, Quota::per_second(1).burst(1)).named("second");
    let minute = || bucket(&clock, Quota::per_minute(1).burst(1)).named("minute");
    let chain = second().and(Semaphore::new(5)).and(minute());
    let triple = (second(), Semaphore::new(5), minute());
    let built = Policy::builder().limit(second()).limit(minute()).build().unwrap();
    let nested = Policy::builder().limit(second().and(minute())).build().unwrap();
    let boxed = second().and(minute()).boxed();
    let list = second().boxed().and(minute());
    fn check(gate: &impl Limiter) {
        gate.try_admit(1).unwrap().forget();
        assert_eq!(refused(gate, Ask::one()), says("second", 60));
    }
    check(&chain);
    check(&triple);
    check(&built);
    check(&nested);
    check(&boxed);
    check(&list);
    clock.advance(Duration::from_secs(59));
    assert_eq!(refused(&built, Ask::one()), says("minute", 1));
    clock.advance(Duration::from_secs(1));
    assert!(built.try_admit(1).is_ok() && triple.try_admit(1).is_ok() && list.try_admit(1).is_ok());
}

#[test]
fn each_leg_is_asked_in_its_own_measure_when_it_could_be_ready() {
    let clock = ManualClock::new();
    let calls = bucket(&clock, Quota::per_second(1).burst(1)).named("calls");
    let tokens = bucket(&clock, Quota::per_second(1).burst(100))
        .per(TOKENS)
        .named("tokens");
    let gate = calls.and(tokens);
    gate.try_admit(Ask::one().cost(TOKENS, 90)).unwrap().forget();
    let refused = |tokens| refused(&gate, Ask::one().cost(TOKENS, tokens));
    assert_eq!(refused(50), says("calls", 40));
    assert_eq!(refused(10), says("calls", 1));
    // A composite that counts a cost itself sees its units.
    let one = bucket(&clock, Quota::per_second(10).burst(10)).named("one");
    let two = bucket(&clock, Quota::per_second(1).burst(10)).named("two");
    let both = one.and(two).per(TOKENS);
    both.try_admit(Ask::one().cost(TOKENS, 10)).unwrap().forget();
    let refusal = both.try_admit(Ask::one().cost(TOKENS, 5)).unwrap_err();
    assert_eq!(refusal.retry_after(), Some(Duration::from_secs(5)));
}

#[test]
fn a_leg_behind_a_saturated_one_still_says_when() {
    let clock = ManualClock::new();
    let gate = Semaphore::new(1).named("permits");
    let gate = gate.and(bucket(&clock, Quota::per_minute(1).burst(1)).named("minute"));
    let held = gate.try_admit(1).unwrap();
    assert_eq!(refused(&gate, Ask::one()), says("permits", 60));
    drop(held);
    assert_eq!(refused(&gate, Ask::one()), says("minute", 60));
}

/// Given a leg that takes from the first of two sources, before a rate or behind it, then the refusal has the latest wait of all
/// legs, and the request is admitted then.
#[test]
fn the_wait_is_the_latest_of_all_legs_in_each_order() {
    let clock = ManualClock::new();
    let slots = Arc::new(Semaphore::new(1));
    let overflow = Arc::new(bucket(&clock, Quota::per_second(2).burst(1)));
    let rate = Arc::new(bucket(&clock, Quota::per_second(10).burst(1)));
    let first = || FirstOf::new("slots", Arc::clone(&slots)).or("overflow", Arc::clone(&overflow));
    let _held = slots.try_acquire().unwrap();
    overflow.try_acquire(1).unwrap();
    rate.try_acquire(1).unwrap();
    let (one, other) = (Arc::clone(&rate).and(first()), first().and(Arc::clone(&rate)));
    let told = [
        one.try_admit(1).unwrap_err().retry_after(),
        other.try_admit(1).unwrap_err().retry_after(),
    ];
    assert_eq!(told, [Some(Duration::from_millis(500)); 2]);
    clock.advance(Duration::from_millis(500) - Duration::from_nanos(1));
    assert!(one.try_admit(1).is_err());
    clock.advance(Duration::from_nanos(1));
    assert!(one.try_admit(1).is_ok());
}

/// A refusal is a plain value: two reads agree, also when the limiter has changed in between.
#[test]
fn two_reads_of_a_refusal_agree() {
    let clock = ManualClock::new();
    let gate = Arc::new(bucket(&clock, Quota::per_second(1).burst(1)));
    let both = Arc::clone(&gate).and(Semaphore::new(1));
    both.try_admit(1).unwrap().forget();
    let refused = both.try_admit(1).unwrap_err();
    let read = |refused: &Refusal| {
        (
            refused.reason(),
            refused.leg_name(),
            refused.wait(),
            refused.retry_after(),
        )
    };
    let before = read(&refused);
    gate.reset();
    clock.advance(Duration::from_secs(9));
    assert_eq!(read(&refused), before);
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
    let _permit = gate.try_admit(1)?;
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
    let leg = |error: Box<dyn Error>| error.downcast::<Refusal>().unwrap().leg().to_owned();
    assert_eq!(leg(by_value().unwrap_err()), "semaphore");
    assert_eq!(leg(reserved().unwrap_err()), "gate");
    assert_eq!(leg(clock.run(waited()).unwrap_err()), "semaphore");
    let shut = Policy::builder()
        .limit(Semaphore::new(0))
        .max_queue(0)
        .on(&clock)
        .build()
        .unwrap();
    assert_eq!(leg(clock.run(ran(&shut, false)).unwrap_err()), "semaphore");
    let open = Policy::builder().limit(Semaphore::new(1)).on(&clock).build().unwrap();
    assert_eq!(clock.run(ran(&open, false)).unwrap(), 7);
    let failed = clock.run(ran(&open, true)).unwrap_err();
    assert!(failed.is::<std::num::ParseIntError>());
    let refused: RunError<String> = RunError::Refused(shut.try_admit(1).unwrap_err());
    assert!(<Box<dyn Error + Send + Sync>>::from(refused).is::<Refusal>());
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
    refused(builder().limit(leg().named("a").boxed()), &semaphore);
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
            .map_err(|refused: Refusal| refused.reason()),
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
    let over = Policy::builder().limit(mixed().named("mixed")).build();
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

/// The load falls when an admission is cancelled.
#[test]
fn a_cancel_that_ends_the_load_wakes_the_waiter() {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, Duration::from_secs(1));
    let permits = Arc::new(meter.watch(Semaphore::new(3)));
    let busy = Trigger::above(meter.load(LoadMetric::Use, 3.0), 0.5).on(&clock);
    let throttle = Semaphore::new(0).named("throttle").when(busy);
    let policy = Policy::new(throttle.and(Arc::clone(&permits)));
    let held = policy.try_admit(2).unwrap();
    let counts = Arc::<Counts>::default();
    let waker = Waker::from(Arc::clone(&counts));
    let mut wait = pin!(policy.admit(1));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    Permit::cancel(held);
    assert_eq!(counts.0.load(Ordering::Relaxed), 1);
    assert!(matches!(
        wait.as_mut().poll(&mut Context::from_waker(&waker)),
        Poll::Ready(Ok(_))
    ));
}

/// A leg that applies while another limiter is busy: each flip of its condition wakes the waiters, which are judged anew.
#[test]
fn a_condition_that_ends_with_the_load_of_another_limiter_wakes_all_waiters() {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, Duration::from_secs(1));
    let pages = meter.watch(Semaphore::new(10));
    let busy = Trigger::above(meter.load(LoadMetric::Use, 10.0), 0.8)
        .below(0.5)
        .on(&clock);
    let batches = Policy::new(Semaphore::new(0).named("batches").when(busy));
    let (few, many) = (pages.try_admit(6).unwrap(), pages.try_admit(3).unwrap());
    let counts = Arc::<Counts>::default();
    let waker = Waker::from(Arc::clone(&counts));
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(batches.admit(1))).collect();
    let mut ready = || {
        let mut cx = Context::from_waker(&waker);
        let polls = waits.iter_mut().map(|wait| wait.as_mut().poll(&mut cx).is_ready());
        polls.filter(|ready| *ready).count()
    };
    assert_eq!(ready(), 0);
    drop(many);
    assert_eq!((counts.0.load(Ordering::Relaxed), ready()), (0, 0), "between the marks");
    drop(few);
    assert_eq!((counts.0.load(Ordering::Relaxed), ready()), (3, 3));
}

/// Permits that are forgotten are gone, and no load: the leg that applies above a load lets the next caller pass.
#[test]
fn a_forgotten_permit_is_no_load() {
    let clock = ManualClock::new();
    let meter = Meter::new(&clock, Duration::from_secs(1));
    let permits = meter.watch(Semaphore::new(4));
    let busy = Trigger::above(meter.load(LoadMetric::Use, 4.0), 0.4).on(&clock);
    let policy = Policy::new(Semaphore::new(0).when(busy).and(permits));
    let permit = policy.try_admit(2).unwrap();
    assert!(policy.try_admit(1).is_err(), "half of the permits are in use");
    permit.forget();
    assert!(policy.try_admit(1).is_ok());
}

/// A permit that was granted before the limit sank admits no request; it wakes the waiter once it is allowed.
#[test]
fn a_grant_that_a_lowered_limit_forbids_is_taken_back() {
    let clock = ManualClock::new();
    let permits = Arc::new(Semaphore::new(2));
    let policy = Policy::builder()
        .limit(bucket(&clock, Quota::per_second(100)))
        .limit(Arc::clone(&permits))
        .build()
        .unwrap();
    let (one, two) = (policy.try_admit(1).unwrap(), policy.try_admit(1).unwrap());
    let mut wait = pin!(policy.admit(1));
    let mut poll = || wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    permits.set_limit(1);
    drop(one);
    assert!(poll().is_pending());
    drop(two);
    assert!(poll().is_ready());
}
