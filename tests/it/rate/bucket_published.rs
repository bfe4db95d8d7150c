//! The token bucket against the tables that other projects publish of theirs.

use std::time::Duration;
use tollgate::{FutureReservation, Inherit, Instant, LimiterExt, ManualClock, Policy, Quota, Reason, TokenBucket};

const TENTH: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// One line of a published table. Instants are tenths of a second, and an earlier one counts as the latest so far.
#[derive(Clone, Copy)]
enum Row {
    /// At an instant, a number is booked, for an instant; or refused.
    Book(u32, u64, Option<u32>),
    /// The same, if they come within a tenth.
    BookSoon(u32, u64, Option<u32>),
    /// At an instant, with a number available (a negative one is a debt), a number is taken; or refused.
    Take(u32, i64, u64, bool),
    /// At an instant, the booking of that row is cancelled.
    Cancel(u32, usize),
    /// At an instant, the rate per second, and the burst, are changed.
    Set(u32, u64, u64),
}
use Row::{Book, BookSoon, Cancel, Set, Take};

#[track_caller]
fn table(rate: u64, burst: u64, rows: &[Row]) {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(rate).burst(burst)).on(&clock);
    let mut booked: Vec<Option<FutureReservation<'_, TokenBucket>>> = Vec::new();
    for (index, &row) in rows.iter().enumerate() {
        let at = match row {
            Book(at, ..) | BookSoon(at, ..) | Take(at, ..) | Cancel(at, _) | Set(at, ..) => at,
        };
        clock.advance_to(clock.after(Instant::ZERO, TENTH * at));
        let booking = match row {
            Book(_, n, _) => bucket.book(n).ok(),
            BookSoon(_, n, _) => bucket.book_within(n, TENTH).ok(),
            _ => None,
        };
        match row {
            Book(.., act) | BookSoon(.., act) => {
                let due = booking.as_ref().map(|booking| booking.start());
                let act = act.map(|act| clock.after(Instant::ZERO, TENTH * act));
                assert_eq!(due, act, "row {index}");
            }
            Take(_, tokens, n, taken) => {
                let there = bucket.available() as i64 - bucket.debt() as i64;
                assert_eq!(there, tokens, "row {index}");
                assert_eq!(bucket.try_acquire(n).is_ok(), taken, "row {index}");
            }
            Cancel(_, row) => booked[row] = None,
            Set(_, rate, burst) => bucket.set_quota(Quota::per_second(rate).burst(burst), Inherit::AsIs),
        }
        booked.push(booking);
    }
}

/// The tables of Go's x/time/rate. Where a cancel gives all back that it may, or an instant does not go back, ours are
/// stricter: those rows say what is published.
/// Keeps out juju/ratelimit#22.
#[test]
fn the_published_tables_of_reservations_hold() {
    // Simple.
    table(10, 2, &[Book(0, 2, Some(0)), Book(0, 2, Some(2)), Book(3, 2, Some(4))]);
    // Mixed.
    table(
        10,
        2,
        &[
            Book(0, 3, None),
            Book(0, 2, Some(0)),
            Take(1, 1, 2, false),
            Book(1, 2, Some(2)),
            Take(1, -1, 1, false),
            Take(3, 1, 1, true),
        ],
    );
    // The last one is cancelled.
    table(
        10,
        2,
        &[
            Book(0, 2, Some(0)),
            Book(0, 2, Some(2)),
            Cancel(1, 1),
            Book(1, 2, Some(2)),
        ],
    );
    // After it was due (published: 4).
    table(
        10,
        2,
        &[
            Book(0, 2, Some(0)),
            Book(0, 2, Some(2)),
            Cancel(3, 1),
            Book(3, 2, Some(3)),
        ],
    );
    // Behind it another one (published: 3).
    table(
        10,
        2,
        &[
            Book(0, 2, Some(0)),
            Book(0, 1, Some(1)),
            Book(0, 1, Some(2)),
            Cancel(0, 1),
            Book(0, 1, Some(2)),
        ],
    );
    // The same, later (published: 4). A replay without the second would start the third at 1 and the last, two, at 3. But the
    // third has been given 3, and keeps it: with the last at 3 as well three would start at one instant, of a burst of 2. So the
    // two laws differ here by one token, and a tenth, and the bound of every span comes first.
    table(
        10,
        2,
        &[
            Book(0, 2, Some(0)),
            Book(0, 2, Some(2)),
            Book(0, 1, Some(3)),
            Cancel(2, 1),
            Book(2, 2, Some(4)),
        ],
    );
    // Several (published: 5).
    table(
        10,
        4,
        &[
            Book(0, 4, Some(0)),
            Book(0, 3, Some(3)),
            Book(0, 1, Some(4)),
            Book(0, 1, Some(5)),
            Cancel(1, 3),
            Cancel(1, 1),
            Book(1, 3, Some(4)),
        ],
    );
    // The clock jumps back (published: 1, 1, 3, refused, 4, refused, 5; and 1, 3, 4, cancelled, 4). Of the second a replay without
    // the 3 would start the third at 2, and the last, two, at 4. But the third keeps 4: with the last three would start at one
    // instant, of a burst of 2. At 5 it is three in a span of one tenth, which 2 + 1 allow.
    table(
        10,
        2,
        &[
            Book(1, 2, Some(1)),
            Book(0, 1, Some(2)),
            Book(2, 2, Some(4)),
            Book(0, 3, None),
            Book(2, 1, Some(5)),
            BookSoon(0, 2, None),
            Book(2, 1, Some(6)),
        ],
    );
    table(
        10,
        2,
        &[
            Book(1, 2, Some(1)),
            Book(1, 2, Some(3)),
            Book(1, 1, Some(4)),
            Cancel(0, 1),
            Book(1, 2, Some(5)),
        ],
    );
    // The rate, or the burst, changes (the second published as 9, by an instant that goes back).
    table(
        5,
        2,
        &[
            Book(0, 2, Some(0)),
            Book(0, 2, Some(4)),
            Set(2, 10, 2),
            Book(2, 1, Some(4)),
        ],
    );
    table(
        5,
        2,
        &[
            Book(0, 2, Some(0)),
            Book(0, 2, Some(4)),
            Set(3, 5, 4),
            Book(0, 4, Some(12)),
        ],
    );
    table(
        5,
        2,
        &[
            Book(0, 2, Some(0)),
            Book(0, 2, Some(4)),
            Set(2, 10, 2),
            Cancel(2, 1),
            Book(2, 2, Some(3)),
        ],
    );
    // At most so long.
    table(
        10,
        2,
        &[Book(0, 2, Some(0)), BookSoon(0, 1, Some(1)), BookSoon(0, 1, None)],
    );
}

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
    let reserved = bucket.reserve(3).unwrap();
    clock.advance(NANO);
    drop(reserved);
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
