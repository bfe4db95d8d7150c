//! Reloads of policies with many waiters, and many reloads.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tollgate::policy::conditional::LoadMetric;
use tollgate::{Ask, LimiterExt, ManualClock};
use tollgate_config::{KeyedSpec, LegKind, LegSpec, PolicySetSpec, PolicySpec, Reload, ReloadablePolicy, When};

fn spec(name: &str, limit: usize, rate: &str) -> PolicySpec {
    PolicySpec::new([
        LegSpec::new(
            "rate",
            LegKind::TokenBucket {
                quota: rate.parse().unwrap(),
            },
        ),
        LegSpec::new(name, LegKind::Semaphore { limit }),
    ])
}

type Wait<'a> =
    std::pin::Pin<Box<dyn Future<Output = Result<tollgate::Permit<&'a ReloadablePolicy>, tollgate::Refusal>> + 'a>>;

fn poll<'a>(wait: &mut Wait<'a>) -> Poll<Result<tollgate::Permit<&'a ReloadablePolicy>, tollgate::Refusal>> {
    wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Given 10,000 waiters at a semaphore, when a version replaces it by another, then they are admitted there in their order.
#[test]
fn ten_thousand_waiters_keep_their_order_through_a_version() {
    const WAITERS: usize = 10_000;
    let clock = ManualClock::new();
    let policy = spec("old", 1, "1000000/s burst 100000").build(&clock).unwrap();
    let held = policy.try_admit(1).unwrap();
    let mut waits: Vec<Wait<'_>> = (0..WAITERS).map(|_| Box::pin(policy.admit(1)) as Wait<'_>).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait).is_pending()));
    let begun = Instant::now();
    policy.apply(spec("new", 0, "1000000/s burst 200000")).unwrap();
    println!("a version with {WAITERS} waiters: {:?}", begun.elapsed());
    assert_eq!(policy.waiting(), WAITERS);
    let mut permits = Vec::new();
    for step in 1..=10 {
        policy.apply(spec("new", step * 100, "1000000/s burst 200000")).unwrap();
        for (at, wait) in waits.iter_mut().enumerate().skip((step - 1) * 100).take(101) {
            match poll(wait) {
                Poll::Ready(permit) => permits.push(permit.unwrap()),
                Poll::Pending => assert_eq!(at, step * 100, "in their order"),
            }
        }
        assert_eq!(permits.len(), step * 100);
    }
    assert_eq!(policy.limiter().in_use("new"), Some(1_000));
    drop(held);
    assert_eq!(
        policy.limiter().in_use("new"),
        Some(1_000),
        "it ends at the limiter that made it"
    );
    drop((waits, permits));
    assert_eq!((policy.waiting(), policy.limiter().in_use("new")), (0, Some(0)));
}

/// Given a waiter whose place is in the queue of a semaphore that the program shares with others, when a version takes that leg away,
/// then the others are served there, and the waiter elsewhere.
#[test]
fn a_place_at_a_leg_that_is_gone_is_given_up() {
    use std::sync::Arc;
    use tollgate::{Clock, Semaphore};
    use tollgate_config::{ConfigError, Kinds};
    let clock = ManualClock::new();
    let shared = Arc::new(Semaphore::new(1));
    let known = Arc::clone(&shared);
    let kinds = Kinds::new().with("shared", move |_: serde_json::Value, _: &Clock| {
        Ok::<_, ConfigError>(Arc::clone(&known).boxed())
    });
    let (kind, numbers) = ("shared".into(), serde_json::Map::new());
    let at_shared = LegSpec::new("shared", LegKind::Custom { kind, numbers });
    let policy = PolicySpec::new([at_shared]).build_with(&clock, &kinds).unwrap();
    let held = shared.try_acquire().unwrap();
    let mut first = pin!(policy.admit(1));
    let mut second = pin!(shared.acquire());
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    policy
        .apply(PolicySpec::new([LegSpec::new("own", LegKind::Semaphore { limit: 0 })]))
        .unwrap();
    drop(held);
    let Poll::Ready(permit) = second.as_mut().poll(&mut context) else {
        panic!("the place before it was given up");
    };
    drop(permit);
    assert!(first.as_mut().poll(&mut context).is_pending());
    policy
        .apply(PolicySpec::new([LegSpec::new("own", LegKind::Semaphore { limit: 1 })]))
        .unwrap();
    assert!(first.as_mut().poll(&mut context).is_ready());
}

/// A thousand versions with conditions and legs that come and go keep nothing.
#[test]
fn memory_returns_to_where_it_was() {
    let clock = ManualClock::new();
    let versions = [
        spec("a", 4, "10/s"),
        PolicySpec::new([
            LegSpec {
                when: Some(When {
                    below: Some(0.2),
                    ..When::above("b", LoadMetric::Use, 0.5)
                }),
                ..LegSpec::new(
                    "rate",
                    LegKind::TokenBucket {
                        quota: "20/s".parse().unwrap(),
                    },
                )
            },
            LegSpec::new("b", LegKind::Semaphore { limit: 4 }),
        ]),
        PolicySpec::new([
            LegSpec {
                when: Some(When::above("b", LoadMetric::Latency, 0.5)),
                ..LegSpec::new(
                    "rate",
                    LegKind::TokenBucket {
                        quota: "30/s".parse().unwrap(),
                    },
                )
            },
            LegSpec::new("b", LegKind::Semaphore { limit: 5 }),
        ]),
    ];
    let policy = versions[0].build(&clock).unwrap();
    let reload = |times: usize| {
        for n in 0..times {
            let held = policy.try_admit(1);
            policy.apply(versions[n % 3].clone()).unwrap();
            drop(held);
            clock.advance(std::time::Duration::from_secs(1));
        }
    };
    reload(300);
    let more = allocation_counter::measure(|| reload(999));
    assert!(
        more.bytes_current.abs() < 4_096,
        "{} bytes are kept",
        more.bytes_current
    );
}

/// A set of 1,000 live keys, through versions.
#[test]
fn a_version_changes_each_of_a_thousand_live_keys() {
    let tiers = |burst: u64| {
        let leg = LegSpec::new(
            "requests",
            LegKind::TokenBucket {
                quota: format!("zero burst {burst}").parse().unwrap(),
            },
        );
        let mut spec = PolicySetSpec::default();
        spec.keyed
            .insert("tenant".into(), KeyedSpec::new(2_000, "all", PolicySpec::new([leg])));
        spec
    };
    let set = tiers(10).build(&ManualClock::new()).unwrap();
    let map = set.keyed("tenant").unwrap();
    let keys: Vec<_> = (0..1_000).map(|n| map.get(&n.to_string()).unwrap()).collect();
    keys.iter().for_each(|key| drop(key.try_admit(Ask::many(4)).unwrap()));
    set.apply(tiers(8)).unwrap();
    for key in &keys {
        assert!(key.try_admit(Ask::many(7)).is_err() && key.try_admit(Ask::many(6)).is_ok());
    }
}
