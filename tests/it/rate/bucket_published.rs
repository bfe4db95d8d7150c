//! The token bucket against the tables that other projects publish of theirs.

use std::time::Duration;
use tollgate::{Inherit, LimiterExt, ManualClock, Policy, Quota, Reason, TokenBucket};

const TENTH: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

#[test]
fn the_published_waits_and_limits_hold() {
    let clock = ManualClock::new();
    let policy = |burst| Policy::new(TokenBucket::new(Quota::per_second(10).burst(burst)).on(&clock));
    clock.run(async {
        let queue = policy(3);
        queue.admit(2).await.unwrap().forget();
        let start = clock.elapsed();
        queue.admit(3).await.unwrap().forget();
        assert_eq!(clock.elapsed() - start, TENTH * 2);
        let queue = policy(3);
        queue.admit(2).await.unwrap().forget();
        let refused = queue.admit_timeout(3, TENTH).await.unwrap_err();
        assert_eq!(refused.reason(), Reason::TimedOut);
    });
    // A limit of zero is a pause after the burst.
    let bucket = TokenBucket::new(Quota::zero().burst(1)).on(&clock);
    assert_eq!(
        [bucket.try_acquire(1).is_ok(), bucket.try_acquire(1).is_ok()],
        [true, false]
    );
    clock.advance(SECOND * 1_000_000);
    assert!(bucket.try_acquire(1).is_err());
    bucket.set_quota(Quota::per_second(10).burst(1), Inherit::AsIs);
    assert_eq!(bucket.time_until(1), Some(TENTH));
    // 15 at once at a burst of 5, and one try per 2 ms for 5 s at 100 a second: 600, or one more for the first.
    let bucket = TokenBucket::new(Quota::per_second(1).burst(5)).on(&clock);
    assert_eq!((0..15).filter(|_| bucket.try_acquire(1).is_ok()).count(), 5);
    let bucket = TokenBucket::new(Quota::per_second(100)).on(&clock);
    let taken = (0..2_500).filter(|_| {
        let taken = bucket.try_acquire(1).is_ok();
        clock.advance(Duration::from_millis(2));
        taken
    });
    assert_eq!(taken.count(), 599, "the last try comes 2 ms before the 500th token");
    // Five taken and given back while nothing has been used, and nothing could overflow.
    let bucket = TokenBucket::new(Quota::per_second(10).burst(5)).on(&clock);
    let reserved = bucket.try_admit(3).unwrap();
    clock.advance(NANO);
    reserved.cancel();
    assert_eq!(bucket.available(), 5);
}

/// The tables of .NET's token bucket: a number of tokens at the end of each period.
#[test]
fn the_published_tables_by_interval_hold() {
    let period = Duration::from_secs(20);
    let bucket = |clock: &ManualClock, limit, per| {
        let quota = Quota::new(per, period).unwrap().burst(limit).by_interval();
        TokenBucket::new(quota).on(clock)
    };
    let clock = ManualClock::new();
    let seven = bucket(&clock, 7, 3);
    assert_eq!(
        [seven.try_acquire(5).is_ok(), seven.try_acquire(3).is_ok()],
        [true, false]
    );
    for there in [2, 5, 7, 7] {
        assert_eq!(seven.available(), there);
        clock.advance(period - NANO);
        assert_eq!(seven.available(), there);
        clock.advance(NANO);
    }
    // (limit, per period, taken, owed by those ahead, asked, seconds)
    for (limit, per, taken, ahead, asked, seconds) in [
        (2, 1, 2, 0, 2, 40),
        (2, 1, 2, 1, 2, 60),
        // Published as 20, which is too early.
        (2, 2, 2, 1, 2, 40),
        (2, 100, 2, 0, 2, 20),
        (3, 1, 2, 0, 3, 40),
    ] {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, limit, per);
        bucket.try_acquire(taken).unwrap();
        bucket.force_acquire(ahead);
        let wait = bucket.try_acquire(asked).unwrap_err().retry_after();
        assert_eq!(
            wait,
            Some(Duration::from_secs(seconds)),
            "{asked} of {limit}, {per} a period"
        );
    }
    // Oldest first: one waits, a second finds the queue full.
    let clock = ManualClock::new();
    let queue = Policy::builder()
        .max_queue(1)
        .limit(bucket(&clock, 1, 1))
        .build()
        .unwrap();
    clock.run(async {
        queue.try_admit(1).unwrap().forget();
        let (first, second) = futures::join!(queue.admit(1), queue.admit(1));
        first.unwrap().forget();
        assert_eq!(second.unwrap_err().reason(), Reason::QueueFull);
        assert_eq!(clock.elapsed(), period);
    });
}
