//! What is wrong with what was given.

use std::fmt;
use std::path::Path;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabError(String);

impl LabError {
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    pub fn at(path: &Path, line: u64, what: impl fmt::Display) -> Self {
        Self(format!("{}:{line}: {what}", path.display()))
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LabError {}
