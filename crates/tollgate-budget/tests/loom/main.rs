//! Models of requests beside each other, over all interleavings of the locks of levels and accounts: `ci/test models` runs them.
#![cfg(tollgate_loom)]

use loom::thread;
use std::time::Duration;
use tollgate::{Ask, ManualClock};
use tollgate_budget::{Account, Budgets, Limit, OUTPUT, Period, Rule};

fn tokens(units: u64) -> Ask {
    Ask::one().cost(OUTPUT, units)
}

fn minute(units: u64) -> Limit {
    Limit::cost(OUTPUT, units, Period::Minute)
}

/// Every interleaving, whatever bound the environment sets.
fn model(what: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    builder.check(what);
}

/// Few levels have one shard of accounts, which is not drawn by chance.
fn budgets(clock: &ManualClock, rules: [Rule; 2]) -> Budgets {
    let builder = Budgets::builder().on(clock).max_levels(64);
    rules
        .into_iter()
        .fold(builder, |builder, rule| builder.rule(rule))
        .build()
        .unwrap()
}

/// Two users of an organisation.
fn two_users(clock: &ManualClock) -> [Account; 2] {
    let user = Rule::new("user").per(["user"]).limit(minute(100));
    let budgets = budgets(clock, [user, Rule::new("organisation").limit(minute(100))]);
    ["a", "b"].map(|user| budgets.account(&[("user", user)]))
}

/// Used and open of the limit of a level.
fn count(account: &Account, level: usize) -> (u64, u64) {
    let usage = account.usage().nth(level).unwrap();
    let limit = usage.limits().next().unwrap();
    (limit.used(), limit.open())
}

/// Given one meter that is extended beyond its reservation, and another one that is settled and dropped, then at each step what the level
/// counts is what the meters hold and what they have used: nothing is lost, and nothing is there twice.
#[test]
fn extend_beside_settle_beside_drop_conserves_units() {
    model(|| {
        let [one, two] = two_users(&ManualClock::new());
        let [mut first, mut second] = [&one, &two].map(|account| account.reserve(tokens(40)).unwrap());
        second.extend(OUTPUT, 10).unwrap();
        let other = thread::spawn(move || {
            // 40 are open, then 15, and then 15 are used.
            second.settle(OUTPUT, 15).unwrap();
            drop(second);
        });
        let before = count(&one, 1);
        assert!([(0, 80), (0, 55), (15, 40)].contains(&before), "{before:?}");
        let extended = first.extend(OUTPUT, 70).is_ok();
        let after = count(&one, 1);
        assert!([(0, 110), (0, 85), (15, 70)].contains(&after), "{after:?}");
        // It is told that the limit is over if, and only if, it is charged before the settlement.
        assert!(extended || before == (0, 80));
        assert!(!extended || after != (0, 110));
        other.join().unwrap();
        assert_eq!([count(&one, 0), count(&one, 1)], [(0, 70), (15, 70)]);
        drop(first);
        assert_eq!([count(&one, 0), count(&one, 1)], [(70, 0), (85, 0)]);
        assert_eq!(count(&two, 0), (15, 0));
    });
}

/// Given two reservations of which one fits, then one is admitted, and the other leaves no trace on any level.
#[test]
fn of_two_reservations_the_one_that_fits_is_admitted() {
    model(|| {
        let [one, two] = two_users(&ManualClock::new());
        let other = thread::spawn(move || {
            let meter = two.reserve(tokens(60)).ok();
            (meter.is_some(), count(&two, 0).1, meter)
        });
        let mine = one.reserve(tokens(60)).ok();
        let (admitted, held, theirs) = other.join().unwrap();
        assert_eq!(u64::from(mine.is_some()) + u64::from(admitted), 1);
        assert_eq!(held, 60 * u64::from(admitted));
        assert_eq!(
            [count(&one, 0), count(&one, 1)],
            [(0, 60 * u64::from(mine.is_some())), (0, 60)]
        );
        drop((mine, theirs));
        assert_eq!(count(&one, 1), (0, 0));
    });
}

/// Given two first requests of an unknown user at once, for two models, then they are of one level: the budget is not there twice.
#[test]
fn two_first_requests_of_a_user_share_one_level() {
    model(|| {
        let rules = [
            Rule::new("user").per(["user"]).limit(minute(100)),
            Rule::new("all").limit(minute(1_000)),
        ];
        let budgets = budgets(&ManualClock::new(), rules);
        let request = move |budgets: &Budgets, model: &str| {
            budgets
                .account(&[("user", "new"), ("model", model)])
                .reserve(tokens(60))
                .ok()
        };
        let theirs = budgets.clone();
        let other = thread::spawn(move || request(&theirs, "large"));
        let mine = request(&budgets, "small");
        let theirs = other.join().unwrap();
        assert_ne!(mine.is_some(), theirs.is_some());
        assert_eq!(count(&budgets.account(&[("user", "new")]), 0), (0, 60));
    });
}

/// Given a meter of the period that ends, then its end beside a new reservation gives nothing to the next period.
#[test]
fn a_drop_beside_the_end_of_the_period_gives_nothing_to_the_next_one() {
    model(|| {
        let clock = ManualClock::new();
        let [one, two] = two_users(&clock);
        let old = one.reserve(tokens(60)).unwrap();
        clock.advance(Duration::from_secs(60));
        let other = thread::spawn(move || drop(old));
        let new = two.reserve(tokens(90)).unwrap();
        other.join().unwrap();
        assert_eq!([count(&two, 0), count(&two, 1)], [(0, 90), (0, 90)]);
        drop(new);
        assert_eq!([count(&one, 0), count(&one, 1)], [(0, 0), (0, 0)]);
    });
}

/// Given a reservation beside the end of a period, then it is of one period on all levels: it comes back to all of them, or to none.
#[test]
fn a_reservation_beside_a_border_is_of_one_period_on_all_levels() {
    model(|| {
        let clock = ManualClock::new();
        let [one, two] = two_users(&clock);
        // Its levels have begun the first period.
        drop(one.reserve(tokens(1)).unwrap());
        let later = clock.clone();
        let other = thread::spawn(move || {
            later.advance(Duration::from_secs(60));
            two.reserve(tokens(40)).unwrap()
        });
        let mine = one.reserve(tokens(60)).unwrap();
        let theirs = other.join().unwrap();
        // Units of the first period are of no consequence by now.
        let held = [count(&one, 0), count(&one, 1)];
        assert!([[(0, 60), (0, 100)], [(0, 0), (0, 40)]].contains(&held), "{held:?}");
        drop(mine);
        assert_eq!([count(&one, 0), count(&one, 1)], [(0, 0), (0, 40)]);
        drop(theirs);
    });
}

/// Given an owner that claims its share beside a borrower that spends, then what both are told to have is no more than the amount, and
/// what they have spent is over by at most the charge at which one of them is stopped.
#[test]
fn an_owner_that_comes_beside_a_spending_borrower_overspends_by_one_charge() {
    model(|| {
        let rules = [
            Rule::new("all").limit(minute(100)),
            Rule::new("user").per(["user"]).borrows_from("all"),
        ];
        let budgets = budgets(&ManualClock::new(), rules);
        let [one, two] = ["a", "b"].map(|user| budgets.account(&[("user", user)]));
        let mut borrower = one.reserve(tokens(100)).unwrap();
        let other = thread::spawn(move || {
            let mut owner = two.reserve(tokens(50)).ok();
            let granted = owner.as_mut().is_some_and(|owner| owner.extend(OUTPUT, 50).is_ok());
            drop(owner);
            50 * u64::from(granted)
        });
        let mut granted = 0;
        while granted < 100 && borrower.extend(OUTPUT, 50).is_ok() {
            granted += 50;
        }
        let spent = borrower.used(OUTPUT);
        drop(borrower);
        granted += other.join().unwrap();
        assert!((50..=100).contains(&granted), "{granted} granted");
        let (used, open) = count(&one, 0);
        assert!(open == 0 && (spent..=150).contains(&used), "{used} used, {open} open");
    });
}
