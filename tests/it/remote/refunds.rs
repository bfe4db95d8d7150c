//! Tokens of a remote rate that are given up: as many come back as would be there had they not been taken, and no more.

use crate::remote::world::{World, now, poll};
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
fn an_immediate_cancel_is_refunded() {
    let world = World::new();
    let rate = rate(&world);
    give_up(&world, &rate, Duration::ZERO);
    assert!(rate.try_acquire(1).is_ok());
    assert_eq!(at_once(&rate), 0);
}

/// The bucket is far from full, and would have been without it as well.
#[test]
fn a_late_cancel_is_refunded_as_well() {
    let world = World::new();
    let rate = rate(&world);
    give_up(&world, &rate, 30 * MS);
    assert_eq!(at_once(&rate), 4);
}

/// The store's bucket is full again. Without the cancelled tokens it would not be any fuller.
#[test]
fn tokens_that_would_have_overflowed_are_not_refunded() {
    let world = World::new();
    let rate = rate(&world);
    give_up(&world, &rate, 60 * MS);
    assert_eq!(at_once(&rate), 5);
}

/// It comes back in time, and is not spent until the store's bucket is full.
#[test]
fn a_refund_does_not_add_to_a_full_bucket() {
    let world = World::new();
    let rate = rate(&world);
    give_up(&world, &rate, MS);
    world.clock.advance(55 * MS);
    assert_eq!(at_once(&rate), 5);
}

/// Three are taken of a block of five, and come to hand once more; then the store's bucket is full again. A cancel of the
/// three saves nothing now. Fractions of tokens belong to no process.
#[test]
fn a_full_block_refunds_within_the_burst() {
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
        let prefetch = Prefetch {
            low: 5,
            expiry: Duration::from_secs(9),
            ..Prefetch::up_to(5)
        };
        let quota = Quota::per_second(100).burst(5);
        let rate = world.make(Remote::rate(world.key.clone(), quota).prefetch(prefetch));
        let three = rate.try_admit(Ask::many(3)).unwrap();
        world.clock.advance(delay * MS);
        let first = take_all(&rate);
        three.cancel();
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
fn a_refund_is_made_once() {
    for newest_first in [false, true] {
        let world = World::new();
        let prefetch = Prefetch {
            low: 5,
            expiry: Duration::from_secs(9),
            ..Prefetch::up_to(5)
        };
        let quota = Quota::per_second(100).burst(5);
        let rate = world.make(Remote::rate(world.key.clone(), quota).prefetch(prefetch));
        let mut reserved: Vec<_> = (0..5).map(|_| rate.try_admit(Ask::one()).unwrap()).collect();
        // Of the ten that there can be two are missing.
        world.clock.advance(80 * MS);
        let first = take_all(&rate);
        if newest_first {
            reserved.reverse();
        }
        reserved.into_iter().for_each(tollgate::Permit::cancel);
        assert!(first + take_all(&rate) <= 10);
    }
}

/// More than a block: the tokens at hand are kept until the rest has come.
#[test]
fn a_request_larger_than_a_block_is_served() {
    let world = World::new();
    let quota = Quota::per_second(100).burst(100);
    let rate = Remote::rate(world.key.clone(), quota).prefetch(Prefetch {
        low: 5,
        ..Prefetch::up_to(5)
    });
    let rate = world.make(rate);
    assert!(now(rate.acquire(1)).is_ok());
    let mut waits = Box::pin(rate.acquire(10));
    let served = (0..100).any(|_| {
        world.clock.advance(10 * MS);
        poll(waits.as_mut()).is_ready()
    });
    assert!(served);
}
