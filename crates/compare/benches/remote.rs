//! What blocks save: permits and tokens of one Redis, one call for each against blocks that are spent here, 64 callers, in one
//! run. Fails below a hundred times.
//!
//! `ci/with-redis cargo bench -p tollgate-compare --bench remote`

use std::sync::Arc;
use std::time::{Duration, Instant};
use tollgate::Quota;
use tollgate::remote::{Key, Prefetch, Remote, RemoteBuilder};
use tollgate_stores::Redis;

const CALLERS: usize = 64;
const SPAN: Duration = Duration::from_secs(2);

/// Admissions a second; `each` by a call of its own: what waits for a rate would share one.
async fn measure(builder: RemoteBuilder, each: bool, redis: &Redis) -> f64 {
    let remote = Arc::new(builder.spawn(redis.clone()).expect("settings that can be"));
    drop(remote.acquire(1).await.expect("the store is there"));
    let start = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let remote = Arc::clone(&remote);
        callers.spawn(async move {
            let mut admitted = 0_u64;
            while start.elapsed() < SPAN {
                for _ in 0..32 {
                    let acquired = if each {
                        remote.acquire_now(1).await
                    } else {
                        remote.acquire(1).await
                    };
                    drop(acquired.expect("there is enough"));
                    admitted += 1;
                }
                tokio::task::yield_now().await;
            }
            admitted
        });
    }
    let admitted: u64 = callers.join_all().await.into_iter().sum();
    let rate = admitted as f64 / start.elapsed().as_secs_f64();
    remote.close().await;
    rate
}

fn main() {
    let address = std::env::var("TOLLGATE_REDIS").expect("ci/with-redis starts a server and says where it is");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let mut enough = true;
    runtime.expect("threads").block_on(async {
        let redis = Redis::options(address).connect().expect("an address");
        let quota = Quota::per_second(1_000_000_000).burst(100_000_000);
        let name = |name: &str| Key::new(name).expect("a name");
        let permits = |key| Remote::permits(name(key), 1_000).ttl(Duration::from_secs(3));
        let tokens = |key| Remote::rate(name(key), quota);
        let rows = [
            (
                "permits",
                permits("one"),
                permits("many").prefetch(Prefetch::up_to(500)),
            ),
            (
                "tokens",
                tokens("one-by-one"),
                tokens("by-the-block").prefetch(Prefetch::up_to(10_000_000)),
            ),
        ];
        for (what, one, many) in rows {
            let (one, many) = (measure(one, true, &redis).await, measure(many, false, &redis).await);
            println!(
                "{what}: {one:.0}/s one by one, {many:.0}/s in blocks, {:.0} times",
                many / one
            );
            enough &= many >= 100.0 * one;
        }
    });
    if !enough {
        println!("less than a hundred times");
        std::process::exit(1);
    }
}
