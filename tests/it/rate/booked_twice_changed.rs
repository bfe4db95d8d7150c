//! The fixed window, changed again before bookings from before the first change have begun: a charge that has come into one window
//! stays counted wherever it comes next, and nothing else is.

use std::time::Duration;
use tollgate::{Ask, Cost, FixedWindow, Inherit, LimiterExt, ManualClock};

const SECOND: Duration = Duration::from_secs(1);
const TOKENS: Cost = Cost::new("tokens");

fn window(clock: &ManualClock, limit: u64, length: Duration) -> FixedWindow {
    FixedWindow::new(limit, length).unwrap().on(clock)
}

/// All of the current window, and ten at each of `boundaries` to come.
fn book_in_a_row(window: &FixedWindow, boundaries: u32) {
    window.try_acquire(10).unwrap();
    for number in 1..=boundaries {
        let booked = window.book(10).unwrap();
        assert_eq!(booked.wait(), window.length() * number);
        booked.commit().forget();
    }
}

/// Given a window that has become so long that a booking lies in it, when limit and length change again, then it counts what was
/// taken and what is booked, once, and the next window nothing of both.
#[test]
fn a_booking_in_the_window_that_runs_counts_there_alone() {
    for (rule, left) in [(Inherit::Additive, 7), (Inherit::Reset, 17)] {
        let clock = ManualClock::new();
        let window = window(&clock, 10, SECOND * 60);
        window.try_acquire(10).unwrap();
        let booked = window.book(3).unwrap();
        window.set_length(SECOND * 200).unwrap();
        window.set_length(SECOND * 150).unwrap();
        assert_eq!((booked.wait(), window.debt()), (SECOND * 60, 3));
        window.set_limit(20, rule);
        assert_eq!(window.available(), left, "{rule:?}");
        clock.advance(SECOND * 150);
        assert_eq!((window.available(), window.debt()), (20, 0), "{rule:?}");
    }
}

/// Given a booking that has just begun, then it counts like all that was taken: a reset forgives it.
#[test]
fn a_booking_that_has_begun_is_none() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND * 60);
    window.try_acquire(10).unwrap();
    let _booked = window.book(3).unwrap();
    window.set_length(SECOND * 200).unwrap();
    clock.advance(SECOND * 60);
    window.set_limit(20, Inherit::Reset);
    assert_eq!(window.available(), 20);
}

/// Given a booking in a window that has become long, when windows get shorter, then the one in which it lies then counts it, and
/// not what was taken before that began.
#[test]
fn a_booking_leaves_the_window_that_it_came_into() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND * 60);
    window.try_acquire(10).unwrap();
    let _booked = window.book(3).unwrap();
    window.set_length(SECOND * 200).unwrap();
    window.set_length(SECOND * 50).unwrap();
    assert_eq!(window.available(), 0);
    clock.advance(SECOND * 50);
    assert_eq!((window.available(), window.debt()), (7, 0));
    clock.advance(SECOND * 50);
    assert_eq!(window.available(), 10);
}

/// Given many bookings that have come into the window that runs, and one behind it, when the last of the former come into one
/// window with the latter, then that counts them all.
#[test]
fn admissions_of_the_current_window_count_in_the_next_as_well() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND * 10);
    book_in_a_row(&window, 9);
    window.set_length(SECOND * 100).unwrap();
    assert_eq!(window.book(10).unwrap().wait(), SECOND * 100);
    window.book(10).unwrap().commit().forget();
    // From 60 to 120: what was booked for 60, 70, 80, 90 and 100.
    window.set_length(SECOND * 60).unwrap();
    window.set_limit(50, Inherit::Additive);
    for seconds in [0, 60] {
        clock.advance(SECOND * seconds);
        assert_eq!(window.available(), 0, "after {seconds} s");
    }
    clock.advance(SECOND * 60);
    assert_eq!((window.available(), window.debt()), (50, 0));
}

/// The same where the last of the bookings was behind the window that runs from the first change on.
#[test]
fn admissions_of_closed_windows_count_in_the_next_as_well() {
    let clock = ManualClock::new();
    let window = window(&clock, 10, SECOND * 10);
    book_in_a_row(&window, 11);
    window.set_length(SECOND * 100).unwrap();
    // From 60 to 120: what was booked for 60, 70, 80, 90, 100 and 110.
    window.set_length(SECOND * 60).unwrap();
    window.set_limit(60, Inherit::Additive);
    for seconds in [0, 60] {
        clock.advance(SECOND * seconds);
        assert_eq!(window.available(), 0, "after {seconds} s");
    }
    clock.advance(SECOND * 60);
    assert_eq!((window.available(), window.debt()), (60, 0));
}

/// Given one that was settled to more than windows hold, when the limit or the length changes, then it gives nothing back: what
/// is charged to windows to come was dealt out anew. Without debts it does.
#[test]
fn debts_that_were_dealt_out_anew_are_not_given_back() {
    let change: [fn(&FixedWindow); 2] = [
        |window| window.set_limit(9, Inherit::Additive),
        |window| window.set_length(SECOND * 30).unwrap(),
    ];
    for (change, debt) in change.into_iter().zip([16, 15]) {
        let clock = ManualClock::new();
        let window = window(&clock, 10, SECOND * 60);
        let gate = (&window).per(TOKENS);
        let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 5)).unwrap();
        permit.settle(TOKENS, 25).unwrap();
        change(&window);
        permit.settle(TOKENS, 0).unwrap();
        assert_eq!(window.debt(), debt);
        window.reset();

        let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 5)).unwrap();
        change(&window);
        permit.settle(TOKENS, 1).unwrap();
        assert_eq!(window.available(), window.limit() - 1);
    }
}

/// Given a booking, when windows get short and long again, many times, then no window counts more than was ever taken, and the window
/// after the booking has all its units.
#[test]
fn windows_that_get_short_and_long_again_multiply_nothing() {
    let clock = ManualClock::new();
    let nanos = Duration::from_nanos;
    let window = window(&clock, 4, nanos(57));
    let booked: Vec<_> = (0..5).map(|_| window.book(1).unwrap()).collect();
    for _ in 0..8 {
        window.set_length(nanos(1)).unwrap();
        window.set_length(nanos(49)).unwrap();
        assert_eq!(window.debt(), 1);
    }
    assert_eq!(booked[4].wait(), nanos(57));
    clock.advance(nanos(49));
    assert_eq!((window.available(), window.debt()), (3, 0));
    clock.advance(nanos(49));
    assert_eq!((window.available(), window.debt()), (4, 0));
}

/// Given bookings of several windows, when windows get long and short, and the limit changes, then the window of the last counts those
/// that lie in it, each once.
#[test]
fn the_window_of_the_last_booking_counts_what_lies_in_it_whatever_changed_between() {
    for (length, left) in [(10, 90), (35, 80), (60, 80), (99, 90), (101, 20)] {
        let clock = ManualClock::new();
        let window = window(&clock, 10, SECOND * 10);
        book_in_a_row(&window, 5);
        window.set_length(SECOND * 25).unwrap();
        window.set_limit(10, Inherit::Additive);
        // The window from 50 to 75 is full.
        let behind: Vec<_> = [75, 100].map(|at| (window.book(10).unwrap(), at)).into();
        for (booked, at) in &behind {
            assert_eq!(booked.wait(), SECOND * *at);
        }
        for between in [3, 700, 40] {
            window.set_length(SECOND * between).unwrap();
        }
        window.set_length(SECOND * length).unwrap();
        window.set_limit(100, Inherit::Additive);
        clock.advance(SECOND * 100);
        assert_eq!(window.available(), left, "{length} s");
    }
}
