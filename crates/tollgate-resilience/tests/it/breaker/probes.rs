//! A half-open circuit gets every probe back, whatever becomes of it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;
use tollgate::time::Sleep;
use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Semaphore};
use tollgate_resilience::BreakerState::{Closed, HalfOpen, Open};
use tollgate_resilience::{CircuitBreaker, OpenTime};

const SECOND: Duration = Duration::from_secs(1);
const PROBES: u64 = 2;

fn sleep(clock: &ManualClock, time: Duration) -> Sleep {
    clock.sleep(time)
}

fn half_open(clock: &ManualClock) -> CircuitBreaker {
    let breaker = CircuitBreaker::builder()
        .probes(PROBES)
        .wait_while_open()
        .probe_timeout(60 * SECOND)
        .open_for(OpenTime::fixed(5 * SECOND))
        .on(clock)
        .build()
        .unwrap();
    breaker.trip(SECOND);
    clock.advance(SECOND);
    breaker
}

/// A policy owns its legs.
fn leaked(breaker: CircuitBreaker) -> &'static CircuitBreaker {
    Box::leak(Box::new(breaker))
}

fn free(breaker: &CircuitBreaker) -> u64 {
    let probes: Vec<_> = std::iter::from_fn(|| breaker.try_admit(1).ok()).collect();
    probes.len() as u64
}

/// Given a half-open circuit, when one probe ends in each of these ways, then both are free again.
#[test]
fn every_probe_without_a_result_is_free_again() {
    type Way = fn(&CircuitBreaker, &ManualClock);
    let ways: [(&str, Way); 8] = [
        ("dropped", |breaker, _| drop(breaker.try_admit(1).unwrap())),
        ("ignored", |breaker, _| {
            breaker.try_admit(1).unwrap().finish(Outcome::Ignored);
        }),
        ("cancelled", |breaker, _| breaker.try_admit(1).unwrap().cancel()),
        ("refused by a later leg", |breaker, _| {
            let nothing = Semaphore::new(0);
            assert!(breaker.and(&nothing).try_admit(1).is_err());
        }),
        ("panicked", |breaker, _| {
            let work = || {
                let _probe = breaker.try_admit(1).unwrap();
                resume_unwind(Box::new("the work panics"));
            };
            let _ = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        }),
        ("timed out", |breaker, clock| {
            // The work is given up on, and with it its probe.
            let work = async {
                let _probe = breaker.try_admit(1).unwrap();
                std::future::pending::<()>().await;
            };
            clock.run(async {
                let mut work = std::pin::pin!(work);
                let mut over = std::pin::pin!(sleep(clock, SECOND));
                std::future::poll_fn(|context| {
                    assert!(work.as_mut().poll(context).is_pending());
                    over.as_mut().poll(context)
                })
                .await;
            });
        }),
        ("aborted", |breaker, _| {
            let mut work = Box::pin(async {
                let _probe = breaker.try_admit(1).unwrap();
                std::future::pending::<()>().await;
            });
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(work.as_mut().poll(&mut context).is_pending());
        }),
        ("finished after its trial", |breaker, clock| {
            let probe = breaker.try_admit(1).unwrap();
            breaker.trip(SECOND);
            clock.advance(SECOND);
            drop(breaker.try_admit(1).unwrap());
            probe.finish(Outcome::Failure);
        }),
    ];
    for (name, way) in ways {
        let clock = ManualClock::new();
        let breaker = half_open(&clock);
        for _ in 0..5 {
            way(&breaker, &clock);
            assert_eq!((breaker.state(), free(&breaker)), (HalfOpen, PROBES), "{name}");
        }
        for _ in 0..PROBES {
            breaker.try_admit(1).unwrap().finish(Outcome::Success);
        }
        assert_eq!(breaker.state(), Closed, "{name}");
    }
}

/// Given probes that are kept, or forgotten, when they are overdue, then the next caller opens the circuit again, and the
/// trial after that has all its probes.
#[test]
fn probes_that_never_come_back_open_the_circuit() {
    for forgotten in [true, false] {
        let clock = ManualClock::new();
        let breaker = half_open(&clock);
        let mut kept = Vec::new();
        for _ in 0..PROBES {
            let probe = breaker.try_admit(1).unwrap();
            match forgotten {
                true => probe.forget(),
                false => kept.push(probe),
            }
        }
        clock.advance(59 * SECOND);
        assert_eq!((free(&breaker), breaker.state()), (0, HalfOpen));
        clock.advance(SECOND);
        let refused = breaker.try_admit(1).map(drop).unwrap_err();
        assert_eq!(refused.retry_after(), Some(5 * SECOND));
        assert_eq!(breaker.state(), Open);
        clock.advance(5 * SECOND);
        assert_eq!(free(&breaker), PROBES);
        drop(kept);
        assert_eq!(free(&breaker), PROBES);
    }
}

/// Given an open circuit in a policy, then its waiters go one by one as probes are free, and all once it has closed.
#[test]
fn a_policy_waits_for_the_circuit() {
    let clock = ManualClock::new();
    let breaker = leaked(half_open(&clock));
    breaker.trip(5 * SECOND);
    let policy = Policy::builder().on(&clock).limit(breaker).build().unwrap();
    clock.run(async {
        let probes = [policy.admit(1).await.unwrap(), policy.admit(1).await.unwrap()];
        assert_eq!(clock.elapsed(), 6 * SECOND);
        let work = async {
            sleep(&clock, SECOND).await;
            let [one, two] = probes;
            drop(one);
            sleep(&clock, SECOND).await;
            two.finish(Outcome::Success);
        };
        let wait = async {
            let third = policy.admit(1).await.unwrap();
            assert_eq!(clock.elapsed(), 7 * SECOND);
            sleep(&clock, 2 * SECOND).await;
            third.finish(Outcome::Success);
        };
        let last = async {
            sleep(&clock, SECOND / 2).await;
            drop(policy.admit(1).await.unwrap());
            assert_eq!(clock.elapsed(), 9 * SECOND);
        };
        futures::join!(work, wait, last);
    });
}

/// Given probes that never come back, then a policy wakes at the instant at which they are overdue, and its head is a
/// probe of the next trial; a waiter with less patience is refused at its own deadline, not before.
#[test]
fn an_overdue_trial_wakes_a_policy_that_waits() {
    let clock = ManualClock::new();
    let breaker = leaked(half_open(&clock));
    let probes: Vec<_> = (0..PROBES).map(|_| breaker.try_admit(1).unwrap()).collect();
    let policy = Policy::builder().on(&clock).limit(breaker).build().unwrap();
    let start = clock.elapsed();
    clock.run(async {
        let patient = async {
            drop(policy.admit(1).await.unwrap());
            assert_eq!(clock.elapsed() - start, 65 * SECOND);
        };
        let hasty = async {
            let late = policy.admit_timeout(1, 30 * SECOND).await.map(drop).unwrap_err();
            assert_eq!((late.leg(), clock.elapsed() - start), ("breaker", 30 * SECOND));
        };
        futures::join!(patient, hasty);
    });
    assert_eq!(breaker.state(), HalfOpen);
    drop(probes);
}

/// Given a policy whose head asks for more calls than there are probes, then it is the whole trial, and the queue goes on.
#[test]
fn an_ask_of_more_than_the_probes_does_not_stop_a_queue() {
    let clock = ManualClock::new();
    let breaker = leaked(half_open(&clock));
    let policy = Policy::builder().on(&clock).limit(breaker).build().unwrap();
    clock.run(async {
        let probe = policy.admit(1).await.unwrap();
        let heavy = async {
            policy.admit(PROBES + 1).await.unwrap().finish(Outcome::Success);
        };
        let behind = async { drop(policy.admit(1).await.unwrap()) };
        let work = async {
            sleep(&clock, SECOND).await;
            drop(probe);
        };
        futures::join!(heavy, behind, work);
    });
    assert_eq!((breaker.state(), clock.elapsed()), (Closed, 2 * SECOND));
}

/// Given an open time whose computation panics, then the circuit is open all the same, and the panic is propagated.
#[test]
fn an_open_time_that_panics_leaves_the_circuit_open() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .count_window(1)
        .open_for(OpenTime::computed(|_| resume_unwind(Box::new("no idea"))))
        .on(&clock)
        .build()
        .unwrap();
    let permit = breaker.try_admit(1).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| permit.finish(Outcome::Failure))).is_err());
    assert_eq!((breaker.state(), breaker.retry_after()), (Open, Some(30 * SECOND)));
}

/// A breaker of one probe that has opened twice, and is half-open for the second time.
fn second_trial(clock: &ManualClock, old: impl FnOnce(&'static CircuitBreaker)) -> &'static CircuitBreaker {
    let breaker = CircuitBreaker::builder()
        .probes(1)
        .probe_timeout(SECOND)
        .open_for(OpenTime::fixed(SECOND))
        .on(clock)
        .build()
        .unwrap();
    let breaker = leaked(breaker);
    breaker.trip(SECOND);
    clock.advance(SECOND);
    old(breaker);
    clock.advance(2 * SECOND);
    assert!(breaker.try_admit(1).is_err(), "the probe is overdue: it opens again");
    clock.advance(SECOND);
    breaker
}

#[test]
fn a_probe_of_an_older_trial_is_no_probe_of_this_one() {
    let clock = ManualClock::new();
    let mut old = None;
    let breaker = second_trial(&clock, |breaker| old = breaker.try_admit(1).ok());
    let new = breaker.try_admit(1).unwrap();
    old.unwrap().cancel();
    assert!(breaker.try_admit(1).is_err(), "one probe of one is out");
    drop(new);
    assert!(breaker.try_admit(1).is_ok());
}

#[test]
fn a_result_of_an_older_trial_decides_nothing() {
    let clock = ManualClock::new();
    for outcome in [Outcome::Success, Outcome::Failure] {
        let mut old = None;
        let breaker = second_trial(&clock, |breaker| old = breaker.try_admit(1).ok());
        let new = breaker.try_admit(1).unwrap();
        old.unwrap().finish(outcome);
        assert_eq!(breaker.state(), HalfOpen);
        new.finish(Outcome::Success);
        assert_eq!(breaker.state(), Closed);
    }
}

/// Given listeners and open times that panic, when a permit ends as a failure, or is dropped, on a thread that panics already, then the
/// process goes on, and the circuit has counted the end.
#[test]
fn the_end_of_a_permit_in_a_panic_is_no_second_one() {
    struct Fails(Option<tollgate::Permit<Arc<CircuitBreaker>>>, bool);
    impl Drop for Fails {
        fn drop(&mut self) {
            let permit = self.0.take().unwrap();
            if self.1 {
                permit.finish(Outcome::Failure);
            }
        }
    }
    for (computed, probe, fails) in [
        (false, false, true),
        (true, false, true),
        (false, true, true),
        (false, true, false),
    ] {
        let clock = ManualClock::new();
        let builder = CircuitBreaker::builder().consecutive_failures(1).probes(1).on(&clock);
        let open_for = match computed {
            true => OpenTime::computed(|_| resume_unwind(Box::new("no idea"))),
            false => OpenTime::fixed(SECOND),
        };
        let builder = builder
            .open_for(open_for)
            .on_event(|_| resume_unwind(Box::new("a listener")));
        let breaker = Arc::new(builder.build().unwrap());
        let admit = || catch_unwind(AssertUnwindSafe(|| breaker.try_admit_owned(1).unwrap()));
        if probe {
            let permit = admit().unwrap();
            assert!(catch_unwind(AssertUnwindSafe(|| permit.finish(Outcome::Failure))).is_err());
            clock.advance(2 * SECOND);
            // The listener panics as the circuit becomes half open.
            let _told = admit();
        }
        let permit = match admit() {
            Ok(permit) => permit,
            Err(_) => continue,
        };
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _fails = Fails(Some(permit), fails);
            resume_unwind(Box::new("the work"));
        }));
        assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"the work"));
        if fails {
            assert_eq!(breaker.state(), Open, "{computed} {probe}");
        }
    }
}
