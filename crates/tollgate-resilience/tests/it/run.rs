//! Work behind a policy of a breaker, an adaptive limit and a retry budget: whatever becomes of it, each leg learns its
//! outcome, and gets back its permit.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Reason, RunError, Semaphore};
use tollgate_resilience::BreakerState::{Closed, HalfOpen, Open};
use tollgate_resilience::CircuitBreaker;
use tollgate_resilience::adaptive::{Adaptive, Aimd};
use tollgate_resilience::shed::RetryBudget;

const SECOND: Duration = Duration::from_secs(1);

struct Rig {
    clock: ManualClock,
    breaker: Arc<CircuitBreaker>,
    limit: Arc<Adaptive>,
    retries: Arc<RetryBudget>,
    policy: Policy<tollgate::BoxLimiter>,
}

/// A breaker that opens at two failures of the last two, a limit of 2, and `retries` retries, in this order.
fn rig(retries: u64) -> Rig {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder().count_window(2).failure_rate(1.0).probes(1);
    let breaker = Arc::new(breaker.on(&clock).build().unwrap());
    let limit = Adaptive::builder(Semaphore::new(2)).law(Aimd::new()).bounds(1, 2);
    let limit = Arc::new(limit.window(Duration::ZERO, 1).on(&clock).build().unwrap());
    let spent = retries == 0;
    let retries = Arc::new(RetryBudget::new(0.0, retries.max(1)).unwrap());
    if spent {
        // One with no reserve at all would refuse as a request that is too large.
        retries.try_admit(1).unwrap().forget();
    }
    let policy = Policy::builder()
        .limit(Arc::clone(&breaker))
        .limit(Arc::clone(&limit))
        .limit(Arc::clone(&retries))
        .max_queue(0)
        .on(&clock)
        .boxed()
        .build()
        .unwrap();
    Rig {
        clock,
        breaker,
        limit,
        retries,
        policy,
    }
}

impl Rig {
    /// The breaker's counts, the limit, its usage, and the remaining retries.
    fn seen(&self) -> ((u64, u64), usize, usize, u64) {
        let metrics = self.breaker.metrics();
        let in_use = self.limit.limiter().in_use();
        (
            (metrics.calls, metrics.failed),
            self.limit.limit(),
            in_use,
            self.retries.available(),
        )
    }

    fn run(&self, result: Result<(), Outcome>) -> Result<(), RunError<Outcome>> {
        let classify = |result: &Result<(), Outcome>| result.err().unwrap_or(Outcome::Success);
        let work = self.policy.run_classified(1, || async move { result }, classify);
        self.clock.run(work.into_future())
    }
}

/// Polls once.
fn begin<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Given two permits and one way in which work ends, then the breaker and the limit have counted that and nothing else, and
/// nothing is in use.
#[test]
fn each_outcome_reaches_each_leg() {
    let rows = [
        (Ok(()), (1, 0), 2),
        (Err(Outcome::Failure), (1, 1), 2),
        (Err(Outcome::Overload), (1, 1), 1),
        (Err(Outcome::Ignored), (0, 0), 2),
    ];
    for (result, calls, limit) in rows {
        let rig = rig(3);
        let ended = rig.run(result);
        assert!(matches!((&ended, result), (Ok(()), Ok(()))) || matches!(ended, Err(RunError::Failed(_))));
        assert_eq!(rig.seen(), (calls, limit, 0, 2), "{result:?}");
    }
    // Unless it is said what a result means, an error is a failure.
    let rig = rig(3);
    let failed = rig
        .policy
        .run(1, || async { Err::<(), _>("no") })
        .or_else(|_| async { Ok(()) });
    assert_eq!(rig.clock.run(failed), Err("no"));
    assert_eq!(rig.seen(), ((1, 1), 2, 0, 2));
}

/// Given work that is dropped half-way, or panics, or whose result is unknown, then it counts nowhere, and a probe so
/// lent is free again.
#[test]
fn work_that_is_cut_short_says_nothing() {
    for half_open in [false, true] {
        let rig = rig(9);
        if half_open {
            rig.breaker.trip(SECOND);
            rig.clock.advance(SECOND);
        }
        let forever = || std::future::pending::<Result<(), ()>>();
        assert!(begin(rig.policy.run(1, forever).into_future()).is_pending());
        assert_eq!(rig.seen(), ((0, 0), 2, 0, 8));

        let panics = || async { resume_unwind(Box::new("the work")) };
        let run = || {
            rig.clock
                .run(rig.policy.run(1, panics).or_else(|_| async { Ok::<(), ()>(()) }))
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(rig.seen(), ((0, 0), 2, 0, 7));

        let cannot_tell = |_: &Result<(), ()>| resume_unwind(Box::new("the classifier"));
        let work = || rig.policy.run_classified(1, || async { Ok(()) }, cannot_tell);
        assert!(catch_unwind(AssertUnwindSafe(|| rig.clock.run(work().into_future()).is_ok())).is_err());
        assert_eq!(rig.seen(), ((0, 0), 2, 0, 6));

        // Not polled at all, it has not asked.
        drop(rig.policy.run(1, forever));
        assert_eq!(rig.seen(), ((0, 0), 2, 0, 6));
        assert_eq!(rig.breaker.state(), if half_open { HalfOpen } else { Closed });
        assert!(rig.run(Ok(())).is_ok());
        assert_eq!(rig.breaker.state(), Closed);
    }
}

/// Given a leg that refuses, then the work is not begun, the fallback knows which leg it was, and those before it have their
/// own back: a probe as well.
#[test]
fn a_refusal_falls_back_and_leaves_no_trace() {
    let fall_back = |rig: &Rig| {
        let work = || async { unreachable!("it was refused") };
        let run = rig.policy.run(1, work).or_else(|refusal| async move {
            let leg = refusal.leg().to_owned();
            Ok::<_, ()>((leg, refusal.reason(), refusal.retry_after()))
        });
        rig.clock.run(run).unwrap()
    };
    let rig = rig(0);
    rig.breaker.trip(SECOND);
    // An open circuit is not waited for.
    assert_eq!(
        fall_back(&rig),
        ("breaker".to_owned(), Reason::CircuitOpen, Some(SECOND))
    );
    rig.clock.advance(SECOND);
    for _ in 0..3 {
        // The one probe is lent and comes back, each time.
        assert_eq!(fall_back(&rig), ("retry_budget".to_owned(), Reason::QueueFull, None));
        assert_eq!((rig.breaker.state(), rig.limit.limiter().in_use()), (HalfOpen, 0));
    }
}

/// Given failures, then the circuit opens for `run` as for any caller, and a failed fallback counts nowhere.
#[test]
fn failures_of_runs_open_the_circuit() {
    let rig = rig(9);
    for _ in 0..2 {
        assert!(rig.run(Err(Outcome::Failure)).is_err());
    }
    assert_eq!(rig.breaker.state(), Open);
    let run = rig
        .policy
        .run(1, || async { Ok::<(), _>(()) })
        .or_else(|_| async { Err("no cache") });
    assert_eq!(rig.clock.run(run), Err("no cache"));
    assert_eq!((rig.breaker.metrics().refused, rig.retries.available()), (1, 7));
}
