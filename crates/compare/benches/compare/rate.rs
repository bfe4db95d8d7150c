//! Rates beside governor, ratelimit, leaky-bucket and throttle-net. All read the machine's clock at each call.

use crate::harness::{Rows, each};
use governor::{DefaultDirectRateLimiter, Quota as GovernorQuota, RateLimiter};
use ratelimit::Ratelimiter;
use std::num::NonZeroU32;
use std::time::Duration;
use throttle_net::Throttle;
use tollgate::{FixedWindow, LeakyBucket, LimiterExt, Quota, SlidingLog, SlidingWindow, TokenBucket, Warmup};

pub(crate) const FAST: u32 = 1_000_000_000;

pub(crate) fn governor(per_second: u32, burst: u32) -> DefaultDirectRateLimiter {
    let number = |n| NonZeroU32::new(n).expect("above zero");
    RateLimiter::direct(GovernorQuota::per_second(number(per_second)).allow_burst(number(burst)))
}

fn ratelimiter(count: u64, period: Duration) -> Ratelimiter {
    let builder = Ratelimiter::builder(count).period(period).max_tokens(count);
    builder.initial_available(count).build().expect("a limiter")
}

/// Those that are more than a word, one admission after the other.
fn behind_a_lock(rows: &Rows) {
    let theirs = governor(FAST, FAST);
    let fast = Quota::per_second(u64::from(FAST));
    let window = FixedWindow::new(u64::MAX / 2, Duration::from_secs(1)).expect("a window");
    rows.wall(
        "fixed-window/admit",
        vec![
            each!("tollgate", window.try_acquire(1).is_ok()),
            each!("governor", theirs.check().is_ok()),
        ],
    );
    // Some hundred entries at a time.
    let log = SlidingLog::new(u64::MAX / 2, Duration::from_micros(10)).expect("a log");
    rows.wall(
        "sliding-log/admit",
        vec![
            each!("tollgate", log.try_acquire(1).is_ok()),
            each!("governor", theirs.check().is_ok()),
        ],
    );
    // Evenly spaced beside evenly spaced: where a processor's counter goes by steps, some readings come twice, and the second
    // is refused on both sides.
    let spaced = governor(FAST, 1);
    // Cold, one in three nanoseconds.
    let warmup = Warmup::new(fast, Duration::from_secs(1)).expect("a warm-up");
    rows.wall(
        "warm-up/admit",
        vec![
            each!("tollgate", warmup.try_acquire(1).is_ok()),
            each!("governor", theirs.check().is_ok()),
            each!("governor, spaced", spaced.check().is_ok()),
        ],
    );
    let leaky = LeakyBucket::new(fast);
    let most = 1 << 40;
    let other = leaky_bucket::RateLimiter::builder().max(most).initial(most).build();
    rows.wall(
        "leaky-bucket/admit",
        vec![
            each!("tollgate", leaky.try_acquire(1).is_ok()),
            each!("governor", theirs.check().is_ok()),
            each!("governor, spaced", spaced.check().is_ok()),
            each!("leaky-bucket", other.try_acquire(1)),
        ],
    );
    let leaky = LeakyBucket::new(Quota::per_hour(1));
    let hourly = RateLimiter::direct(GovernorQuota::per_hour(NonZeroU32::MIN));
    assert!(leaky.try_acquire(1).is_ok() && hourly.check().is_ok());
    rows.wall(
        "leaky-bucket/refuse",
        vec![
            each!("tollgate", leaky.try_acquire(1).is_err()),
            each!("governor", hourly.check().is_err()),
        ],
    );
    let leaky = LeakyBucket::new(fast);
    rows.wall(
        "leaky-bucket/reserve+cancel",
        vec![
            each!("tollgate", leaky.try_admit(1).map(tollgate::Permit::cancel).is_ok()),
            each!("governor's check", theirs.check().is_ok()),
        ],
    );
}

/// Several bandwidths in one: two buckets joined, beside two limiters by hand, of which the first gives nothing back when
/// the second refuses.
fn two_bandwidths(rows: &Rows) {
    let (second, minute) = (Quota::per_second(FAST.into()), Quota::per_minute(60 * u64::from(FAST)));
    let both = TokenBucket::new(second).and(TokenBucket::new(minute));
    let (first, other) = (governor(FAST, FAST), governor(FAST, FAST));
    rows.wall(
        "two-bandwidths/admit",
        vec![
            each!("tollgate", both.try_admit(1).is_ok()),
            each!("governor twice", first.check().is_ok() && other.check().is_ok()),
        ],
    );
}

pub(crate) fn rows(rows: &Rows) {
    behind_a_lock(rows);
    two_bandwidths(rows);
    let ours = TokenBucket::new(Quota::per_second(u64::from(FAST)));
    let theirs = governor(FAST, FAST);
    let throttle = Throttle::per_second(FAST);
    let ratelimit = ratelimiter(u64::from(FAST), Duration::from_secs(1));
    rows.wall(
        "token-bucket/admit",
        vec![
            each!("tollgate", ours.try_acquire(1).is_ok()),
            each!("governor", theirs.check().is_ok()),
            each!("ratelimit", ratelimit.try_wait().is_ok()),
            each!("throttle-net", throttle.try_acquire()),
        ],
    );

    let ours = TokenBucket::new(Quota::per_hour(1));
    let theirs = RateLimiter::direct(GovernorQuota::per_hour(NonZeroU32::MIN));
    let throttle = Throttle::per_duration(1, Duration::from_secs(3_600));
    let ratelimit = ratelimiter(1, Duration::from_secs(3_600));
    assert!(ours.try_acquire(1).is_ok() && theirs.check().is_ok() && throttle.try_acquire());
    assert!(ratelimit.try_wait().is_ok());
    rows.wall(
        "token-bucket/refuse",
        vec![
            each!("tollgate", ours.try_acquire(1).is_err()),
            each!("governor", theirs.check().is_err()),
            each!("ratelimit", ratelimit.try_wait().is_err()),
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
