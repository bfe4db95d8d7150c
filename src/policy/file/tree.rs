//! The tree of both formats, in which each key and value has its place in the text.

use super::error::{Fault, PolicyFileError};
use std::collections::HashSet;

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

/// Reads JSON, as the standard has it.
pub(super) fn json(text: &str) -> Result<Node, PolicyFileError> {
    let strict = jsonc_parser::ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let syntax = |at, why: String| PolicyFileError::at(text, at, Fault::Syntax { why: why.into() });
    let parsed = jsonc_parser::parse_to_ast(text, &Default::default(), &strict)
        .map_err(|error| syntax(error.range().start, error.kind().to_string()))?;
    match parsed.value {
        Some(value) => of_json(text, &value),
        None => Err(syntax(text.len(), "the file is empty".into())),
    }
}

fn of_json(text: &str, value: &jsonc_parser::ast::Value<'_>) -> Result<Node, PolicyFileError> {
    use jsonc_parser::ast::Value as Json;
    let (at, found) = match value {
        Json::StringLit(string) => (string.range.start, Value::Text(string.value.to_string())),
        Json::NumberLit(number) => {
            let text = number.value;
            let whole = !text.contains(['.', 'e', 'E']);
            let found = match whole {
                true => Value::Whole(text.parse().ok()),
                false => Value::Real(text.parse().unwrap_or(f64::NAN)),
            };
            (number.range.start, found)
        }
        Json::BooleanLit(truth) => (truth.range.start, Value::Truth(truth.value)),
        Json::NullKeyword(null) => (null.range.start, Value::Other("null")),
        Json::Array(list) => {
            let items: Result<_, _> = list.elements.iter().map(|item| of_json(text, item)).collect();
            (list.range.start, Value::List(items?))
        }
        Json::Object(object) => {
            let (mut entries, mut keys) = (Vec::new(), HashSet::new());
            for property in &object.properties {
                let key = property.name.as_str();
                let at = property.range.start;
                if !keys.insert(key) {
                    let given = key.into();
                    return Err(PolicyFileError::at(text, at, Fault::DoubleKey { given }));
                }
                let node = of_json(text, &property.value)?;
                let key = key.to_owned();
                entries.push(Entry { key, at, node });
            }
            (object.range.start, Value::Table(entries))
        }
    };
    Ok(Node { at, value: found })
}
