//! A service's three legs in one admission beside glue of governor and tokio; four legs in one admission (two buckets, a window, a semaphore; and a breaker, a bucket, a window, a semaphore) beside
//! the same legs used one after the other, and beside glue of governor, tokio and recloser, which leaks what the earlier
//! legs took when a later one refuses.

use crate::harness::{Batch, Rows};
use crate::rate::{FAST, governor};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{Ask, Clock, Cost, Limiter, LimiterExt, Outcome, Policy, Quota, Semaphore};
use tollgate::{SlidingWindow, TokenBucket};
use tollgate_config::{LegKind, LegSpec, PolicySpec};
use tollgate_resilience::CircuitBreaker;

const TOKENS: Cost = Cost::new("tokens");
const ESTIMATE: u64 = 20;

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_second(u64::from(FAST)))
}

fn window() -> SlidingWindow {
    SlidingWindow::new(u64::MAX / 2, Duration::from_secs(1)).expect("a window")
}

fn legs() -> impl Limiter<Ticket = impl tollgate::Ticket> {
    (
        bucket().named("calls"),
        bucket().per(TOKENS),
        window().named("window"),
        Semaphore::new(64).named("slots"),
    )
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
    service(rows);
    without_breaker(rows);
    with_breaker(rows);
}

/// Requests and tokens per time, and calls in flight: what services limit. Costs are data, and the permit is held through a black
/// box.
fn service(rows: &Rows) {
    let built = || {
        Policy::builder()
            .limit(bucket().named("requests"))
            .limit(bucket().per(TOKENS).named("tokens"))
            .limit(Semaphore::new(64).named("in flight"))
    };
    let quota = Quota::per_second(u64::from(FAST));
    let file = PolicySpec::new([
        LegSpec::new("requests", LegKind::TokenBucket { quota }),
        LegSpec {
            per: Some("tokens".into()),
            ..LegSpec::new("tokens", LegKind::TokenBucket { quota })
        },
        LegSpec::new("in flight", LegKind::Semaphore { limit: 64 }),
    ]);
    let long = built()
        .limit(CircuitBreaker::builder().build().expect("a breaker"))
        .limit(window());
    let (built, boxed) = (
        built().build().expect("a policy"),
        built().boxed().build().expect("a policy"),
    );
    let file = file.build(&Clock::real()).expect("a policy");
    let long = long.build().expect("a policy");

    let theirs = (governor(FAST, FAST), governor(FAST, FAST));
    let permits = tokio::sync::Semaphore::new(64);
    let cost = || NonZeroU32::new(black_box(ESTIMATE as u32)).expect("above zero");
    let glue = |n| {
        for _ in 0..n {
            assert!(theirs.0.check().is_ok());
            assert!(matches!(theirs.1.check_n(cost()), Ok(Ok(()))));
            drop(black_box(permits.try_acquire().expect("a permit")));
        }
    };
    let glue_await = |n| {
        for _ in 0..n {
            ready(async {
                theirs.0.until_ready().await;
                assert!(theirs.1.until_n_ready(cost()).await.is_ok());
                drop(black_box(permits.acquire().await.expect("a permit")));
            });
        }
    };
    let re = recloser::Recloser::custom().error_rate(0.5).closed_len(100).build();
    let third = governor(FAST, FAST);
    let glue_long = |n| {
        for _ in 0..n {
            let call = re.call(|| {
                assert!(theirs.0.check().is_ok());
                assert!(matches!(theirs.1.check_n(cost()), Ok(Ok(()))));
                assert!(third.check().is_ok());
                permits.try_acquire().map(|permit| drop(black_box(permit)))
            });
            assert!(call.is_ok());
        }
    };
    let awaited = |n| {
        for _ in 0..n {
            let ask = Ask::one().cost(TOKENS, black_box(ESTIMATE));
            drop(black_box(ready(built.admit(ask)).expect("everything is admitted")));
        }
    };
    let subjects: [(&str, Batch<'_>, Batch<'_>); 5] = [
        ("service/built", hold(&built), Box::new(glue)),
        ("service/boxed", hold(&boxed), Box::new(glue)),
        ("service/file", hold(&file), Box::new(glue)),
        ("service/built-await", Box::new(awaited), Box::new(glue_await)),
        ("service/built-breaker-window", hold(&long), Box::new(glue_long)),
    ];
    for (name, ours, glue) in subjects {
        rows.wall(name, vec![("tollgate", ours), ("glue", glue)]);
    }
    refusals(rows);
}

/// Refusals by the first leg of three, and by the last, after which the others are rolled back.
fn refusals(rows: &Rows) {
    let empty = || {
        let bucket = TokenBucket::new(Quota::per_hour(1));
        assert!(bucket.try_acquire(1).is_ok());
        bucket
    };
    let first = Policy::builder()
        .limit(empty())
        .limit(bucket())
        .limit(Semaphore::new(64));
    let last = Policy::builder()
        .limit(bucket())
        .limit(bucket())
        .limit(Semaphore::new(0));
    let (first, last) = (first.build().expect("a policy"), last.build().expect("a policy"));
    let admits = Policy::builder()
        .limit(bucket())
        .limit(bucket())
        .limit(Semaphore::new(64));
    let admits = admits.build().expect("a policy");
    let hour = governor::Quota::with_period(Duration::from_secs(3_600)).expect("above zero");
    let theirs = governor::RateLimiter::direct(hour);
    assert!(theirs.check().is_ok());
    // Both sides say how long to wait.
    let clock = theirs.clock().clone();
    let refused_by_theirs = |n| {
        for _ in 0..n {
            let refused = theirs.check().expect_err("the hour has begun");
            black_box(refused.wait_time_from(governor::clock::Clock::now(&clock)));
        }
    };
    rows.wall(
        "service/refused-by-first",
        vec![("tollgate", refuse(&first)), ("governor", Box::new(refused_by_theirs))],
    );
    rows.wall(
        "service/refused-by-last",
        vec![("tollgate", refuse(&last)), ("admission", hold(&admits))],
    );
}

fn hold<'a, L: Limiter>(limiter: &'a L) -> Batch<'a> {
    Box::new(move |n| {
        for _ in 0..n {
            let ask = Ask::one().cost(TOKENS, black_box(ESTIMATE));
            drop(black_box(limiter.try_admit(ask).expect("everything is admitted")));
        }
    })
}

fn refuse<'a, L: Limiter>(limiter: &'a L) -> Batch<'a> {
    Box::new(move |n| {
        for _ in 0..n {
            let ask = Ask::one().cost(TOKENS, black_box(ESTIMATE));
            assert!(black_box(limiter.try_admit(ask)).is_err());
        }
    })
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("everything is admitted"),
    }
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
    let legs = || (breaker(), bucket(), window(), Semaphore::new(64));
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
