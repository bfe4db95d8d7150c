//! The tree of both formats, in which each key and value has its place in the text.

use super::error::{Fault, PolicyFileError};

/// A value, and the byte at which it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: usize,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Table(Vec<Entry>),
    List(Vec<Node>),
    Text(String),
    /// A whole number; `None` when it does not fit.
    Whole(Option<i128>),
    Real(f64),
    Truth(bool),
    /// A value that no policy has: a date, a null.
    Other(&'static str),
}

/// A key of a table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) at: usize,
    pub(super) node: Node,
}

impl Value {
    /// Its kind, for an error message.
    pub(super) fn kind_name(&self) -> &'static str {
        match self {
            Self::Table(_) => "a table",
            Self::List(_) => "a list",
            Self::Text(_) => "a text",
            Self::Whole(_) | Self::Real(_) => "a number",
            Self::Truth(_) => "true or false",
            Self::Other(kind) => kind,
        }
    }
}

/// Reads TOML.
pub(super) fn toml(text: &str) -> Result<Node, PolicyFileError> {
    let table = toml::de::DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(text.len(), |span| span.start);
        let why = error.message().trim_end().replace('\n', "; ").into();
        PolicyFileError::at(text, at, Fault::Syntax { why })
    })?;
    Ok(Node {
        at: 0,
        value: of_table(table.get_ref()),
    })
}

fn of_table(table: &toml::de::DeTable<'_>) -> Value {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, value)| Entry {
            key: key.get_ref().to_string(),
            at: key.span().start,
            node: of_toml(value),
        })
        .collect();
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
        DeValue::Datetime(_) => Value::Other("a date"),
    };
    Node {
        at: value.span().start,
        value: found,
    }
}
