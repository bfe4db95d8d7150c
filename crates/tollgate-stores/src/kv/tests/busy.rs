//! Busy and silent stores.

use super::*;
use tollgate::ManualClock;
use tollgate::remote::{Backend, OnUnavailable, Remote, RemoteStats};

impl Backend for Ledger<Fake> {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        Ledger::sync(self, key, rule, sync).await
    }

    async fn notified(&self, _: &Key, _: Session) {
        std::future::pending::<()>().await;
    }

    fn leave(&self, key: &Key, session: Session) {
        Ledger::leave(self, key, session);
    }
}

/// Two limiters of one process, which admit while the store is unavailable, are asked for ten seconds.
async fn ask(store: &Fake) -> [RemoteStats; 2] {
    let (clock, ledger) = (ManualClock::new(), Ledger::new(store.clone()));
    let limiter = || {
        let rate = Remote::rate(key(), Quota::per_second(10).burst(10)).ttl(Duration::from_secs(3));
        let rate = rate.clock(&clock).on_unavailable(OnUnavailable::Admit);
        Arc::new(rate.spawn(ledger.clone()).expect("there is a runtime"))
    };
    let limiters = [limiter(), limiter()];
    let time = Duration::from_millis(10);
    let asking = limiters.clone().map(|limiter| {
        tokio::spawn(async move {
            loop {
                drop(limiter.acquire(1).await);
                sleep(time).await;
            }
        })
    });
    for _ in 0..1_000 {
        clock.advance(time);
        sleep(time).await;
    }
    asking.iter().for_each(|asking| asking.abort());
    limiters.map(|limiter| limiter.stats())
}

/// An overtaken sync proves that the store is there: no admission goes uncounted.
#[tokio::test(start_paused = true)]
async fn a_busy_store_is_not_unavailable() {
    let store = Fake::default();
    store.0.is_busy.store(true, Ordering::SeqCst);
    for stats in ask(&store).await {
        assert_eq!(
            (stats.admitted, stats.admitted_unavailable, stats.unavailable),
            (0, 0, false),
            "{stats:?}"
        );
        assert!(matches!(stats.last_error, Some(StoreError::Busy { .. })), "{stats:?}");
        assert!(stats.failures > 5, "{stats:?}");
    }
}

/// Nor does waiting for another sync count as an answer of the store.
#[tokio::test(start_paused = true)]
async fn a_silent_store_is_unavailable_for_all_callers_in_turn() {
    let store = Fake::default();
    store.0.is_silent.store(true, Ordering::SeqCst);
    for stats in ask(&store).await {
        assert!(stats.unavailable && stats.admitted_unavailable > 100, "{stats:?}");
    }
}

/// In the end each of them succeeds, and later ones do not pause for earlier failures.
#[tokio::test(start_paused = true)]
async fn an_overtaken_sync_ends_and_the_next_one_goes_on() {
    let store = Fake::default();
    let mut one = Client::new(&Ledger::new(store.clone()), 1);
    store.0.is_busy.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let busy = one.take(1).await;
    assert!(matches!(busy, Err(StoreError::Busy { .. })), "{busy:?}");
    assert!(
        (500..600).contains(&begun.elapsed().as_millis()),
        "{:?}",
        begun.elapsed()
    );
    store.0.is_busy.store(false, Ordering::SeqCst);
    assert_eq!(one.take(1).await, Ok(1));
}

/// A newcomer takes a full bucket for empty: a grant for later that it gives up is there again by then.
#[tokio::test(start_paused = true)]
async fn tokens_given_up_late_do_not_add_to_a_full_bucket() {
    let (clock, store) = (ManualClock::new(), Fake::default());
    let process = || {
        let rate = Remote::rate(key(), Quota::per_second(200).burst(20)).clock(&clock);
        rate.spawn(Ledger::new(store.clone())).expect("there is a runtime")
    };
    let pass = async |millis| {
        for _ in 0..millis {
            clock.advance(Duration::from_millis(1));
            sleep(Duration::from_millis(1)).await;
        }
    };
    let old = process();
    drop(old.acquire(20).await.unwrap());
    pass(200).await;
    drop(old.acquire(20).await.unwrap());
    pass(100).await;
    let new = process();
    let mut waits = Box::pin(new.acquire(10));
    assert!(futures::poll!(waits.as_mut()).is_pending());
    pass(1).await;
    std::mem::forget(old.acquire_now(1).await);
    pass(60).await;
    drop(waits);
    let mut together = 0;
    for limiter in [&new, &old] {
        while let Ok(permit) = limiter.acquire_now(1).await {
            permit.forget();
            together += 1;
        }
    }
    assert!((19..=22).contains(&together), "{together}");
}
