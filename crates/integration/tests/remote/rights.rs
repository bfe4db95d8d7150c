//! Users of an access control list, with the documented rights, and one too few.

use crate::raw_session::{LONG, RawSession};
use crate::redis::{Redis as Program, bulk, eval, say};
use crate::rig::server::Server;
use crate::store::{key, own};
use std::time::Duration;
use tollgate::Quota;
use tollgate::remote::{Backend, Key, KeyLeg, Rule, Step, StoreError};
use tollgate_stores::Redis;

const PERMITS: Rule = Rule::Permits { limit: 2 };

/// The rights in the documentation.
fn documented() -> Vec<&'static str> {
    let source = include_str!("../../../tollgate-stores/src/redis/mod.rs");
    let from = source
        .find("/// ACL SETUSER")
        .expect("the documentation names the rights");
    let lines = source[from..].lines().take_while(|line| !line.contains("```"));
    lines
        .flat_map(|line| line.trim_start_matches("///").split_whitespace())
        .collect()
}

fn user(server: &Server<Program>, words: &[&str]) -> Redis {
    say(server, &words.join(" ")).unwrap();
    let address = format!("redis://{}/", server.address());
    let options = Redis::options(address).user("gate").password("secret");
    options.timeout(Duration::from_secs(60)).connect().unwrap()
}

fn rules() -> [Rule; 3] {
    let quota = Quota::per_second(10);
    let (limit, length) = (2, Duration::from_secs(1));
    [PERMITS, Rule::Rate { quota }, Rule::Window { limit, length }]
}

#[tokio::test]
async fn the_documented_rights_suffice() {
    let (server, _, opened) = own(PERMITS).await;
    let store = user(&server, &documented());
    for rule in rules() {
        let key = if rule == PERMITS { opened.clone() } else { key() };
        let mut one = RawSession::new(&store, &key, rule, LONG);
        let mut other = RawSession::new(&store, &key, rule, LONG);
        assert_eq!(one.request(2, true).await.grants.len(), 1, "{rule:?}");
        other.request(2, true).await;
        one.say(|sync| sync.withdrawn = vec![9]).await.unwrap();
        if rule == PERMITS {
            // The waiter is notified.
            let session = other.last().session;
            one.give(2).await;
            store.notified(&key, session).await;
            assert_eq!(other.look().await.grants.len(), 1);
        }
        one.end().await;
        other.end().await;
    }
    let [_, rate, window] = rules();
    let legs = [("rate", rate), ("window", window)].map(|(name, rule)| KeyLeg::new(name, rule));
    let step = Step {
        takes: vec![[1; KeyLeg::MOST]],
        ..Step::new(7, 1, LONG)
    };
    assert_eq!(store.step(&key(), &legs, &step).await.unwrap().takes, [Ok(())]);
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_before_anything_is_done() {
    let (server, _, key) = own(PERMITS).await;
    let all = documented();
    let mut keys = server.keys().unwrap();
    keys.sort();
    let mut tried = 0;
    for right in all.iter().filter(|word| word.starts_with('+')) {
        // Not needed once the server knows the scripts.
        if *right == "+eval" {
            continue;
        }
        let words: Vec<_> = all.iter().filter(|word| *word != right).copied().collect();
        let store = user(&server, &words);
        for rule in rules() {
            let mut one = RawSession::new(&store, &key, rule, LONG);
            let refused = one.say(|_| {}).await;
            assert!(
                matches!(refused, Err(StoreError::Refused { .. })),
                "{right}: {refused:?}"
            );
        }
        let mut left = server.keys().unwrap();
        left.sort();
        assert_eq!(left, keys, "{right}");
        tried += 1;
    }
    assert!(tried > 10);
}

/// A key that holds a value of another type, as of another version, is refused, and stays as it is.
#[tokio::test]
async fn a_value_of_another_type_is_refused_and_stays() {
    let (server, store, _) = own(PERMITS).await;
    let put = |key: &Key, kind: &str| {
        let name = format!("tollgate:{{{key}}}:{kind}:state");
        eval(&server, &format!("redis.call('LPUSH', '{name}', 'other')")).unwrap();
        name
    };
    let refused = |answer: Result<(), StoreError>, name: String| {
        let named = matches!(&answer, Err(StoreError::Refused { why }) if why.contains("WRONGTYPE"));
        assert!(named, "{name}: {answer:?}");
        let kind = bulk(server.address(), &format!("LINDEX {name} 0")).unwrap();
        assert_eq!(kind, "other", "{name}");
    };
    for rule in rules() {
        let key = key();
        let name = put(&key, rule.kind());
        let mut one = RawSession::new(&store, &key, rule, LONG);
        refused(one.say(|_| {}).await.map(|_| ()), name);
    }
    let (key, [permits, rate, _]) = (key(), rules());
    let name = put(&key, "legs");
    let legs = [("permits", permits), ("rate", rate)].map(|(name, rule)| KeyLeg::new(name, rule));
    let step = Step {
        takes: vec![[1; KeyLeg::MOST]],
        ..Step::new(7, 1, LONG)
    };
    refused(store.step(&key, &legs, &step).await.map(|_| ()), name);
}

#[tokio::test]
async fn keys_and_channels_of_others_are_refused() {
    let (server, _, _) = own(PERMITS).await;
    let (elsewhere, key) = (documented(), key());
    for (ours, theirs) in [("~tollgate:*", "~other:*"), ("&tollgate:*", "&other:*")] {
        let words = elsewhere.iter().map(|&word| if word == ours { theirs } else { word });
        let store = user(&server, &words.collect::<Vec<_>>());
        let mut one = RawSession::new(&store, &key, PERMITS, LONG);
        let refused = one.say(|_| {}).await;
        assert!(
            matches!(refused, Err(StoreError::Refused { .. })),
            "{ours}: {refused:?}"
        );
    }
    let address = format!("redis://{}/", server.address());
    let wrong = Redis::options(address)
        .user("gate")
        .password("wrong")
        .connect()
        .unwrap();
    let refused = RawSession::new(&wrong, &key, PERMITS, LONG).say(|_| {}).await;
    assert!(refused.is_err(), "{refused:?}");
}
