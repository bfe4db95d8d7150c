//! Four legs in one admission (two buckets, a window, a semaphore) beside the same legs used one after the other, and
//! beside glue of governor and tokio, which leaks what the earlier legs took when a later one refuses.

use crate::harness::{Batch, Rows};
use crate::rate::{FAST, governor};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;
use tollgate::{Ask, Clock, Cost, Limiter, LimiterExt, Policy, Quota, Semaphore, SlidingWindow, TokenBucket};

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
