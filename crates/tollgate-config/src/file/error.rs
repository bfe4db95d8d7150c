//! Mistakes in a file, with their places.

use std::fmt;
use std::path::Path;

/// Why a file holds no policy: the file, the line and the column, the value given there, and the ones allowed.
///
/// ```
/// # use tollgate_config::{Format, PolicySpec, parse};
/// let text = "[[leg]]\nname = 'requests'\nkind = 'token-bucket'\nquota = '6000/minn burst 200'";
/// let error = parse::<PolicySpec>(text, Format::Toml).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "text:4:15: key `quota`: `6000/minn burst 200` is no quota: a unit of time (ns, us, ms, s, min, h, d) expected at column 6"
/// );
/// assert_eq!((error.line(), error.column()), (Some(4), Some(15)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: Box<str>,
    at: Option<(usize, usize)>,
    fault: Fault,
}

/// The fault that a [`ConfigError`] tells.
///
/// ```
/// # use tollgate_config::{Fault, Format, PolicySpec, parse};
/// let error = parse::<PolicySpec>("max_quue = 3", Format::Toml).unwrap_err();
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
        /// The keys that are known here.
        allowed: Box<str>,
    },
    /// A key that must be there.
    MissingKey {
        /// The key.
        key: Box<str>,
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

impl ConfigError {
    /// At a byte of `text`.
    pub(crate) fn at(text: &str, byte: usize, fault: Fault) -> Self {
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
    pub(crate) fn unreadable(why: impl Into<Box<str>>) -> Self {
        Self {
            file: "".into(),
            at: None,
            fault: Fault::Unreadable { why: why.into() },
        }
    }

    /// In this file.
    pub(crate) fn of_file(mut self, file: &Path) -> Self {
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

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = if self.file.is_empty() { "text" } else { &self.file };
        match self.at {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {}", self.fault),
            None => write!(f, "{file}: {}", self.fault),
        }
    }
}

impl std::error::Error for ConfigError {}

/// What a key that is missing would say.
const MEANINGS: [(&str, &str); 14] = [
    ("above", "the load above which the leg applies"),
    ("ceiling", "the highest count per period of `quota`"),
    ("class", "the name of a class of the partitions"),
    ("classes", "the number of classes"),
    ("default", "the tier of a key that has no other"),
    ("kind", "what it is"),
    ("limit", "a whole number"),
    ("load_of", "the name of the leg whose load it depends on"),
    ("max_keys", "the most keys that are kept"),
    ("name", "every leg needs one"),
    ("of", "the name of the partitions"),
    ("patience", "the admissions of others that a class lets pass"),
    (
        "period",
        "a length such as \"10s\", or hour, day, week or month of a calendar",
    ),
    ("quota", "the rate, such as \"100/s burst 20\""),
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { why } | Self::Syntax { why } => f.write_str(why),
            Self::UnknownKey { given, allowed } => {
                write!(f, "key `{given}` is unknown here; allowed: {allowed}")
            }
            Self::MissingKey { key } => {
                write!(f, "key `{key}` is missing")?;
                let meaning = MEANINGS.iter().find(|(known, _)| *known == &**key);
                meaning.map_or(Ok(()), |(_, meaning)| write!(f, ": {meaning}"))
            }
            Self::DoubleKey { given } => write!(f, "key `{given}` is given twice"),
            Self::Value { key, why } if key.is_empty() => f.write_str(why),
            Self::Value { key, why } => write!(f, "key `{key}`: {why}"),
        }
    }
}
