//! An account as a limiter keeps the eight laws.

use crate::budgets;
use std::time::Duration;
use tollgate::{Ask, LimiterExt, ManualClock, Semaphore};
use tollgate_budget::{Account, Limit, OUTPUT, Period, Rule};
use tollgate_conformance::Suite;

const MINUTE: Duration = Duration::from_secs(60);

fn account(clock: &ManualClock, limits: &[Limit]) -> Account {
    let rules = limits.iter().enumerate().map(|(at, limit)| {
        let rule = Rule::new(format!("rule {at}")).limit(limit.clone());
        if at % 2 == 0 { rule.per(["user"]) } else { rule }
    });
    budgets(clock, rules).account(&[("user", "ann")])
}

#[test]
fn an_account_conforms() {
    let minute = |units| Limit::cost(OUTPUT, units, Period::Minute);
    let rolling = |units| Limit::cost(OUTPUT, units, Period::Rolling(MINUTE));
    let rows = [
        (vec![minute(30)], MINUTE),
        (
            vec![minute(30), Limit::requests(3, Period::Hour), minute(40).soft()],
            60 * MINUTE,
        ),
        (vec![rolling(30)], MINUTE + MINUTE / 16),
        (
            vec![rolling(30), minute(90), Limit::requests(3, Period::Minute)],
            MINUTE + MINUTE / 16,
        ),
    ];
    for (limits, refill) in rows {
        Suite::of_rate(3, refill, move |clock| account(clock, &limits))
            .ask(Ask::one().cost(OUTPUT, 10))
            .never_fits(Ask::one().cost(OUTPUT, 31))
            .check();
    }
    Suite::of_rate(3, MINUTE, move |clock| account(clock, &[minute(30)]))
        .ask(Ask::one().cost(OUTPUT, 10))
        .settle(OUTPUT, 5)
        .check();
}

#[test]
fn an_account_with_calls_in_flight_conforms() {
    Suite::of_permits(3, |clock| account(clock, &[Limit::in_flight(3)]))
        .never_fits(4)
        .check();
    Suite::of_rate(3, MINUTE, |clock| {
        account(clock, &[Limit::requests(3, Period::Minute), Limit::in_flight(5)])
    })
    .holding()
    .check();
}

#[test]
fn a_chain_of_an_account_and_a_semaphore_conforms() {
    Suite::of_rate(3, MINUTE, |clock| {
        account(clock, &[Limit::requests(3, Period::Minute)])
            .and(Semaphore::new(5))
            .boxed()
    })
    .holding()
    .check();
}
