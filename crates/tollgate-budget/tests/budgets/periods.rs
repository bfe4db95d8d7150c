//! Reservations, streams and settlements across the borders of periods.

use crate::{budgets, counts};
use std::time::{Duration, UNIX_EPOCH};
use tollgate::{Ask, ManualClock};
use tollgate_budget::{Limit, OUTPUT, Period, Rule};

const SECOND: Duration = Duration::from_secs(1);

fn two_periods() -> Rule {
    Rule::new("all")
        .limit(Limit::cost(OUTPUT, 100, Period::Minute))
        .limit(Limit::cost(OUTPUT, 1_000, Period::Day))
}

#[test]
fn a_settlement_after_the_end_of_the_period_changes_nothing_in_the_next_one() {
    let clock = ManualClock::new();
    let account = budgets(&clock, [two_periods()]).account(&[]);
    let ask = Ask::one().cost(OUTPUT, 60);
    // Settled down, settled up, dropped.
    for (settled, day) in [(Some(10), 10), (Some(90), 90), (None, 0)] {
        let start = counts(&account)[1].0;
        let mut meter = account.reserve(ask).unwrap();
        clock.advance(60 * SECOND);
        let other = account.reserve(ask).unwrap();
        if let Some(actual) = settled {
            meter.settle(OUTPUT, actual).unwrap();
        }
        drop(meter);
        assert_eq!(counts(&account), [(0, 60), (start + day, 60)]);
        drop(other);
        clock.advance(60 * SECOND);
    }
}

#[test]
fn a_stream_is_charged_to_the_periods_in_which_it_produces() {
    let clock = ManualClock::new();
    let account = budgets(&clock, [two_periods()]).account(&[]);
    let mut meter = account.reserve(Ask::one().cost(OUTPUT, 50)).unwrap();
    meter.extend(OUTPUT, 70).unwrap();
    assert_eq!(counts(&account), [(0, 70), (0, 70)]);
    clock.advance(60 * SECOND);
    meter.extend(OUTPUT, 90).unwrap();
    assert_eq!(counts(&account), [(0, 90), (0, 160)]);
    assert!(meter.extend(OUTPUT, 15).is_err());
    // What was charged last comes back first: in the minute only what was charged there.
    meter.settle(OUTPUT, 60).unwrap();
    assert_eq!(counts(&account), [(0, 0), (0, 60)]);
    meter.extend(OUTPUT, 40).unwrap();
    drop(meter);
    assert_eq!(counts(&account), [(40, 0), (100, 0)]);
}

#[test]
fn a_rolling_span_gets_back_what_is_settled_within_it() {
    let clock = ManualClock::new();
    let rule = Rule::new("all").limit(Limit::cost(OUTPUT, 100, Period::Rolling(160 * SECOND)));
    let account = budgets(&clock, [rule]).account(&[]);
    let mut meter = account.reserve(Ask::one().cost(OUTPUT, 50)).unwrap();
    clock.advance(95 * SECOND);
    meter.extend(OUTPUT, 80).unwrap();
    clock.advance(30 * SECOND);
    meter.extend(OUTPUT, 5).unwrap();
    assert_eq!(counts(&account), [(30, 55)]);
    // Five of the last segment, and the reservation.
    meter.settle(OUTPUT, 30).unwrap();
    assert_eq!(counts(&account), [(30, 30)]);
    let refused = account.reserve(Ask::one().cost(OUTPUT, 60)).unwrap_err();
    assert_eq!(refused.retry_after(), Some(45 * SECOND));
    clock.advance(45 * SECOND);
    assert!(account.reserve(Ask::one().cost(OUTPUT, 60)).is_ok());
    drop(meter);
}

#[test]
fn a_month_of_a_zone_ends_at_its_midnight() {
    let clock = ManualClock::new();
    // 2026-10-31 22:30 UTC, half an hour before November in Berlin.
    clock.set_wall(UNIX_EPOCH + Duration::from_secs(1_793_485_800));
    let rule = Rule::new("all").limit(Limit::cost(OUTPUT, 10, Period::Month).time_zone("Europe/Berlin"));
    let account = budgets(&clock, [rule]).account(&[]);
    let ask = Ask::one().cost(OUTPUT, 10);
    let _meter = account.reserve(ask).unwrap();
    let refused = account.reserve(Ask::one().cost(OUTPUT, 1)).unwrap_err();
    assert_eq!(refused.retry_after(), Some(1_800 * SECOND));
    clock.advance(1_800 * SECOND);
    let _meter = account.reserve(ask).unwrap();
    let ends = account
        .usage()
        .next()
        .unwrap()
        .limits()
        .next()
        .unwrap()
        .period_ends_in();
    assert_eq!(ends, Some(30 * 86_400 * SECOND));
}

#[test]
fn a_refusal_prints_a_retry_time_above_a_minute_in_whole_seconds_rounded_up() {
    let text = |period, advance| {
        let clock = ManualClock::new();
        let rule = Rule::new("all").limit(Limit::cost(OUTPUT, 100, period));
        let account = budgets(&clock, [rule]).account(&[]);
        clock.advance(advance);
        let ask = Ask::one().cost(OUTPUT, 100);
        let _meter = account.reserve(ask).unwrap();
        account.reserve(ask).unwrap_err().to_string()
    };
    let millis = Duration::from_millis;
    for (period, advance, end) in [
        (Period::Minute, millis(1_500), "; retry after 58.5s"),
        (Period::Minute, millis(0), "; retry after 60s"),
        (Period::Day, millis(86_339_999), "; retry after 61s"),
        (Period::Day, millis(86_340_000), "; retry after 60s"),
        (Period::Day, millis(1_500), "; retry after 86399s"),
        (Period::Day, millis(1_000), "; retry after 86399s"),
    ] {
        let text = text(period, advance);
        assert!(text.ends_with(end), "{text}");
    }
}
