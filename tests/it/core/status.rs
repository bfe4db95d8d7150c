//! How limiters say that they stand.

use std::time::Duration;
use tollgate::keyed::{FairBudget, Shared};
use tollgate::status::State;
use tollgate::{
    Ask, Cost, FixedWindow, LeakyBucket, Limiter, LimiterExt, ManualClock, Policy, Quota, Semaphore, SlidingLog,
    SlidingWindow, TokenBucket, Warmup,
};

const SECOND: Duration = Duration::from_secs(1);
const TOKENS: Cost = Cost::new("tokens");

/// One line for each leg: its name, its kind, what it counts if not calls, and its numbers.
fn described(limiter: &impl Limiter) -> Vec<String> {
    let mut lines = Vec::new();
    limiter.describe(&mut |status| {
        let cost = status.cost.map_or(String::new(), |cost| format!(" of {}", cost.name()));
        let numbers = match status.state {
            State::Permits { limit, in_use, waiting } => format!("{in_use}/{limit} +{waiting}"),
            State::Rate {
                limit,
                window,
                available,
                next,
                ..
            } => format!("{available}/{limit} in {window:?}, next {next:?}"),
            State::Queue { waiting } => format!("+{waiting}"),
            State::Opaque { next } => format!("opaque, next {next:?}"),
            State::Budget { limit, available } => format!("{available}/{limit} kept"),
            State::Shed { likelihood } => format!("{likelihood:.3} shed"),
            // It limits nothing.
            State::Unknown => return,
            other => panic!("{other:?}"),
        };
        lines.push(format!("{} ({}){cost}: {numbers}", status.leg, status.kind));
    });
    lines
}

#[test]
fn rates_report_the_remainder_and_the_next_refill() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(4).burst(2)).on(&clock);
    assert_eq!(
        described(&bucket),
        ["token_bucket (token_bucket): 2/2 in 500ms, next Some(0ns)"]
    );
    bucket.try_acquire(2).unwrap();
    clock.advance(Duration::from_millis(100));
    assert_eq!(
        described(&bucket),
        ["token_bucket (token_bucket): 0/2 in 500ms, next Some(150ms)"]
    );
    let zero = TokenBucket::new(Quota::zero()).on(&clock);
    assert!(described(&zero)[0].contains("0/0 in "), "{:?}", described(&zero));
    assert!(described(&TokenBucket::new(Quota::unlimited()).on(&clock)).is_empty());

    let window = SlidingWindow::new(3, SECOND).unwrap().on(&clock);
    window.try_acquire(1).unwrap();
    assert_eq!(
        described(&window),
        ["sliding_window (sliding_window): 2/3 in 1s, next Some(0ns)"]
    );
    let log = SlidingLog::new(1, SECOND).unwrap().on(&clock);
    log.try_acquire(1).unwrap();
    assert_eq!(described(&log), ["sliding_log (sliding_log): 0/1 in 1s, next Some(1s)"]);
    let fixed = FixedWindow::new(5, SECOND).unwrap().on(&clock);
    assert_eq!(
        described(&fixed),
        ["fixed_window (fixed_window): 5/5 in 1s, next Some(0ns)"]
    );
    let leaky = LeakyBucket::new(Quota::per_second(10)).on(&clock);
    assert!(
        described(&leaky)[0].starts_with("leaky_bucket (leaky_bucket): 1/"),
        "{:?}",
        described(&leaky)
    );
    let warm = Warmup::new(Quota::per_second(2), SECOND * 4).unwrap().on(&clock);
    assert!(
        described(&warm)[0].starts_with("warmup (warmup): 2/"),
        "{:?}",
        described(&warm)
    );
}

#[test]
fn a_policy_shows_its_legs_in_order_by_name_and_then_its_queue() {
    let clock = ManualClock::new();
    let shared = Shared::new(Semaphore::new(7));
    let found = Semaphore::new(10);
    let both = Semaphore::new(5).named("a").and(
        TokenBucket::new(Quota::per_minute(60))
            .on(&clock)
            .per(TOKENS)
            .named("b"),
    );
    let policy = Policy::builder()
        .limit(both)
        .limit(shared.clone())
        .limit(found.named("found"))
        .build()
        .unwrap();
    assert_eq!(described(&shared.clone().boxed()), ["semaphore (semaphore): 0/7 +0"]);
    let _permit = policy.try_admit(Ask::one().cost(TOKENS, 20)).unwrap();
    assert_eq!(
        described(&policy),
        [
            "a (semaphore): 1/5 +0",
            "b (token_bucket) of tokens: 40/60 in 60s, next Some(0ns)",
            "semaphore (semaphore): 1/7 +0",
            "found (semaphore): 1/10 +0",
            "queue (queue): +0",
        ]
    );
}

/// Given one rate for two shares, then what a share gets in a time is by how many want theirs.
#[test]
fn a_fair_share_is_the_smaller_the_more_want_theirs() {
    let clock = ManualClock::new();
    let budget = FairBudget::new(Quota::per_second(10).burst(5)).on(&clock);
    let (a, b) = (budget.share(), budget.share());
    assert_eq!(described(&a), ["fair_share (fair_share): 5/5 in 500ms, next Some(0ns)"]);
    a.try_acquire(5).unwrap();
    assert_eq!(
        described(&a),
        ["fair_share (fair_share): 0/5 in 500ms, next Some(100ms)"]
    );
    assert_eq!(
        described(&b),
        ["fair_share (fair_share): 5/5 in 1s, next Some(0ns)"],
        "if it took some"
    );
    b.try_acquire(5).unwrap();
    assert_eq!(described(&a), ["fair_share (fair_share): 0/5 in 1s, next Some(200ms)"]);
    clock.advance(Duration::from_millis(200));
    assert!(a.try_acquire(1).is_ok() && b.try_acquire(1).is_ok(), "as they said");

    let share = FairBudget::new(Quota::zero()).on(&clock).share();
    assert!(described(&share)[0].ends_with("next None"), "{:?}", described(&share));
    assert!(described(&FairBudget::new(Quota::unlimited()).on(&clock).share()).is_empty());
}

#[cfg(feature = "governor")]
#[test]
fn a_governor_limiter_reports_its_latest_snapshot() {
    let clock = ManualClock::new();
    let quota = governor::Quota::with_period(SECOND).unwrap();
    let limiter = governor::RateLimiter::direct_with_clock(quota, clock.clock().clone());
    let gate = tollgate::Governed::new(limiter).on(&clock);
    assert_eq!(described(&gate), ["governor (governor): opaque, next 0ns"]);
    drop(gate.try_admit(1).unwrap());
    assert!(gate.try_admit(1).is_err());
    clock.advance(Duration::from_millis(400));
    assert_eq!(described(&gate), ["governor (governor): opaque, next 600ms"]);
    clock.advance(SECOND);
    assert_eq!(described(&gate), ["governor (governor): opaque, next 0ns"]);
}
