//! The policies of a service as data: named ones, and maps with a policy for each key.

use super::{ConfigError, PartitionsSpec, PolicySpec, STAYS, named};
use crate::file::{Node, Reader};
use crate::kind::Around;
use crate::live::build_legs;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The policies of a service as plain data: named policies, maps with a policy for each key, and limits that they share.
///
/// [`build`](Self::build) makes a [`PolicySet`](crate::PolicySet).
///
/// ```
/// # use tollgate_config::{ConfigFile, KeyTier, KeyedSpec, LegKind, LegSpec, PolicySetSpec, PolicySpec};
/// let in_flight = |limit| PolicySpec::new([LegSpec::new("in flight", LegKind::Semaphore { limit })]);
/// let mut spec = PolicySetSpec::default();
/// spec.policies.insert("global".into(), in_flight(100));
/// let mut tenants = KeyedSpec::new(10_000, "free", in_flight(2));
/// tenants.tiers.insert("paid".into(), in_flight(10));
/// tenants.keys.insert("acme".into(), KeyTier::Named("paid".into()));
/// tenants.keys.insert("initech".into(), KeyTier::Own(in_flight(3)));
/// assert_eq!(tenants.policy_of("acme"), Some(&in_flight(10)));
/// assert_eq!(tenants.policy_of("initech"), Some(&in_flight(3)));
/// assert_eq!(tenants.policy_of("any other"), Some(&in_flight(2)));
/// spec.keyed.insert("tenant".into(), tenants);
/// spec.check()?;
///
/// spec.keyed.get_mut("tenant").unwrap().keys.insert("acme".into(), KeyTier::Named("gold".into()));
/// let error = spec.check().unwrap_err();
/// assert_eq!(error.to_string(), "keyed.tenant.keys.acme: `gold` is no tier, and there are: free, paid");
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicySetSpec {
    /// The policies, by name.
    #[serde(rename = "policy", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<String, PolicySpec>,
    /// The maps with a policy for each key, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keyed: BTreeMap<String, KeyedSpec>,
    /// The limits that these policies share, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub partitions: BTreeMap<String, PartitionsSpec>,
}

/// A policy for each key, such as a tenant: that of the key's tier. Keys are text.
///
/// All policies of a map have the same settings of the queue that cannot change, since a key keeps its queue when it gets another tier.
///
/// ```
/// # use tollgate_config::{KeyedSpec, LegKind, LegSpec, PolicySpec};
/// let free = PolicySpec::new([LegSpec::new("requests", LegKind::TokenBucket { quota: "60/min".parse()? })]);
/// let tenants = KeyedSpec::new(10_000, "free", free.clone());
/// assert_eq!((tenants.max_keys, tenants.policy_of("acme")), (10_000, Some(&free)));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KeyedSpec {
    /// Keys at most, above zero: see [`Keyed`](tollgate::Keyed). It stays as the map was built.
    pub max_keys: usize,
    /// The tier of a key that has no other.
    pub default: String,
    /// The policies, by the names of the tiers.
    #[serde(rename = "tier", default)]
    pub tiers: BTreeMap<String, PolicySpec>,
    /// The keys that have another tier, or a policy of their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, KeyTier>,
}

/// The tier of one key.
///
/// ```
/// # use tollgate_config::KeyTier;
/// let tier: KeyTier = serde_json::from_str("\"paid\"")?;
/// assert_eq!(tier, KeyTier::Named("paid".into()));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum KeyTier {
    /// The tier of this name.
    Named(String),
    /// A policy for this key alone.
    Own(PolicySpec),
}

impl<'de> Deserialize<'de> for KeyTier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let node = Node::deserialize(deserializer)?;
        let read = match &node {
            Node::Text(name) => Ok(Self::Named(name.clone())),
            Node::Table(_) => PolicySpec::deserialize(Reader(&node)).map(Self::Own),
            _ => Err(Reader(&node).refuse("the name of a tier or a table with a policy")),
        };
        read.map_err(Error::custom)
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

    /// The policy of `key`; `None` when its tier does not exist, which [`check`](crate::ConfigFile::check) refuses.
    pub fn policy_of(&self, key: &str) -> Option<&PolicySpec> {
        match self.keys.get(key) {
            Some(KeyTier::Own(policy)) => Some(policy),
            Some(KeyTier::Named(tier)) => self.tiers.get(tier),
            None => self.tiers.get(&self.default),
        }
    }

    /// Refuses tiers that do not exist, queues that differ, what stays as the map `before` was built, and policies that do not build.
    pub(crate) fn check(&self, before: Option<&Self>, around: &Around) -> Result<(), ConfigError> {
        if self.max_keys == 0 {
            return Err(ConfigError::given("max_keys", 0, "at least 1"));
        }
        let stays = before.filter(|before| before.max_keys != self.max_keys);
        if stays.is_some() {
            return Err(ConfigError::new("max_keys", STAYS));
        }
        let tier = |key: &str, tier| named(&self.tiers, tier, "tier").map_err(|error| error.within(key));
        let name = &self.default;
        let default = tier("default", name)?;
        let differs = format!("it differs from that of tier `{name}`, and a key keeps its queue");
        // All policies of a map have these settings in common.
        let before = before.and_then(|before| before.tiers.get(&before.default));
        let check = |policy: &PolicySpec| {
            before.map_or(Ok(()), |before| policy.check_fixed(before, STAYS))?;
            policy.check_fixed(default, &differs)?;
            build_legs(policy, &[], around).map(drop)
        };
        for (name, policy) in &self.tiers {
            check(policy).map_err(|error| error.below(["tier", name]))?;
        }
        for (key, of) in &self.keys {
            match of {
                KeyTier::Named(name) => tier(key, name).map(drop).map_err(|error| error.within("keys")),
                KeyTier::Own(policy) => check(policy).map_err(|error| error.below(["keys", key])),
            }?;
        }
        Ok(())
    }
}
