//! Numbers that a file may write as texts: limits without end, and loads that are times.

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Serialize, Serializer};
use std::fmt;

/// A number or a text.
struct NumberOr<T> {
    expected: &'static str,
    of_number: fn(f64) -> Option<T>,
    of_whole: fn(u64) -> T,
    of_text: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for NumberOr<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        Ok((self.of_whole)(number))
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => {
                (self.of_number)(number as f64).ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
            }
        }
    }
    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        (self.of_number)(number).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.of_text)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// `#[serde(with = "limit")]`: a number, or `"unlimited"` for the largest one.
pub(crate) mod limit {
    use super::*;

    const UNLIMITED: &str = "unlimited";

    pub(crate) fn serialize<S: Serializer>(limit: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        match *limit {
            u64::MAX => serializer.serialize_str(UNLIMITED),
            limit => serializer.serialize_u64(limit),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(NumberOr {
            expected: "a whole number from 0 on or \"unlimited\"",
            of_number: |_| None,
            of_whole: |limit| limit,
            of_text: |text| (text == UNLIMITED).then_some(u64::MAX),
        })
    }
}

/// `#[serde(with = "load")]`: a number, or a time for a latency, which counts in seconds.
pub(crate) mod load {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(load: &impl Serialize, serializer: S) -> Result<S::Ok, S::Error> {
        load.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: From<f64>>(deserializer: D) -> Result<T, D::Error> {
        let load = deserializer.deserialize_any(NumberOr {
            expected: "a number, or a time such as \"250ms\" for a latency,",
            of_number: Some,
            of_whole: |load| load as f64,
            of_text: |text| humantime::parse_duration(text).ok().map(|time| time.as_secs_f64()),
        });
        load.map(T::from)
    }
}
