//! Corners of cancels, settlements and changed limits, in which one rate's bookkeeping could be off by a single step without
//! anything else showing it.

use super::{settle, take};
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Demand, FixedWindow, Inherit, LeakyBucket, Limiter, LimiterExt, ManualClock, Policy, Quota, SlidingLog,
    SlidingWindow, TokenBucket, Wait, Warmup,
};

const SECOND: Duration = Duration::from_secs(1);
const TENTH: Duration = Duration::from_millis(100);

fn window(clock: &ManualClock, limit: u64) -> FixedWindow {
    FixedWindow::new(limit, SECOND).unwrap().on(clock)
}

/// A charge that a change has cancelled is not refunded once more; one that it has kept is.
#[test]
fn a_fixed_window_refunds_across_a_change_only_current_charges() {
    let clock = ManualClock::new();
    let reset = window(&clock, 10);
    let old = take(&reset, &clock, 4);
    reset.set_limit(10, Inherit::Reset);
    reset.try_acquire(3).unwrap();
    reset.cancel(old);
    assert_eq!(reset.available(), 7, "the change had cancelled it");

    let same = window(&clock, 10);
    let old = take(&same, &clock, 4);
    same.set_limit(10, Inherit::AsIs);
    same.cancel(old);
    assert_eq!(same.available(), 10, "the change had kept it");

    let twice = window(&clock, 10);
    let old = take(&twice, &clock, 6);
    for _ in 0..2 {
        twice.set_limit(10, Inherit::Reset);
        twice.try_acquire(2).unwrap();
    }
    twice.cancel(old);
    assert_eq!(twice.available(), 8);
}

#[test]
fn a_settlement_in_a_fixed_window_corrects_its_own_charge_only() {
    let clock = ManualClock::new();
    let up_and_down = window(&clock, 10);
    let mut ticket = take(&up_and_down, &clock, 2);
    settle(&up_and_down, &mut ticket, 5);
    assert_eq!(up_and_down.available(), 5);
    settle(&up_and_down, &mut ticket, 1);
    assert_eq!(up_and_down.available(), 9);
    up_and_down.cancel(ticket);
    assert_eq!(up_and_down.available(), 10);

    // Beyond the limit, too.
    let far = window(&clock, 10);
    let mut ticket = take(&far, &clock, 2);
    settle(&far, &mut ticket, 25);
    assert_eq!(far.debt(), 15);
    settle(&far, &mut ticket, 22);
    assert_eq!(far.debt(), 12);
    far.cancel(ticket);
    assert_eq!((far.debt(), far.available()), (0, 10));

    // Settled after a reset: nothing comes back, and more is charged.
    let anew = window(&clock, 10);
    let mut ticket = take(&anew, &clock, 4);
    anew.reset();
    anew.try_acquire(3).unwrap();
    settle(&anew, &mut ticket, 1);
    assert_eq!(anew.available(), 7);
    settle(&anew, &mut ticket, 3);
    assert_eq!(anew.available(), 5);
    anew.cancel(ticket);
    assert_eq!(anew.available(), 5, "its segment is not known any more");
}

/// Waiters at a window: each is given the window in which those before it leave room, and starts then.
#[test]
fn waiters_at_a_fixed_window_are_split_over_the_windows_to_come() {
    let clock = ManualClock::new();
    let window = window(&clock, 4);
    let policy = Policy::builder().limit(window).max_queue(100).build().unwrap();
    let started = clock.run(async {
        let _here = policy.admit(Ask::many(3)).await.unwrap();
        let start = clock.elapsed();
        let wait = async |n| {
            policy.admit(Ask::many(n)).await.unwrap().forget();
            (clock.elapsed() - start).as_secs()
        };
        futures::future::join_all([2, 1, 3, 4, 1].map(wait)).await
    });
    // 1 is left of the first window, and not split; then 2 + 1, 3, 4, and the last is behind the four.
    assert_eq!(started, [1, 1, 2, 3, 4]);
}

fn leaky(clock: &ManualClock, slack: u64) -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).slack(slack).unwrap().on(clock)
}

#[test]
fn a_reset_leaky_bucket_gives_back_nothing_of_before() {
    let clock = ManualClock::new();
    // Six in it. Reset leaves it empty: what the old one gives back later does not count twice.
    let bucket = leaky(&clock, 9);
    let old = take(&bucket, &clock, 6);
    bucket.set_quota(bucket.quota(), 9, Inherit::Reset).unwrap();
    bucket.try_acquire(5).unwrap();
    bucket.cancel(old);
    assert_eq!(bucket.available(), 5);
}

#[test]
fn a_settlement_after_a_reset_refunds_nothing() {
    let clock = ManualClock::new();
    let bucket = leaky(&clock, 9);
    let mut old = take(&bucket, &clock, 6);
    bucket.reset();
    bucket.try_acquire(5).unwrap();
    settle(&bucket, &mut old, 1);
    assert_eq!(bucket.available(), 5);
    // The first after the reset is its own again.
    let mut new = take(&bucket, &clock, 4);
    settle(&bucket, &mut new, 1);
    assert_eq!(bucket.available(), 4);
}

/// The marks of a ticket reach far: the sum of the flow takes more than one word.
#[test]
fn a_leaky_bucket_gives_back_exactly_after_more_than_a_word_has_flowed_through() {
    let clock = ManualClock::new();
    let fast = LeakyBucket::new(Quota::per_second(1_000_000_000));
    // 2^24 units are a word of grains: they drain, five times.
    const MANY: u64 = 20_000_000;
    let fast = fast.slack(MANY + 9).unwrap().on(&clock);
    for _ in 0..5 {
        fast.try_acquire(MANY).unwrap();
        clock.advance(Duration::from_nanos(MANY));
        let _ = fast.available();
        let held = take(&fast, &clock, 4);
        assert_eq!(fast.available(), MANY + 6);
        fast.try_acquire(3).unwrap();
        fast.cancel(held);
        assert_eq!(fast.available(), MANY + 7);
        clock.advance(Duration::from_nanos(10));
        assert_eq!(fast.available(), MANY + 10);
    }
}

#[test]
fn a_log_counts_all_entries_across_changes_and_seals_them_at_a_reset() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(10, SECOND).unwrap().on(&clock);
    log.try_acquire(2).unwrap();
    clock.advance(TENTH);
    let second = take(&log, &clock, 3);
    clock.advance(TENTH);
    log.try_acquire(4).unwrap();
    log.set_limit(14, Inherit::AsIs);
    assert_eq!(log.available(), 5);
    log.set_limit(14, Inherit::AsIs);
    assert_eq!(log.available(), 5, "no more and no less is refunded");
    log.cancel(second);
    assert_eq!(log.available(), 8);
    clock.advance(TENTH * 8);
    assert_eq!(log.available(), 10, "the first two have left");
    clock.advance(TENTH);
    assert_eq!(log.available(), 10);
    clock.advance(TENTH);
    assert_eq!(log.available(), 14);

    let log = SlidingLog::new(3, SECOND).unwrap().on(&clock);
    // At one instant, before and after a change: two entries, of which only the later can be given back.
    let old = take(&log, &clock, 1);
    log.set_limit(3, Inherit::Reset);
    let new = take(&log, &clock, 2);
    log.cancel(old);
    assert_eq!(log.available(), 1);
    log.cancel(new);
    assert_eq!(log.available(), 3);
}

#[test]
fn an_unlimited_rate_has_no_bottom() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(u64::MAX, SECOND).unwrap().on(&clock);
    log.force_acquire(u64::MAX);
    assert_eq!((log.available(), log.acquire_up_to(u64::MAX)), (u64::MAX, u64::MAX));
    let warmup = Warmup::new(Quota::unlimited(), SECOND).unwrap().on(&clock);
    warmup.force_acquire(u64::MAX);
    assert_eq!(
        (warmup.available(), warmup.time_until(u64::MAX)),
        (u64::MAX, Some(Duration::ZERO))
    );
    let policy = Policy::builder().limit(warmup).build().unwrap();
    clock.run(async { futures::future::join_all((0..3).map(|_| policy.admit(9))).await });
    assert_eq!(clock.elapsed(), Duration::ZERO);
}

/// A chain of undoing and settling at a warm-up: each once, and only by the latest.
#[test]
fn a_warm_up_undoes_once() {
    let clock = ManualClock::new();
    let warmup = Warmup::new(Quota::per_second(2), SECOND * 4).unwrap().on(&clock);
    let cold = warmup.interval();
    let latest = take(&warmup, &clock, 1);
    warmup.cancel(latest);
    let after = take(&warmup, &clock, 1);
    // It was undone before: later tokens stay.
    warmup.cancel(latest);
    assert_eq!(warmup.time_until(1), Some(Duration::from_millis(1_375)));
    warmup.cancel(after);
    assert_eq!((warmup.time_until(1), warmup.interval()), (Some(Duration::ZERO), cold));

    // Settled upwards as an older one, it charges the difference, and cannot undo the whole by that.
    let mut older = take(&warmup, &clock, 1);
    warmup.force_acquire(1);
    assert_eq!(warmup.time_until(1), Some(Duration::from_millis(2_500)));
    settle(&warmup, &mut older, 2);
    let charged = warmup.time_until(1);
    assert_eq!(charged, Some(Duration::from_millis(3_375)));
    settle(&warmup, &mut older, 0);
    warmup.cancel(older);
    assert_eq!(warmup.time_until(1), charged);

    // After a reset it is a stranger.
    let old = take(&warmup_of(&clock), &clock, 1);
    let fresh = warmup_of(&clock);
    let held = take(&fresh, &clock, 1);
    fresh.reset();
    fresh.try_acquire(1).unwrap();
    fresh.cancel(held);
    assert_eq!(fresh.time_until(1), Some(Duration::from_millis(1_375)));
    let _: (u64, u64) = old;
}

fn warmup_of(clock: &ManualClock) -> Warmup {
    Warmup::new(Quota::per_second(2), SECOND * 4).unwrap().on(clock)
}

#[test]
fn a_window_counts_all_segments_across_changes_and_seals_them_at_a_reset() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(10, SECOND).unwrap().on(&clock);
    window.try_acquire(3).unwrap();
    clock.advance(TENTH * 5);
    let late = take(&window, &clock, 4);
    window.set_limit(10, Inherit::Reset);
    assert_eq!(window.available(), 10);
    window.try_acquire(5).unwrap();
    window.cancel(late);
    assert_eq!(window.available(), 5, "the change had cancelled it");

    let window = SlidingWindow::new(10, SECOND).unwrap().on(&clock);
    window.try_acquire(3).unwrap();
    clock.advance(TENTH * 5);
    window.try_acquire(4).unwrap();
    window.set_limit(6, Inherit::AsIs);
    assert_eq!((window.available(), window.debt()), (0, 1));
    clock.advance(TENTH * 7);
    assert_eq!(window.available(), 2, "the first have left");
    clock.advance(TENTH * 5);
    assert_eq!(window.available(), 6);
}

#[test]
fn the_debug_form_of_a_rate_shows_its_settings() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(7)).on(&clock);
    let forms = [
        format!("{bucket:?}"),
        format!("{:?}", window(&clock, 7)),
        format!("{:?}", LeakyBucket::new(Quota::per_second(7)).on(&clock)),
        format!("{:?}", SlidingWindow::new(7, SECOND).unwrap().on(&clock)),
        format!("{:?}", SlidingLog::new(7, SECOND).unwrap().on(&clock)),
        format!("{:?}", Warmup::new(Quota::per_second(7), SECOND).unwrap().on(&clock)),
    ];
    for form in forms {
        assert!(form.contains('7'), "{form}");
    }
}

#[test]
fn errors_name_the_given_value() {
    let length = SlidingWindow::new(1, Duration::ZERO).unwrap_err().to_string();
    assert!(length.contains("0ns"), "{length}");
    let quota = Quota::new(0, SECOND).unwrap_err().to_string();
    assert!(quota.starts_with("0 per 1s"), "{quota}");
}

/// Given a reservation of four that is held while others come and go, then a change to the same quota, wherever it falls,
/// changes nothing of what its cancel gives back.
#[test]
fn a_change_to_the_same_quota_gives_back_the_same() {
    // What happens: tokens taken, tokens of an older reservation given back, time that passes.
    #[derive(Clone, Copy)]
    enum Step {
        Take(u64),
        CancelOlder,
        Pass(u64),
    }
    use Step::{CancelOlder, Pass, Take};
    // Rows of (what happens meanwhile, available before the cancel, and after it).
    let rows: &[(&[Step], u64, u64)] = &[
        (&[], 2, 6),
        (&[CancelOlder], 6, 10),
        (&[CancelOlder, Pass(2), Take(6)], 2, 4),
        (&[CancelOlder, Pass(1), Take(7)], 0, 3),
        (&[Pass(5)], 7, 10),
        (&[Pass(5), Take(7)], 0, 3),
        (&[Pass(8), Take(9)], 1, 1),
        (&[Take(2), Pass(3), CancelOlder, Take(2)], 2, 6),
    ];
    for quota in [
        Quota::per_second(10),
        Quota::new(10, SECOND * 60).unwrap(),
        Quota::per_second(10).by_interval(),
    ] {
        let token = if quota.is_by_interval() {
            SECOND / 10
        } else {
            quota.period() / 10
        };
        let quota = if quota.is_by_interval() {
            Quota::new(1, token).unwrap().with_burst(10).unwrap().by_interval()
        } else {
            quota
        };
        for (row, &(steps, before, after)) in rows.iter().enumerate() {
            for change_at in 0..=steps.len() + 1 {
                let clock = ManualClock::new();
                let bucket = TokenBucket::new(quota).on(&clock);
                let mut older = Some(take(&bucket, &clock, 4));
                let held = take(&bucket, &clock, 4);
                for (at, step) in steps.iter().enumerate() {
                    if at == change_at {
                        bucket.set_quota(quota, Inherit::AsIs);
                    }
                    match *step {
                        Take(n) => bucket.try_acquire(n).unwrap(),
                        CancelOlder => bucket.cancel(older.take().unwrap()),
                        Pass(tokens) => clock.advance(token * tokens as u32),
                    }
                }
                if change_at == steps.len() {
                    bucket.set_quota(quota, Inherit::AsIs);
                }
                let what = format!("{quota}, row {row}, changed at {change_at}");
                assert_eq!(bucket.available(), before, "{what}");
                bucket.cancel(held);
                assert_eq!(bucket.available(), after, "{what}");
            }
        }
    }
}

/// The same across a change of the rate, the burst, and how finely tokens are counted.
#[test]
fn a_reservation_across_a_change_refunds_within_both_quotas() {
    // Rows of (the new quota, rule, what passes after it, taken then, available before the cancel of four, and after it).
    let wide = Quota::per_second(10).burst(20);
    let fast = Quota::per_second(100).burst(10);
    let slow = Quota::per_minute(10).burst(10);
    for (new, rule, pass, taken, before, after) in [
        (fast, Inherit::AsIs, Duration::from_millis(20), 8, 0, 2),
        (fast, Inherit::AsIs, Duration::from_millis(10), 7, 0, 3),
        (slow, Inherit::AsIs, SECOND * 12, 8, 0, 2),
        (slow, Inherit::AsIs, Duration::ZERO, 6, 0, 4),
        // So much faster that tokens are counted in another unit.
        (
            Quota::per_second(1_000).burst(10),
            Inherit::AsIs,
            Duration::ZERO,
            6,
            0,
            0,
        ),
        (Quota::per_second(10).burst(20), Inherit::AsIs, Duration::ZERO, 6, 0, 4),
        (Quota::per_second(10).burst(5), Inherit::AsIs, Duration::ZERO, 5, 0, 0),
        (fast, Inherit::Reset, Duration::ZERO, 9, 1, 1),
    ] {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(Quota::per_second(10)).on(&clock);
        let held = take(&bucket, &clock, 4);
        bucket.set_quota(new, rule);
        clock.advance(pass);
        bucket.try_acquire(taken).unwrap();
        assert_eq!(bucket.available(), before, "{new} {rule:?}");
        bucket.cancel(held);
        assert_eq!(bucket.available(), after, "{new} {rule:?}");
    }

    // The room that there was under the old quota binds, too: three of the four have been refilled by then.
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(10)).on(&clock);
    let held = take(&bucket, &clock, 4);
    clock.advance(TENTH * 3);
    bucket.set_quota(wide, Inherit::AsIs);
    bucket.try_acquire(9).unwrap();
    bucket.cancel(held);
    assert_eq!(bucket.available(), 1);
}

/// Freshness is what a map of keys goes by: not while anything counts, and again once nothing does.
#[test]
fn a_rate_is_fresh_again_when_nothing_counts_any_more() {
    let clock = ManualClock::new();
    clock.advance(SECOND * 5);
    let limiters = [
        TokenBucket::new(Quota::per_second(4)).on(&clock).boxed(),
        window(&clock, 4).boxed(),
        leaky(&clock, 3).boxed(),
        SlidingWindow::new(4, SECOND).unwrap().on(&clock).boxed(),
        SlidingLog::new(4, SECOND).unwrap().on(&clock).boxed(),
        warmup_of(&clock).boxed(),
    ];
    for (at, limiter) in limiters.iter().enumerate() {
        let fresh = || {
            let mut is_as_new = false;
            limiter.describe(&mut |leg| is_as_new = leg.is_as_new);
            is_as_new
        };
        assert!(fresh(), "{at}: when it is made");
        let _ = take(limiter, &clock, 1);
        assert!(!fresh(), "{at}: one counts");
        clock.advance(SECOND * 9);
        assert!(fresh(), "{at}: nothing counts any more");
        let held = take(limiter, &clock, 1);
        assert!(!fresh(), "{at}: one is held");
        limiter.cancel(held);
        assert!(fresh(), "{at}: it was given back");
    }
}

/// What a smaller slack may cut off counts as refilled.
#[test]
fn a_lowered_leaky_bucket_refunds_the_remainder() {
    let clock = ManualClock::new();
    let bucket = leaky(&clock, 9);
    bucket.try_acquire(2).unwrap();
    let held = take(&bucket, &clock, 4);
    // The four that are there stay.
    bucket.set_quota(bucket.quota(), 5, Inherit::AsIs).unwrap();
    bucket.try_acquire(3).unwrap();
    assert_eq!(bucket.available(), 1);
    bucket.cancel(held);
    assert_eq!(bucket.available(), 3);
}

#[test]
fn the_largest_that_is_allowed_is() {
    let clock = ManualClock::new();
    let year = SECOND * 86_400 * 365;
    for (period, fits) in [
        (SECOND * 100_000, true),
        (year, true),
        (year + Duration::from_nanos(1), false),
    ] {
        assert_eq!(Warmup::new(Quota::per_second(2), period).is_ok(), fits, "{period:?}");
    }
    let window = || SlidingWindow::new(4, SECOND).unwrap().on(&clock);
    let most = SlidingWindow::MAX_SEGMENTS;
    assert!(window().segments(most).is_ok() && window().segments(most + 1).is_err());
}

#[test]
fn a_quota_of_more_than_the_largest_burst_has_the_largest() {
    let hour = SECOND * 3_600;
    for (count, burst) in [
        (Quota::MAX_BURST - 1, Quota::MAX_BURST - 1),
        (Quota::MAX_BURST, Quota::MAX_BURST),
        (Quota::MAX_BURST + 5, Quota::MAX_BURST),
    ] {
        assert_eq!(Quota::new(count, hour).unwrap().burst_size(), burst);
    }
}

/// Nothing is there at once, also where the rest has to be paid for first: by what it says beforehand as by what it does.
#[test]
fn nothing_is_ready_now_also_in_debt() {
    let clock = ManualClock::new();
    let quota = Quota::per_second(10).burst(3);
    let bucket = TokenBucket::new(quota).on(&clock);
    let leaky = LeakyBucket::new(quota).on(&clock);
    let warmup = Warmup::new(quota, SECOND).unwrap().on(&clock);
    bucket.force_acquire(5);
    leaky.force_acquire(5);
    warmup.force_acquire(3);
    fn says<L: Limiter>(limiter: &L, clock: &ManualClock) {
        let reading = ClockReading::at(clock, clock.now());
        for (units, at_once) in [(0, true), (1, false)] {
            let ask = Ask::many(units);
            let looked = limiter.look(&Demand::new(&ask, &reading));
            assert_eq!(looked.is_ok(), at_once);
            assert!(looked.is_ok_and(|()| true) || matches!(looked.unwrap_err().wait(), Wait::Until { .. }));
            assert_eq!(limiter.try_reserve(&Demand::new(&ask, &reading)).is_ok(), at_once);
        }
    }
    says(&bucket, &clock);
    says(&leaky, &clock);
    says(&warmup, &clock);
}

/// An undercharge from before a sliding window changed its limit counts from then on: no more than that.
#[test]
fn a_sliding_window_charges_the_difference_after_a_change() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(10, SECOND * 64).unwrap().on(&clock);
    let mut ticket = take(&window, &clock, 2);
    window.set_limit(10, Inherit::Proportional);
    settle(&window, &mut ticket, 5);
    assert_eq!(window.available(), 5);
    clock.advance(SECOND * 65);
    assert_eq!(window.available(), 10);
}
