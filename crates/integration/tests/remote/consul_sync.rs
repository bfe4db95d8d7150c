//! Permits in a real Consul, one sync at a time: the faults of the published algorithms. The promises of both kinds of stores
//! are tested with both.

use crate::consul::ask;
use crate::consul_store::{GONE, Kind, SHORT, keys, server, store};
use crate::raw_session::{LONG, RawSession};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tollgate::remote::{Backend, Rule, StoreError};
use tollgate_stores::Consul;

fn permits(limit: u64) -> Rule {
    Rule::Permits { limit }
}

/// Syncs until something is granted, as often as it likes: stores of slots do not say when.
async fn until_granted<B: Backend>(raw_session: &mut RawSession<'_, B>) -> tollgate::remote::Grant {
    loop {
        if let Some(&grant) = raw_session.look().await.grants.first() {
            return grant;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Tests a promise with both kinds of stores.
macro_rules! both {
    ($($(#[$meta:meta])* $name:ident)*) => {
        mod holders {
            $($(#[$meta])* #[tokio::test] async fn $name() { super::$name::<tollgate_stores::Consul>().await; })*
        }
        mod slots {
            $($(#[$meta])* #[tokio::test] async fn $name() { super::$name::<tollgate_stores::ConsulSlots>().await; })*
        }
    };
}

both! {
    an_uncontended_request_is_granted_at_once
    a_refused_caller_leaves_nothing_behind
    a_repeated_request_is_the_same_request
    permits_returned_twice_come_back_once
    an_overtaken_request_does_nothing
    a_grant_whose_reply_was_lost_is_repeated
    two_requests_of_one_session_are_two_permits
    weights_are_taken_whole_or_not_at_all
    tokens_rise_over_releases_sessions_and_new_beginnings
    a_session_that_has_died_is_over_and_others_have_its_permits
    permits_of_the_dead_are_back_after_two_lives_at_the_latest
    a_shrink_drains_and_takes_nothing_away
    nothing_is_left_when_the_last_session_ends
    an_end_said_again_ends_nothing_else
    more_than_the_limit_is_not_granted
    a_session_hangs_on_no_check_and_has_no_lock_delay
}

async fn an_uncontended_request_is_granted_at_once<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    let reply = one.request(2, true).await;
    assert!(reply.alive && reply.grants[0].token > 0, "{reply:?}");
    assert_eq!((reply.grants[0].request, reply.grants[0].units), (1, 2));
    assert_eq!((reply.usage.limit, reply.usage.in_use, reply.usage.sessions), (2, 2, 1));
    one.end().await;
}

async fn a_refused_caller_leaves_nothing_behind<B: Kind>() {
    let (store, key) = store::<B>();
    let mut holder = RawSession::new(&store, &key, permits(1), LONG);
    let mut refused = RawSession::new(&store, &key, permits(1), LONG);
    let mut third = RawSession::new(&store, &key, permits(1), LONG);
    assert_eq!(holder.request(1, true).await.grants.len(), 1);
    let reply = refused.request(1, false).await;
    assert_eq!((&reply.grants[..], reply.usage.in_use), (&[][..], 1));
    holder.give(1).await;
    // It blocks no other, and is not served later.
    assert_eq!(third.request(1, false).await.grants.len(), 1);
    third.give(1).await;
    assert_eq!(refused.look().await.grants, []);
}

async fn a_repeated_request_is_the_same_request<B: Kind>() {
    let (store, key) = store::<B>();
    let mut holder = RawSession::new(&store, &key, permits(3), LONG);
    let first = holder.request(2, true).await;
    for _ in 0..3 {
        let again = holder.again(&holder.last()).await.unwrap();
        assert_eq!((again.grants, again.usage.in_use), (first.grants.clone(), 2));
    }
    // Also in a later sync, as a client sends it that has not got the grant.
    let again = holder.say(|_| {}).await.unwrap();
    assert_eq!((again.grants, again.usage.in_use), (first.grants, 2));
}

async fn permits_returned_twice_come_back_once<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(4), LONG);
    let mut other = RawSession::new(&store, &key, permits(4), LONG);
    one.request(2, true).await;
    other.request(2, true).await;
    assert_eq!(one.give(1).await.usage.in_use, 3);
    for _ in 0..3 {
        assert_eq!(one.again(&one.last()).await.unwrap().usage.in_use, 3);
    }
    assert_eq!(one.look().await.usage.in_use, 3);
}

async fn an_overtaken_request_does_nothing<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(4), LONG);
    one.request(2, true).await;
    let overtaken = one.last();
    one.give(2).await;
    assert_eq!(one.again(&overtaken).await.unwrap().usage.in_use, 0);
    assert_eq!(one.look().await.usage.in_use, 0);
}

async fn a_grant_whose_reply_was_lost_is_repeated<B: Kind>() {
    let (store, key) = store::<B>();
    let mut holder = RawSession::new(&store, &key, permits(1), LONG);
    let mut waits = RawSession::new(&store, &key, permits(1), LONG);
    holder.request(1, true).await;
    waits.request(1, true).await;
    holder.give(1).await;
    let first = waits.look().await.grants;
    assert_eq!(first.len(), 1);
    assert_eq!(waits.look().await.grants, first);
    let reply = waits.say(|sync| sync.seen = first[0].token).await.unwrap();
    assert_eq!((reply.grants, reply.usage.in_use), (vec![], 1));
}

/// The session that has locked a slot may lock it again: to two callers of one process the original gave one slot.
async fn two_requests_of_one_session_are_two_permits<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    one.request(1, true).await;
    let reply = one.request(1, true).await;
    assert_eq!((reply.grants.len(), reply.usage.in_use), (2, 2));
    assert_ne!(reply.grants[0].token, reply.grants[1].token);
    let reply = one.request(1, false).await;
    assert_eq!((reply.grants.len(), reply.usage.in_use), (2, 2), "there is no third");
}

async fn weights_are_taken_whole_or_not_at_all<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(3), LONG);
    let mut other = RawSession::new(&store, &key, permits(3), LONG);
    one.request(2, true).await;
    let reply = other.request(2, true).await;
    assert_eq!((reply.grants, reply.usage.in_use), (vec![], 2));
    one.give(2).await;
    assert_eq!(until_granted(&mut other).await.units, 2);
}

async fn tokens_rise_over_releases_sessions_and_new_beginnings<B: Kind>() {
    let (store, key) = store::<B>();
    let mut last = 0;
    for _ in 0..3 {
        let mut one = RawSession::new(&store, &key, permits(2), LONG);
        for _ in 0..2 {
            let grants = one.request(1, true).await.grants;
            let token = grants.last().expect("there is room").token;
            assert!(token > last, "{token} after {last}");
            last = token;
            one.say(|sync| (sync.returned, sync.seen) = (sync.returned + 1, token))
                .await
                .unwrap();
            one.say(|sync| sync.requests.clear()).await.unwrap();
        }
        // The state goes with the last session.
        one.end().await;
    }
}

/// The original gave up renewals at the first error, silently.
async fn a_session_that_has_died_is_over_and_others_have_its_permits<B: Kind>() {
    let (store, key) = store::<B>();
    let mut late = RawSession::new(&store, &key, permits(1), SHORT);
    let mut next = RawSession::new(&store, &key, permits(1), LONG);
    late.request(1, true).await;
    next.request(1, true).await;
    let grant = until_granted(&mut next).await;
    let sync = late.last();
    for reply in [late.again(&sync).await.unwrap(), late.look().await, late.give(1).await] {
        assert!(!reply.alive && reply.grants.is_empty(), "{reply:?}");
    }
    // The units that it returned were not its own.
    let reply = next.look().await;
    assert_eq!((reply.grants, reply.usage.in_use), (vec![grant], 1));
}

async fn permits_of_the_dead_are_back_after_two_lives_at_the_latest<B: Kind>() {
    let (store, key) = store::<B>();
    let mut waits = RawSession::new(&store, &key, permits(1), LONG);
    let mut dead = RawSession::new(&store, &key, permits(1), SHORT);
    dead.request(1, true).await;
    let begun = Instant::now();
    waits.request(1, true).await;
    // Never before the time to live: its holder counts that long.
    while begun.elapsed() < SHORT * 9 / 10 {
        assert_eq!(waits.look().await.grants, []);
        sleep(SHORT / 20).await;
    }
    until_granted(&mut waits).await;
    println!("back after {:?} of {GONE:?}", begun.elapsed());
}

async fn a_shrink_drains_and_takes_nothing_away<B: Kind>() {
    let (store, key) = store::<B>();
    let mut holder = RawSession::new(&store, &key, permits(4), LONG);
    let mut waits = RawSession::new(&store, &key, permits(4), LONG);
    holder.request(4, true).await;
    waits.request(1, true).await;
    let reply = holder
        .say(|sync| (sync.limit, sync.requests) = (Some(2), vec![]))
        .await
        .unwrap();
    assert_eq!((reply.usage.limit, reply.usage.in_use), (2, 4));
    holder
        .say(|sync| (sync.limit, sync.returned) = (None, 2))
        .await
        .unwrap();
    assert_eq!(waits.look().await.grants, [], "two are in use of two");
    holder.give(1).await;
    until_granted(&mut waits).await;
    let reply = holder.say(|sync| sync.limit = Some(9)).await.unwrap();
    assert_eq!((reply.usage.limit, reply.usage.in_use), (9, 2));
}

async fn nothing_is_left_when_the_last_session_ends<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    let mut other = RawSession::new(&store, &key, permits(2), LONG);
    let mut dies = RawSession::new(&store, &key, permits(2), SHORT);
    one.request(1, true).await;
    other.request(2, true).await;
    dies.request(1, true).await;
    assert!(!keys(&key).is_empty());
    other.end().await;
    // The other one only dies: the end of the last deletes everything.
    while one.look().await.usage.sessions > 1 {
        sleep(SHORT / 20).await;
    }
    one.end().await;
    assert_eq!(keys(&key), [""; 0]);
}

async fn an_end_said_again_ends_nothing_else<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    let mut other = RawSession::new(&store, &key, permits(2), LONG);
    one.request(1, true).await;
    other.request(1, true).await;
    one.say(|sync| sync.end = true).await.unwrap();
    for _ in 0..3 {
        let reply = one.again(&one.last()).await.unwrap();
        assert!(!reply.alive && reply.usage.in_use == 1, "{reply:?}");
    }
    assert!(other.look().await.alive);
}

async fn more_than_the_limit_is_not_granted<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(2), LONG);
    let reply = one.request(3, true).await;
    assert_eq!((reply.alive, reply.grants, reply.usage.limit), (true, vec![], 2));
    assert_eq!(one.request(2, true).await.grants.len(), 1, "and blocks no other");
}

async fn a_session_hangs_on_no_check_and_has_no_lock_delay<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = RawSession::new(&store, &key, permits(1), LONG);
    one.request(1, true).await;
    let listed = ask(server(), "GET", "/v1/session/list", "").unwrap();
    let sessions: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    let ours: Vec<_> = sessions
        .iter()
        .filter(|session| session["Name"] == "tollgate")
        .collect();
    assert!(!ours.is_empty(), "{listed}");
    for session in ours {
        assert_eq!(
            (&session["LockDelay"], &session["Behavior"]),
            (&0.into(), &"delete".into())
        );
        for checks in ["Checks", "NodeChecks", "ServiceChecks"] {
            assert!(session[checks].as_array().is_none_or(Vec::is_empty), "{session}");
        }
    }
}

/// Two writers of the same value at the same version both win: Consul reports success for a write that changes nothing.
#[tokio::test]
async fn documents_are_never_the_same_twice() {
    let (store, key) = store::<Consul>();
    let mut one = RawSession::new(&store, &key, permits(1), LONG);
    let read = || {
        ask(
            server(),
            "GET",
            &format!("/v1/kv/tollgate/{key}.permits/holders?raw"),
            "",
        )
        .unwrap()
    };
    one.request(1, true).await;
    let first = read();
    let token = serde_json::from_str::<serde_json::Value>(&first).unwrap();
    one.say(|sync| (sync.limit, sync.requests) = (Some(2), vec![]))
        .await
        .unwrap();
    one.say(|sync| sync.limit = Some(1)).await.unwrap();
    let again = serde_json::from_str::<serde_json::Value>(&read()).unwrap();
    assert_eq!(token["permits"]["limit"], again["permits"]["limit"]);
    assert_ne!(token["nonce"], again["nonce"]);
}

/// Many change one document at a time, and each change counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_at_one_time_all_count() {
    let (store, key) = store::<Consul>();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, key) = (store.clone(), key.clone());
        all.spawn(async move {
            let mut one = RawSession::new(&store, &key, permits(100), LONG);
            let mut tokens = Vec::new();
            for _ in 0..5 {
                let grants = one.request(2, true).await.grants;
                tokens.push(grants.last().expect("there is room").token);
            }
            tokens
        });
    }
    let mut tokens = all.join_all().await.concat();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 40);
    let mut last = RawSession::new(&store, &key, permits(100), LONG);
    assert_eq!(last.request(1, true).await.usage.in_use, 81);
}

#[tokio::test]
async fn the_queue_is_served_in_order_and_the_dead_are_passed_over() {
    let (store, key) = store::<Consul>();
    let mut holder = RawSession::new(&store, &key, permits(2), LONG);
    holder.request(2, true).await;
    let mut dead = RawSession::new(&store, &key, permits(2), SHORT);
    dead.request(1, true).await;
    let mut line = Vec::new();
    for need in [2, 1] {
        let mut waits = RawSession::new(&store, &key, permits(2), LONG);
        waits.request(need, true).await;
        line.push(waits);
    }
    while line[0].look().await.usage.waiting > 2 {
        sleep(SHORT / 20).await;
    }
    holder.give(2).await;
    assert_eq!(line[1].look().await.grants, [], "it came later");
    let reply = line[0].look().await;
    assert_eq!(reply.grants[0].units, 2);
    line[0].give(2).await;
    assert_eq!(line[1].look().await.grants.len(), 1);
}

#[tokio::test]
async fn something_else_under_the_key_is_refused_and_left_alone() {
    let (store, key) = store::<Consul>();
    let path = format!("/v1/kv/tollgate/{key}.permits/holders");
    ask(server(), "PUT", &path, "something").unwrap();
    let mut one = RawSession::new(&store, &key, permits(1), LONG);
    let refused = one.say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    assert_eq!(ask(server(), "GET", &format!("{path}?raw"), "").unwrap(), "something");
}

/// A document that is too long for the store is refused as such, and the one before it stays.
#[tokio::test]
async fn a_document_that_would_be_too_long_is_refused() {
    let (store, key) = store::<Consul>();
    let mut one = RawSession::new(&store, &key, permits(1), LONG);
    one.request(1, true).await;
    let request = |id| tollgate::remote::Request {
        id,
        need: 1,
        want: 1,
        queue: true,
    };
    let refused = one.say(|sync| sync.requests = (2..9_000).map(request).collect()).await;
    let Err(StoreError::Refused { why }) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("327680"), "{why}");
    assert_eq!(one.say(|sync| sync.requests.clear()).await.unwrap().usage.waiting, 0);
}

/// The session of a holder was destroyed, which it may not know: its slots have no other holder as long as it may act on them.
#[tokio::test]
async fn slots_are_held_back_after_a_session_that_was_ended_by_others() {
    let (store, key) = store::<Consul>();
    let delay = 2 * SHORT;
    let slots = store.slots().lock_delay(delay).unwrap();
    let mut holder = RawSession::new(&slots, &key, permits(2), LONG);
    holder.request(1, true).await;
    let listed = ask(
        server(),
        "GET",
        &format!("/v1/kv/tollgate/{key}.permits/by/?recurse=true"),
        "",
    )
    .unwrap();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let id = listed[0]["Session"].as_str().expect("it is locked");
    let ended = Instant::now();
    ask(server(), "PUT", &format!("/v1/session/destroy/{id}"), "").unwrap();
    let mut next = RawSession::new(&slots, &key, permits(2), LONG);
    // The other slot is free. A returned one is free at once.
    for _ in 0..3 {
        let reply = next.request(1, true).await;
        assert_eq!((reply.alive, reply.usage.in_use), (true, 1));
        next.see(&reply);
        next.give(1).await;
    }
    // The rest of it waits.
    next.request(2, true).await;
    assert_eq!(until_granted(&mut next).await.units, 2);
    assert!(ended.elapsed() >= delay, "{:?}", ended.elapsed());
    assert!(store.slots().lock_delay(Duration::from_secs(61)).is_err());
}

/// The server reports it like an outage, but it does not end.
#[tokio::test]
async fn a_life_that_is_too_short_for_the_server_is_refused() {
    let (store, key) = store::<Consul>();
    let mut one = RawSession::new(&store, &key, permits(1), SHORT / 4);
    let refused = one.say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

/// Neither sees the grants of the other.
#[tokio::test]
async fn a_document_and_slots_under_one_key_are_refused() {
    let (store, key) = store::<Consul>();
    let slots = store.slots();
    let mut held = RawSession::new(&slots, &key, permits(3), LONG);
    held.request(3, true).await;
    let refused = RawSession::new(&store, &key, permits(3), LONG).say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    assert_eq!(held.look().await.grants.len(), 1, "and takes no harm");
    held.end().await;
    let mut held = RawSession::new(&store, &key, permits(3), LONG);
    held.request(3, true).await;
    let refused = RawSession::new(&slots, &key, permits(3), LONG).say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

/// Impossible settings are refused at once.
#[tokio::test]
async fn impossible_limits_and_times_to_live_are_refused_when_a_limiter_is_built() {
    use tollgate::remote::{Remote, RemoteError};
    let (store, key) = store::<Consul>();
    let slots = store.slots();
    let short = || Remote::permits(key.clone(), 1).ttl(SHORT / 2);
    let refused = Remote::permits(key.clone(), 61).spawn(slots.clone()).map(drop);
    assert!(matches!(refused, Err(RemoteError::Unsupported { .. })), "{refused:?}");
    for refused in [short().spawn(store.clone()).map(drop), short().spawn(slots).map(drop)] {
        assert!(matches!(refused, Err(RemoteError::Duration { .. })), "{refused:?}");
    }
}
