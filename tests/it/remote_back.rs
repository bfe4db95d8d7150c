//! Tokens of a remote rate that are given up: as many come back as would be there had they not been taken, and no more.

use crate::remote_world::{World, now, poll};
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::{Memory, Prefetch, Remote};
use tollgate::{Ask, LimiterExt, Quota};

const MS: Duration = Duration::from_millis(1);

/// A hundred a second, five at once.
fn rate(world: &World) -> Remote<Arc<Memory>> {
    let quota = Quota::per_second(100).burst(5);
    world.make(Remote::rate(world.key.clone(), quota))
}

/// How many are admitted at this instant.
fn at_once(rate: &Remote<Arc<Memory>>) -> usize {
    (0..99).take_while(|_| now(rate.acquire_now(1)).is_ok()).count()
}

/// Takes all there is and one more, which is granted ten milliseconds later and given up after `delay`.
fn give_up(world: &World, rate: &Remote<Arc<Memory>>, delay: Duration) {
    assert_eq!(at_once(rate), 5);
    let mut waits = Box::pin(rate.acquire(1));
    assert!(poll(waits.as_mut()).is_pending());
    world.clock.advance(10 * MS + delay);
    drop(waits);
}

#[test]
fn what_is_given_up_at_once_comes_back() {
    let world = World::new();
    let rate = rate(&world);
    give_up(&world, &rate, Duration::ZERO);
    assert!(rate.try_acquire(1).is_ok());
    assert_eq!(at_once(&rate), 0);
}

/// The bucket is far from full, and would have been without it as well.
#[test]
fn what_is_given_up_late_comes_back_as_well() {
    let world = World::new();
    let rate = rate(&world);
    give_up(&world, &rate, 30 * MS);
    assert_eq!(at_once(&rate), 4);
}

/// The store's bucket is full again. Without what was given up it would not be any fuller.
#[test]
fn what_would_have_overflowed_is_gone() {
    let world = World::new();
    let rate = rate(&world);
    give_up(&world, &rate, 60 * MS);
    assert_eq!(at_once(&rate), 5);
}

/// It comes back in time, and is spent by nobody until the store's bucket is full.
#[test]
fn what_came_back_is_not_there_beside_a_full_bucket() {
    let world = World::new();
    let rate = rate(&world);
    give_up(&world, &rate, MS);
    world.clock.advance(55 * MS);
    assert_eq!(at_once(&rate), 5);
}

/// Three are taken of a block of five, and come to hand once more; then the store's bucket is full again. Whoever gives the three
/// up now has not saved them. Parts of tokens are nobody's.
#[test]
fn a_block_that_was_filled_up_takes_back_what_the_bucket_could_still_hold() {
    for (delay, least, most) in [
        (0, 5, 5),
        (10, 6, 6),
        (20, 7, 7),
        (40, 8, 9),
        (60, 8, 10),
        (81, 10, 10),
        (200, 10, 10),
    ] {
        let world = World::new();
        let prefetch = Prefetch::up_to(5).keep(5).expiry(Duration::from_secs(9));
        let quota = Quota::per_second(100).burst(5);
        let rate = world.make(Remote::rate(world.key.clone(), quota).prefetch(prefetch));
        let three = rate.reserve(Ask::many(3)).unwrap();
        world.clock.advance(delay * MS);
        let first = take_all(&rate);
        drop(three);
        let all = first + take_all(&rate);
        assert!(
            (least..=most).contains(&all),
            "{all} after {delay} ms, not {least} to {most}"
        );
    }
}

/// Takes all that comes to hand at this instant.
fn take_all(rate: &Remote<Arc<Memory>>) -> usize {
    (0..99).take_while(|_| rate.try_acquire(1).is_ok()).count()
}

/// Several at a time: what one gives back no other does.
#[test]
fn what_could_come_back_once_comes_back_once() {
    for newest_first in [false, true] {
        let world = World::new();
        let prefetch = Prefetch::up_to(5).keep(5).expiry(Duration::from_secs(9));
        let quota = Quota::per_second(100).burst(5);
        let rate = world.make(Remote::rate(world.key.clone(), quota).prefetch(prefetch));
        let mut reserved: Vec<_> = (0..5).map(|_| rate.reserve(Ask::one()).unwrap()).collect();
        // Of the ten that there can be two are missing.
        world.clock.advance(80 * MS);
        let first = take_all(&rate);
        if newest_first {
            reserved.reverse();
        }
        drop(reserved);
        assert!(first + take_all(&rate) <= 10);
    }
}

/// More than a block: what is at hand is kept until the rest has come.
#[test]
fn whoever_asks_for_more_than_a_block_holds_is_served() {
    let world = World::new();
    let quota = Quota::per_second(100).burst(100);
    let rate = Remote::rate(world.key.clone(), quota).prefetch(Prefetch::up_to(5).keep(5));
    let rate = world.make(rate);
    assert!(now(rate.acquire(1)).is_ok());
    let mut waits = Box::pin(rate.acquire(10));
    let served = (0..100).any(|_| {
        world.clock.advance(10 * MS);
        poll(waits.as_mut()).is_ready()
    });
    assert!(served);
}
