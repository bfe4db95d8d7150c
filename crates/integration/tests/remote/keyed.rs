//! Rates, windows and permits of many keys at a store, one step an admission: the same tests for each store that carries out steps.

use crate::places::Place;
use crate::raw_session::SHORT;
use crate::rig::proxy::{Mode, Proxy};
use crate::store::{key, times};
use futures::FutureExt as _;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tollgate::remote::model::KeyLegs;
use tollgate::remote::{
    Backend, Correction, KeyLease, KeyLeg, KeyedLimits, LegUnits, Remote, RemoteLeg, Reserved, Rule, Session, Step,
};
use tollgate::{Ask, Cost, Reason};

const TOKENS: Cost = Cost::new("tokens");
const SECOND: Duration = Duration::from_secs(1);

mod redis {
    super::keyed!(crate::redis::Here);
}

mod postgres {
    super::keyed!(crate::postgres::Here);
}

macro_rules! keyed {
    ($place:ty; $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::keyed::$name::<$place>().await;
            }
        )*
    };
    ($place:ty) => {
        $crate::keyed::keyed! {
            $place;
            the_server_counts_as_the_reference
            a_waiter_for_permits_of_a_key_is_told
            a_key_leaves_the_store_by_itself
            processes_share_keys_over_a_line_that_loses_replies
            permits_of_a_key_are_passed_on_at_once
        }
    };
}
use keyed;

/// Legs, each with the number of the key at which it is counted.
fn rules() -> impl Strategy<Value = Vec<(KeyLeg, usize)>> {
    let rule = prop_oneof![
        (1u64..2_000, 1u64..50, 1u64..9)
            .prop_map(|(count, burst, secs)| format!("{count}/{secs}s burst {burst}"))
            .prop_map(|quota| Rule::Rate {
                quota: quota.parse().expect("a quota")
            }),
        (0u64..30, 1u64..400).prop_map(|(limit, millis)| Rule::Window {
            limit,
            length: Duration::from_millis(millis),
        }),
        (0u64..9).prop_map(|limit| Rule::Permits { limit }),
        (5u64..30).prop_map(|limit| Rule::Permits { limit }),
    ];
    // Few names: a leg changes its rule from step to step.
    let leg = |name: &'static str| (rule.clone(), 0..3usize).prop_map(move |(rule, at)| (KeyLeg::new(name, rule), at));
    prop_oneof![
        (leg("a"), leg("b")).prop_map(|(a, b)| vec![a, b]),
        leg("a").prop_map(|a| vec![a]),
        (leg("c"), leg("b"), leg("a")).prop_map(|(c, b, a)| vec![c, b, a]),
    ]
}

/// Waits until a server that was just started gives permits of unknown keys.
async fn settled(store: &impl Backend) {
    let leg = KeyLeg::new("a", Rule::Permits { limit: 1 });
    let mut step = Step::new(1, 0, SECOND);
    step.takes = vec![KeyLeg::units([1])];
    step.lease = Some(KeyLease {
        ttl: SECOND / 10,
        held: LegUnits::default(),
        waiting: 1,
    });
    loop {
        step.seq += 1;
        let reply = store
            .step(&key(), std::slice::from_ref(&leg), &step)
            .await
            .expect("a reply");
        if reply.takes[0].is_ok() {
            return;
        }
    }
}

/// Given random steps of three clients at three keys with rules that change and legs that are counted at another key than that of the step,
/// some repeated, then the server replies as the reference does at the server's instant, and forgets the keys when that may.
async fn the_server_counts_as_the_reference<P: Place>() {
    let store = P::store();
    settled(&store).await;
    let mut runner = TestRunner::new(Config::default());
    let units = (0u64..20, 0u64..20, 0u64..20).prop_map(|(a, b, c)| -> LegUnits { KeyLeg::units([a, b, c]) });
    let units_of_grant = prop_oneof![Just(LegUnits::default()), Just([u64::MAX; KeyLeg::MOST]), units.clone()];
    // The units that are reported as returned, or as forgotten by the store; from which admission on it waits; the time to live.
    let lease = prop::option::weighted(0.8, (0u64..4, prop::bool::weighted(0.1), 0usize..4, 1u64..40));
    let step = (
        (rules(), 0..3usize),
        prop::collection::vec(units.clone(), 0..4),
        any::<prop::sample::Index>(),
        units.clone(),
        (0..4u32, lease),
        0..3u64,
        prop::option::weighted(0.3, units_of_grant),
        // For how long it reserves; what becomes of a reservation, by its real end or by none.
        prop::option::weighted(0.6, 1u64..30),
        prop::option::weighted(0.5, (units.clone(), units.clone(), any::<bool>())),
    );
    let steps = prop::collection::vec(step, 1..30);
    for _ in 0..400 * times() {
        let (name, mut models, mut taken, mut seq) = (key(), BTreeMap::new(), Vec::new(), 0);
        let keys = [0, 1, 2].map(|at| name.with(&format!(":{at}")).expect("a key"));
        let mut held: BTreeMap<(u64, usize, Box<str>), u64> = BTreeMap::new();
        let mut ends = Vec::new();
        for ((legs, own), takes, which, actual, (kind, lease), client, grant, time, change) in
            steps.new_tree(&mut runner).expect("a case").current()
        {
            seq += 1;
            let key = &keys[own];
            let at = |(leg, at): (KeyLeg, usize)| KeyLeg {
                key: (at != own && !matches!(leg.rule, Rule::Permits { .. })).then(|| keys[at].clone()),
                ..leg
            };
            let legs: Vec<KeyLeg> = legs.into_iter().map(at).collect();
            let mut count = |now, step: &Step| {
                let mut model: KeyLegs = models.remove(key).unwrap_or_default();
                let reply = model.step_beside(&mut models, now, &legs, step);
                models.insert(key.clone(), model);
                reply
            };
            let mut step = Step::new(client, seq, 10 * SECOND);
            step.takes = takes;
            step.grant = grant;
            step.reserve_for = time.map(Duration::from_millis);
            if let Some((after, used, is_known)) = change
                && !taken.is_empty()
            {
                let which = which.index(taken.len());
                let (at, before) = taken[which];
                let until = if is_known { ends[which] } else { 0 };
                step.reserved.push(Reserved {
                    at,
                    until,
                    before,
                    after,
                    used,
                });
                ends[which] = step.reserve_for.map_or(0, |time| Reserved::until(at, time));
            }
            if kind == 0 && !taken.is_empty() {
                let (at, charged) = taken[which.index(taken.len())];
                step.corrections.push(Correction { at, charged, actual });
            }
            let permits: Vec<_> = legs
                .iter()
                .map(|leg| matches!(leg.rule, Rule::Permits { .. }))
                .collect();
            step.lease = lease.map(|(back, forgotten, waiting, millis)| {
                let mut lease = KeyLease {
                    ttl: Duration::from_millis(millis),
                    held: LegUnits::default(),
                    waiting,
                };
                for (n, leg) in legs.iter().enumerate().filter(|(n, _)| permits[*n]) {
                    let known = held.get(&(client, own, leg.name.clone())).copied().unwrap_or(0);
                    lease.held[n] = known.saturating_sub(back) + 50 * u64::from(forgotten);
                }
                lease
            });
            let reply = store.step(key, &legs, &step).await.expect("a reply");
            for (n, leg) in legs.iter().enumerate().filter(|(n, _)| permits[*n]) {
                let admitted = step.takes.iter().zip(&reply.takes).filter(|(_, taken)| taken.is_ok());
                let before = step.lease.filter(|_| !reply.lost).map_or(0, |lease| lease.held[n]);
                let now = before + admitted.map(|(units, _)| units[n]).sum::<u64>();
                if step.lease.is_some() {
                    held.insert((client, own, leg.name.clone()), now);
                }
            }
            assert_eq!(count(reply.at, &step), reply, "{legs:?} {step:?}");
            for (units, _) in step.takes.iter().zip(&reply.takes).filter(|(_, taken)| taken.is_ok()) {
                taken.push((reply.at, *units));
                ends.push(step.reserve_for.map_or(0, |time| Reserved::until(reply.at, time)));
            }
            let grants = step.grant.iter().flatten().take(legs.len()).any(|&n| n > 0);
            let changed = grants
                || !step.corrections.is_empty()
                || !step.reserved.is_empty()
                || reply.takes.iter().any(Result::is_ok);
            if kind == 1 && changed {
                assert_eq!(store.step(key, &legs, &step).await, Ok(reply), "repeated");
            } else if kind == 2 && changed {
                step.seq -= 1;
                let reply = store.step(key, &legs, &step).await.expect("a reply");
                assert_eq!(count(reply.at, &step), reply, "late: {step:?}");
            }
        }
    }
}

/// A step that reports `held` permits of the one leg, and takes or waits for `takes`.
pub(crate) fn permit_step(client: u64, seq: u64, held: u64, takes: &[u64], waiting: usize) -> Step {
    let units = |n| KeyLeg::units([n]);
    let mut step = Step::new(client, seq, 10 * SECOND);
    step.takes = takes.iter().map(|&n| units(n)).collect();
    step.lease = Some(KeyLease {
        ttl: 2 * SECOND,
        held: units(held),
        waiting,
    });
    step
}

/// One leg of permits.
pub(crate) fn in_flight(limit: u64) -> [KeyLeg; 1] {
    [KeyLeg::new("in flight", Rule::Permits { limit })]
}

/// Given waiters, then the first is notified when its permit comes back, no other overtakes it meanwhile, and its next waiter goes behind the
/// others.
async fn a_waiter_for_permits_of_a_key_is_told<P: Place>() {
    let (store, name, legs) = (P::store(), key(), in_flight(1));
    settled(&store).await;
    let mut seq = 0;
    let mut step = async |client, takes: &[u64], waiting| {
        seq += 1;
        let mut step = permit_step(client, seq, 0, takes, waiting);
        step.lease.as_mut().expect("it leases").ttl = 10 * SECOND;
        store.step(&name, &legs, &step).await.expect("a reply")
    };
    while step(1, &[1], 1).await.takes[0].is_err() {}
    assert!(step(2, &[1], 0).await.takes[0].is_err());
    assert!(step(3, &[1], 0).await.takes[0].is_err());
    assert!(!step(1, &[], 0).await.lost, "a return");
    let notified = |client| tokio::time::timeout(10 * SECOND, store.notified(&name, Session::of_place(client)));
    notified(2).await.expect("a message");
    assert!(step(1, &[1], 1).await.takes[0].is_err(), "the places are ahead");
    assert_eq!(notified(3).now_or_never(), None, "it is not the first");
    let two = step(2, &[1, 1], 0).await.takes;
    assert!(two[0].is_ok() && two[1].is_err(), "{two:?}");
    assert!(step(2, &[1], 0).await.takes[0].is_err(), "a return, and a later place");
    notified(3).await.expect("a message");
    assert!(step(3, &[1], 0).await.takes[0].is_ok());
}

/// Given a key with permits, a rate and a window in use, then it goes once their time has passed, and so does one that refused all.
async fn a_key_leaves_the_store_by_itself<P: Place>() {
    let (store, name) = (P::store(), key());
    settled(&store).await;
    let quota = "100/s burst 10".parse().expect("a quota");
    let length = SHORT;
    let [in_flight] = in_flight(9);
    let others = [
        ("rate", Rule::Rate { quota }),
        ("window", Rule::Window { limit: 9, length }),
    ];
    let others = others.map(|(name, rule)| KeyLeg::new(name, rule));
    let legs: Vec<KeyLeg> = std::iter::once(in_flight).chain(others).collect();
    let mut step = Step::new(1, 1, SHORT);
    step.takes = vec![KeyLeg::units([20, 1, 1])];
    assert!(store.step(&name, &legs, &step).await.expect("a reply").takes[0].is_err());
    assert_eq!(P::keys(&name).await, 0, "it took nothing");
    // Long enough to be seen.
    let (ttl, held) = (4 * SECOND, LegUnits::default());
    step.seq = 2;
    step.lease = Some(KeyLease { ttl, held, waiting: 1 });
    step.takes = vec![KeyLeg::units([1, 1, 1])];
    assert!(store.step(&name, &legs, &step).await.expect("a reply").takes[0].is_ok());
    assert!(P::keys(&name).await > 0);
    while P::keys(&name).await > 0 {
        tokio::time::sleep(SHORT).await;
    }
}

/// Given a server that was just started, then it gives no permits of unknown keys for a time to live. Given a server that has forgotten a
/// lease, then its holder learns it.
#[tokio::test]
async fn permits_of_keys_survive_what_a_server_forgets() {
    let begun = std::time::Instant::now();
    let (server, store, name) = crate::store::own_unopened().await;
    let legs = in_flight(1);
    let mut seq = 0;
    let mut step = async |held, takes: &[u64]| {
        seq += 1;
        let step = permit_step(1, seq, held, takes, takes.len());
        store.step(&name, &legs, &step).await.expect("a reply")
    };
    while step(0, &[1]).await.takes[0].is_err() {}
    assert!(begun.elapsed() >= 2 * SECOND, "{:?}", begun.elapsed());
    crate::redis::eval(&server, "redis.call('FLUSHALL')").expect("a server that answers");
    assert!(step(1, &[]).await.lost);
}

fn spec(requests: &str) -> KeyedLimits {
    let legs = [
        RemoteLeg::rate("requests", requests.parse().expect("a quota")),
        RemoteLeg::window("tokens", 1_000, 60 * SECOND).per(TOKENS),
    ];
    KeyedLimits::new(1_000, "all", legs)
}

/// Given processes that ask for the same keys over a line that loses replies, then no key gives more than it has, and what was not used is
/// there again.
async fn processes_share_keys_over_a_line_that_loses_replies<P: Place>() {
    let name = key();
    let proxy = Proxy::before(P::server()).await.expect("a proxy");
    let mut processes = Vec::new();
    for process in 0..3 {
        let address = if process == 0 { proxy.address() } else { P::server() };
        let builder = Remote::keyed(name.clone(), spec("1/h burst 300"))
            .timeout(SECOND / 10)
            .retry(SECOND / 100);
        let keyed = builder
            .unavailable_after(60 * SECOND)
            .spawn(P::at(address))
            .expect("a limiter");
        processes.push(keyed);
    }
    let mut callers = JoinSet::new();
    for (process, keyed) in processes.iter().enumerate() {
        for key in ["a", "b"] {
            let keyed = keyed.clone();
            callers.spawn(async move {
                let (key, mut used) = (keyed.get(key).expect("a key"), 0);
                for _ in 0..150 {
                    let ask = Ask::one().cost(TOKENS, 10);
                    if let Ok(mut permit) = key.acquire_now(ask).await {
                        permit.settle(TOKENS, 4).expect("a cost that counts");
                        used += 1;
                    }
                }
                (process, used)
            });
        }
    }
    for mode in [Mode::LoseReplies, Mode::Pass, Mode::LoseReplies, Mode::Pass] {
        tokio::task::yield_now().await;
        proxy.set(mode);
        let other = processes[1].get("c").expect("a key");
        for _ in 0..200 {
            let _ = other.acquire_now(Ask::one().cost(TOKENS, 0)).await;
        }
    }
    let mut used = 0;
    while let Some(ended) = callers.join_next().await {
        used += ended.expect("no panic").1;
    }
    // Two keys with 250 admissions of 4 tokens each, as many requests, and three processes with 150 asks.
    assert!(used <= 500, "{used}");
    assert!(used >= 300, "{used}");
}

/// Given two processes that hand the permits of a key to each other, then each hears of them by a message: a wait for the end of a lease,
/// or for a renewal, would take a second each time.
async fn permits_of_a_key_are_passed_on_at_once<P: Place>() {
    let name = key();
    let policy = [
        RemoteLeg::rate("requests", "1000/s".parse().expect("a quota")),
        RemoteLeg::permits("in-flight", 2),
    ];
    let process = || {
        let spec = KeyedLimits::new(10, "all", policy.clone());
        let builder = Remote::keyed(name.clone(), spec).ttl(3 * SECOND);
        let keyed = builder.spawn(P::store()).expect("a limiter");
        keyed.get("acme").expect("a key")
    };
    let (one, other) = (process(), process());
    // A server that was just started waits for a time to live.
    let mut held = one.acquire(2).await.expect("it is served");
    let begun = tokio::time::Instant::now();
    for _ in 0..20 {
        for (waits, holds) in [(&other, &one), (&one, &other)] {
            let refused = holds.acquire_now(1).await.map(drop).expect_err("all are in use");
            assert_eq!((refused.reason(), refused.leg()), (Reason::Saturated, "in-flight"));
            let (next, ()) = tokio::join!(waits.acquire(2), async {
                // Its place is known when the next step is answered.
                let _ = holds.acquire_now(1).await.map(drop);
                drop(held);
            });
            held = next.expect("it is served");
        }
    }
    assert!(begun.elapsed() < 20 * SECOND, "{:?}", begun.elapsed());
    assert!(!held.is_lost());
}
