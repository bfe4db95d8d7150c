//! Rates in etcd: what only etcd does.

use crate::etcd_steps::{count, store, under};
use crate::speaker::{SHORT, Speaker};
use crate::store::key;
use std::time::Duration;
use tokio::time::sleep;
use tollgate::Quota;
use tollgate::remote::Rule;

/// No process is left to remove it: its lease ends.
#[tokio::test]
async fn abandoned_state_expires_by_itself() {
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

/// The clock by which what lies there is dated: a lease, and the term in which it was said.
async fn clock(key: &tollgate::remote::Key) -> Option<(u64, u64)> {
    use base64::Engine as _;
    let found = under(key).await;
    let value = found["kvs"][0]["value"].as_str()?;
    let value = base64::engine::general_purpose::STANDARD.decode(value).ok()?;
    let note: serde_json::Value = serde_json::from_slice(&value).ok()?;
    let clock = &note["dated"]["clock"];
    Some((clock[0].as_u64()?, clock[1].as_u64()?))
}

/// None of the processes lives as long as the lease whose remainder they use as a clock, and none renews it.
#[tokio::test]
async fn time_goes_on_when_the_lease_ends_that_tells_it() {
    let (key, quota) = (key(), Quota::per_second(10).burst(20));
    let (mut clocks, mut given) = (Vec::new(), 0);
    // These are more than there were at first: they came by the second clock, or the third.
    let mut enough = u64::MAX;
    while given < enough {
        let store = store();
        let mut one = Speaker::new(&store, &key, Rule::Rate { quota }, 5 * SHORT);
        let reply = one.wish_if_not_busy(2).await;
        given += one.see(&reply);
        if let Some(clock) = clock(&key).await
            && clocks.last() != Some(&clock)
        {
            clocks.push(clock);
            if clocks.len() == 3 {
                enough = given + 40;
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}
