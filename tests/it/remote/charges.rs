//! Charges that are corrected to more than there can be.

use crate::remote::world::{World, now};
use std::time::Duration;
use tollgate::remote::{Prefetch, Remote, RemoteBuilder};
use tollgate::{Ask, Cost, LimiterExt, Quota, Reason};

const TOKENS: Cost = Cost::new("tokens");

/// It is said twice, and more than a number holds together.
fn charge_too_much(world: &World, builder: &RemoteBuilder) {
    // Two are at hand.
    let gate = world
        .make(builder.clone().prefetch(Prefetch {
            low: 2,
            ..Prefetch::up_to(2)
        }))
        .per(TOKENS);
    let take = || gate.try_admit(Ask::one().cost(TOKENS, 1)).expect("it is at hand");
    let (mut one, mut two) = (take(), take());
    assert_eq!(one.settle(TOKENS, u64::MAX), Ok(1));
    assert_eq!(two.settle(TOKENS, u64::MAX), Ok(1));
    assert_eq!(one.settle(TOKENS, u64::MAX - 1), Ok(1));
    let other = world.make(builder.clone());
    let refused = now(other.acquire_now(1)).expect_err("the debt is shared by all processes");
    assert_eq!(refused.reason(), Reason::RateExceeded);
    let stats = other.stats();
    assert_eq!((stats.in_use, stats.last_error), (10, None));
}

#[test]
fn a_charge_beyond_all_numbers_is_a_debt_of_a_rate() {
    let world = World::new();
    let rate = Remote::rate(world.key.clone(), Quota::per_second(10).burst(10));
    charge_too_much(&world, &rate);
}

#[test]
fn a_charge_beyond_all_numbers_is_a_debt_of_a_window() {
    let world = World::new();
    let window = Remote::window(world.key.clone(), 10, Duration::from_secs(64));
    charge_too_much(&world, &window);
}
