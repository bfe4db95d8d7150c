//! Cancelled bookings: no other instant moves, and none is booked beside a full burst. See also
//! [`rate::bookings_model`](crate::rate::bookings_model).

use std::time::Duration;
use tollgate::{Ask, Cost, FutureReservation, Inherit, LeakyBucket, LimiterExt, ManualClock, Quota, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);

/// 1 a second.
fn bucket(clock: &ManualClock, burst: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_second(1).burst(burst)).on(clock)
}

fn waits(bucket: &TokenBucket, amounts: &[u64]) -> Vec<u64> {
    let book = |&n: &u64| bucket.book(n).unwrap();
    let wait = |booked: FutureReservation<'_, _>| {
        let wait = booked.wait().as_secs();
        booked.commit().forget();
        wait
    };
    amounts.iter().map(book).map(wait).collect()
}

/// Given 10 of 10 now, 10 in ten seconds, 10 in twenty, when the second is given up, then the third starts with a full
/// bucket as it is: the next is not booked beside it, but behind.
#[test]
fn a_full_burst_is_booked_alone() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    let (first, second, third) = (bucket.book(10), bucket.book(10).unwrap(), bucket.book(10).unwrap());
    assert_eq!((second.wait(), third.wait()), (SECOND * 10, SECOND * 20));
    drop(second);
    assert_eq!((bucket.debt(), waits(&bucket, &[10])), (20, vec![30]));
    drop((first, third));
}

/// Given 4 in four seconds and 3 in seven, when the 4 are given up, then all of them come back, since 7 are no more than
/// the burst; when another 4 before the 3 are, then 3 of them.
#[test]
fn refunds_are_bounded_by_the_burst_beside_kept_bookings() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    bucket.try_acquire(10).unwrap();
    let (first, second, third) = (
        bucket.book(4).unwrap(),
        bucket.book(4).unwrap(),
        bucket.book(3).unwrap(),
    );
    assert_eq!((second.wait(), third.wait()), (SECOND * 8, SECOND * 11));
    drop(first);
    assert_eq!(bucket.debt(), 7);
    drop(second);
    assert_eq!(bucket.debt(), 4, "7 beside the third, and not 8");
    assert_eq!(bucket.book(7).unwrap().wait(), SECOND * 11);
    // As soon as the one in the way is given up, the rest comes back.
    drop(third);
    assert_eq!(bucket.debt(), 0);
}

/// A refund that waits for a later booking to be cancelled is lost once that has begun.
#[test]
fn tokens_that_would_have_overflowed_before_a_start_are_not_refunded() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    bucket.try_acquire(10).unwrap();
    let (first, second, last) = (
        bucket.book(5).unwrap(),
        bucket.book(8).unwrap(),
        bucket.book(1).unwrap(),
    );
    drop(first);
    assert_eq!(bucket.debt(), 12, "2 came back");
    clock.advance(SECOND * 13);
    assert_eq!((bucket.debt(), bucket.available()), (0, 1));
    drop(second);
    assert_eq!(
        bucket.available(),
        8,
        "7 of 8: the bucket is full when the last one starts"
    );
    drop(last);
    assert_eq!(bucket.available(), 10);
}

/// A booking of nothing, in its turn, blocks no other.
#[test]
fn a_booking_of_nothing_holds_nothing_back() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 5);
    bucket.try_acquire(5).unwrap();
    let many: Vec<_> = (0..3).map(|_| bucket.book(4).unwrap()).collect();
    assert_eq!(bucket.book(0).unwrap().wait(), SECOND * 12);
    let nothing = bucket.book(0).unwrap();
    drop(many);
    assert_eq!((bucket.debt(), nothing.wait()), (0, SECOND * 12));
    let leaky = LeakyBucket::new(Quota::per_second(1).burst(20))
        .slack(4)
        .unwrap()
        .on(&clock);
    leaky.try_acquire(5).unwrap();
    let many: Vec<_> = (0..3).map(|_| leaky.book(4).unwrap()).collect();
    let nothing = leaky.book(0).unwrap();
    drop(many);
    assert_eq!((leaky.debt(), nothing.wait()), (0, SECOND * 12));
}

/// Cancelled in any order at one instant, bookings leave the bucket as if there had been none.
#[test]
fn all_that_are_given_up_leave_nothing() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 1, 3], [1, 2, 0, 3]] {
        let mut booked: Vec<_> = [10, 9, 10, 3].map(|n| bucket.book(n).ok()).into_iter().collect();
        for index in order {
            booked[index] = None;
        }
        assert_eq!((bucket.available(), bucket.debt()), (10, 0), "{order:?}");
    }
}

/// An overcharge flows back up to the burst, also of a bucket that will be full when a booking starts.
#[test]
fn a_settlement_fills_no_booked_bucket() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    let gate = (&bucket).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 10)).unwrap();
    let booked = bucket.book(8).unwrap();
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!(
        (bucket.debt(), waits(&bucket, &[2, 1])),
        (6, vec![8, 9]),
        "2 beside the 8"
    );
    drop(booked);
}

/// A changed quota moves no booked instant. A booking cancelled before others that were booked under the old one is not
/// refunded; one behind them is.
#[test]
fn after_a_change_nothing_is_refunded_before_the_kept_instants() {
    for rule in [Inherit::AsIs, Inherit::Additive] {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 10);
        bucket.try_acquire(10).unwrap();
        let (first, second, third) = (
            bucket.book(1).unwrap(),
            bucket.book(1).unwrap(),
            bucket.book(1).unwrap(),
        );
        bucket.set_quota(Quota::per_second(2).burst(10), rule);
        let fourth = bucket.book(1).unwrap();
        drop(first);
        assert_eq!(bucket.debt(), 4, "{rule:?}");
        drop(fourth);
        assert_eq!(bucket.debt(), 3, "{rule:?}");
        drop((third, second));
        assert_eq!(bucket.debt(), 0, "{rule:?}: no booking is left");
    }
}

/// Given bookings, when the axis is started anew before they start, which it is every 4,398 seconds at that rate, then they
/// are in the way as before.
#[test]
fn promises_outlast_an_axis() {
    const UNIT: u64 = 100_000_000_000;
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(1_000_000_000).burst(8 * UNIT)).on(&clock);
    clock.advance(SECOND * 4_390);
    bucket.try_acquire(8 * UNIT).unwrap();
    let (first, second) = (bucket.book(UNIT).unwrap(), bucket.book(UNIT).unwrap());
    let third = bucket.book(7 * UNIT).unwrap();
    clock.advance(SECOND * 10);
    assert_eq!(bucket.debt(), 9 * UNIT - UNIT / 10);
    drop(first);
    assert_eq!(bucket.debt(), 8 * UNIT - UNIT / 10);
    drop(second);
    assert_eq!(
        bucket.debt(),
        8 * UNIT - UNIT / 10,
        "beside 7 of 8 there is room for one"
    );
    // A booking on the new axis stands behind them.
    let fourth = bucket.book(UNIT).unwrap();
    assert_eq!(bucket.debt(), 9 * UNIT - UNIT / 10);
    drop(fourth);
    assert_eq!(bucket.debt(), 8 * UNIT - UNIT / 10);
    drop(third);
    assert_eq!((bucket.debt(), bucket.available()), (0, UNIT / 10));
}

/// A strict spacing has no room beside a booking: a place that is cancelled between two others stays empty.
#[test]
fn a_leaky_bucket_without_slack_leaves_a_hole() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1).burst(10)).on(&clock);
    let mut booked: Vec<_> = (0..4).map(|_| bucket.book(1).ok()).collect();
    booked[1] = None;
    assert_eq!(bucket.book(1).unwrap().wait(), SECOND * 4);
    booked[3] = None;
    assert_eq!(
        bucket.book(1).unwrap().wait(),
        SECOND * 3,
        "the hole is still before the third"
    );
    booked[2] = None;
    assert_eq!(
        bucket.book(1).unwrap().wait(),
        SECOND,
        "no booking is behind it any more"
    );
    // Tokens that would not drain before others start are not settled back either.
    let slack = LeakyBucket::new(Quota::per_second(1).burst(10))
        .slack(9)
        .unwrap()
        .on(&clock);
    const TOKENS: Cost = Cost::new("tokens");
    let gate = (&slack).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 10)).unwrap();
    let booked = slack.book(8).unwrap();
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!((slack.debt(), booked.wait()), (6, SECOND * 8));
}
