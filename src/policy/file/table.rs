//! Reading a table: its keys and their values.

use super::error::{Fault, PolicyFileError};
use super::tree::{Entry, Node, Value};
use crate::rate::{Quota, QuotaError};
use std::time::Duration;

/// A table of the file.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    entries: &'a [Entry],
}

type Result<T> = std::result::Result<T, PolicyFileError>;

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

    /// Refuses the first key that is none of these.
    pub(super) fn only(&self, allowed: &[&'static str]) -> Result<()> {
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

    pub(super) fn get(&self, key: &str) -> Option<&'a Node> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(&entry.node)
    }

    /// Where the value of `key` stands, else the table.
    pub(super) fn place(&self, key: &str) -> usize {
        self.get(key).map_or(self.at, |node| node.at)
    }

    pub(super) fn missing(&self, key: &'static str, expected: &'static str) -> PolicyFileError {
        PolicyFileError::at(self.text, self.at, Fault::MissingKey { key, expected })
    }

    pub(super) fn wrong(&self, node: &Node, key: &str, why: &str) -> PolicyFileError {
        value(self.text, node.at, key, why)
    }

    fn odd(&self, node: &Node, key: &str, allowed: &str) -> PolicyFileError {
        let given = match &node.value {
            Value::Whole(Some(number)) => number.to_string(),
            Value::Real(number) => number.to_string(),
            Value::Text(text) => format!("`{text}`"),
            other => other.kind_name().to_owned(),
        };
        self.wrong(node, key, &format!("{given} was given, and {allowed} is allowed"))
    }

    pub(super) fn text(&self, key: &str, allowed: &str) -> Result<Option<(&'a str, &'a Node)>> {
        match self.get(key) {
            None => Ok(None),
            Some(node) => match &node.value {
                Value::Text(text) => Ok(Some((text, node))),
                _ => Err(self.odd(node, key, allowed)),
            },
        }
    }

    pub(super) fn whole(&self, key: &str, least: u64, most: u64) -> Result<Option<u64>> {
        let node = self.get(key);
        node.map(|node| self.number(node, key, least, most)).transpose()
    }

    /// A list of whole numbers.
    pub(super) fn wholes(&self, key: &str, least: u64, most: u64) -> Result<Option<Vec<u64>>> {
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

    pub(super) fn real(&self, key: &str) -> Result<Option<f64>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match node.value {
            Value::Real(number) if number.is_finite() => Ok(Some(number)),
            Value::Whole(Some(number)) => Ok(Some(number as f64)),
            _ => Err(self.odd(node, key, "a number")),
        }
    }

    pub(super) fn truth(&self, key: &str) -> Result<Option<bool>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match node.value {
            Value::Truth(truth) => Ok(Some(truth)),
            _ => Err(self.odd(node, key, "true or false")),
        }
    }

    /// A time such as `"250ms"` or `"1h 30m"`.
    pub(super) fn time(&self, key: &str) -> Result<Option<Duration>> {
        const ALLOWED: &str = "a time such as \"250ms\" or \"1m 30s\", in quotes,";
        let Some((text, node)) = self.text(key, ALLOWED)? else {
            return Ok(None);
        };
        match humantime::parse_duration(text) {
            Ok(time) => Ok(Some(time)),
            Err(error) => Err(self.wrong(node, key, &format!("`{text}` is no time such as \"250ms\": {error}"))),
        }
    }

    pub(super) fn quota(&self, key: &str) -> Result<Option<Quota>> {
        let Some((text, node)) = self.text(key, "a quota such as \"100/s burst 20\", in quotes,")? else {
            return Ok(None);
        };
        match text.parse() {
            Ok(quota) => Ok(Some(quota)),
            Err(error) => {
                let mut at = node.at;
                // Written as it is read, so that the column within it is one of the file.
                if let QuotaError::Text { column, .. } = &error
                    && self.text.get(at + 1..).is_some_and(|rest| rest.starts_with(text))
                {
                    at += 1 + text.chars().take(column - 1).map(char::len_utf8).sum::<usize>();
                }
                Err(value(self.text, at, key, &error.to_string()))
            }
        }
    }

    pub(super) fn table(&self, key: &str) -> Result<Option<Table<'a>>> {
        self.get(key).map(|node| Table::of(self.text, node, key)).transpose()
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
