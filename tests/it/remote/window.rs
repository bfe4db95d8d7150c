//! A window that machines share: waiters are served in the order of asking, over all machines.

use crate::remote::world::{World, now, poll};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::{Acquire, Memory, Remote, RemoteBuilder};
use tollgate::{Clock, Reason};

const MS: Duration = Duration::from_millis(1);
const WINDOW: Duration = Duration::from_millis(640);
/// Room comes back so much late at most.
const SEGMENT: Duration = Duration::from_millis(10);
const TTL: Duration = Duration::from_secs(3);

fn machines<const N: usize>(world: &World, limit: u64) -> [Remote<Arc<Memory>>; N] {
    [(); N].map(|()| world.make(window(world, limit)))
}

fn window(world: &World, limit: u64) -> RemoteBuilder {
    Remote::window(world.key.clone(), limit, WINDOW).ttl(TTL)
}

fn takes(machine: &Remote<Arc<Memory>>, units: u64) -> bool {
    now(machine.acquire_now(units)).is_ok()
}

type Wait<'a> = Pin<Box<Acquire<'a, Arc<Memory>>>>;

/// Begins to wait, and waits still.
fn wait(machine: &Remote<Arc<Memory>>, units: u64) -> Wait<'_> {
    let mut wait = Box::pin(machine.acquire(units));
    assert!(poll(wait.as_mut()).is_pending());
    wait
}

fn is_served(wait: &mut Wait<'_>) -> bool {
    poll(wait.as_mut()).is_ready()
}

/// Others take one now and then, each time in another segment: there was never room for ten.
#[test]
fn a_large_request_is_not_passed_for_ever() {
    let world = World::new();
    let [large, small] = machines(&world, 10);
    assert!(takes(&small, 1));
    let mut ten = wait(&large, 10);
    let mut waited = Duration::ZERO;
    while !is_served(&mut ten) {
        assert!(waited <= WINDOW + 2 * SEGMENT, "it is passed");
        if waited.as_millis().is_multiple_of(50) {
            takes(&small, 1);
        }
        world.clock.advance(MS);
        waited += MS;
    }
}

/// Three, two and one are asked for in this order, and there are four at a time: the one would fit beside the three, and comes
/// after the two.
#[test]
fn waiters_are_served_in_the_order_of_asking() {
    let world = World::new();
    let [full, first, second, third] = machines(&world, 4);
    assert!(takes(&full, 4));
    world.clock.advance(MS);
    let [mut three, mut two, mut one] = [wait(&first, 3), wait(&second, 2), wait(&third, 1)];
    world.clock.advance(WINDOW + 2 * SEGMENT);
    assert!(!is_served(&mut one) && !is_served(&mut two), "they pass the first");
    assert!(is_served(&mut three));
    world.clock.advance(WINDOW + 2 * SEGMENT);
    assert!(is_served(&mut two) && is_served(&mut one));
}

/// One after the other, although the first waits again as soon as it was served.
#[test]
fn machines_take_turns() {
    let world = World::new();
    let machines: [_; 3] = machines(&world, 1);
    assert!(takes(&machines[0], 1));
    let mut waits = [0, 1, 2].map(|at| wait(&machines[at], 1));
    let mut served = Vec::new();
    while served.len() < 9 {
        world.clock.advance(SEGMENT);
        for at in 0..3 {
            if is_served(&mut waits[at]) {
                served.push(at);
                waits[at] = wait(&machines[at], 1);
            }
        }
    }
    assert_eq!(served, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_try_takes_only_the_tokens_that_the_waiters_leave() {
    let world = World::new();
    let [full, waits, tries] = machines(&world, 10);
    assert!(takes(&full, 4));
    let mut eight = wait(&waits, 8);
    assert!(!takes(&tries, 1) && !takes(&tries, 6));
    world.clock.advance(WINDOW + 2 * SEGMENT);
    assert!(is_served(&mut eight));
    assert!(takes(&tries, 2) && !takes(&tries, 1));
}

#[test]
fn a_waiter_that_gave_up_blocks_none() {
    let world = World::new();
    let [full, gives_up, other] = machines(&world, 10);
    assert!(takes(&full, 4));
    drop(wait(&gives_up, 10));
    assert!(takes(&other, 6));
}

/// Of two who wait in one process the place is that of the first; the second keeps it when the first goes.
#[test]
fn a_process_keeps_its_place_for_its_waiters() {
    let world = World::new();
    let [full, both, other] = machines(&world, 4);
    assert!(takes(&full, 4));
    let (first, mut second) = (wait(&both, 2), wait(&both, 3));
    let mut third = wait(&other, 3);
    drop(first);
    world.clock.advance(WINDOW + 2 * SEGMENT);
    assert!(!is_served(&mut third) && is_served(&mut second));
}

/// A machine that died while it waited at the head of the queue.
#[test]
fn a_dead_waiter_blocks_for_one_time_to_live() {
    let world = World::new();
    let (dead, driver) = window(&world, 4)
        .on(&world.clock)
        .build(Arc::clone(&world.store))
        .unwrap();
    let [full, other] = machines(&world, 4);
    assert!(takes(&full, 4));
    let mut driver = Box::pin(driver);
    let _four = wait(&dead, 4);
    assert!(poll(driver.as_mut()).is_pending());
    drop(driver);
    let mut one = wait(&other, 1);
    world.clock.advance(TTL - MS);
    assert!(!is_served(&mut one), "its place counts");
    // A waiter asks once in a renewal.
    world.clock.advance(TTL / 3 + MS);
    assert!(is_served(&mut one));
}

#[test]
fn a_raised_limit_serves_the_waiters_in_order() {
    let world = World::new();
    let hour = || world.make(Remote::window(world.key.clone(), 2, Duration::from_secs(3_600)).ttl(TTL));
    let [full, first, second] = [hour(), hour(), hour()];
    assert!(takes(&full, 2));
    let [mut two, mut one] = [wait(&first, 2), wait(&second, 1)];
    let clock: &Clock = &world.clock;
    clock.run(full.set_limit(3)).unwrap();
    assert!(
        !is_served(&mut two) && !is_served(&mut one),
        "there is room for one, and two come first"
    );
    clock.run(full.set_limit(4)).unwrap();
    assert!(is_served(&mut two) && !is_served(&mut one));
}

/// A request that a window can never hold does not wait.
#[test]
fn more_than_the_limit_is_refused_and_in_nobodys_way() {
    let world = World::new();
    let [asks, other] = machines(&world, 4);
    let refused = now(asks.acquire(5)).unwrap_err();
    assert_eq!(refused.reason(), Reason::Oversized);
    assert!(takes(&other, 4));
}

/// A cancel after the window has passed returns nothing: the window has as much again.
#[test]
fn a_late_cancel_adds_nothing_to_a_free_window() {
    let world = World::new();
    let window = Remote::window(world.key.clone(), 10, 50 * MS).ttl(TTL);
    let machine = world.make(window);
    assert!(takes(&machine, 10));
    let waits = wait(&machine, 10);
    world.clock.advance(60 * MS);
    world.clock.advance(60 * MS);
    drop(waits);
    assert!(!(takes(&machine, 10) && takes(&machine, 10)));
}
