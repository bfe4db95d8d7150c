//! A server whose clock jumps. What the clock does to the server is done to what it remembers: an hour forward for the one is an
//! hour back for the other.

use crate::redis::eval;
use crate::speaker::{LONG, SHORT, Speaker};
use crate::store::own;
use std::time::{Duration, Instant};
use tollgate::Quota;
use tollgate::remote::Rule;

const PERMITS: Rule = Rule::Permits { limit: 2 };
const HOUR: Duration = Duration::from_secs(3_600);

/// Moves all instants that the server remembers by an hour, forward by `sign` of 1: as if its clock had been set back.
fn shift(sign: i64) -> String {
    let by = sign * 3_600_000_000;
    format!(
        "local shifted = 0 \
         for _, key in ipairs(redis.call('KEYS', '*')) do \
         if redis.call('TYPE', key).ok == 'hash' then \
         for _, field in ipairs({{ 'now', 'frozen', 'at', 'due' }}) do local was = redis.call('HGET', key, field) \
         if was then shifted = shifted + 1 redis.call('HSET', key, field, string.format('%.0f', was + {by})) end end end \
         if string.find(key, 'dues', 1, true) then \
         for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, {by}, id) end end end \
         if shifted == 0 then return redis.error_reply('nothing is remembered') end"
    )
}

/// Its own clock stands still until the other has caught up: no holder loses a permit by it, and permits are granted on.
#[tokio::test]
async fn a_clock_that_is_set_back_takes_nothing_from_holders() {
    let (server, store, key) = own(PERMITS).await;
    let mut one = Speaker::new(&store, &key, PERMITS, LONG);
    let mut other = Speaker::new(&store, &key, PERMITS, LONG);
    let before = one.wish(1, true).await.grants[0].token;
    eval(&server, &shift(1)).unwrap();
    assert!(one.look().await.alive);
    let after = other.wish(1, true).await.grants[0].token;
    assert!(after > before);
    one.give(1).await;
    let next = one.wish(1, true).await;
    let last = next.grants.last().expect("one was free").token;
    assert!(last > after, "tokens grow on");
}

/// Leases that it jumps over end, and holders learn it with their next step.
#[tokio::test]
async fn a_clock_that_is_set_forward_ends_leases_and_says_so() {
    let (server, store, key) = own(PERMITS).await;
    let mut one = Speaker::new(&store, &key, PERMITS, LONG);
    one.wish(2, true).await;
    eval(&server, &shift(-1)).unwrap();
    let mut other = Speaker::new(&store, &key, PERMITS, LONG);
    let reply = other.wish(2, true).await;
    assert_eq!((reply.grants.len(), reply.census.sessions), (1, 1));
    assert!(!one.look().await.alive);
}

/// A bucket and a window go on from where they were: neither an hour without anything, nor anything twice.
#[tokio::test]
async fn rates_go_on_when_the_clock_is_set_back() {
    let quota = Quota::per_second(1).burst(5);
    let window = Rule::Window {
        limit: 5,
        length: Duration::from_secs(2),
    };
    for rule in [Rule::Rate { quota }, window] {
        let (server, store, key) = own(rule).await;
        let mut one = Speaker::new(&store, &key, rule, LONG);
        // On a machine that is slow beyond measure it is all as good as new, and forgotten.
        while one.wish(5, false).await.grants.is_empty() || eval(&server, &shift(1)).is_err() {}
        let mut other = Speaker::new(&store, &key, rule, LONG);
        let mut reply = other.wish(1, false).await;
        let begun = Instant::now();
        while reply.grants.is_empty() {
            // It takes two seconds, and an hour if the clock stands still.
            assert!(begun.elapsed() < HOUR / 20, "{reply:?}");
            tokio::time::sleep(SHORT / 10).await;
            reply = other.wish(1, false).await;
        }
    }
}

/// Set back once more, and right again: what was taken within the hour that there was twice is not there twice.
#[tokio::test]
async fn tokens_stay_taken_when_the_clock_is_set_back() {
    let rule = Rule::Rate {
        quota: Quota::per_hour(1).burst(5),
    };
    let (server, store, key) = own(rule).await;
    let mut one = Speaker::new(&store, &key, rule, LONG);
    assert_eq!(one.wish(5, false).await.grants.len(), 1);
    for _ in 0..3 {
        eval(&server, &shift(1)).unwrap();
        let mut other = Speaker::new(&store, &key, rule, LONG);
        assert_eq!(other.wish(1, false).await.grants, []);
    }
}
