//! Budgets at a store, in virtual time: beside those of one process, and over several clients.

use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tollgate::remote::{Key, Memory};
use tollgate::status::State;
use tollgate::{Ask, Cost, ManualClock, Reason};
use tollgate_budget::{
    Budgets, INPUT, Limit, MONEY, OUTPUT, Period, Rule, SharedAccount, SharedBudgets, SharedBudgetsError, SharedMeter,
};

type Account = SharedAccount<Arc<Memory>>;

fn rolling(cost: Cost, units: u64) -> Limit {
    Limit::cost(cost, units, Period::Rolling(Duration::from_secs(60)))
}

fn shared(clock: &ManualClock, store: &Arc<Memory>, rules: &[Rule]) -> SharedBudgets<Arc<Memory>> {
    let builder = SharedBudgets::builder(Key::new("budgets").unwrap()).on(clock);
    let builder = rules.iter().cloned().fold(builder, |builder, rule| builder.rule(rule));
    builder.in_place(Arc::clone(store)).unwrap()
}

/// What each limit has left, by rule and limit.
async fn left(account: &Account) -> Vec<(String, u64)> {
    let usage = account.usage().await.unwrap().unwrap();
    let mut left: Vec<_> = usage
        .legs()
        .map(|leg| match leg.state {
            State::Rate { available, .. } => (leg.leg.to_owned(), available),
            State::Permits { limit, in_use, .. } => (leg.leg.to_owned(), limit - in_use),
            other => unreachable!("{other:?}"),
        })
        .collect();
    left.sort();
    left
}

async fn spend(account: &Account, units: u64) -> Result<u64, Reason> {
    let mut meter = account
        .reserve(Ask::one().cost(OUTPUT, units))
        .await
        .map_err(|refused| refused.reason())?;
    meter.extend(OUTPUT, units).await.unwrap();
    Ok(units)
}

/// Given a program that ends right after a meter was dropped, then what the meter gives back is at the store once the budgets are closed.
#[tokio::test]
async fn units_given_back_arrive_before_the_budgets_are_closed() {
    let store = Arc::new(Memory::new(&tollgate::Clock::real()));
    let name = || Key::new("budgets").unwrap();
    let rule = || Rule::new("user").per(["user"]).limit(rolling(OUTPUT, 1_000));
    let budgets = SharedBudgets::builder(name())
        .rule(rule())
        .spawn(Arc::clone(&store))
        .unwrap();
    let other = SharedBudgets::builder(name())
        .rule(rule())
        .in_place(Arc::clone(&store))
        .unwrap();
    let (ann, same) = (budgets.account(&[("user", "ann")]), other.account(&[("user", "ann")]));
    let mut meter = ann.reserve(Ask::one().cost(OUTPUT, 500)).await.unwrap();
    meter.extend(OUTPUT, 100).await.unwrap();
    drop(meter);
    assert_eq!(left(&same).await, [("user/output per 60s".to_owned(), 500)], "not yet");
    budgets.close().await;
    assert_eq!(left(&same).await, [("user/output per 60s".to_owned(), 900)]);
    let refused = ann.reserve(Ask::one().cost(OUTPUT, 1)).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Closed);
    budgets.close().await;
}

const COSTS: [Cost; 3] = [INPUT, OUTPUT, MONEY];

#[derive(Clone, Debug)]
enum Step {
    Reserve { user: usize, units: [u64; 3] },
    Extend { which: usize, cost: usize, units: u64 },
    Settle { which: usize, cost: usize, actual: u64 },
    End { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let units = || prop_oneof![0..40u64, 0..150u64];
    prop_oneof![
        3 => (0..3usize, [units(), units(), units()]).prop_map(|(user, units)| Step::Reserve { user, units }),
        4 => (0..9usize, 0..3usize, units()).prop_map(|(which, cost, units)| Step::Extend { which, cost, units }),
        2 => (0..9usize, 0..3usize, units()).prop_map(|(which, cost, actual)| Step::Settle { which, cost, actual }),
        2 => (0..9usize).prop_map(|which| Step::End { which }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Given any program of requests of two processes in one period, then each answer, and what each limit has left after each step, is
    /// that of the budgets of one process.
    #[test]
    fn shared_budgets_equal_those_of_one_process(steps in prop::collection::vec(step(), 1..50)) {
        let clock = ManualClock::new();
        let rules = [
            Rule::new("all").limit(Limit::cost(OUTPUT, 600, Period::Hour)).limit(rolling(MONEY, 500)),
            Rule::new("user").per(["user"]).limit(rolling(OUTPUT, 200)).limit(rolling(INPUT, 300)).limit(Limit::requests(9, Period::Day)),
        ];
        let builder = rules.iter().cloned().fold(Budgets::builder().on(&clock), |builder, rule| builder.rule(rule));
        let local = builder.build().unwrap();
        let store = Arc::new(Memory::new(&clock));
        let processes = [0, 1].map(|_| shared(&clock, &store, &rules));
        let mut running: Vec<(tollgate_budget::Meter, SharedMeter<_>)> = Vec::new();
        clock.run(async {
            for step in steps {
                match step {
                    Step::Reserve { user, units } => {
                        let ask = Ask::one().cost(INPUT, units[0]).cost(OUTPUT, units[1]).cost(MONEY, units[2]);
                        let name = user.to_string();
                        let descriptor = [("user", &*name)];
                        let ours = processes[user % 2].account(&descriptor).reserve(ask).await;
                        let local = local.account(&descriptor).reserve(ask);
                        let reasons = (ours.as_ref().err().map(|refused| refused.reason()), local.as_ref().err().map(|refused| refused.reason()));
                        prop_assert_eq!(reasons.0, reasons.1);
                        running.extend(local.ok().zip(ours.ok()));
                    }
                    Step::Extend { which, cost, units } if which < running.len() => {
                        let (local, ours) = &mut running[which];
                        let stopped = local.extend(COSTS[cost], units).is_err();
                        prop_assert_eq!(ours.extend(COSTS[cost], units).await.is_err(), stopped);
                    }
                    Step::Settle { which, cost, actual } if which < running.len() => {
                        let (local, ours) = &mut running[which];
                        let _ = local.settle(COSTS[cost], actual);
                        ours.settle(COSTS[cost], actual);
                    }
                    Step::End { which } if which < running.len() => drop(running.swap_remove(which)),
                    _ => {}
                }
                for user in 0..3 {
                    let name = user.to_string();
                    let descriptor = [("user", &*name)];
                    let mut expected = Vec::new();
                    for level in local.account(&descriptor).usage() {
                        expected.extend(level.limits().map(|limit| limit.left()));
                    }
                    let mut ours: Vec<u64> = left(&processes[0].account(&descriptor)).await.into_iter().map(|(_, left)| left).collect();
                    // By rule; of each in some order.
                    expected[..2].sort_unstable();
                    expected[2..].sort_unstable();
                    ours[..2].sort_unstable();
                    ours[2..].sort_unstable();
                    prop_assert_eq!(ours, expected);
                }
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_calendar_period_ends_for_all_processes_at_its_border() {
    let clock = ManualClock::new();
    // 2026-03-28 20:00 in Berlin; the next day begins four hours later, and has 23 hours.
    clock.set_wall(UNIX_EPOCH + Duration::from_secs(1_774_724_400));
    let store = Arc::new(Memory::new(&clock));
    let rule = Rule::new("user")
        .per(["user"])
        .limit(Limit::cost(OUTPUT, 100, Period::Day).time_zone("Europe/Berlin"));
    let [one, other] = [0, 1].map(|_| shared(&clock, &store, std::slice::from_ref(&rule)).account(&[("user", "ann")]));
    clock.run(async {
        assert_eq!(spend(&one, 90).await, Ok(90));
        let mut running = other.reserve(Ask::one().cost(OUTPUT, 10)).await.unwrap();
        let refused = other.reserve(Ask::one().cost(OUTPUT, 1)).await.unwrap_err();
        let hour = Duration::from_secs(3_600);
        assert_eq!((refused.rule(), refused.retry_after()), (Some("user"), Some(4 * hour)));
        assert_eq!(refused.limit().unwrap().to_string(), "100 output per day");
        clock.advance(4 * hour - Duration::from_secs(1));
        assert_eq!(spend(&one, 1).await, Err(Reason::RateExceeded));
        clock.advance(Duration::from_secs(1));
        assert_eq!(spend(&one, 40).await, Ok(40));
        // Its reservation was of the day before. What it produces beyond is of today, also what there is no room for.
        running.extend(OUTPUT, 10).await.unwrap();
        assert_eq!(left(&one).await[0].1, 60);
        running.extend(OUTPUT, 50).await.unwrap();
        assert!(running.extend(OUTPUT, 30).await.is_err());
        drop(running);
        assert_eq!(spend(&one, 1).await, Err(Reason::RateExceeded));
        clock.advance(23 * hour);
        assert_eq!(spend(&other, 100).await, Ok(100));
    });
}

#[test]
fn units_beyond_that_are_refused_after_a_border_are_of_the_new_period() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let account = shared(
        &clock,
        &store,
        &[Rule::new("all").limit(Limit::cost(OUTPUT, 100, Period::Minute))],
    )
    .account(&[]);
    clock.run(async {
        let mut meter = account.reserve(Ask::one().cost(OUTPUT, 10)).await.unwrap();
        clock.advance(Duration::from_secs(60));
        assert_eq!(spend(&account, 70).await, Ok(70));
        assert!(meter.extend(OUTPUT, 50).await.is_err());
        assert_eq!(left(&account).await[0].1, 0);
        // It is corrected there as well.
        meter.settle(OUTPUT, 30);
        assert_eq!(left(&account).await[0].1, 10);
    });
}

#[test]
fn a_reservation_that_is_dropped_while_it_is_asked_for_gives_back() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let builder =
        SharedBudgets::builder(Key::new("budgets").unwrap()).rule(Rule::new("all").limit(rolling(OUTPUT, 100)));
    let (budgets, mut driver) = builder.on(&clock).build(Arc::clone(&store)).unwrap();
    let account = budgets.account(&[]);
    clock.run(async {
        let asked = account.reserve(Ask::one().cost(OUTPUT, 80));
        let mut asked = Box::pin(asked);
        assert!(futures::poll!(&mut asked).is_pending());
        // The store has carried it out, and the answer is not looked at.
        assert!(futures::poll!(&mut driver).is_pending());
        drop(asked);
        let next = account.reserve(Ask::one().cost(OUTPUT, 90));
        let futures::future::Either::Left((next, _)) = futures::future::select(Box::pin(next), driver).await else {
            panic!("the driver ended");
        };
        assert!(next.is_ok());
    });
}

/// Given a process that dies with a stream, then its call in flight and the rest of its reservation go back with their lease, and what it
/// had metered and reported stays charged.
#[test]
fn a_dead_process_keeps_charged_what_it_reported_and_gives_back_the_rest() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let rules = [
        Rule::new("all")
            .limit(rolling(OUTPUT, 100))
            .limit(Limit::cost(INPUT, 100, Period::Day)),
        Rule::new("user")
            .per(["user"])
            .limit(rolling(OUTPUT, 100))
            .limit(Limit::in_flight(1)),
    ];
    let builder = SharedBudgets::builder(Key::new("budgets").unwrap()).on(&clock);
    let builder = rules.iter().cloned().fold(builder, |builder, rule| builder.rule(rule));
    let (dying, mut driver) = builder.build(Arc::clone(&store)).unwrap();
    let dying = dying.account(&[("user", "ann")]);
    let survivors = shared(&clock, &store, &rules);
    let [ann, bob] = ["ann", "bob"].map(|user| survivors.account(&[("user", user)]));
    let ask = |output| Ask::one().cost(OUTPUT, output).cost(INPUT, 0);
    clock.run(async {
        let asked = Box::pin(dying.reserve(Ask::one().cost(OUTPUT, 70).cost(INPUT, 80)));
        let futures::future::Either::Left((meter, _)) = futures::future::select(asked, &mut driver).await else {
            panic!("the driver ended");
        };
        let mut meter = meter.unwrap();
        meter.extend(OUTPUT, 20).await.unwrap();
        // Told with the renewal; what is metered after it is not.
        clock.advance(Duration::from_secs(4));
        for _ in 0..3 {
            assert!(futures::poll!(&mut driver).is_pending());
        }
        meter.extend(OUTPUT, 15).await.unwrap();
        // No step is sent from here on.
        std::mem::forget((meter, driver));
        assert_eq!(ann.reserve(ask(10)).await.unwrap_err().reason(), Reason::Saturated);
        assert_eq!(bob.reserve(ask(31)).await.unwrap_err().reason(), Reason::RateExceeded);
        clock.advance(Duration::from_millis(9_900));
        assert_eq!(bob.reserve(ask(31)).await.unwrap_err().reason(), Reason::RateExceeded);
        // A time to live, and less than a quarter of it, after the renewal.
        clock.advance(Duration::from_millis(2_600));
        assert_eq!(bob.reserve(ask(81)).await.unwrap_err().reason(), Reason::RateExceeded);
        let input = left(&ann)
            .await
            .into_iter()
            .find(|(leg, _)| leg.contains("input"))
            .unwrap();
        assert_eq!(input.1, 100);
        let mut meter = ann.reserve(ask(80)).await.unwrap();
        meter.extend(OUTPUT, 80).await.unwrap();
        drop(meter);
        // What was reported leaves with the span.
        clock.advance(Duration::from_secs(60) - Duration::from_millis(16_500) + Duration::from_secs(1));
        assert!(bob.reserve(ask(20)).await.is_ok());
    });
}

/// Given a process that is cut off for longer than its lease, then others are admitted in the place of its reservation, and all of it
/// counts once it is heard of again.
#[test]
fn a_process_that_comes_back_counts_again() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let rules = [Rule::new("all").limit(Limit::cost(OUTPUT, 100, Period::Day))];
    let builder = SharedBudgets::builder(Key::new("budgets").unwrap()).rule(rules[0].clone());
    let (absent, mut driver) = builder.on(&clock).build(Arc::clone(&store)).unwrap();
    let absent = absent.account(&[]);
    let other = shared(&clock, &store, &rules).account(&[]);
    clock.run(async {
        let asked = Box::pin(absent.reserve(Ask::one().cost(OUTPUT, 70)));
        let futures::future::Either::Left((meter, _)) = futures::future::select(asked, &mut driver).await else {
            panic!("the driver ended");
        };
        let mut meter = meter.unwrap();
        meter.extend(OUTPUT, 50).await.unwrap();
        clock.advance(Duration::from_secs(20));
        assert_eq!(spend(&other, 90).await, Ok(90));
        // 90 and the 70 that it still has.
        for _ in 0..3 {
            assert!(futures::poll!(&mut driver).is_pending());
        }
        assert_eq!(left(&other).await[0].1, 0);
        meter.settle(OUTPUT, 5);
        drop(meter);
        for _ in 0..3 {
            assert!(futures::poll!(&mut driver).is_pending());
        }
        assert_eq!(left(&other).await[0].1, 5);
    });
}

#[test]
fn keys_that_look_alike_are_apart() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let rule = Rule::new("a/b:c").per(["x", "y"]).limit(rolling(OUTPUT, 1));
    let budgets = shared(&clock, &store, &[rule]);
    clock.run(async {
        for (x, y) in [
            ("a,b", "c"),
            ("a", "b,c"),
            ("a%2Cb", "c"),
            ("é {}\n", ""),
            ("", "é {}\n"),
            (".", ".."),
            ("", ""),
        ] {
            let account = budgets.account(&[("x", x), ("y", y)]);
            assert_eq!(
                (spend(&account, 1).await, spend(&account, 1).await),
                (Ok(1), Err(Reason::RateExceeded)),
                "{x} {y}"
            );
        }
        let long = "x".repeat(300);
        let refused = budgets
            .account(&[("x", &long)])
            .reserve(Ask::one().cost(OUTPUT, 1))
            .await
            .unwrap_err();
        assert_eq!((refused.reason(), refused.rule()), (Reason::Unkeyed, None));
    });
}

#[test]
fn a_request_that_no_rule_counts_is_admitted() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let budgets = shared(
        &clock,
        &store,
        &[Rule::new("large").when("model", "large").limit(rolling(OUTPUT, 1))],
    );
    clock.run(async {
        let account = budgets.account(&[("model", "small")]);
        let mut meter = account.reserve(1).await.unwrap();
        assert!(meter.extend(OUTPUT, 1_000).await.is_ok());
        assert!(account.usage().await.unwrap().is_none());
    });
}

#[test]
fn a_soft_limit_counts_and_refuses_nothing() {
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let account = shared(&clock, &store, &[Rule::new("all").limit(rolling(OUTPUT, 1).soft())]).account(&[]);
    clock.run(async {
        assert_eq!(spend(&account, 500).await, Ok(500));
        assert_eq!(left(&account).await[0].1, tollgate::remote::MAX_UNITS - 500);
    });
}

#[test]
fn rules_that_a_store_cannot_count_are_refused_when_they_are_built() {
    let clock = ManualClock::new();
    let build = |rules: &[Rule]| {
        let builder = SharedBudgets::builder(Key::new("budgets").unwrap()).on(&clock);
        let builder = rules.iter().cloned().fold(builder, |builder, rule| builder.rule(rule));
        builder.in_place(Memory::new(&clock)).unwrap_err()
    };
    let lent = [
        Rule::new("all").limit(rolling(OUTPUT, 10)),
        Rule::new("user").per(["user"]).borrows_from("all"),
    ];
    let twice = Rule::new("all").limit(rolling(OUTPUT, 10)).limit(rolling(OUTPUT, 20));
    let large = Rule::new("all").limit(rolling(OUTPUT, u64::MAX));
    for (rules, setting) in [(&lent[..], "borrows_from"), (&[twice], "limits"), (&[large], "amount")] {
        assert!(matches!(build(rules), SharedBudgetsError::Rule(error) if error.setting() == setting));
    }
    let in_flight = [1, 2].map(|limit| Rule::new(format!("{limit}")).limit(Limit::in_flight(limit)));
    assert!(matches!(build(&in_flight), SharedBudgetsError::Store(_)));
    assert!(matches!(build(&[]), SharedBudgetsError::Store(_)));
}
