//! The sliding window and the sliding log against the list of admissions in `fuzz/targets/windows.rs`, and their rules one by one.

use crate::rate::alike::WINDOWS;
use program::Op;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, Cost, Inherit, LimiterExt, ManualClock, RateError, SlidingLog, SlidingWindow};

#[path = "../../../fuzz/targets/windows.rs"]
mod program;

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);
const TOKENS: Cost = Cost::new("tokens");
proptest! {
    #![proptest_config(crate::cases(2_000))]

    #[test]
    fn the_log_is_the_list(ops in crate::ops(1..80, Op::decode), limit in 0u64..12) {
        program::log(limit, ops);
    }

    #[test]
    fn the_window_is_the_list_by_segments(ops in crate::ops(1..80, Op::decode), limit in 0u64..12) {
        program::sliding_window(limit, ops);
    }
}

macro_rules! rules {
    ($module:ident, $ty:ty) => {
        mod $module {
            use super::*;

            fn window(clock: &ManualClock, limit: u64) -> $ty {
                <$ty>::new(limit, SECOND).unwrap().on(clock)
            }

            /// Rows of (taken of ten, rule, new limit, room after).
            #[test]
            fn a_changed_limit_follows_its_inherit_rule() {
                for (taken, rule, limit, after) in WINDOWS {
                    let clock = ManualClock::new();
                    let window = window(&clock, 10);
                    window.try_acquire(taken).unwrap();
                    window.set_limit(limit, rule);
                    assert_eq!(
                        window.available(),
                        after,
                        "{taken} taken, {rule:?}, limit {limit}"
                    );
                    let counts = limit + window.debt() - after;
                    window.set_limit(30, Inherit::AsIs);
                    assert_eq!(
                        window.available(),
                        30 - counts,
                        "{taken} taken, {rule:?}, limit {limit}"
                    );
                    clock.advance(SECOND * 2);
                    assert_eq!(window.available(), 30, "what counts leaves with its window");
                }
            }

            #[test]
            fn charges_that_a_change_has_cancelled_are_not_refunded() {
                let clock = ManualClock::new();
                let window = window(&clock, 10);
                let held = window.try_admit(6).unwrap();
                window.set_limit(5, Inherit::Proportional);
                window.try_acquire(2).unwrap();
                held.cancel();
                assert_eq!(window.available(), 0);
                clock.advance(SECOND * 2);
                let held = window.try_admit(3).unwrap();
                window.reset();
                window.try_acquire(5).unwrap();
                held.cancel();
                assert_eq!(window.available(), 0);
            }

            #[test]
            fn zero_and_unlimited_have_names() {
                let clock = ManualClock::new();
                let shut = window(&clock, 0);
                shut.try_acquire(0).unwrap();
                assert_eq!(shut.try_acquire(1).unwrap_err().retry_after(), None);
                shut.force_acquire(3);
                assert_eq!((shut.debt(), shut.acquire_up_to(9)), (3, 0));

                let open = window(&clock, <$ty>::UNLIMITED);
                for n in [0, 1, u64::MAX] {
                    open.try_acquire(n).unwrap();
                    open.force_acquire(n);
                    assert_eq!(open.acquire_up_to(n), n);
                }
                let held = open.try_admit(3).unwrap();
                assert_eq!(
                    (open.available(), open.time_until_full()),
                    (u64::MAX, Some(Duration::ZERO))
                );
                open.set_limit(4, Inherit::Proportional);
                open.try_acquire(4).unwrap();
                held.cancel();
                assert_eq!(open.available(), 0, "what was not counted is not given back");
                open.set_limit(<$ty>::UNLIMITED, Inherit::AsIs);
                open.set_limit(4, Inherit::AsIs);
                assert_eq!(open.available(), 4, "without a limit nothing counts");
                for _ in 0..3 {
                    open.force_acquire(u64::MAX);
                }
                assert!(open.debt() > 1 << 63 && open.time_until(1).is_some());
                clock.advance(SECOND * 2);
                assert_eq!(open.available(), 4);
            }

            #[test]
            fn bad_lengths_are_refused() {
                let clock = ManualClock::new();
                for given in [
                    Duration::ZERO,
                    Duration::from_secs(365 * 86_400) + NANO,
                    Duration::MAX,
                ] {
                    assert_eq!(<$ty>::new(1, given).unwrap_err(), RateError::Length { given });
                }
                let longest = <$ty>::new(1, Duration::from_secs(365 * 86_400))
                    .unwrap()
                    .on(&clock);
                longest.try_acquire(1).unwrap();
                assert!(longest.time_until(1) >= Some(Duration::from_secs(365 * 86_400)));
            }
        }
    };
}
rules!(log, SlidingLog);
rules!(window, SlidingWindow);

#[test]
fn a_charge_that_was_settled_to_nothing_counts_from_when_it_is_raised() {
    let clock = ManualClock::new();
    let log = Arc::new(SlidingLog::new(10, SECOND).unwrap().on(&clock));
    let gate = Arc::clone(&log).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 0)).unwrap();
    clock.advance(SECOND / 2);
    permit.settle(TOKENS, 4).unwrap();
    clock.advance(SECOND - NANO);
    assert_eq!(log.available(), 6);
    clock.advance(NANO);
    assert_eq!(log.available(), 10);
}
