//! Numbers that a file may write as texts: limits without end, and loads that are times.

use crate::file::{Node, Reader};
use serde::Serializer;
use serde::de::{Deserialize, Deserializer, Error};

/// Reads a value, which `accept` makes something of, or else `allowed` tells what it could have been.
fn accept<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    allowed: &'static str,
    accept: impl Fn(&Node) -> Option<T>,
) -> Result<T, D::Error> {
    let node = Node::deserialize(deserializer)?;
    accept(&node).ok_or_else(|| D::Error::custom(Reader(&node).refuse(allowed)))
}

/// `#[serde(with = "NumberOrText")]`: a number, or `"unlimited"` for the largest one.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(untagged))]
#[allow(dead_code)] // The variants are for the schema alone.
pub(crate) enum NumberOrText {
    Number(f64),
    Text(String),
}

impl NumberOrText {
    const UNLIMITED: &str = "unlimited";

    pub(crate) fn serialize<S: Serializer>(limit: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        match *limit {
            u64::MAX => serializer.serialize_str(Self::UNLIMITED),
            limit => serializer.serialize_u64(limit),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let allowed = "a whole number from 0 on or \"unlimited\"";
        accept(deserializer, allowed, |node| match node {
            Node::Whole(limit) => u64::try_from(*limit).ok(),
            Node::Text(text) => (text == Self::UNLIMITED).then_some(u64::MAX),
            _ => None,
        })
    }
}

/// `#[serde(deserialize_with = "load")]`: a number, or a time for a latency, which counts in seconds.
pub(crate) fn load<'de, D: Deserializer<'de>, T: From<f64>>(deserializer: D) -> Result<T, D::Error> {
    let allowed = "a number, or a time such as \"250ms\" for a latency,";
    let load = accept(deserializer, allowed, |node| match node {
        Node::Whole(load) => Some(*load as f64),
        Node::Real(load) => Some(*load).filter(|load| load.is_finite()),
        Node::Text(text) => humantime::parse_duration(text).ok().map(|time| time.as_secs_f64()),
        _ => None,
    });
    load.map(T::from)
}
