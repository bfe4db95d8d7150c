//! Mistakes in a policy file, with their places.

use std::fmt;

/// Why a file is no policy: the file, the line and the column, the value given there, and the ones allowed.
///
/// Printed as `policy.toml:12:9: key `burts` is unknown here; allowed: name, kind, quota, …`.
///
/// ```
/// # use tollgate::policy::file::Format;
/// # use tollgate::policy::spec::PolicySpec;
/// let error = PolicySpec::parse("max_queue = 3\nmax_wait = 'long'", Format::Toml).unwrap_err();
/// assert_eq!((error.line(), error.column()), (Some(2), Some(12)));
/// assert!(!error.is_syntax());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFileError {
    file: Box<str>,
    at: Option<(usize, usize)>,
    fault: Fault,
}

/// The fault.
///
/// ```
/// # use tollgate::policy::file::{Fault, Format};
/// # use tollgate::policy::spec::PolicySpec;
/// let error = PolicySpec::parse("max_quue = 3", Format::Toml).unwrap_err();
/// assert!(matches!(error.fault(), Fault::UnknownKey { given, .. } if &**given == "max_quue"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The file cannot be read, or its name has no known format.
    Unreadable {
        /// The error of the system.
        why: Box<str>,
    },
    /// The text is no TOML, or no JSON.
    Syntax {
        /// The error of the parser.
        why: Box<str>,
    },
    /// A key that means nothing here.
    UnknownKey {
        /// The key.
        given: Box<str>,
        /// Those that do.
        allowed: Box<[&'static str]>,
    },
    /// A key that must be there.
    MissingKey {
        /// The key.
        key: &'static str,
        /// Its expected value.
        expected: &'static str,
    },
    /// A key that is given twice.
    DoubleKey {
        /// The key.
        given: Box<str>,
    },
    /// A value that cannot be.
    Value {
        /// Its key.
        key: Box<str>,
        /// The value that was given, and the ones allowed.
        why: Box<str>,
    },
}

impl PolicyFileError {
    /// At a byte of `text`.
    pub(super) fn at(text: &str, byte: usize, fault: Fault) -> Self {
        let before = &text[..floor(text, byte)];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before[start..].chars().count() + 1;
        Self {
            file: "".into(),
            at: Some((line, column)),
            fault,
        }
    }

    /// Nowhere in particular.
    pub(in super::super) fn unreadable(why: impl Into<Box<str>>) -> Self {
        Self {
            file: "".into(),
            at: None,
            fault: Fault::Unreadable { why: why.into() },
        }
    }

    /// In this file.
    pub(in super::super) fn of_file(mut self, file: &std::path::Path) -> Self {
        self.file = file.display().to_string().into();
        self
    }

    /// The file; empty for a text that came from no file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1; `None` when the file could not be read.
    pub fn line(&self) -> Option<usize> {
        self.at.map(|at| at.0)
    }

    /// The column, from 1, in characters.
    pub fn column(&self) -> Option<usize> {
        self.at.map(|at| at.1)
    }

    /// The fault there.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// True when the text ends too early or is no text of its format: a file that is being written looks so.
    pub fn is_syntax(&self) -> bool {
        matches!(self.fault, Fault::Syntax { .. })
    }
}

/// The last place up to `byte` that is between two characters.
fn floor(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

impl fmt::Display for PolicyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = if self.file.is_empty() { "policy" } else { &self.file };
        match self.at {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {}", self.fault),
            None => write!(f, "{file}: {}", self.fault),
        }
    }
}

impl std::error::Error for PolicyFileError {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { why } | Self::Syntax { why } => f.write_str(why),
            Self::UnknownKey { given, allowed } => {
                write!(f, "key `{given}` is unknown here; allowed: {}", allowed.join(", "))
            }
            Self::MissingKey { key, expected } => write!(f, "key `{key}` is missing: {expected}"),
            Self::DoubleKey { given } => write!(f, "key `{given}` is given twice"),
            Self::Value { key, why } => write!(f, "key `{key}`: {why}"),
        }
    }
}
