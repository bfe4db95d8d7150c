//! Ten clients and three permits, in a store of your choice: a log of their turns, never more than three at a time.
//!
//! ```sh
//! cargo run -p tollgate-examples --example ten_clients        # over a store in memory
//! cargo run -p tollgate-examples --example ten_clients --features redis -- --backend redis --address redis://127.0.0.1:6379/
//! cargo run -p tollgate-examples --example ten_clients --features consul -- --backend consul-holders --address http://127.0.0.1:8500
//! cargo run -p tollgate-examples --example ten_clients --features consul -- --backend consul-slots --address http://127.0.0.1:8500
//! cargo run -p tollgate-examples --example ten_clients --features zookeeper -- --backend zookeeper --address 127.0.0.1:2181
//! cargo run -p tollgate-examples --example ten_clients --features etcd -- --backend etcd --address http://127.0.0.1:2379
//! ```
//!
//! Each client has a connection, a limiter and a session of its own, as if it were another machine. One of them dies with its
//! permit: the others get it when its session has expired.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::Clock;
use tollgate::remote::{Backend, Key, Memory, Remote};

const CLIENTS: u64 = 10;
const PERMITS: u64 = 3;
const ROUNDS: u64 = 3;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ten_clients: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let (mut backend, mut address, mut ttl) = ("memory".to_owned(), String::new(), Duration::from_secs(10));
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match &*word {
            "--backend" => backend = value,
            "--address" => address = value,
            "--ttl" => ttl = Duration::from_secs(value.parse().map_err(|_| format!("--ttl {value} is no number"))?),
            _ => {
                return Err(
                    format!("{word} is unknown; there are --backend NAME, --address ADDRESS, --ttl SECONDS").into(),
                );
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match &*backend {
            "memory" => {
                let store = Arc::new(Memory::new(&Clock::real()));
                show(ttl, || Ok(Arc::clone(&store))).await
            }
            #[cfg(feature = "redis")]
            "redis" => show(ttl, || Ok(tollgate_stores::Redis::options(&*address).connect()?)).await,
            #[cfg(feature = "consul")]
            "consul-holders" => show(ttl, || Ok(tollgate_stores::Consul::options(&*address).connect()?)).await,
            #[cfg(feature = "consul")]
            "consul-slots" => {
                show(ttl, || {
                    Ok(tollgate_stores::Consul::options(&*address).connect()?.slots())
                })
                .await
            }
            #[cfg(feature = "zookeeper")]
            "zookeeper" => show(ttl, || Ok(tollgate_stores::Zookeeper::options(&*address).connect()?)).await,
            #[cfg(feature = "etcd")]
            "etcd" => show(ttl, || Ok(tollgate_stores::Etcd::options(&*address).connect()?)).await,
            _ => Err(format!("the backend {backend} is unknown, or its feature is not compiled in").into()),
        }
    })
}

/// What all clients have seen.
#[derive(Default)]
struct Seen {
    working: AtomicU64,
    most: AtomicU64,
    served: AtomicU64,
}

/// Lets the clients work, each with a store of its own from `connect`.
async fn show<B: Backend>(ttl: Duration, connect: impl Fn() -> Result<B, Failure>) -> Result<(), Failure> {
    let key = Key::new(format!("ten-clients-{}", std::process::id()))?;
    let (seen, begun) = (Arc::new(Seen::default()), Instant::now());
    let limiter = || -> Result<Remote<B>, Failure> {
        let limiter = Remote::permits(key.clone(), PERMITS).ttl(ttl);
        Ok(limiter.spawn(connect()?)?)
    };

    // One client takes a permit and is never heard of again.
    let (dies, driver) = Remote::permits(key.clone(), PERMITS).ttl(ttl).build(connect()?)?;
    let driver = tokio::spawn(driver);
    let lost = dies.acquire(1).await.map_err(|refused| refused.to_string())?;
    driver.abort();
    println!("client  0 has a permit, and dies: {} are left", PERMITS - 1);

    let mut clients = tokio::task::JoinSet::new();
    for client in 1..CLIENTS {
        let (limiter, seen) = (limiter()?, Arc::clone(&seen));
        clients.spawn(async move {
            for _ in 0..ROUNDS {
                let permit = limiter.acquire(1).await.map_err(|refused| refused.to_string())?;
                // SeqCst: it is counted before another client can begin, and cost does not matter here.
                let working = seen.working.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most.fetch_max(working, Ordering::SeqCst);
                println!(
                    "{:6} ms: client {client:2} works, with token {:?}; {working} at work",
                    begun.elapsed().as_millis(),
                    permit.fence().map(|fence| fence.token)
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
                seen.working.fetch_sub(1, Ordering::SeqCst);
                seen.served.fetch_add(1, Ordering::SeqCst);
                drop(permit);
            }
            limiter.close().await;
            Ok::<_, String>(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    drop(lost);
    let (most, served) = (seen.most.load(Ordering::SeqCst), seen.served.load(Ordering::SeqCst));
    println!(
        "{served} times in {:?}; at most {most} at work at a time",
        begun.elapsed()
    );
    let expected = (CLIENTS - 1) * ROUNDS;
    if most > PERMITS || served != expected {
        return Err(format!("{most} at a time of {PERMITS}, and {served} times of {expected}").into());
    }
    Ok(())
}
