//! The limits of many keys as plain values: which legs a key has.

use crate::core::ask::Cost;
use crate::rate::Quota;
use crate::remote::backend::Rule;
use std::collections::BTreeMap;
use std::time::Duration;

/// A leg of the keys of a tier: its name, its rule, and what it counts.
///
/// ```
/// # use tollgate::remote::RemoteLeg;
/// # use tollgate::{Cost, Quota};
/// # use std::time::Duration;
/// const TOKENS: Cost = Cost::new("tokens");
/// let legs = [
///     RemoteLeg::rate("requests", Quota::per_minute(60).burst(10)),
///     RemoteLeg::window("tokens", 100_000, Duration::from_secs(3_600)).per(TOKENS),
///     RemoteLeg::permits("in flight", 4),
/// ];
/// assert_eq!(legs.map(|leg| leg.name.len()), [8, 6, 9]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteLeg {
    /// Its name, unique among the legs of a key. What was taken is kept under it.
    pub name: Box<str>,
    /// What it counts, and how many.
    pub rule: Rule,
    /// The cost that it counts; calls if none.
    pub cost: Option<Cost>,
}

impl RemoteLeg {
    fn new(name: impl Into<Box<str>>, rule: Rule) -> Self {
        let (name, cost) = (name.into(), None);
        Self { name, rule, cost }
    }

    /// A token bucket.
    pub fn rate(name: impl Into<Box<str>>, quota: Quota) -> Self {
        Self::new(name, Rule::Rate { quota })
    }

    /// At most `limit` units in any span of `length`.
    pub fn window(name: impl Into<Box<str>>, limit: u64, length: Duration) -> Self {
        Self::new(name, Rule::Window { limit, length })
    }

    /// At most `limit` permits at a time, which come back.
    pub fn permits(name: impl Into<Box<str>>, limit: u64) -> Self {
        Self::new(name, Rule::Permits { limit })
    }

    /// The same leg, counting `cost` instead of calls.
    #[must_use]
    pub fn per(mut self, cost: Cost) -> Self {
        self.cost = Some(cost);
        self
    }
}

/// The limits of many keys: a tier for most, and other legs for some.
///
/// ```
/// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
/// # use tollgate::ManualClock;
/// let in_flight = |limit| [RemoteLeg::permits("in flight", limit)];
/// let limits = KeyedLimits::new(10_000, "free", in_flight(1))
///     .tier("paid", in_flight(2))
///     .key("acme", "paid")
///     .key_with("initech", in_flight(3));
/// let clock = ManualClock::new();
/// let tenants = Remote::keyed(Key::new("tenants")?, limits).on(&clock).in_place(Memory::new(&clock))?;
/// clock.run(async {
///     for (tenant, limit) in [("acme", 2), ("initech", 3), ("another", 1)] {
///         let tenant = tenants.get(tenant).unwrap();
///         let permit = tenant.acquire_now(limit).await.unwrap();
///         assert!(tenant.acquire_now(1).await.is_err());
///         drop(permit);
///     }
/// });
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct KeyedLimits {
    pub(super) max_keys: usize,
    pub(super) default: Box<str>,
    pub(super) tiers: BTreeMap<Box<str>, Vec<RemoteLeg>>,
    pub(super) keys: BTreeMap<Box<str>, KeyLimits>,
}

/// The limits of one key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyLimits {
    /// Those of the tier of this name.
    Tier(Box<str>),
    /// Its own.
    Own(Vec<RemoteLeg>),
}

impl KeyedLimits {
    /// At most `max_keys` keys at a time in this process, above zero and as the limiter was built, with the legs of the tier `default`
    /// unless they have others.
    pub fn new(max_keys: usize, default: impl Into<Box<str>>, legs: impl IntoIterator<Item = RemoteLeg>) -> Self {
        let default = default.into();
        Self {
            max_keys,
            tiers: [(default.clone(), legs.into_iter().collect())].into(),
            default,
            keys: BTreeMap::new(),
        }
    }

    /// The legs of the tier of this name, instead of those that it had.
    #[must_use]
    pub fn tier(mut self, name: impl Into<Box<str>>, legs: impl IntoIterator<Item = RemoteLeg>) -> Self {
        self.tiers.insert(name.into(), legs.into_iter().collect());
        self
    }

    /// The tier of `key`.
    #[must_use]
    pub fn key(mut self, key: impl Into<Box<str>>, tier: impl Into<Box<str>>) -> Self {
        self.keys.insert(key.into(), KeyLimits::Tier(tier.into()));
        self
    }

    /// Legs for `key` alone.
    #[must_use]
    pub fn key_with(mut self, key: impl Into<Box<str>>, legs: impl IntoIterator<Item = RemoteLeg>) -> Self {
        let own = legs.into_iter().collect();
        self.keys.insert(key.into(), KeyLimits::Own(own));
        self
    }
}
