//! A mistake in a policy that is given as data.

use std::fmt;

/// A mistake in a policy, a set of policies, or the numbers of a leg: the path of the key, and the fault.
///
/// ```
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec};
/// let leg = || LegSpec::new("slots", LegKind::semaphore(4));
/// let error = PolicySpec::new([leg(), leg()]).check().unwrap_err();
/// assert_eq!(error.to_string(), "leg[1].name: `slots` is the name of leg 1 already, and names are unique");
/// assert_eq!(error.key(), "name");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    path: Vec<PathPart>,
    fault: Box<str>,
}

/// A step of the path to a mistake: see [`SpecError::path`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPart {
    /// A key of a table.
    Key(Box<str>),
    /// A row of a list, from zero.
    Row(usize),
}

impl SpecError {
    /// A fault of `key`.
    pub fn new(key: &str, fault: impl Into<Box<str>>) -> Self {
        Self {
            path: vec![PathPart::Key(key.into())],
            fault: fault.into(),
        }
    }

    /// A fault of all that a table says.
    pub(crate) fn whole(fault: impl Into<Box<str>>) -> Self {
        Self::of_path(Vec::new(), fault)
    }

    pub(crate) fn of_path(path: Vec<PathPart>, fault: impl Into<Box<str>>) -> Self {
        let fault = fault.into();
        Self { path, fault }
    }

    /// The same mistake in the table `key`.
    #[must_use]
    pub fn within(mut self, key: &str) -> Self {
        self.path.insert(0, PathPart::Key(key.into()));
        self
    }

    /// The same mistake in a row of the list `key`.
    #[must_use]
    pub fn within_row(mut self, key: &str, row: usize) -> Self {
        self.path.insert(0, PathPart::Row(row));
        self.within(key)
    }

    /// The same mistake in the table at `path`.
    pub(crate) fn within_all(self, path: &[&str]) -> Self {
        path.iter().rev().fold(self, |error, key| error.within(key))
    }

    /// The same mistake; where a key of the table is unknown, these are allowed as well.
    pub(crate) fn allowing(mut self, keys: &str) -> Self {
        const ALLOWED: &str = "is unknown here; allowed: ";
        if self.path.len() == 1 && self.fault.contains(ALLOWED) {
            let fault = self.fault.replace(ALLOWED, &format!("{ALLOWED}{keys}, "));
            self.fault = fault.trim_end_matches(", ").into();
        }
        self
    }

    /// The way to the key, from the outermost table.
    pub fn path(&self) -> &[PathPart] {
        &self.path
    }

    /// The key; empty where a whole table is wrong.
    pub fn key(&self) -> &str {
        match self.path.last() {
            Some(PathPart::Key(key)) => key,
            _ => "",
        }
    }

    /// The value that was given, and the ones allowed.
    pub fn fault(&self) -> &str {
        &self.fault
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, part) in self.path.iter().enumerate() {
            match part {
                PathPart::Key(key) if step == 0 => f.write_str(key)?,
                PathPart::Key(key) => write!(f, ".{key}")?,
                PathPart::Row(row) => write!(f, "[{row}]")?,
            }
        }
        let colon = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{colon}{}", self.fault)
    }
}

impl std::error::Error for SpecError {}
