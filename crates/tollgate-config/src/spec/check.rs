//! Checks a policy that is given as data, whole: its legs are built, and thrown away.

use super::{KeyTier, KeyedSpec, LegSpec, PolicySpec, STAYS, SpecError, When};
use crate::kind::Around;
use crate::live::build_legs;
use std::time::Duration;

/// Legs at most.
const MAX_LEGS: usize = 64;

/// The longest span that a load is measured over.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

impl KeyedSpec {
    /// Refuses tiers that do not exist, queues that differ, what stays as the map `before` was built, and policies that do not build.
    pub(crate) fn check(&self, before: Option<&Self>, around: &Around) -> Result<(), SpecError> {
        if self.max_keys == 0 {
            return Err(SpecError::given("max_keys", 0, "at least 1"));
        }
        let stays = before.filter(|before| before.max_keys != self.max_keys);
        if stays.is_some() {
            return Err(SpecError::new("max_keys", STAYS));
        }
        let tier = |key: &str, tier: &str| {
            let names = self.tiers.keys().map(String::as_str);
            let unknown = || SpecError::unknown(tier, "tier", names).within(key);
            self.tiers.get(tier).ok_or_else(unknown)
        };
        let default = tier("default", &self.default)?;
        let differs = format!(
            "it differs from that of tier `{}`, and a key keeps its queue",
            self.default
        );
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

/// Finds what is wrong with a list of legs, without a look at their numbers.
pub(crate) fn check_legs(spec: &PolicySpec) -> Result<(), SpecError> {
    if spec.legs.is_empty() {
        return Err(SpecError::new("leg", "none was given, and at least one is needed"));
    }
    for (position, leg) in spec.legs.iter().enumerate() {
        if position == MAX_LEGS {
            let fault = format!(
                "too many legs: {} were given, and {MAX_LEGS} are allowed",
                spec.legs.len()
            );
            return Err(SpecError::whole(fault).within_row("leg", position));
        }
        check_leg(spec, position, leg).map_err(|error| error.within_row("leg", position))?;
    }
    Ok(())
}

fn check_leg(spec: &PolicySpec, position: usize, leg: &LegSpec) -> Result<(), SpecError> {
    if leg.name.is_empty() {
        return Err(SpecError::new("name", "it is empty, and every leg needs one"));
    }
    if let Some(first) = spec.legs[..position].iter().position(|other| other.name == leg.name) {
        let fault = format!(
            "`{}` is the name of leg {} already, and names are unique",
            leg.name,
            first + 1
        );
        return Err(SpecError::new("name", fault));
    }
    if leg.per.as_deref() == Some("") {
        return Err(SpecError::new(
            "per",
            "it is empty, and `call` or the name of a cost is allowed",
        ));
    }
    let when = leg.when.as_ref().map_or(Ok(()), |when| check_when(leg, when));
    when.map_err(|error| error.within("when"))
}

fn check_when(leg: &LegSpec, when: &When) -> Result<(), SpecError> {
    let (above, below) = (when.above, when.below.unwrap_or_default());
    if when.load_of == leg.name {
        let fault = format!("`{}` is the leg itself, and another one is allowed", leg.name);
        return Err(SpecError::new("load_of", fault));
    }
    if when.over.is_zero() || when.over > LONGEST {
        return Err(SpecError::given(
            "over",
            humantime::format_duration(when.over),
            "above zero to 24 hours",
        ));
    }
    if !above.is_finite() || above < 0.0 {
        return Err(SpecError::given("above", above, "a number of at least 0"));
    }
    match (0.0..=above).contains(&below) {
        true => Ok(()),
        false => Err(SpecError::given(
            "below",
            below,
            format_args!("0 to {above}, which is `above`,"),
        )),
    }
}
