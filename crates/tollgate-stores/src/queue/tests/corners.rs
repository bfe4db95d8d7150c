//! Failures and events at bad moments.

use super::client::Client;
use super::fake::{LIMIT, State, Store, TTL, failing, store};
use crate::queue::Queue;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;
use tollgate::remote::Key;

fn key() -> Key {
    Key::new("fake").expect("a name")
}

/// The numbers of nodes and sessions at the store.
fn left(queue: &Queue<Store>) -> (usize, usize) {
    let state = queue.store().0.lock();
    (state.nodes.len(), state.sessions.len())
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_end_failed_is_reaped_all_the_same() {
    let queue = store();
    let mut parts = Client::new(1);
    parts.requests_units(LIMIT);
    parts.say(&queue).await.expect("an answer");
    queue.store().0.lock().ends_fail = true;
    for _ in 0..3 {
        parts.ends(&queue).await.expect_err("it fails");
    }
    queue.leave(&key(), parts.sync.session);
    sleep(3 * TTL).await;
    assert_eq!(left(&queue), (1, 1));
    queue.store().0.lock().ends_fail = false;
    sleep(TTL).await;
    assert_eq!(left(&queue), (0, 0));
    // Nothing more is known of it.
    assert!(queue.0.slots.lock().is_empty() && queue.0.waiters_by_key.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_nodes_of_a_lost_session_go_also_after_a_first_failure() {
    let queue = store();
    let mut one = Client::new(1);
    one.requests_units(1);
    one.requests_units(2);
    one.say(&queue).await.expect("an answer");
    {
        let mut state = queue.store().0.lock();
        // Deleted by an operator.
        state.nodes.remove(0);
        state.ends_fail = true;
    }
    one.sync.seq += 1;
    let rule = tollgate::remote::Rule::Permits { limit: LIMIT };
    let lost = queue.sync(&key(), &rule, &one.sync).await;
    assert!(lost.is_err(), "{lost:?}");
    queue.store().0.lock().ends_fail = false;
    sleep(2 * TTL).await;
    assert_eq!(left(&queue), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_meets_a_raised_limit_is_none() {
    let queue = store();
    queue.store().0.lock().limit = 2;
    let mut one = Client::new(1);
    one.requests_units(3);
    // Raised between the look that refuses and the one that is answered with.
    queue.store().0.lock().then_limit = Some(5);
    let reply = one.say(&queue).await.expect("an answer");
    assert_eq!((reply.usage.limit, reply.grants.len()), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn an_unacknowledged_refusal_is_none_once_the_limit_is_raised() {
    let queue = store();
    queue.store().0.lock().limit = 2;
    let mut one = Client::new(1);
    one.requests_units(3);
    let unheard = one.untold.clone();
    assert_eq!(one.say(&queue).await.expect("an answer").grants, []);
    // The answer was lost: it is sent again.
    one.untold = unheard;
    queue.store().0.lock().limit = 5;
    assert_eq!(one.say(&queue).await.expect("an answer").grants.len(), 1);
    // A client that got the answer does not repeat the request, and gets nothing.
    let mut other = Client::new(2);
    other.requests_units(6);
    assert_eq!(other.say(&queue).await.expect("an answer").grants, []);
    queue.store().0.lock().limit = 20;
    let reply = other.say(&queue).await.expect("an answer");
    assert_eq!((reply.grants.len(), reply.usage.waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_watch_after_any_term_ends() {
    let queue = store();
    let mut clients: Vec<_> = (1..=3).map(Client::new).collect();
    for client in &mut clients {
        client.requests_units(LIMIT);
        client.say(&queue).await.expect("an answer");
    }
    sleep(Duration::from_millis(10)).await;
    assert_eq!(queue.store().0.lock().watches, (1, 1));
    for over in [1, 2] {
        // The term of the watch, of a waiter, ends.
        queue.store().0.lock().terms[over].0.store(true, Ordering::Relaxed);
        let next = &mut clients[if over == 1 { 2 } else { 0 }];
        next.sync.keeps = true;
        next.say(&queue).await.expect("an answer");
        sleep(Duration::from_millis(10)).await;
        let watches = queue.store().0.lock().watches;
        assert_eq!(watches, (1 + over as u64, 1), "the one before has ended");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_always_fails_is_given_up_without_waiters() {
    let queue = store();
    queue.store().0.lock().watches_fail = true;
    let (mut holds, mut waits) = (Client::new(1), Client::new(2));
    for client in [&mut holds, &mut waits] {
        client.requests_units(LIMIT);
        client.say(&queue).await.expect("an answer");
    }
    sleep(TTL / 2).await;
    let begun = queue.store().0.lock().watches.0;
    assert!((2..=12).contains(&begun), "{begun} times: less and less often");
    waits.sync.withdrawn.push(1);
    waits.say(&queue).await.expect("an answer");
    sleep(TTL / 4).await;
    let begun = queue.store().0.lock().watches.0;
    sleep(TTL / 4).await;
    assert_eq!(queue.store().0.lock().watches.0, begun);
}

#[tokio::test(start_paused = true)]
async fn changes_not_reported_yet_by_a_watch_are_not_lost() {
    let queue = failing::<true>(State::new(1, 0));
    let mut waits = Client::new(1);
    waits.requests_units(1);
    waits.say(&queue).await.expect("an answer");
    // The watch has reported everything, and reports nothing more.
    let reported = queue.store().0.lock().queue();
    queue.store().0.lock().tells = Some(reported);
    queue.0.waiters_by_key.lock().clear();
    waits.say(&queue).await.expect("an answer");
    sleep(Duration::from_millis(10)).await;
    let mut late = Client::new(2);
    late.requests_units(2);
    late.say(&queue).await.expect("an answer");
    assert_eq!(late.held, 2);
    late.sync.returned += 2;
    let reply = late.say(&queue).await.expect("an answer");
    assert_eq!(reply.usage.in_use, 1, "and it is alive");
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_an_unknown_session_leaves_no_waiters_behind() {
    let queue = store();
    let mut unknown = Client::new(1);
    unknown.sync.begin = false;
    unknown.sync.seq = 1;
    let rule = tollgate::remote::Rule::Permits { limit: LIMIT };
    let reply = queue.sync(&key(), &rule, &unknown.sync).await.expect("an answer");
    assert!(!reply.alive && queue.0.waiters_by_key.lock().is_empty());
}
