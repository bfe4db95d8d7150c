//! Tokens and windows in a real store, one sync at a time: the faults of the published bucket. The same tests for each store.

use crate::raw_session::{LONG, RawSession, SHORT};
use crate::redis::bulk;
use crate::store::{key, own_unopened, tag};
use std::time::{Duration, Instant};
use tollgate::Quota;
use tollgate::remote::{Backend, Request, Rule};

mod redis {
    crate::rate_sync::rated!(crate::store::store());
}

/// The tests, at the store that `$store` makes.
macro_rules! rated {
    ($store:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::rate_sync::$name($store).await;
            }
        )*
    };
    ($store:expr) => {
        $crate::rate_sync::rated! {
            $store;
            after_a_rest_there_is_the_burst_and_no_more
            tokens_taken_under_another_quota_come_back_under_it
            more_than_the_burst_never_fits_and_does_not_wait
            nothing_comes_of_asking_for_nothing
            a_bucket_of_one_serves_one_and_says_when_the_next_comes
            tokens_of_a_repeated_request_are_taken_once
            in_the_long_run_there_is_the_rate_and_no_more
            a_window_gives_its_limit
        }
    };
}
pub(crate) use rated;

fn rate(quota: &str) -> Rule {
    let quota: Quota = quota.parse().expect("a quota");
    Rule::Rate { quota }
}

/// A bucket that filled unobserved gave out its burst, and the refill of that time as well.
pub(crate) async fn after_a_rest_there_is_the_burst_and_no_more(store: impl Backend) {
    let key = key();
    let mut one = RawSession::new(&store, &key, rate("1000/s burst 10"), LONG);
    assert_eq!(one.request(10, false).await.grants[0].units, 10);
    // Time for twice as many.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let all = |sync: &mut tollgate::remote::SyncRequest| {
        let (id, need, want, queue) = (9, 1, 100, false);
        sync.requests = vec![Request { id, need, want, queue }];
    };
    let grants = one.say(all).await.unwrap().grants;
    let last = grants.last().expect("there is something");
    assert!(last.request == 9 && last.units == 10, "{grants:?}");
}

/// Two versions of a program, with different quotas, run for a while: tokens taken by one came back by the other's quota, in
/// the first one's parts of a token.
pub(crate) async fn tokens_taken_under_another_quota_come_back_under_it(store: impl Backend) {
    let key = key();
    let mut old = RawSession::new(&store, &key, rate("1000/1h burst 1000"), LONG);
    let mut new = RawSession::new(&store, &key, rate("1000003/1h burst 1000"), LONG);
    assert_eq!(old.request(1000, false).await.grants[0].units, 1000);
    // Time for all of them, had each microsecond brought a million parts of the old kind.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let reply = new.request(1, false).await;
    assert_eq!((reply.grants, reply.usage.in_use), (vec![], 1000));
}

pub(crate) async fn more_than_the_burst_never_fits_and_does_not_wait(store: impl Backend) {
    let key = key();
    let mut one = RawSession::new(&store, &key, rate("1000/s burst 10"), LONG);
    let reply = one.request(15, false).await;
    assert_eq!((reply.grants, reply.again, reply.usage.limit), (vec![], None, 10));
}

/// Clients told the original the time: a slow one turned it back, and the refill came again.
pub(crate) async fn nothing_comes_of_asking_for_nothing(store: impl Backend) {
    let key = key();
    let mut one = RawSession::new(&store, &key, rate("10/1h burst 10"), LONG);
    assert_eq!(one.request(10, false).await.grants.len(), 1);
    for _ in 0..100 {
        one.look().await;
    }
    let mut other = RawSession::new(&store, &key, rate("10/1h burst 10"), LONG);
    let reply = other.request(1, false).await;
    assert_eq!((reply.grants, reply.usage.in_use), (vec![], 10));
}

/// A burst of one at ten a second had a life of zero seconds in the original, and every request failed.
pub(crate) async fn a_bucket_of_one_serves_one_and_says_when_the_next_comes(store: impl Backend) {
    let key = key();
    let mut one = RawSession::new(&store, &key, rate("2/1h burst 1"), LONG);
    assert_eq!(one.request(1, false).await.grants.len(), 1);
    let again = one.request(1, false).await.again.expect("it comes");
    let half_an_hour = Duration::from_secs(1_800);
    assert!(
        again <= half_an_hour && again > half_an_hour - Duration::from_secs(600),
        "{again:?}"
    );

    let key = crate::store::key();
    let mut quick = RawSession::new(&store, &key, rate("10/s burst 1"), LONG);
    let mut served = 0;
    while served < 3 {
        let reply = quick.request(1, false).await;
        served += quick.see(&reply);
        tokio::time::sleep(SHORT / 10).await;
    }
}

pub(crate) async fn tokens_of_a_repeated_request_are_taken_once(store: impl Backend) {
    let key = key();
    let mut one = RawSession::new(&store, &key, rate("10/1h burst 10"), LONG);
    let first = one.request(2, false).await;
    for _ in 0..3 {
        let again = one.again(&one.last()).await.unwrap();
        assert_eq!((&again.grants, again.usage.in_use), (&first.grants, 2));
    }
}

/// Whole numbers throughout: the bucket is exact to the token, however odd the quota.
pub(crate) async fn in_the_long_run_there_is_the_rate_and_no_more(store: impl Backend) {
    let key = key();
    let mut one = RawSession::new(&store, &key, rate("7000/3s burst 5"), LONG);
    let begun = Instant::now();
    let mut taken = 0;
    while begun.elapsed() < 2 * SHORT || taken <= 5 {
        let reply = one.request(1, false).await;
        taken += one.see(&reply);
    }
    let most = 5.0 + begun.elapsed().as_secs_f64() * 7_000.0 / 3.0;
    assert!(taken as f64 <= most, "{taken} of {most}");
}

/// The stored level is that of whole numbers: a token is 3000 parts here, and a microsecond brings seven.
#[tokio::test]
async fn each_token_is_counted_to_the_last_part() {
    let (server, store, key) = own_unopened().await;
    let mut one = RawSession::new(&store, &key, rate("7000/3s burst 9"), LONG);
    // There is no key when the bucket is full.
    let remembered = || -> (u64, u64) {
        let script =
            "local s = redis.call('HMGET', ARGV[1], 'level', 'at') return (s[1] or '0') .. ' ' .. (s[2] or '0')";
        let said = bulk(
            server.address(),
            &format!("EVAL \"{script}\" 0 tollgate:{{{key}}}:rate:state"),
        )
        .unwrap();
        let (level, at) = said.split_once(' ').expect("two numbers");
        (
            level.parse().expect("a whole number"),
            at.parse().expect("a whole number"),
        )
    };
    for _ in 0..200 {
        let (level, at) = remembered();
        let reply = one.request(2, false).await;
        let taken = 3_000 * one.see(&reply);
        let (after, now) = remembered();
        if after > 0 {
            let flowed = if level > 0 { 7 * (now - at) } else { 0 };
            assert_eq!(after, level.saturating_sub(flowed) + taken);
        }
    }
}

pub(crate) async fn a_window_gives_its_limit(store: impl Backend) {
    let key = key();
    let length = Duration::from_secs(3_600);
    let mut one = RawSession::new(&store, &key, Rule::Window { limit: 3, length }, LONG);
    let mut other = RawSession::new(&store, &key, Rule::Window { limit: 3, length }, LONG);
    assert_eq!(one.request(2, false).await.grants.len(), 1);
    assert_eq!(other.request(2, false).await.grants.len(), 0);
    let reply = other.request(1, false).await;
    assert_eq!((reply.grants.len(), reply.usage.in_use), (1, 3));
    let again = other.request(1, false).await.again.expect("room comes back");
    // Up to a segment late.
    assert!(again <= length + length / 64 + Duration::from_secs(1), "{again:?}");
}

/// The two keys of the original expired independently, and lay in different slots of a cluster.
#[tokio::test]
async fn a_bucket_lies_in_one_slot_and_goes_when_it_is_as_good_as_new() {
    let (server, store, key) = own_unopened().await;
    let mut one = RawSession::new(&store, &key, rate("10/s burst 1"), SHORT);
    one.request(1, false).await;
    let tags: Vec<_> = server.keys().unwrap().iter().map(|key| tag(key)).collect();
    assert!(!tags.is_empty() && tags.iter().all(|tag| tag == &tags[0]), "{tags:?}");
    while !server.keys().unwrap().is_empty() {
        tokio::time::sleep(SHORT / 10).await;
    }
}
