//! Partitions as data: one limit on how many run at once, which several policies share.

use super::ConfigError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tollgate::policy::{Partitions, PartitionsError};

/// [`Partitions`] as plain data: a limit that policies of a [`PolicySetSpec`](super::PolicySetSpec) share by legs of the kind
/// `partition`.
///
/// ```
/// # use tollgate_config::{PartitionsSpec, ShareSpec};
/// let spec = PartitionsSpec { limit: 10, share: ShareSpec::Lent(["live", "batch"].map(String::from).into()) };
/// assert_eq!(spec.classes().collect::<Vec<_>>(), ["batch", "live"]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PartitionsSpec {
    /// How many may run at once, of all classes.
    pub limit: usize,
    /// What each class may take of it.
    pub share: ShareSpec,
}

/// What each class of [partitions](PartitionsSpec) may take. In a file it is a table of one key, such as
/// `{ levels = { live = 1.0, batch = 0.5 } }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ShareSpec {
    /// Each class has a part for itself, 0 to 1: [`Partitions::guaranteed`].
    Guaranteed(BTreeMap<String, f64>),
    /// Each class may take all that is free: [`Partitions::lent`].
    Lent(BTreeSet<String>),
    /// Each class is admitted while all hold less than its part, 0 to 1: [`Partitions::levels`].
    Levels(BTreeMap<String, f64>),
}

fn parts_of(parts: &BTreeMap<String, f64>) -> Vec<(&str, f64)> {
    parts.iter().map(|(class, part)| (&**class, *part)).collect()
}

impl PartitionsSpec {
    /// The key of the way to share, and the classes in the order of their names, with their parts.
    fn way(&self) -> (&'static str, Vec<(&str, f64)>) {
        match &self.share {
            ShareSpec::Guaranteed(parts) => ("guaranteed", parts_of(parts)),
            ShareSpec::Lent(classes) => ("lent", classes.iter().map(|class| (&**class, 0.0)).collect()),
            ShareSpec::Levels(parts) => ("levels", parts_of(parts)),
        }
    }

    /// The names of the classes, in order.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        self.way().1.into_iter().map(|(class, _)| class)
    }

    /// The part of each class, in the order of the names.
    pub(crate) fn parts(&self) -> Vec<f64> {
        self.way().1.into_iter().map(|(_, part)| part).collect()
    }

    /// Builds the partitions. The classes have the numbers of their names in order.
    pub(crate) fn build(&self) -> Result<Partitions, ConfigError> {
        let (key, parts) = (self.way().0, self.parts());
        let built = match &self.share {
            ShareSpec::Guaranteed(_) => Partitions::guaranteed(self.limit, &parts),
            ShareSpec::Lent(_) => Partitions::lent(self.limit, parts.len()),
            ShareSpec::Levels(_) => Partitions::levels(self.limit, &parts),
        };
        built.map_err(|error| match error {
            PartitionsError::Part { class, given } => {
                let class = self.classes().nth(class).unwrap_or_default();
                ConfigError::given(class, given, "0 to 1").below(["share", key])
            }
            error => ConfigError::new(key, error.to_string()).within("share"),
        })
    }

    /// Refuses what stays as partitions were built.
    pub(crate) fn check_next(&self, before: &Self) -> Result<(), ConfigError> {
        let ((key, _), (known, _)) = (self.way(), before.way());
        if key == known && self.classes().eq(before.classes()) {
            return Ok(());
        }
        let classes = before.classes().collect::<Vec<_>>().join(", ");
        let fault = format!("the classes stay, which share what is held: {known} of {classes}");
        Err(ConfigError::new(key, fault).within("share"))
    }
}
