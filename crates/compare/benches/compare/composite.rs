//! Four legs in one admission (two buckets, a window, a semaphore; and a breaker, a bucket, a window, a semaphore) beside
//! the same legs used one after the other, and beside glue of governor, tokio and recloser, which leaks what the earlier
//! legs took when a later one refuses.

use crate::harness::{Batch, Rows};
use crate::rate::{FAST, governor};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;
use tollgate::{Ask, CircuitBreaker, Clock, Cost, Limiter, LimiterExt, Outcome, Policy, Quota, Semaphore};
use tollgate::{SlidingWindow, TokenBucket};

const TOKENS: Cost = Cost::new("tokens");
const ESTIMATE: u64 = 20;

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_second(u64::from(FAST)))
}

fn window() -> SlidingWindow {
    SlidingWindow::new(u64::MAX / 2, Duration::from_secs(1)).expect("a window")
}

fn legs() -> impl Limiter<Ticket = impl tollgate::Ticket> {
    bucket()
        .per_call()
        .and(bucket().per(TOKENS))
        .and(window().per_call())
        .and(Semaphore::new(64).per_call())
}

fn admit<'a, L: Limiter>(limiter: &'a L) -> Batch<'a> {
    Box::new(move |n| {
        for _ in 0..n {
            let ask = Ask::one().cost(TOKENS, black_box(ESTIMATE));
            assert!(limiter.try_admit(ask).is_ok());
        }
    })
}

pub(crate) fn rows(rows: &Rows) {
    without_breaker(rows);
    with_breaker(rows);
}

/// Admit, and finish with a success.
fn succeed<'a, L: Limiter>(limiter: &'a L) -> Batch<'a> {
    Box::new(move |n| {
        for _ in 0..n {
            let permit = limiter.try_admit(Ask::one());
            permit.expect("everything is admitted").finish(Outcome::Success);
        }
    })
}

/// The breaker is closed, and judges the last hundred calls.
fn with_breaker(rows: &Rows) {
    let breaker = || CircuitBreaker::builder().build().expect("a breaker");
    let alone = (breaker(), bucket(), window(), Semaphore::new(64));
    let sum_of_legs = |n| {
        for _ in 0..n {
            let call = alone.0.try_admit(Ask::one()).expect("it is closed");
            assert!(alone.1.try_acquire(1).is_ok());
            assert!(alone.2.try_acquire(1).is_ok());
            assert!(alone.3.try_acquire().is_ok());
            call.finish(Outcome::Success);
        }
    };
    let re = recloser::Recloser::custom().error_rate(0.5).closed_len(100).build();
    let theirs = (governor(FAST, FAST), governor(FAST, FAST));
    let permits = tokio::sync::Semaphore::new(64);
    let glue = |n| {
        for _ in 0..n {
            let call = re.call(|| {
                assert!(theirs.0.check().is_ok());
                assert!(theirs.1.check().is_ok());
                permits.try_acquire().map(drop)
            });
            assert!(call.is_ok());
        }
    };
    let clock = Clock::real();
    let reading = |n| {
        for _ in 0..n {
            black_box(clock.now());
        }
    };
    let legs = || breaker().and(bucket()).and(window()).and(Semaphore::new(64));
    let (together, policy) = (legs(), Policy::new(legs()));
    let built = Policy::builder()
        .limit(breaker())
        .limit(bucket())
        .limit(window())
        .limit(Semaphore::new(64))
        .build()
        .expect("a policy");
    let subjects: [(&str, Batch<'_>); 3] = [
        ("composite/breaker-static", succeed(&together)),
        ("composite/breaker-policy-static", succeed(&policy)),
        ("composite/breaker-policy-built", succeed(&built)),
    ];
    for (name, ours) in subjects {
        rows.wall(
            name,
            vec![
                ("tollgate", ours),
                ("legs-alone", Box::new(sum_of_legs)),
                ("governor+tokio+re", Box::new(glue)),
                ("one-clock-read", Box::new(reading)),
            ],
        );
    }
}

fn without_breaker(rows: &Rows) {
    let alone = (bucket(), bucket(), window(), Semaphore::new(64));
    let sum_of_legs = |n| {
        for _ in 0..n {
            assert!(alone.0.try_acquire(1).is_ok());
            assert!(alone.1.try_acquire(black_box(ESTIMATE)).is_ok());
            assert!(alone.2.try_acquire(1).is_ok());
            assert!(alone.3.try_acquire().is_ok());
        }
    };
    // Three legs alone read the clock each, the composite once: it may cost their sum less two readings.
    let clock = Clock::real();
    let fast = NonZeroU32::new(ESTIMATE as u32).expect("above zero");
    let theirs = (governor(FAST, FAST), governor(FAST, FAST), governor(FAST, FAST));
    let permits = tokio::sync::Semaphore::new(64);
    let glue = |n| {
        for _ in 0..n {
            assert!(theirs.0.check().is_ok());
            assert!(matches!(theirs.1.check_n(black_box(fast)), Ok(Ok(()))));
            assert!(theirs.2.check().is_ok());
            assert!(permits.try_acquire().is_ok());
        }
    };
    let readings = |n| {
        for _ in 0..n {
            black_box(clock.now());
            black_box(clock.now());
        }
    };

    let together = legs();
    let boxed = legs().boxed();
    let policy = Policy::new(legs());
    let built = Policy::builder()
        .limit(bucket())
        .limit(bucket().per(TOKENS))
        .limit(window())
        .limit(Semaphore::new(64))
        .build()
        .expect("a policy");
    let subjects: [(&str, Batch<'_>); 4] = [
        ("composite/static", admit(&together)),
        ("composite/boxed", admit(&boxed)),
        ("composite/policy-static", admit(&policy)),
        ("composite/policy-built", admit(&built)),
    ];
    for (name, ours) in subjects {
        rows.wall(
            name,
            vec![
                ("tollgate", ours),
                ("legs-alone", Box::new(sum_of_legs)),
                ("governor+tokio", Box::new(glue)),
                ("two-clock-reads", Box::new(readings)),
            ],
        );
    }
}
