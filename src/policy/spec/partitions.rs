//! Partitions as data: one limit on how many run at once, which several policies share.

use super::SpecError;
use crate::policy::{Partitions, PartitionsError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// [`Partitions`](crate::policy::Partitions) as plain data: a limit that policies of a
/// [`PolicySetSpec`](super::PolicySetSpec) share by [legs](super::PartitionRule) of its classes.
///
/// ```
/// # use tollgate::policy::spec::{PartitionsSpec, Sharing};
/// let spec = PartitionsSpec::new(10, Sharing::Lent(["batch".to_owned(), "live".to_owned()].into()));
/// assert_eq!(spec.sharing.classes().collect::<Vec<_>>(), ["batch", "live"]);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PartitionsSpec {
    /// How many may run at once, of all classes.
    pub limit: usize,
    /// The classes, and what each of them may take.
    pub sharing: Sharing,
}

/// The classes of a [`PartitionsSpec`] by name, and what each of them may take of the limit. There are 1 to 256. Parts are 0 to 1.
///
/// ```
/// # use tollgate::policy::spec::{PartitionsSpec, Sharing};
/// let sharing = Sharing::Guaranteed([("batch".into(), 0.3), ("live".into(), 0.7)].into());
/// let shared = PartitionsSpec::new(10, sharing);
/// assert_eq!(shared.sharing.classes().collect::<Vec<_>>(), ["batch", "live"]);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Sharing {
    /// Each class has a part for itself: [`Partitions::guaranteed`](crate::policy::Partitions::guaranteed).
    Guaranteed(BTreeMap<String, f64>),
    /// Each class may take all that is free: [`Partitions::lent`](crate::policy::Partitions::lent).
    Lent(BTreeSet<String>),
    /// Each class is admitted while all hold less than its part: [`Partitions::levels`](crate::policy::Partitions::levels).
    Levels(BTreeMap<String, f64>),
}

impl Sharing {
    /// The key under which it stands in a file.
    pub(in crate::policy) fn key(&self) -> &'static str {
        match self {
            Self::Guaranteed(_) => "guaranteed",
            Self::Lent(_) => "lent",
            Self::Levels(_) => "levels",
        }
    }

    /// The names of the classes, in order.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        let (parts, lent) = match self {
            Self::Guaranteed(parts) | Self::Levels(parts) => (Some(parts), None),
            Self::Lent(classes) => (None, Some(classes)),
        };
        let parts = parts.into_iter().flat_map(BTreeMap::keys);
        parts.chain(lent.into_iter().flatten()).map(String::as_str)
    }

    /// The part of each class, in the order of the names.
    fn parts(&self) -> Vec<f64> {
        match self {
            Self::Guaranteed(parts) | Self::Levels(parts) => parts.values().copied().collect(),
            Self::Lent(classes) => vec![0.0; classes.len()],
        }
    }

    /// The parts as a text, for reports of changes.
    pub(in crate::policy) fn text(&self) -> String {
        let mut text = String::new();
        for (class, part) in self.classes().zip(self.parts()) {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = match self {
                Self::Lent(_) => write!(text, "{comma}{class}"),
                _ => write!(text, "{comma}{class} {part}"),
            };
        }
        text
    }

    fn fault(&self) -> impl Fn(PartitionsError) -> SpecError {
        let (key, class) = (self.key(), self.classes().map(str::to_owned).collect::<Vec<_>>());
        move |error| match error {
            PartitionsError::Part { class: of, given } => {
                let fault = format!(
                    "class `{}`: a part of {given} was given, and 0 to 1 is allowed",
                    class[of]
                );
                SpecError::new(key, fault)
            }
            error => SpecError::new(key, error.to_string()),
        }
    }
}

impl PartitionsSpec {
    /// A limit, and how its classes share it.
    pub fn new(limit: usize, sharing: Sharing) -> Self {
        Self { limit, sharing }
    }

    /// Builds the partitions. The classes have the numbers of their names in order.
    pub(in crate::policy) fn build(&self) -> Result<Partitions, SpecError> {
        let parts = self.sharing.parts();
        let built = match &self.sharing {
            Sharing::Guaranteed(_) => Partitions::guaranteed(self.limit, &parts),
            Sharing::Lent(_) => Partitions::lent(self.limit, parts.len()),
            Sharing::Levels(_) => Partitions::levels(self.limit, &parts),
        };
        built.map_err(self.sharing.fault())
    }

    /// Refuses what stays as partitions were built.
    pub(in crate::policy) fn check_next(&self, before: &Self) -> Result<(), SpecError> {
        let stays = self.sharing.key() == before.sharing.key() && self.sharing.classes().eq(before.sharing.classes());
        if stays {
            return Ok(());
        }
        let fault = format!(
            "{} was given, and the classes, which share what is held, stay: {} = {}",
            self.sharing.text(),
            before.sharing.key(),
            before.sharing.text()
        );
        Err(SpecError::new(self.sharing.key(), fault))
    }

    /// Puts these numbers in force.
    pub(in crate::policy) fn put_in_force(&self, partitions: &Partitions) {
        // Numbers that have been checked are not refused; refused ones would leave the old in force.
        let _ = partitions.set(self.limit, &self.sharing.parts());
    }
}
