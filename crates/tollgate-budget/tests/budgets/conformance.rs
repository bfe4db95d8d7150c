//! An account as a limiter keeps the laws.

use crate::{budgets, counts};
use std::time::Duration;
use tollgate::{Ask, FirstOf, LimiterExt, ManualClock, Permit, Semaphore};
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

/// Plan, then credits: each a budget of its own.
#[test]
fn a_waterfall_of_accounts_conforms_and_settles_to_the_source_that_paid() {
    let minute = |clock: &ManualClock, units| account(clock, &[Limit::cost(OUTPUT, units, Period::Minute)]);
    let tokens = |units| Ask::one().cost(OUTPUT, units);
    Suite::of_rate(3, MINUTE, move |clock| {
        FirstOf::new("small", minute(clock, 9)).or("large", minute(clock, 30))
    })
    .ask(tokens(10))
    .settle(OUTPUT, 5)
    .never_fits(tokens(31))
    .check();
    let clock = ManualClock::new();
    let (plan, credits) = (minute(&clock, 30), minute(&clock, 100));
    let billing = FirstOf::new("plan", plan.clone()).or("credits", credits.clone());
    let first = billing.try_admit(tokens(20)).unwrap();
    let mut second = billing.try_admit(tokens(20)).unwrap();
    let source = |permit: &Permit<&FirstOf>| billing.source(permit.ticket().unwrap());
    assert_eq!((source(&first), source(&second)), ("plan", "credits"));
    second.settle(OUTPUT, 5).unwrap();
    assert_eq!((counts(&plan), counts(&credits)), (vec![(0, 20)], vec![(0, 5)]));
    drop((first, second));
    assert_eq!((counts(&plan), counts(&credits)), (vec![(20, 0)], vec![(5, 0)]));
}
