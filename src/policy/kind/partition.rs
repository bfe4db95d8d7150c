//! A class of partitions as a leg.

use super::*;
use crate::keyed::Shared;
use crate::policy::spec::PartitionsSpec;
use crate::policy::{Class, Partitions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A [class](crate::policy::Class) of [`Partitions`](crate::policy::Partitions) that several policies share.
///
/// The partitions are those of the [`PolicySetSpec`](crate::policy::spec::PolicySetSpec) that the policy stands in, and each leg of
/// this class, in any of its policies, holds permits of the one limit. A policy alone has no partitions, and is refused.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, LegSpec, PartitionsSpec, PolicySetSpec, PolicySpec, Sharing};
/// # use tollgate::{LimiterExt, ManualClock};
/// let mut spec = PolicySetSpec::default();
/// let levels = [("live".to_owned(), 1.0), ("batch".to_owned(), 0.5)];
/// spec.partitions.insert("gpus".into(), PartitionsSpec::new(4, Sharing::Levels(levels.into())));
/// for class in ["live", "batch"] {
///     let leg = LegSpec::new("gpus", LegRule::partition("gpus", class));
///     spec.policies.insert(class.into(), PolicySpec::new([leg]));
/// }
/// let set = spec.build(&ManualClock::new())?;
/// let (live, batch) = (set.policy("live")?, set.policy("batch")?);
/// let held = live.try_admit(2)?;
/// assert!(batch.try_admit(1).is_err(), "half of them are in use");
/// assert!(live.try_admit(2).is_ok());
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PartitionRule {
    /// The name of the partitions.
    pub of: String,
    /// The name of the class.
    pub class: String,
    /// The class itself, which a set of policies finds.
    bound: Option<Shared<Class>>,
}

/// The partitions of a running set, by name.
pub(in crate::policy) type LivePartitions = BTreeMap<String, (PartitionsSpec, Arc<Partitions>)>;

impl PartitionRule {
    /// The same rule in a set with these partitions.
    pub(in crate::policy) fn bind(&self, live: &LivePartitions) -> Self {
        let class = |(spec, partitions): &(PartitionsSpec, Arc<Partitions>)| {
            let class = spec.sharing.classes().position(|class| class == self.class)?;
            Some(Shared::from(Arc::clone(partitions.class(class))))
        };
        Self {
            bound: live.get(&self.of).and_then(class),
            ..self.clone()
        }
    }

    /// Refuses partitions and classes that are not among these.
    pub(in crate::policy) fn check_in(&self, partitions: &BTreeMap<String, PartitionsSpec>) -> Result<(), SpecError> {
        let Some(partitions) = partitions.get(&self.of) else {
            let names = partitions.keys().map(String::as_str).collect::<Vec<_>>();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            let fault = format!("`{}` is no partitions, and there are: {names}", self.of);
            return Err(SpecError::new("of", fault));
        };
        let sharing = &partitions.sharing;
        if !sharing.classes().any(|class| class == self.class) {
            let names = sharing.classes().collect::<Vec<_>>().join(", ");
            let fault = format!("`{}` is no class of `{}`, and there are: {names}", self.class, self.of);
            return Err(SpecError::new("class", fault));
        }
        Ok(())
    }
}

impl PartialEq for PartitionRule {
    fn eq(&self, other: &Self) -> bool {
        (&self.of, &self.class) == (&other.of, &other.class)
    }
}

impl Rule for PartitionRule {
    type Limiter = Shared<Class>;
    const KIND: &'static str = "partition";
    const HOLDS: bool = true;

    fn build(&self, _: &Clock) -> Result<Shared<Class>, SpecError> {
        self.bound.clone().ok_or_else(|| {
            let fault = format!(
                "`{}` was given to a policy alone, and partitions are those of several: see `PolicySetSpec`",
                self.of
            );
            SpecError::new("of", fault)
        })
    }

    fn check(&self) -> Result<(), SpecError> {
        self.build(&Clock::real()).map(drop)
    }

    fn text(&self) -> String {
        format!("{:?} of {:?}", self.class, self.of)
    }

    fn available(class: &Shared<Class>) -> Option<u64> {
        Some(class.room())
    }

    fn capacity(&self, class: &Shared<Class>) -> Option<u64> {
        Some(class.most())
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for PartitionRule {
    const KEYS: &'static [&'static str] = &["of", "class"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let of = table.text("of", "the name of partitions")?;
        let of = of.ok_or_else(|| table.missing("of", "the name of the partitions"))?;
        let class = table.text("class", "the name of a class")?;
        let class = class.ok_or_else(|| table.missing("class", "the name of a class of the partitions"))?;
        Ok(Self {
            of: of.into(),
            class: class.into(),
            bound: None,
        })
    }
}

impl LegRule {
    /// The class called `class` of the partitions called `of`.
    pub fn partition(of: impl Into<String>, class: impl Into<String>) -> Self {
        PartitionRule {
            of: of.into(),
            class: class.into(),
            bound: None,
        }
        .into()
    }
}
