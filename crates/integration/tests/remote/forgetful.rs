//! A Redis that loses a part of its data: keys that are deleted one by one, and keys that it evicts when memory runs out.

use crate::raw_session::{LONG, PATIENCE, RawSession};
use crate::redis::{Redis as Program, bulk, eval, say};
use crate::rig::server::Server;
use crate::store::{at, key, own_unopened};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tollgate::Quota;
use tollgate::remote::{Key, OwnedRemotePermit, Remote, Rule, StoreError};
use tollgate_stores::Redis;

/// Long enough for a few syncs, and over soon.
const BRIEF: Duration = Duration::from_secs(2);
const LIMIT: u64 = 2;
const PERMITS: Rule = Rule::Permits { limit: LIMIT };

/// A session that holds a permit, once one is free: another one if this process was too slow to renew it.
async fn holder<'a>(store: &'a Redis, key: &'a Key) -> RawSession<'a, Redis> {
    loop {
        let mut waits = RawSession::new(store, key, PERMITS, BRIEF);
        let mut reply = waits.request(1, true).await;
        while reply.alive {
            if waits.see(&reply) > 0 {
                waits.say(|sync| sync.oldest = Some(sync.seen)).await.unwrap();
                return waits;
            }
            let again = reply.again.unwrap_or(BRIEF / 8);
            sleep(again.min(BRIEF / 8)).await;
            reply = waits.look().await;
        }
    }
}

/// The key is deleted while two sessions hold permits, and one waits.
async fn deleted(part: &str) {
    let (server, store, key) = own_unopened().await;
    loop {
        let (mut one, mut other) = (holder(&store, &key).await, holder(&store, &key).await);
        let mut waits = RawSession::new(&store, &key, PERMITS, BRIEF);
        let waiting = waits.request(1, true).await;
        let begun = Instant::now();
        let are_there = one.look().await.alive && other.look().await.alive;
        if !are_there || !waiting.grants.is_empty() {
            continue;
        }
        let deletes = format!("assert(redis.call('DEL', 'tollgate:{{{key}}}:permits:{part}') == 1)");
        if eval(&server, &deletes).is_err() {
            // It has gone by itself: this process was too slow.
            continue;
        }
        let mut next = holder(&store, &key).await;
        // Both may act on their grants up to then.
        assert!(begun.elapsed() >= BRIEF, "{part}: granted after {:?}", begun.elapsed());
        for lost in [&mut one, &mut other, &mut waits] {
            assert!(!lost.look().await.alive, "{part}");
        }
        let mut last = holder(&store, &key).await;
        let tries = RawSession::new(&store, &key, PERMITS, BRIEF).request(1, false).await;
        if next.look().await.alive && last.look().await.alive {
            assert_eq!((tries.grants.len(), tries.usage.in_use), (0, LIMIT), "{part}");
            return;
        }
    }
}

#[tokio::test]
async fn after_any_key_is_deleted_grants_pause_for_a_time_to_live() {
    let parts = ["state", "dues", "queue", "oldest"];
    let all = futures::future::join_all(parts.map(deleted));
    timeout(PATIENCE, all).await.expect("grants go on");
}

/// A server with this eviction policy.
async fn evicting(policy: &str) -> Server<Program> {
    let server = Server::start(Program).await.expect("a server");
    say(&server, &format!("CONFIG SET maxmemory-policy {policy}")).unwrap();
    server
}

fn allowing(server: &Server<Program>, policy: &str) -> Redis {
    let options = Redis::options(format!("redis://{}/", server.address())).timeout(PATIENCE);
    options.allow_eviction(policy).connect().unwrap()
}

#[tokio::test]
async fn a_server_that_may_evict_permits_is_refused_unless_its_policy_is_allowed_by_name() {
    let rules = [
        PERMITS,
        Rule::Rate {
            quota: Quota::per_second(1),
        },
    ];
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = evicting(policy).await;
        let key = key();
        for store in [at(server.address()), allowing(&server, "volatile-lru")] {
            for rule in rules {
                let refused = RawSession::new(&store, &key, rule, LONG).say(|_| {}).await;
                let Err(StoreError::Refused { why }) = refused else {
                    panic!("{policy}: {refused:?}");
                };
                assert!(why.contains(policy), "{why}");
            }
        }
        assert_eq!(server.keys().unwrap(), [""; 0]);
        let store = allowing(&server, policy);
        for rule in rules {
            assert!(RawSession::new(&store, &key, rule, LONG).look().await.alive, "{policy}");
        }
    }
}

/// The permits that were granted and not dropped.
type Live = Mutex<Vec<OwnedRemotePermit<Redis>>>;

async fn works(remote: Arc<Remote<Redis>>, live: Arc<Live>) -> u64 {
    let mut granted = 0;
    let over = Instant::now() + Duration::from_secs(4);
    while Instant::now() < over {
        let Ok(Ok(permit)) = timeout(BRIEF / 4, Arc::clone(&remote).acquire_owned(1)).await else {
            continue;
        };
        let fence = permit.fence();
        {
            let mut live = live.lock().unwrap();
            live.push(permit);
            let held = live.iter().filter(|permit| !permit.is_lost()).count() as u64;
            assert!(held <= LIMIT, "{held} are live");
        }
        granted += 1;
        sleep(Duration::from_millis(20)).await;
        live.lock().unwrap().retain(|permit| permit.fence() != fence);
    }
    granted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_memory_pressure_no_more_are_live_than_the_limit_and_grants_resume() {
    let server = evicting("allkeys-random").await;
    let used = bulk(server.address(), "INFO memory").unwrap();
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let used: u64 = used.parse().unwrap();
    say(&server, &format!("CONFIG SET maxmemory {}", used + (2 << 20))).unwrap();
    let (key, live) = (key(), Arc::default());
    let remote = || {
        let remote = Remote::permits(key.clone(), LIMIT).ttl(Duration::from_millis(200));
        Arc::new(remote.spawn(allowing(&server, "allkeys-random")).unwrap())
    };
    let remotes: Vec<_> = (0..4).map(|_| remote()).collect();
    let workers: Vec<_> = remotes
        .iter()
        .map(|remote| tokio::spawn(works(Arc::clone(remote), Arc::clone(&live))))
        .collect();
    let fills = "for n = 1, 2 do redis.call('SET', 'fill' .. redis.call('TIME')[2] .. n, string.rep('x', 10000)) end";
    while workers.iter().any(|worker| !worker.is_finished()) {
        eval(&server, fills).unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let mut granted = 0;
    for worker in workers {
        granted += worker.await.expect("the limit holds");
    }
    let stats = bulk(server.address(), "INFO stats").unwrap();
    let evicted = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
    let evicted: u64 = evicted.unwrap().parse().unwrap();
    println!("{granted} granted, {evicted} keys evicted");
    assert!(evicted > 100, "{evicted} of some 200 keys, of which five are ours");
    let next = timeout(PATIENCE, remotes[0].acquire(1)).await;
    drop(next.expect("grants resume").unwrap());
}
