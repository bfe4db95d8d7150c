//! An ask that no instant can admit under the settings in force: refused at once, for good, by every rate and every verb.

use std::sync::Arc;
use std::time::Duration;
use tollgate::keyed::{FairBudget, KeyedRate};
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Demand, FixedWindow, Inherit, Keyed, LeakyBucket, Limiter, ManualClock, Quota, Reason, Refusal, SlidingLog,
    SlidingWindow, TokenBucket, Wait, Warmup,
};

const SECOND: Duration = Duration::from_secs(1);

#[track_caller]
fn for_good(refused: Result<(), Refusal>) {
    let refused = refused.expect_err("more than ever fits");
    assert_eq!(refused.reason(), Reason::Oversized);
    assert!(matches!(refused.wait(), Wait::Never) && refused.retry_after().is_none());
}

/// Given one that fits, and one that does not, when the limiter is empty, or full, then only the first is worth waiting for.
#[track_caller]
fn tells_apart<L: Limiter>(limiter: &L, fits: u64, too_many: u64) {
    let reading = ClockReading::default();
    let ready = |n| {
        let ask = Ask::many(n);
        let looked = limiter.look(&Demand::new(&ask, &reading));
        looked.is_err_and(|refusal| refusal.wait() == Wait::Never)
    };
    assert_eq!([ready(fits), ready(too_many)], [false, true]);
    let ask = Ask::many(too_many);
    for_good(limiter.try_reserve(&Demand::new(&ask, &reading)).map(|_| ()));
}

/// Given a limiter of which ten fit at once, and a change after which five do.
macro_rules! checks {
    ($limiter:expr, |$this:ident| $shrink:expr) => {{
        let $this = $limiter;
        tells_apart(&$this, 10, 11);
        for_good($this.try_acquire(11));
        assert_eq!($this.time_until(11), None);
        $this.try_acquire(10).unwrap();
        tells_apart(&$this, 10, 11);
        $shrink;
        tells_apart(&$this, 5, 6);
        for_good($this.try_acquire(10));
        assert_eq!($this.try_acquire(5).unwrap_err().reason(), Reason::RateExceeded);
    }};
}

#[test]
fn more_than_ever_fits_is_refused_for_good() {
    let clock = ManualClock::new();
    let rate = |burst| Quota::per_second(1).burst(burst);
    let keeps = Inherit::AsIs;
    checks!(TokenBucket::new(rate(10)).on(&clock), |it| it.set_quota(rate(5), keeps));
    let by_interval = |burst| rate(burst).by_interval();
    checks!(TokenBucket::new(by_interval(10)).on(&clock), |it| it
        .set_quota(by_interval(5), keeps));
    checks!(LeakyBucket::new(rate(20)).slack(9).unwrap().on(&clock), |it| it
        .set_quota(rate(20), 4, keeps)
        .unwrap());
    checks!(Warmup::new(rate(10), SECOND).unwrap().on(&clock), |it| it
        .set_quota(rate(5), keeps)
        .unwrap());
    checks!(FixedWindow::new(10, SECOND).unwrap().on(&clock), |it| it
        .set_limit(5, keeps));
    checks!(SlidingWindow::new(10, SECOND).unwrap().on(&clock), |it| it
        .set_limit(5, keeps));
    checks!(SlidingLog::new(10, SECOND).unwrap().on(&clock), |it| it
        .set_limit(5, keeps));
}

#[test]
fn more_than_a_key_can_ever_have_is_refused_for_good() {
    let clock = ManualClock::new();
    let rate = Quota::per_second(1).burst(10);
    tells_apart(&FairBudget::new(rate).on(&clock).share(), 10, 11);
    let by_key = KeyedRate::new(2, rate).on(&clock);
    for_good(by_key.try_acquire(&1, 11));
    let on = clock.clone();
    let keyed = Keyed::new(2, move |_: &u64| TokenBucket::new(rate).on(&on));
    let bucket: Arc<TokenBucket> = keyed.get(&1).unwrap();
    tells_apart(&bucket, 10, 11);
}

/// Where nothing is ever admitted, nothing is waited for. Of a budget that is spent once, something may still come back.
#[test]
fn nothing_fits_where_nothing_is_allowed() {
    let clock = ManualClock::new();
    let zero = Quota::zero();
    tells_apart(&TokenBucket::new(zero).on(&clock), 0, 1);
    tells_apart(&LeakyBucket::new(zero).on(&clock), 0, 1);
    tells_apart(&Warmup::new(zero, SECOND).unwrap().on(&clock), 0, 1);
    tells_apart(&FixedWindow::new(0, SECOND).unwrap().on(&clock), 0, 1);
    tells_apart(&SlidingWindow::new(0, SECOND).unwrap().on(&clock), 0, 1);
    tells_apart(&SlidingLog::new(0, SECOND).unwrap().on(&clock), 0, 1);
    let budget = TokenBucket::new(zero.burst(5)).on(&clock);
    budget.try_acquire(5).unwrap();
    tells_apart(&budget, 5, 6);
    let refused = budget.try_acquire(1).unwrap_err();
    assert_eq!((refused.reason(), refused.retry_after()), (Reason::RateExceeded, None));
    assert!(!refused.is_retryable());
    let by_key = KeyedRate::new(1, zero.burst(5)).on(&clock);
    by_key.try_acquire(&1, 5).unwrap();
    assert!(!by_key.try_acquire(&1, 1).unwrap_err().is_retryable());
    let share = FairBudget::new(zero.burst(5)).on(&clock).share();
    share.try_acquire(5).unwrap();
    assert!(!share.try_acquire(1).unwrap_err().is_retryable());
    budget.set_quota(Quota::per_second(1).burst(5), Inherit::AsIs);
    assert!(budget.try_acquire(1).unwrap_err().is_retryable());
}
