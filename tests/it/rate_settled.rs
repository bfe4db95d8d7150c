//! Settlements beside cancels and changes: what was charged too much comes back once, and what was charged too little is never
//! forgotten. And windows whose segments are no whole number of ticks.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::time::Phase;
use tollgate::{
    Ask, Cost, Demand, Inherit, LeakyBucket, Limiter, ManualClock, Quota, Settlement, SlidingLog, SlidingWindow, Warmup,
};

const SECOND: Duration = Duration::from_secs(1);
const TOKENS: Cost = Cost::new("tokens");

/// Reserves `n` of `limiter` at this instant.
fn reserve<L: Limiter>(limiter: &L, clock: &ManualClock, n: u64) -> Option<L::Ticket> {
    let (ask, phase) = (Ask::many(n), Phase::at(clock, clock.now()));
    limiter.try_reserve(Demand::new(&ask, phase.pass())).ok()
}

fn settle<L: Limiter>(limiter: &L, clock: &ManualClock, ticket: &mut L::Ticket, actual: u64) {
    let phase = Phase::at(clock, clock.now());
    limiter.settle(ticket, Settlement::new(TOKENS, actual, phase.pass()).per(TOKENS));
}

fn cancel<L: Limiter>(limiter: &L, clock: &ManualClock, ticket: L::Ticket) {
    limiter.cancel(ticket, Phase::at(clock, clock.now()).pass());
}

/// Given one who reserves, and a later one whose charge is settled, when the first is given back, then all of it comes back: what
/// the later one gave back lay above.
#[test]
fn a_settlement_takes_nothing_from_those_who_reserved_before() {
    for (actual, left) in [(0, 10), (2, 8), (5, 5), (7, 3)] {
        let clock = ManualClock::new();
        let bucket = LeakyBucket::new(Quota::per_second(1)).slack(9).unwrap().on(&clock);
        let first = reserve(&bucket, &clock, 5).unwrap();
        let mut second = reserve(&bucket, &clock, 5).unwrap();
        settle(&bucket, &clock, &mut second, actual);
        cancel(&bucket, &clock, first);
        assert_eq!(bucket.available(), left, "settled to {actual}");
        // And the second gives back what it has left, and no more.
        cancel(&bucket, &clock, second);
        assert_eq!(
            bucket.available() + bucket.debt(),
            if actual > 5 { 8 } else { 10 },
            "settled to {actual}"
        );
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
                    settle(&bucket, &clock, ticket, *charged);
                },
                Op::Cancel(index) => if index < held.len() {
                    let (ticket, _) = held.remove(index);
                    cancel(&bucket, &clock, ticket);
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
        settle(warmup, &clock, ticket, 2);
    }
    // Each the area under its part of the line.
    assert_eq!(with.time_until(1), Some(Duration::from_millis(1_125 + 875)));
    cancel(&with, &clock, latest);
    let left = Some(Duration::from_millis(1_125));
    assert_eq!(
        (with.time_until(1), with.time_until_full()),
        (left, without.time_until_full())
    );
    // The earlier one itself cannot be undone any more.
    cancel(&with, &clock, first);
    assert_eq!(with.time_until(1), left);
}

/// Given an admission that a change has sealed or forgiven, when it settles upwards, then the difference counts from now on, and
/// does not come back; when it settles downwards nothing comes back.
#[test]
fn what_was_undercharged_before_a_change_is_not_forgotten() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(10, SECOND * 60).unwrap().on(&clock);
    let mut ticket = reserve(&window, &clock, 1).unwrap();
    window.set_length(SECOND * 120).unwrap();
    window.try_acquire(0).unwrap();
    settle(&window, &clock, &mut ticket, 10);
    assert_eq!(window.available(), 0, "ten of ten were used");
    let other = reserve(&window, &clock, 0);
    settle(&window, &clock, &mut ticket, 2);
    cancel(&window, &clock, ticket);
    assert_eq!((window.available(), other.is_some()), (0, true));
    clock.advance(SECOND * 122);
    assert_eq!(window.available(), 10);
    // One whose window has passed counts nowhere any more.
    let mut ticket = reserve(&window, &clock, 1).unwrap();
    clock.advance(SECOND * 122);
    settle(&window, &clock, &mut ticket, 10);
    assert_eq!(window.available(), 10);

    let log = SlidingLog::new(10, SECOND * 60).unwrap().on(&clock);
    let mut ticket = reserve(&log, &clock, 3).unwrap();
    clock.advance(SECOND);
    log.try_acquire(1).unwrap();
    log.set_quota(7, Inherit::AsIs);
    assert_eq!(log.available(), 6);
    log.set_quota(10, Inherit::Additive);
    settle(&log, &clock, &mut ticket, 10);
    assert_eq!(log.available(), 2, "seven more than was charged");
    cancel(&log, &clock, ticket);
    assert_eq!(log.available(), 2);
    let mut ticket = reserve(&log, &clock, 1).unwrap();
    log.reset();
    settle(&log, &clock, &mut ticket, 5);
    assert_eq!(log.available(), 6);
}

/// Given windows so short that a segment is a few ticks, then all room is back less than two segments late, and with less than a
/// tick to a segment there are fewer segments.
#[test]
fn room_comes_back_less_than_two_segments_late() {
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
        clock.advance(nanos(back));
        window.try_acquire(1).unwrap();
        window.set_length(nanos(7)).unwrap();
        window.set_length(nanos(length)).unwrap();
        assert_eq!(window.time_until(1), Some(nanos(back)), "{length} in {segments}");
    }
}
