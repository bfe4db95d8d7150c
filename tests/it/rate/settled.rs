//! Settlements beside cancels and changes: an overcharge comes back once, and an undercharge is never
//! forgotten. And windows whose segments are no whole number of ticks.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::keyed::FairBudget;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Cost, Demand, FixedWindow, Inherit, LeakyBucket, Limiter, ManualClock, Quota, Settlement, SlidingLog,
    SlidingWindow, TokenBucket, Warmup,
};

const SECOND: Duration = Duration::from_secs(1);
const TOKENS: Cost = Cost::new("tokens");

/// Reserves `n` of `limiter` at this instant.
fn reserve<L: Limiter>(limiter: &L, clock: &ManualClock, n: u64) -> Option<L::Ticket> {
    let (ask, reading) = (Ask::many(n), ClockReading::at(clock, clock.now()));
    limiter.try_reserve(&Demand::new(&ask, &reading)).ok()
}

fn settle<L: Limiter>(limiter: &L, ticket: &mut L::Ticket, actual: u64) {
    limiter.settle(ticket, &Settlement::new(TOKENS, actual).per(TOKENS));
}

/// Given three reservations of which the first and the last are settled upwards, when the first is given back and later the last, then
/// no more comes back than the bucket would hold without both: of what the first gave back, a part lay below the last.
#[test]
fn a_refund_after_a_settlement_upwards_counts_below_the_others() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(2).burst(10))
        .slack(9)
        .unwrap()
        .on(&clock);
    let _others = [3, 2].map(|n| reserve(&bucket, &clock, n).unwrap());
    let [mut first, mut last] = [2, 1].map(|n| reserve(&bucket, &clock, n).unwrap());
    settle(&bucket, &mut last, 4);
    settle(&bucket, &mut first, 3);
    clock.advance(SECOND * 3 / 2);
    bucket.cancel(first);
    clock.advance(SECOND * 3 / 2);
    let _next = reserve(&bucket, &clock, 4).unwrap();
    bucket.cancel(last);
    let more = [3, 4].map(|n| reserve(&bucket, &clock, n).is_some());
    assert_eq!(more, [true, false], "ten at one instant");
}

/// Given a reservation, and a later one whose charge is settled, when the first is cancelled, then all of it is refunded: the
/// refund of the later one lay above.
#[test]
fn a_settlement_takes_nothing_from_earlier_reservations() {
    for (actual, left) in [(0, 10), (2, 8), (5, 5), (7, 3)] {
        let clock = ManualClock::new();
        let bucket = LeakyBucket::new(Quota::per_second(1)).slack(9).unwrap().on(&clock);
        let first = reserve(&bucket, &clock, 5).unwrap();
        let mut second = reserve(&bucket, &clock, 5).unwrap();
        settle(&bucket, &mut second, actual);
        bucket.cancel(first);
        assert_eq!(bucket.available(), left, "settled to {actual}");
        // And the second refunds its remainder.
        bucket.cancel(second);
        assert_eq!((bucket.available(), bucket.debt()), (10, 0), "settled to {actual}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Reserve(u64),
    Settle(usize, u64),
    Cancel(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u64..6).prop_map(Op::Reserve),
        2 => (0usize..6, 0u64..6).prop_map(|(index, less)| Op::Settle(index, less)),
        3 => (0usize..6).prop_map(Op::Cancel),
    ]
}

proptest! {
    #![proptest_config(crate::cases(2_000))]

    /// Given reservations, settlements downwards and cancels at one instant, in any order, then a leaky bucket holds just what is
    /// left of all.
    #[test]
    fn at_one_instant_all_that_is_given_back_is_back(ops in prop::collection::vec(op(), 1..60), slack in 0u64..40) {
        let clock = ManualClock::new();
        let bucket = LeakyBucket::new(Quota::per_second(1).burst(100)).slack(slack).unwrap().on(&clock);
        let mut held = Vec::new();
        for op in ops {
            match op {
                Op::Reserve(n) => if let Some(ticket) = reserve(&bucket, &clock, n) {
                    held.push((ticket, n));
                },
                Op::Settle(index, less) => if let Some((ticket, charged)) = held.get_mut(index) {
                    *charged = charged.saturating_sub(less);
                    settle(&bucket, ticket, *charged);
                },
                Op::Cancel(index) => if index < held.len() {
                    let (ticket, _) = held.remove(index);
                    bucket.cancel(ticket);
                },
            }
            let left: u64 = held.iter().map(|(_, charged)| charged).sum();
            prop_assert_eq!(bucket.available(), slack + 1 - left);
        }
    }
}

/// Given time without a rate, when a rate is set, then none of it was idle: as warm as before, which is all there is.
#[test]
fn time_without_a_rate_cools_nothing_down() {
    for without in [Quota::unlimited(), Quota::zero()] {
        let clock = ManualClock::new();
        let warmup = Warmup::new(without, SECOND * 4).unwrap().on(&clock);
        clock.advance(SECOND * 10);
        let _ = warmup.try_acquire(100);
        warmup.set_quota(Quota::per_second(2), Inherit::AsIs).unwrap();
        warmup.try_acquire(1).unwrap();
        assert_eq!(warmup.time_until(1), Some(SECOND / 2), "{without}");
    }
}

/// Given an earlier admission that settles upwards, when the latest is given back, then what is left is the earlier one and what it
/// was short of.
#[test]
fn the_latest_is_undone_also_when_an_earlier_one_has_settled() {
    let clock = ManualClock::new();
    let warmup = || {
        Warmup::new(Quota::per_second(2).burst(9), SECOND * 4)
            .unwrap()
            .on(&clock)
    };
    let (with, without) = (warmup(), warmup());
    let [mut first, mut other] = [&with, &without].map(|warmup| reserve(warmup, &clock, 1).unwrap());
    clock.advance(with.time_until(1).unwrap());
    let latest = reserve(&with, &clock, 1).unwrap();
    for (warmup, ticket) in [(&with, &mut first), (&without, &mut other)] {
        settle(warmup, ticket, 2);
    }
    // Each the area under its part of the curve.
    assert_eq!(with.time_until(1), Some(Duration::from_millis(1_125 + 875)));
    with.cancel(latest);
    let left = Some(Duration::from_millis(1_125));
    assert_eq!(
        (with.time_until(1), with.time_until_full()),
        (left, without.time_until_full())
    );
    // The earlier one itself cannot be undone any more.
    with.cancel(first);
    assert_eq!(with.time_until(1), left);
}

/// Given an admission that a change has sealed, when it settles upwards, then the difference counts from now on, and
/// does not come back; when it settles downwards nothing comes back.
#[test]
fn an_undercharge_from_before_a_change_is_kept() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(10, SECOND * 60).unwrap().on(&clock);
    let mut ticket = reserve(&window, &clock, 1).unwrap();
    window.set_limit(10, Inherit::Proportional);
    window.try_acquire(0).unwrap();
    settle(&window, &mut ticket, 10);
    assert_eq!(window.available(), 0, "ten of ten were used");
    let other = reserve(&window, &clock, 0);
    settle(&window, &mut ticket, 2);
    window.cancel(ticket);
    assert_eq!((window.available(), other.is_some()), (0, true));
    clock.advance(SECOND * 122);
    assert_eq!(window.available(), 10);
    // One whose window has passed counts nowhere any more.
    let mut ticket = reserve(&window, &clock, 1).unwrap();
    clock.advance(SECOND * 122);
    settle(&window, &mut ticket, 10);
    assert_eq!(window.available(), 10);

    let log = SlidingLog::new(10, SECOND * 60).unwrap().on(&clock);
    let mut ticket = reserve(&log, &clock, 3).unwrap();
    clock.advance(SECOND);
    log.try_acquire(1).unwrap();
    log.set_limit(7, Inherit::AsIs);
    assert_eq!(log.available(), 3);
    log.set_limit(13, Inherit::AsIs);
    settle(&log, &mut ticket, 10);
    assert_eq!(log.available(), 2, "seven more than was charged");
    log.cancel(ticket);
    assert_eq!(log.available(), 12);
    let mut ticket = reserve(&log, &clock, 1).unwrap();
    log.reset();
    settle(&log, &mut ticket, 5);
    assert_eq!(log.available(), 9);
}

/// Given windows so short that a segment is a few ticks, then all room is back less than two segments late, and with less than a
/// tick to a segment there are fewer segments.
#[test]
fn capacity_returns_less_than_two_segments_late() {
    for (length, segments, back) in [
        (10, 64, 11),
        (1, 64, 2),
        (64, 64, 65),
        (65, 64, 68),
        (5_000, 4_096, 5_002),
        (100, 1, 200),
        (100, 3, 136),
    ] {
        let clock = ManualClock::new();
        let nanos = Duration::from_nanos;
        let window = SlidingWindow::new(1, nanos(length))
            .unwrap()
            .segments(segments)
            .unwrap()
            .on(&clock);
        window.try_acquire(1).unwrap();
        assert_eq!(window.time_until(1), Some(nanos(back)), "{length} in {segments}");
    }
}

/// Given permits for ten, one after the other, each of a full bucket, when all are settled to nothing and whatever there is is
/// taken after each, then that is a burst, and not one for each permit.
#[test]
fn a_late_settlement_gives_back_no_more_than_a_late_cancel() {
    fn taken_at_once<L: Limiter>(limiter: &L, clock: &ManualClock) -> u64 {
        let mut held: Vec<_> = (0..5)
            .map(|_| {
                let ticket = reserve(limiter, clock, 10).unwrap();
                clock.advance(SECOND * 10);
                ticket
            })
            .collect();
        let take_all = || (0..100).filter(|_| reserve(limiter, clock, 1).is_some()).count() as u64;
        let mut taken = take_all();
        for ticket in &mut held {
            settle(limiter, ticket, 0);
            taken += take_all();
        }
        taken
    }
    let clock = ManualClock::new();
    let quota = Quota::per_second(1).burst(10);
    let leaky = LeakyBucket::new(quota).slack(9).unwrap().on(&clock);
    assert_eq!(taken_at_once(&TokenBucket::new(quota).on(&clock), &clock), 10);
    assert_eq!(taken_at_once(&leaky, &clock), 10);
    assert_eq!(taken_at_once(&FairBudget::new(quota).on(&clock).share(), &clock), 10);
}

/// Given a debt of others, when one settles far up and down again, then the debt is what it was.
#[test]
fn settling_up_and_down_leaves_the_debts_of_others() {
    /// The available tokens and the debt, before and after.
    #[track_caller]
    fn stays<L: Limiter>(limiter: &L, clock: &ManualClock, state: impl Fn(&L) -> (u64, u64)) {
        let mut ticket = reserve(limiter, clock, 1).unwrap();
        let mut other = reserve(limiter, clock, 1).unwrap();
        settle(limiter, &mut other, 25);
        let before = state(limiter);
        for much in [1 << 20, 1 << 50, u64::MAX] {
            settle(limiter, &mut ticket, much);
            settle(limiter, &mut ticket, 1);
            assert_eq!(state(limiter), before, "up to {much} and down again");
        }
    }
    let clock = ManualClock::new();
    let quota = Quota::per_second(10);
    stays(&TokenBucket::new(quota).on(&clock), &clock, |it| {
        (it.available(), it.debt())
    });
    let leaky = LeakyBucket::new(quota).slack(9).unwrap().on(&clock);
    stays(&leaky, &clock, |it| (it.available(), it.debt()));
    stays(&SlidingWindow::new(10, SECOND).unwrap().on(&clock), &clock, |it| {
        (it.available(), it.debt())
    });
    stays(&SlidingLog::new(10, SECOND).unwrap().on(&clock), &clock, |it| {
        (it.available(), it.debt())
    });
    let share = FairBudget::new(quota).on(&clock).share();
    stays(&share, &clock, |it| {
        let wanted = (1..=10).find(|n| reserve(it, &clock, *n).is_some());
        (it.available(), wanted.unwrap_or(0))
    });
    // A charge behind a debt of others is not refunded.
    let window = FixedWindow::new(10, SECOND).unwrap().on(&clock);
    let mut ticket = reserve(&window, &clock, 1).unwrap();
    window.force_acquire(24);
    settle(&window, &mut ticket, u64::MAX);
    settle(&window, &mut ticket, 1);
    assert!(window.debt() >= 15);
}

/// Rows of a quota, and the debt at which it is cut.
#[test]
fn a_debt_is_cut_to_two_bursts_or_half_an_hours_refill() {
    for (quota, cut) in [
        (Quota::per_hour(10), 20),
        (Quota::per_minute(5).by_interval(), 150),
        (Quota::per_minute(5), 150),
        (Quota::per_second(10).burst(100_000), 200_000),
        (Quota::zero().burst(7), 1 << 30),
        (Quota::zero(), 1 << 30),
        (Quota::unlimited(), 0),
    ] {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(quota).on(&clock);
        for _ in 0..2 {
            bucket.force_acquire(u64::MAX);
            assert_eq!(bucket.debt(), cut, "{quota}");
        }
        bucket.reset();
        if let Some(mut ticket) = reserve(&bucket, &clock, 1) {
            settle(&bucket, &mut ticket, 1 << 40);
            assert_eq!(bucket.debt(), cut, "{quota}, settled");
        }
    }
}

/// Given a limiter whose limit is lowered and raised again by one rule but a reset, then it has no more than before. Nor has an empty
/// bucket by any two rules.
#[test]
fn changes_of_the_limit_add_up_to_nothing() {
    use Inherit::{AsIs, Proportional};
    for (down, up) in [
        (AsIs, AsIs),
        (Proportional, Proportional),
        (AsIs, Proportional),
        (Proportional, AsIs),
    ] {
        let clock = ManualClock::new();
        let quota = |burst| Quota::per_hour(1).burst(burst);
        let bucket = TokenBucket::new(quota(100)).on(&clock);
        let leaky = LeakyBucket::new(quota(100)).slack(99).unwrap().on(&clock);
        let fixed = FixedWindow::new(100, SECOND).unwrap().on(&clock);
        let window = SlidingWindow::new(100, SECOND).unwrap().on(&clock);
        let log = SlidingLog::new(100, SECOND).unwrap().on(&clock);
        let change = |limit, rule| {
            bucket.set_quota(quota(limit), rule);
            leaky.set_quota(quota(limit), limit - 1, rule).unwrap();
            fixed.set_limit(limit, rule);
            window.set_limit(limit, rule);
            log.set_limit(limit, rule);
        };
        let available = || {
            [
                bucket.available(),
                leaky.available(),
                fixed.available(),
                window.available(),
                log.available(),
            ]
        };
        for taken in [60, 100] {
            bucket.acquire_up_to(taken);
            leaky.acquire_up_to(taken);
            fixed.acquire_up_to(taken);
            window.acquire_up_to(taken);
            log.acquire_up_to(taken);
            if down != up && taken == 60 {
                // One rule keeps the amount, and the other the share.
                continue;
            }
            for _ in 0..3 {
                change(50, down);
                change(100, up);
            }
            let most = if taken == 60 { 40 } else { 0 };
            let there = available();
            let limiters = if down == up { &there[..] } else { &there[..2] };
            assert!(
                limiters.iter().all(|there| *there <= most),
                "{down:?}, {up:?}: {there:?}"
            );
        }
    }
}

/// Given a rate whose interval is no whole number of nanoseconds, when each waits until the next may start, then none of the
/// fractions is lost.
#[test]
fn steady_demand_is_served_at_the_very_rate() {
    const TIMES: u32 = 30_000;
    let exact = Duration::from_millis(10);
    for quota in [Quota::per_second(3_000_000).burst(1), Quota::per_second(3_000_000)] {
        let clock = ManualClock::new();
        let took = |wait: &dyn Fn() -> Option<Duration>| {
            let start = clock.now();
            let mut served = 0;
            while served <= TIMES {
                match wait() {
                    None => served += 1,
                    Some(wait) => clock.advance(wait),
                }
            }
            clock.between(start, clock.now())
        };
        let off = |took: Duration| took.abs_diff(exact) <= Duration::from_nanos(2);
        let leaky = LeakyBucket::new(quota).on(&clock);
        let time = took(&|| leaky.try_acquire(1).err().and_then(|refused| refused.retry_after()));
        assert!(off(time), "leaky: {time:?}");
        let warmup = Warmup::new(quota, SECOND / 1_000)
            .unwrap()
            .cold_factor(1)
            .unwrap()
            .on(&clock);
        let time = took(&|| warmup.try_acquire(1).err().and_then(|refused| refused.retry_after()));
        assert!(off(time), "warm-up: {time:?}");
        let share = FairBudget::new(quota.burst(1)).on(&clock).share();
        let time = took(&|| share.try_acquire(1).err().and_then(|refused| refused.retry_after()));
        assert!(off(time), "share: {time:?}");
        let bucket = TokenBucket::new(quota.burst(1)).on(&clock);
        let time = took(&|| bucket.try_acquire(1).err().and_then(|refused| refused.retry_after()));
        assert!(off(time), "bucket: {time:?}");
    }
}
