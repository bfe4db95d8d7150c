//! The token bucket's verbs: debts, what there is and when there will be more, by interval and at the extremes.

use program::Op;
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Ask, Cost, Inherit, LimiterExt, ManualClock, Quota, Reason, TokenBucket};

#[path = "../../../fuzz/targets/verbs.rs"]
mod program;

const TENTH: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// Given a reservation that is settled to nothing as the latest, and up again, then its tokens come back once.
#[test]
fn a_reservation_that_is_settled_down_and_up_again_gives_back_once() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock);
    let gate = (&bucket).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 5)).unwrap();
    permit.settle(TOKENS, 0).unwrap();
    permit.settle(TOKENS, 5).unwrap();
    clock.advance(Duration::from_millis(500));
    assert!(bucket.try_acquire(10).is_ok(), "it is full");
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!(bucket.available(), 0);
}

#[test]
fn a_settlement_after_a_reset_gives_nothing_back() {
    const TOKENS: tollgate::Cost = tollgate::Cost::new("tokens");
    let clock = ManualClock::new();
    let bucket = std::sync::Arc::new(TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock));
    let gate = std::sync::Arc::clone(&bucket).per(TOKENS);
    let ask = tollgate::Ask::one().cost(TOKENS, 10);
    let mut permit = gate.try_admit(ask).unwrap();
    bucket.reset();
    bucket.try_acquire(10).unwrap();
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!(bucket.available(), 0);
    permit.settle(TOKENS, 3).unwrap();
    assert_eq!(bucket.debt(), 3, "more is charged all the same");
}

#[test]
fn debts_saturate() {
    for quota in [
        Quota::per_second(1).burst(1),
        Quota::per_second(1_000_000_000).burst(1),
        Quota::per_second(1_000).burst(Quota::MAX_BURST),
        Quota::per_second(7).burst(3).by_interval(),
    ] {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(quota).on(&clock);
        for _ in 0..3 {
            bucket.force_acquire(u64::MAX);
        }
        let (debt, burst) = (u128::from(bucket.debt()), u128::from(quota.burst_size()));
        let half_an_hour = u128::from(quota.count()) * 1_800 * SECOND.as_nanos() / quota.period().as_nanos();
        assert!(debt >= 2 * burst && debt >= half_an_hour, "{quota}: {debt}");
        if !quota.is_by_interval() {
            // Whole tokens go so deep that the clock ends first.
            clock.advance(bucket.time_until(1).unwrap() + TENTH);
            assert!(bucket.try_acquire(1).is_ok(), "{quota}");
        }
    }
}

#[test]
fn a_pause_keeps_tokens_and_debts() {
    let clock = ManualClock::new();
    let quota = Quota::per_second(10).burst(100);
    let bucket = TokenBucket::new(quota).on(&clock);
    for (taken, there, owed) in [(40, 60, 0), (90, 0, 30), (1_000_000, 0, 1_000_030)] {
        bucket.force_acquire(taken);
        bucket.set_quota(Quota::zero().burst(100), Inherit::AsIs);
        clock.advance(SECOND * 3_600);
        assert_eq!((bucket.available(), bucket.debt()), (there, owed));
        bucket.set_quota(Quota::zero(), Inherit::AsIs);
        assert_eq!((bucket.available(), bucket.debt()), (0, owed), "nothing is let through");
        if owed == 0 {
            bucket.set_quota(quota, Inherit::Reset);
            bucket.force_acquire(40);
        } else {
            bucket.set_quota(Quota::zero().burst(100), Inherit::AsIs);
        }
    }
    bucket.set_quota(Quota::per_second(1_000).burst(100), Inherit::AsIs);
    assert_eq!(bucket.debt(), 1_000_030);
}

/// Keeps out go#47221.
#[test]
fn zero_and_unlimited_have_names() {
    let clock = ManualClock::new();
    let shut = TokenBucket::new(Quota::zero()).on(&clock);
    shut.try_acquire(0).unwrap();
    let refused = shut.try_acquire(1).unwrap_err();
    assert_eq!((refused.reason(), refused.retry_after()), (Reason::Oversized, None));
    shut.force_acquire(2);
    assert_eq!((shut.available(), shut.debt(), shut.time_until_full()), (0, 2, None));
    shut.set_quota(Quota::per_second(10).burst(4), Inherit::AsIs);
    assert_eq!(shut.time_until(1), Some(TENTH * 3), "the debt stays");

    let open = TokenBucket::new(Quota::unlimited()).on(&clock);
    for n in [0, 1, u64::MAX] {
        open.try_acquire(n).unwrap();
        open.force_acquire(n);
        assert_eq!(open.acquire_up_to(n), n);
    }
    let held = open.try_admit(3).unwrap();
    let mut permit = open.try_admit(3).unwrap();
    assert_eq!(
        (open.available(), open.debt(), open.time_until_full()),
        (u64::MAX, 0, Some(Duration::ZERO))
    );
    open.set_quota(Quota::per_second(10).burst(4), Inherit::Proportional);
    open.try_acquire(4).unwrap();
    held.cancel();
    let _ = permit.settle(tollgate::Cost::new("calls"), 0);
    assert_eq!(open.available(), 0, "what was not counted is not given back");
    open.force_acquire(7);
    open.set_quota(Quota::unlimited(), Inherit::AsIs);
    open.try_acquire(9).unwrap();
    open.set_quota(Quota::per_second(10).burst(4), Inherit::AsIs);
    assert_eq!(open.available(), 4, "nothing was counted meanwhile");
}

/// Rows of (tokens before of ten, rule, new burst, tokens after), from one refill to the other.
#[test]
fn rules_hold_from_one_refill_to_the_other() {
    let quotas = |burst| {
        [
            Quota::per_second(10).burst(burst),
            Quota::per_second(10).burst(burst).by_interval(),
        ]
    };
    for (before, rule, burst, after) in [
        (4, Inherit::AsIs, 20, 4),
        (4, Inherit::AsIs, 3, 3),
        (4, Inherit::Proportional, 20, 8),
        (4, Inherit::Proportional, 5, 2),
        (4, Inherit::Reset, 5, 5),
    ] {
        for old in quotas(10) {
            for new in quotas(burst) {
                let clock = ManualClock::new();
                let bucket = TokenBucket::new(old).on(&clock);
                bucket.try_acquire(10 - before).unwrap();
                bucket.set_quota(new, rule);
                assert_eq!(
                    (bucket.available(), bucket.quota()),
                    (after, new),
                    "{before}, {rule:?}, {old} to {new}"
                );
            }
        }
    }
}

/// Keeps out resilience4j#2489.
#[test]
fn changes_at_every_phase_do_not_stop_the_intervals() {
    let clock = ManualClock::new();
    let quota = Quota::per_second(3).burst(100).by_interval();
    let bucket = TokenBucket::new(quota).on(&clock);
    bucket.try_acquire(100).unwrap();
    for step in 1..=100u64 {
        clock.advance(SECOND / 10);
        bucket.set_quota(quota.with_burst(100 + step % 2).unwrap(), Inherit::AsIs);
        assert_eq!(bucket.available(), step / 10 * 3);
    }
    // Another length goes on from the end of the latest interval.
    clock.advance(SECOND / 2);
    bucket.set_quota(
        Quota::new(3, SECOND * 2).unwrap().burst(100).by_interval(),
        Inherit::AsIs,
    );
    clock.advance(SECOND * 3 / 2 - NANO);
    assert_eq!(bucket.available(), 30);
    clock.advance(NANO);
    assert_eq!(bucket.available(), 33);
}

proptest! {
    #![proptest_config(crate::cases(3_000))]

    /// Given any of the verbs, continuous or by interval, then all of them say what whole numbers say.
    /// Keeps out governor#11.
    #[test]
    fn it_is_the_replay(
        ops in crate::ops(1..80, Op::decode), count in 1u64..60, nanos in 1u64..90, burst in 1u64..12, by in any::<bool>(),
    ) {
        program::run(count, nanos, burst, by, ops);
    }
}
