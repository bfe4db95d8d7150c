//! The tree of both formats, in which each key and value has its place in the text.

use super::error::{ConfigError, Fault};
use crate::spec::PathPart;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::fmt;

/// A value, and the byte at which it begins.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) at: usize,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    Table(Vec<Entry>),
    List(Vec<Node>),
    Text(String),
    /// A whole number; `None` when it does not fit.
    Whole(Option<i128>),
    Real(f64),
    Truth(bool),
    Null,
    Date,
}

/// A key of a table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) at: usize,
    pub(crate) node: Node,
}

impl Node {
    /// A key of a table that has it.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        let Value::Table(entries) = &self.value else {
            return None;
        };
        entries.iter().find(|entry| entry.key == key)
    }

    /// The value of a key, of a table that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.node)
    }
}

/// The tree of a value. The place of a node is the number of its path in `paths`.
pub(super) fn of_value(value: &serde_json::Value, path: &mut Vec<PathPart>, paths: &mut Vec<Vec<PathPart>>) -> Node {
    use serde_json::Value as Json;
    let at = paths.len();
    paths.push(path.clone());
    let mut below = |part: PathPart, value: &Json| {
        path.push(part);
        let node = of_value(value, path, paths);
        path.pop();
        node
    };
    let value = match value {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Truth(*truth),
        Json::String(text) => Value::Text(text.clone()),
        Json::Number(number) => match number.as_i128() {
            Some(whole) => Value::Whole(Some(whole)),
            None => Value::Real(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::Array(items) => {
            let items = items.iter().enumerate();
            Value::List(items.map(|(row, item)| below(PathPart::Row(row), item)).collect())
        }
        Json::Object(members) => Value::Table(
            members
                .iter()
                .map(|(key, value)| {
                    let node = below(PathPart::Key(key.as_str().into()), value);
                    let (key, at) = (key.clone(), node.at);
                    Entry { key, at, node }
                })
                .collect(),
        ),
    };
    Node { at, value }
}

fn syntax(text: &str, at: usize, why: String) -> ConfigError {
    ConfigError::at(text, at, Fault::Syntax { why: why.into() })
}

/// Reads TOML.
pub(super) fn toml(text: &str) -> Result<Node, ConfigError> {
    let table = toml::de::DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(text.len(), |span| span.start);
        syntax(text, at, error.message().trim_end().replace('\n', "; "))
    })?;
    let value = of_table(table.get_ref());
    Ok(Node { at: 0, value })
}

fn of_table(table: &toml::de::DeTable<'_>) -> Value {
    let entry = |(key, value): (
        &toml::Spanned<toml::de::DeString<'_>>,
        &toml::Spanned<toml::de::DeValue<'_>>,
    )| Entry {
        key: key.get_ref().to_string(),
        at: key.span().start,
        node: of_toml(value),
    };
    let mut entries: Vec<_> = table.iter().map(entry).collect();
    // In the order of the file, so that the first mistake is the first.
    entries.sort_by_key(|entry| entry.at);
    Value::Table(entries)
}

fn of_toml(value: &toml::Spanned<toml::de::DeValue<'_>>) -> Node {
    use toml::de::DeValue;
    let found = match value.get_ref() {
        DeValue::Table(table) => of_table(table),
        DeValue::Array(list) => Value::List(list.iter().map(of_toml).collect()),
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Whole(i128::from_str_radix(number.as_str(), number.radix()).ok()),
        DeValue::Float(number) => Value::Real(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(truth) => Value::Truth(*truth),
        DeValue::Datetime(_) => Value::Date,
    };
    let at = value.span().start;
    Node { at, value: found }
}

/// Lists and tables within each other at most.
const DEEPEST: usize = 40;

/// Reads JSON, as the standard has it.
pub(super) fn json(text: &str) -> Result<Node, ConfigError> {
    let whole: &RawValue = serde_json::from_str(text).map_err(|error| json_error(text, 0, &error))?;
    of_json(text, whole, 0)
}

/// An error in the part of `text` that begins at `start`.
fn json_error(text: &str, start: usize, error: &serde_json::Error) -> ConfigError {
    let part = &text[start..];
    let lines = part.split_inclusive('\n').take(error.line().saturating_sub(1));
    let line: usize = lines.map(str::len).sum();
    let why = error.to_string();
    // Its own line and column count from the start of the part.
    let why = why.split(" at line ").next().unwrap_or_default().to_owned();
    let at = start + line + error.column().saturating_sub(1);
    syntax(text, at.min(text.len()), why)
}

fn of_json(text: &str, raw: &RawValue, depth: usize) -> Result<Node, ConfigError> {
    let part = raw.get();
    let at = part.as_ptr().addr() - text.as_ptr().addr();
    if depth > DEEPEST {
        return Err(syntax(
            text,
            at,
            format!("lists and tables stand within each other {DEEPEST} times at most"),
        ));
    }
    let wrong = |error: serde_json::Error| json_error(text, at, &error);
    let value = match part.as_bytes().first() {
        Some(b'{') => Value::Table(entries_of_json(text, part, at, depth)?),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(part).map_err(wrong)?;
            let items: Result<_, _> = items.into_iter().map(|item| of_json(text, item, depth + 1)).collect();
            Value::List(items?)
        }
        Some(b'"') => Value::Text(serde_json::from_str(part).map_err(wrong)?),
        Some(b't' | b'f') => Value::Truth(part == "true"),
        Some(b'n') => Value::Null,
        _ if part.contains(['.', 'e', 'E']) => Value::Real(part.parse().unwrap_or(f64::NAN)),
        _ => Value::Whole(part.parse().ok()),
    };
    Ok(Node { at, value })
}

fn entries_of_json(text: &str, part: &str, at: usize, depth: usize) -> Result<Vec<Entry>, ConfigError> {
    let Pairs(pairs) = serde_json::from_str(part).map_err(|error| json_error(text, at, &error))?;
    let (mut entries, mut keys) = (Vec::with_capacity(pairs.len()), HashSet::new());
    // Behind the brace, or the value before.
    let mut before = at + 1;
    for (key, raw) in pairs {
        let quote = text[before..].find('"').map_or(before, |gap| before + gap);
        if !keys.insert(key.clone()) {
            let given = key.into();
            return Err(ConfigError::at(text, quote, Fault::DoubleKey { given }));
        }
        let node = of_json(text, raw, depth + 1)?;
        before = node.at + raw.get().len();
        let at = quote;
        entries.push(Entry { key, at, node });
    }
    Ok(entries)
}

/// The members of an object, in their order.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pairs<'de>, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Pairs(Vec::new()))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
