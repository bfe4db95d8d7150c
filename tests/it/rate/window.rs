//! The sliding window: strict in every span, late by at most a segment.

use std::time::Duration;
use tollgate::{Ask, Inherit, LimiterExt, ManualClock, RateError, Reason, SlidingWindow};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn no_span_of_the_windows_length_holds_more_than_the_limit() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(10, SECOND).unwrap().segments(8).unwrap().on(&clock);
    let mut admitted: Vec<u64> = Vec::new();
    for step in 0..4_000u64 {
        clock.advance(Duration::from_millis(step * 7 % 23));
        if window.try_acquire(1).is_ok() {
            admitted.push(clock.elapsed().as_nanos() as u64);
        }
    }
    for pair in admitted.windows(11) {
        assert!(pair[10] - pair[0] >= 1_000_000_000, "eleven within a second");
    }
    let spans = clock.elapsed().as_millis() as usize;
    // Ten per window and a segment: the price of strictness is an eighth here.
    assert!(
        admitted.len() >= spans * 10 / 1_125 - 10,
        "{} in {spans} ms",
        admitted.len()
    );
}

#[test]
fn retry_after_is_the_first_instant_that_admits() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(3, SECOND).unwrap().on(&clock);
    for _ in 0..3 {
        window.try_acquire(1).unwrap();
        clock.advance(Duration::from_millis(100));
    }
    for n in 1..=3 {
        let wait = window.try_acquire(n).unwrap_err().retry_after().unwrap();
        assert!(wait <= SECOND + SECOND / 64);
        clock.advance(wait - Duration::from_nanos(1));
        assert!(window.try_acquire(n).is_err());
        clock.advance(Duration::from_nanos(1));
        assert!(window.try_acquire(n).is_ok());
    }
    let refused = window.try_acquire(4).unwrap_err();
    assert_eq!((refused.reason(), refused.retry_after()), (Reason::Oversized, None));
    assert!(window.try_acquire(u64::MAX).is_err());
}

#[test]
fn a_cancel_restores_exactly_also_when_it_is_late() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(5, SECOND).unwrap().on(&clock);
    let early = window.try_admit(Ask::many(2)).unwrap();
    clock.advance(SECOND / 2);
    let late = window.try_admit(Ask::many(3)).unwrap();
    assert_eq!(window.available(), 0);
    early.cancel();
    assert_eq!(window.available(), 2);
    clock.advance(SECOND * 2);
    assert_eq!(window.available(), 5);
    late.cancel();
    assert_eq!(
        window.available(),
        5,
        "what has left the window is not given back twice"
    );
}

#[test]
fn a_changed_limit_counts_earlier_admissions() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(5, SECOND).unwrap().on(&clock);
    window.try_acquire(4).unwrap();
    window.set_limit(2, Inherit::AsIs);
    assert_eq!(window.available(), 0);
    window.set_limit(6, Inherit::AsIs);
    assert_eq!(window.available(), 2);
    window.set_limit(0, Inherit::AsIs);
    assert!(window.try_acquire(1).is_err());
}

#[test]
fn bad_numbers_are_refused_by_name() {
    for given in [Duration::ZERO, Duration::MAX] {
        assert_eq!(SlidingWindow::new(1, given).unwrap_err(), RateError::Length { given });
    }
    for given in [0, SlidingWindow::MAX_SEGMENTS + 1] {
        let window = SlidingWindow::new(1, SECOND).unwrap();
        assert_eq!(window.segments(given).unwrap_err(), RateError::Segments { given });
    }
}
