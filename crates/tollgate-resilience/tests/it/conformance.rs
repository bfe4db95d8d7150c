//! A conformance line for every limiter of the crate.

use std::time::Duration;
use tollgate::{Ask, ManualClock};
use tollgate_conformance::Suite;
use tollgate_resilience::upstream::{Feedback, Refill, RemainingQuota, Upstream};

/// An upstream that has just said that `limit` calls are left.
fn upstream_with(clock: &ManualClock, limit: u64, refill: Refill) -> Upstream {
    let upstream = Upstream::builder().on(clock).build().unwrap();
    let call = upstream.begin(&Ask::one()).unwrap();
    let window = Duration::from_millis(500);
    let quota = RemainingQuota::of_calls(limit)
        .limit(limit)
        .reset(window)
        .window(window);
    upstream.observe(&call, &Feedback::default().quota(quota.refill(refill)));
    upstream
}

#[test]
fn upstream_conforms() {
    let suite = |refill| {
        Suite::of_rate(5, Duration::from_millis(500), move |clock| {
            upstream_with(clock, 5, refill)
        })
        .holding()
        .loosen(move |upstream| {
            let call = upstream.begin(&Ask::many(5)).unwrap();
            let quota = RemainingQuota::of_calls(15).limit(15).reset(Duration::from_secs(9));
            upstream.observe(&call, &Feedback::default().quota(quota.refill(refill)));
        })
        .never_fits(6)
    };
    suite(Refill::AtReset).check();
    suite(Refill::PerSecond(10.0)).inexact_cancel().check();
}
