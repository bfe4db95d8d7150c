//! Permits in etcd: what is special to etcd.

use crate::etcd::ask;
use crate::queued::asked_after_a_wait;
use crate::raw_session::{LONG, RawSession};
use crate::rig::proxy::{Mode, Proxy};
use crate::store::key;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tollgate::Reason;
use tollgate::remote::{Backend, Key, Remote, RemoteError, Rule, StoreError};
use tollgate_stores::Etcd;

mod steps {
    crate::queued::lined!(super::store());
}

const ONE: Rule = Rule::Permits { limit: 1 };

pub(crate) fn address() -> SocketAddr {
    let address = std::env::var("TOLLGATE_ETCD");
    let address = address.expect("TOLLGATE_ETCD has the address of a server; ci/with-stores etcd starts one");
    address.trim_start_matches("http://").parse().expect("an address")
}

pub(crate) fn at(address: SocketAddr) -> Etcd {
    let options = Etcd::options(format!("http://{address}"));
    options.connect().expect("settings that can be")
}

pub(crate) fn store() -> Etcd {
    at(address())
}

async fn proxied() -> (Proxy, Etcd) {
    let proxy = Proxy::before(address()).await.expect("a proxy");
    let store = at(proxy.address());
    (proxy, store)
}

fn exchanges(proxy: &Proxy) -> u64 {
    proxy.exchanges().iter().sum()
}

pub(crate) fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// The answer of the server to a read of all keys of a limiter.
pub(crate) async fn under(key: &Key) -> serde_json::Value {
    let (first, end) = (format!("tollgate/{key}."), format!("tollgate/{key}/"));
    said(
        "/v3/kv/range",
        &format!(r#"{{"key":"{}","range_end":"{}"}}"#, base64(&first), base64(&end)),
    )
    .await
}

/// The server's answer to this request.
pub(crate) async fn said(path: &'static str, body: &str) -> serde_json::Value {
    let body = body.to_owned();
    let answer = tokio::task::spawn_blocking(move || ask(address(), "POST", path, &body));
    let answer = answer.await.expect("it does not panic").expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

pub(crate) async fn count(key: &Key) -> usize {
    under(key).await["kvs"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn an_uncontended_acquire_takes_one_round_trip() {
    let (proxy, store) = proxied().await;
    let remote = Remote::permits(key(), 4).ttl(LONG).spawn(store).unwrap();
    let back = || async {
        while remote.stats().in_use > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    drop(remote.acquire(1).await.unwrap());
    back().await;
    for units in [1, 3, 4] {
        let before = exchanges(&proxy);
        let permit = remote.acquire(units).await.unwrap();
        assert_eq!(exchanges(&proxy) - before, 1);
        drop(permit);
        back().await;
        assert_eq!(exchanges(&proxy) - before, 2, "and one to give it back");
    }
}

/// A change whose answer was lost was made again, or arrives after its successor.
#[tokio::test]
async fn a_change_whose_answer_was_lost_is_made_once() {
    let (proxy, store) = proxied().await;
    let key = key();
    let mut one = RawSession::new(&store, &key, Rule::Permits { limit: 2 }, LONG);
    one.look().await;
    let before = count(&key).await;
    proxy.set(Mode::LoseReplies);
    let lost = timeout(Duration::from_millis(300), one.request(1, true)).await;
    assert!(lost.is_err(), "{lost:?}");
    while count(&key).await == before {
        sleep(Duration::from_millis(5)).await;
    }
    proxy.set(Mode::Pass);
    let reply = loop {
        match one.say(|_| {}).await {
            Ok(reply) => break reply,
            Err(StoreError::Unreachable { .. }) => sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((reply.grants.len(), reply.usage.in_use), (1, 1));
    assert_eq!(count(&key).await, before + 1);
}

/// An operator revoked the lease: its permits are gone, and the holder learns it.
#[tokio::test]
async fn a_lease_that_is_gone_is_a_lost_session() {
    let (store, key) = (store(), key());
    let mut late = RawSession::new(&store, &key, ONE, LONG);
    let mut next = RawSession::new(&store, &key, ONE, LONG);
    late.request(1, true).await;
    next.request(1, true).await;
    let session = base64(&format!("tollgate/{key}.permits/s/{}", late.last().session));
    let there = under(&key).await;
    let pairs = there["kvs"].as_array().expect("keys");
    let lease = pairs
        .iter()
        .find(|pair| pair["key"] == *session)
        .map(|pair| pair["lease"].clone());
    said(
        "/v3/lease/revoke",
        &format!(r#"{{"ID":{}}}"#, lease.expect("it is there")),
    )
    .await;
    // The server notifies the waiter.
    store.notified(&key, next.last().session).await;
    assert_eq!(next.look().await.grants.len(), 1);
    assert!(!late.look().await.alive);
}

/// The server has compacted the changes that a watch asks for.
#[tokio::test]
async fn a_watch_that_was_compacted_away_reads_anew() {
    let (proxy, waiting) = proxied().await;
    let (store, key) = (store(), key());
    let mut holder = RawSession::new(&store, &key, ONE, LONG);
    let mut waits = RawSession::new(&waiting, &key, ONE, LONG);
    holder.request(1, true).await;
    waits.request(1, true).await;
    let mut news = pin!(waiting.notified(&key, waits.last().session));
    assert!(matches!(futures::poll!(news.as_mut()), Poll::Pending));
    // While it is cut off, its turn comes, and the history is compacted.
    proxy.set(Mode::Cut);
    holder.give(1).await;
    let revision = under(&key).await["header"]["revision"].clone();
    said("/v3/kv/compaction", &format!(r#"{{"revision":{revision}}}"#)).await;
    proxy.set(Mode::Pass);
    news.await;
    assert_eq!(waits.look().await.grants.len(), 1);
}

#[tokio::test]
async fn a_wait_sees_each_change_with_one_request() {
    let (proxy, waiting) = proxied().await;
    // The look, and beside it the renewals of the leases of the session and of the limit.
    assert!(asked_after_a_wait(&proxy, waiting, store()).await <= 3);
}

/// More requests than a transaction fits.
#[tokio::test]
async fn many_requests_at_once_are_all_queued() {
    let (store, key) = (store(), key());
    let rule = Rule::Permits { limit: 150 };
    let mut one = RawSession::new(&store, &key, rule, LONG);
    let requests = (1..=200).map(|id| tollgate::remote::Request {
        id,
        need: 1,
        want: 1,
        queue: true,
    });
    let requests: Vec<_> = requests.collect();
    let reply = one.say(|sync| sync.requests = requests).await.unwrap();
    let granted: Vec<_> = reply.grants.iter().map(|grant| grant.request).collect();
    assert_eq!(granted, (1..=150).collect::<Vec<_>>());
    assert!(reply.grants.is_sorted_by(|one, next| one.token < next.token));
    assert_eq!(reply.usage.waiting, 50);
    one.end().await;
    assert_eq!(count(&key).await, 0);
}

#[tokio::test]
async fn keys_go_with_the_last_session_also_when_it_dies() {
    let key = key();
    {
        let store = store();
        let mut one = RawSession::new(&store, &key, ONE, Duration::from_secs(1));
        one.request(1, true).await;
        assert_eq!(count(&key).await, 3);
    }
    // Its client is dead: the limit goes last, since its lease is the longest.
    while count(&key).await > 0 {
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn something_else_under_the_key_is_refused_and_left_alone() {
    let (store, key) = (store(), key());
    let at = base64(&format!("tollgate/{key}.permits/lock"));
    said("/v3/kv/put", &format!(r#"{{"key":"{at}","value":"YQ=="}}"#)).await;
    let mut one = RawSession::new(&store, &key, ONE, LONG);
    let refused = one.say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn names_that_begin_alike_are_not_mixed_up() {
    let store = store();
    let name = key();
    let (short, long) = (name.clone(), Key::new(format!("{name}/w")).unwrap());
    let mut one = RawSession::new(&store, &short, ONE, LONG);
    let mut other = RawSession::new(&store, &long, ONE, LONG);
    one.request(1, true).await;
    assert_eq!(other.request(1, true).await.grants.len(), 1);
    assert_eq!(one.look().await.usage.in_use, 1);
}

#[tokio::test]
async fn missing_capabilities_are_reported_at_build_time() {
    for (address, prefix) in [("127.0.0.1:1", "a"), ("http://a:1", "")] {
        let built = Etcd::options(address).prefix(prefix).connect();
        assert!(matches!(built, Err(RemoteError::Address { .. })), "{address} {prefix}");
    }
    let secret = Etcd::options("http://a:1").token("secret");
    assert!(!format!("{secret:?} {:?}", secret.clone().connect().unwrap()).contains("secret"));
}

#[tokio::test]
async fn more_than_the_limit_is_refused() {
    let remote = Remote::permits(key(), 4).ttl(LONG).spawn(store()).unwrap();
    assert_eq!(remote.acquire(5).await.unwrap_err().reason(), Reason::Oversized);
}

/// A hop to the server that records its requests.
async fn written_down() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("an address");
    let written = Arc::<Mutex<Vec<u8>>>::default();
    let told = Arc::clone(&written);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut server, told) = (
                TcpStream::connect(address()).await.expect("a server"),
                Arc::clone(&told),
            );
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.split();
                let there = async {
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                        told.lock().unwrap().extend_from_slice(&buffer[..read]);
                        if to_server.write_all(&buffer[..read]).await.is_err() {
                            break;
                        }
                    }
                };
                let back = tokio::io::copy(&mut from_server, &mut to_client);
                tokio::select! { () = there => {} _ = back => {} }
            });
        }
    });
    (at, written)
}

/// An abandoned change that arrives when others have taken its place.
#[tokio::test]
async fn a_change_that_comes_late_does_nothing() {
    let (hop, written) = written_down().await;
    let (store, key) = (at(hop), key());
    let mut one = RawSession::new(&store, &key, Rule::Permits { limit: 2 }, LONG);
    one.look().await;
    let before = count(&key).await;
    written.lock().unwrap().clear();
    assert_eq!(one.request(1, true).await.grants.len(), 1);
    // The body of the only transaction.
    let late = String::from_utf8(written.lock().unwrap().clone()).expect("a request");
    assert_eq!(late.matches("POST ").count(), 1, "{late}");
    let (head, body) = late.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("POST /v3/kv/txn "), "{head}");
    assert_eq!(one.give(1).await.usage.in_use, 0);
    for _ in 0..2 {
        let answer = said("/v3/kv/txn", body).await;
        assert!(
            answer["responses"].is_array() && answer["succeeded"] != true,
            "{answer}"
        );
    }
    assert_eq!(count(&key).await, before, "what was given back is not there again");
    // Nor after the end.
    let there = count(&key).await;
    one.end().await;
    let answer = said("/v3/kv/txn", body).await;
    assert!(answer["succeeded"] != true && there > 0, "{answer}");
    assert_eq!(count(&key).await, 0);
}

#[tokio::test]
async fn a_lease_is_never_shorter_than_requested() {
    let (store, key) = (store(), key());
    let ttl = Duration::from_millis(3_200);
    let mut one = RawSession::new(&store, &key, ONE, ttl);
    one.look().await;
    let there = under(&key).await;
    let pairs = there["kvs"].as_array().expect("keys");
    let mut granted = Vec::new();
    for pair in pairs {
        let lease = said("/v3/lease/timetolive", &format!(r#"{{"ID":{}}}"#, pair["lease"])).await;
        granted.push(lease["grantedTTL"].as_str().expect("a lease").to_owned());
    }
    // The limit's, and the session's.
    assert_eq!(granted, ["12", "4"]);
}

/// Policies pushed from a key.
mod pushed {
    use super::{Proxy, at, base64, key, proxied, said, sleep};
    use crate::rig::proxy::Mode;
    use std::time::Duration;
    use tollgate_config::{ConfigError, LegKind, PolicySpec, Source};
    use tollgate_stores::EtcdPolicy;

    fn text(limit: usize) -> String {
        format!("[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = {limit}\n")
    }

    fn limit(spec: &PolicySpec) -> usize {
        match &spec.legs[0].kind {
            LegKind::Semaphore { limit } => *limit,
            other => panic!("{other:?}"),
        }
    }

    async fn put(key: &str, value: &str) {
        said(
            "/v3/kv/put",
            &format!(r#"{{"key":"{}","value":"{}"}}"#, base64(key), base64(value)),
        )
        .await;
    }

    async fn delete(key: &str) {
        said("/v3/kv/deleterange", &format!(r#"{{"key":"{}"}}"#, base64(key))).await;
    }

    /// A key with a policy of limit 1, and its source, which reaches the server by a proxy.
    async fn opened() -> (Proxy, String, EtcdPolicy) {
        let (proxy, store) = proxied().await;
        let key = format!("config/{}.toml", key());
        put(&key, &text(1)).await;
        let (spec, source) = store.policy::<PolicySpec>(&key).await.unwrap();
        assert_eq!(limit(&spec), 1);
        (proxy, key, source.retry_after(Duration::from_millis(10)))
    }

    async fn version(source: &mut EtcdPolicy) -> usize {
        limit(&source.next().await.expect("it goes on").expect("a version"))
    }

    async fn error(source: &mut EtcdPolicy) -> ConfigError {
        source.next().await.expect("it goes on").expect_err("an error")
    }

    #[tokio::test]
    async fn each_new_value_is_a_version_and_an_invalid_one_is_reported_once() {
        let (_proxy, key, mut source) = opened().await;
        put(&key, &text(2)).await;
        assert_eq!(version(&mut source).await, 2);
        put(&key, "[[leg]]\nname = 1\n").await;
        let why = error(&mut source).await.to_string();
        assert!(why.contains(&key) && why.contains(":2:8: key `name`"), "{why}");
        delete(&key).await;
        let why = error(&mut source).await.to_string();
        assert!(why.contains("there is no such key"), "{why}");
        // Back to the last valid version: no event. Then a new one.
        put(&key, &text(2)).await;
        put(&key, &text(2)).await;
        put(&key, &text(3)).await;
        assert_eq!(version(&mut source).await, 3);
    }

    #[tokio::test]
    async fn while_the_store_is_away_the_last_version_is_kept() {
        let (proxy, key, mut source) = opened().await;
        proxy.set(Mode::Cut);
        error(&mut source).await;
        // It is reported once: the next event is the next version.
        put(&key, &text(4)).await;
        put(&key, &text(5)).await;
        let back = async {
            sleep(Duration::from_millis(100)).await;
            proxy.set(Mode::Pass);
        };
        let (limit, ()) = tokio::join!(version(&mut source), back);
        assert_eq!(limit, 5);
    }

    #[tokio::test]
    async fn an_unclaimed_version_is_given_to_the_next_waiter() {
        let (_proxy, key, mut source) = opened().await;
        for _ in 0..10 {
            assert!(futures::poll!(std::pin::pin!(source.next())).is_pending());
        }
        put(&key, &text(6)).await;
        assert_eq!(version(&mut source).await, 6);
    }

    #[tokio::test]
    async fn a_key_that_is_not_there_or_no_policy_is_an_error_at_once() {
        let store = at(super::address());
        let name = format!("config/{}.toml", key());
        assert!(store.policy::<PolicySpec>(&name).await.is_err());
        put(&name, "nonsense").await;
        assert!(store.policy::<PolicySpec>(&name).await.is_err());
    }
}
