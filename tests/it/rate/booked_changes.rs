//! The fixed window, changed while something is booked: bookings keep their instants, and no window is filled twice.

use std::time::{Duration, UNIX_EPOCH};
use tollgate::{Cost, FixedWindow, Inherit, LimiterExt, ManualClock};

const SECOND: Duration = Duration::from_secs(1);
const TOKENS: Cost = Cost::new("tokens");

fn window(clock: &ManualClock, limit: u64, length: Duration) -> FixedWindow {
    FixedWindow::new(limit, length).unwrap().on(clock)
}

/// Given all of this window taken, and bookings for later ones, when the limit is raised by any rule, then each later window
/// has room for what its bookings leave of the new limit.
#[test]
fn a_raised_limit_leaves_each_booking_its_window() {
    use Inherit::{Additive, AsIs, Proportional, Reset};
    for rule in [AsIs, Proportional, Additive, Reset] {
        for windows in 1..4 {
            let clock = ManualClock::new();
            let window = window(&clock, 10, SECOND * 60);
            window.try_acquire(10).unwrap();
            let booked: Vec<_> = (0..windows).map(|_| window.book(10).unwrap()).collect();
            assert_eq!(booked[windows as usize - 1].wait(), SECOND * 60 * windows);
            clock.advance(SECOND);
            window.set_limit(20, rule);
            for _ in 0..windows {
                assert!(window.try_acquire(1).is_err(), "it is booked further on");
                clock.advance(SECOND * 60);
            }
            assert!(window.try_acquire(11).is_err(), "{rule:?}: 21 of 20");
            window.try_acquire(10).unwrap();
            clock.advance(SECOND * 60);
            assert_eq!(window.available(), 20);
        }
    }
}

/// Given a booking, when the limit is lowered, then the booked windows keep their bookings, and the one after
/// is as empty as any.
#[test]
fn a_lowered_limit_admits_bookings_only() {
    for rule in [Inherit::AsIs, Inherit::Proportional, Inherit::Additive, Inherit::Reset] {
        let clock = ManualClock::new();
        let window = window(&clock, 10, SECOND);
        let (now, later) = (window.book(10).unwrap(), window.book(6).unwrap());
        assert_eq!((now.wait(), later.wait()), (Duration::ZERO, SECOND));
        window.set_limit(4, rule);
        // Two are more than its window may hold by the new limit: that is not charged to the next.
        assert_eq!((window.available(), window.time_until(4)), (0, Some(SECOND * 2)));
        clock.advance(SECOND);
        assert_eq!((window.available(), window.debt()), (0, 2));
        clock.advance(SECOND);
        assert_eq!(window.available(), 4, "{rule:?}");
    }
}

/// Given a limit that goes up and down again and again over bookings, then no window is closed for longer by it.
#[test]
fn changes_to_and_fro_close_nothing_for_longer() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND);
    window.try_acquire(10).unwrap();
    for round in 0..50 {
        let booked = window.book(10).unwrap();
        assert_eq!(booked.wait(), SECOND * (2 * round + 1));
        booked.commit().forget();
        window.set_limit(20, Inherit::Additive);
        window.set_limit(5, Inherit::AsIs);
        window.set_limit(10, Inherit::Proportional);
        let booked = window.book(10).unwrap();
        assert_eq!(booked.wait(), SECOND * (2 * round + 2));
        booked.commit().forget();
    }
}

/// Given a booking, when the windows get shorter, then the one that it starts in counts it; and when they get longer, then
/// the one into which several have come counts all of them.
#[test]
fn another_length_counts_the_booked_where_they_start() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND * 60);
    window.try_acquire(10).unwrap();
    let booked = window.book(6).unwrap();
    clock.advance(SECOND);
    window.set_length(SECOND * 10).unwrap();
    assert_eq!(booked.wait(), SECOND * 60);
    clock.advance(SECOND * 59);
    assert_eq!(window.available(), 4);
    clock.advance(SECOND * 10);
    assert_eq!(window.available(), 10);

    window.try_acquire(10).unwrap();
    let booked = [10, 10, 3].map(|n| window.book(n).unwrap());
    assert_eq!(booked.each_ref().map(|booked| booked.wait().as_secs()), [10, 20, 30]);
    // The last two start in one window now, from 20 to 40.
    window.set_length(SECOND * 20).unwrap();
    assert_eq!((window.available(), window.time_until(1)), (0, Some(SECOND * 40)));
    clock.advance(SECOND * 20);
    assert_eq!((window.available(), window.debt()), (0, 3));
    clock.advance(SECOND * 20);
    assert_eq!(window.available(), 10);
}

/// Given all of a window taken just now, when windows get so much shorter that another one runs, then what was taken in that
/// one counts in it.
#[test]
fn a_shorter_window_counts_since_its_own_beginning() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND * 60);
    clock.advance(SECOND * 55);
    window.try_acquire(10).unwrap();
    clock.advance(SECOND);
    window.set_length(SECOND * 10).unwrap();
    assert_eq!((window.available(), window.time_until(1)), (0, Some(SECOND * 4)));
    clock.advance(SECOND * 10);
    window.try_acquire(4).unwrap();
    clock.advance(SECOND * 2);
    window.set_length(SECOND * 5).unwrap();
    assert_eq!(window.available(), 6);
}

/// Given debts alone, when the limit is raised, then they are dealt out anew, and forgiven by a reset.
#[test]
fn debts_alone_are_dealt_out_anew() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND);
    window.force_acquire(35);
    window.set_limit(20, Inherit::Additive);
    assert_eq!((window.debt(), window.time_until(5)), (15, Some(SECOND)));
    // Behind a booking they stay.
    let booked = window.book(10).unwrap();
    assert_eq!(booked.wait(), SECOND * 2);
    window.force_acquire(30);
    window.set_limit(30, Inherit::AsIs);
    assert_eq!(window.time_until(30), Some(SECOND * 4));
    window.set_limit(30, Inherit::Reset);
    assert_eq!(
        window.time_until(30),
        Some(SECOND * 3),
        "the booking stays, and the debt does not"
    );
    window.reset();
    assert_eq!(window.available(), 30, "a reset forgets bookings as well");
}

/// Given one that was charged too much, with nothing behind it, when it is settled, then all of it comes back, however many
/// windows it took.
#[test]
fn a_settlement_gives_all_back_that_lies_on_end() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND);
    let gate = (&window).per(TOKENS);
    let mut permit = gate.try_admit(tollgate::Ask::one().cost(TOKENS, 5)).unwrap();
    permit.settle(TOKENS, 25).unwrap();
    assert_eq!(window.debt(), 15);
    permit.settle(TOKENS, 8).unwrap();
    assert_eq!((window.available(), window.debt()), (2, 0));
    permit.settle(TOKENS, 31).unwrap();
    clock.advance(SECOND);
    // Ten of them are over.
    assert_eq!((window.available(), window.debt()), (0, 11));
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!((window.available(), window.debt()), (10, 0));
    // With another's behind it only the last of it comes back.
    let mut permit = gate.try_admit(tollgate::Ask::one().cost(TOKENS, 5)).unwrap();
    permit.settle(TOKENS, 25).unwrap();
    window.force_acquire(1);
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!((window.available(), window.debt()), (0, 11));
}

/// Given a window that is aligned, when it is built on a while later, or changed in length, then its boundaries stay with the wall
/// clock. On another clock it is aligned from then on.
#[test]
fn an_aligned_window_stays_aligned_whatever_is_chained_behind() {
    let clock = ManualClock::new();
    let minute = SECOND * 60;
    let wall = UNIX_EPOCH + minute * 1_000 + SECOND * 42;
    let aligned = window(&clock, 1, minute).aligned(wall);
    clock.advance(SECOND * 10);
    let aligned = aligned.max_ahead(5);
    clock.advance(SECOND * 3);
    let aligned = aligned.on(&clock);
    aligned.try_acquire(1).unwrap();
    assert_eq!(aligned.time_until(1), Some(SECOND * 5));
    let other = ManualClock::new();
    let aligned = aligned.on(&other);
    aligned.try_acquire(1).unwrap();
    assert_eq!(aligned.time_until(1), Some(SECOND * 18));
    // Half a minute is counted from 1970 as well.
    aligned.set_length(minute / 2).unwrap();
    let aligned = aligned.max_ahead(2);
    aligned.try_acquire(1).unwrap();
    assert_eq!(aligned.time_until(1), Some(SECOND * 18));
    let before = window(&clock, 1, minute).aligned(UNIX_EPOCH - SECOND).max_ahead(3);
    before.try_acquire(1).unwrap();
    assert_eq!(before.time_until(1), Some(SECOND));
}
