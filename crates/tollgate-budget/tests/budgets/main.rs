//! Tests of budgets from the public interface, in virtual time.

mod conformance;
#[cfg(feature = "file")]
mod file;
mod flood;
mod hostile;
mod lending;
mod periods;
mod programs;
mod published;
mod restart;
#[cfg(feature = "shared")]
mod shared;
mod waiting;

use tollgate::ManualClock;
use tollgate_budget::{Account, Budgets, Rule};

/// Budgets of these rules, on a clock that stands.
fn budgets(clock: &ManualClock, rules: impl IntoIterator<Item = Rule>) -> Budgets {
    let builder = Budgets::builder().on(clock);
    rules
        .into_iter()
        .fold(builder, |builder, rule| builder.rule(rule))
        .build()
        .unwrap()
}

/// Used and open of each limit, level by level.
fn counts(account: &Account) -> Vec<(u64, u64)> {
    let levels: Vec<_> = account.usage().collect();
    levels
        .iter()
        .flat_map(|level| level.limits())
        .map(|limit| (limit.used(), limit.open()))
        .collect()
}
