//! Quotas and limits that are changed while they are used: the same for every store. Nothing comes back within a test.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{Acquire, Backend, Key, Remote, RemoteBuilder, RemoteError, Rule};
use tollgate::{Quota, Reason};

const HOUR: Duration = Duration::from_secs(3_600);

/// How many there are to be had at once, taken one by one.
async fn rest<B: Backend>(remote: &Remote<B>) -> u64 {
    let mut all = 0;
    while let Ok(taken) = remote.acquire_now(1).await {
        drop(taken);
        all += 1;
    }
    all
}

fn quota(burst: u64) -> Quota {
    Quota::per_hour(1).burst(burst)
}

/// What was taken stays taken; who was set up otherwise goes by it with its next request; a setting does not undo it.
pub(crate) async fn a_quota_is_changed_for_every_process<B: Backend>(
    key: &Key,
    make: impl Fn(RemoteBuilder) -> Remote<B>,
) {
    let rate = || make(Remote::rate(key.clone(), quota(10)));
    let (one, other) = (rate(), rate());
    drop(other.acquire(4).await.unwrap());
    one.set_quota(quota(15)).await.unwrap();
    assert_eq!(one.stats().limit, 15);
    assert_eq!(rest(&other).await, 11);
    assert_eq!(other.rule(), Rule::Rate { quota: quota(15) });
    // Set up after the change, with what it was before.
    let late = rate();
    late.set_quota(quota(20)).await.unwrap();
    assert_eq!(rest(&late).await, 5);
    // Below what was taken: nothing, until enough has come back.
    other.set_quota(quota(3)).await.unwrap();
    for remote in [&one, &other, &late] {
        assert_eq!(rest(remote).await, 0);
        assert_eq!(remote.acquire_now(4).await.unwrap_err().reason(), Reason::Oversized);
    }
    assert_eq!(late.rule(), Rule::Rate { quota: quota(3) });
    for remote in [one, other, late] {
        remote.close().await;
    }
}

/// Another speed counts from the change on: who waits is not held to what was known before.
pub(crate) async fn a_faster_rate_serves_the_waiters_too<B: Backend>(
    key: &Key,
    make: impl Fn(RemoteBuilder) -> Remote<B>,
) {
    let rate = make(Remote::rate(key.clone(), quota(1)));
    drop(rate.acquire(1).await.unwrap());
    assert!(rate.acquire_now(1).await.is_err());
    rate.set_quota(Quota::per_second(1_000_000).burst(1)).await.unwrap();
    drop(rate.acquire(1).await.unwrap());
    rate.close().await;
}

pub(crate) async fn a_window_is_changed_for_every_process<B: Backend>(
    key: &Key,
    make: impl Fn(RemoteBuilder) -> Remote<B>,
) {
    let window = || make(Remote::window(key.clone(), 6, HOUR));
    let (one, other) = (window(), window());
    drop(one.acquire(4).await.unwrap());
    other.set_limit(9).await.unwrap();
    assert_eq!(rest(&one).await, 5);
    assert_eq!(one.rule(), Rule::Window { limit: 9, length: HOUR });
    one.set_limit(2).await.unwrap();
    let late = window();
    assert_eq!(rest(&late).await, 0);
    assert_eq!(late.stats().limit, 2);
    for remote in [one, other, late] {
        remote.close().await;
    }
}

pub(crate) async fn an_impossible_change_is_an_error<B: Backend>(key: &Key, make: impl Fn(RemoteBuilder) -> Remote<B>) {
    let rate = make(Remote::rate(key.clone(), quota(10)));
    let refused = rate.set_limit(1).await.unwrap_err();
    assert!(matches!(
        refused,
        RemoteError::Rule {
            given: "limit",
            of: "rate"
        }
    ));
    let refused = rate.set_quota(Quota::unlimited()).await.unwrap_err();
    assert!(matches!(refused, RemoteError::Quota { .. }));
    rate.close().await;
    let permits = make(Remote::permits(key.clone(), 2));
    let refused = permits.set_quota(quota(1)).await.unwrap_err();
    assert!(matches!(refused, RemoteError::Rule { given: "quota", .. }));
    let refused = permits.set_limit(1 << 41).await.unwrap_err();
    assert_eq!(refused, RemoteError::Limit { given: 1 << 41 });
    permits.close().await;
}

/// Begins to wait for units of `remote`, and returns when the store has `waiters`.
async fn waits<B: Backend>(mut wait: Pin<&mut Acquire<'_, B>>, remote: &Remote<B>, waiters: u64) {
    poll_fn(|cx| {
        assert!(wait.as_mut().poll(cx).is_pending());
        if remote.stats().waiting >= waiters {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The head of the queue is refused, and the next waiter is served: long before any lease is renewed.
pub(crate) async fn an_impossible_head_is_refused_when_the_limit_is_lowered<B: Backend>(
    key: &Key,
    make: impl Fn(RemoteBuilder) -> Remote<B>,
) {
    let permits = || make(Remote::permits(key.clone(), 4));
    let (holds, large, small) = (permits(), permits(), permits());
    let held = holds.acquire(2).await.unwrap();
    let mut four = pin!(large.acquire(4));
    waits(four.as_mut(), &large, 1).await;
    let mut one = pin!(small.acquire(1));
    waits(one.as_mut(), &small, 2).await;
    assert!(!small.stats().differs);
    holds.set_limit(3).await.unwrap();
    assert_eq!(four.await.map(drop).unwrap_err().reason(), Reason::Oversized);
    let one = one.await.unwrap();
    assert!(!held.is_lost() && !one.is_lost());
    // One that was set up with another limit is told.
    let late = permits();
    assert!(late.acquire_now(1).await.is_err());
    assert!(small.stats().differs && late.stats().differs && late.rule() == Rule::Permits { limit: 3 });
    drop((held, one));
    for remote in [&holds, &large, &small, &late] {
        remote.close().await;
    }
}

/// A waiter with a place in the queue, which needs more than the lowered limit.
pub(crate) async fn an_impossible_waiter_holds_up_no_other_in_a_lowered_window<B: Backend>(
    key: &Key,
    make: impl Fn(RemoteBuilder) -> Remote<B>,
) {
    let window = || make(Remote::window(key.clone(), 4, HOUR));
    let (one, large) = (window(), window());
    drop(one.acquire(2).await.unwrap());
    let mut four = pin!(large.acquire(4));
    waits(four.as_mut(), &large, 1).await;
    assert!(one.acquire_now(1).await.is_err());
    one.set_limit(3).await.unwrap();
    drop(one.acquire_now(1).await.expect("it is free"));
}

/// Processes that were set up differently are told, each with its next request.
pub(crate) async fn rules_that_differ_are_reported<B: Backend>(key: &Key, make: impl Fn(RemoteBuilder) -> Remote<B>) {
    let rate = |burst| make(Remote::rate(key.clone(), quota(burst)));
    let window = |limit| make(Remote::window(key.clone(), limit, HOUR));
    for [one, same, other] in [[rate(8), rate(8), rate(9)], [window(8), window(8), window(9)]] {
        for remote in [&one, &same, &one] {
            drop(remote.acquire_now(1).await.unwrap());
            assert!(!remote.stats().differs);
        }
        for remote in [&other, &same] {
            drop(remote.acquire_now(1).await.unwrap());
            assert!(remote.stats().differs);
        }
        for remote in [one, same, other] {
            remote.close().await;
        }
    }
}
