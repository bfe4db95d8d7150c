//! Permits in a real Consul, a step at a time: what the published algorithms got wrong. What both kinds of stores promise is
//! tried with both.

use crate::consul::ask;
use crate::consul_store::{GONE, Kind, SHORT, keys, server, store};
use crate::speaker::{LONG, Speaker};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tollgate::remote::{Backend, Consul, Rule, StoreError};

fn permits(limit: u64) -> Rule {
    Rule::Permits { limit }
}

/// Looks until something is granted, as often as it likes: stores of slots do not say when.
async fn until_granted<B: Backend>(speaker: &mut Speaker<'_, B>) -> tollgate::remote::Grant {
    loop {
        if let Some(&grant) = speaker.look().await.grants.first() {
            return grant;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Tries a promise with both kinds of stores.
macro_rules! both {
    ($($(#[$meta:meta])* $name:ident)*) => {
        mod holders {
            $($(#[$meta])* #[tokio::test] async fn $name() { super::$name::<tollgate::remote::Consul>().await; })*
        }
        mod slots {
            $($(#[$meta])* #[tokio::test] async fn $name() { super::$name::<tollgate::remote::ConsulSlots>().await; })*
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
    two_wishes_of_one_session_are_two_permits
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
    let mut one = Speaker::new(&store, &key, permits(2), LONG);
    let reply = one.wish(2, true).await;
    assert!(reply.alive && reply.grants[0].token > 0, "{reply:?}");
    assert_eq!((reply.grants[0].wish, reply.grants[0].units), (1, 2));
    assert_eq!(
        (reply.census.limit, reply.census.in_use, reply.census.sessions),
        (2, 2, 1)
    );
    one.end().await;
}

async fn a_refused_caller_leaves_nothing_behind<B: Kind>() {
    let (store, key) = store::<B>();
    let mut holder = Speaker::new(&store, &key, permits(1), LONG);
    let mut refused = Speaker::new(&store, &key, permits(1), LONG);
    let mut third = Speaker::new(&store, &key, permits(1), LONG);
    assert_eq!(holder.wish(1, true).await.grants.len(), 1);
    let reply = refused.wish(1, false).await;
    assert_eq!((&reply.grants[..], reply.census.in_use), (&[][..], 1));
    holder.give(1).await;
    // It blocks no waiter, and is not served later.
    assert_eq!(third.wish(1, false).await.grants.len(), 1);
    third.give(1).await;
    assert_eq!(refused.look().await.grants, []);
}

async fn a_repeated_request_is_the_same_request<B: Kind>() {
    let (store, key) = store::<B>();
    let mut holder = Speaker::new(&store, &key, permits(3), LONG);
    let first = holder.wish(2, true).await;
    for _ in 0..3 {
        let again = holder.again(&holder.last()).await.unwrap();
        assert_eq!((again.grants, again.census.in_use), (first.grants.clone(), 2));
    }
    // Also in a later step, as a client says it that has not heard of the grant.
    let again = holder.say(|_| {}).await.unwrap();
    assert_eq!((again.grants, again.census.in_use), (first.grants, 2));
}

async fn permits_returned_twice_come_back_once<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = Speaker::new(&store, &key, permits(4), LONG);
    let mut other = Speaker::new(&store, &key, permits(4), LONG);
    one.wish(2, true).await;
    other.wish(2, true).await;
    assert_eq!(one.give(1).await.census.in_use, 3);
    for _ in 0..3 {
        assert_eq!(one.again(&one.last()).await.unwrap().census.in_use, 3);
    }
    assert_eq!(one.look().await.census.in_use, 3);
}

async fn an_overtaken_request_does_nothing<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = Speaker::new(&store, &key, permits(4), LONG);
    one.wish(2, true).await;
    let overtaken = one.last();
    one.give(2).await;
    assert_eq!(one.again(&overtaken).await.unwrap().census.in_use, 0);
    assert_eq!(one.look().await.census.in_use, 0);
}

async fn a_grant_whose_reply_was_lost_is_repeated<B: Kind>() {
    let (store, key) = store::<B>();
    let mut holder = Speaker::new(&store, &key, permits(1), LONG);
    let mut waits = Speaker::new(&store, &key, permits(1), LONG);
    holder.wish(1, true).await;
    waits.wish(1, true).await;
    holder.give(1).await;
    let first = waits.look().await.grants;
    assert_eq!(first.len(), 1);
    assert_eq!(waits.look().await.grants, first);
    let reply = waits.say(|step| step.seen = first[0].token).await.unwrap();
    assert_eq!((reply.grants, reply.census.in_use), (vec![], 1));
}

/// The session that has locked a slot may lock it again: to two callers of one process the original gave one slot.
async fn two_wishes_of_one_session_are_two_permits<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = Speaker::new(&store, &key, permits(2), LONG);
    one.wish(1, true).await;
    let reply = one.wish(1, true).await;
    assert_eq!((reply.grants.len(), reply.census.in_use), (2, 2));
    assert_ne!(reply.grants[0].token, reply.grants[1].token);
    let reply = one.wish(1, false).await;
    assert_eq!((reply.grants.len(), reply.census.in_use), (2, 2), "there is no third");
}

async fn weights_are_taken_whole_or_not_at_all<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = Speaker::new(&store, &key, permits(3), LONG);
    let mut other = Speaker::new(&store, &key, permits(3), LONG);
    one.wish(2, true).await;
    let reply = other.wish(2, true).await;
    assert_eq!((reply.grants, reply.census.in_use), (vec![], 2));
    one.give(2).await;
    assert_eq!(until_granted(&mut other).await.units, 2);
}

async fn tokens_rise_over_releases_sessions_and_new_beginnings<B: Kind>() {
    let (store, key) = store::<B>();
    let mut last = 0;
    for _ in 0..3 {
        let mut one = Speaker::new(&store, &key, permits(2), LONG);
        for _ in 0..2 {
            let grants = one.wish(1, true).await.grants;
            let token = grants.last().expect("there is room").token;
            assert!(token > last, "{token} after {last}");
            last = token;
            one.say(|step| (step.returned, step.seen) = (step.returned + 1, token))
                .await
                .unwrap();
            one.say(|step| step.wishes.clear()).await.unwrap();
        }
        // With the last session goes all that is known.
        one.end().await;
    }
}

/// Renewals of the original were given up at the first error, without a word to the holder.
async fn a_session_that_has_died_is_over_and_others_have_its_permits<B: Kind>() {
    let (store, key) = store::<B>();
    let mut late = Speaker::new(&store, &key, permits(1), SHORT);
    let mut next = Speaker::new(&store, &key, permits(1), LONG);
    late.wish(1, true).await;
    next.wish(1, true).await;
    let grant = until_granted(&mut next).await;
    let step = late.last();
    for reply in [late.again(&step).await.unwrap(), late.look().await, late.give(1).await] {
        assert!(!reply.alive && reply.grants.is_empty(), "{reply:?}");
    }
    // What it gave back was not its own.
    let reply = next.look().await;
    assert_eq!((reply.grants, reply.census.in_use), (vec![grant], 1));
}

async fn permits_of_the_dead_are_back_after_two_lives_at_the_latest<B: Kind>() {
    let (store, key) = store::<B>();
    let mut waits = Speaker::new(&store, &key, permits(1), LONG);
    let mut dead = Speaker::new(&store, &key, permits(1), SHORT);
    dead.wish(1, true).await;
    let begun = Instant::now();
    waits.wish(1, true).await;
    // Never before the time to live: a holder whose request was granted at once counts that long.
    while begun.elapsed() < SHORT * 9 / 10 {
        assert_eq!(waits.look().await.grants, []);
        sleep(SHORT / 20).await;
    }
    until_granted(&mut waits).await;
    println!("back after {:?} of {GONE:?}", begun.elapsed());
}

async fn a_shrink_drains_and_takes_nothing_away<B: Kind>() {
    let (store, key) = store::<B>();
    let mut holder = Speaker::new(&store, &key, permits(4), LONG);
    let mut waits = Speaker::new(&store, &key, permits(4), LONG);
    holder.wish(4, true).await;
    waits.wish(1, true).await;
    let reply = holder
        .say(|step| (step.limit, step.wishes) = (Some(2), vec![]))
        .await
        .unwrap();
    assert_eq!((reply.census.limit, reply.census.in_use), (2, 4));
    holder
        .say(|step| (step.limit, step.returned) = (None, 2))
        .await
        .unwrap();
    assert_eq!(waits.look().await.grants, [], "two are in use of two");
    holder.give(1).await;
    until_granted(&mut waits).await;
    let reply = holder.say(|step| step.limit = Some(9)).await.unwrap();
    assert_eq!((reply.census.limit, reply.census.in_use), (9, 2));
}

async fn nothing_is_left_when_the_last_session_ends<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = Speaker::new(&store, &key, permits(2), LONG);
    let mut other = Speaker::new(&store, &key, permits(2), LONG);
    let mut dies = Speaker::new(&store, &key, permits(2), SHORT);
    one.wish(1, true).await;
    other.wish(2, true).await;
    dies.wish(1, true).await;
    assert!(!keys(&key).is_empty());
    other.end().await;
    // The other one only dies: the next end takes all.
    while one.look().await.census.sessions > 1 {
        sleep(SHORT / 20).await;
    }
    one.end().await;
    assert_eq!(keys(&key), [""; 0]);
}

async fn an_end_said_again_ends_nothing_else<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = Speaker::new(&store, &key, permits(2), LONG);
    let mut other = Speaker::new(&store, &key, permits(2), LONG);
    one.wish(1, true).await;
    other.wish(1, true).await;
    one.say(|step| step.end = true).await.unwrap();
    for _ in 0..3 {
        let reply = one.again(&one.last()).await.unwrap();
        assert!(!reply.alive && reply.census.in_use == 1, "{reply:?}");
    }
    assert!(other.look().await.alive);
}

async fn more_than_the_limit_is_not_granted<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = Speaker::new(&store, &key, permits(2), LONG);
    let reply = one.wish(3, true).await;
    assert_eq!((reply.alive, reply.grants, reply.census.limit), (true, vec![], 2));
    assert_eq!(one.wish(2, true).await.grants.len(), 1, "and blocks no waiter");
}

async fn a_session_hangs_on_no_check_and_has_no_lock_delay<B: Kind>() {
    let (store, key) = store::<B>();
    let mut one = Speaker::new(&store, &key, permits(1), LONG);
    one.wish(1, true).await;
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

/// Two that write the same to the same version both win: Consul takes what is there already for written.
#[tokio::test]
async fn documents_are_never_the_same_twice() {
    let (store, key) = store::<Consul>();
    let mut one = Speaker::new(&store, &key, permits(1), LONG);
    let read = || {
        ask(
            server(),
            "GET",
            &format!("/v1/kv/tollgate/{key}.permits/holders?raw"),
            "",
        )
        .unwrap()
    };
    one.wish(1, true).await;
    let first = read();
    let token = serde_json::from_str::<serde_json::Value>(&first).unwrap();
    one.say(|step| (step.limit, step.wishes) = (Some(2), vec![]))
        .await
        .unwrap();
    one.say(|step| step.limit = Some(1)).await.unwrap();
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
            let mut one = Speaker::new(&store, &key, permits(100), LONG);
            let mut tokens = Vec::new();
            for _ in 0..5 {
                let grants = one.wish(2, true).await.grants;
                tokens.push(grants.last().expect("there is room").token);
            }
            tokens
        });
    }
    let mut tokens = all.join_all().await.concat();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 40);
    let mut last = Speaker::new(&store, &key, permits(100), LONG);
    assert_eq!(last.wish(1, true).await.census.in_use, 81);
}

#[tokio::test]
async fn the_queue_is_served_in_order_and_the_dead_are_passed_over() {
    let (store, key) = store::<Consul>();
    let mut holder = Speaker::new(&store, &key, permits(2), LONG);
    holder.wish(2, true).await;
    let mut dead = Speaker::new(&store, &key, permits(2), SHORT);
    dead.wish(1, true).await;
    let mut line = Vec::new();
    for need in [2, 1] {
        let mut waits = Speaker::new(&store, &key, permits(2), LONG);
        waits.wish(need, true).await;
        line.push(waits);
    }
    while line[0].look().await.census.waiting > 2 {
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
    let mut one = Speaker::new(&store, &key, permits(1), LONG);
    let refused = one.say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    assert_eq!(ask(server(), "GET", &format!("{path}?raw"), "").unwrap(), "something");
}

/// A document that is too long for the store is refused as such, and the one before it stays.
#[tokio::test]
async fn a_document_that_would_be_too_long_is_refused() {
    let (store, key) = store::<Consul>();
    let mut one = Speaker::new(&store, &key, permits(1), LONG);
    one.wish(1, true).await;
    let wish = |id| tollgate::remote::Wish {
        id,
        need: 1,
        want: 1,
        queue: true,
    };
    let refused = one.say(|step| step.wishes = (2..9_000).map(wish).collect()).await;
    let Err(StoreError::Refused { why }) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("327680"), "{why}");
    assert_eq!(one.say(|step| step.wishes.clear()).await.unwrap().census.waiting, 0);
}

/// An administrator has ended the session of a holder that may not know: its slots are not granted again as long as it may act on
/// them.
#[tokio::test]
async fn slots_are_held_back_after_a_session_that_was_ended_by_others() {
    let (store, key) = store::<Consul>();
    let delay = 2 * SHORT;
    let slots = store.slots().lock_delay(delay).unwrap();
    let mut holder = Speaker::new(&slots, &key, permits(2), LONG);
    holder.wish(1, true).await;
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
    let mut next = Speaker::new(&slots, &key, permits(2), LONG);
    // The other slot is free. What is given back is so at once.
    for _ in 0..3 {
        let reply = next.wish(1, true).await;
        assert_eq!((reply.alive, reply.census.in_use), (true, 1));
        next.see(&reply);
        next.give(1).await;
    }
    // The rest of it waits.
    next.wish(2, true).await;
    assert_eq!(until_granted(&mut next).await.units, 2);
    assert!(ended.elapsed() >= delay, "{:?}", ended.elapsed());
    assert!(store.slots().lock_delay(Duration::from_secs(61)).is_err());
}

/// The server says it like an outage: but it will not be over.
#[tokio::test]
async fn a_life_that_is_too_short_for_the_server_is_refused() {
    let (store, key) = store::<Consul>();
    let mut one = Speaker::new(&store, &key, permits(1), SHORT / 4);
    let refused = one.say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

/// Neither sees what the other has given out.
#[tokio::test]
async fn a_document_and_slots_under_one_key_are_refused() {
    let (store, key) = store::<Consul>();
    let slots = store.slots();
    let mut held = Speaker::new(&slots, &key, permits(3), LONG);
    held.wish(3, true).await;
    let refused = Speaker::new(&store, &key, permits(3), LONG).say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    assert_eq!(held.look().await.grants.len(), 1, "and takes no harm");
    held.end().await;
    let mut held = Speaker::new(&store, &key, permits(3), LONG);
    held.wish(3, true).await;
    let refused = Speaker::new(&slots, &key, permits(3), LONG).say(|_| {}).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}

/// What cannot be done is said at once.
#[tokio::test]
async fn limits_and_lives_that_cannot_be_are_refused_when_a_limiter_is_built() {
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
