//! Permits beside rates and windows at a key: leases, returns, losses and the queue.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use tollgate::ManualClock;
use tollgate::remote::model::KeyLegs;
use tollgate::remote::{Backend, Key, KeyLease, KeyLeg, LegUnits, Memory, Rule, Session, Step, StepReply};

const SECOND: u64 = 1_000_000;
const TTL: Duration = Duration::from_secs(10);

fn legs(limit: u64, quota: &str) -> [KeyLeg; 2] {
    let quota = quota.parse().unwrap();
    [
        KeyLeg::new("requests", Rule::Rate { quota }),
        KeyLeg::new("in flight", Rule::Permits { limit }),
    ]
}

fn units(permits: u64) -> LegUnits {
    KeyLeg::units([u64::from(permits > 0), permits])
}

/// A step of `client` that reports `held`, takes the first at once and waits for the others.
fn step(client: u64, seq: u64, held: u64, now: &[u64], waiting: &[u64]) -> Step {
    let mut step = Step::new(client, seq, Duration::from_secs(30));
    step.takes = now.iter().chain(waiting).map(|&n| units(n)).collect();
    step.lease = Some(KeyLease {
        ttl: TTL,
        held: KeyLeg::units([0, held]),
        waiting: now.len(),
    });
    step
}

/// A client as it sees itself: what it holds, until when, and the step that it repeats.
#[derive(Clone, Default)]
struct Client {
    seq: u64,
    held: u64,
    until: u64,
    /// Needs of the waiter.
    needs: u64,
    unheard: Option<(u64, Step)>,
}

#[derive(Clone, Debug)]
enum Event {
    Take(usize, u64),
    Wait(usize, u64),
    Withdraw(usize),
    Return(usize, u64),
    Renew(usize),
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<(Event, bool)>> {
    let event = prop_oneof![
        4 => (0..4usize, 1..4u64).prop_map(|(client, n)| Event::Take(client, n)),
        4 => (0..4usize, 1..4u64).prop_map(|(client, n)| Event::Wait(client, n)),
        1 => (0..4usize).prop_map(Event::Withdraw),
        4 => (0..4usize, 1..4u64).prop_map(|(client, n)| Event::Return(client, n)),
        3 => (0..4usize).prop_map(Event::Renew),
        3 => (1..8u64).prop_map(Event::Pass),
    ];
    prop::collection::vec((event, prop::bool::weighted(0.2)), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Given clients that take, wait, return, lose replies and lapse at random, then the units of live leases never exceed the limit,
    /// waiters are admitted in order, a told client finds its permits, and in the end all are free and nothing is left.
    #[test]
    fn live_units_never_exceed_the_limit_and_come_back(events in events()) {
        const LIMIT: u64 = 4;
        let legs = legs(LIMIT, "1000/s burst 1000");
        let (mut key, mut now) = (KeyLegs::default(), SECOND);
        let mut clients = vec![Client::default(); 4];
        let mut queue: Vec<(usize, u64)> = Vec::new();
        for (turn, (event, lost)) in events.iter().enumerate() {
            let (who, now_takes, new_wait, back, withdraws) = match *event {
                Event::Pass(seconds) => {
                    now += seconds * SECOND;
                    continue;
                }
                Event::Take(who, n) if clients[who].needs == 0 => (who, Some(n), None, 0, false),
                Event::Wait(who, n) if clients[who].needs == 0 => (who, None, Some(n), 0, false),
                Event::Withdraw(who) => (who, None, None, 0, true),
                Event::Return(who, n) => (who, None, None, n, false),
                Event::Take(who, _) | Event::Wait(who, _) | Event::Renew(who) => (who, None, None, 0, false),
            };
            let me = &mut clients[who];
            if me.held > 0 && now >= me.until {
                me.held = 0;
            }
            let is_new = me.unheard.is_none();
            let (since, sent) = match me.unheard.take() {
                Some(again) => again,
                None => {
                    me.held -= back.min(me.held);
                    me.needs = if withdraws { 0 } else { new_wait.unwrap_or(me.needs) };
                    me.seq += 1;
                    let waiting = (me.needs > 0).then_some(me.needs);
                    (now, step(who as u64, me.seq, me.held, now_takes.as_slice(), waiting.as_slice()))
                }
            };
            let reply = key.step(now, &legs, &sent);
            key.take_notified();
            let waiting = sent.lease.unwrap().waiting;
            if is_new || reply.at == now {
                queue.retain(|&(_, until)| until > now);
                let place = queue.iter().position(|&(client, _)| client == who);
                let taken = reply.takes.iter().any(Result::is_ok);
                prop_assert!(!(is_new && taken) || place.unwrap_or(queue.len()) == 0, "{who} overtakes {queue:?} at {turn}");
                match (place, reply.takes[waiting..].iter().any(Result::is_err)) {
                    (Some(place), true) => queue[place].1 = now + 10 * SECOND,
                    (None, true) => queue.push((who, now + 10 * SECOND)),
                    (Some(place), false) => _ = queue.remove(place),
                    (None, false) => {}
                }
            }
            if *lost {
                clients[who].unheard = Some((since, sent));
            } else {
                if reply.lost {
                    clients[who].held = 0;
                }
                for (n, taken) in reply.takes.iter().enumerate() {
                    let me = &mut clients[who];
                    if taken.is_ok() {
                        me.held += sent.takes[n][1];
                        me.until = since + 10 * SECOND;
                        if n >= waiting {
                            me.needs = 0;
                        }
                    }
                }
                let me = &mut clients[who];
                me.until = if me.held > 0 { since + 10 * SECOND } else { 0 };
            }
            let live: u64 = clients.iter().filter(|client| now < client.until).map(|client| client.held).sum();
            prop_assert!(live <= LIMIT, "{live} at {turn}");
        }
        // All forget what they hold, and the leases end.
        now += 60 * SECOND;
        prop_assert!(key.is_empty(now));
        let all = key.step(now, &legs, &step(9, 1, 0, &[LIMIT], &[]));
        prop_assert_eq!(&all.takes, &[Ok(())]);
        key.step(now, &legs, &step(9, 2, 0, &[], &[]));
        prop_assert!(key.is_empty(now + 60 * SECOND));
    }
}

fn after(reply: &StepReply) -> Vec<Result<(), (usize, Option<u64>)>> {
    let refused = |refusal: &tollgate::remote::StepRefusal| (refusal.leg, refusal.after.map(|after| after.as_secs()));
    let takes = reply
        .takes
        .iter()
        .map(|taken| taken.map_err(|refusal| refused(&refusal)));
    takes.collect()
}

/// Given a full key, then it refuses by its permit leg, until the first lease that frees enough ends.
#[test]
fn a_refusal_names_the_leg_and_the_end_of_the_lease() {
    let (mut key, legs) = (KeyLegs::default(), legs(3, "10/s burst 10"));
    for (client, at, takes) in [(1, 1, 2), (2, 4, 1)] {
        let reply = key.step(at * SECOND, &legs, &step(client, 1, 0, &[takes], &[]));
        assert_eq!(after(&reply), [Ok(())]);
    }
    let reply = key.step(5 * SECOND, &legs, &step(3, 1, 0, &[1, 3, 4], &[]));
    assert_eq!(after(&reply), [Err((1, Some(6))), Err((1, Some(9))), Err((1, None))]);
    // Nothing was taken of the rate, and the lease ends at that instant.
    let mut all = step(3, 2, 0, &[2], &[]);
    all.takes[0][0] = 10;
    assert_eq!(after(&key.step(11 * SECOND - 1, &legs, &all)), [Err((1, Some(0)))]);
    all.seq = 3;
    assert_eq!(after(&key.step(11 * SECOND, &legs, &all)), [Ok(())]);
}

/// Given leases that ended or were forgotten, then their holder learns it, and a report of less is a return.
#[test]
fn a_lapsed_holder_learns_it() {
    let (mut key, legs) = (KeyLegs::default(), legs(2, "10/s burst 10"));
    key.step(SECOND, &legs, &step(1, 1, 0, &[2], &[]));
    assert!(!key.step(8 * SECOND, &legs, &step(1, 2, 2, &[], &[])).lost);
    let reply = key.step(17 * SECOND, &legs, &step(1, 3, 1, &[1], &[]));
    assert_eq!((reply.lost, after(&reply)), (false, vec![Ok(())]));
    // It reports more than there is.
    let reply = key.step(18 * SECOND, &legs, &step(1, 4, 3, &[2], &[]));
    assert_eq!((reply.lost, after(&reply)), (true, vec![Ok(())]));
    let reply = key.step(28 * SECOND, &legs, &step(1, 5, 2, &[], &[]));
    assert!(reply.lost);
    let other = key.step(28 * SECOND, &legs, &step(2, 1, 0, &[2], &[]));
    assert_eq!(after(&other), [Ok(())]);
}

/// Given waiters of several clients, then places are served in order, each is told once its permits are there, and the place of a dead
/// client ends with its lease.
#[test]
fn places_are_served_in_order() {
    let (mut key, legs) = (KeyLegs::default(), legs(2, "1000/s burst 1000"));
    let mut seqs = BTreeMap::new();
    let mut ask = |key: &mut KeyLegs, at: u64, client: u64, held, now: &[u64], waiting: &[u64]| {
        let seq: &mut u64 = seqs.entry(client).or_default();
        *seq += 1;
        let reply = key.step(at * SECOND, &legs, &step(client, *seq, held, now, waiting));
        let told: Vec<u64> = key.take_notified().into_iter().collect();
        (after(&reply), told)
    };
    ask(&mut key, 1, 1, 0, &[2], &[]);
    assert_eq!(ask(&mut key, 1, 2, 0, &[], &[2]), (vec![Err((1, Some(10)))], vec![]));
    // The second waiter of a client is behind its first, though it would fit.
    assert_eq!(ask(&mut key, 2, 3, 0, &[], &[1, 1]).0, [Err((1, Some(9))); 2]);
    // One permit comes back: the first needs two, and none overtakes it.
    assert_eq!(ask(&mut key, 3, 1, 1, &[], &[]), (vec![], vec![]));
    assert_eq!(ask(&mut key, 3, 3, 0, &[], &[1, 1]).0, [Err((1, Some(8))); 2]);
    assert_eq!(ask(&mut key, 3, 4, 0, &[1], &[]).0, [Err((1, Some(10)))]);
    // The other too: it is told, once.
    assert_eq!(ask(&mut key, 4, 1, 0, &[], &[]).1, [2]);
    assert_eq!(ask(&mut key, 4, 5, 0, &[1], &[]), (vec![Err((1, Some(9)))], vec![]));
    // It has died. The next one is told by the first step after that.
    assert_eq!(ask(&mut key, 11, 5, 0, &[1], &[]), (vec![Err((1, Some(2)))], vec![3]));
    assert_eq!(ask(&mut key, 11, 3, 0, &[], &[1, 1]), (vec![Ok(()), Ok(())], vec![]));
    // A place is judged by the limit of its own client, whatever the limits of others.
    assert_eq!(ask(&mut key, 12, 6, 0, &[], &[2]).0, [Err((1, Some(9)))]);
    let lower = self::legs(1, "1000/s burst 1000");
    let reply = key.step(12 * SECOND, &lower, &step(7, 1, 0, &[1], &[]));
    assert_eq!(
        (after(&reply), key.take_notified().len()),
        (vec![Err((1, Some(10)))], 0)
    );
    let reply = key.step(13 * SECOND, &lower, &step(3, 9, 0, &[], &[]));
    assert_eq!(
        (reply.lost, key.take_notified().into_iter().collect()),
        (false, vec![6])
    );
}

/// Given a client with a place, when its permit comes back, then the store in memory notifies it, once.
#[test]
fn the_store_in_memory_tells_a_waiter() {
    let clock = ManualClock::new();
    let (store, legs, key) = (Memory::new(&clock), legs(1, "10/s burst 10"), Key::new("k").unwrap());
    let send = |step: Step| clock.run(store.step(&key, &legs, &step)).unwrap();
    send(step(1, 1, 0, &[1], &[]));
    send(step(2, 1, 0, &[], &[1]));
    let mut told = Box::pin(store.notified(&key, Session::of_place(2)));
    assert!(super::world::poll(told.as_mut()).is_pending());
    send(step(1, 2, 0, &[], &[]));
    assert!(super::world::poll(told.as_mut()).is_ready());
    send(step(3, 1, 0, &[1], &[]));
    let mut told = Box::pin(store.notified(&key, Session::of_place(2)));
    assert!(super::world::poll(told.as_mut()).is_pending());
    assert_eq!(send(step(2, 2, 0, &[], &[1])).takes, [Ok(())]);
    // It is returned, and the key goes.
    send(step(2, 3, 0, &[], &[]));
    clock.advance(Duration::from_secs(60));
    assert_eq!(store.keys(), 0);
}
