//! Keys of several levels, of which one step decides on some together, over the store in memory.

use crate::remote::keyed::{Fault, World, bucket};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::model::KeyLegs;
use tollgate::remote::{
    Key, KeyLeg, KeyedLimits, LegUnits, Remote, RemoteError, RemoteKeyedBuilder, RemoteLeg, Rule, Step,
};
use tollgate::{Ask, Cost, Reason};

const TOKENS: Cost = Cost::new("tokens");
const SECOND: Duration = Duration::from_secs(1);

fn level(legs: impl IntoIterator<Item = RemoteLeg>) -> KeyedLimits {
    KeyedLimits::new(10, "all", legs)
}

fn tokens(limit: u64) -> RemoteLeg {
    RemoteLeg::window("tokens", limit, 64 * SECOND).per(TOKENS)
}

/// Organisations with 100 tokens and teams with 50 a minute, and users with two calls in flight.
fn levels(world: &World) -> RemoteKeyedBuilder {
    let levels = [
        (
            "organisation",
            level([tokens(100), bucket("requests", "1/s burst 100")]),
        ),
        ("team", level([tokens(50)])),
        ("user", level([RemoteLeg::permits("in flight", 2)])),
    ];
    Remote::levels(Key::new("t").unwrap(), levels).on(&world.clock)
}

fn ask(units: u64) -> Ask {
    Ask::one().cost(TOKENS, units)
}

/// Given users of one organisation in two teams, then the first level without room refuses, by its name and key, and nothing is taken
/// of the others; what is settled to less is there again for all.
#[test]
fn one_step_takes_from_all_levels_or_from_none() {
    let world = World::new();
    let limits = levels(&world).in_place(Arc::clone(&world.line)).unwrap();
    let other = levels(&world).in_place(world.line.another()).unwrap();
    let key = |limits: &tollgate::remote::RemoteKeyed<_>, team, user| {
        // In any order.
        limits
            .get_all(&[("user", user), ("organisation", "acme"), ("team", team)])
            .unwrap()
    };
    let (ann, bob, eve) = (
        key(&limits, "red", "ann"),
        key(&other, "red", "bob"),
        key(&other, "blue", "eve"),
    );
    world.clock.run(async {
        let mut first = ann.acquire_now(ask(40)).await.unwrap();
        assert_eq!(world.line.steps(), 1, "one step");
        let refused = bob.acquire_now(ask(20)).await.unwrap_err();
        assert_eq!(refused.leg(), "team/tokens");
        assert_eq!(refused.retry_after(), Some(65 * SECOND));
        assert_eq!(bob.key_of(refused.leg()).unwrap().as_str(), "t:team:red");
        assert_eq!((bob.key().as_str(), bob.key().tag()), ("t:user:bob", "t"));
        // The organisation has 60 left.
        let second = eve.acquire_now(ask(45)).await.unwrap();
        let refused = bob.acquire_now(ask(10)).await.map(drop);
        assert!(refused.is_ok(), "and 15: {refused:?}");
        let refused = eve.acquire_now(ask(6)).await.unwrap_err();
        assert_eq!(
            (refused.leg(), refused.reason()),
            ("organisation/tokens", Reason::RateExceeded)
        );
        let refused = eve.acquire_now(ask(101)).await.unwrap_err();
        assert_eq!(
            (refused.leg(), refused.reason()),
            ("organisation/tokens", Reason::Oversized)
        );
        first.settle(TOKENS, 4).unwrap();
        assert!(
            eve.acquire_now(ask(5)).await.is_ok(),
            "as soon as it is given back by another process"
        );
        let third = eve.acquire_now(ask(0)).await.unwrap();
        let refused = eve.acquire_now(ask(0)).await.unwrap_err();
        assert_eq!((refused.leg(), refused.reason()), ("user/in flight", Reason::Saturated));
        assert_eq!(eve.key_of(refused.leg()).unwrap(), eve.key());
        drop((second, third));
        assert!(eve.acquire_now(ask(0)).await.is_ok());
        // An operator sees one level alone, and gives back at one of several.
        let acme = limits.get_all(&[("organisation", "acme")]).unwrap();
        let names =
            |usage: tollgate::remote::RemoteKeyUsage| usage.legs().map(|leg| leg.leg.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            names(acme.usage().await.unwrap()),
            ["organisation/tokens", "organisation/requests"]
        );
        bob.grant("organisation/tokens", 100).await.unwrap();
        assert!(acme.acquire_now(ask(100)).await.is_ok());
    });
    world.clock.advance(200 * SECOND);
    assert_eq!(world.line.store.keys(), 0, "nothing is left");
}

/// Given a line that loses replies, then a step over several keys is carried out once at each.
#[test]
fn a_step_over_levels_whose_reply_is_lost_is_carried_out_once() {
    let world = World::new();
    let limits = levels(&world).retry(SECOND).in_place(Arc::clone(&world.line)).unwrap();
    let key = limits.get_all(&[("organisation", "acme"), ("team", "red")]).unwrap();
    world.line.set(Fault::Unheard);
    let asked = key.acquire_now(ask(50));
    let mut asked = std::pin::pin!(asked);
    assert!(crate::remote::world::poll(asked.as_mut()).is_pending());
    world.line.set(Fault::None);
    world.clock.run(async { assert!(asked.await.is_ok()) });
    assert!(world.line.steps() > 1);
    world.clock.run(async {
        let acme = limits.get_all(&[("organisation", "acme")]).unwrap();
        assert!(acme.acquire_now(ask(51)).await.is_err());
        assert!(acme.acquire_now(ask(50)).await.is_ok());
    });
}

#[test]
fn legs_that_cannot_be_one_step_are_an_error_when_they_are_built() {
    let world = World::new();
    let in_flight = || level([RemoteLeg::permits("in flight", 2)]);
    let many = || level((0..9).map(|leg| bucket(&leg.to_string(), "1/s")));
    let rows = [
        (
            vec![("a", in_flight()), ("b", in_flight())],
            "level `b`: permits were given at a second level",
        ),
        (
            vec![("a", many()), ("b", many())],
            "18 legs were given at all levels, and 1 to 16 are allowed",
        ),
        (
            vec![("a", in_flight()), ("a", many())],
            "the level `a` was given, and each name once is allowed",
        ),
        (vec![("a/b", many())], "a name without `:` and `/`"),
        (vec![], "one or more"),
    ];
    for (levels, words) in rows {
        let builder = Remote::levels(Key::new("t").unwrap(), levels).on(&world.clock);
        let error = builder.in_place(Arc::clone(&world.line)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let limits = levels(&world).in_place(Arc::clone(&world.line)).unwrap();
    for keys in [&[("user", "a"), ("user", "b")][..], &[("town", "a")], &[]] {
        assert!(
            matches!(limits.get_all(keys), Err(RemoteError::Level { .. })),
            "{keys:?}"
        );
    }
    assert!(matches!(limits.get("a"), Err(RemoteError::Level { .. })));
    assert!(limits.apply_to("team", &in_flight()).is_err(), "users have some");
    assert!(limits.apply_to("team", &level([tokens(70)])).is_ok());
    let key = limits.get_all(&[("team", "red")]).unwrap();
    world
        .clock
        .run(async { assert!(key.acquire_now(ask(70)).await.is_ok()) });
}

proptest! {
    /// Given random admissions and late corrections over three keys, then each key counts as one that has only its own legs, and a refusal
    /// leaves no trace at any.
    #[test]
    fn each_key_counts_as_if_it_were_alone(
        moves in prop::collection::vec((0..3usize, prop::array::uniform3(0u64..6), any::<bool>(), 0u64..20), 1..60),
    ) {
        let keys = ["a", "b", "c"].map(|name| Key::new(name).unwrap());
        let rules = [
            Rule::Window { limit: 9, length: 64 * SECOND },
            Rule::Rate { quota: "1/s burst 7".parse().unwrap() },
            Rule::Window { limit: 12, length: 128 * SECOND },
        ];
        let leg = |at: usize, own: usize| KeyLeg {
            key: (at != own).then(|| keys[at].clone()),
            ..KeyLeg::new("x", rules[at])
        };
        let (mut models, mut alone) = (BTreeMap::new(), [0; 3].map(|_| KeyLegs::default()));
        let (mut now, mut seq, mut taken) = (1_000_000_000, 0, None::<(u64, LegUnits)>);
        for (own, units, corrects, millis) in moves {
            now += millis * 100_000;
            seq += 1;
            let legs = [0, 1, 2].map(|at| leg(at, own));
            let mut step = Step::new(1, seq, SECOND);
            step.takes.push(KeyLeg::units(units));
            if let Some((at, charged)) = taken.take().filter(|_| corrects) {
                let actual = KeyLeg::units([charged[0] / 2, charged[1], 0]);
                step.corrections.push(tollgate::remote::Correction { at, charged, actual });
            }
            let mut model: KeyLegs = models.remove(&keys[own]).unwrap_or_default();
            let reply = model.step_beside(&mut models, now, &legs, &step);
            models.insert(keys[own].clone(), model);
            // Each alone: first its correction with an empty ask, which shows whether there is room, and then the units if all have it.
            let mut look = |at: usize, units: u64, corrections: bool, seq| {
                let mut single = Step::new(1, seq, SECOND);
                single.takes.push(KeyLeg::units([units]));
                single.corrections = step.corrections.iter().filter(|_| corrections).cloned().collect();
                for correction in &mut single.corrections {
                    correction.charged = KeyLeg::units([correction.charged[at]]);
                    correction.actual = KeyLeg::units([correction.actual[at]]);
                }
                single.grant = Some(LegUnits::default());
                alone[at].step(now, &[KeyLeg::new("x", rules[at])], &single)
            };
            let mut fit = [true; 3];
            for at in 0..3 {
                let usage = look(at, 0, true, 4 * seq);
                let room = match rules[at] {
                    Rule::Window { limit, .. } => limit.saturating_sub(usage.usage[0].in_use),
                    _ => 7u64.saturating_sub(usage.usage[0].in_use),
                };
                fit[at] = units[at] <= room;
            }
            prop_assert_eq!(reply.takes[0].is_ok(), fit == [true; 3], "{:?} {:?}", fit, reply);
            if let Err(refusal) = reply.takes[0] {
                prop_assert!(!fit[refusal.leg]);
            } else {
                for (at, units) in units.into_iter().enumerate() {
                    prop_assert!(look(at, units, false, 4 * seq + 1).takes[0].is_ok());
                }
                taken = Some((reply.at, step.takes[0]));
            }
        }
    }
}
