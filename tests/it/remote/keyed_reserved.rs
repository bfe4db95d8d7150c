//! Reservations of windows at keys, behind a line with faults: what is used is counted, and what is reserved ends with its lease.

use crate::remote::keyed::{Fault, World};
use crate::remote::world::poll;
use proptest::prelude::*;
use std::pin::pin;
use std::time::Duration;
use tollgate::remote::{KeyedLimits, RemoteKeyPermit, RemoteKeyed, RemoteLeg};
use tollgate::status::State;
use tollgate::{Ask, Cost, Outcome};

const TOKENS: Cost = Cost::new("tokens");
const DAY: Duration = Duration::from_secs(86_400);
const MOST: u64 = 100_000;

fn spec() -> KeyedLimits {
    let legs = [
        RemoteLeg::window("calls", MOST, DAY),
        RemoteLeg::window("tokens", MOST, DAY).per(TOKENS),
        RemoteLeg::permits("slots", 1_000),
    ];
    KeyedLimits::new(100, "free", legs)
}

/// Calls and tokens that are in use.
async fn in_use<B: tollgate::remote::Backend>(keyed: &RemoteKeyed<B>) -> (u64, u64) {
    let usage = keyed.get("a").unwrap().usage().await.unwrap();
    let mut used = usage.legs().filter_map(|leg| match leg.state {
        State::Rate { available, .. } => Some(MOST - available),
        _ => None,
    });
    (used.next().unwrap(), used.next().unwrap())
}

#[derive(Clone, Debug)]
enum Move {
    Take { tokens: u64 },
    Spend { which: usize, tokens: u64 },
    Settle { which: usize, tokens: u64 },
    Finish { which: usize },
    Cancel { which: usize },
    Pass { fault: Fault, millis: u64 },
}

fn moves(longest_outage: u64) -> impl Strategy<Value = Vec<Move>> {
    let (which, tokens) = (0..6usize, 0..200u64);
    let fault = prop_oneof![Just(Fault::Cut), Just(Fault::Silent), Just(Fault::Unheard)];
    let one = prop_oneof![
        4 => tokens.clone().prop_map(|tokens| Move::Take { tokens }),
        3 => (which.clone(), tokens.clone()).prop_map(|(which, tokens)| Move::Spend { which, tokens }),
        2 => (which.clone(), tokens).prop_map(|(which, tokens)| Move::Settle { which, tokens }),
        1 => which.clone().prop_map(|which| Move::Finish { which }),
        1 => which.prop_map(|which| Move::Cancel { which }),
        2 => (0..9_000u64).prop_map(|millis| Move::Pass { fault: Fault::None, millis }),
        2 => (fault, 0..longest_outage).prop_map(|(fault, millis)| Move::Pass { fault, millis }),
    ];
    prop::collection::vec(one, 1..40)
}

/// Carries the moves out. Returns what is in use at the store, and what is reserved and used here: while requests run, and after their ends.
fn run(moves: Vec<Move>) -> [((u64, u64), (u64, u64)); 2] {
    let world = World::new();
    let builder = world.builder(spec()).reserves(true);
    let keyed = builder.in_place(world.line.clone()).unwrap();
    let key = keyed.get("a").unwrap();
    // With the units that each counts for.
    let mut running: Vec<(RemoteKeyPermit<_>, u64)> = Vec::new();
    let mut ended = (0, 0);
    world.clock.run(async {
        for next in moves {
            match next {
                Move::Take { tokens } => {
                    let ask = Ask::one().cost(TOKENS, tokens);
                    running.push((key.acquire_now(ask).await.unwrap(), tokens));
                }
                Move::Spend { which, tokens } if which < running.len() => running[which].0.spend(TOKENS, tokens),
                Move::Settle { which, tokens } if which < running.len() => {
                    let (permit, units) = &mut running[which];
                    permit.settle(TOKENS, tokens).unwrap();
                    *units = tokens;
                }
                Move::Finish { which } if which < running.len() => {
                    let (permit, units) = running.swap_remove(which);
                    permit.finish(Outcome::Success);
                    ended = (ended.0 + 1, ended.1 + units);
                }
                Move::Cancel { which } if which < running.len() => {
                    let (mut permit, _) = running.swap_remove(which);
                    permit.settle(TOKENS, 0).unwrap();
                    ended.0 += 1;
                }
                Move::Pass { fault, millis } => {
                    world.line.set(fault);
                    for _ in 0..millis / 100 {
                        world.clock.advance(Duration::from_millis(100));
                    }
                    world.line.set(Fault::None);
                    // The last repetition is answered, and the next report.
                    world.clock.advance(Duration::from_millis(1_300));
                    world.clock.advance(Duration::from_millis(1_300));
                }
                _ => {}
            }
        }
        let open = running
            .iter()
            .fold(ended, |(calls, tokens), (_, units)| (calls + 1, tokens + units));
        let while_they_run = (in_use(&keyed).await, open);
        running.clear();
        world.clock.advance(Duration::from_secs(1));
        let after = (in_use(&keyed).await, open);
        [while_they_run, after]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Given any requests, and outages that are shorter than a step is repeated, then the store counts what is reserved and used, exactly.
    #[test]
    fn the_store_counts_what_is_reserved_and_used_over_a_line_that_fails(moves in moves(7_000)) {
        for (stored, here) in run(moves) {
            prop_assert_eq!(stored, here);
        }
    }

    /// Given outages of any length, then nothing that was used is lost.
    #[test]
    fn nothing_used_is_lost_in_a_long_outage(moves in moves(60_000)) {
        for (stored, here) in run(moves) {
            prop_assert!(stored.0 >= here.0 && stored.1 >= here.1, "{:?} of {:?}", stored, here);
        }
    }
}

/// Given permits that are forgotten, then what they have reserved is used, once.
#[test]
fn a_forgotten_permit_has_used_what_it_reserved() {
    let world = World::new();
    let keyed = world
        .builder(spec())
        .reserves(true)
        .in_place(world.line.clone())
        .unwrap();
    let key = keyed.get("a").unwrap();
    world.clock.run(async {
        let mut permit = key.acquire_now(Ask::one().cost(TOKENS, 90)).await.unwrap();
        permit.spend(TOKENS, 20);
        permit.forget();
        world.clock.advance(Duration::from_secs(100));
        assert_eq!(in_use(&keyed).await, (1, 90));
    });
}

/// Given a key whose reservations end, then it is renewed until then, three times in a time to live, and forgotten afterwards.
#[test]
fn a_key_is_renewed_as_long_as_something_is_reserved() {
    let world = World::new();
    let keyed = world
        .builder(spec())
        .reserves(true)
        .in_place(world.line.clone())
        .unwrap();
    let key = keyed.get("a").unwrap();
    world.clock.run(async {
        let permit = key.acquire_now(Ask::one().cost(TOKENS, 90)).await.unwrap();
        for _ in 0..300 {
            world.clock.advance(Duration::from_millis(100));
        }
        assert!(
            (9..=10).contains(&(world.line.steps() - 1)),
            "{} steps",
            world.line.steps()
        );
        assert_eq!(in_use(&keyed).await, (1, 90));
        permit.finish(Outcome::Success);
        assert_eq!(keyed.stats().keys, 0);
        let steps = world.line.steps();
        world.clock.advance(Duration::from_secs(60));
        assert_eq!(world.line.steps(), steps);
    });
}

/// Given a request that runs while its limiter is closed, then what it has reserved is used: nothing comes back when its lease ends.
#[test]
fn a_close_counts_what_is_open_as_used() {
    let world = World::new();
    let builder = world.builder(spec()).reserves(true);
    let keyed = builder.in_place(world.line.clone()).unwrap();
    let (key, other) = (keyed.get("a").unwrap(), world.keyed(spec()));
    world.clock.run(async {
        let mut permit = key.acquire_now(Ask::one().cost(TOKENS, 90)).await.unwrap();
        permit.spend(TOKENS, 20);
        keyed.close().await;
        world.clock.advance(Duration::from_secs(100));
        assert_eq!(in_use(&other).await, (1, 90));
        drop(permit);
        assert_eq!(in_use(&other).await, (1, 90));
    });
}

/// Given more units that come back than one step reports, when a request beside the first of them is refused, then the next one asks
/// the store, which has the others.
#[test]
fn a_refusal_beside_changes_that_are_not_reported_yet_does_not_hold() {
    const PERMITS: u64 = 70;
    let world = World::new();
    let day = RemoteLeg::window("tokens", PERMITS, DAY).per(TOKENS);
    let builder = world.builder(KeyedLimits::new(100, "free", [day]));
    let keyed = builder.reserves(true).in_place(world.line.clone()).unwrap();
    let key = keyed.get("a").unwrap();
    let almost_all = Ask::one().cost(TOKENS, PERMITS - 1);
    world.clock.run(async {
        let mut permits = Vec::new();
        for _ in 0..PERMITS {
            permits.push(key.acquire_now(Ask::one().cost(TOKENS, 1)).await.unwrap());
            world.clock.advance(Duration::from_millis(1));
        }
        world.line.set(Fault::Cut);
        for permit in &mut permits {
            permit.settle(TOKENS, 0).unwrap();
        }
        let mut asked = pin!(key.acquire_now(almost_all));
        assert!(poll(asked.as_mut()).is_pending());
        world.line.set(Fault::None);
        world.clock.advance(Duration::from_secs(1));
        assert!(asked.await.is_err(), "some are on their way");
        assert!(key.acquire_now(almost_all).await.is_ok());
    });
}
