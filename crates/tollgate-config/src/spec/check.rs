//! Checks a policy that is given as data, whole: its legs are built, and thrown away.

use super::{LegSpec, PolicySetSpec, PolicySpec, SpecError, When};
use crate::kind::{Around, Kinds, LivePartitions};
use crate::live::Built;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Clock, ManualClock};

/// Legs at most.
const MAX_LEGS: usize = 64;

/// The longest span that a load is measured over.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

impl PolicySpec {
    /// Finds the first mistake: all that [`build`](Self::build) would.
    ///
    /// # Errors
    /// [`SpecError`], with the path of the key.
    ///
    /// ```
    /// # use tollgate_config::{LegKind, LegSpec, PolicySpec};
    /// let mut spec = PolicySpec::new([LegSpec::new("slots", LegKind::semaphore(4))]);
    /// assert!(spec.check().is_ok());
    /// spec.leg_mut("slots").expect("it is a leg").name.clear();
    /// assert_eq!(spec.check().unwrap_err().key(), "name");
    /// ```
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_with(&Kinds::new())
    }

    /// The same with legs of these kinds as well.
    ///
    /// # Errors
    /// As those of [`check`](Self::check).
    pub fn check_with(&self, kinds: &Kinds) -> Result<(), SpecError> {
        self.check_around(&Around {
            clock: &scratch(),
            kinds,
            partitions: &LivePartitions::new(),
        })
    }

    pub(crate) fn check_around(&self, around: &Around<'_>) -> Result<(), SpecError> {
        Built::of(self, &[], around).map(drop)
    }
}

impl PolicySetSpec {
    /// Finds the first mistake: all that [`build`](Self::build) would.
    ///
    /// # Errors
    /// [`SpecError`], with the path of the key.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_with(&Kinds::new())
    }

    /// The same with legs of these kinds as well.
    ///
    /// # Errors
    /// As those of [`check`](Self::check).
    pub fn check_with(&self, kinds: &Kinds) -> Result<(), SpecError> {
        let partitions = self.build_partitions()?;
        self.check_around(&Around {
            clock: &scratch(),
            kinds,
            partitions: &partitions,
        })
    }

    /// The partitions, fresh.
    pub(crate) fn build_partitions(&self) -> Result<LivePartitions, SpecError> {
        let build = |(name, spec): (&String, &super::PartitionsSpec)| {
            let built = spec.build().map_err(|error| error.below(["partitions", name]))?;
            Ok((name.clone(), (spec.clone(), Arc::new(built))))
        };
        self.partitions.iter().map(build).collect()
    }

    pub(crate) fn check_around(&self, around: &Around<'_>) -> Result<(), SpecError> {
        if self.policies.is_empty() && self.keyed.is_empty() {
            let fault = "none was given, and at least one `policy` or `keyed` is needed";
            return Err(SpecError::new("policy", fault));
        }
        for (name, policy) in &self.policies {
            let checked = policy.check_around(around);
            checked.map_err(|error| error.below(["policy", name]))?;
        }
        for (name, keyed) in &self.keyed {
            let below = |error: SpecError| error.below(["keyed", name]);
            keyed.check().map_err(below)?;
            for (tables, policy) in keyed.policies() {
                let checked = policy.check_around(around);
                checked.map_err(|error| below(error.below(tables)))?;
            }
        }
        Ok(())
    }
}

/// A clock to try limiters on.
fn scratch() -> Clock {
    Clock::clone(&ManualClock::new())
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
