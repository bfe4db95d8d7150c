//! A flood of keys, at the bound of levels.

use crate::{budgets, counts};
use std::time::Duration;
use tollgate::{Ask, ManualClock};
use tollgate_budget::{Budgets, INPUT, Limit, MONEY, OUTPUT, Period, Rule};

fn flooded(clock: &ManualClock) -> Budgets {
    let rule = Rule::new("key")
        .per(["key"])
        .limit(Limit::cost(OUTPUT, 100, Period::Minute));
    Budgets::builder().rule(rule).on(clock).max_levels(50).build().unwrap()
}

/// What a key gets at once, asking for one unit after the other.
fn admitted(budgets: &Budgets, key: &str) -> u64 {
    let account = budgets.account(&[("key", key)]);
    let spend = |_: &u64| {
        account
            .reserve(Ask::one().cost(OUTPUT, 1))
            .map(|mut meter| meter.extend(OUTPUT, 1))
            .is_ok()
    };
    (0..1_000).take_while(spend).count() as u64
}

#[test]
fn a_flood_of_keys_shares_one_budget_and_resets_none() {
    let clock = ManualClock::new();
    let budgets = flooded(&clock);
    assert_eq!(admitted(&budgets, "first"), 100);
    let names = |range: std::ops::Range<usize>| range.map(|key| format!("key {key}"));
    // 49 keys get levels of their own, and a unit each is used.
    for key in names(0..49) {
        drop(
            budgets
                .account(&[("key", &key)])
                .reserve(Ask::one().cost(OUTPUT, 1))
                .map(|mut meter| meter.extend(OUTPUT, 1)),
        );
    }
    assert_eq!(budgets.len(), 50);
    // All others share the overflow level.
    let flood: u64 = names(1_000..3_000).map(|key| admitted(&budgets, &key)).sum();
    assert_eq!((flood, budgets.len()), (100, 50));
    assert_eq!(admitted(&budgets, "first"), 0, "its level was not made anew");
    assert_eq!(admitted(&budgets, "key 7"), 99);
    let overflow = budgets.usage().find(|level| level.is_overflow()).unwrap();
    assert_eq!(overflow.to_string(), "key of other keys: 100 of 100 output per minute");
    // In the next period the levels of old keys make room.
    clock.advance(Duration::from_secs(60));
    let flood: Vec<u64> = names(5_000..5_500).map(|key| admitted(&budgets, &key)).collect();
    // A new key looks at some of them only, by its hash. Ten times as many keys find most.
    assert!(flood.iter().filter(|units| **units == 100).count() >= 35, "{flood:?}");
    assert_eq!(budgets.len(), 50);
}

/// Given a key that counted on the overflow level, when it gets a level of its own in the same period, then that is no second budget.
#[test]
fn a_key_that_gets_a_level_later_begins_with_what_the_overflow_level_used() {
    let clock = ManualClock::new();
    let budgets = flooded(&clock);
    let held: Vec<_> = (0..50)
        .map(|key| budgets.account(&[("key", &format!("{key}"))]))
        .collect();
    assert_eq!(admitted(&budgets, "late"), 100);
    assert_eq!(budgets.len(), 50);
    drop(held);
    assert_eq!(admitted(&budgets, "late"), 0);
    assert!(
        !budgets
            .account(&[("key", "late")])
            .usage()
            .next()
            .unwrap()
            .is_overflow()
    );
    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(&budgets, "late"), 100);
}

/// Given an account of the overflow level that is kept, when its key gets a level of its own, then both together admit two limits at most.
#[test]
fn a_kept_overflow_account_and_a_level_of_its_own_admit_two_limits_at_most() {
    let clock = ManualClock::new();
    let budgets = flooded(&clock);
    let held: Vec<_> = (0..50)
        .map(|key| budgets.account(&[("key", &format!("{key}"))]))
        .collect();
    let kept = budgets.account(&[("key", "late")]);
    let spend = |units| {
        let meter = kept.reserve(Ask::one().cost(OUTPUT, units));
        meter.map(|mut meter| meter.extend(OUTPUT, units)).is_ok()
    };
    assert!(spend(40));
    drop(held);
    assert_eq!(
        admitted(&budgets, "late"),
        60,
        "its level begins with what the overflow level has used"
    );
    assert!(spend(60) && !spend(1));
    assert_eq!(admitted(&budgets, "late"), 0);
    assert_eq!(counts(&kept), [(100, 0)]);
    // In the next period as well: a limit of each of the two.
    clock.advance(Duration::from_secs(60));
    assert!(spend(100) && !spend(1));
    assert_eq!(admitted(&budgets, "late"), 100);
}

#[test]
fn a_level_with_a_held_account_or_a_running_request_stays() {
    let clock = ManualClock::new();
    let budgets = flooded(&clock);
    let account = budgets.account(&[("key", "held")]);
    let meter = budgets
        .account(&[("key", "runs")])
        .reserve(Ask::one().cost(OUTPUT, 60))
        .unwrap();
    for key in 0..2_000 {
        budgets.account(&[("key", &format!("{key}"))]);
    }
    assert_eq!(budgets.len(), 50);
    drop(
        account
            .reserve(Ask::one().cost(OUTPUT, 40))
            .map(|mut meter| meter.extend(OUTPUT, 40)),
    );
    assert_eq!(counts(&budgets.account(&[("key", "held")])), [(40, 0)]);
    assert_eq!(counts(&budgets.account(&[("key", "runs")])), [(0, 60)]);
    drop(meter);
}

/// A level for each of three dimensions, with five limits each.
#[test]
fn a_known_key_costs_no_allocation() {
    let rule = |name: &str| {
        let cost = |cost| Limit::cost(cost, 1_000, Period::Minute);
        let rule = Rule::new(name)
            .per([name])
            .limit(cost(INPUT))
            .limit(cost(OUTPUT))
            .limit(cost(MONEY));
        rule.limit(Limit::requests(1_000, Period::Day))
            .limit(Limit::in_flight(8))
    };
    let budgets = budgets(&ManualClock::new(), ["organisation", "team", "user"].map(rule));
    let ask = Ask::one().cost(INPUT, 10).cost(OUTPUT, 10).cost(MONEY, 10);
    let request = || {
        let descriptor = [("organisation", "acme"), ("team", "search"), ("user", "ann")];
        let mut meter = budgets.account(&descriptor).reserve(ask).unwrap();
        meter.extend(OUTPUT, 5).unwrap();
        meter.settle(OUTPUT, 0).unwrap();
    };
    request();
    let info = allocation_counter::measure(request);
    assert_eq!(info.count_total, 0);
}

/// As the front page says, and the docs of `Budgets`.
#[test]
fn a_key_takes_the_stated_bytes() {
    const KEYS: u64 = 10_000;
    for (limits, most) in [(1, 400), (3, 600)] {
        let mut rule = Rule::new("key").per(["key"]);
        for limit in 0..limits {
            rule = rule.limit(Limit::cost(OUTPUT, 100 + limit, Period::Minute));
        }
        let budgets = Budgets::builder().rule(rule).on(&ManualClock::new()).build().unwrap();
        let info = allocation_counter::measure(|| {
            for key in 0..KEYS {
                budgets.account(&[("key", &format!("key {key}"))]);
            }
        });
        let bytes = info.bytes_current as u64 / KEYS;
        println!("{bytes} bytes a key with {limits} limits");
        assert!(bytes <= most, "{bytes} bytes a key with {limits} limits");
    }
}
