//! Rates and windows of many keys at a store, one step an admission.

use crate::rig::proxy::{Mode, Proxy};
use crate::store::{at, key, own_unopened, store};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::time::Duration;
use tokio::task::JoinSet;
use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
use tollgate::remote::model::KeyLegs;
use tollgate::remote::{Backend, Correction, KeyLeg, LegUnits, Remote, Rule, Step};
use tollgate::{Ask, Cost};

const TOKENS: Cost = Cost::new("tokens");
const SECOND: Duration = Duration::from_secs(1);

fn rules() -> impl Strategy<Value = Vec<KeyLeg>> {
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
    ];
    // Few names: a leg changes its rule from step to step.
    let leg = |name: &'static str| {
        rule.clone().prop_map(move |rule| KeyLeg {
            name: name.into(),
            rule,
        })
    };
    prop_oneof![
        (leg("a"), leg("b")).prop_map(|(a, b)| vec![a, b]),
        leg("a").prop_map(|a| vec![a]),
        (leg("c"), leg("b"), leg("a")).prop_map(|(c, b, a)| vec![c, b, a]),
    ]
}

/// Given random steps of two clients with rules that change, some repeated, then the server replies as the reference does at the
/// server's instant, and forgets the key when that may.
#[tokio::test]
async fn the_server_counts_as_the_reference() {
    let store = store();
    let mut runner = TestRunner::new(Config::default());
    let units = (0u64..20, 0u64..20, 0u64..20).prop_map(|(a, b, c)| -> LegUnits { [a, b, c, 0, 0, 0, 0, 0] });
    let step = (
        rules(),
        prop::collection::vec(units.clone(), 0..4),
        any::<prop::sample::Index>(),
        units,
        0..4u32,
        0..2u64,
    );
    let steps = prop::collection::vec(step, 1..30);
    for _ in 0..400 {
        let (key, mut model, mut taken, mut seq) = (key(), KeyLegs::default(), Vec::new(), 0);
        for (legs, takes, which, actual, kind, client) in steps.new_tree(&mut runner).expect("a case").current() {
            seq += 1;
            let mut step = Step::new(client, seq, 10 * SECOND);
            step.takes = takes;
            if kind == 0 && !taken.is_empty() {
                let (at, charged) = taken[which.index(taken.len())];
                step.corrections.push(Correction { at, charged, actual });
            }
            let reply = store.step(&key, &legs, &step).await.expect("a reply");
            assert_eq!(model.step(reply.at, &legs, &step), reply, "{legs:?} {step:?}");
            for (units, _) in step.takes.iter().zip(&reply.takes).filter(|(_, taken)| taken.is_ok()) {
                taken.push((reply.at, *units));
            }
            let changed = !step.corrections.is_empty() || reply.takes.iter().any(Result::is_ok);
            if kind == 1 && changed {
                assert_eq!(store.step(&key, &legs, &step).await, Ok(reply), "repeated");
            }
        }
    }
}

fn spec(requests: &str) -> KeyedSpec {
    let legs = [
        LegSpec::new("requests", LegRule::token_bucket(requests.parse().expect("a quota"))),
        LegSpec::new("tokens", LegRule::sliding_window(1_000, 60 * SECOND)).per("tokens"),
    ];
    KeyedSpec::new(1_000, "all", PolicySpec::new(legs))
}

/// Given processes that ask for the same keys over a line that loses replies, then no key gives more than it has, and what was not used is
/// there again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_keys_over_a_line_that_loses_replies() {
    let (server, _, name) = own_unopened().await;
    let proxy = Proxy::before(server.address()).await.expect("a proxy");
    let mut processes = Vec::new();
    for process in 0..3 {
        let address = if process == 0 {
            proxy.address()
        } else {
            server.address()
        };
        let builder = Remote::keyed(name.clone(), spec("1/h burst 300"))
            .timeout(SECOND / 10)
            .retry(SECOND / 100);
        let keyed = builder
            .unavailable_after(60 * SECOND)
            .spawn(at(address))
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
