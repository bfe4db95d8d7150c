//! Requests through budgets of three levels, beside the counters that gateways keep by hand: check, call, count.
//!
//! All are admitted. Users are drawn in an order that neither side's memory follows.

use crate::harness::{Batch, Rows};
use dashmap::DashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate::Ask;
use tollgate_budget::{Account, Budgets, INPUT, Limit, MONEY, OUTPUT, Period, Rule};

const USERS: u64 = 10_000;
/// No limit is reached.
const PLENTY: u64 = u64::MAX / 2;
const LEVELS: [(&str, u64); 3] = [("organisation", 100), ("team", 1_000), ("user", USERS)];

/// The values of a user's dimensions.
struct User([String; 3]);

impl User {
    fn of(user: u64) -> Self {
        Self(LEVELS.map(|(name, count)| format!("{name}-{}", user % count)))
    }

    fn descriptor(&self) -> [(&str, &str); 3] {
        let [organisation, team, user] = &self.0;
        [("organisation", organisation), ("team", team), ("user", user)]
    }
}

/// A rule for each level, with one of these limits each for what it counts.
fn budgets(limits: &[fn(u64) -> Limit]) -> Budgets {
    let rule = |(name, _)| {
        let limits = limits.iter().map(|limit| limit(PLENTY));
        limits.fold(Rule::new(name).per([name]), Rule::limit)
    };
    let builder = LEVELS
        .map(rule)
        .into_iter()
        .fold(Budgets::builder(), |builder, rule| builder.rule(rule));
    builder.build().expect("rules that can be")
}

fn each_user<'a>(mut operation: impl FnMut(usize) + 'a) -> Batch<'a> {
    let mut user = 1u64;
    Box::new(move |times| {
        for _ in 0..times {
            user = user
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            operation(black_box((((user >> 32) * USERS) >> 32) as usize));
        }
    })
}

fn output(units: u64) -> Limit {
    Limit::cost(OUTPUT, units, Period::Minute)
}

pub(crate) fn rows(rows: &Rows) {
    let users: Vec<User> = (0..USERS).map(User::of).collect();
    let by_hand = LEVELS.map(|_| DashMap::<String, AtomicU64>::new());
    for user in &users {
        for (counts, value) in by_hand.iter().zip(&user.0) {
            counts.entry(value.clone()).or_default();
        }
    }
    let count = |user: usize| {
        let values = users[user].0.iter();
        let counts: Vec<_> = by_hand
            .iter()
            .zip(values)
            .filter_map(|(counts, value)| counts.get(value))
            .collect();
        // Relaxed: they are read and written apart in any case.
        if counts.iter().all(|count| count.load(Ordering::Relaxed) < PLENTY) {
            for count in counts {
                count.fetch_add(10, Ordering::Relaxed);
            }
        }
    };
    let five: [fn(u64) -> Limit; 5] = [
        output,
        |units| Limit::cost(INPUT, units, Period::Minute),
        |units| Limit::cost(MONEY, units, Period::Month),
        |units| Limit::requests(units, Period::Day),
        Limit::in_flight,
    ];
    let ask = Ask::one().cost(OUTPUT, 10).cost(INPUT, 10).cost(MONEY, 10);
    for (name, limits) in [("one dimension", &five[..1]), ("five dimensions", &five[..])] {
        let budgets = budgets(limits);
        let accounts: Vec<Account> = users.iter().map(|user| budgets.account(&user.descriptor())).collect();
        let admit = |account: &Account| {
            // The admission alone: its end is left out.
            std::mem::forget(black_box(account.reserve(ask)));
        };
        let sides = || -> Vec<(&str, Batch<'_>)> { vec![("dashmap by hand", each_user(count))] };
        let mut all = vec![("tollgate", each_user(|user| admit(&accounts[user])))];
        all.extend(sides());
        rows.wall(&format!("budget/admit, {name}"), all);
        let mut all = vec![(
            "tollgate",
            each_user(|user| admit(&budgets.account(&users[user].descriptor()))),
        )];
        all.extend(sides());
        rows.wall(&format!("budget/find and admit, {name}"), all);
        let call = |user: usize| {
            let mut meter = budgets
                .account(&users[user].descriptor())
                .reserve(ask)
                .expect("there is plenty");
            meter.extend(OUTPUT, 10).expect("it was reserved");
        };
        let mut all = vec![("tollgate", each_user(call))];
        all.extend(sides());
        rows.wall(&format!("budget/whole call, {name}"), all);
    }
}
