//! Reads values of serde from the tree, so that each error has its place in the text.

use super::error::{ConfigError, Fault};
use super::tree::{Entry, Node, Value};
use crate::spec::{PathPart, SpecError};
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use std::fmt;
use tollgate::{Quota, QuotaError};

/// A mistake, whose place is known once it has left the value that it is in.
#[derive(Debug)]
pub(super) struct Mistake {
    at: Option<usize>,
    fault: Fault,
}

impl Mistake {
    pub(super) fn in_text(self, text: &str) -> ConfigError {
        ConfigError::at(text, self.at.unwrap_or(0), self.fault)
    }

    /// In a tree whose places are numbers of these paths.
    pub(super) fn on_path(self, paths: &[Vec<PathPart>]) -> SpecError {
        let path = self.at.and_then(|at| paths.get(at)).cloned().unwrap_or_default();
        let fault = match self.fault {
            Fault::Value { why, .. } => why,
            other => other.to_string().into(),
        };
        SpecError::of_path(path, fault)
    }

    fn value(why: impl Into<Box<str>>) -> Self {
        let (key, why) = ("".into(), why.into());
        Self {
            at: None,
            fault: Fault::Value { key, why },
        }
    }

    /// At `node`, unless it is somewhere already.
    fn or_at(mut self, text: &str, node: &Node) -> Self {
        if self.at.is_none() {
            let (at, node) = self.of_path(node).unwrap_or((node.at, node));
            self.at = Some(self.place(text, node).unwrap_or(at));
            if let Fault::Value { why, .. } = &self.fault {
                self.fault = told(why).unwrap_or(self.fault);
            }
        }
        self
    }

    /// An error of a table with a kind says its path first: the key there, and its value.
    fn of_path<'n>(&mut self, table: &'n Node) -> Option<(usize, &'n Node)> {
        let Fault::Value { key, why } = &mut self.fault else {
            return None;
        };
        let (path, fault) = why.split_once(": ")?;
        let (mut node, mut last) = (table, None);
        for part in path.split('.') {
            let (name, row) = match part.split_once('[') {
                Some((name, row)) => (name, Some(row.strip_suffix(']')?.parse::<usize>().ok()?)),
                None => (part, None),
            };
            let entry = node.entry(name)?;
            (node, last) = (&entry.node, Some(entry));
            if let (Some(row), Value::List(rows)) = (row, &node.value) {
                node = rows.get(row)?;
            }
        }
        let entry = last?;
        let of_key = told(fault).is_some();
        (*key, *why) = (entry.key.as_str().into(), fault.into());
        Some((if of_key { entry.at } else { node.at }, node))
    }

    /// The value of `key`, unless it has another.
    fn of_key(mut self, given: &str) -> Self {
        match &mut self.fault {
            Fault::Value { key, .. } if key.is_empty() => *key = given.into(),
            _ => {}
        }
        self
    }

    /// The byte of the mistake in the text of a quota.
    fn place(&self, text: &str, node: &Node) -> Option<usize> {
        let (Value::Text(given), Fault::Value { why, .. }) = (&node.value, &self.fault) else {
            return None;
        };
        let error = given.parse::<Quota>().err()?;
        // Written as it is read, so that the column within it is one of the file.
        let is_verbatim = text
            .get(node.at + 1..)
            .is_some_and(|rest| rest.starts_with(given.as_str()));
        match &error {
            QuotaError::Text { column, .. } if is_verbatim && **why == *error.to_string() => {
                Some(node.at + 1 + given.chars().take(column - 1).map(char::len_utf8).sum::<usize>())
            }
            _ => None,
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}

impl std::error::Error for Mistake {}

/// The fault of a key whose error has come as a text.
fn told(why: &str) -> Option<Fault> {
    let (key, rest) = why.strip_prefix("key `")?.split_once("` ")?;
    match rest.strip_prefix("is unknown here; allowed: ") {
        Some(allowed) => {
            let (given, allowed) = (key.into(), allowed.into());
            Some(Fault::UnknownKey { given, allowed })
        }
        None => rest
            .starts_with("is missing")
            .then(|| Fault::MissingKey { key: key.into() }),
    }
}

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
        Unexpected::Other(what) => (*what).into(),
        other => other.to_string(),
    }
}

/// What is allowed, in the words of a file.
fn allowed(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    let most = match &*expected {
        "u8" => u64::from(u8::MAX),
        "u16" => u64::from(u16::MAX),
        "u32" => u64::from(u32::MAX),
        "u64" | "usize" => u64::MAX,
        "f32" | "f64" => return "a number".into(),
        "a string" | "string" => return "a text".into(),
        "a duration" => return "a time such as \"250ms\" or \"1m 30s\", in quotes,".into(),
        "a boolean" => return "true or false".into(),
        "a map" => return "a table".into(),
        "a sequence" => return "a list".into(),
        other if other.starts_with("struct ") => return "a table".into(),
        _ => return expected,
    };
    format!("a whole number of 0 to {most}")
}

fn listed(names: &[&str]) -> String {
    match names {
        [only] => format!("{only} is allowed"),
        names => format!("one of {} is allowed", names.join(", ")),
    }
}

impl Error for Mistake {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::value(why.to_string())
    }

    fn invalid_type(given: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::value(format!(
            "{} was given, and {} is allowed",
            shown(&given),
            allowed(expected)
        ))
    }

    fn invalid_value(given: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(given, expected)
    }

    fn unknown_variant(given: &str, names: &'static [&'static str]) -> Self {
        Self::value(format!("`{given}` was given, and {}", listed(names)))
    }

    fn unknown_field(given: &str, allowed: &'static [&'static str]) -> Self {
        let (given, allowed) = (given.into(), allowed.join(", ").into());
        Self {
            at: None,
            fault: Fault::UnknownKey { given, allowed },
        }
    }

    fn missing_field(key: &'static str) -> Self {
        let fault = Fault::MissingKey { key: key.into() };
        Self { at: None, fault }
    }

    fn duplicate_field(given: &'static str) -> Self {
        let fault = Fault::DoubleKey { given: given.into() };
        Self { at: None, fault }
    }
}

/// A value, and the text that it stands in.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) node: &'a Node,
    /// Keys that a struct does not know are refused.
    pub(super) is_strict: bool,
}

impl<'a> Reader<'a> {
    fn of(self, node: &'a Node) -> Self {
        Self { node, ..self }
    }

    fn read<'de, S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Mistake> {
        seed.deserialize(self)
            .map_err(|mistake| mistake.or_at(self.text, self.node))
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Mistake;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match &self.node.value {
            Value::Table(entries) => visitor.visit_map(Table::new(self, entries)),
            Value::List(items) => visitor.visit_seq(List {
                whole: self,
                items: items.iter(),
            }),
            Value::Text(text) => visitor.visit_str(text),
            Value::Truth(truth) => visitor.visit_bool(*truth),
            Value::Real(number) if number.is_finite() => visitor.visit_f64(*number),
            Value::Real(number) => Err(Error::custom(format_args!(
                "{number} was given, and a number is allowed"
            ))),
            Value::Whole(None) => Err(Error::custom(
                "a number of more than 38 digits was given, and fewer are allowed",
            )),
            Value::Whole(Some(number)) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => visitor.visit_u64(number),
                (_, Ok(number)) => visitor.visit_i64(number),
                _ => visitor.visit_f64(*number as f64),
            },
            Value::Null => visitor.visit_unit(),
            Value::Date => Err(Error::invalid_type(Unexpected::Other("a date"), &visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match &self.node.value {
            // What is derived reads its fields from a list as well.
            Value::List(_) => return Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            Value::Table(entries) if self.is_strict => {
                let unknown = entries.iter().find(|entry| !fields.contains(&&*entry.key));
                let fault = |entry: &Entry| Mistake {
                    at: Some(entry.at),
                    ..Error::unknown_field(&entry.key, fields)
                };
                unknown.map_or(Ok(()), |entry| Err(fault(entry)))?;
            }
            _ => {}
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match &self.node.value {
            Value::Text(name) => {
                let name: StrDeserializer<'_, Mistake> = name.as_str().into_deserializer();
                visitor.visit_enum(name)
            }
            Value::Table(entries) => visitor.visit_enum(MapAccessDeserializer::new(Table::new(self, entries))),
            _ => {
                let what = format!("one of {}", names.join(", "));
                self.deserialize_any(Expecting(&what)).and(Err(Mistake::value(what)))
            }
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// Refuses every value.
struct Expecting<'a>(&'a str);

impl Visitor<'_> for Expecting<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

struct List<'a> {
    whole: Reader<'a>,
    items: std::slice::Iter<'a, Node>,
}

impl<'de> SeqAccess<'de> for List<'_> {
    type Error = Mistake;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Mistake> {
        self.items.next().map(|item| self.whole.of(item).read(seed)).transpose()
    }
}

struct Table<'a> {
    whole: Reader<'a>,
    entries: std::slice::Iter<'a, Entry>,
    value: Option<&'a Entry>,
}

impl<'a> Table<'a> {
    fn new(whole: Reader<'a>, entries: &'a [Entry]) -> Self {
        Self {
            whole,
            entries: entries.iter(),
            value: None,
        }
    }
}

impl<'de> MapAccess<'de> for Table<'_> {
    type Error = Mistake;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Mistake> {
        self.value = self.entries.next();
        let Some(entry) = self.value else { return Ok(None) };
        let key: StrDeserializer<'_, Mistake> = entry.key.as_str().into_deserializer();
        let read = seed.deserialize(key).map_err(|mistake| Mistake {
            at: mistake.at.or(Some(entry.at)),
            ..mistake
        });
        read.map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Mistake> {
        let Some(entry) = self.value.take() else {
            return Err(Mistake::value("a value is asked for before its key"));
        };
        let read = self.whole.of(&entry.node).read(seed);
        read.map_err(|mistake| mistake.of_key(&entry.key))
    }
}
