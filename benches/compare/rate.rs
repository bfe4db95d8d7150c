//! Rates beside governor and throttle-net. All read the machine's clock at each call.

use crate::harness::{Rows, each};
use governor::{DefaultDirectRateLimiter, Quota as GovernorQuota, RateLimiter};
use std::num::NonZeroU32;
use std::time::Duration;
use throttle_net::Throttle;
use tollgate::{Quota, SlidingWindow, TokenBucket};

pub(crate) const FAST: u32 = 1_000_000_000;

pub(crate) fn governor(per_second: u32, burst: u32) -> DefaultDirectRateLimiter {
    let number = |n| NonZeroU32::new(n).expect("above zero");
    RateLimiter::direct(GovernorQuota::per_second(number(per_second)).allow_burst(number(burst)))
}

pub(crate) fn rows(rows: &Rows) {
    let ours = TokenBucket::new(Quota::per_second(u64::from(FAST)));
    let theirs = governor(FAST, FAST);
    let throttle = Throttle::per_second(FAST);
    rows.wall(
        "token-bucket/admit",
        vec![
            each!("tollgate", ours.try_acquire(1).is_ok()),
            each!("governor", theirs.check().is_ok()),
            each!("throttle-net", throttle.try_acquire()),
        ],
    );

    let ours = TokenBucket::new(Quota::per_hour(1));
    let theirs = RateLimiter::direct(GovernorQuota::per_hour(NonZeroU32::MIN));
    let throttle = Throttle::per_duration(1, Duration::from_secs(3_600));
    assert!(ours.try_acquire(1).is_ok() && theirs.check().is_ok() && throttle.try_acquire());
    rows.wall(
        "token-bucket/refuse",
        vec![
            each!("tollgate", ours.try_acquire(1).is_err()),
            each!("governor", theirs.check().is_err()),
            each!("throttle-net", throttle.try_acquire()),
        ],
    );

    let ours = SlidingWindow::new(u64::MAX / 2, Duration::from_secs(1)).expect("a window");
    let theirs = governor(FAST, FAST);
    rows.wall(
        "sliding-window/admit",
        vec![
            each!("tollgate", ours.try_acquire(1).is_ok()),
            each!("governor", theirs.check().is_ok()),
        ],
    );
}
