//! The bucket's word and its parameters: one token taken once, a quota changed meanwhile, a reservation given back.

use crate::Passed;
use loom::thread;
use std::sync::Arc;
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{Ask, Demand, Inherit, Limiter, LimiterExt, ManualClock, Quota, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);

fn bucket(clock: &ManualClock, rate: u64, burst: u64) -> Arc<TokenBucket> {
    Arc::new(TokenBucket::new(Quota::per_second(rate).burst(burst)).on(clock))
}

/// Keeps out leaky-bucket#39, redisson#2072.
#[test]
fn one_token_is_taken_once() {
    crate::exhaustive(|| {
        let bucket = bucket(&ManualClock::new(), 1, 1);
        let other = Arc::clone(&bucket);
        let thread = thread::spawn(move || other.try_acquire(1).is_ok());
        let here = bucket.try_acquire(1).is_ok();
        assert!(here ^ thread.join().unwrap());
        assert_eq!(bucket.available(), 0);
    });
}

/// Given a bucket that a fast quota would have filled and a slow one has not, when the quota changes beside an attempt,
/// then the attempt is judged by one of the two quotas and never by a mixture.
#[test]
fn an_attempt_beside_a_change_of_quota_is_judged_by_one_of_the_two() {
    // Two changes have too many interleavings to see all of them.
    crate::bounded(2, || {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 1, 4);
        bucket.try_acquire(4).unwrap();
        clock.advance(SECOND);
        let (other, passed) = (Arc::clone(&bucket), Passed::new());
        let pass = passed.clone();
        let thread = thread::spawn(move || {
            // From one token of four, to none of one, and back.
            other.set_quota(Quota::per_second(1_000).burst(1), Inherit::AsIs);
            other.set_quota(Quota::per_second(1).burst(4), Inherit::AsIs);
            pass.pass();
        });
        passed.or_not();
        let taken = u64::from(bucket.try_acquire(1).is_ok());
        let more = u64::from(bucket.try_acquire(1).is_ok());
        thread.join().unwrap();
        assert_eq!((taken, more), (1, 0), "one token was there, under either quota");
        assert_eq!(bucket.available(), 0);
    });
}

/// Given the same, when another thread only looks, or takes the rest, then by one of the two quotas as well.
#[test]
fn a_look_beside_a_change_of_quota_sees_one_of_the_two() {
    for verb in [
        |bucket: &TokenBucket| bucket.available(),
        |bucket: &TokenBucket| if bucket.try_acquire(2).is_ok() { 2 } else { 0 },
        |bucket: &TokenBucket| bucket.acquire_up_to(4),
    ] {
        crate::bounded(2, move || {
            // So large a burst that both quotas are measured in the same units.
            const BURST: u64 = 1 << 34;
            let clock = ManualClock::new();
            let bucket = bucket(&clock, 1, BURST);
            bucket.try_acquire(BURST).unwrap();
            clock.advance(SECOND);
            let other = Arc::clone(&bucket);
            let thread = thread::spawn(move || verb(&other));
            bucket.set_quota(Quota::per_second(1_000).burst(BURST), Inherit::AsIs);
            assert!(thread.join().unwrap() <= 1, "one token was there, under either quota");
        });
    }
}

/// Given a bucket with one token under each of three quotas, when the quota changes twice beside a look, so that the parameters
/// of the first are overwritten by those of an interval, then the look sees one token: it mixes no two quotas.
#[test]
fn a_look_beside_two_changes_sees_the_intervals_of_one_quota() {
    const BURST: u64 = 1 << 34;
    let flow = |rate| Quota::per_second(rate).burst(BURST);
    // Not all of them: two changes have millions. The bug is found among the first.
    let mut some = loom::model::Builder::new();
    (some.preemption_bound, some.max_permutations) = (Some(1), Some(200_000));
    some.check(move || {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 1, BURST);
        bucket.try_acquire(BURST).unwrap();
        clock.advance(SECOND);
        let other = Arc::clone(&bucket);
        let thread = thread::spawn(move || other.available());
        bucket.set_quota(flow(2), Inherit::AsIs);
        bucket.set_quota(flow(1).by_interval(), Inherit::AsIs);
        assert_eq!(thread.join().unwrap(), 1);
    });
}

/// Given three tokens that have come by interval, when the interval is changed beside a look, so that the axis starts anew at the
/// latest end of one, then the look sees three: it mixes no two axes.
#[test]
fn a_look_beside_a_change_of_intervals_sees_one_axis() {
    crate::bounded(2, || {
        let clock = ManualClock::new();
        let by_interval = |rate| Quota::per_second(rate).burst(8).by_interval();
        let bucket = Arc::new(TokenBucket::new(by_interval(1)).on(&clock));
        bucket.try_acquire(8).unwrap();
        clock.advance(3 * SECOND);
        let other = Arc::clone(&bucket);
        let thread = thread::spawn(move || other.available());
        bucket.set_quota(by_interval(2), Inherit::AsIs);
        assert_eq!(thread.join().unwrap(), 3);
    });
}

/// Given a full bucket, when a reservation is given back beside an attempt for all of it, then nothing is lost and
/// nothing is minted.
/// Keeps out leaky-bucket#39.
#[test]
fn a_cancel_beside_an_attempt_loses_and_mints_nothing() {
    crate::exhaustive(|| {
        let bucket = bucket(&ManualClock::new(), 1, 2);
        let other = Arc::clone(&bucket);
        let thread = thread::spawn(move || other.try_admit(1).unwrap().cancel());
        let taken = if bucket.try_acquire(1).is_ok() { 1 } else { 0 };
        thread.join().unwrap();
        assert_eq!(taken + bucket.available(), 2);
    });
}

/// Given three reservations, the last of which is made while the first is given back, when the second is given back as
/// well and the bucket has filled up and been emptied again, then the third has nothing to give back any more.
/// Keeps out go#56924, go#69419.
#[test]
fn a_reservation_beside_a_cancel_is_not_taken_for_an_older_one() {
    crate::exhaustive(|| {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 1, 8);
        let reserve = |n| {
            let (ask, reading) = (Ask::many(n), ClockReading::default());
            bucket.try_reserve(&Demand::new(&ask, &reading)).unwrap()
        };
        // Under all of them, so that what they give back is remembered.
        bucket.try_acquire(1).unwrap();
        let (first, second) = (reserve(5), reserve(1));
        let other = Arc::clone(&bucket);
        let thread = thread::spawn(move || other.cancel(first));
        let third = reserve(1);
        thread.join().unwrap();
        bucket.cancel(second);
        clock.advance(2 * SECOND);
        assert_eq!(bucket.available(), 8);
        bucket.try_acquire(8).unwrap();
        bucket.cancel(third);
        assert_eq!(bucket.available(), 0);
    });
}

/// Given five of ten that are held, alone or under another, when they are given back beside a caller that takes ten of the bucket,
/// which is full again by then, then ten have been taken: whatever reading of the clock the cancel has begun with.
/// Keeps out pd#10745, pd#8435.
#[test]
fn a_cancel_beside_a_caller_that_finds_the_bucket_full_mints_nothing() {
    for above in [0, 1] {
        crate::exhaustive(move || {
            let clock = ManualClock::new();
            let bucket = bucket(&clock, 1, 10);
            let (ask, reading) = (Ask::many(5), ClockReading::default());
            let held = bucket.try_reserve(&Demand::new(&ask, &reading)).unwrap();
            bucket.try_acquire(above).unwrap();
            let (other, later) = (Arc::clone(&bucket), clock.clone());
            let thread = thread::spawn(move || {
                later.advance(20 * SECOND);
                other.try_acquire(10).unwrap();
            });
            bucket.cancel(held);
            thread.join().unwrap();
            assert_eq!(bucket.available(), 0);
        });
    }
}

/// Given a reservation of two that is given back beside a caller that takes one, and then lowers the rate, then nothing is lost
/// and nothing is minted.
#[test]
fn a_cancel_beside_a_take_and_a_change_loses_and_mints_nothing() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 2, 4);
        let (ask, reading) = (Ask::many(2), ClockReading::default());
        let held = bucket.try_reserve(&Demand::new(&ask, &reading)).unwrap();
        let other = Arc::clone(&bucket);
        let thread = thread::spawn(move || {
            other.try_acquire(1).unwrap();
            other.set_quota(Quota::per_second(1).burst(4), Inherit::AsIs);
        });
        bucket.cancel(held);
        thread.join().unwrap();
        assert_eq!(bucket.available(), 3);
    });
}

/// Given a bucket whose burst is lowered and raised again beside a caller that takes, then what is left and what was taken are never
/// more than there was, nor less than what the smaller burst leaves.
#[test]
fn a_take_beside_changes_of_the_burst_finds_the_parameters_of_one() {
    crate::bounded(2, || {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 1, 4);
        let other = Arc::clone(&bucket);
        let thread = thread::spawn(move || {
            other.set_quota(Quota::per_second(2).burst(3), Inherit::AsIs);
            other.set_quota(Quota::per_second(1).burst(4), Inherit::AsIs);
        });
        let taken = bucket.acquire_up_to(4);
        thread.join().unwrap();
        assert!((3..=4).contains(&taken), "{taken} of four, or of three");
        let all = taken + bucket.available();
        assert!((3..=4).contains(&all), "{all}");
    });
}

/// Given a refund beside a change of the unit, then the ticket is of the old unit and gives back all before the change, or of another
/// age and gives nothing back after it.
#[test]
fn a_refund_beside_a_change_of_the_unit_gives_back_all_or_nothing() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 1, 4);
        let (ask, reading) = (Ask::many(2), ClockReading::default());
        let held = bucket.try_reserve(&Demand::new(&ask, &reading)).unwrap();
        let other = Arc::clone(&bucket);
        let thread = thread::spawn(move || {
            other.set_quota(Quota::per_second(1_000_000).burst(4), Inherit::AsIs);
        });
        bucket.cancel(held);
        thread.join().unwrap();
        let left = bucket.available();
        assert!(left == 4 || left == 2, "{left}");
    });
}
