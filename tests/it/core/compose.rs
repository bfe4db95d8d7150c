//! Composition: all-or-nothing, the unit of each leg, and the leg that a refusal names.

use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{
    Ask, BoxLimiter, BoxTicket, BucketTicket, Clock, ClockReading, Cost, Demand, Description, Leg, LegName, Legs,
    Limiter, LimiterExt, ManualClock, Outcome, Permit, Policy, PolicyBuilder, Quota, Reason, Refusal, Semaphore,
    SemaphorePermit, SlidingWindow, Ticket, TokenBucket, Wait,
};

const TOKENS: Cost = Cost::new("tokens");
const BYTES: Cost = Cost::new("bytes");

fn bucket(clock: &Clock, per_second: u64, burst: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_second(per_second).burst(burst)).on(clock)
}

/// A leg that panics when it is asked.
struct Panics;

impl Limiter for Panics {
    type Ticket = ();
    fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        resume_unwind(Box::new("a leg panicked"))
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("panics"));
    }
}

#[test]
fn the_first_of_two_legs_that_refuse_is_named() {
    let clock = ManualClock::new();
    let rate = bucket(&clock, 1, 2);
    let gate = (&rate).named("rate").and(Semaphore::new(0).named("full"));
    assert_eq!(gate.try_admit(1).unwrap_err().leg(), "full");
    assert_eq!(rate.available(), 2);
    rate.try_acquire(2).unwrap();
    let refused = gate.try_admit(1).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("rate", Reason::RateExceeded));
    let window = SlidingWindow::new(2, Duration::from_secs(1)).unwrap().on(&clock);
    let gate = (&window).named("window").and(Semaphore::new(0).named("full"));
    assert_eq!(gate.try_admit(1).unwrap_err().leg(), "full");
    assert_eq!(window.available(), 2);
    window.try_acquire(2).unwrap();
    assert_eq!(gate.try_admit(1).unwrap_err().leg(), "window");
}

#[test]
fn a_leg_that_refuses_rolls_back_all_legs_before_it() {
    let clock = ManualClock::new();
    let rate = Arc::new(bucket(&clock, 1, 10));
    let window = Arc::new(SlidingWindow::new(10, Duration::from_secs(60)).unwrap().on(&clock));
    let first = Arc::new(Semaphore::new(10));
    let full = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&rate)
        .and(Arc::clone(&window))
        .and(Arc::clone(&first))
        .and(Arc::clone(&full));
    for _ in 0..100 {
        assert!(gate.try_admit(7).is_err());
    }
    assert_eq!(
        (rate.available(), window.available(), first.available_permits()),
        (10, 10, 10)
    );

    let rates = [Arc::clone(&rate).boxed(), Arc::clone(&window).boxed()];
    let semaphores = [Arc::clone(&first).boxed(), full.boxed()];
    let legs: Legs = rates.into_iter().chain(semaphores).collect();
    for _ in 0..100 {
        assert!(legs.try_admit(7).is_err());
    }
    assert_eq!(
        (rate.available(), window.available(), first.available_permits()),
        (10, 10, 10)
    );
}

#[test]
fn a_leg_that_panics_rolls_back_all_legs_before_it() {
    let clock = ManualClock::new();
    let rate = Arc::new(bucket(&clock, 1, 10));
    let semaphore = Arc::new(Semaphore::new(10));
    let gate = Arc::clone(&rate).and(Arc::clone(&semaphore)).and(Panics);
    assert!(catch_unwind(AssertUnwindSafe(|| gate.try_admit(7).is_ok())).is_err());
    assert_eq!((rate.available(), semaphore.available_permits()), (10, 10));

    let legs = [
        Arc::clone(&rate).boxed(),
        Arc::clone(&semaphore).boxed(),
        Panics.boxed(),
    ];
    let legs: Legs = legs.into_iter().collect();
    assert!(catch_unwind(AssertUnwindSafe(|| legs.try_admit(7).is_ok())).is_err());
    assert_eq!((rate.available(), semaphore.available_permits()), (10, 10));
}

#[test]
fn an_unknown_cost_is_refused_and_nothing_is_taken() {
    let clock = ManualClock::new();
    let calls = Arc::new(bucket(&clock, 1, 10));
    let gate = Arc::clone(&calls).and(bucket(&clock, 1, 10).per(TOKENS));
    let refused = gate.try_admit(Ask::one().cost(BYTES, 1)).unwrap_err();
    assert_eq!((refused.reason(), refused.leg()), (Reason::Unpriced, "tokens"));
    assert_eq!(refused.retry_after(), None);
    assert!(refused.reason().is_permanent());
    assert_eq!(calls.available(), 10);
    let named = bucket(&clock, 1, 10).per(TOKENS).named("tpm");
    assert_eq!(named.try_admit(Ask::one()).unwrap_err().leg(), "tpm");
}

#[test]
fn each_leg_is_charged_in_its_own_unit() {
    let clock = ManualClock::new();
    let (rpm, tpm) = (Arc::new(bucket(&clock, 1, 100)), Arc::new(bucket(&clock, 1, 5_000)));
    let gate = Arc::clone(&rpm).and(Arc::clone(&tpm).per(TOKENS));
    let mut permit = gate.try_admit(Ask::many(3).cost(TOKENS, 2_000)).unwrap();
    assert_eq!((rpm.available(), tpm.available()), (97, 3_000));
    assert_eq!(
        permit.settle(TOKENS, 700),
        Ok(1),
        "the leg that counts tokens, and it alone"
    );
    assert_eq!((rpm.available(), tpm.available()), (97, 4_300));
}

#[test]
fn to_settle_a_cost_that_no_leg_counts_is_an_error() {
    let clock = ManualClock::new();
    let gate = bucket(&clock, 1, 100).and(bucket(&clock, 1, 100).per(TOKENS));
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 10).cost(BYTES, 5)).unwrap();
    let unsettled = permit.settle(BYTES, 1).unwrap_err();
    assert_eq!(unsettled.cost, BYTES);
    assert_eq!(unsettled.to_string(), "no leg counts the cost `bytes`");
    assert_eq!(permit.settle(TOKENS, 10), Ok(1));
}

#[test]
fn a_refusal_names_the_leg_that_refused() {
    let clock = ManualClock::new();
    let gate = bucket(&clock, 10, 1)
        .named("rpm")
        .and(Semaphore::new(1).named("in flight"))
        .boxed();
    let held = gate.try_admit(1).unwrap();
    let refused = gate.try_admit(1).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("rpm", Reason::RateExceeded));
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
    assert_eq!(refused.leg_name(), LegName::from("rpm"));
    clock.advance(Duration::from_millis(100));
    let refused = gate.try_admit(1).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("in flight", Reason::Saturated));
    assert_eq!(refused.to_string(), "limiter `in flight` is saturated");
    drop(held);
    assert!(gate.try_admit(1).is_ok());
}

#[test]
fn a_look_says_the_latest_instant_of_all_legs() {
    let clock = ManualClock::new();
    let (fast, slow) = (bucket(&clock, 10, 1), bucket(&clock, 2, 1));
    let both = fast
        .named("fast")
        .and(slow.named("slow"))
        .and(Semaphore::new(1).named("slots"));
    let now = clock.now();
    let held = both.try_admit(1).unwrap();
    let look = || {
        let (ask, reading) = (Ask::one(), ClockReading::default());
        both.look(&Demand::new(&ask, &reading)).unwrap_err().wait()
    };
    let half = clock.after(now, Duration::from_millis(500));
    assert_eq!(
        look(),
        Wait::until(&clock, now, half).and(Wait::EVENT),
        "an instant and a release, both"
    );
    drop(held);
    assert_eq!(look(), Wait::until(&clock, now, half));
}

proptest! {
    /// A permit that travels through the words of a box means the same: what is admitted, settled and given back is
    /// what the bare limiters give.
    #[test]
    fn tickets_survive_their_words(asks in prop::collection::vec((1u64..50, 0u64..50, 0u8..4, 0u64..2_000), 1..40)) {
        let (boxed_clock, bare_clock) = (ManualClock::new(), ManualClock::new());
        let legs = |clock: &ManualClock| {
            let window = SlidingWindow::new(120, Duration::from_secs(4)).unwrap().on(clock);
            bucket(clock, 40, 100).per(TOKENS).and(window.per(TOKENS)).and(Semaphore::new(6))
        };
        let bare = legs(&bare_clock);
        let boxed = legs(&boxed_clock).boxed().boxed();
        let (mut bare_held, mut boxed_held) = (Vec::new(), Vec::new());
        for (estimate, actual, end, millis) in asks {
            let ask = Ask::one().cost(TOKENS, estimate);
            match (bare.try_admit(ask), boxed.try_admit(ask)) {
                (Ok(a), Ok(b)) => {
                    bare_held.push(a);
                    boxed_held.push(b);
                }
                (Err(a), Err(b)) => prop_assert_eq!(a, b),
                (a, b) => prop_assert!(false, "bare {:?}, boxed {:?}", a.is_ok(), b.is_ok()),
            }
            bare_clock.advance(Duration::from_millis(millis));
            boxed_clock.advance(Duration::from_millis(millis));
            if end > 0 && let (Some(mut a), Some(mut b)) = (bare_held.pop(), boxed_held.pop()) {
                match end {
                    1 => prop_assert_eq!(a.settle(TOKENS, actual), b.settle(TOKENS, actual)),
                    2 => {
                        a.finish(Outcome::Success);
                        b.finish(Outcome::Success);
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_ticket_of_words_reads_back_as_written(a: u64, b: u64, c: u64) {
        let ticket = ((a, b), ((), c));
        let mut words = [0; <((u64, u64), ((), u64))>::WORDS];
        ticket.write(&mut words);
        prop_assert_eq!(<((u64, u64), ((), u64))>::read(&words), ticket);
        prop_assert_eq!(words, [a, b, c]);
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// 64 who ask the semaphore itself, again and again, and a policy that shares it: among any 65 grants in a row each of
/// the 65 has its own.
#[test]
fn a_policy_and_64_lone_acquirers_of_its_semaphore_all_have_their_turn_every_65_grants() {
    const LONE: usize = 64;
    let clock = ManualClock::new();
    let semaphore = Arc::new(Semaphore::new(1));
    let policy = Policy::new(bucket(&clock, 1_000_000, 1_000_000).and(Arc::clone(&semaphore)));
    type Waiter = Pin<Box<dyn Future<Output = Box<dyn std::any::Any>>>>;
    let mut waiters: Vec<Waiter> = Vec::new();
    let again = |who: usize| -> Waiter {
        if who == LONE {
            let policy = policy.clone();
            Box::pin(async move { Box::new(policy.admit_owned(1).await.unwrap()) as Box<dyn std::any::Any> })
        } else {
            let semaphore = Arc::clone(&semaphore);
            Box::pin(async move { Box::new(semaphore.acquire_owned().await.unwrap()) as Box<dyn std::any::Any> })
        }
    };
    let held = Arc::clone(&semaphore).try_acquire_owned().unwrap();
    for who in 0..=LONE {
        waiters.push(again(who));
        assert!(poll(waiters[who].as_mut()).is_pending());
    }
    drop(held);
    let mut granted: Vec<usize> = Vec::new();
    for _ in 0..10 * (LONE + 1) {
        let (who, permit) = waiters
            .iter_mut()
            .enumerate()
            .find_map(|(who, waiter)| match poll(waiter.as_mut()) {
                Poll::Ready(permit) => Some((who, permit)),
                Poll::Pending => None,
            })
            .expect("a permit is free and no holder has it");
        granted.push(who);
        // It joins again while it still holds, so that it is last in the queue and the queue is never empty.
        waiters[who] = again(who);
        assert!(poll(waiters[who].as_mut()).is_pending());
        drop(permit);
    }
    for round in granted.windows(LONE + 1) {
        let mut round = round.to_vec();
        round.sort_unstable();
        assert_eq!(round, (0..=LONE).collect::<Vec<_>>());
    }
}

/// Keeps out embassy#6964.
#[test]
fn public_types_may_be_sent_and_shared() {
    fn sent<T: Send + Sync>() {}
    sent::<Semaphore>();
    sent::<TokenBucket>();
    sent::<SlidingWindow>();
    sent::<(Semaphore, TokenBucket)>();
    sent::<Leg<Semaphore>>();
    sent::<BoxLimiter>();
    sent::<Legs>();
    sent::<Policy<Legs>>();
    sent::<PolicyBuilder>();
    sent::<Permit<Arc<Semaphore>>>();
    sent::<SemaphorePermit<'static>>();
    sent::<(Refusal, LegName)>();
    sent::<(Ask, Cost, Outcome, Reason)>();
    sent::<(BoxTicket, BucketTicket)>();
    sent::<(Clock, ManualClock)>();
    fn future<F: Future + Send>(_: F) {}
    let policy = Policy::new(Semaphore::new(1));
    future(policy.admit(1));
    future(policy.admit_owned(1));
    future(policy.admit_timeout(1, Duration::ZERO));
    let semaphore = Semaphore::new(1);
    future(semaphore.acquire());
    future(semaphore.acquire_many_timeout(1, Duration::ZERO));
}

/// Compiles because a permit may stand where a shorter-lived one is asked for.
#[test]
fn a_permit_of_a_longer_life_serves_for_a_shorter() {
    fn shorten<'a>(permit: SemaphorePermit<'static>, _: &'a Semaphore) -> SemaphorePermit<'a> {
        permit
    }
    fn shorten_any<'a, L: Limiter>(permit: Permit<&'static L>) -> Permit<&'a L, L::Ticket> {
        permit
    }
    static GATE: Semaphore = Semaphore::const_new(1);
    let local = Semaphore::new(1);
    let permit = shorten_any(shorten(GATE.try_acquire().unwrap(), &GATE));
    assert!(local.try_acquire().is_ok());
    assert!(GATE.try_acquire().is_err());
    drop(permit);
    assert!(GATE.try_acquire().is_ok());
}

/// However an owned permit ends, its handle of the limiter goes with it.
#[test]
fn an_owned_permit_that_has_ended_holds_no_limiter() {
    let slots = Arc::new(Semaphore::new(1));
    let ends: [fn(Permit<Arc<Semaphore>>); 3] = [|permit| permit.finish(Outcome::Success), Permit::cancel, drop];
    for end in ends {
        end(slots.try_admit_owned(1).unwrap());
        assert_eq!((Arc::strong_count(&slots), slots.in_use()), (1, 0));
    }
}
