//! Requests and answers of etcd's JSON gateway. Keys and values are base64; numbers of 64 bits are strings.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::fmt::Display;
use std::str::FromStr;

pub(super) fn encoded(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The end of the range of all keys that begin with `prefix`.
pub(super) fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // No byte of our prefixes is the last possible one.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

pub(super) fn all_under(prefix: &str) -> Value {
    json!({ "key": encoded(prefix), "range_end": encoded(after(prefix)) })
}

pub(super) fn put(key: &str, value: &str, lease: i64) -> Value {
    json!({ "request_put": { "key": encoded(key), "value": encoded(value), "lease": lease.to_string() } })
}

/// Writes a value, and leaves the lease.
pub(super) fn put_again(key: &str, value: &str) -> Value {
    json!({ "request_put": { "key": encoded(key), "value": encoded(value), "ignore_lease": true } })
}

pub(super) fn delete(key: &str) -> Value {
    json!({ "request_delete_range": { "key": encoded(key) } })
}

pub(super) fn look_at(key: &str) -> Value {
    json!({ "request_range": { "key": encoded(key) } })
}

pub(super) fn look(prefix: &str) -> Value {
    json!({ "request_range": all_under(prefix) })
}

/// The condition that this revision changed the key last; with zero, that there is no key.
pub(super) fn changed_by(key: &str, revision: i64) -> Value {
    json!({ "target": "MOD", "key": encoded(key), "mod_revision": revision.to_string() })
}

/// The condition that there is no key under the prefix.
pub(super) fn nothing_under(prefix: &str) -> Value {
    json!({
        "target": "CREATE", "key": encoded(prefix), "range_end": encoded(after(prefix)), "create_revision": "0",
    })
}

/// The condition that there is a key under the prefix.
pub(super) fn something_under(prefix: &str) -> Value {
    json!({
        "target": "CREATE", "result": "GREATER", "key": encoded(prefix), "range_end": encoded(after(prefix)),
        "create_revision": "0",
    })
}

/// Writes the key under this lease if it is missing; otherwise changes it to `again`, if that is given, and leaves the lease.
pub(super) fn put_first(key: &str, value: &str, lease: i64, again: Option<&str>) -> Value {
    let absent = json!([changed_by(key, 0)]);
    let again: Vec<_> = again.map(|value| put_again(key, value)).into_iter().collect();
    json!({ "request_txn": { "compare": absent, "success": [put(key, value, lease)], "failure": again } })
}

/// A number, which may be a string, or left out when it is zero.
fn number<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + FromStr<Err: Display>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<T> {
        Text(String),
        Number(T),
    }
    match Either::deserialize(from)? {
        Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        Either::Number(number) => Ok(number),
    }
}

fn decoded<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    STANDARD.decode(text).map_err(serde::de::Error::custom)
}

/// Bytes that are no text are foreign, and become a text that is foreign too.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    decoded(from).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(super) revision: i64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Pair {
    #[serde(default, deserialize_with = "text")]
    pub(super) key: String,
    #[serde(default, rename = "value", deserialize_with = "decoded")]
    pub(super) bytes: Vec<u8>,
    #[serde(default, alias = "createRevision", deserialize_with = "number")]
    pub(super) create_revision: i64,
    #[serde(default, alias = "modRevision", deserialize_with = "number")]
    pub(super) mod_revision: i64,
    #[serde(default, deserialize_with = "number")]
    pub(super) lease: i64,
}

impl Pair {
    /// The value as a number.
    pub(super) fn number(&self) -> Option<u64> {
        std::str::from_utf8(&self.bytes).ok()?.parse().ok()
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Found {
    #[serde(default)]
    pub(super) header: Header,
    #[serde(default)]
    pub(super) kvs: Vec<Pair>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Done {
    #[serde(default)]
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

#[derive(Debug, Deserialize)]
struct Response {
    #[serde(alias = "responseRange")]
    response_range: Option<Found>,
}

impl Done {
    /// The first pair that each of its reads found.
    pub(super) fn firsts(self) -> impl Iterator<Item = Option<Pair>> {
        let looks = self
            .responses
            .into_iter()
            .filter_map(|response| response.response_range);
        looks.map(|found| found.kvs.into_iter().next())
    }

    /// The pairs that the last read found.
    pub(super) fn found(self) -> Option<Vec<Pair>> {
        let mut looks = self.responses.into_iter().rev();
        looks
            .find_map(|response| response.response_range)
            .map(|found| found.kvs)
    }
}

/// A granted or renewed lease; an unknown one has no time to live.
#[derive(Debug, Deserialize)]
pub(super) struct Granted {
    #[serde(default, rename = "ID", deserialize_with = "number")]
    pub(super) id: i64,
    #[serde(default, rename = "TTL", deserialize_with = "number")]
    pub(super) ttl: i64,
}

/// The rest of a lease; an unknown one has none.
#[derive(Debug, Deserialize)]
pub(super) struct Life {
    #[serde(default, rename = "grantedTTL", deserialize_with = "number")]
    pub(super) granted: i64,
    #[serde(default, rename = "TTL", deserialize_with = "number")]
    pub(super) left: i64,
}

/// One answer of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: Option<T>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Watched {
    #[serde(default)]
    pub(super) canceled: bool,
    #[serde(default)]
    pub(super) events: Vec<Event>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Event {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    pub(super) kv: Pair,
}

impl Event {
    pub(super) fn is_delete(&self) -> bool {
        self.kind.as_deref() == Some("DELETE")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_strings_or_left_out() {
        let done = r#"{"header":{"revision":"7"},"succeeded":true,"responses":[{"response_put":{}},{"response_range":
            {"kvs":[{"key":"YQ==","value":"OA==","create_revision":"5","mod_revision":6}]}}]}"#;
        let done: Done = serde_json::from_str(done).unwrap();
        assert_eq!((done.header.revision, done.succeeded), (7, true));
        let found = done.found().unwrap();
        assert_eq!((&*found[0].key, found[0].number()), ("a", Some(8)));
        assert_eq!(
            (found[0].create_revision, found[0].mod_revision, found[0].lease),
            (5, 6, 0)
        );
        let gone: Streamed<Granted> = serde_json::from_str(r#"{"result":{"ID":"41"}}"#).unwrap();
        assert_eq!(gone.result.map(|lease| (lease.id, lease.ttl)), Some((41, 0)));
        let event: Event = serde_json::from_str(r#"{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"3"}}"#).unwrap();
        assert!(event.is_delete());
    }

    #[test]
    fn a_range_has_all_that_begins_with_its_prefix() {
        assert_eq!(after("a/"), b"a0");
    }
}
