//! Partitions as data: one limit on how many run at once, which several policies share.

use super::SpecError;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tollgate::policy::{Partitions, PartitionsError};

/// [`Partitions`] as plain data: a limit that policies of a [`PolicySetSpec`](super::PolicySetSpec) share by legs of the kind
/// `partition`. One of `guaranteed`, `lent` and `levels` says what each class may take of it.
///
/// ```
/// # use tollgate_config::PartitionsSpec;
/// let spec = PartitionsSpec::lent(10, ["live", "batch"]);
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
    let (given, mut classes) = (Vec::<String>::deserialize(deserializer)?, BTreeSet::new());
    for class in given {
        if let Some(twice) = classes.replace(class) {
            return Err(D::Error::custom(format_args!(
                "`{twice}` was given twice, and each class once is allowed"
            )));
        }
    }
    Ok(Some(classes))
}

fn parts_of<S: Into<String>>(parts: impl IntoIterator<Item = (S, f64)>) -> Option<BTreeMap<String, f64>> {
    Some(parts.into_iter().map(|(class, part)| (class.into(), part)).collect())
}

impl PartitionsSpec {
    /// Each class has a part for itself.
    pub fn guaranteed<S: Into<String>>(limit: usize, parts: impl IntoIterator<Item = (S, f64)>) -> Self {
        Self {
            limit,
            guaranteed: parts_of(parts),
            ..Self::default()
        }
    }

    /// Each class may take all that is free.
    pub fn lent<S: Into<String>>(limit: usize, classes: impl IntoIterator<Item = S>) -> Self {
        Self {
            limit,
            lent: Some(classes.into_iter().map(Into::into).collect()),
            ..Self::default()
        }
    }

    /// Each class is admitted while all hold less than its part.
    pub fn levels<S: Into<String>>(limit: usize, parts: impl IntoIterator<Item = (S, f64)>) -> Self {
        Self {
            limit,
            levels: parts_of(parts),
            ..Self::default()
        }
    }

    /// The names of the classes, in order.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        let parts = self.guaranteed.iter().chain(&self.levels).flat_map(BTreeMap::keys);
        parts.chain(self.lent.iter().flatten()).map(String::as_str)
    }

    /// The key that says how it is shared.
    fn key(&self) -> &'static str {
        match (&self.guaranteed, &self.lent) {
            (Some(_), _) => "guaranteed",
            (None, Some(_)) => "lent",
            (None, None) => "levels",
        }
    }

    /// The part of each class, in the order of the names.
    pub(crate) fn parts(&self) -> Vec<f64> {
        match &self.lent {
            Some(classes) => vec![1.0; classes.len()],
            None => self
                .guaranteed
                .iter()
                .chain(&self.levels)
                .flat_map(BTreeMap::values)
                .copied()
                .collect(),
        }
    }

    /// Builds the partitions. The classes have the numbers of their names in order.
    pub(crate) fn build(&self) -> Result<Partitions, SpecError> {
        const WAYS: &str = "guaranteed, lent and levels";
        let ways = [
            ("guaranteed", self.guaranteed.is_some()),
            ("lent", self.lent.is_some()),
            ("levels", self.levels.is_some()),
        ];
        let mut given = ways.iter().filter(|(_, is_given)| *is_given);
        let Some((first, _)) = given.next() else {
            return Err(SpecError::whole(format!("one of the keys {WAYS} is missing")));
        };
        if let Some((second, _)) = given.next() {
            let fault = format!("`{first}` was given as well, and one of {WAYS} is allowed");
            return Err(SpecError::new(second, fault));
        }
        let parts = self.parts();
        let built = match *first {
            "guaranteed" => Partitions::guaranteed(self.limit, &parts),
            "lent" => Partitions::lent(self.limit, parts.len()),
            _ => Partitions::levels(self.limit, &parts),
        };
        built.map_err(|error| match error {
            PartitionsError::Part { class, given } => {
                let fault = format!("{given} was given, and 0 to 1 is allowed");
                SpecError::new(self.classes().nth(class).unwrap_or_default(), fault).within(self.key())
            }
            error => SpecError::new(self.key(), error.to_string()),
        })
    }

    /// Refuses what stays as partitions were built.
    pub(crate) fn check_next(&self, before: &Self) -> Result<(), SpecError> {
        let stays = self.key() == before.key() && self.classes().eq(before.classes());
        if stays {
            return Ok(());
        }
        let known = before.classes().collect::<Vec<_>>().join(", ");
        let fault = format!(
            "the classes stay, which share what is held: {} of {known}",
            before.key()
        );
        Err(SpecError::new(self.key(), fault))
    }
}
