//! What a key of a limiter of many keys takes at the server.

use crate::redis::{Redis as Program, bulk};
use crate::rig::server::Server;
use crate::store::{at, key};
use std::time::Duration;
use tollgate::remote::{Backend, Key, KeyLeg, Rule, Step};

const KEYS: u64 = 2_000;

/// A rate; or as many legs as a service has for each tenant. Nothing comes back for long.
fn legs(count: usize) -> Vec<KeyLeg> {
    let quota = "10/h burst 10".parse().expect("a quota");
    let (limit, length) = (10, Duration::from_secs(86_400));
    let all = [
        ("requests", Rule::Rate { quota }),
        ("tokens", Rule::Rate { quota }),
        ("a day", Rule::Window { limit, length }),
        ("minutes", Rule::Rate { quota }),
    ];
    all.into_iter()
        .take(count)
        .map(|(name, rule)| KeyLeg::new(name, rule))
        .collect()
}

/// Takes a unit of each leg at each of the keys, whose names have 16 bytes after the prefix.
async fn take(store: &impl Backend, prefix: &Key, legs: &[KeyLeg]) {
    for key in 0..KEYS {
        let mut step = Step::new(7, key + 1, Duration::from_millis(1));
        step.takes = vec![KeyLeg::units([1, 1, 1, 1])];
        let key = prefix.with(&format!(":{key:015}")).expect("a key");
        assert!(store.step(&key, legs, &step).await.expect("a reply").takes[0].is_ok());
    }
}

/// Given keys that were used once, then each takes no more memory of a Redis than stated, once its last answer is forgotten.
#[tokio::test]
async fn a_key_in_redis_takes_the_stated_bytes() {
    for (count, stated) in [(1, 300), (4, 500)] {
        let server = Server::start(Program).await.expect("a server");
        let store = at(server.address());
        let used = || {
            let info = bulk(server.address(), "INFO memory").expect("an answer");
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
            line.and_then(|bytes| bytes.parse::<u64>().ok()).expect("a number")
        };
        let (prefix, legs) = (Key::new("t").expect("a name"), legs(count));
        take(&store, &prefix, &legs).await;
        // Of the answers none is left.
        let size = || bulk(server.address(), "EVAL \"return tostring(redis.call('DBSIZE'))\" 0").expect("an answer");
        while size().parse::<u64>().expect("a number") > KEYS + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let full = used();
        let gone = bulk(server.address(), "EVAL \"redis.call('FLUSHALL') return ''\" 0");
        assert_eq!(gone.expect("an answer"), "");
        let each = (full - used()) / KEYS;
        println!("Redis, {count} legs: {each} bytes a key");
        assert!(each <= stated, "{each} of {stated}");
    }
}

/// Given keys that were used once, then each takes no more of the disk of a PostgreSQL than stated, its index included: before a vacuum has
/// been there, which removes the first version of a row, and after it.
#[tokio::test]
async fn a_key_in_postgres_takes_the_stated_bytes() {
    let client = crate::postgres::raw(&crate::postgres::url()).await;
    for (count, fresh, vacuumed) in [(1, 1_300, 900), (4, 2_000, 1_300)] {
        let schema = crate::postgres::schema();
        let store = crate::postgres::options(&schema)
            .connect()
            .expect("settings that can be");
        let table = format!("{schema}.keys_v1");
        let size = async || -> i64 {
            let size = format!("SELECT pg_total_relation_size('{table}')");
            client.query_one(&*size, &[]).await.expect("it is installed").get(0)
        };
        // It installs itself with the first step.
        let first = Step::new(7, 1, Duration::from_millis(1));
        store.step(&key(), &legs(count), &first).await.expect("a reply");
        let before = size().await;
        take(&store, &Key::new("t").expect("a name"), &legs(count)).await;
        for (when, stated) in [("before", fresh), ("after", vacuumed)] {
            let each = (size().await - before) as u64 / KEYS;
            println!("PostgreSQL, {count} legs, {when} a vacuum: {each} bytes a key");
            assert!(each <= stated, "{each} of {stated}");
            let vacuum = format!("VACUUM FULL {table}");
            client.batch_execute(&vacuum).await.expect("a vacuum");
        }
        let drop = format!("DROP SCHEMA {schema} CASCADE");
        client.batch_execute(&drop).await.expect("it goes");
    }
}
