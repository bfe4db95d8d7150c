//! The levels of a limiter of many keys, and the tiers of their keys: which legs a key has.

use super::legs::{ALLOWED, Legs, fault};
use super::limits::{KeyLimits, KeyedLimits, RemoteLeg};
use crate::remote::error::RemoteError;
use crate::remote::step::KeyLeg;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys of one kind, such as organisations. A limiter without levels has one, with the empty name.
#[derive(Clone)]
pub(super) struct Level {
    pub(super) name: Box<str>,
    pub(super) tiers: Arc<Tiers>,
}

/// The legs by tier.
pub(super) struct Tiers {
    named: BTreeMap<Box<str>, Arc<Legs>>,
    default: Arc<Legs>,
    keys: BTreeMap<Box<str>, Arc<Legs>>,
}

impl Tiers {
    /// The tiers of `limits`. Legs that are as they were stay the same, with what is known of them.
    pub(super) fn of(limits: &KeyedLimits, before: Option<&Self>) -> Result<Self, RemoteError> {
        if limits.max_keys == 0 {
            return Err(fault("", "at most 0 keys were given, and at least 1 is needed"));
        }
        let mut named = BTreeMap::new();
        for (tier, legs) in &limits.tiers {
            let known = before.and_then(|before| before.named.get(tier));
            named.insert(tier.clone(), legs_at("tier", tier, legs, known)?);
        }
        let of_tier = |at: &str, tier: &str| {
            let known = || named.keys().map(|tier| &**tier).collect::<Vec<_>>().join(", ");
            let no_tier = || fault(at, format!("`{tier}` is no tier, and there are: {}", known()));
            named.get(tier).map(Arc::clone).ok_or_else(no_tier)
        };
        let mut keys = BTreeMap::new();
        for (key, of) in &limits.keys {
            let legs = match of {
                KeyLimits::Tier(tier) => of_tier(&format!("key `{key}`"), tier)?,
                KeyLimits::Own(legs) => legs_at("key", key, legs, before.and_then(|before| before.keys.get(key)))?,
            };
            keys.insert(key.clone(), legs);
        }
        Ok(Self {
            default: of_tier("the default", &limits.default)?,
            named,
            keys,
        })
    }

    pub(super) fn legs(&self, key: &str) -> &Arc<Legs> {
        self.keys.get(key).unwrap_or(&self.default)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Legs>> {
        self.named.values().chain(self.keys.values())
    }

    pub(super) fn have_permits(&self) -> bool {
        self.all().any(|legs| legs.has_permits())
    }
}

/// The legs of a tier or a key, the `known` ones if these are the same.
fn legs_at(of: &str, name: &str, legs: &[RemoteLeg], known: Option<&Arc<Legs>>) -> Result<Arc<Legs>, RemoteError> {
    let legs = Legs::of(legs).map_err(|error| match error {
        RemoteError::Keyed { at, fault: why } if at.is_empty() => fault(&format!("{of} `{name}`"), why),
        RemoteError::Keyed { at, fault: why } => fault(&format!("{of} `{name}`, {at}"), why),
        other => other,
    })?;
    Ok(match known {
        Some(known) if **known == legs => Arc::clone(known),
        _ => Arc::new(legs),
    })
}

impl Level {
    pub(super) fn error(given: &str, known: impl Into<Box<str>>) -> RemoteError {
        let (given, known) = (given.into(), known.into());
        RemoteError::Level { given, known }
    }

    /// Checks that one step can decide on all levels.
    pub(super) fn check(levels: &[Self]) -> Result<(), RemoteError> {
        for (at, level) in levels.iter().enumerate() {
            let others = levels[..at].iter();
            if levels.len() > 1 && level.name.is_empty() || level.name.contains([':', '/']) {
                return Err(Self::error(&level.name, "a name without `:` and `/`"));
            }
            if others.clone().any(|other| other.name == level.name) {
                return Err(Self::error(&level.name, "each name once"));
            }
            if level.tiers.have_permits() && others.clone().any(|other| other.tiers.have_permits()) {
                let why = "permits were given at a second level, and one step holds permits at one of them";
                return Err(fault(&format!("level `{}`", level.name), why));
            }
        }
        let most = |level: &Self| level.tiers.all().map(|legs| legs.counted.len()).max();
        let given: usize = levels.iter().filter_map(most).sum();
        if given > KeyLeg::MOST {
            return Err(fault(
                "",
                format!("{given} legs were given at all levels, and {ALLOWED}"),
            ));
        }
        Ok(())
    }

    pub(super) fn position(levels: &[Self], name: &str) -> Result<usize, RemoteError> {
        let found = levels.iter().position(|level| *level.name == *name);
        found.ok_or_else(|| {
            let known: Vec<_> = levels.iter().map(|level| format!("`{}`", level.name)).collect();
            Self::error(name, known.join(", "))
        })
    }
}
