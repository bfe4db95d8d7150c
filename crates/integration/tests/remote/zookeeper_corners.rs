//! Permits in ZooKeeper: foreign nodes, and nodes that are left behind.

use crate::raw_session::{LONG, RawSession};
use crate::store::key;
use crate::zookeeper::raw;
use crate::zookeeper_sync::{address, names, store};
use tollgate::remote::{Backend, Rule, StoreError};
use zookeeper_client::{Acls, CreateMode};

const RULE: Rule = Rule::Permits { limit: 8 };

/// Not even when the session that found it ends.
#[tokio::test]
async fn foreign_nodes_are_neither_written_under_nor_deleted() {
    let (store, key) = (store(), key());
    let client = raw(address()).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir("/tollgate", &open).await.unwrap();
    let path = format!("/tollgate/{key}.permits");
    client.create(&path, b"something", &open).await.unwrap();
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    let refused = one.say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    let (_, stat) = client.get_data(&path).await.unwrap();
    assert_eq!(stat.cversion, 0, "nothing was ever made under it");
    one.end().await;
    assert_eq!(client.get_data(&path).await.unwrap().0, b"something");
}

#[tokio::test]
async fn nodes_of_an_earlier_session_are_not_adopted() {
    let (store, key) = (store(), key());
    let client = raw(address()).await;
    let mut other = RawSession::new(&store, &key, RULE, LONG);
    other.look().await;
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    let session = one.last().session;
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    let present = format!("/tollgate/{key}.permits/s-{session}");
    client.create(&present, b"", &ephemeral).await.unwrap();
    let early = one.say(|_| {}).await;
    assert!(matches!(early, Err(StoreError::Unreachable { .. })), "{early:?}");
    client.delete(&present, None).await.unwrap();
    assert!(one.say(|sync| sync.begin = true).await.unwrap().alive);
}

/// A large grant that comes back bit by bit.
#[tokio::test]
async fn a_partial_return_replaces_the_one_before() {
    let (store, key) = (store(), key());
    let client = raw(address()).await;
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    one.request(8, true).await;
    for left in (1..8).rev() {
        assert_eq!(one.give(1).await.usage.in_use, left);
        let names = names(&client, &key).await;
        let marks: Vec<_> = names.iter().filter(|name| name.starts_with("r-")).collect();
        assert_eq!(marks.len(), 1, "{marks:?}");
    }
    one.give(1).await;
    assert_eq!(names(&client, &key).await.len(), 1, "but for the session");
}

/// Of failed syncs, or of another time.
#[tokio::test]
async fn marks_without_a_node_are_deleted() {
    let (store, key) = (store(), key());
    let client = raw(address()).await;
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    one.look().await;
    let session = one.last().session;
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    let mark = format!("/tollgate/{key}.permits/r-{session}-3-0000000077");
    client.create(&mark, b"", &ephemeral).await.unwrap();
    one.look().await;
    assert_eq!(names(&client, &key).await.len(), 1);
}

/// Every handle keeps its own sessions: an end by another deletes the nodes all the same.
#[tokio::test]
async fn a_repeated_end_is_an_end() {
    let key = key();
    let (store, again) = (store(), self::store());
    let client = raw(address()).await;
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    one.request(2, true).await;
    let mut end = one.last();
    (end.seq, end.end) = (end.seq + 1, true);
    for _ in 0..2 {
        again.sync(&key, &RULE, &end).await.expect("it ends");
        assert!(client.get_data(&format!("/tollgate/{key}.permits")).await.is_err());
    }
}
