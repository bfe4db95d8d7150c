//! A leg that panics leaves the other legs as if it had returned: chains, tuples, lists of legs.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tollgate::policy::conditional::{LoadMetric, Meter, Trigger};
use tollgate::{
    Ask, Cost, Demand, Description, Legs, Limiter, LimiterExt, ManualClock, Outcome, Permit, Policy, Quota, Refusal,
    Semaphore, Settlement, TokenBucket,
};

/// Which calls a leg panics at.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Reserve,
    Cancel,
    Settle,
    Finish,
    Forget,
}

/// A leg that panics, and counts its calls before it does.
struct Panics {
    at: At,
    told: AtomicUsize,
}

impl Panics {
    fn at(at: At) -> Arc<Self> {
        Arc::new(Self {
            at,
            told: AtomicUsize::new(0),
        })
    }

    fn told(&self, at: At) {
        if at == self.at {
            self.told.fetch_add(1, Ordering::Relaxed);
            resume_unwind(Box::new(at));
        }
    }
}

impl Limiter for Panics {
    type Ticket = u64;
    fn try_reserve(&self, _: &Demand<'_>) -> Result<u64, Refusal> {
        self.told(At::Reserve);
        Ok(7)
    }
    fn cancel(&self, _: u64) {
        self.told(At::Cancel);
    }
    fn settle(&self, _: &mut u64, _: &Settlement) -> u32 {
        self.told(At::Settle);
        1
    }
    fn finish(&self, _: u64, outcome: Outcome) {
        self.told(match outcome {
            Outcome::Forgotten => At::Forget,
            _ => At::Finish,
        });
    }
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("panics"));
    }
}

const COST: Cost = Cost::new("tokens");

/// Two legs that panic, between three that do not.
fn composites(
    at: At,
    unwinding: bool,
    work: impl Fn(&str, &dyn Fn() -> bool, [&Semaphore; 3], &TokenBucket, [&Panics; 2]),
) {
    let clock = ManualClock::new();
    for kind in ["chain", "tuple", "list", "boxed", "long"] {
        let semaphores = [(); 3].map(|()| Arc::new(Semaphore::new(2)));
        let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(100)).on(&clock));
        let bad = [Panics::at(at), Panics::at(at)];
        let chain = || {
            Arc::clone(&semaphores[0])
                .and(Arc::clone(&bad[0]))
                .and(Arc::clone(&bucket).per(COST))
                .and(Arc::clone(&semaphores[1]))
                .and(Arc::clone(&bad[1]))
                .and(Arc::clone(&semaphores[2]))
        };
        let legs = || {
            [
                Arc::clone(&semaphores[0]).boxed(),
                Arc::clone(&bad[0]).boxed(),
                Arc::clone(&bucket).per(COST).boxed(),
                Arc::clone(&semaphores[1]).boxed(),
                Arc::clone(&bad[1]).boxed(),
                Arc::clone(&semaphores[2]).boxed(),
            ]
        };
        let attempt = |gate: &dyn Fn() -> bool| {
            work(
                kind,
                gate,
                [&semaphores[0], &semaphores[1], &semaphores[2]],
                &bucket,
                [&bad[0], &bad[1]],
            );
        };
        match kind {
            "chain" => attempt(&|| through(&chain(), at, unwinding)),
            "tuple" => {
                let tuple = (
                    Arc::clone(&semaphores[0]),
                    Arc::clone(&bad[0]),
                    Arc::clone(&bucket).per(COST),
                    Arc::clone(&semaphores[1]),
                    Arc::clone(&bad[1]),
                    Arc::clone(&semaphores[2]),
                );
                attempt(&|| through(&tuple, at, unwinding));
            }
            "list" => attempt(&|| through(&legs().into_iter().collect::<Legs>(), at, unwinding)),
            "boxed" => attempt(&|| through(&chain().boxed(), at, unwinding)),
            _ => {
                let spare = || TokenBucket::new(Quota::per_second(1).burst(100)).on(&clock);
                let long: Legs = legs().into_iter().chain((0..9).map(|_| spare().boxed())).collect();
                attempt(&|| through(&long, at, unwinding));
            }
        }
    }
}

/// Admits and ends so that the legs are told `at`; where `unwinding`, in a destructor while a panic is under way. True when the
/// panic that goes on is that of a leg, or the one under way.
fn through(gate: &impl Limiter, at: At, unwinding: bool) -> bool {
    struct Last<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Last<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let ask = Ask::one().cost(COST, 10);
    if !unwinding || at == At::Reserve {
        let caught = catch_unwind(AssertUnwindSafe(|| end(gate.try_admit(ask).unwrap(), at)));
        return caught.is_err_and(|panic| panic.downcast_ref() == Some(&at));
    }
    let mut permit = Some(gate.try_admit(ask).unwrap());
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _last = Last(|| end(permit.take().unwrap(), at));
        resume_unwind(Box::new("the task"));
    }));
    caught.is_err_and(|panic| panic.downcast_ref() == Some(&"the task"))
}

/// Ends the permit so that its legs are told `at`.
fn end<L: Limiter>(mut permit: Permit<&L>, at: At) {
    match at {
        At::Cancel => permit.cancel(),
        At::Forget => permit.forget(),
        At::Settle => _ = permit.settle(COST, 4),
        _ => permit.finish(Outcome::Success),
    }
}

/// Whichever call a leg panics at: the permits of the others that are left, the tokens, and how often each bad leg was called.
#[test]
fn a_leg_that_panics_leaves_the_others_as_if_it_had_returned() {
    let table = [
        (At::Reserve, 2, 100, [1, 0]),
        (At::Cancel, 2, 100, [1, 1]),
        (At::Settle, 2, 96, [1, 1]),
        (At::Finish, 2, 90, [1, 1]),
        (At::Forget, 1, 90, [1, 1]),
    ];
    for (at, permits, tokens, told) in table {
        for unwinding in [false, true] {
            composites(at, unwinding, |kind, through, semaphores, bucket, bad| {
                let case = format!("{kind} at {at:?}, unwinding: {unwinding}");
                assert!(through(), "{case}");
                assert_eq!(semaphores.map(Semaphore::available_permits), [permits; 3], "{case}");
                assert_eq!(semaphores.map(Semaphore::in_use), [0; 3], "{case}");
                assert_eq!(bucket.available(), tokens, "{case}");
                assert_eq!(bad.map(|leg| leg.told.load(Ordering::Relaxed)), told, "{case}");
            });
        }
    }
}

/// Wakes with a panic.
struct BadWaker;

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        panic_any("a waker panicked");
    }
}

/// A wait at `semaphore` whose waker panics, while `work` runs. True when `work` has panicked.
fn beside_a_bad_waker(semaphore: &Semaphore, work: impl FnOnce()) -> bool {
    let mut wait = pin!(semaphore.acquire());
    let waker = Waker::from(Arc::new(BadWaker));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn a_waker_that_panics_keeps_no_permit_of_the_other_leg() {
    let (one, two) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
    let policy = Policy::builder().limit(Arc::clone(&one)).limit(Arc::clone(&two));
    let policy = policy.build().unwrap();
    let permit = policy.try_admit(1).unwrap();
    assert!(!beside_a_bad_waker(&two, || drop(permit)));
    assert_eq!((one.in_use(), two.in_use()), (0, 0));

    let chain = Arc::clone(&one).and(Arc::clone(&two));
    let permit = chain.try_admit(1).unwrap();
    assert!(!beside_a_bad_waker(&two, || permit.cancel()));
    assert_eq!((one.in_use(), two.in_use()), (0, 0));
}

#[test]
fn a_waker_that_panics_leaves_no_load() {
    let clock = ManualClock::new();
    let semaphore = Arc::new(Semaphore::new(1));
    let meter = Meter::new(&clock, Duration::from_secs(1));
    let gate = meter.watch(Arc::clone(&semaphore));
    let permit = gate.try_admit(1).unwrap();
    assert!(!beside_a_bad_waker(&semaphore, || drop(permit)));
    assert_eq!((meter.read(LoadMetric::Use), semaphore.in_use()), (0.0, 0));
    let permit = gate.try_admit(1).unwrap();
    assert!(
        !beside_a_bad_waker(&semaphore, || permit.forget()),
        "it wakes no waiter"
    );
    assert_eq!(meter.read(LoadMetric::Use), 0.0);
}

#[test]
fn a_leg_that_panics_in_a_policy_around_another_keeps_no_permit() {
    let clock = ManualClock::new();
    let legs = [1, 1, 5].map(|permits| Semaphore::new(permits).boxed());
    let policy = Policy::builder()
        .on(&clock)
        .limit(Legs::from_iter(legs))
        .build()
        .unwrap();
    let bad = Policy::builder().limit(policy.clone()).limit(Panics::at(At::Reserve));
    let bad = bad.on(&clock).build().unwrap();
    let permit = policy.try_admit(1).unwrap();
    let mut wait = Box::pin(bad.admit(1));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let _ = catch_unwind(AssertUnwindSafe(|| drop(permit)));
    drop(wait);
    assert!(policy.try_admit(1).is_ok(), "each leg has its permit back");
}

#[test]
fn a_task_that_panics_with_a_permit_aborts_nothing_when_a_leg_panics_too() {
    let semaphore = Arc::new(Semaphore::new(1));
    let legs = Policy::builder()
        .limit(Arc::clone(&semaphore))
        .limit(Panics::at(At::Finish));
    let legs = legs.build().unwrap();
    let task = |permit: &mut dyn FnMut()| {
        let caught = catch_unwind(AssertUnwindSafe(permit));
        assert_eq!(
            caught.unwrap_err().downcast_ref(),
            Some(&"the task"),
            "the first panic goes on"
        );
        assert_eq!(semaphore.in_use(), 0);
    };
    task(&mut || {
        let _permit = legs.try_admit(1).unwrap();
        resume_unwind(Box::new("the task"));
    });
    struct Cancelled<L: Limiter>(Option<Permit<L>>);
    impl<L: Limiter> Drop for Cancelled<L> {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(Permit::cancel);
        }
    }
    let chain = Arc::clone(&semaphore).and(Panics::at(At::Cancel));
    task(&mut || {
        let _permit = Cancelled(Some(chain.try_admit(1).unwrap()));
        resume_unwind(Box::new("the task"));
    });
}

/// A payload that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new("a payload panicked"));
    }
}

#[test]
fn a_payload_that_panics_when_it_is_dropped_aborts_nothing() {
    struct Bombs;
    impl Limiter for Bombs {
        type Ticket = ();
        fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
            Ok(())
        }
        fn cancel(&self, (): ()) {}
        fn finish(&self, (): (), _: Outcome) {
            resume_unwind(Box::new(Bomb));
        }
        fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
            Ok(())
        }
        fn describe(&self, _: &mut dyn FnMut(Description<'_>)) {}
    }
    let semaphore = Arc::new(Semaphore::new(1));
    let gate = Arc::clone(&semaphore).and(Panics::at(At::Finish)).and(Bombs);
    let permit = gate.try_admit(1).unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| drop(permit)));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&At::Finish));
    assert_eq!(semaphore.in_use(), 0);
}

#[test]
fn a_load_that_panics_takes_nothing() {
    struct Broken;
    impl tollgate::policy::conditional::Load for Broken {
        fn read(&self, _: tollgate::Instant) -> f64 {
            resume_unwind(Box::new("a load panicked"))
        }
    }
    let semaphore = Arc::new(Semaphore::new(1));
    let linked = Semaphore::new(1).when(Trigger::above(Arc::new(Broken), 0.5));
    let gate = Arc::clone(&semaphore).and(linked);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(gate.try_admit(1)))).is_err());
    assert_eq!(semaphore.in_use(), 0);
}
