//! No sequence of calls mints: see `fuzz/targets/ledger.rs`, which fuzz targets run as well.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Permit, Quota, TokenBucket};

#[path = "../../../fuzz/targets/ledger.rs"]
mod ledger;

use ledger::Step;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    crate::ops(1..80, Step::decode)
}

/// The same of one unit at a time.
fn single_steps() -> impl Strategy<Value = Vec<Step>> {
    steps().prop_map(|steps| steps.into_iter().map(Step::single).collect())
}

macro_rules! mints_nothing {
    ($($name:ident($steps:ident) = $program:ident;)*) => {
        proptest! {
            #![proptest_config(crate::cases(400))]
            $(#[test]
            fn $name(steps in $steps()) {
                ledger::$program(&steps);
            })*
        }
    };
}

mints_nothing! {
    a_token_bucket_mints_nothing(steps) = token_bucket;
    a_bucket_by_interval_mints_nothing(steps) = bucket_by_interval;
    a_leaky_bucket_mints_nothing(steps) = leaky_bucket;
    a_leaky_bucket_without_slack_mints_nothing(single_steps) = leaky_bucket_without_slack;
    a_bucket_with_a_burst_of_one_mints_nothing(single_steps) = bucket_with_a_burst_of_one;
    a_warm_up_mints_nothing(steps) = warm_up;
    a_sliding_window_mints_nothing(steps) = sliding_window;
    a_sliding_log_mints_nothing(steps) = sliding_log;
    a_fixed_window_mints_nothing(steps) = fixed_window;
    a_share_of_a_budget_mints_nothing(steps) = share_of_a_budget;
    a_key_that_comes_back_mints_nothing(steps) = key_that_comes_back;
    a_key_of_any_limiter_that_comes_back_mints_nothing(steps) = key_of_any_limiter;
    a_rate_by_key_mints_nothing(steps) = rate_by_key;
}

/// Given a budget that nothing refills, of which little is taken, when a reservation is cancelled after many others have been, then
/// nothing is lost: where nothing is refilled nothing overflows.
#[test]
fn a_budget_that_nothing_refills_gets_back_all_that_is_cancelled() {
    let clock = ManualClock::new();
    let budget = TokenBucket::new(Quota::zero().burst(1_000)).on(&clock);
    let old = budget.try_admit(3).unwrap();
    for n in 0..200 {
        clock.advance(Duration::from_secs(1));
        let reservations = [n % 3 + 1, 2].map(|units| budget.try_admit(units).unwrap());
        reservations.into_iter().for_each(Permit::cancel);
    }
    old.cancel();
    assert_eq!(budget.available(), 1_000);
}
