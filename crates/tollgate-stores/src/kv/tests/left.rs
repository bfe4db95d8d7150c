//! Values that their writers cannot delete.

use super::*;
use tollgate::remote::Remote;

/// As when its runtime ends, or its task is aborted.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_dropped_leaves_nothing_here() {
    let store = Fake::default();
    let ledger = Ledger::new(store.clone());
    let rate = Remote::rate(key(), Quota::per_second(10).burst(10)).ttl(TTL);
    let (remote, driver) = rate.build(ledger.clone()).expect("settings that can be");
    let driver = tokio::spawn(driver);
    drop(remote.acquire(5).await.unwrap());
    assert_eq!((store.len(), cache(&ledger)), (1, 1));
    driver.abort();
    assert!(driver.await.is_err_and(|error| error.is_cancelled()));
    sleep(2 * TTL).await;
    assert_eq!((store.len(), cache(&ledger)), (0, 0));
}

/// Something lies beside it.
#[tokio::test(start_paused = true)]
async fn a_failing_deletion_is_retried_with_pauses() {
    let store = Fake::default();
    let ledger = Ledger::new(store.clone());
    let mut one = Client::new(&ledger, 1);
    assert_eq!(one.take(10).await, Ok(10));
    one.end().await;
    store.0.is_stuck.store(true, Ordering::SeqCst);
    sleep(Duration::from_secs(600)).await;
    let deletes = store.0.deletes.load(Ordering::SeqCst);
    assert!((5..100).contains(&deletes), "{deletes}");
    assert_eq!((store.len(), cache(&ledger)), (1, 0));
}
