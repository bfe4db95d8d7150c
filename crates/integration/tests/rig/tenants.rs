//! The keys that the run has beside its semaphore: tenants, each with a policy of four legs, one of which binds.

use super::contender::Gate;
use super::spender::Bound;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::time::Duration;

/// A tenant's policy: calls in time, tokens in time, tokens in a window, and calls in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    /// The calls a second, and the burst.
    requests: (u64, u64),
    /// The tokens a second, and the burst.
    tokens: (u64, u64),
    /// The tokens in each [`LENGTH`].
    spend: u64,
    /// The tasks of each process that call.
    pub(crate) tasks: u64,
}

/// The calls in flight of each tenant.
pub(crate) const PERMITS: u64 = 8;
pub(crate) const PERMITS_LEG: &str = "in-flight";
pub(crate) const LENGTH: Duration = Duration::from_secs(2);
/// The most tokens of a call.
pub(crate) const MOST_TOKENS: u64 = 10;

// A step is given up during the longest faults, and its reply is not remembered for much longer than the run.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);
pub(crate) const RETRY: Duration = Duration::from_millis(50);
pub(crate) const UNAVAILABLE_AFTER: Duration = Duration::from_millis(1_500);
/// How long a store may remember a reply with these settings.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(9);

/// Each binds by the leg of its name. The other legs are a few times wider than its demand.
pub(crate) const TENANTS: [Tenant; 4] = [
    Tenant {
        name: "requests",
        requests: (20, 20),
        tokens: (150, 400),
        spend: 600,
        tasks: 3,
    },
    Tenant {
        name: "tokens",
        requests: (80, 150),
        tokens: (100, 100),
        spend: 600,
        tasks: 3,
    },
    Tenant {
        name: "spend",
        requests: (80, 150),
        tokens: (300, 400),
        spend: 150,
        tasks: 3,
    },
    Tenant {
        name: PERMITS_LEG,
        requests: (2_000, 2_000),
        tokens: (6_000, 6_000),
        spend: 12_000,
        tasks: 6,
    },
];

/// The numbers of the tenants: zero is the semaphore.
pub(crate) const KEYS: std::ops::RangeInclusive<u32> = 1..=BUSY;
/// The number of the tenant whose permits bind.
pub(crate) const BUSY: u32 = TENANTS.len() as u32;

/// A leg that counts by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Leg {
    Requests,
    Tokens,
    Spend,
}

pub(crate) const LEGS: [Leg; 3] = [Leg::Requests, Leg::Tokens, Leg::Spend];

impl Leg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Spend => "spend",
        }
    }

    /// Otherwise it counts calls.
    pub(crate) fn counts_tokens(self) -> bool {
        self != Self::Requests
    }
}

impl Tenant {
    /// The tenant with this number.
    pub(crate) fn of(key: u32) -> Self {
        TENANTS[key as usize - 1]
    }

    pub(crate) fn bound(&self, leg: Leg) -> Bound {
        let rate = |(per_second, burst)| Bound::Rate { per_second, burst };
        match leg {
            Leg::Requests => rate(self.requests),
            Leg::Tokens => rate(self.tokens),
            Leg::Spend => Bound::Window {
                limit: self.spend,
                length: LENGTH,
            },
        }
    }
}

/// The limiter of all tenants.
pub(crate) trait Tenants: Send + Sync + 'static {
    type Key: TenantGate;

    /// The tenant with this number.
    fn key(&self, key: u32) -> Self::Key;

    /// All of them, by their numbers.
    fn all(&self) -> impl Iterator<Item = (u32, Self::Key)> {
        KEYS.map(|key| (key, self.key(key)))
    }

    /// Returns when everything is given back, once no gate of a tenant is left.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// One tenant.
pub(crate) trait TenantGate: Gate {
    /// The units in use of the [`LEGS`], and of the permits.
    fn usage(&self) -> impl Future<Output = Result<[u64; 4], String>> + Send;
}
