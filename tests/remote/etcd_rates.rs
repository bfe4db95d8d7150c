//! Rates in etcd: what only etcd does.

use crate::etcd_steps::{count, store};
use crate::speaker::{SHORT, Speaker};
use crate::store::key;
use std::time::Duration;
use tokio::time::sleep;
use tollgate::Quota;
use tollgate::remote::Rule;

/// Nobody is left who would take it away: its lease ends.
#[tokio::test]
async fn what_all_have_left_goes_by_itself() {
    let key = key();
    let theirs = key.clone();
    let dies = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let store = store();
            let quota = Quota::per_second(100).burst(10);
            let mut one = Speaker::new(&store, &theirs, Rule::Rate { quota }, SHORT);
            assert_eq!(one.wish(10, false).await.grants.len(), 1);
            assert_eq!(count(&theirs).await, 1);
        });
    });
    let died = tokio::task::spawn_blocking(|| dies.join()).await;
    died.expect("it ends").expect("it was granted");
    while count(&key).await > 0 {
        sleep(Duration::from_millis(10)).await;
    }
}
