//! Reading a table: its keys and their values.

use super::error::{Fault, PolicyFileError};
use super::tree::{Entry, Node, Value};
use crate::rate::{Quota, QuotaError};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A table of a policy file, such as a leg, for a kind of your own: see [`FromTable`](super::FromTable).
///
/// A method reads the value of a key: `None` when there is no such key, and an error at its line and column when it is none of that
/// type.
///
/// ```
/// # use tollgate::policy::file::{Format, FromTable, Kinds, PolicyFileError, Table};
/// # use tollgate::policy::spec::{PolicySpec, Rule, SpecError};
/// # use tollgate::{Clock, LeakyBucket, Quota};
/// /// A spacing, with a factor.
/// #[derive(Clone, Debug, PartialEq)]
/// struct Spaced(Quota, f64);
/// # impl Rule for Spaced {
/// #     type Limiter = LeakyBucket;
/// #     const KIND: &'static str = "spaced";
/// #     fn build(&self, _: &Clock) -> Result<LeakyBucket, SpecError> { Ok(LeakyBucket::new(self.0)) }
/// #     fn text(&self) -> String { self.0.to_string() }
/// # }
/// impl FromTable for Spaced {
///     const KEYS: &'static [&'static str] = &["quota", "factor"];
///     fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
///         let quota = table.quota("quota")?.ok_or_else(|| table.missing("quota", "a rate"))?;
///         Ok(Self(quota, table.real_within("factor", 0.1, 10.0)?.unwrap_or(1.0)))
///     }
/// }
/// let kinds = Kinds::standard().with::<Spaced>();
/// let leg = |numbers: &str| format!("[[leg]]\nname = 'a'\nkind = 'spaced'\n{numbers}");
/// assert!(kinds.parse::<PolicySpec>(&leg("quota = '5/s'"), Format::Toml).is_ok());
/// let error = kinds.parse::<PolicySpec>(&leg("quota = '5/s'\nfactor = 99.0"), Format::Toml).unwrap_err();
/// assert_eq!(error.line(), Some(5));
/// ```
#[derive(Clone, Copy)]
pub struct Table<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    entries: &'a [Entry],
}

type Result<T> = std::result::Result<T, PolicyFileError>;

impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.entries.iter().map(|entry| &entry.key);
        f.debug_list().entries(keys).finish()
    }
}

impl<'a> Table<'a> {
    /// `node` as a table, called `key` if it is none.
    pub(super) fn of(text: &'a str, node: &'a Node, key: &str) -> Result<Self> {
        match &node.value {
            Value::Table(entries) => Ok(Self {
                text,
                at: node.at,
                entries,
            }),
            other => Err(value(
                text,
                node.at,
                key,
                &format!("{} was given, and a table is allowed", other.kind_name()),
            )),
        }
    }

    /// Refuses the first key that is none of these. Those of a leg have been checked.
    ///
    /// # Errors
    /// That key, with its line and column.
    pub fn only(&self, allowed: &[&'static str]) -> Result<()> {
        match self.entries.iter().find(|entry| !allowed.contains(&entry.key.as_str())) {
            None => Ok(()),
            Some(entry) => {
                let fault = Fault::UnknownKey {
                    given: entry.key.as_str().into(),
                    allowed: allowed.into(),
                };
                Err(PolicyFileError::at(self.text, entry.at, fault))
            }
        }
    }

    /// True when there is such a key.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Node> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(&entry.node)
    }

    /// Where the value of `key` stands, else the table.
    pub(super) fn place(&self, key: &str) -> usize {
        self.get(key).map_or(self.at, |node| node.at)
    }

    /// The error of a key that must be there: its `expected` value in words.
    pub fn missing(&self, key: &'static str, expected: &'static str) -> PolicyFileError {
        PolicyFileError::at(self.text, self.at, Fault::MissingKey { key, expected })
    }

    /// The error of a value that cannot be: the value that was given, and the ones allowed.
    pub fn wrong(&self, key: &str, why: &str) -> PolicyFileError {
        value(self.text, self.place(key), key, why)
    }

    /// The error of a value that is none of these names.
    pub(super) fn not_among(
        &self,
        key: &str,
        given: &str,
        names: impl IntoIterator<Item = &'static str>,
    ) -> PolicyFileError {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        self.wrong(key, &format!("`{given}` was given, and one of {names} is allowed"))
    }

    pub(super) fn odd(&self, node: &Node, key: &str, allowed: &str) -> PolicyFileError {
        let given = match &node.value {
            Value::Whole(Some(number)) => number.to_string(),
            Value::Real(number) => number.to_string(),
            Value::Text(text) => format!("`{text}`"),
            other => other.kind_name().to_owned(),
        };
        let why = format!("{given} was given, and {allowed} is allowed");
        value(self.text, node.at, key, &why)
    }

    /// A text. `allowed` says in words which ones are, for the error of another type.
    ///
    /// # Errors
    /// Another type.
    pub fn text(&self, key: &str, allowed: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(node) => match &node.value {
                Value::Text(text) => Ok(Some(text)),
                _ => Err(self.odd(node, key, allowed)),
            },
        }
    }

    /// One of the named values.
    ///
    /// # Errors
    /// Another type, or another name.
    pub fn choice<T: Clone>(&self, key: &str, choices: &[(&'static str, T)]) -> Result<Option<T>> {
        let names = || choices.iter().map(|(name, _)| *name);
        let allowed = format!("one of {}", names().collect::<Vec<_>>().join(", "));
        let Some(given) = self.text(key, &allowed)? else {
            return Ok(None);
        };
        match choices.iter().find(|(name, _)| *name == given) {
            Some((_, choice)) => Ok(Some(choice.clone())),
            None => Err(self.not_among(key, given, names())),
        }
    }

    /// A whole number of `least` to `most`.
    ///
    /// # Errors
    /// Another type, or another number.
    pub fn whole(&self, key: &str, least: u64, most: u64) -> Result<Option<u64>> {
        let node = self.get(key);
        node.map(|node| self.number(node, key, least, most)).transpose()
    }

    /// A list of whole numbers, each of `least` to `most`.
    ///
    /// # Errors
    /// Another type, or another number.
    pub fn wholes(&self, key: &str, least: u64, most: u64) -> Result<Option<Vec<u64>>> {
        let numbers = |nodes: &[Node]| {
            let numbers = nodes.iter().map(|node| self.number(node, key, least, most));
            numbers.collect()
        };
        self.list(key)?.map(numbers).transpose()
    }

    fn number(&self, node: &Node, key: &str, least: u64, most: u64) -> Result<u64> {
        let number = match node.value {
            Value::Whole(Some(number)) => u64::try_from(number).ok(),
            _ => None,
        };
        match number.filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(number),
            None => Err(self.odd(node, key, &format!("a whole number of {least} to {most}"))),
        }
    }

    /// A number.
    ///
    /// # Errors
    /// Another type, or a number that is not finite.
    pub fn real(&self, key: &str) -> Result<Option<f64>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match node.value {
            Value::Real(number) if number.is_finite() => Ok(Some(number)),
            Value::Whole(Some(number)) => Ok(Some(number as f64)),
            _ => Err(self.odd(node, key, "a number")),
        }
    }

    /// A number of `least` to `most`.
    ///
    /// # Errors
    /// Another type, or another number.
    pub fn real_within(&self, key: &str, least: f64, most: f64) -> Result<Option<f64>> {
        let number = self.real(key)?;
        if let Some(number) = number.filter(|number| !(least..=most).contains(number)) {
            let why = format!("{number} was given, and {least} to {most} is allowed");
            return Err(self.wrong(key, &why));
        }
        Ok(number)
    }

    /// True or false.
    ///
    /// # Errors
    /// Another type.
    pub fn truth(&self, key: &str) -> Result<Option<bool>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match node.value {
            Value::Truth(truth) => Ok(Some(truth)),
            _ => Err(self.odd(node, key, "true or false")),
        }
    }

    /// A time such as `"250ms"` or `"1h 30m"`.
    ///
    /// # Errors
    /// Another type, or a text that is no time.
    pub fn time(&self, key: &str) -> Result<Option<Duration>> {
        const ALLOWED: &str = "a time such as \"250ms\" or \"1m 30s\", in quotes,";
        let Some(text) = self.text(key, ALLOWED)? else {
            return Ok(None);
        };
        match humantime::parse_duration(text) {
            Ok(time) => Ok(Some(time)),
            Err(error) => Err(self.wrong(key, &format!("`{text}` is no time such as \"250ms\": {error}"))),
        }
    }

    /// A rate such as `"100/s burst 20"`.
    ///
    /// # Errors
    /// Another type, or a text that is no [`Quota`]: the column is that of the mistake in it.
    pub fn quota(&self, key: &str) -> Result<Option<Quota>> {
        let Some(text) = self.text(key, "a quota such as \"100/s burst 20\", in quotes,")? else {
            return Ok(None);
        };
        match text.parse() {
            Ok(quota) => Ok(Some(quota)),
            Err(error) => {
                let mut at = self.place(key);
                // Written as it is read, so that the column within it is one of the file.
                let is_verbatim = self.text.get(at + 1..).is_some_and(|rest| rest.starts_with(text));
                if let (QuotaError::Text { column, .. }, true) = (&error, is_verbatim) {
                    at += 1 + text.chars().take(column - 1).map(char::len_utf8).sum::<usize>();
                }
                Err(value(self.text, at, key, &error.to_string()))
            }
        }
    }

    /// A table.
    ///
    /// # Errors
    /// Another type.
    pub fn table(&self, key: &str) -> Result<Option<Table<'a>>> {
        self.get(key).map(|node| Table::of(self.text, node, key)).transpose()
    }

    /// A whole number of `least` on, as a size: the largest one when it is larger.
    pub(super) fn size(&self, key: &str, least: u64) -> Result<Option<usize>> {
        let size = self.whole(key, least, u64::MAX)?;
        Ok(size.map(|size| usize::try_from(size).unwrap_or(usize::MAX)))
    }

    /// A table of any keys, each of which `read` reads; empty without it.
    pub(super) fn map<T>(&self, key: &str, read: impl Fn(&'a Entry) -> Result<T>) -> Result<BTreeMap<String, T>> {
        let entries = self.table(key)?.map_or(&[][..], |table| table.entries).iter();
        entries.map(|entry| Ok((entry.key.clone(), read(entry)?))).collect()
    }

    /// A table of any keys, each with a number of `least` to `most`.
    pub(super) fn reals_within(&self, key: &str, least: f64, most: f64) -> Result<Option<BTreeMap<String, f64>>> {
        let Some(table) = self.table(key)? else { return Ok(None) };
        let mut numbers = BTreeMap::new();
        for Entry { key, .. } in table.entries {
            if let Some(number) = table.real_within(key, least, most)? {
                numbers.insert(key.clone(), number);
            }
        }
        Ok(Some(numbers))
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<&'a [Node]>> {
        match self.get(key) {
            None => Ok(None),
            Some(node) => match &node.value {
                Value::List(items) => Ok(Some(items)),
                _ => Err(self.odd(node, key, "a list")),
            },
        }
    }
}

fn value(text: &str, at: usize, key: &str, why: &str) -> PolicyFileError {
    let fault = Fault::Value {
        key: key.into(),
        why: why.into(),
    };
    PolicyFileError::at(text, at, fault)
}
