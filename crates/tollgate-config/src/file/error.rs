//! Mistakes in a file, with their places.

use crate::spec::SpecError;
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
    fault: Box<str>,
}

impl ConfigError {
    /// At a byte of `text`.
    pub(crate) fn at(text: &str, byte: usize, fault: impl Into<Box<str>>) -> Self {
        // Errors of parsers may point into a character.
        let byte = (0..=byte.min(text.len())).rfind(|byte| text.is_char_boundary(*byte));
        let before = &text[..byte.unwrap_or(0)];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
        Self {
            at: Some((line, column)),
            ..Self::nowhere(fault)
        }
    }

    /// Nowhere in particular.
    pub(crate) fn nowhere(fault: impl Into<Box<str>>) -> Self {
        Self {
            file: "text".into(),
            at: None,
            fault: fault.into(),
        }
    }

    /// A mistake whose key or value stands at this byte of `text`.
    pub(super) fn of_spec(text: &str, byte: usize, error: &SpecError) -> Self {
        let (key, fault) = (error.key(), error.fault());
        if error.is_of_key() || key.is_empty() {
            return Self::at(text, byte, fault);
        }
        Self::at(
            text,
            byte + within(&text[byte..], fault),
            format!("key `{key}`: {fault}"),
        )
    }

    /// In this file.
    pub(crate) fn of_file(mut self, file: &Path) -> Self {
        self.file = file.display().to_string().into();
        self
    }

    /// The file; `text` for a text that came from no file.
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
}

/// How far into a value in quotes a fault lies that names a column of it, as that of a quota does.
fn within(value: &str, fault: &str) -> usize {
    let Some((given, column)) = fault.rsplit_once(" expected at column ") else {
        return 0;
    };
    // Written as it is read, so that a column of it is one of the file.
    let given = given
        .split('`')
        .nth(1)
        .filter(|given| value.get(1..).is_some_and(|rest| rest.starts_with(*given)));
    match (given, column.parse::<usize>()) {
        (Some(given), Ok(column)) => 1 + given.chars().take(column - 1).map(char::len_utf8).sum::<usize>(),
        _ => 0,
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, at, fault } = self;
        match at {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {fault}"),
            None => write!(f, "{file}: {fault}"),
        }
    }
}

impl std::error::Error for ConfigError {}
