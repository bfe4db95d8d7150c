//! Legs that hold permits until the work ends.

use super::{Around, Kind, LegKind};
use crate::spec::SpecError;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate::keyed::Shared;
use tollgate::policy::Class;
use tollgate::{Inherit, Semaphore};

/// A [`Semaphore`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SemaphoreSpec {
    /// Units at once.
    pub limit: usize,
}

impl Kind for SemaphoreSpec {
    type Limiter = Semaphore;

    fn build(&self, _: &Around<'_>) -> Result<Semaphore, SpecError> {
        let (limit, most) = (self.limit, Semaphore::MAX_PERMITS);
        match limit > most {
            true => Err(SpecError::new(
                "limit",
                format!("{limit} was given, and a whole number of 0 to {most} is allowed"),
            )),
            false => Ok(Semaphore::new(limit)),
        }
    }

    fn fits(&self, _: &Self) -> bool {
        true
    }

    fn put_in_force(&self, semaphore: &Semaphore, _: Inherit) {
        semaphore.set_limit(self.limit);
    }

    fn is_untouched(semaphore: &Semaphore) -> bool {
        semaphore.available_permits() == semaphore.limit()
    }
}

/// A [class](Class) of [`Partitions`](tollgate::policy::Partitions) that several policies share.
///
/// The partitions are those of the [`PolicySetSpec`](crate::PolicySetSpec) that the policy stands in. A policy alone has none, and is
/// refused.
///
/// ```
/// # use tollgate_config::{LegKind, LegSpec, PartitionsSpec, PolicySetSpec, PolicySpec};
/// # use tollgate::{LimiterExt, ManualClock};
/// let mut spec = PolicySetSpec::default();
/// spec.partitions.insert("gpus".into(), PartitionsSpec::levels(4, [("live", 1.0), ("batch", 0.5)]));
/// for class in ["live", "batch"] {
///     let leg = LegSpec::new("gpus", LegKind::partition("gpus", class));
///     spec.policies.insert(class.into(), PolicySpec::new([leg]));
/// }
/// let set = spec.build(&ManualClock::new())?;
/// let (live, batch) = (set.policy("live")?, set.policy("batch")?);
/// let held = live.try_admit(2)?;
/// assert!(batch.try_admit(1).is_err(), "half of them are in use");
/// assert!(live.try_admit(2).is_ok());
/// assert_eq!(set.partitions("gpus")?.in_use(), 2);
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartitionSpec {
    /// The name of the partitions.
    pub of: String,
    /// The name of the class.
    pub class: String,
}

impl Kind for PartitionSpec {
    // A key of a map may go while others hold permits.
    type Limiter = Shared<Class>;

    fn build(&self, around: &Around<'_>) -> Result<Shared<Class>, SpecError> {
        let listed = |names: Vec<&str>| match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        let Some((spec, partitions)) = around.partitions.get(&self.of) else {
            let names = listed(around.partitions.keys().map(String::as_str).collect());
            let fault = format!("`{}` is no partitions, and there are: {names}", self.of);
            return Err(SpecError::new("of", fault));
        };
        let Some(class) = spec.classes().position(|class| class == self.class) else {
            let names = listed(spec.classes().collect());
            let fault = format!("`{}` is no class of `{}`, and there are: {names}", self.class, self.of);
            return Err(SpecError::new("class", fault));
        };
        Ok(Shared::from(Arc::clone(partitions.class(class))))
    }
}

impl LegKind {
    /// A semaphore of `limit` permits.
    pub fn semaphore(limit: usize) -> Self {
        SemaphoreSpec { limit }.into()
    }

    /// The class called `class` of the partitions called `of`.
    pub fn partition(of: impl Into<String>, class: impl Into<String>) -> Self {
        let (of, class) = (of.into(), class.into());
        PartitionSpec { of, class }.into()
    }
}
