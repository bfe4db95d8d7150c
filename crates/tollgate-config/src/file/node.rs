//! The values of a file of any format, and how types of serde are read from them: each mistake has its path.

use crate::spec::SpecError;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;

/// A value.
#[derive(Debug)]
pub(crate) enum Node {
    Null,
    Truth(bool),
    Whole(i128),
    Real(f64),
    Text(String),
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
    /// The value of a key that is given twice.
    Twice,
}

/// The key of the map as which the crate `toml` gives a date.
const DATE: &str = "$__toml_private_datetime";

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }
            fn visit_bool<E>(self, truth: bool) -> Result<Node, E> {
                Ok(Node::Truth(truth))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
                Ok(Node::Whole(number.into()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
                Ok(Node::Whole(number.into()))
            }
            fn visit_i128<E>(self, number: i128) -> Result<Node, E> {
                Ok(Node::Whole(number))
            }
            fn visit_u128<E>(self, number: u128) -> Result<Node, E> {
                Ok(Node::Real(number as f64))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
                Ok(Node::Real(number))
            }
            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Text(text.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut table = BTreeMap::new();
                while let Some((key, node)) = map.next_entry::<String, Node>()? {
                    if key == DATE {
                        return Ok(node);
                    }
                    match table.entry(key) {
                        Entry::Occupied(mut twice) => drop(twice.insert(Node::Twice)),
                        Entry::Vacant(free) => drop(free.insert(node)),
                    }
                }
                Ok(Node::Table(table))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Reads types of serde from a value.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    node: &'a Node,
    /// The keys that a table with a kind has beside those of the kind; none of any other value.
    common: &'static [&'static str],
    /// The kinds that there are.
    kinds: &'static [&'static str],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(node: &'a Node) -> Self {
        Self::of_kind(node, &[])
    }

    fn of_kind(node: &'a Node, common: &'static [&'static str]) -> Self {
        let kinds = &[];
        Self { node, common, kinds }
    }

    /// The refusal of this value, since `allowed` is.
    pub(crate) fn refuse(self, allowed: &str) -> SpecError {
        let Err(error) = self.deserialize_any(Nothing(allowed));
        error
    }

    /// Reads what is a table, and not a list of its values.
    fn read_table<'de, V: Visitor<'de>>(self, fields: &[&str], visitor: V) -> Result<V::Value, SpecError> {
        match self.node {
            Node::Table(table) => {
                let known = |key: &str| fields.contains(&key) || self.common.contains(&key);
                match table.keys().find(|key| !self.common.is_empty() && !known(key)) {
                    Some(key) => Err(SpecError::unknown_key(key, &[self.common, fields]).within(key)),
                    None => self.deserialize_any(visitor),
                }
            }
            Node::List(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = SpecError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        match self.node {
            Node::Null | Node::Twice => visitor.visit_unit(),
            Node::Truth(truth) => visitor.visit_bool(*truth),
            Node::Whole(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => visitor.visit_u64(number),
                (_, Ok(number)) => visitor.visit_i64(number),
                _ => visitor.visit_f64(*number as f64),
            },
            Node::Real(number) if number.is_finite() => visitor.visit_f64(*number),
            Node::Real(number) => Err(Error::invalid_type(Unexpected::Float(*number), &"a number")),
            Node::Text(text) => visitor.visit_str(text),
            Node::List(items) => visitor.visit_seq(List(items.iter().enumerate())),
            Node::Table(table) => visitor.visit_map(Table(table.iter(), None)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        match self.node {
            Node::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &str, visitor: V) -> Result<V::Value, SpecError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        self.read_table(fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        match self.node {
            Node::Text(name) if self.common.is_empty() => visitor.visit_enum(name.as_str().into_deserializer()),
            Node::Table(table) if self.common.is_empty() => {
                visitor.visit_enum(MapAccessDeserializer::new(Table(table.iter(), None)))
            }
            Node::Table(_) => visitor.visit_enum(Reader { kinds: names, ..self }),
            _ => {
                let names = format!("one of {}", names.join(", "));
                let expected = if self.common.is_empty() { &*names } else { "a table" };
                Err(self.refuse(expected))
            }
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// Refuses every value.
struct Nothing<'a>(&'a str);

impl Visitor<'_> for Nothing<'_> {
    type Value = std::convert::Infallible;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The rows of a list.
struct List<'a>(std::iter::Enumerate<std::slice::Iter<'a, Node>>);

impl<'de> SeqAccess<'de> for List<'_> {
    type Error = SpecError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, SpecError> {
        let read = |(row, node)| seed.deserialize(Reader::new(node)).map_err(|error| error.in_row(row));
        self.0.next().map(read).transpose()
    }
}

/// The keys of a table that are still to be read, and the last one.
struct Table<'a>(
    std::collections::btree_map::Iter<'a, String, Node>,
    Option<(&'a str, &'a Node)>,
);

impl<'de> MapAccess<'de> for Table<'_> {
    type Error = SpecError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, SpecError> {
        let Some((key, node)) = self.0.next() else {
            return Ok(None);
        };
        self.1 = Some((key, node));
        let read = match node {
            Node::Twice => Err(SpecError::of_key(format!("key `{key}` is given twice"))),
            _ => seed.deserialize(key.as_str().into_deserializer()),
        };
        read.map(Some).map_err(|error: SpecError| error.within(key))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, SpecError> {
        let (key, node) = self.1.ok_or_else(|| SpecError::custom("a value has no key"))?;
        seed.deserialize(Reader::new(node)).map_err(|error| error.within(key))
    }
}

/// A table whose key `kind` names a variant, and whose other keys are its fields.
impl<'de> EnumAccess<'de> for Reader<'_> {
    type Error = SpecError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), SpecError> {
        const CUSTOM: &str = "custom";
        let kind = match self.node {
            Node::Table(table) => table.get("kind"),
            _ => None,
        };
        let kind = kind.ok_or_else(|| SpecError::missing_field("kind"))?;
        let read = String::deserialize(Reader::new(kind)).and_then(|kind| {
            let is_custom = !self.kinds.contains(&&*kind) && self.kinds.contains(&CUSTOM);
            let kind = StrDeserializer::new(if is_custom { CUSTOM } else { &kind });
            seed.deserialize(kind)
        });
        Ok((read.map_err(|error: SpecError| error.within("kind"))?, self))
    }
}

impl<'de> VariantAccess<'de> for Reader<'_> {
    type Error = SpecError;

    fn unit_variant(self) -> Result<(), SpecError> {
        self.read_table(&[], serde::de::IgnoredAny).map(drop)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, SpecError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, SpecError> {
        self.read_table(&[], visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        self.read_table(fields, visitor)
    }
}

/// Reads an enum from a table with a kind, which may have keys of these names beside those of the kind.
pub(crate) fn read_kind<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
    common: &'static [&'static str],
) -> Result<T, D::Error> {
    let node = Node::deserialize(deserializer)?;
    T::deserialize(Reader::of_kind(&node, common)).map_err(D::Error::custom)
}

/// The table with a kind of an enum: serde writes it as a table of one key, its name.
pub(crate) fn table_of(value: &impl Serialize) -> Result<Map<String, Value>, serde_json::Error> {
    let (kind, numbers) = match serde_json::to_value(value)? {
        Value::Object(one) => one.into_iter().next().unwrap_or_default(),
        name => (name.as_str().unwrap_or_default().into(), Value::Null),
    };
    let mut table = match numbers {
        Value::Object(table) => table,
        _ => Map::new(),
    };
    table.retain(|_, number| !number.is_null());
    table.entry("kind").or_insert(kind.into());
    Ok(table)
}

/// Writes an enum as a table with a kind.
pub(crate) fn write_kind<S: Serializer>(value: &impl Serialize, serializer: S) -> Result<S::Ok, S::Error> {
    table_of(value)
        .map_err(serde::ser::Error::custom)?
        .serialize(serializer)
}
