//! Corners of refunds, in which one rate could be off by one without anything else showing it: the order of
//! admissions, spent tokens, the end of an axis or a window.

use super::{settle, take};
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Demand, FixedWindow, Inherit, LeakyBucket, Limiter, ManualClock, Quota, SlidingLog, SlidingWindow,
    TokenBucket, Warmup,
};

const SECOND: Duration = Duration::from_secs(1);
const TENTH: Duration = Duration::from_millis(100);

fn bucket(clock: &ManualClock, burst: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_second(10).burst(burst)).on(clock)
}

/// Given a bucket that is full, when two are taken and given back, the newer first, then both come back whole: what the
/// newer gave back lay on top of the older.
fn both_come_back(bucket: &TokenBucket, clock: &ManualClock, what: &str) {
    clock.advance(SECOND * 1_000);
    let burst = bucket.available();
    let (older, newer) = (take(bucket, clock, 4), take(bucket, clock, 4));
    bucket.cancel(newer);
    bucket.cancel(older);
    assert_eq!(bucket.available(), burst, "{what}");
}

#[test]
fn cancels_long_past_do_not_blur_the_order_of_later_ones() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    for round in 0..200 {
        let held = take(&bucket, &clock, 5);
        bucket.cancel(held);
        clock.advance(SECOND);
        if round % 40 == 39 {
            both_come_back(&bucket, &clock, "after many");
        }
    }
}

#[test]
fn cancels_long_past_do_not_blur_the_order_in_a_leaky_bucket() {
    let clock = ManualClock::new();
    // Sixty-four are remembered.
    for before in 60..70 {
        let leaky = LeakyBucket::new(Quota::per_second(10)).slack(9).unwrap().on(&clock);
        for _ in 0..before {
            let held = take(&leaky, &clock, 5);
            leaky.cancel(held);
            clock.advance(SECOND);
        }
        let (older, newer) = (take(&leaky, &clock, 4), take(&leaky, &clock, 4));
        leaky.cancel(newer);
        leaky.try_acquire(6).unwrap();
        leaky.cancel(older);
        assert_eq!(leaky.available(), 4, "after {before}");
    }
}

#[test]
fn settlements_that_charge_more_do_not_blur_the_order_of_cancels() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 1_000);
    for _ in 0..70 {
        let mut held = take(&bucket, &clock, 1);
        settle(&bucket, &mut held, 2);
    }
    both_come_back(&bucket, &clock, "after settlements");
}

/// Given a reservation under which another was given back, across a change to the same quota before both, then what was given
/// back before the change is not taken for newer than it.
#[test]
fn a_refund_from_before_a_change_is_no_newer_than_a_charge_after_it() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    clock.advance(SECOND * 100);
    bucket.try_acquire(3).unwrap();
    let first = take(&bucket, &clock, 5);
    bucket.cancel(first);
    bucket.set_quota(bucket.quota(), Inherit::AsIs);
    clock.advance(SECOND);
    let (older, held) = (take(&bucket, &clock, 4), take(&bucket, &clock, 4));
    bucket.cancel(older);
    clock.advance(TENTH * 2);
    bucket.try_acquire(8).unwrap();
    assert_eq!(bucket.available(), 0);
    bucket.cancel(held);
    assert_eq!(bucket.available(), 2, "of eight, four were given back and two refilled");
}

#[test]
fn a_reservation_from_before_several_changes_comes_back() {
    for changes in 1..20 {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 10);
        let held = take(&bucket, &clock, 4);
        for _ in 0..changes {
            bucket.set_quota(bucket.quota(), Inherit::AsIs);
        }
        bucket.try_acquire(6).unwrap();
        bucket.cancel(held);
        assert_eq!(bucket.available(), 4, "{changes}");
    }
}

/// Ten more of burst: what was held has as much room as before, less what is refilled after the change.
#[test]
fn a_reservation_from_before_a_raise_refunds_its_remainder() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    let held = take(&bucket, &clock, 4);
    bucket.set_quota(Quota::per_second(10).burst(20), Inherit::AsIs);
    clock.advance(TENTH * 2);
    bucket.try_acquire(8).unwrap();
    bucket.cancel(held);
    assert_eq!(bucket.available(), 2);
}

#[test]
fn a_settlement_of_long_ago_charges_the_difference_now() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    let mut held = take(&bucket, &clock, 5);
    clock.advance(SECOND * 100);
    settle(&bucket, &mut held, 8);
    assert_eq!(bucket.available(), 7);
    settle(&bucket, &mut held, 2);
    assert_eq!(bucket.available(), 10);
}

/// From a rate that flows to one by interval, the first interval starts with the change.
#[test]
fn the_first_interval_starts_when_the_quota_is_set() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    bucket.try_acquire(10).unwrap();
    clock.advance(SECOND / 2);
    bucket.try_acquire(5).unwrap();
    bucket.set_quota(Quota::per_second(3).burst(10).by_interval(), Inherit::AsIs);
    for (pause, there) in [(500, 0), (499, 0), (1, 3), (999, 3), (1, 6)] {
        clock.advance(Duration::from_millis(pause));
        assert_eq!(bucket.available(), there, "{:?}", clock.elapsed());
    }
}

/// Given a reservation that is held for many intervals, each of which is read, then it refunds what they have
/// left of it.
#[test]
fn a_reservation_over_many_intervals_refunds_its_remainder() {
    let clock = ManualClock::new();
    let quota = Quota::per_second(1).burst(1_000).by_interval();
    let bucket = TokenBucket::new(quota).on(&clock);
    let held = take(&bucket, &clock, 500);
    for second in 1..=200 {
        clock.advance(SECOND);
        assert_eq!(bucket.available(), 500 + second);
    }
    bucket.try_acquire(700).unwrap();
    bucket.cancel(held);
    assert_eq!(bucket.available(), 300);
}

/// Nothing is always there: at once, whatever is owed, full, or stopped.
#[test]
fn nothing_is_there_at_once() {
    let clock = ManualClock::new();
    let fixed = FixedWindow::new(4, SECOND).unwrap().on(&clock);
    fixed.try_acquire(4).unwrap();
    let leaky = LeakyBucket::new(Quota::per_second(1)).slack(3).unwrap().on(&clock);
    leaky.force_acquire(100);
    let sliding = SlidingWindow::new(4, SECOND).unwrap().on(&clock);
    sliding.force_acquire(9);
    let log = SlidingLog::new(4, SECOND).unwrap().on(&clock);
    log.force_acquire(9);
    clock.advance(TENTH);
    let warmup = Warmup::new(Quota::per_second(2), SECOND * 4).unwrap().on(&clock);
    warmup.try_acquire(1).unwrap();
    let bucket = bucket(&clock, 4);
    bucket.force_acquire(100);
    let shut = LeakyBucket::new(Quota::zero()).on(&clock);
    let nothing = Some(Duration::ZERO);
    assert_eq!(
        [
            fixed.time_until(0),
            leaky.time_until(0),
            sliding.time_until(0),
            log.time_until(0),
            warmup.time_until(0)
        ],
        [nothing; 5]
    );
    assert_eq!([shut.time_until(0), shut.time_until(1)], [nothing, None]);
    assert!(shut.try_acquire(0).is_ok());
    for taken in [
        fixed.try_acquire(0),
        leaky.try_acquire(0),
        sliding.try_acquire(0),
        log.try_acquire(0),
    ] {
        taken.unwrap();
    }
    warmup.try_acquire(0).unwrap();
}

/// A reading of the clock from before what another thread saw: nothing is waited for that is there by then.
#[test]
fn a_stale_reading_waits_for_nothing_that_is_there() {
    let clock = ManualClock::new();
    let stale = clock.now();
    let fixed = FixedWindow::new(4, SECOND).unwrap().on(&clock);
    fixed.try_acquire(4).unwrap();
    clock.advance(SECOND);
    assert_eq!(fixed.available(), 4);
    let (ask, reading) = (Ask::many(4), ClockReading::at(&clock, stale));
    assert!(fixed.look(&Demand::new(&ask, &reading)).is_ok());
}

/// At the end of all time a window is the last.
#[test]
fn the_last_window_is_not_started_again() {
    let clock = ManualClock::new();
    let fixed = FixedWindow::new(4, SECOND).unwrap().on(&clock);
    clock.advance(Duration::from_nanos(u64::MAX));
    fixed.available();
    fixed.try_acquire(3).unwrap();
    assert_eq!(fixed.available(), 1);
    assert!(fixed.try_acquire(2).is_err());
}

/// Four reservations at one instant, given back in the order in which they came, with more on top: what older ones gave back
/// lay below the later ones.
#[test]
fn refunds_of_older_reservations_count_until_they_have_drained() {
    let clock = ManualClock::new();
    let leaky = LeakyBucket::new(Quota::per_second(10)).slack(99).unwrap().on(&clock);
    let [first, second, third] = [4, 4, 2].map(|n| take(&leaky, &clock, n));
    leaky.cancel(first);
    leaky.cancel(second);
    clock.advance(TENTH);
    leaky.try_acquire(5).unwrap();
    assert_eq!(leaky.available(), 94);
    leaky.cancel(third);
    assert_eq!(leaky.available(), 95, "one of its two has flowed out");
}

/// An admission after a change at the same instant is an entry of its own, which can be refunded.
#[test]
fn sealed_entries_are_not_merged() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(10, SECOND).unwrap().on(&clock);
    let old = take(&log, &clock, 7);
    log.set_limit(6, Inherit::Proportional);
    assert_eq!(log.available(), 1, "five of seven are left");
    let new = take(&log, &clock, 1);
    log.cancel(old);
    assert_eq!(log.available(), 0);
    log.cancel(new);
    assert_eq!(log.available(), 1);
}

/// Admissions while nothing counts are not counted afterwards, however often there were admissions before.
#[test]
fn a_log_without_a_limit_remembers_nothing() {
    for before in [1, 31, 32, 33] {
        let clock = ManualClock::new();
        let log = SlidingLog::new(100, SECOND).unwrap().on(&clock);
        for _ in 0..before {
            clock.advance(Duration::from_nanos(1));
            log.try_acquire(1).unwrap();
        }
        log.set_limit(u64::MAX, Inherit::AsIs);
        for _ in 0..5 {
            clock.advance(Duration::from_nanos(1));
            log.try_acquire(1).unwrap();
        }
        log.set_limit(100, Inherit::AsIs);
        assert_eq!(log.available(), 100, "{before}");
    }
}

/// Given an older entry of which a change forgives a part, however many segments lie between, then what was taken before the
/// change is not given back at the cost of what is left.
#[test]
fn sealed_segments_of_a_window_stay_across_a_change() {
    let segment = SECOND / 4;
    for between in 0..=4 {
        let clock = ManualClock::new();
        let window = SlidingWindow::new(10, SECOND).unwrap().segments(4).unwrap().on(&clock);
        window.try_acquire(3).unwrap();
        clock.advance(segment * between);
        let late = take(&window, &clock, 4);
        window.set_limit(9, Inherit::Proportional);
        assert_eq!(window.available(), 2, "each segment keeps its share, rounded up");
        window.cancel(late);
        assert_eq!(window.available(), 2, "{between} segments");
    }
}

#[test]
fn a_request_for_nothing_is_not_the_latest_of_a_warm_up() {
    let clock = ManualClock::new();
    let warmup = Warmup::new(Quota::per_second(2), SECOND * 4).unwrap().on(&clock);
    let held = take(&warmup, &clock, 1);
    warmup.try_acquire(0).unwrap();
    warmup.cancel(held);
    assert_eq!(warmup.time_until(1), Some(Duration::ZERO));

    // After a reset it belongs to no reservation: more is charged as a difference.
    let mut held = take(&warmup, &clock, 1);
    warmup.reset();
    settle(&warmup, &mut held, 2);
    assert_eq!(warmup.time_until(1), Some(Duration::from_millis(1_375)));
}
