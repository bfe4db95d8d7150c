//! Rates whose capacity is leased: the same tests for every store of permits.

use crate::places::Place;
use crate::store::key;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate::Quota;
use tollgate::remote::{Backend, Key, Prefetch, Remote, RemoteBuilder, RemoteError};

macro_rules! leased {
    ($place:ty) => {
        $crate::places::tests! {
            leased, $place;
            processes_that_lease_a_rate_use_it_all_and_no_more
        }
    };
}
pub(crate) use leased;

macro_rules! unasked {
    ($place:ty) => {
        $crate::places::tests! {
            leased, $place;
            a_rate_is_leased_unasked
        }
    };
}
pub(crate) use unasked;

const RATE: u64 = 200;
const BURST: u64 = 200;
const TTL: Duration = Duration::from_secs(3);
/// The way of a sync, there and back, on a busy machine.
const LATE: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);

fn rate(key: &Key) -> RemoteBuilder {
    Remote::rate(key.clone(), Quota::per_second(RATE).burst(BURST))
        .ttl(TTL)
        .timeout(SECOND)
}

/// An admission of this many tokens was asked for, and seen.
type Admission = (Instant, Instant, u64);

/// Whatever falls between two instants for certain is within the burst and the refill of the time between them.
fn check(mut log: Vec<Admission>) {
    log.sort_by_key(|&(_, seen, _)| seen);
    for &(from, ..) in &log {
        let mut sum = 0;
        for &(_, seen, n) in log.iter().filter(|&&(asked, ..)| asked >= from) {
            sum += n;
            // By the clocks of the processes, which may be fast by 1 %.
            let most = BURST as f64 + RATE as f64 * 1.01 * (seen - from).as_secs_f64();
            assert!(sum as f64 <= most, "{sum} of {most} within {:?}", seen - from);
        }
    }
}

/// Takes all that it can, for this long: one by one without waiting, and five at once by a waiter.
async fn spend<B: Backend>(remote: Arc<Remote<B>>, span: Duration) -> Vec<Admission> {
    let end = Instant::now() + span;
    let tries = async {
        let mut log = Vec::new();
        while Instant::now() < end {
            let asked = Instant::now();
            match remote.try_acquire(1) {
                Ok(permit) => log.push((asked, Instant::now(), permit.units())),
                Err(_) => sleep(Duration::from_millis(2)).await,
            }
        }
        log
    };
    let waits = async {
        let mut log = Vec::new();
        loop {
            let asked = Instant::now();
            let left = end.saturating_duration_since(asked);
            match timeout(left, remote.acquire(5)).await {
                Ok(Ok(permit)) => log.push((asked, Instant::now(), permit.units())),
                Ok(Err(_)) => sleep(Duration::from_millis(2)).await,
                Err(_) => break log,
            }
        }
    };
    let (mut log, waited) = tokio::join!(tries, waits);
    log.extend(waited);
    log
}

/// The admissions of each, at the same time.
async fn spend_all<B: Backend>(remotes: &[Arc<Remote<B>>], span: Duration) -> Vec<Vec<Admission>> {
    let mut processes = JoinSet::new();
    for (which, remote) in remotes.iter().enumerate() {
        let spent = spend(Arc::clone(remote), span);
        processes.spawn(async move { (which, spent.await) });
    }
    let mut logs = processes.join_all().await;
    logs.sort_by_key(|&(which, _)| which);
    logs.into_iter().map(|(_, log)| log).collect()
}

fn tokens(log: &[Admission]) -> u64 {
    log.iter().map(|&(.., n)| n).sum()
}

/// Three processes share, one closes, and the two others have its part: all of it is on one log.
pub(crate) async fn processes_that_lease_a_rate_use_it_all_and_no_more<P: Place>() {
    let key = key();
    // Permits of the same name are another limit.
    let permits = Remote::permits(key.clone(), 1).ttl(TTL).spawn(P::store()).unwrap();
    let held = permits.acquire(1).await.unwrap();
    let leases = |_| Arc::new(rate(&key).capacity().spawn(P::store()).unwrap());
    let mut remotes: Vec<_> = (0..3).map(leases).collect();
    // They find each other at renewals. A server that was just started grants nothing for a time to live.
    let mut log = spend_all(&remotes, 2 * TTL).await.concat();
    let begun = Instant::now();
    let shared = spend_all(&remotes, 2 * TTL).await;
    let could = RATE as f64 * begun.elapsed().as_secs_f64();
    let each: Vec<_> = shared.iter().map(|log| tokens(log)).collect();
    let all = each.iter().sum::<u64>() as f64;
    assert!(all >= 0.8 * could, "{each:?} of {could}");
    assert!(each.iter().all(|&one| one as f64 >= all / 6.0), "{each:?} of {could}");
    log.extend(shared.concat());

    let closed = remotes.pop().expect("three");
    closed.close().await;
    let begun = Instant::now();
    // The part of a process, in tokens of the burst.
    let lacks = |remotes: &[Arc<Remote<P::Store>>]| {
        let held: u64 = remotes.iter().map(|remote| remote.stats().held).sum();
        held < BURST * 95 / 100
    };
    while lacks(&remotes) {
        log.extend(spend_all(&remotes, SECOND / 10).await.concat());
        let renewal = TTL / 3;
        assert!(begun.elapsed() < TTL + renewal + LATE, "{:?}", remotes[0].stats());
    }
    let begun = Instant::now();
    let left = spend_all(&remotes, TTL).await.concat();
    let could = RATE as f64 * begun.elapsed().as_secs_f64();
    assert!(tokens(&left) as f64 >= 0.8 * could, "{} of {could}", tokens(&left));
    log.extend(left);
    check(log);

    assert!(!held.is_lost());
    drop(held);
    permits.close().await;
    for remote in remotes {
        remote.close().await;
    }
    while P::keys(&key).await > 0 {
        sleep(Duration::from_millis(2)).await;
    }
}

/// It is one limit with a rate that is leased as it asks for. Prefetched tokens and windows need a clock.
pub(crate) async fn a_rate_is_leased_unasked<P: Place>() {
    let key = key();
    let unasked = rate(&key).spawn(P::store()).unwrap();
    drop(unasked.acquire(1).await.unwrap());
    assert_eq!(unasked.stats().held, BURST);
    let asked = rate(&key).capacity().spawn(P::store()).unwrap();
    drop(
        timeout(2 * TTL, asked.acquire(BURST / 10))
            .await
            .expect("its part")
            .unwrap(),
    );
    assert!(asked.stats().held <= BURST / 2 + 1 && unasked.stats().held <= BURST / 2 + 1);
    for builder in [
        rate(&key).prefetch(Prefetch::up_to(5)),
        Remote::window(key.clone(), 5, SECOND).ttl(TTL),
    ] {
        let built = builder.spawn(P::store());
        assert!(matches!(built, Err(RemoteError::Unsupported { .. })), "{built:?}");
    }
}
