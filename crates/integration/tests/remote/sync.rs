//! Permits in a real store, one sync at a time: the faults of the published algorithms.

use crate::raw_session::{LONG, RawSession, SHORT, raw_sessions};
use crate::redis::{micros, say};
use crate::store::{at, opened, own, own_unopened, tag};
use std::time::{Duration, Instant};
use tollgate::remote::{Grant, Remote, Rule, StoreError};

fn permits(limit: u64) -> Rule {
    Rule::Permits { limit }
}

/// The published script called a function that present servers do not have, so that no sync was ever carried out.
#[tokio::test]
async fn an_uncontended_request_is_granted_at_once() {
    let (store, key) = opened(permits(2)).await;
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    let reply = one.request(2, true).await;
    let [
        Grant {
            request: 1,
            units: 2,
            token,
        },
    ] = reply.grants[..]
    else {
        panic!("{reply:?}")
    };
    assert!(reply.alive && token > 0);
    assert_eq!((reply.usage.limit, reply.usage.in_use, reply.usage.waiting), (2, 2, 0));
    one.end().await;
}

#[tokio::test]
async fn a_refused_caller_leaves_nothing_behind() {
    let (store, key) = opened(permits(1)).await;
    let [mut holder, mut refused, mut third] = raw_sessions(&store, &key, permits(1), [LONG; 3]);
    assert_eq!(holder.request(1, true).await.grants.len(), 1);
    let reply = refused.request(1, false).await;
    assert_eq!(
        (&reply.grants[..], reply.usage.in_use, reply.usage.waiting),
        (&[][..], 1, 0)
    );
    holder.give(1).await;
    // It was not promoted meanwhile, and blocks no other.
    assert_eq!(third.request(1, false).await.grants.len(), 1);
    assert_eq!(refused.look().await.grants, []);
}

#[tokio::test]
async fn a_repeated_request_is_the_same_request() {
    let (store, key) = opened(permits(3)).await;
    let mut holder = RawSession::new(&store, &key, permits(3), LONG);
    let first = holder.request(2, true).await;
    for _ in 0..3 {
        let again = holder.again(&holder.last()).await.unwrap();
        assert_eq!(again.grants, first.grants);
        assert_eq!(again.usage.in_use, 2);
    }
    // Also in a later sync, as a client sends it that has not got the grant.
    let again = holder.say(|_| {}).await.unwrap();
    assert_eq!((again.grants, again.usage.in_use), (first.grants, 2));
}

#[tokio::test]
async fn permits_returned_twice_come_back_once() {
    let (store, key) = opened(permits(4)).await;
    let [mut one, mut other] = raw_sessions(&store, &key, permits(4), [LONG; 2]);
    one.request(2, true).await;
    other.request(2, true).await;
    assert_eq!(one.give(1).await.usage.in_use, 3);
    for _ in 0..3 {
        assert_eq!(one.again(&one.last()).await.unwrap().usage.in_use, 3);
    }
    assert_eq!(one.look().await.usage.in_use, 3);
}

#[tokio::test]
async fn an_overtaken_request_does_nothing() {
    let (store, key) = opened(permits(4)).await;
    let mut one = RawSession::new(&store, &key, permits(4), LONG);
    one.request(2, true).await;
    let overtaken = one.last();
    one.give(2).await;
    let reply = one.again(&overtaken).await.unwrap();
    assert_eq!(reply.usage.in_use, 0);
}

/// Renewals of the original brought back evicted holders, silently.
/// Keeps out redisson#4086, redisson#4091.
#[tokio::test]
async fn a_session_that_expired_stays_so_and_takes_nothing_from_others() {
    let (store, key) = opened(permits(1)).await;
    let [mut late, mut next] = raw_sessions(&store, &key, permits(1), [SHORT, LONG]);
    late.request(1, true).await;
    next.request(1, true).await;
    let grant = next.until_granted().await;
    let sync = late.last();
    let replies = [late.again(&sync).await.unwrap(), late.look().await, late.give(1).await];
    for reply in replies {
        assert!(!reply.alive && reply.grants.is_empty(), "{reply:?}");
    }
    // The units that it returned were not its own.
    let reply = next.look().await;
    assert_eq!((reply.grants, reply.usage.in_use), (vec![grant], 1));
}

/// The death of a holder is not notified: a waiter has to learn when to sync.
#[tokio::test]
async fn a_waiter_behind_a_dead_holder_is_served_without_a_message() {
    let (store, key) = opened(permits(1)).await;
    let [mut dead, mut waits] = raw_sessions(&store, &key, permits(1), [SHORT, LONG]);
    dead.request(1, true).await;
    let reply = waits.request(1, true).await;
    // On a slow machine it may have died already.
    let granted = reply.grants.len() == 1;
    assert!(granted || reply.again.is_some_and(|again| again <= SHORT), "{reply:?}");
    waits.until_granted().await;
}

/// A grant is state: a message only announces it, and may be lost.
/// Keeps out redisson#5762.
#[tokio::test]
async fn a_grant_whose_reply_was_lost_is_repeated() {
    let (store, key) = opened(permits(1)).await;
    let [mut holder, mut waits] = raw_sessions(&store, &key, permits(1), [LONG; 2]);
    holder.request(1, true).await;
    waits.request(1, true).await;
    holder.give(1).await;
    let first = waits.look().await.grants;
    assert_eq!(first.len(), 1);
    // The answer was lost, time and again.
    assert_eq!(waits.look().await.grants, first);
    assert_eq!(waits.look().await.grants, first);
    let reply = waits.say(|sync| sync.seen = first[0].token).await.unwrap();
    assert_eq!((reply.grants, reply.usage.in_use), (vec![], 1));
}

#[tokio::test]
async fn a_grant_to_a_dead_process_goes_on() {
    let (store, key) = opened(permits(1)).await;
    let [mut holder, mut dead, mut waits] = raw_sessions(&store, &key, permits(1), [LONG, SHORT, LONG]);
    holder.request(1, true).await;
    dead.request(1, true).await;
    waits.request(1, true).await;
    holder.give(1).await;
    waits.until_granted().await;
}

#[tokio::test]
async fn the_clock_is_the_servers() {
    let (server, store, key) = own(permits(1)).await;
    let mut one = RawSession::new(&store, &key, permits(1), LONG);
    let before = micros(&server).unwrap();
    let token = one.request(1, true).await.grants[0].token;
    assert!(before <= token && token <= micros(&server).unwrap(), "{token}");
}

/// A dead first waiter does not get what others wait for, to be held for dead.
#[tokio::test]
async fn waiters_that_died_are_passed_over() {
    let (store, key) = opened(permits(1)).await;
    let mut holder = RawSession::new(&store, &key, permits(1), LONG);
    holder.request(1, true).await;
    let mut dead = Vec::new();
    for _ in 0..3 {
        let mut waiter = RawSession::new(&store, &key, permits(1), SHORT);
        waiter.request(1, true).await;
        dead.push(waiter);
    }
    let mut waits = RawSession::new(&store, &key, permits(1), LONG);
    waits.request(1, true).await;
    while waits.look().await.usage.waiting > 1 {
        tokio::time::sleep(SHORT / 10).await;
    }
    holder.give(1).await;
    assert_eq!(waits.look().await.grants.len(), 1);
}

#[tokio::test]
async fn a_try_does_not_pass_the_queue() {
    let (store, key) = opened(permits(2)).await;
    let [mut holder, mut heavy, mut light] = raw_sessions(&store, &key, permits(2), [LONG; 3]);
    holder.request(1, true).await;
    assert_eq!(heavy.request(2, true).await.grants, []);
    assert_eq!(
        light.request(1, false).await.grants,
        [],
        "one is free, and the first in the queue needs two"
    );
    holder.give(1).await;
    assert_eq!(
        heavy.look().await.grants.len(),
        1,
        "the return grants to the first waiter"
    );
}

#[tokio::test]
async fn the_queue_is_served_in_order_with_rising_tokens() {
    let (store, key) = opened(permits(3)).await;
    let mut holder = RawSession::new(&store, &key, permits(3), LONG);
    let mut last = holder.request(3, true).await.grants[0].token;
    let mut line = Vec::new();
    for need in [1, 3, 2, 1] {
        let mut waiter = RawSession::new(&store, &key, permits(3), LONG);
        assert_eq!(waiter.request(need, true).await.grants, []);
        line.push((need, waiter));
    }
    holder.give(3).await;
    for place in 0..line.len() {
        let (need, waiter) = &mut line[place];
        let need = *need;
        let grants = waiter.look().await.grants;
        let [Grant { units, token, .. }] = grants[..] else {
            panic!("{place}: {grants:?}")
        };
        assert!(units == need && token > last, "{token} after {last}");
        last = token;
        // No later waiter has been served, unless both fit: of 3, 2 and 1 they did.
        for (_, behind) in &mut line[place + 1..] {
            let served = behind.look().await.grants;
            assert!(served.is_empty() || place == 2, "{served:?}");
        }
        line[place].1.give(need).await;
    }
}

#[tokio::test]
async fn a_withdrawn_request_frees_the_waiters_behind_it() {
    let (store, key) = opened(permits(2)).await;
    let [mut holder, mut heavy, mut light] = raw_sessions(&store, &key, permits(2), [LONG; 3]);
    holder.request(1, true).await;
    heavy.request(2, true).await;
    light.request(1, true).await;
    heavy.say(|sync| sync.withdrawn = vec![1]).await.unwrap();
    assert_eq!(light.look().await.grants.len(), 1);
}

/// Cancelled in the instant of the grant: the client withdraws it before it has got the grant, and learns what it has to give
/// back.
#[tokio::test]
async fn a_grant_before_a_withdrawal_is_reported_and_returned() {
    let (store, key) = opened(permits(1)).await;
    let [mut holder, mut waits] = raw_sessions(&store, &key, permits(1), [LONG; 2]);
    holder.request(1, true).await;
    waits.request(1, true).await;
    holder.give(1).await;
    let reply = waits.say(|sync| sync.withdrawn = vec![1]).await.unwrap();
    assert_eq!((reply.grants.len(), reply.usage.in_use), (1, 1), "it stays granted");
    assert_eq!(waits.give(1).await.usage.in_use, 0);
}

#[tokio::test]
async fn a_shrink_drains_and_takes_nothing_away() {
    let (store, key) = opened(permits(4)).await;
    let [mut holder, mut waits] = raw_sessions(&store, &key, permits(4), [LONG; 2]);
    holder.request(4, true).await;
    waits.request(1, true).await;
    let reply = holder.say(|sync| sync.limit = Some(2)).await.unwrap();
    assert_eq!((reply.usage.limit, reply.usage.in_use), (2, 4));
    holder
        .say(|sync| (sync.limit, sync.returned) = (None, 2))
        .await
        .unwrap();
    assert_eq!(waits.look().await.grants, [], "two are in use of two");
    holder.give(1).await;
    assert_eq!(waits.look().await.grants.len(), 1);
    let reply = holder.say(|sync| sync.limit = Some(9)).await.unwrap();
    assert_eq!((reply.usage.limit, reply.usage.in_use), (9, 2));
}

/// Keeps out redisson#2444, redisson#4100.
#[tokio::test]
async fn keys_lie_in_one_slot_and_go_with_the_last_session() {
    let (server, store, key) = own_unopened().await;
    let [mut one, mut other] = raw_sessions(&store, &key, permits(2), [SHORT, SHORT]);
    one.request(1, true).await;
    other.request(1, true).await;
    let keys = server.keys().unwrap();
    let tags: Vec<_> = keys.iter().map(|key| tag(key)).collect();
    assert!(!tags.is_empty() && tags.iter().all(|tag| tag == &tags[0]), "{keys:?}");
    one.end().await;
    // The other one only expires.
    while !server.keys().unwrap().is_empty() {
        tokio::time::sleep(SHORT / 10).await;
    }
}

#[tokio::test]
async fn a_store_that_forgot_its_scripts_receives_them_again() {
    let (server, store, key) = own(permits(1)).await;
    let mut one = RawSession::new(&store, &key, permits(1), LONG);
    one.request(1, true).await;
    server.forget_scripts().unwrap();
    assert_eq!(one.give(1).await.usage.in_use, 0);
}

#[tokio::test]
async fn a_store_without_memory_is_away_and_does_nothing() {
    let (server, store, key) = own(permits(2)).await;
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    one.request(1, true).await;
    say(&server, "CONFIG SET maxmemory 1").unwrap();
    let refused = one.say(|sync| sync.requests.clear()).await;
    assert!(matches!(refused, Err(StoreError::Unreachable { .. })), "{refused:?}");
    say(&server, "CONFIG SET maxmemory 0").unwrap();
    assert_eq!(one.look().await.usage.in_use, 1);
}

#[tokio::test]
async fn something_else_under_the_key_is_refused_and_left_alone() {
    let (server, store, key) = own_unopened().await;
    let [one, mut first] = raw_sessions(&store, &key, permits(1), [LONG; 2]);
    first.request(1, true).await;
    let keys = server.keys().unwrap();
    first.end().await;
    for key in &keys {
        say(&server, &format!("SET {key} something")).unwrap();
    }
    let mut sync = one.last();
    sync.seq = 1;
    let refused = one.again(&sync).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    assert_eq!(server.keys().unwrap().len(), keys.len());
}

/// A runtime that is blocked for longer than a lease, as by a computation in a task, renews nothing. A driver's own thread does.
#[tokio::test]
async fn a_driver_with_a_thread_of_its_own_renews_while_the_runtime_is_blocked() {
    const TTL: Duration = Duration::from_secs(5);
    let (server, _, key) = own(permits(1)).await;
    // Its connection belongs to the runtime that first uses it.
    let (remote, driver) = Remote::permits(key, 1).ttl(TTL).build(at(server.address())).unwrap();
    let thread = driver.spawn_thread().unwrap();
    let held = remote.acquire(1).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < TTL + TTL / 5 {
        std::thread::park_timeout(SHORT);
    }
    assert!(!held.is_lost());
    drop(held);
    drop(remote);
    thread.join().unwrap();
}
