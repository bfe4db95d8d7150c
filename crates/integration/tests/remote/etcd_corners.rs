//! Permits in etcd: leases, ends and limits at bad moments.

use crate::etcd::ask;
use crate::etcd_sync::{address, base64, count, said, store, under};
use crate::raw_session::{LONG, RawSession};
use crate::store::key;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tollgate::remote::{Backend, Key, Remote, Rule};
use tollgate_config::{PolicySpec, Source};
use tollgate_stores::Etcd;

const RULE: Rule = Rule::Permits { limit: 8 };

async fn put(at: &str, value: &str, lease: &Value) {
    let body = format!(
        r#"{{"key":"{}","value":"{}","lease":{lease}}}"#,
        base64(at),
        base64(value)
    );
    said("/v3/kv/put", &body).await;
}

/// The stored limit, and the length of its lease.
async fn limit(key: &Key) -> Option<(Value, u64)> {
    let there = under(key).await;
    let at = base64(&format!("tollgate/{key}.permits/l"));
    let pair = there["kvs"].as_array()?.iter().find(|pair| pair["key"] == at)?.clone();
    let life = said("/v3/lease/timetolive", &format!(r#"{{"ID":{}}}"#, pair["lease"])).await;
    Some((pair["value"].clone(), life["grantedTTL"].as_str()?.parse().ok()?))
}

/// A session with a change in each sync has none of its own for renewals.
#[tokio::test]
async fn a_busy_session_renews_its_lease() {
    let (store, key) = (store(), key());
    let ttl = Duration::from_secs(3);
    let mut busy = RawSession::new(&store, &key, RULE, ttl);
    let begun = Instant::now();
    while begun.elapsed() < 2 * ttl {
        let reply = busy.request(1, true).await;
        assert!(reply.alive && reply.age < ttl / 2, "{:?}", reply.age);
        busy.give(1).await;
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_limit_can_be_set_before_the_first_use_of_the_key() {
    let (store, key) = (store(), key());
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    let reply = one.say(|sync| sync.limit = Some(5)).await.expect("it is set");
    assert_eq!(reply.usage.limit, 5);
    let mut other = RawSession::new(&store, &key, RULE, LONG);
    let reply = other.say(|sync| sync.limit = Some(6)).await.expect("it is set");
    assert_eq!(reply.usage.limit, 6);
    let remote = Remote::permits(self::key(), 8).ttl(LONG).spawn(store.clone()).unwrap();
    let set = timeout(Duration::from_secs(20), remote.set_limit(5)).await;
    set.expect("it ends").expect("it is allowed");
    assert_eq!(
        remote.acquire(6).await.unwrap_err().reason(),
        tollgate::Reason::Oversized
    );
}

#[tokio::test]
async fn a_limit_outlives_its_creator() {
    let (store, key) = (store(), key());
    let mut short = RawSession::new(&store, &key, RULE, Duration::from_secs(2));
    short.look().await;
    assert_eq!(limit(&key).await.map(|(_, lasts)| lasts), Some(6));
    let mut long = RawSession::new(&store, &key, RULE, LONG);
    long.look().await;
    assert_eq!(limit(&key).await.map(|(_, lasts)| lasts), Some(1_800));
    // A shorter one leaves it as it is.
    let mut shorter = RawSession::new(&store, &key, RULE, Duration::from_secs(2));
    shorter.look().await;
    short.say(|sync| sync.limit = Some(2)).await.expect("it is set");
    short.say(|sync| sync.limit = None).await.expect("it is there");
    short.end().await;
    assert_eq!(limit(&key).await, Some((base64("2").into(), 1_800)));
}

#[tokio::test]
async fn a_limit_that_has_gone_comes_back_as_it_was() {
    let (store, key) = (store(), key());
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    one.say(|sync| sync.limit = Some(2)).await.expect("it is set");
    one.say(|sync| sync.limit = None).await.expect("it is there");
    let delete = format!(r#"{{"key":"{}"}}"#, base64(&format!("tollgate/{key}.permits/l")));
    for _ in 0..2 {
        said("/v3/kv/deleterange", &delete).await;
        assert_eq!(one.look().await.usage.limit, 2);
        assert_eq!(limit(&key).await.map(|(limit, _)| limit), Some(base64("2").into()));
        said("/v3/kv/deleterange", &delete).await;
        // Also beside a change.
        let reply = one.request(1, true).await;
        assert_eq!((reply.usage.limit, reply.usage.in_use), (2, 1));
        assert_eq!(limit(&key).await.map(|(limit, _)| limit), Some(base64("2").into()));
        one.give(1).await;
    }
    // A waiter hears only the watch, and restores it.
    let mut other = RawSession::new(&store, &key, RULE, LONG);
    one.request(2, true).await;
    other.request(1, true).await;
    said("/v3/kv/deleterange", &delete).await;
    while limit(&key).await.is_none() {
        sleep(Duration::from_millis(10)).await;
    }
    one.end().await;
    other.end().await;
    assert_eq!(count(&key).await, 0);
}

#[tokio::test]
async fn keys_under_an_earlier_lease_are_not_the_sessions() {
    let (store, key) = (store(), key());
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    let session = one.last().session;
    let earlier = said("/v3/lease/grant", r#"{"TTL":"600"}"#).await["ID"].clone();
    put(&format!("tollgate/{key}.permits/s/{session}"), "1", &earlier).await;
    put(&format!("tollgate/{key}.permits/w/{session}/1/0"), "1", &earlier).await;
    let reply = one.request(1, true).await;
    assert!(!reply.alive && reply.grants.is_empty(), "{reply:?}");
    assert_eq!(count(&key).await, 0);
}

/// The answer to the first end was lost, and with it the lease of the session.
#[tokio::test]
async fn a_repeated_end_is_an_end() {
    let key = key();
    let (store, again) = (store(), self::store());
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    one.request(2, true).await;
    let mut end = one.last();
    (end.seq, end.end) = (end.seq + 1, true);
    for _ in 0..2 {
        again.sync(&key, &RULE, &end).await.expect("it ends");
        assert_eq!(count(&key).await, 0);
    }
}

#[tokio::test]
async fn foreign_keys_outlive_an_end() {
    let (store, key) = (store(), key());
    put(&format!("tollgate/{key}.permits/l"), "something", &0.into()).await;
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    assert!(one.say(|_| {}).await.is_err());
    assert_eq!(count(&key).await, 1);
    one.end().await;
    assert_eq!(count(&key).await, 1);
}

/// A gateway that does not stream answers a watch, and closes.
#[tokio::test]
async fn a_stream_that_ends_at_once_is_restarted_after_a_pause() {
    let key = format!("config/{}.toml", key());
    put(
        &key,
        "[[leg]]\nname = \"a\"\nkind = \"semaphore\"\nlimit = 1\n",
        &0.into(),
    )
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let gateway = Etcd::options(format!("http://{}", listener.local_addr().unwrap()));
    let (asked, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 16 * 1024];
            let Ok(read @ 1..) = stream.read(&mut request).await else {
                continue;
            };
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let body = if request.starts_with("POST /v3/watch ") {
                asked.send(()).expect("the test listens");
                r#"{"result":{"created":true}}"#.to_owned()
            } else {
                let (_, query) = request.split_once("\r\n\r\n").expect("a body");
                let query = query.to_owned();
                let answer = tokio::task::spawn_blocking(move || ask(address(), "POST", "/v3/kv/range", &query));
                let answer = answer.await.expect("it does not panic").expect("an answer");
                answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let (_, source) = gateway
        .connect()
        .unwrap()
        .policy::<PolicySpec>(&key)
        .await
        .expect("a policy");
    let mut source = source.retry_after(LONG);
    heard.recv().await.expect("a first watch");
    let next = timeout(Duration::from_millis(300), source.next()).await;
    assert!(next.is_err() && heard.try_recv().is_err(), "it was asked again");
}
