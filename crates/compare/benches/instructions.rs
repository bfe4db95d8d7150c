//! Loops to count the instructions of: `ci/results` runs each under callgrind, which counts in the loop alone. Free of
//! noise, and so a second opinion on what `compare` says.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tollgate::{Ask, Cost, Limiter, LimiterExt, Policy, Quota, TokenBucket};

/// The operations of one loop.
const ROUNDS: u32 = 10_000;

const FAST: u32 = 1_000_000_000;
const TOKENS: Cost = Cost::new("tokens");

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("permits are free"),
    }
}

#[inline(never)]
fn try_tollgate(semaphore: &tollgate::Semaphore) {
    (0..ROUNDS).for_each(|_| drop(black_box(black_box(semaphore).try_acquire())));
}

#[inline(never)]
fn try_peer(semaphore: &tokio::sync::Semaphore) {
    (0..ROUNDS).for_each(|_| drop(black_box(black_box(semaphore).try_acquire())));
}

#[inline(never)]
fn await_tollgate(semaphore: &tollgate::Semaphore) {
    (0..ROUNDS).for_each(|_| drop(black_box(ready(black_box(semaphore).acquire()))));
}

#[inline(never)]
fn await_peer(semaphore: &tokio::sync::Semaphore) {
    (0..ROUNDS).for_each(|_| drop(black_box(ready(black_box(semaphore).acquire()))));
}

#[inline(never)]
fn bucket_tollgate(bucket: &TokenBucket) {
    (0..ROUNDS).for_each(|_| assert!(black_box(bucket).try_acquire(1).is_ok()));
}

#[inline(never)]
fn bucket_peer(bucket: &governor::DefaultDirectRateLimiter) {
    (0..ROUNDS).for_each(|_| assert!(black_box(bucket).check().is_ok()));
}

/// Two rates and a semaphore, and a permit that is held through a black box.
#[inline(never)]
fn policy_tollgate(policy: &impl Limiter) {
    for _ in 0..ROUNDS {
        let ask = Ask::one().cost(TOKENS, black_box(20));
        drop(black_box(black_box(policy).try_admit(ask).expect("a permit")));
    }
}

#[inline(never)]
fn policy_peer(
    requests: &governor::DefaultDirectRateLimiter,
    tokens: &governor::DefaultDirectRateLimiter,
    permits: &tokio::sync::Semaphore,
) {
    for _ in 0..ROUNDS {
        assert!(black_box(requests).check().is_ok());
        let cost = NonZeroU32::new(black_box(20)).expect("above zero");
        assert!(matches!(black_box(tokens).check_n(cost), Ok(Ok(()))));
        drop(black_box(black_box(permits).try_acquire().expect("a permit")));
    }
}

fn main() {
    let (ours, theirs) = (tollgate::Semaphore::new(4), tokio::sync::Semaphore::new(4));
    let bucket = || TokenBucket::new(Quota::per_second(u64::from(FAST)));
    let fast = NonZeroU32::new(FAST).expect("above zero");
    let governor = || governor::RateLimiter::direct(governor::Quota::per_second(fast));
    match std::env::args().nth(1).as_deref() {
        Some("try_tollgate") => try_tollgate(&ours),
        Some("try_peer") => try_peer(&theirs),
        Some("await_tollgate") => await_tollgate(&ours),
        Some("await_peer") => await_peer(&theirs),
        Some("bucket_tollgate") => bucket_tollgate(&bucket()),
        Some("bucket_peer") => bucket_peer(&governor()),
        Some("policy_tollgate") => {
            let policy = Policy::builder()
                .limit(bucket())
                .limit(bucket().per(TOKENS))
                .limit(ours);
            policy_tollgate(&policy.build().expect("a policy"));
        }
        Some("policy_peer") => policy_peer(&governor(), &governor(), &theirs),
        _ => println!("ci/results counts these loops"),
    }
}
