//! A server whose clock jumps. The jump is simulated in its data: an hour forward for the clock is an hour back for the data.

use crate::raw_session::{LONG, PATIENCE, RawSession, SHORT};
use crate::redis::{bulk, eval};
use crate::rig::server::Server;
use crate::store::{key, own, own_unopened};
use std::time::{Duration, Instant};
use tollgate::Quota;
use tollgate::remote::{Backend as _, KeyLeg, Remote, Rule, Step};

const PERMITS: Rule = Rule::Permits { limit: 2 };
const HOUR: Duration = Duration::from_secs(3_600);
/// By how much a clock is set back: as after a correction, and as after a wrong time zone.
pub(crate) const BACK: [Duration; 2] = [Duration::from_secs(3), HOUR];

/// Moves all stored instants by an hour, forward if `sign` is 1: as if the server's clock had been set back.
fn shift(sign: i64) -> String {
    shift_by(sign * 3_600_000_000)
}

/// As if the server's clock had been set back.
fn set_back(by: Duration) -> String {
    shift_by(i64::try_from(by.as_micros()).expect("a few hours"))
}

/// Moves all stored instants forward by that many microseconds, but for permits of keys.
fn shift_by(by: i64) -> String {
    format!(
        "local shifted = 0 \
         for _, key in ipairs(redis.call('KEYS', '*')) do \
         if redis.call('TYPE', key).ok == 'hash' then \
         for _, field in ipairs({{ 'now', 'frozen', 'at', 'due' }}) do local was = redis.call('HGET', key, field) \
         if was then shifted = shifted + 1 redis.call('HSET', key, field, string.format('%.0f', was + {by})) end end \
         local function move(field, format, from, to) \
         local packed = redis.call('HGET', key, field) \
         if not packed then return end \
         local numbers = {{ struct.unpack(format, packed) }} \
         local rest = string.sub(packed, numbers[#numbers]) \
         for at = from, to do if numbers[at] > 0 then numbers[at] = numbers[at] + {by} end end \
         shifted = shifted + 1 \
         redis.call('HSET', key, field, struct.pack(format, unpack(numbers, 1, #numbers - 1)) .. rest) end \
         if string.find(key, 'permits', 1, true) then \
         move('state', 'dddddd', 5, 6) \
         for _, field in ipairs(redis.call('HKEYS', key)) do \
         if string.find(field, '^s%x+%.') then move(field, 'dddddd', 6, 6) end end end end \
         if key == 'tollgate:clock' then redis.call('SET', key, string.format('%.0f', redis.call('GET', key) + {by}), 'KEEPTTL') end \
         if string.find(key, ':legs:state', 1, true) then \
         local known = cmsgpack.unpack(redis.call('GET', key)) \
         known[1], known[3] = known[1] + {by}, known[3] + {by} \
         for _, leg in pairs(known[4]) do \
         if #leg == 6 then leg[5], leg[6] = leg[5] + {by}, leg[6] + {by} \
         else for n = 2, #leg, 2 do leg[n] = leg[n] + math.floor({by} / leg[1]) end end end \
         shifted = shifted + 1 \
         redis.call('SET', key, cmsgpack.pack(known), 'KEEPTTL') end \
         if string.find(key, 'dues', 1, true) then \
         for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, {by}, id) end end end \
         if shifted == 0 then return redis.error_reply('nothing is remembered') end"
    )
}

/// The store's time stands still until the clock has caught up: no permit is lost by it, and permits are still granted.
#[tokio::test]
async fn a_clock_that_is_set_back_takes_nothing_from_holders() {
    let (server, store, key) = own(PERMITS).await;
    let mut one = RawSession::new(&store, &key, PERMITS, LONG);
    let mut other = RawSession::new(&store, &key, PERMITS, LONG);
    let before = one.request(1, true).await.grants[0].token;
    eval(&server, &shift(1)).unwrap();
    assert!(one.look().await.alive);
    let after = other.request(1, true).await.grants[0].token;
    assert!(after > before);
    one.give(1).await;
    let next = one.request(1, true).await;
    let last = next.grants.last().expect("one was free").token;
    assert!(last > after, "tokens grow on");
}

/// The clock goes on from where it was: the dead do not keep theirs for an hour.
#[tokio::test]
async fn permits_of_the_dead_come_back_when_the_clock_is_set_back() {
    let (server, store, key) = own(PERMITS).await;
    let mut other = RawSession::new(&store, &key, PERMITS, LONG);
    let mut dead = RawSession::new(&store, &key, PERMITS, SHORT);
    assert_eq!(dead.request(2, true).await.grants.len(), 1);
    eval(&server, &shift(1)).unwrap();
    let begun = Instant::now();
    while other.request(2, false).await.grants.is_empty() {
        assert!(begun.elapsed() < HOUR / 20);
        tokio::time::sleep(SHORT / 10).await;
    }
}

/// A step of a waiter reads some of the sessions that keep permits, however many there are. The next steps tell the others.
#[tokio::test]
async fn a_waiter_tells_some_of_many_holders_at_a_step() {
    const HOLDERS: u64 = 200;
    let rule = Rule::Permits { limit: HOLDERS };
    let (server, store, key) = own(rule).await;
    let mut holders = Vec::new();
    for _ in 0..HOLDERS {
        let mut holder = RawSession::new(&store, &key, rule, LONG);
        holder.say(|sync| sync.keeps = true).await.unwrap();
        assert_eq!(holder.request(1, true).await.grants.len(), 1);
        holders.push(holder);
    }
    let told = || {
        let stats = bulk(server.address(), "INFO commandstats").unwrap();
        let calls = stats.split_once("cmdstat_publish:calls=").map_or("0", |(_, rest)| rest);
        let end = calls.find(|c: char| !c.is_ascii_digit()).unwrap_or(calls.len());
        calls[..end].parse::<u64>().unwrap()
    };
    let before = told();
    let mut waiter = RawSession::new(&store, &key, rule, LONG);
    waiter.request(1, true).await;
    // Another session may stand among the first.
    assert!((60..=64).contains(&(told() - before)));
    for _ in 0..4 {
        waiter.look().await;
    }
    assert_eq!(told() - before, HOLDERS);
}

/// Leases that it jumps over end, and their holders learn it with their next sync.
#[tokio::test]
async fn a_clock_that_is_set_forward_ends_leases_and_says_so() {
    let (server, store, key) = own(PERMITS).await;
    let mut one = RawSession::new(&store, &key, PERMITS, LONG);
    one.request(2, true).await;
    eval(&server, &shift(-1)).unwrap();
    let mut other = RawSession::new(&store, &key, PERMITS, LONG);
    let reply = other.request(2, true).await;
    assert_eq!((reply.grants.len(), reply.usage.sessions), (1, 1));
    assert!(!one.look().await.alive);
}

/// A bucket and a window go on from where they were: without an hour of refusals, and without a refill twice.
#[tokio::test]
async fn rates_go_on_when_the_clock_is_set_back() {
    let quota = Quota::per_second(1).burst(5);
    let window = Rule::Window {
        limit: 5,
        length: Duration::from_secs(2),
    };
    for rule in [Rule::Rate { quota }, window] {
        let (server, store, key) = own(rule).await;
        let mut one = RawSession::new(&store, &key, rule, LONG);
        // On a very slow machine everything is as good as new, and forgotten.
        while one.request(5, false).await.grants.is_empty() || eval(&server, &shift(1)).is_err() {}
        let mut other = RawSession::new(&store, &key, rule, LONG);
        let mut reply = other.request(1, false).await;
        let begun = Instant::now();
        while reply.grants.is_empty() {
            // It takes two seconds, and an hour if the time stands still.
            assert!(begun.elapsed() < HOUR / 20, "{reply:?}");
            tokio::time::sleep(SHORT / 10).await;
            reply = other.request(1, false).await;
        }
    }
}

/// Set back once more, and right again: the tokens taken within the repeated hour are not there twice.
#[tokio::test]
async fn tokens_stay_taken_when_the_clock_is_set_back() {
    let rule = Rule::Rate {
        quota: Quota::per_hour(1).burst(5),
    };
    let (server, store, key) = own(rule).await;
    let mut one = RawSession::new(&store, &key, rule, LONG);
    assert_eq!(one.request(5, false).await.grants.len(), 1);
    for _ in 0..3 {
        eval(&server, &shift(1)).unwrap();
        let mut other = RawSession::new(&store, &key, rule, LONG);
        assert_eq!(other.request(1, false).await.grants, []);
    }
}

/// A bucket that is full again, and a window whose units have left.
fn brief_rates() -> [Rule; 2] {
    let quota = Quota::per_second(20).burst(2);
    let length = Duration::from_millis(64);
    [Rule::Rate { quota }, Rule::Window { limit: 2, length }]
}

/// Waits until the server knows nothing of a limiter, except the sessions that have used it.
async fn forgotten(server: &Server<crate::redis::Redis>) {
    let is_state = |name: &String| !name.contains(":taker:");
    while server.keys().expect("a server that answers").iter().any(is_state) {
        tokio::time::sleep(SHORT / 20).await;
    }
}

/// Given a clock that is set back while a rate or a window is in use, when the limiter has been forgotten, since it is as good as new, then the
/// process that has used it is admitted at once, and a waiter of it is served.
#[tokio::test]
async fn an_idle_rate_or_window_admits_at_once_after_the_clock_was_set_back() {
    for by in BACK {
        let (server, store, key) = own_unopened().await;
        for rule in brief_rates() {
            let remote = match rule {
                Rule::Window { limit, length } => Remote::window(key.clone(), limit, length),
                Rule::Rate { quota } => Remote::rate(key.clone(), quota),
                _ => unreachable!("a rate or a window"),
            };
            let remote = remote.ttl(LONG).spawn(store.clone()).expect("settings that can be");
            drop(remote.acquire(2).await.expect("it is new"));
            eval(&server, &set_back(by)).expect("something is remembered");
            drop(remote.acquire(1).await.expect("it comes back"));
            forgotten(&server).await;
            let admitted = remote.acquire_now(1).await;
            assert!(admitted.is_ok(), "{rule:?}, set back by {by:?}: {admitted:?}");
            forgotten(&server).await;
            let served = tokio::time::timeout(PATIENCE, remote.acquire(1)).await;
            assert!(matches!(served, Ok(Ok(_))), "{rule:?}, set back by {by:?}: {served:?}");
        }
    }
}

/// Given a limiter that has gone with its last session, and a clock that was set back before or after, when the limiter is used again, then its
/// tokens are greater than those before.
#[tokio::test]
async fn tokens_of_a_limiter_that_had_gone_grow_after_the_clock_was_set_back() {
    const TTL: Duration = Duration::from_secs(2);
    let (server, store, key) = own_unopened().await;
    for rule in [PERMITS].into_iter().chain(brief_rates()) {
        let mut last = 0;
        for by in BACK {
            for in_use in [true, false] {
                let mut one = RawSession::new(&store, &key, rule, TTL);
                one.request(1, true).await;
                let first = one.until_granted().await.token;
                assert!(first > last, "{rule:?}: {first} after {last}");
                one.look().await;
                if in_use {
                    eval(&server, &set_back(by)).expect("something is remembered");
                }
                let reply = one.request(1, false).await;
                last = reply.grants.last().expect("two are there").token;
                one.end().await;
                while !server.keys().expect("a server that answers").is_empty() {
                    tokio::time::sleep(SHORT / 20).await;
                }
            }
        }
    }
}

/// Given a key, and a leg that is counted at another one, from which all was taken, when the clock is set back, then the time of both goes on with
/// each refusal, and what was taken comes back.
#[tokio::test]
async fn a_drained_key_goes_on_when_the_clock_is_set_back() {
    for by in BACK {
        for drained in 0..2 {
            let (server, store, name) = own_unopened().await;
            let length = Duration::from_millis(640);
            let rules =
                [Quota::per_second(1_000), Quota::per_second(2)].map(|quota| Rule::Rate { quota: quota.burst(1) });
            let window = Rule::Window { limit: 1, length };
            let mut legs = [KeyLeg::new("own", rules[1]), KeyLeg::new("shared", rules[0])];
            if drained == 1 {
                legs = [KeyLeg::new("own", rules[0]), KeyLeg::new("shared", window)];
            }
            legs[1].key = Some(key());
            let mut seq = 0;
            let mut step = async || {
                seq += 1;
                let mut step = Step::new(1, seq, LONG);
                step.takes = vec![KeyLeg::units([1, 1])];
                let reply = store.step(&name, &legs, &step).await.expect("a reply");
                (reply.at, reply.takes[0].is_ok())
            };
            let (before, taken) = step().await;
            assert!(taken, "it is new");
            eval(&server, &set_back(by)).expect("something is remembered");
            let begun = Instant::now();
            let first = step().await;
            assert!(!first.1, "on a very slow machine it has come back");
            let by = u64::try_from(by.as_micros()).expect("hours");
            assert!(first.0 - before >= by, "set back by {by} us");
            // The server forgets a key that is as new, and its time with it: only refusals tell how that goes on.
            let mut last = first.0;
            loop {
                let (at, taken) = step().await;
                if taken {
                    break;
                }
                assert!(at > last, "its time goes on");
                assert!(begun.elapsed() < PATIENCE);
                last = at;
            }
        }
    }
}
