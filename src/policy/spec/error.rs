//! Mistakes in a policy given as data.

use std::fmt;

/// Why a [`PolicySpec`](super::PolicySpec) or a [`PolicySetSpec`](super::PolicySetSpec) is not valid: the leg, its key, and the fault.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
/// let twice = ["slots", "slots"].map(|name| LegSpec::new(name, LegRule::semaphore(1)));
/// let error = PolicySpec::new(twice).check().unwrap_err();
/// assert_eq!((error.leg(), error.key(), error.position()), (Some("slots"), "name", Some(1)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    within: Box<[Box<str>]>,
    leg: Option<(usize, Box<str>)>,
    key: Box<str>,
    fault: Box<str>,
}

impl SpecError {
    /// A fault of the value of `key`, for a [`Rule`](super::Rule) of your own. State the value that was given, and the ones allowed.
    pub fn new(key: &str, fault: impl Into<Box<str>>) -> Self {
        Self {
            within: Box::default(),
            leg: None,
            key: key.into(),
            fault: fault.into(),
        }
    }

    pub(crate) fn of_leg(mut self, position: usize, name: &str) -> Self {
        self.leg = Some((position, name.into()));
        self
    }

    pub(crate) fn within(mut self, tables: &[&str]) -> Self {
        self.within = tables.iter().map(|&table| table.into()).collect();
        self
    }

    /// The tables of a file of several policies down to the policy at fault, such as `policy` and `global`; none for a policy alone.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.within.iter().map(|table| &**table)
    }

    /// The position of the leg, from zero; `None` when no single leg is at fault.
    pub fn position(&self) -> Option<usize> {
        self.leg.as_ref().map(|leg| leg.0)
    }

    /// The name of the leg.
    pub fn leg(&self) -> Option<&str> {
        self.leg.as_ref().map(|leg| &*leg.1)
    }

    /// The key, as in a file; one within a table as `when.leg`, a row as `peak.steps[1].quota`.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value that was given, and the ones allowed.
    pub fn fault(&self) -> &str {
        &self.fault
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.within.is_empty() {
            write!(f, "{}: ", self.within.join("."))?;
        }
        match &self.leg {
            Some((_, name)) => write!(f, "leg `{name}`, key `{}`: {}", self.key, self.fault),
            None => write!(f, "key `{}`: {}", self.key, self.fault),
        }
    }
}

impl std::error::Error for SpecError {}
