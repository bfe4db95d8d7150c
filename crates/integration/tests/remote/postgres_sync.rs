//! What only PostgreSQL has: an installation, rights, commits, timelines and poolers.

use crate::certificates::{Authority, Encrypted, Guard};
use crate::keyed::{in_flight, permit_step};
use crate::postgres::{Program, at, keys, options, raw, schema, store, url};
use crate::raw_session::{LONG, RawSession, SHORT, raw_sessions, refused, serves_waiters};
use crate::rig::server::{Server, Store as _};
use crate::store::key;
use futures::FutureExt as _;
use std::cell::Cell;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate::remote::{Backend, Key, KeyLeg, KeyedLimits, Remote, RemoteLeg, Rule, Session, StoreError};

fn permits(limit: u64) -> Rule {
    Rule::Permits { limit }
}

crate::rate_sync::rated!(store());
mod windows {
    use crate::postgres::store;
    crate::window_sync::lines!(store());
}

#[tokio::test]
async fn limiters_of_one_name_and_different_kinds_are_independent() {
    crate::kinds::are_independent(&store(), &key()).await;
}

/// Of two processes: the one that releases notifies the other.
#[tokio::test]
async fn a_waiter_in_another_process_is_notified() {
    let key = key();
    let remote = || Remote::permits(key.clone(), 1).ttl(LONG).spawn(store()).unwrap();
    let (one, other) = (remote(), remote());
    let held = one.acquire(1).await.unwrap();
    let served = async {
        let (waited, ()) = tokio::join!(other.acquire(1), async {
            while other.stats().waiting == 0 {
                tokio::task::yield_now().await;
            }
            drop(held);
        });
        waited.unwrap()
    };
    drop(tokio::time::timeout(LONG / 6, served).await.expect("it is told"));
}

#[tokio::test]
async fn many_processes_install_at_once() {
    let schema = schema();
    let (mut processes, key) = (tokio::task::JoinSet::new(), key());
    for _ in 0..8 {
        let (store, key) = (options(&schema).connect().unwrap(), key.clone());
        processes.spawn(async move {
            let mut one = RawSession::new(&store, &key, permits(8), LONG);
            one.request(1, false).await.grants.len()
        });
    }
    assert_eq!(processes.join_all().await, [1; 8]);
}

#[tokio::test]
async fn functions_that_were_dropped_are_installed_again() {
    let server = Server::start(Program).await.expect("a server");
    let (store, key) = (at(server.address()), key());
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    assert_eq!(one.request(1, false).await.grants.len(), 1);
    server.forget_scripts().unwrap();
    let error = one.say(|_| {}).await;
    assert!(matches!(error, Err(StoreError::Unreachable { .. })), "{error:?}");
    assert!(one.look().await.alive);
}

/// With synchronous commits nothing is forgotten: a session goes on, and no one waits.
#[tokio::test]
async fn a_killed_server_grants_at_once_and_remembers_all() {
    let mut server = Server::start(Program).await.expect("a server");
    let (store, key) = (at(server.address()), key());
    let [mut one, mut other] = raw_sessions(&store, &key, permits(2), [LONG; 2]);
    let first = one.request(1, false).await;
    assert_eq!(first.grants.len(), 1);
    let legs = in_flight(1);
    let step = async |seq, held, takes: &[u64], waiting| {
        let mut step = permit_step(1, seq, held, takes, waiting);
        // A restart takes its time.
        step.remember = LONG;
        step.lease.as_mut().unwrap().ttl = LONG;
        store.step(&key, &legs, &step).await.unwrap()
    };
    let taken = step(1, 0, &[1], 1).await;
    assert_eq!(taken.takes, [Ok(())], "a new server waits for nothing");
    server.kill().unwrap();
    server.restart().await.unwrap();
    while one.say(|_| {}).await.is_err() {}
    let reply = one.look().await;
    assert_eq!((reply.alive, &reply.grants), (true, &first.grants), "{reply:?}");
    let second = other.request(2, false).await;
    assert_eq!((second.grants.len(), second.usage.in_use), (0, 1), "{second:?}");
    assert_eq!(other.request(1, false).await.grants.len(), 1);
    assert_eq!(step(1, 0, &[1], 1).await, taken, "it is repeated");
    assert!(!step(2, 1, &[], 0).await.lost);
    let client = raw(&format!("postgres://tollgate@{}/postgres", server.address())).await;
    client.batch_execute("DELETE FROM tollgate.keys_v1").await.unwrap();
    assert!(step(3, 1, &[], 0).await.lost);
}

/// Given a server that took over, or that has lost commits in a crash, then it gives no permits of a key until unknown leases have ended,
/// and notifies no waiter before; its rates are there at once.
#[tokio::test]
async fn a_server_that_may_have_forgotten_gives_no_permits_of_a_key_for_a_time_to_live() {
    let mut server = Server::start(Program).await.expect("a server");
    let address = format!("postgres://tollgate@{}/postgres", server.address());
    let store = tollgate_stores::Postgres::options(address.as_str()).asynchronous_commit();
    let store = store.timeout(LONG / 60).connect().unwrap();
    let quota = "1/s burst 100".parse().unwrap();
    let rate = KeyLeg::new("rate", Rule::Rate { quota });
    let seq = Cell::new(0);
    let step = async |key: &Key, takes: &[u64], waiting| {
        seq.update(|seq| seq + 1);
        let mut legs = in_flight(2).to_vec();
        legs.push(rate.clone());
        let mut step = permit_step(seq.get(), seq.get(), 0, takes, waiting);
        step.takes.iter_mut().for_each(|units| units[1] = 1);
        store.step(key, &legs, &step).await
    };
    for crashes in [true, false] {
        let (known, unknown) = (key(), key());
        while step(&known, &[1], 1).await.unwrap().takes != [Ok(())] {}
        if crashes {
            server.kill().unwrap();
            server.restart().await.unwrap();
            while step(&known, &[], 0).await.is_err() {}
        } else {
            let forget = "UPDATE tollgate.state_v1 SET timeline = 7; UPDATE tollgate.keys_v1 SET timeline = 7";
            raw(&address).await.batch_execute(forget).await.unwrap();
        }
        let begun = std::time::Instant::now();
        for key in [&known, &unknown] {
            let reply = step(key, &[1, 0], 0).await.unwrap();
            let [Err(refusal), Ok(())] = reply.takes[..] else {
                panic!("{crashes} {reply:?}");
            };
            assert!(refusal.leg == 0 && refusal.after > Some(SHORT), "{crashes} {refusal:?}");
            let place = Session::of_place(seq.get());
            // A message would come before the next answer.
            step(key, &[], 0).await.unwrap();
            assert_eq!(store.notified(key, place).now_or_never(), None, "{crashes}");
        }
        while step(&unknown, &[1], 1).await.unwrap().takes != [Ok(())] {}
        assert!(
            begun.elapsed() >= Duration::from_millis(1_800),
            "{crashes} {:?}",
            begun.elapsed()
        );
    }
}

/// Without them the last grants may be lost: nothing is granted until unknown leases have ended.
#[tokio::test]
async fn a_killed_server_of_asynchronous_commits_waits_for_a_time_to_live() {
    let mut server = Server::start(Program).await.expect("a server");
    let connect = || {
        let options = tollgate_stores::Postgres::options(format!("postgres://tollgate@{}/postgres", server.address()));
        options.asynchronous_commit().timeout(LONG / 60).connect().unwrap()
    };
    let (store, key, unknown) = (connect(), key(), key());
    let mut one = RawSession::new(&store, &key, permits(2), SHORT * 5);
    assert_eq!(
        one.request(1, false).await.grants.len(),
        1,
        "a new server waits for nothing"
    );
    server.kill().unwrap();
    server.restart().await.unwrap();
    let mut other = RawSession::new(&store, &unknown, permits(2), SHORT * 5);
    while other.say(|_| {}).await.is_err() {}
    let begun = std::time::Instant::now();
    assert_eq!(other.request(1, true).await.grants.len(), 0);
    let mut known = RawSession::new(&store, &key, permits(2), SHORT * 5);
    known.look().await;
    assert_eq!(known.request(1, true).await.grants.len(), 0);
    other.until_granted().await;
    assert!(begun.elapsed() >= SHORT * 4, "{:?}", begun.elapsed());
}

/// Another server took over, which may not know the last grants: its timeline is another.
#[tokio::test]
async fn a_server_that_took_over_waits_for_a_time_to_live() {
    let server = Server::start(Program).await.expect("a server");
    let (store, key) = (at(server.address()), key());
    let mut one = RawSession::new(&store, &key, permits(2), SHORT * 5);
    assert_eq!(one.request(1, false).await.grants.len(), 1);
    let client = raw(&format!("postgres://tollgate@{}/postgres", server.address())).await;
    let forget = "UPDATE tollgate.state_v1 SET timeline = 7";
    client.batch_execute(forget).await.unwrap();
    let begun = std::time::Instant::now();
    let mut other = RawSession::new(&store, &key, permits(2), SHORT * 5);
    assert_eq!(other.request(1, true).await.grants.len(), 0);
    other.until_granted().await;
    assert!(begun.elapsed() >= SHORT * 4, "{:?}", begun.elapsed());
    // It knows since when it serves.
    let fresh = crate::store::key();
    let mut third = RawSession::new(&store, &fresh, permits(2), SHORT);
    assert_eq!(third.request(1, false).await.grants.len(), 1);
}

/// Nothing of a session outlives a call: neither a statement nor a subscription.
#[tokio::test]
async fn a_client_behind_a_pooler_keeps_nothing_at_its_connection() {
    let schema = schema();
    let connect = || options(&schema).polling(Duration::from_millis(5)).connect().unwrap();
    let address = connect();
    serves_waiters(address).await;
    let (one, other, key) = (connect(), connect(), key());
    let remote = |store| Remote::permits(key.clone(), 1).ttl(LONG).spawn(store).unwrap();
    let (one, other) = (remote(one), remote(other));
    let held = one.acquire(1).await.unwrap();
    let (waited, ()) = tokio::join!(other.acquire(1), async {
        while other.stats().waiting == 0 {
            tokio::task::yield_now().await;
        }
        drop(held);
    });
    drop(waited.expect("it asks again"));
    let policy = [RemoteLeg::permits("in-flight", 1)];
    let keyed = || {
        let builder = Remote::keyed(key.clone(), KeyedLimits::new(10, "all", policy.clone())).ttl(LONG);
        builder.spawn(connect()).unwrap().get("acme").unwrap()
    };
    let (one, other) = (keyed(), keyed());
    let client = raw(&url()).await;
    let count = async |rows: &str| -> i64 {
        let count = format!("SELECT count(*) FROM {schema}.{rows}");
        client.query_one(&count, &[]).await.unwrap().get(0)
    };
    let held = one.acquire(1).await.unwrap();
    let waits = tokio::time::timeout(LONG / 6, other.acquire(1));
    let (waited, ()) = tokio::join!(waits, async {
        while count("keys_v1 WHERE places <> '[]'").await == 0 {}
        assert_eq!(
            count("keys_v1 WHERE places::text LIKE '%tollgate_%'").await,
            0,
            "no channel is known"
        );
        drop(held);
    });
    drop(waited.expect("it asks again").unwrap());
    let known = count("state_v1 WHERE sessions::text LIKE '%tollgate_%'").await;
    assert_eq!(known, 0, "no channel is known");
}

/// The reason for which the server refuses what the store asks of it.
async fn why_refused(store: tollgate_stores::Postgres) -> String {
    match refused(store, key()).await {
        StoreError::Refused { why } => why.to_string(),
        other => panic!("not refused by the server: {other:?}"),
    }
}

#[tokio::test]
async fn a_plain_user_needs_a_schema_of_its_own() {
    let (schema, client) = (schema(), raw(&url()).await);
    let make = format!("CREATE ROLE {schema} LOGIN PASSWORD 'very-secret'");
    client.batch_execute(&make).await.unwrap();
    let connect = || {
        let options = options(&schema).user(schema.as_str()).password("very-secret");
        assert!(!format!("{options:?}").contains("secret"));
        options.connect().unwrap()
    };
    let why = why_refused(connect()).await;
    assert!(
        why.contains(&format!("CREATE SCHEMA {schema} AUTHORIZATION")) && why.contains("permission denied"),
        "{why}"
    );
    client.batch_execute(&format!("CREATE SCHEMA {schema}")).await.unwrap();
    let why = why_refused(connect()).await;
    assert!(why.contains("permission denied"), "{why}");
    let own = format!("ALTER SCHEMA {schema} OWNER TO {schema}; REVOKE ALL ON SCHEMA public FROM {schema}");
    client.batch_execute(&own).await.unwrap();
    serves_waiters(connect()).await;
    // Another user of what is installed.
    let other = format!("{schema}_other");
    client
        .batch_execute(&format!(
            "CREATE ROLE {other} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {other}"
        ))
        .await
        .unwrap();
    let connect = || options(&schema).user(other.as_str()).connect().unwrap();
    let why = why_refused(connect()).await;
    assert!(why.contains("state_v1"), "{why}");
    let (legs, step) = (in_flight(1), permit_step(1, 1, 0, &[1], 0));
    let refused = connect().step(&crate::store::key(), &legs, &step).await;
    let named = |why: &str| why.contains("keys_v1");
    assert!(
        matches!(&refused, Err(StoreError::Refused { why }) if named(why)),
        "{refused:?}"
    );
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {other}");
    client.batch_execute(&grant).await.unwrap();
    serves_waiters(connect()).await;
    let taken = connect().step(&crate::store::key(), &legs, &step).await;
    assert_eq!(taken.unwrap().takes, [Ok(())]);
}

/// Encrypted connections need a certificate.
fn encrypted(program: &Program, guard: &Guard, port: u16, folder: &Path) -> Command {
    let [certificate, key, root] = guard.write(folder);
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let rules = folder.join("rules");
    let lines = "hostssl all all 127.0.0.1/32 trust clientcert=verify-ca\nhostnossl all all 127.0.0.1/32 trust\n";
    std::fs::write(&rules, lines).unwrap();
    let mut command = program.command(port, folder);
    command.args(["-c", "ssl=on"]);
    for (name, path) in [
        ("ssl_cert_file", certificate),
        ("ssl_key_file", key),
        ("ssl_ca_file", root),
        ("hba_file", rules),
    ] {
        command.arg("-c").arg(format!("{name}={}", path.display()));
    }
    command
}

#[tokio::test]
async fn a_server_that_asks_for_certificates_serves_clients_with_one() {
    let authority = Authority::new();
    let server = Encrypted {
        program: Program,
        guard: Guard::new(&authority, "127.0.0.1"),
        command: encrypted,
    };
    let server = Server::start(server).await.expect("a server");
    let connect = |tls| {
        let options = tollgate_stores::Postgres::options(format!("postgres://tollgate@{}/postgres", server.address()));
        options.tls(tls).timeout(LONG / 10).connect().unwrap()
    };
    serves_waiters(connect(authority.known())).await;
    let error = refused(connect(authority.trusting()), key()).await;
    assert!(
        matches!(&error, StoreError::Refused { why } if why.contains("certificate")),
        "{error}"
    );
    let error = refused(connect(Authority::new().known()), key()).await;
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn another_isolation_level_is_refused() {
    let (role, client) = (schema(), raw(&url()).await);
    let make = format!(
        "CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'"
    );
    client.batch_execute(&make).await.unwrap();
    let why = why_refused(options("tollgate").user(role.as_str()).connect().unwrap()).await;
    assert!(
        why.contains("repeatable read") && why.contains("read committed"),
        "{why}"
    );
}

/// A clock that is set back goes on from where it was, also for tokens of limiters that have gone.
#[tokio::test]
async fn a_clock_that_is_set_back_goes_on() {
    let (schema, client, key) = (schema(), raw(&url()).await, key());
    let store = options(&schema).connect().unwrap();
    RawSession::new(&store, &key, permits(1), SHORT).end().await;
    let find =
        format!("SELECT proname FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace AND proname LIKE 'micros%'");
    let micros: String = client.query_one(&find, &[]).await.unwrap().get(0);
    let set = |now: i64| {
        let time = format!(
            "CREATE OR REPLACE FUNCTION {schema}.{micros}() RETURNS bigint LANGUAGE sql AS 'SELECT {now}::bigint'"
        );
        let client = &client;
        async move { client.batch_execute(&time).await.unwrap() }
    };
    const NOW: i64 = 1_000_000_000_000;
    set(NOW).await;
    let quota = "10/s burst 1".parse().unwrap();
    let mut rate = RawSession::new(&store, &key, Rule::Rate { quota }, LONG);
    let mut holder = RawSession::new(&store, &key, permits(1), LONG);
    let take = async |rate: &mut RawSession<'_, _>| {
        let reply = rate.request(1, false).await;
        rate.see(&reply)
    };
    assert_eq!(take(&mut rate).await, 1);
    let first = holder.request(1, false).await.grants[0];
    let mut legs = in_flight(1).to_vec();
    legs.push(KeyLeg::new("rate", Rule::Rate { quota }));
    let mut seq = 0;
    let mut step = async |held, taken| {
        seq += 1;
        let mut step = permit_step(1, seq, held, &[], 1);
        step.takes = vec![KeyLeg::units([1 - held, 1])];
        let reply = store.step(&key, &legs, &step).await.unwrap();
        assert_eq!((reply.lost, reply.takes[0].is_ok()), (false, taken), "{reply:?}");
        reply.at
    };
    let at = step(0, true).await;
    set(NOW / 2).await;
    assert_eq!(step(1, false).await, at);
    assert_eq!(take(&mut rate).await, 0);
    assert!(holder.look().await.alive);
    set(NOW / 2 + 100_000).await;
    assert_eq!(take(&mut rate).await, 1, "a tenth of a second has passed");
    step(1, true).await;
    holder.end().await;
    let second = RawSession::new(&store, &key, permits(1), LONG)
        .request(1, false)
        .await
        .grants[0];
    assert!(second.token > first.token, "{second:?} {first:?}");
}

/// Rows of dead processes go, in bounded steps, while a process of any limiter lives.
#[tokio::test]
async fn rows_of_the_dead_are_deleted() {
    let (store, key) = (store(), key());
    for _ in 0..3 {
        let mut dies = RawSession::new(&store, &key, permits(2), SHORT);
        dies.request(1, false).await;
    }
    assert_eq!(keys(&key).await, 1);
    while keys(&key).await > 0 {
        tokio::time::sleep(SHORT).await;
    }
}

#[tokio::test]
async fn a_sync_is_one_round_trip() {
    let proxy = crate::rig::proxy::Proxy::before(crate::postgres::server())
        .await
        .unwrap();
    let (store, key) = (at(proxy.address()), key());
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    one.look().await;
    let before: u64 = proxy.exchanges().iter().sum();
    for _ in 0..20 {
        one.request(1, false).await;
    }
    let after: u64 = proxy.exchanges().iter().sum();
    // A purge may come between.
    assert!((20..=22).contains(&(after - before)), "{}", after - before);
    for seq in 1..=20 {
        let reply = store
            .step(&key, &in_flight(30), &permit_step(1, seq, seq - 1, &[1], 0))
            .await;
        assert_eq!(reply.unwrap().takes, [Ok(())]);
    }
    let steps = proxy.exchanges().iter().sum::<u64>() - after;
    assert!((20..=22).contains(&steps), "{steps}");
    drop(store.notification(&key, tollgate::remote::Session { client: 0, number: 0 }));
}
