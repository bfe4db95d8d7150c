//! A mistake in a policy that is given as data.

use crate::file::row;
use serde::de::{Error, Expected, Unexpected};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// A mistake in a policy, a set of policies, or the numbers of a leg: the path of the key, and the fault. In a file it also has its place.
///
/// `{}` writes it in one line, and `{:#}` as JSON. The error implements the trait of serde's errors.
///
/// ```
/// # use tollgate_config::{ConfigFile, Format, LegKind, LegSpec, PolicySpec, parse};
/// let leg = || LegSpec::new("slots", LegKind::Semaphore { limit: 4 });
/// let error = PolicySpec::new([leg(), leg()]).check().unwrap_err();
/// assert_eq!(error.to_string(), "leg[1].name: `slots` is the name of leg 1 already, and names are unique");
/// assert_eq!((error.key(), error.line()), ("name", None));
///
/// let text = "[[leg]]\nname = 'requests'\nkind = 'token-bucket'\nquota = '6000/minn burst 200'";
/// let error = parse::<PolicySpec>(text, Format::Toml).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "text:4:15: key `quota`: `6000/minn burst 200` is no quota: a unit of time (ns, us, ms, s, min, h, d) expected at column 6"
/// );
/// assert_eq!((error.line(), error.column()), (Some(4), Some(15)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConfigError {
    /// Keys, and rows such as `[0]`.
    path: Vec<String>,
    fault: Box<str>,
    /// The key itself is unknown, missing, or given twice.
    is_of_key: bool,
    file: Box<str>,
    at: Option<(usize, usize)>,
}

impl ConfigError {
    /// A fault of `key`.
    pub fn new(key: &str, fault: impl Into<Box<str>>) -> Self {
        Self::whole(fault).within(key)
    }

    /// A value of `key` that is not allowed.
    pub(crate) fn given(key: &str, given: impl fmt::Display, allowed: impl fmt::Display) -> Self {
        Self::new(key, format!("{given} was given, and {allowed} is allowed"))
    }

    /// A name of something that there is not.
    pub(crate) fn unknown<'a>(given: &str, what: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let names = if names.is_empty() { "none" } else { &names };
        Self::whole(format!("`{given}` is no {what}, and there are: {names}"))
    }

    /// A fault of the whole, such as a file or a store that cannot be read.
    pub fn whole(fault: impl Into<Box<str>>) -> Self {
        let fault = fault.into();
        Self {
            fault,
            ..Self::default()
        }
    }

    /// A fault of the key itself, which the place where it stands is told later.
    pub(crate) fn of_key(fault: String) -> Self {
        let is_of_key = true;
        Self {
            is_of_key,
            ..Self::whole(fault)
        }
    }

    /// The same mistake in a leg, whose numbers were read as a table below the name of its kind.
    pub(crate) fn of_kind(mut self) -> Self {
        self.path = self.path.split_off(1.min(self.path.len()));
        if self.path.is_empty() {
            return self.within("kind");
        }
        if self.path.len() == 1 && self.is_of_key {
            let common = "allowed: name, kind, per, inherit, shadow, at_once, when, ";
            let fault = self.fault.replacen("allowed: ", common, 1);
            self.fault = fault.trim_end_matches(", ").into();
        }
        self
    }

    /// The same mistake in the table `key`.
    #[must_use]
    pub fn within(mut self, key: &str) -> Self {
        self.path.insert(0, key.into());
        self
    }

    /// The same mistake in a table within a table.
    pub(crate) fn below(self, [outer, inner]: [&str; 2]) -> Self {
        self.within(inner).within(outer)
    }

    /// The same mistake in a row of the list `key`.
    #[must_use]
    pub fn within_row(self, key: &str, row: usize) -> Self {
        self.in_row(row).within(key)
    }

    pub(crate) fn in_row(self, row: usize) -> Self {
        self.within(&format!("[{row}]"))
    }

    pub(crate) fn path(&self) -> &[String] {
        &self.path
    }

    /// The same mistake at a byte of `text`.
    pub(crate) fn at(self, text: &str, byte: usize) -> Self {
        let byte = byte + text.get(byte..).map_or(0, |value| within(value, &self.fault));
        // Errors of parsers may point into a character.
        let byte = (0..=byte.min(text.len())).rfind(|byte| text.is_char_boundary(*byte));
        let before = &text[..byte.unwrap_or(0)];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
        let (file, at) = ("text".into(), Some((line, column)));
        Self { file, at, ..self }
    }

    /// The same mistake in this file.
    pub(crate) fn of_file(mut self, file: &Path) -> Self {
        self.file = file.display().to_string().into();
        self
    }

    /// True when the key of this step of the path is wrong.
    pub(crate) fn is_of_key_at(&self, step: usize) -> bool {
        self.is_of_key && step + 1 == self.path.len()
    }

    /// The key; empty where a whole table is wrong.
    pub fn key(&self) -> &str {
        let last = self.path.last().filter(|part| row(part).is_none());
        last.map_or("", |key| key)
    }

    /// The value that was given, and the ones allowed.
    pub fn fault(&self) -> &str {
        &self.fault
    }

    /// The file; `text` for a text that came from no file, and empty without a text.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1; `None` without a text.
    pub fn line(&self) -> Option<usize> {
        self.at.map(|at| at.0)
    }

    /// The column, from 1, in characters.
    pub fn column(&self) -> Option<usize> {
        self.at.map(|at| at.1)
    }
}

/// The entry called `name`.
pub(crate) fn named<'a, T>(all: &'a BTreeMap<String, T>, name: &str, what: &str) -> Result<&'a T, ConfigError> {
    let names = all.keys().map(String::as_str);
    all.get(name).ok_or_else(|| ConfigError::unknown(name, what, names))
}

/// How far into a value in quotes a fault lies that names a column of it, as that of a quota does.
fn within(value: &str, fault: &str) -> usize {
    let (text, column) = fault.rsplit_once(" expected at column ").unwrap_or_default();
    // Written as it is read, so that a column of it is one of the file.
    let is_given = |given: &&str| value.get(1..).is_some_and(|rest| rest.starts_with(*given));
    match (text.split('`').nth(1).filter(is_given), column.parse::<usize>()) {
        (Some(given), Ok(column @ 1..)) => 1 + given.chars().take(column - 1).map(char::len_utf8).sum::<usize>(),
        _ => 0,
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?);
        }
        // A fault of a key names it.
        let named = &self.path[..self.path.len().saturating_sub(usize::from(self.is_of_key))];
        let (file, key) = (&self.file, self.key());
        let context = match self.at {
            None if file.is_empty() => named.join(".").replace(".[", "["),
            None => file.to_string(),
            Some((line, column)) if key.is_empty() || self.is_of_key => format!("{file}:{line}:{column}"),
            Some((line, column)) => format!("{file}:{line}:{column}: key `{key}`"),
        };
        let colon = if context.is_empty() { "" } else { ": " };
        write!(f, "{context}{colon}{}", self.fault)
    }
}

impl std::error::Error for ConfigError {}

/// A value as an error shows it.
fn shown(given: &Unexpected<'_>) -> String {
    match given {
        Unexpected::Str(text) => format!("`{text}`"),
        Unexpected::Bool(truth) => truth.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => number.to_string(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a table".into(),
        Unexpected::Unit => "null".into(),
        Unexpected::UnitVariant => "a name alone".into(),
        other => other.to_string(),
    }
}

/// What is allowed, in the words of a file.
fn allowed(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    let (least, most) = match &*expected {
        "u8" => (0, u64::from(u8::MAX)),
        "u16" => (0, u64::from(u16::MAX)),
        "u32" => (0, u64::from(u32::MAX)),
        "a nonzero u32" => (1, u64::from(u32::MAX)),
        "u64" | "usize" => (0, u64::MAX),
        "f32" | "f64" => return "a number".into(),
        "a string" | "string" => return "a text".into(),
        "a duration" => return "a time such as \"250ms\" or \"1m 30s\", in quotes,".into(),
        "a boolean" => return "true or false".into(),
        "a sequence" => return "a list".into(),
        other if other == "a map" || other.starts_with("struct ") => return "a table".into(),
        _ => return expected,
    };
    format!("a whole number of {least} to {most}")
}

/// What a key that is missing would say.
const MEANINGS: [(&str, &str); 13] = [
    ("above", "the load above which the leg applies"),
    ("ceiling", "the highest count per period of `quota`"),
    ("class", "the name of a class of the partitions"),
    ("classes", "the number of classes"),
    ("default", "the tier of a key that has no other"),
    ("limit", "a whole number"),
    ("load_of", "the name of the leg whose load it depends on"),
    ("max_keys", "the most keys that are kept"),
    ("of", "the name of the partitions"),
    ("patience", "the admissions of others that a class lets pass"),
    (
        "period",
        "a length such as \"10s\", or hour, day, week or month of a calendar",
    ),
    ("quota", "the rate, such as \"100/s burst 20\""),
    ("share", "what each class may take: guaranteed, lent or levels"),
];

impl Error for ConfigError {
    fn custom<T: fmt::Display>(why: T) -> Self {
        // A mistake within a value that was read by itself keeps its path.
        let why = format!("{why:#}");
        serde_json::from_str(&why).unwrap_or_else(|_| Self::whole(why))
    }

    fn invalid_type(given: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let (given, allowed) = (shown(&given), allowed(expected));
        Self::whole(format!("{given} was given, and {allowed} is allowed"))
    }

    fn invalid_value(given: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(given, expected)
    }

    fn unknown_variant(given: &str, names: &'static [&'static str]) -> Self {
        let one_of = if names.len() == 1 { "" } else { "one of " };
        let names = names.join(", ");
        Self::whole(format!("`{given}` was given, and {one_of}{names} is allowed"))
    }

    fn unknown_field(given: &str, allowed: &'static [&'static str]) -> Self {
        let allowed = allowed.join(", ");
        Self::of_key(format!("key `{given}` is unknown here; allowed: {allowed}"))
    }

    fn missing_field(key: &'static str) -> Self {
        let meaning = MEANINGS.iter().find(|(known, _)| *known == key);
        let meaning = meaning.map_or(String::new(), |(_, meaning)| format!(": {meaning}"));
        Self::of_key(format!("key `{key}` is missing{meaning}")).within(key)
    }
}
