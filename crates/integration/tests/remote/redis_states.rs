//! States of a Redis that pass by themselves, and those that do not: what the store says of each.

use crate::raw_session::{LONG, RawSession};
use crate::redis::{Redis as Program, eval, say};
use crate::rig::server::Server;
use crate::store::{at, key, own};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::remote::{Backend, KeyLeg, KeyedLimits, OnUnavailable, Remote, RemoteLeg, Rule, Step, StoreError};
use tollgate::{Quota, Reason};
use tollgate_stores::Redis;

const SECOND: Duration = Duration::from_secs(1);
const PERMITS: Rule = Rule::Permits { limit: 2 };

/// The error of a sync of each kind of limiter, and of a step.
async fn errors(store: &Redis) -> Vec<StoreError> {
    let quota = Quota::per_second(10);
    let (limit, length) = (2, SECOND);
    let mut errors = Vec::new();
    for rule in [PERMITS, Rule::Rate { quota }, Rule::Window { limit, length }] {
        let name = key();
        let mut session = RawSession::new(store, &name, rule, LONG);
        errors.push(session.say(|_| {}).await.expect_err("no sync is carried out"));
    }
    let legs = [KeyLeg::new("calls", Rule::Rate { quota })];
    let mut step = Step::new(7, 1, LONG);
    step.takes = vec![KeyLeg::units([1])];
    errors.push(
        store
            .step(&key(), &legs, &step)
            .await
            .expect_err("no step is carried out"),
    );
    errors
}

/// Each error in this state is one that passes, from a connection that was there before and from a new one, and so does the state.
async fn passes(server: &Server<Program>, store: &Redis, heal: impl FnOnce(&Server<Program>)) {
    for store in [store, &at(server.address())] {
        for error in errors(store).await {
            let passes = matches!(error, StoreError::Unreachable { .. } | StoreError::Busy { .. });
            assert!(passes, "{error:?}");
        }
    }
    heal(server);
    let healed = async {
        loop {
            let name = key();
            let mut session = RawSession::new(store, &name, PERMITS, LONG);
            if session.say(|_| {}).await.is_ok() {
                return;
            }
            sleep(SECOND / 20).await;
        }
    };
    timeout(60 * SECOND, healed).await.expect("it has passed");
}

#[tokio::test]
async fn too_few_replicas_pass() {
    let (server, store, _) = own(PERMITS).await;
    say(&server, "CONFIG SET min-replicas-to-write 1").unwrap();
    passes(&server, &store, |server| {
        say(server, "CONFIG SET min-replicas-to-write 0").unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_memory_that_is_full_passes() {
    let (server, store, _) = own(PERMITS).await;
    say(&server, "CONFIG SET maxmemory 1").unwrap();
    passes(&server, &store, |server| say(server, "CONFIG SET maxmemory 0").unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_runs_for_long_passes() {
    let (server, store, _) = own(PERMITS).await;
    // The name before Redis 7.
    say(&server, "CONFIG SET lua-time-limit 20").unwrap();
    let address = server.address();
    let spins = std::thread::spawn(move || crate::redis::tell(address, "EVAL \"while true do end\" 0"));
    while say(&server, "CONFIG SET lua-time-limit 20").is_ok() {
        sleep(SECOND / 50).await;
    }
    passes(&server, &store, |server| say(server, "SCRIPT KILL").unwrap()).await;
    _ = spins.join();
}

/// Given a key with a value of another type, then its asks are refused as misconfigured, and those of other keys are decided.
#[tokio::test]
async fn a_value_of_another_type_stops_its_own_key() {
    let (server, store, _) = own(PERMITS).await;
    for choice in [OnUnavailable::Reject, OnUnavailable::Admit] {
        let name = key();
        let put = format!("redis.call('LPUSH', 'tollgate:{{{name}:other}}:legs:state', 'a list')");
        eval(&server, &put).unwrap();
        let calls = RemoteLeg::rate("calls", "5/h burst 5".parse().unwrap());
        let spec = KeyedLimits::new(100, "all", [calls]);
        let limits = Remote::keyed(name, spec).on_unavailable(choice);
        let limits = limits.unavailable_after(SECOND / 2).spawn(store.clone()).unwrap();
        let (other, good) = (limits.get("other").unwrap(), limits.get("good").unwrap());
        let mut granted = 0;
        for _ in 0..12 {
            let refused = other.acquire_now(1).await.unwrap_err();
            assert_eq!(refused.reason(), Reason::Misconfigured);
            granted += u32::from(good.acquire_now(1).await.is_ok());
            sleep(SECOND / 10).await;
        }
        assert_eq!((granted, limits.stats().admitted_unavailable), (5, 0));
    }
}
