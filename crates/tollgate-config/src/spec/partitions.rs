//! Partitions as data: one limit on how many run at once, which several policies share.

use super::ConfigError;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tollgate::policy::{Partitions, PartitionsError};

/// [`Partitions`] as plain data: a limit that policies of a [`PolicySetSpec`](super::PolicySetSpec) share by legs of the kind
/// `partition`. One of `guaranteed`, `lent` and `levels` says what each class may take of it.
///
/// ```
/// # use tollgate_config::PartitionsSpec;
/// let lent = Some(["live", "batch"].map(String::from).into());
/// let spec = PartitionsSpec { limit: 10, lent, ..PartitionsSpec::default() };
/// assert_eq!(spec.classes().collect::<Vec<_>>(), ["batch", "live"]);
/// ```
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PartitionsSpec {
    /// How many may run at once, of all classes.
    pub limit: usize,
    /// Each class has a part for itself, 0 to 1: [`Partitions::guaranteed`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed: Option<BTreeMap<String, f64>>,
    /// Each class may take all that is free: [`Partitions::lent`].
    #[serde(default, deserialize_with = "distinct", skip_serializing_if = "Option::is_none")]
    pub lent: Option<BTreeSet<String>>,
    /// Each class is admitted while all hold less than its part, 0 to 1: [`Partitions::levels`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<BTreeMap<String, f64>>,
}

fn distinct<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeSet<String>>, D::Error> {
    let mut classes = BTreeSet::new();
    for class in Vec::<String>::deserialize(deserializer)? {
        if let Some(twice) = classes.replace(class) {
            let fault = format!("`{twice}` was given twice, and each class once is allowed");
            return Err(D::Error::custom(fault));
        }
    }
    Ok(Some(classes))
}

fn parts_of(parts: &BTreeMap<String, f64>) -> Vec<(&str, f64)> {
    parts.iter().map(|(class, part)| (&**class, *part)).collect()
}

impl PartitionsSpec {
    /// The ways to share that are given: the key of each, and its classes in the order of their names, with their parts.
    fn ways(&self) -> impl Iterator<Item = (&'static str, Vec<(&str, f64)>)> {
        let lent = self.lent.as_ref();
        let lent = lent.map(|classes| classes.iter().map(|class| (&**class, 0.0)).collect());
        let guaranteed = self.guaranteed.as_ref().map(parts_of);
        let levels = self.levels.as_ref().map(parts_of);
        let ways = [("guaranteed", guaranteed), ("lent", lent), ("levels", levels)];
        ways.into_iter().filter_map(|(key, parts)| Some((key, parts?)))
    }

    /// The way to share, of partitions that have been checked.
    fn way(&self) -> (&'static str, Vec<(&str, f64)>) {
        self.ways().next().unwrap_or_default()
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
        const WAYS: &str = "guaranteed, lent and levels";
        let (key, parts) = (self.way().0, self.parts());
        if let Some((second, _)) = self.ways().nth(1) {
            let fault = format!("`{key}` was given as well, and one of {WAYS} is allowed");
            return Err(ConfigError::new(second, fault));
        }
        let built = match key {
            "guaranteed" => Partitions::guaranteed(self.limit, &parts),
            "lent" => Partitions::lent(self.limit, parts.len()),
            "levels" => Partitions::levels(self.limit, &parts),
            _ => return Err(ConfigError::whole(format!("one of the keys {WAYS} is missing"))),
        };
        built.map_err(|error| match error {
            PartitionsError::Part { class, given } => {
                let class = self.classes().nth(class).unwrap_or_default();
                ConfigError::given(class, given, "0 to 1").within(key)
            }
            error => ConfigError::new(key, error.to_string()),
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
        Err(ConfigError::new(key, fault))
    }
}
