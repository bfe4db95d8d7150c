//! The values of a file of any format, and how types of serde are read from them: each mistake has its path.

use crate::spec::ConfigError;
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use std::collections::BTreeMap;
use std::fmt;

/// A value.
#[derive(Clone, Debug)]
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
                let items = std::iter::from_fn(|| list.next_element().transpose());
                items.collect::<Result<_, _>>().map(Node::List)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut table = BTreeMap::new();
                while let Some((key, node)) = map.next_entry::<String, Node>()? {
                    if key == DATE {
                        return Ok(node);
                    }
                    let is_twice = table.contains_key(&key);
                    table.insert(key, if is_twice { Node::Twice } else { node });
                }
                Ok(Node::Table(table))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Reads types of serde from a value.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a Node);

impl Reader<'_> {
    /// The refusal of this value, since `allowed` is.
    pub(crate) fn refuse(self, allowed: &str) -> ConfigError {
        let Err(error) = self.deserialize_any(Nothing(allowed));
        error
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = ConfigError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match self.0 {
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

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match self.0 {
            Node::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &str, visitor: V) -> Result<V::Value, ConfigError> {
        visitor.visit_newtype_struct(self)
    }

    /// Refuses a list of the values of a table.
    fn deserialize_struct<V: Visitor<'de>>(self, _: &str, _: &[&str], visitor: V) -> Result<V::Value, ConfigError> {
        match self.0 {
            Node::List(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(self, _: &str, names: &[&str], visitor: V) -> Result<V::Value, ConfigError> {
        match self.0 {
            Node::Text(name) => visitor.visit_enum(name.as_str().into_deserializer()),
            Node::Table(table) if table.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(Table(table.iter(), None)))
            }
            _ => Err(self.refuse(&format!("one of {}", names.join(", ")))),
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
    type Error = ConfigError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ConfigError> {
        let read = |(row, node)| seed.deserialize(Reader(node)).map_err(|error| error.in_row(row));
        self.0.next().map(read).transpose()
    }
}

/// The keys of a table that are still to be read, and the last one.
struct Table<'a>(
    std::collections::btree_map::Iter<'a, String, Node>,
    Option<(&'a String, &'a Node)>,
);

impl<'de> MapAccess<'de> for Table<'_> {
    type Error = ConfigError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ConfigError> {
        self.1 = self.0.next();
        let read = |(key, node): (&String, &Node)| {
            let read = match node {
                Node::Twice => Err(ConfigError::of_key(format!("key `{key}` is given twice"))),
                _ => seed.deserialize(key.as_str().into_deserializer()),
            };
            read.map_err(|error: ConfigError| error.within(key))
        };
        self.1.map(read).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ConfigError> {
        let (key, node) = self.1.ok_or_else(|| ConfigError::custom("a value has no key"))?;
        seed.deserialize(Reader(node)).map_err(|error| error.within(key))
    }
}
