//! What blocks save: permits and tokens of one store, one call for each against blocks that are spent here, 64 callers, in one
//! run. In Redis, and in PostgreSQL with synchronous and with asynchronous commits; fails below a hundred times in Redis.
//!
//! And what keys cost: admissions by four legs, with their ends, of one key and of each of 10,000, beside the same scripts sent by a client
//! that keeps no state, in turns of one run.
//!
//! And one permit and its end, one caller, beside the two commands by which a lock in Redis is usually taken and given back, as rslock does.
//!
//! And leased capacity that does not bind, beside a local bucket, on one thread in turns: fails below half of its speed.
//!
//! `ci/with-stores redis postgres -- cargo bench -p tollgate-compare --bench remote`, and with `-- capacity` the last of these alone,
//! without servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::remote::{Backend, Key, KeyedLimits, Memory, Prefetch, Remote, RemoteBuilder, RemoteLeg};
use tollgate::{Ask, Clock, Cost, Quota, TokenBucket};
use tollgate_stores::{Postgres, Redis};

const CALLERS: usize = 64;
const SPAN: Duration = Duration::from_secs(2);

/// Admissions a second; `each` by a call of its own: what waits for a rate would share one.
async fn measure<B: Backend + Clone>(builder: RemoteBuilder, each: bool, store: &B) -> f64 {
    let remote = Arc::new(builder.spawn(store.clone()).expect("settings that can be"));
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

/// The script of a step at a key, as the store sends it.
const LEGS: &str = include_str!("../../tollgate-stores/src/redis/legs.lua");

/// The time to live of permits of a key, and the longest that a server that was just started waits for.
const TTL: Duration = Duration::from_secs(1);

/// Four legs that refuse nothing.
fn tenant() -> KeyedLimits {
    let big = Quota::per_second(100_000_000).burst(1_000_000);
    let legs = [
        RemoteLeg::rate("requests", big),
        RemoteLeg::window("requests a day", 1_000_000, Duration::from_secs(86_400)),
        RemoteLeg::rate("tokens", big).per(Cost::new("tokens")),
        RemoteLeg::permits("in flight", 1_000_000),
    ];
    KeyedLimits::new(100_000, "all", legs)
}

/// Calls a second of `callers` that call one after the other.
async fn at_once<F>(callers: usize, keys: u64, call: impl Fn(u64, u64) -> F + Clone + Send + 'static) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers as u64 {
        let call = call.clone();
        tasks.spawn(async move {
            let mut calls = 0;
            while start.elapsed() < SPAN {
                call(caller, (caller * 7_919 + calls * 104_729) % keys).await;
                calls += 1;
            }
            calls
        });
    }
    let calls: u64 = tasks.join_all().await.into_iter().sum();
    calls as f64 / start.elapsed().as_secs_f64()
}

/// Admissions of keys with their ends, and the bare scripts.
async fn keyed(address: &str, redis: &Redis) {
    let tenants = Remote::keyed(Key::new("tenants").expect("a name"), tenant()).ttl(TTL);
    let tenants = tenants.spawn(redis.clone()).expect("settings that can be");
    let ask = Ask::one().cost(Cost::new("tokens"), 70);
    let ours = move |_, number: u64| {
        let key = tenants.get(&number.to_string()).expect("a key");
        async move { drop(key.acquire(ask).await.expect("there is enough")) }
    };
    let client = redis::Client::open(address).expect("an address");
    let link = client.get_multiplexed_async_connection().await.expect("a server");
    let script = Arc::new(redis::Script::new(LEGS));
    let sent = Arc::new(AtomicU64::new(0));
    let bare = move |caller: u64, number: u64| {
        let (link, script, sent) = (link.clone(), Arc::clone(&script), Arc::clone(&sent));
        async move {
            let step = async |takes: &[u64]| {
                let (key, mut link) = (format!("bare{{{number}}}"), link.clone());
                let mut call = script.key(format!("{key}:state"));
                call.key(format!("{key}:answer:{caller:016x}"));
                let numbers = [4, 0, takes.len() as u64 / 4, 0, 0, 0, 0];
                // Relaxed: only that no number comes twice.
                call.arg(sent.fetch_add(1, Ordering::Relaxed)).arg(24_000).arg(&numbers);
                call.arg("requests").arg(&[1, 100, 1_000_000]);
                call.arg("requests a day").arg(&[1_000_000, 1_350_000_000_u64]).arg("w");
                call.arg("tokens").arg(&[1, 100, 1_000_000]);
                call.arg("in flight").arg(&[1_000_000, 0]).arg("p");
                call.arg(takes).arg(1_000_000).arg(format!("{caller:016x}"));
                call.arg(takes.len() / 4)
                    .arg(&["channel", "message", ""])
                    .arg(&[1_000_000, 0, 0, 0, 0, 0]);
                let answer: Vec<String> = call.invoke_async(&mut link).await.expect("an answer");
                assert!(takes.is_empty() || answer[1] == "0", "{answer:?}");
            };
            step(&[1, 1, 70, 1]).await;
            step(&[]).await;
        }
    };
    // A server that was just started grants permits of unknown keys then.
    ours(0, 0).await;
    tokio::time::sleep(TTL).await;
    for (keys, callers) in [(10_000, 1), (10_000, CALLERS), (1, CALLERS)] {
        let (mut best, mut bare_best) = (0.0_f64, 0.0_f64);
        for _ in 0..3 {
            bare_best = bare_best.max(at_once(callers, keys, bare.clone()).await);
            best = best.max(at_once(callers, keys, ours.clone()).await);
        }
        println!(
            "keys: {keys}, callers: {callers}: {best:.0}/s with their ends, the bare scripts {bare_best:.0}/s, {:.2}",
            best / bare_best
        );
    }
}

/// Deletes a lock, if it is the caller's.
const UNLOCK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// One permit and its end, one caller, and the commands of a lock.
async fn lock(address: &str, redis: &Redis) {
    let permits = Remote::permits(Key::new("permit").expect("a name"), 1).ttl(TTL);
    let permits = Arc::new(permits.spawn(redis.clone()).expect("settings that can be"));
    drop(permits.acquire(1).await.expect("the store is there"));
    let ours = move |_, _| {
        let permits = Arc::clone(&permits);
        async move { drop(permits.acquire(1).await.expect("it is free")) }
    };
    let client = redis::Client::open(address).expect("an address");
    let link = client.get_multiplexed_async_connection().await.expect("a server");
    let unlock = Arc::new(redis::Script::new(UNLOCK));
    let theirs = move |_, number: u64| {
        let (mut link, unlock) = (link.clone(), Arc::clone(&unlock));
        async move {
            let mut set = redis::cmd("SET");
            set.arg("lock").arg(number).arg("NX").arg("PX").arg(1_000);
            let locked: Option<String> = set.query_async(&mut link).await.expect("an answer");
            assert!(locked.is_some(), "it is free");
            let ended: u64 = unlock
                .key("lock")
                .arg(number)
                .invoke_async(&mut link)
                .await
                .expect("an answer");
            assert_eq!(ended, 1);
        }
    };
    let (mut best, mut theirs_best) = (0.0_f64, 0.0_f64);
    for _ in 0..5 {
        theirs_best = theirs_best.max(at_once(1, u64::MAX, theirs.clone()).await);
        best = best.max(at_once(1, u64::MAX, ours.clone()).await);
    }
    println!(
        "one permit and its end, one caller: {best:.0}/s, a lock and its end {theirs_best:.0}/s, {:.2} times as long",
        theirs_best / best
    );
}

/// Measures one store, and returns whether blocks save a hundred times.
async fn rows<B: Backend + Clone>(store: &str, backend: B) -> bool {
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
    let mut enough = true;
    for (what, one, many) in rows {
        let (one, many) = (measure(one, true, &backend).await, measure(many, false, &backend).await);
        println!(
            "{store}, {what}: {one:.0}/s one by one, {many:.0}/s in blocks, {:.0} times",
            many / one
        );
        enough &= many >= 100.0 * one;
    }
    enough
}

/// Calls a second of one thread.
fn on_one_thread(call: impl Fn()) -> f64 {
    const CALLS: u32 = 1_000_000;
    let start = Instant::now();
    (0..CALLS).for_each(|_| call());
    f64::from(CALLS) / start.elapsed().as_secs_f64()
}

/// Leased capacity, and a local bucket of the same quota; returns whether it has half of its speed.
async fn leased() -> bool {
    let quota = Quota::per_second(1_000_000_000).burst(100_000_000);
    let leased = Remote::rate(Key::new("leased").expect("a name"), quota).capacity();
    let leased = leased.spawn(Memory::new(&Clock::real())).expect("settings that can be");
    let local = TokenBucket::new(quota);
    drop(leased.acquire(1).await.expect("the store is there"));
    // The part comes empty.
    tokio::time::sleep(TTL).await;
    let (mut best, mut local_best) = (0.0_f64, 0.0_f64);
    for _ in 0..7 {
        local_best = local_best.max(on_one_thread(|| local.try_acquire(1).expect("there is enough")));
        best = best.max(on_one_thread(|| drop(leased.try_acquire(1).expect("there is enough"))));
        tokio::task::yield_now().await;
    }
    let part = best / local_best;
    println!("leased capacity: {best:.0}/s, a local bucket {local_best:.0}/s, {part:.2}");
    part >= 0.5
}

fn main() {
    let address =
        |name| std::env::var(name).expect("ci/with-stores redis postgres starts servers and says where they are");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let is_alone = std::env::args().any(|argument| argument == "capacity");
    let enough = runtime.expect("threads").block_on(async {
        let is_quick = leased().await;
        if is_alone {
            return is_quick;
        }
        let redis = Redis::options(address("TOLLGATE_REDIS")).connect().expect("an address");
        lock(&address("TOLLGATE_REDIS"), &redis).await;
        keyed(&address("TOLLGATE_REDIS"), &redis).await;
        let postgres = Postgres::options(address("TOLLGATE_POSTGRES"));
        let slow = postgres.clone().connect().expect("an address");
        let fast = postgres.prefix("asynchronous").asynchronous_commit().connect();
        let enough = rows("Redis", redis).await;
        rows("PostgreSQL", slow).await;
        rows("PostgreSQL, asynchronous", fast.expect("an address")).await;
        enough && is_quick
    });
    if !enough {
        println!("less than a hundred times, or less than half of a local bucket");
        std::process::exit(1);
    }
}
