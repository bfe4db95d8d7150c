//! The budgets of a gateway: its own, or with a store those that all gateways share.

use axum::http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write;
use std::time::Duration;
use tollgate::{Ask, Cost, Reason};
use tollgate_budget::{Budgets, BudgetsBuilder};
#[cfg(feature = "redis")]
use {
    tollgate::status::State,
    tollgate_budget::{SharedAccount, SharedBudgets, SharedMeter},
    tollgate_stores::Redis,
};

pub(crate) enum Ledger {
    Own(Budgets),
    #[cfg(feature = "redis")]
    Shared(SharedBudgets<Redis>),
}

pub(crate) enum Account {
    Own(tollgate_budget::Account),
    #[cfg(feature = "redis")]
    Shared(SharedAccount<Redis>),
}

pub(crate) enum Meter {
    Own(tollgate_budget::Meter),
    #[cfg(feature = "redis")]
    Shared(SharedMeter<Redis>),
}

/// Why a request is refused, or a stream stopped: for its caller.
#[derive(Debug)]
pub(crate) struct Exceeded {
    pub(crate) reason: Reason,
    pub(crate) retry_after: Option<Duration>,
    body: Value,
}

impl Ledger {
    /// Of these rules, at the Redis of this address if there is one.
    pub(crate) fn new(rules: &BudgetsBuilder, redis: Option<&str>) -> Result<Self, Box<dyn Error>> {
        match redis {
            None => Ok(Self::Own(rules.build()?)),
            #[cfg(feature = "redis")]
            Some(address) => {
                let builder = SharedBudgets::builder(tollgate::remote::Key::new("llm-gateway")?).rules(rules);
                Ok(Self::Shared(builder.spawn(Redis::options(address).connect()?)?))
            }
            #[cfg(not(feature = "redis"))]
            Some(_) => Err("it was built without the feature `redis`".into()),
        }
    }

    pub(crate) fn account(&self, descriptor: &[(&str, &str)]) -> Account {
        match self {
            Self::Own(budgets) => Account::Own(budgets.account(descriptor)),
            #[cfg(feature = "redis")]
            Self::Shared(budgets) => Account::Shared(budgets.account(descriptor)),
        }
    }

    /// The budgets of this process alone.
    pub(crate) fn own(&self) -> Option<&Budgets> {
        match self {
            Self::Own(budgets) => Some(budgets),
            #[cfg(feature = "redis")]
            Self::Shared(_) => None,
        }
    }
}

impl Account {
    pub(crate) async fn reserve(&self, ask: Ask) -> Result<Meter, Exceeded> {
        match self {
            Self::Own(account) => Ok(Meter::Own(account.reserve(ask)?)),
            #[cfg(feature = "redis")]
            Self::Shared(account) => Ok(Meter::Shared(account.reserve(ask).await?)),
        }
    }

    /// Each limit by its name: its amount, what is left, and when its period ends.
    pub(crate) async fn limits(&self) -> Vec<(String, u64, u64, Option<Duration>)> {
        let mut limits = Vec::new();
        match self {
            Self::Own(account) => {
                for level in account.usage() {
                    limits.extend(level.limits().map(|limit| {
                        let name = format!("{}.{}", level.rule(), limit.limit().measure());
                        (name, limit.limit().amount(), limit.left(), limit.period_ends_in())
                    }));
                }
            }
            #[cfg(feature = "redis")]
            Self::Shared(account) => {
                // Without an answer of the store there are none.
                let usage = account.usage().await.ok().flatten();
                for leg in usage.iter().flat_map(|usage| usage.legs()) {
                    let name = leg.leg.replace('/', ".");
                    limits.extend(match leg.state {
                        State::Rate { limit, available, .. } => Some((name, limit, available, None)),
                        State::Permits { limit, in_use, .. } => Some((name, limit, limit.saturating_sub(in_use), None)),
                        _ => None,
                    });
                }
            }
        }
        limits
    }

    /// `RateLimit` and `RateLimit-Policy`, an item for each limit of each level.
    pub(crate) async fn fields(&self) -> HeaderMap {
        let (mut policy, mut left) = (String::new(), String::new());
        for (name, amount, available, ends) in self.limits().await {
            let (name, comma) = (name.replace(' ', "-"), if policy.is_empty() { "" } else { ", " });
            let _ = write!(policy, "{comma}\"{name}\";q={amount}");
            let _ = write!(left, "{comma}\"{name}\";r={available}");
            if let Some(ends) = ends {
                let _ = write!(left, ";t={}", ends.as_secs());
            }
        }
        let mut fields = HeaderMap::new();
        for (name, value) in [("ratelimit-policy", policy), ("ratelimit", left)] {
            if let Ok(value) = HeaderValue::try_from(value) {
                fields.insert(name, value);
            }
        }
        fields
    }
}

impl Meter {
    pub(crate) async fn extend(&mut self, cost: Cost, units: u64) -> Result<(), Exceeded> {
        match self {
            Self::Own(meter) => Ok(meter.extend(cost, units)?),
            #[cfg(feature = "redis")]
            Self::Shared(meter) => Ok(meter.extend(cost, units).await?),
        }
    }

    /// The work is done: what is over is charged, and the next request is refused.
    pub(crate) fn settle(&mut self, cost: Cost, actual: u64) {
        match self {
            Self::Own(meter) => drop(meter.settle(cost, actual)),
            #[cfg(feature = "redis")]
            Self::Shared(meter) => drop(meter.settle(cost, actual)),
        }
    }

    /// Nothing was produced, and nothing is billed. A call that was counted at a store stays counted.
    pub(crate) fn cancel(self) {
        match self {
            Self::Own(meter) => meter.cancel(),
            #[cfg(feature = "redis")]
            Self::Shared(mut meter) => {
                for cost in [tollgate_budget::INPUT, tollgate_budget::OUTPUT, tollgate_budget::MONEY] {
                    meter.settle(cost, 0);
                }
            }
        }
    }
}

impl Exceeded {
    pub(crate) fn body(&self) -> Value {
        json!({ "error": self.body })
    }
}

impl From<tollgate_budget::Exceeded> for Exceeded {
    fn from(exceeded: tollgate_budget::Exceeded) -> Self {
        let retry_after = exceeded.retry_after();
        Self {
            reason: exceeded.reason(),
            retry_after,
            body: json!({
                "type": "budget_exceeded",
                "message": exceeded.to_string(),
                "rule": exceeded.rule(),
                "key": key(exceeded.key()),
                "limit": exceeded.limit().to_string(),
                "asked": exceeded.asked(),
                "left": exceeded.left(),
                "retry_after": retry_after.map(|after| after.as_secs_f64()),
            }),
        }
    }
}

#[cfg(feature = "redis")]
impl From<tollgate_budget::SharedExceeded> for Exceeded {
    fn from(exceeded: tollgate_budget::SharedExceeded) -> Self {
        let retry_after = exceeded.retry_after();
        Self {
            reason: exceeded.reason(),
            retry_after,
            body: json!({
                "type": if exceeded.rule().is_some() { "budget_exceeded" } else { "unavailable" },
                "message": exceeded.to_string(),
                "rule": exceeded.rule(),
                "key": exceeded.key().map(|key| key.as_str().to_owned()),
                "limit": exceeded.limit().map(|limit| limit.to_string()),
                "asked": exceeded.asked(),
                "retry_after": retry_after.map(|after| after.as_secs_f64()),
            }),
        }
    }
}

pub(crate) fn key<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    pairs
        .map(|(dimension, value)| (dimension.to_owned(), value.into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
