//! Rows of PostgreSQL that another program has locked: one key waits for them, and nothing else does.

use crate::postgres::{raw, schema, url};
use crate::store::key;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tollgate::remote::{Key, KeyedLimits, OnUnavailable, Remote, RemoteKeyed, RemoteLeg, StoreError};
use tollgate::{Quota, Reason};
use tollgate_stores::Postgres;

const SECOND: Duration = Duration::from_secs(1);

/// A client in a schema of its own, whose server processes have this name.
fn client(schema: &str, name: &str) -> Postgres {
    let address = format!("{}?application_name={name}", url());
    let options = Postgres::options(address).prefix(schema).timeout(SECOND / 2);
    options.connect().expect("settings that can be")
}

/// A burst of five calls for each key.
fn keyed(store: Postgres, name: &Key, on_unavailable: OnUnavailable) -> RemoteKeyed<Postgres> {
    let calls = RemoteLeg::rate("calls", "5/h burst 5".parse().unwrap());
    let spec = KeyedLimits::new(100, "all", [calls]);
    let keyed = Remote::keyed(name.clone(), spec).on_unavailable(on_unavailable);
    keyed.spawn(store).unwrap()
}

/// The server processes with this name.
async fn processes(client: &tokio_postgres::Client, name: &str) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    client.query_one(count, &[&name]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_stops_its_own_key_and_takes_no_connections() {
    let (schema, name) = (schema(), key());
    let watcher = raw(&url()).await;
    let locker = raw(&url()).await;
    let limits: Vec<_> = [OnUnavailable::Reject, OnUnavailable::Admit]
        .iter()
        .map(|&choice| keyed(client(&schema, &schema), &name, choice))
        .collect();
    for limits in &limits {
        let key = limits.get("locked").unwrap();
        drop(key.acquire_now(1).await.expect("the burst"));
    }
    let lock = format!("BEGIN; SELECT FROM {schema}.keys_v1 WHERE key = '{name}:locked' FOR UPDATE");
    locker.batch_execute(&lock).await.unwrap();
    let locked = async |limits: &RemoteKeyed<Postgres>| {
        let key = limits.get("locked").unwrap();
        let answer = timeout(10 * SECOND, key.acquire_now(1)).await.expect("it is answered");
        answer.map(drop).map_err(|refused| refused.reason())
    };
    let [rejects, admits] = [&limits[0], &limits[1]];
    let others = async {
        let start = Instant::now();
        let (mut n, mut most) = (0, 0);
        while start.elapsed() < 7 * SECOND {
            for limits in &limits {
                let other = limits.get(&format!("other-{n}")).unwrap();
                drop(other.acquire_now(1).await.expect("its row is free"));
            }
            most = most.max(processes(&watcher, &schema).await);
            n += 1;
            sleep(SECOND / 10).await;
        }
        most
    };
    let (refused, admitted, most) = tokio::join!(locked(rejects), locked(admits), others);
    assert_eq!((refused, admitted), (Err(Reason::Unavailable), Ok(())));
    assert_eq!(admits.stats().admitted_unavailable, 1);
    assert!(most <= 4, "{most} server processes of two clients");
    assert!(matches!(
        rejects.stats().last_error,
        None | Some(StoreError::TimedOut { .. })
    ));
    locker.batch_execute("ROLLBACK").await.unwrap();
    sleep(SECOND).await;
    let key = rejects.get("locked").unwrap();
    drop(key.acquire_now(1).await.expect("its row is free"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_given_up_leaves_no_server_process_behind() {
    for polls in [false, true] {
        let (schema, name) = (schema(), key());
        let (watcher, locker) = (raw(&url()).await, raw(&url()).await);
        let address = format!("{}?application_name={schema}", url());
        let mut options = Postgres::options(address).prefix(&*schema).timeout(SECOND / 5);
        if polls {
            options = options.polling(SECOND / 10);
        }
        let rate = Remote::rate(name.clone(), Quota::per_second(1_000));
        let rate = rate.timeout(SECOND / 4).spawn(options.connect().unwrap()).unwrap();
        let first = timeout(10 * SECOND, rate.acquire(1)).await.expect("an answer");
        drop(first.unwrap());
        let lock = format!("BEGIN; LOCK TABLE {schema}.state_v1 IN ACCESS EXCLUSIVE MODE");
        locker.batch_execute(&lock).await.unwrap();
        let (start, mut most) = (Instant::now(), 0);
        while start.elapsed() < 5 * SECOND {
            drop(timeout(SECOND / 10, rate.acquire_now(1)).await);
            most = most.max(processes(&watcher, &schema).await);
        }
        assert!(most <= 4, "{most} server processes, polling: {polls}");
        locker.batch_execute("ROLLBACK").await.unwrap();
        let answers = async {
            while rate.acquire(1).await.is_err() {
                sleep(SECOND / 20).await;
            }
        };
        timeout(10 * SECOND, answers).await.expect("it is there again");
        // What was given up has ended.
        let all_but_one = async {
            while processes(&watcher, &schema).await > 1 {
                sleep(SECOND / 20).await;
            }
        };
        timeout(10 * SECOND, all_but_one).await.expect("they end");
    }
}
