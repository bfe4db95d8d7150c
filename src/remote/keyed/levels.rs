//! The levels of a limiter of many keys, and the tiers of their keys: which legs a key has.

use super::legs::Legs;
use crate::policy::spec::{KeyTier, KeyedSpec, SpecError};
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
    named: BTreeMap<String, Arc<Legs>>,
    default: Arc<Legs>,
    keys: BTreeMap<String, Arc<Legs>>,
}

impl Tiers {
    /// The tiers of `spec`. Legs that are as they were stay the same, with what is known of them.
    pub(super) fn of(spec: &KeyedSpec, before: Option<&Self>) -> Result<Self, SpecError> {
        let same = |known: Option<&Arc<Legs>>, legs: Legs| match known {
            Some(known) if **known == legs => Arc::clone(known),
            _ => Arc::new(legs),
        };
        spec.check("keys", &BTreeMap::new())?;
        let mut named = BTreeMap::new();
        for (tier, policy) in &spec.tiers {
            let legs = Legs::of(policy).map_err(|error| error.within(&["tier", tier]))?;
            let known = before.and_then(|before| before.named.get(tier));
            named.insert(tier.clone(), same(known, legs));
        }
        let mut keys = BTreeMap::new();
        for (key, tier) in &spec.keys {
            let legs = match tier {
                KeyTier::Named(tier) => Arc::clone(&named[tier]),
                KeyTier::Own(policy) => {
                    let legs = Legs::of(policy).map_err(|error| error.within(&["keys", key]))?;
                    same(before.and_then(|before| before.keys.get(key)), legs)
                }
            };
            keys.insert(key.clone(), legs);
        }
        Ok(Self {
            default: Arc::clone(&named[&spec.default]),
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
                let fault = "`semaphore` was given at a second level, and one step holds permits at one of them";
                return Err(SpecError::new("kind", fault).within(&["level", &level.name]).into());
            }
        }
        let most = |level: &Self| level.tiers.all().map(|legs| legs.counted.len()).max();
        let given: usize = levels.iter().filter_map(most).sum();
        if given > KeyLeg::MOST {
            let fault = format!(
                "{given} were given at all levels, and 1 to {} are allowed",
                KeyLeg::MOST
            );
            return Err(SpecError::new("leg", fault).into());
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
