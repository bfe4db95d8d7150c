//! The policies of a service as data: named ones, and maps with a policy for each key.

use super::{PartitionsSpec, PolicySpec, SpecError};
use crate::policy::kind::LivePartitions;
use std::collections::BTreeMap;

/// The policies of a service as plain data: named policies, and maps with a policy for each key.
///
/// [`build`](Self::build) makes a [`PolicySet`](crate::policy::PolicySet). With the feature `policy-file`, `PolicySetSpec::read` reads
/// one from a file.
///
/// ```
/// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySetSpec, PolicySpec};
/// let in_flight = |limit| PolicySpec::new([LegSpec::new("in flight", LegRule::semaphore(limit))]);
/// let mut spec = PolicySetSpec::default();
/// spec.policies.insert("global".into(), in_flight(100));
/// let mut tenants = KeyedSpec::new(10_000, "free", in_flight(2));
/// tenants.tiers.insert("paid".into(), in_flight(10));
/// tenants.keys.insert("acme".into(), "paid".into());
/// tenants.keys.insert("initech".into(), in_flight(3).into());
/// assert_eq!(tenants.policy_of("acme"), Some(&in_flight(10)));
/// assert_eq!(tenants.policy_of("initech"), Some(&in_flight(3)));
/// assert_eq!(tenants.policy_of("any other"), Some(&in_flight(2)));
/// spec.keyed.insert("tenant".into(), tenants);
/// spec.check()?;
///
/// spec.keyed.get_mut("tenant").unwrap().keys.insert("acme".into(), "gold".into());
/// let error = spec.check().unwrap_err();
/// assert_eq!(error.to_string(), "keyed.tenant.keys: key `acme`: `gold` is no tier, and there are: free, paid");
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PolicySetSpec {
    /// The policies, by name.
    pub policies: BTreeMap<String, PolicySpec>,
    /// The maps with a policy for each key, by name.
    pub keyed: BTreeMap<String, KeyedSpec>,
    /// The limits that these policies [share](super::PartitionRule), by name.
    pub partitions: BTreeMap<String, PartitionsSpec>,
}

/// A policy for each key, such as a tenant: that of the key's tier.
///
/// All policies of a map have the same order of the queue, the same eviction and the same bound in units, since a key keeps its
/// queue when it gets another tier.
///
/// ```
/// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
/// let free = PolicySpec::new([LegSpec::new("requests", LegRule::token_bucket("60/min".parse()?))]);
/// let tenants = KeyedSpec::new(10_000, "free", free.clone());
/// assert_eq!((tenants.max_keys, tenants.policy_of("acme")), (10_000, Some(&free)));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct KeyedSpec {
    /// Keys at most, above zero: see [`Keyed`](crate::Keyed). It stays as the map was built.
    pub max_keys: usize,
    /// The tier of a key that has no other.
    pub default: String,
    /// The policies, by the names of the tiers.
    pub tiers: BTreeMap<String, PolicySpec>,
    /// The keys that have another tier, or a policy of their own.
    pub keys: BTreeMap<String, KeyTier>,
}

/// The tier of one key.
///
/// ```
/// # use tollgate::policy::spec::{KeyTier, PolicySpec};
/// assert_eq!(KeyTier::from("paid"), KeyTier::Named("paid".into()));
/// assert_eq!(KeyTier::from(PolicySpec::default()), KeyTier::Own(PolicySpec::default()));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum KeyTier {
    /// The tier of this name.
    Named(String),
    /// A policy for this key alone.
    Own(PolicySpec),
}

impl From<&str> for KeyTier {
    fn from(name: &str) -> Self {
        Self::Named(name.into())
    }
}

impl From<PolicySpec> for KeyTier {
    fn from(policy: PolicySpec) -> Self {
        Self::Own(policy)
    }
}

impl PolicySetSpec {
    /// Finds the first mistake.
    ///
    /// # Errors
    /// [`SpecError`], with the policy, the leg and the key.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.policies.is_empty() && self.keyed.is_empty() {
            let fault = "none was given, and at least one `policy` or `keyed` is needed";
            return Err(SpecError::new("policy", fault));
        }
        let partitions = &self.partitions;
        for (name, partitions) in partitions {
            let built = partitions.build().map(drop);
            built.map_err(|error| error.within(&["partitions", name]))?;
        }
        for (name, policy) in &self.policies {
            let checked = policy.check_in(partitions);
            checked.map_err(|error| error.within(&["policy", name]))?;
        }
        (self.keyed.iter()).try_for_each(|(name, keyed)| keyed.check(name, partitions))
    }

    /// Finds the classes of these partitions.
    pub(in crate::policy) fn bind(&mut self, live: &LivePartitions) {
        self.policies.values_mut().for_each(|policy| policy.bind(live));
        for keyed in self.keyed.values_mut() {
            keyed.tiers.values_mut().for_each(|policy| policy.bind(live));
            for tier in keyed.keys.values_mut() {
                if let KeyTier::Own(policy) = tier {
                    policy.bind(live);
                }
            }
        }
    }
}

impl KeyedSpec {
    /// A map of at most `max_keys`, with one tier.
    pub fn new(max_keys: usize, default: impl Into<String>, policy: PolicySpec) -> Self {
        let default = default.into();
        Self {
            max_keys,
            tiers: [(default.clone(), policy)].into(),
            default,
            keys: BTreeMap::new(),
        }
    }

    /// The policy of `key`; `None` when its tier does not exist, which [`check`](PolicySetSpec::check) refuses.
    pub fn policy_of(&self, key: &str) -> Option<&PolicySpec> {
        match self.keys.get(key) {
            Some(KeyTier::Own(policy)) => Some(policy),
            Some(KeyTier::Named(tier)) => self.tiers.get(tier),
            None => self.tiers.get(&self.default),
        }
    }

    /// All policies, each below the tables in which it stands in a file.
    pub(in crate::policy) fn policies<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = ([&'a str; 4], &'a PolicySpec)> {
        let tiers = self.tiers.iter().map(|(tier, policy)| ("tier", tier, policy));
        let own = self.keys.iter().filter_map(|(key, tier)| match tier {
            KeyTier::Own(policy) => Some(("keys", key, policy)),
            KeyTier::Named(_) => None,
        });
        tiers
            .chain(own)
            .map(move |(table, of, policy)| (["keyed", name, table, of], policy))
    }

    pub(crate) fn check(&self, name: &str, partitions: &BTreeMap<String, PartitionsSpec>) -> Result<(), SpecError> {
        let table = ["keyed", name];
        if self.max_keys == 0 {
            let fault = "0 was given, and at least 1 is allowed";
            return Err(SpecError::new("max_keys", fault).within(&table));
        }
        let no_tier = |key: &str, tier: &str| {
            let tiers = self.tiers.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            SpecError::new(key, format!("`{tier}` is no tier, and there are: {tiers}"))
        };
        let Some(default) = self.tiers.get(&self.default) else {
            return Err(no_tier("default", &self.default).within(&table));
        };
        for (place, policy) in self.policies(name) {
            let checked = policy.check_in(partitions).and_then(|()| {
                let fault = format!(
                    "it differs from that of tier `{}`, and a key keeps its queue",
                    self.default
                );
                policy.check_fixed(default, &fault)
            });
            checked.map_err(|error| error.within(&place))?;
        }
        for (key, tier) in &self.keys {
            if let KeyTier::Named(tier) = tier {
                if !self.tiers.contains_key(tier) {
                    return Err(no_tier(key, tier).within(&["keyed", name, "keys"]));
                }
            }
        }
        Ok(())
    }

    /// Refuses what stays as a map was built: its `max_keys`, and the queue of a policy of it.
    pub(in crate::policy) fn check_next(
        &self,
        name: &str,
        max_keys: usize,
        before: &PolicySpec,
    ) -> Result<(), SpecError> {
        if self.max_keys != max_keys {
            return Err(SpecError::new("max_keys", super::STAYS).within(&["keyed", name]));
        }
        // All policies of a map have these settings in common.
        self.policies(name).try_for_each(|(tables, next)| {
            let fixed = next.check_fixed(before, super::STAYS);
            fixed.map_err(|error| error.within(&tables))
        })
    }
}
