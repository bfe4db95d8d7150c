//! The six requests to Consul: create, renew and end a session, list keys, change several at once, and wait for a change.

use crate::http::{Answer, Http, escaped};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{Method, StatusCode};
use serde::Deserialize;
use std::time::Duration;
use tollgate::remote::StoreError;

pub(super) use super::kv::{Entry, MOST_OPS, Op};

/// An agent or server of Consul. Clones share their connections.
#[derive(Clone, Debug)]
pub(super) struct Api {
    http: Http,
    /// `&dc=...`, or nothing.
    place: Box<str>,
    /// How long the locks of a session are held back after it has ended by anything but a deletion.
    delay: Duration,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// All of it was carried out, by this write.
    At(u64),
    /// None of it: a condition does not hold.
    Overtaken,
    /// None of it: the operations at these places lock keys that are held back after the end of a session.
    Delayed(Vec<usize>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    value: Option<String>,
    modify_index: u64,
    session: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Done {
    results: Option<Vec<Result>>,
    errors: Option<Vec<Failed>>,
}

#[derive(Debug, Deserialize)]
struct Result {
    #[serde(rename = "KV")]
    kv: Option<Changed>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Changed {
    modify_index: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    #[serde(default)]
    op_index: usize,
    what: String,
}

type Asked<T> = std::result::Result<T, StoreError>;

impl Api {
    pub(super) fn new(http: Http, datacenter: Option<&str>) -> Self {
        let place = datacenter.map_or(String::new(), |name| format!("&dc={}", escaped(name)));
        let (place, delay) = (place.into(), Duration::ZERO);
        Self { http, place, delay }
    }

    pub(super) fn with_delay(&self, delay: Duration) -> Self {
        let api = self.clone();
        Self { delay, ..api }
    }

    async fn ask(&self, method: Method, path: &str, body: impl Into<bytes::Bytes>) -> Asked<Answer> {
        let path = format!("{path}{}", self.place);
        self.http.call(method, &path, body, self.http.timeout()).await
    }

    /// Creates a session. It lives at least `ttl` after its last renewal, and at most twice as long; then its locked keys are
    /// deleted. It depends on nothing else, such as the health of an agent.
    pub(super) async fn create(&self, ttl: Duration) -> Asked<String> {
        let millis = ttl.as_nanos().div_ceil(1_000_000);
        let delay = self.delay.as_millis();
        let body = format!(
            r#"{{"Name":"tollgate","TTL":"{millis}ms","Behavior":"delete","LockDelay":"{delay}ms","Checks":[],"NodeChecks":[]}}"#
        );
        let answer = self.ask(Method::PUT, "/v1/session/create?", body).await?;
        // The status is that of a server in trouble, but it would never change.
        if answer.status.is_server_error() && answer.text().contains("Invalid Session TTL") {
            return Err(StoreError::Refused { why: answer.text() });
        }
        Ok(answer.json::<Created>()?.id)
    }

    /// Renews a session. False when it is unknown.
    pub(super) async fn renew(&self, session: &str) -> Asked<bool> {
        let path = format!("/v1/session/renew/{session}?");
        let answer = self.ask(Method::PUT, &path, "").await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(false);
        }
        answer.json::<serde::de::IgnoredAny>().map(|_| true)
    }

    /// Ends a session. Its locked keys are deleted.
    pub(super) async fn destroy(&self, session: &str) -> Asked<()> {
        let path = format!("/v1/session/destroy/{session}?");
        self.ask(Method::PUT, &path, "").await?.json::<bool>().map(drop)
    }

    /// All keys that begin with `prefix`, at one instant, and a number of that instant: not below that of the last write to
    /// them, deletions included.
    pub(super) async fn list(&self, prefix: &str) -> Asked<(Vec<Entry>, u64)> {
        let path = format!("/v1/kv/{}?recurse=true", escaped(prefix));
        let answer = self.ask(Method::GET, &path, "").await?;
        let entries = entries(&answer)?;
        let last = entries.iter().map(|entry| entry.index).max().unwrap_or(0);
        Ok((entries, last.max(index(&answer))))
    }

    /// Carries out all of `ops`, and returns the number of the write; or none of them, when a condition does not hold.
    pub(super) async fn change(&self, ops: &[Op]) -> Asked<Option<u64>> {
        Ok(match self.write(ops).await? {
            Written::At(index) => Some(index),
            Written::Overtaken | Written::Delayed(_) => None,
        })
    }

    /// The same, and distinguishes locks that are held back from other conditions.
    pub(super) async fn write(&self, ops: &[Op]) -> Asked<Written> {
        let body = serde_json::to_vec(ops).map_err(|error| StoreError::Refused {
            why: error.to_string().into(),
        })?;
        let answer = self.ask(Method::PUT, "/v1/txn?", body).await?;
        if answer.status != StatusCode::CONFLICT {
            let done: Done = answer.json()?;
            let results = done.results.unwrap_or_default();
            let written = results
                .iter()
                .filter_map(|result| Some(result.kv.as_ref()?.modify_index));
            return Ok(Written::At(written.max().unwrap_or(0)));
        }
        let done: Done =
            serde_json::from_slice(&answer.body).map_err(|_| StoreError::Answer { given: answer.text() })?;
        // Missing rights are reported among the conditions.
        let denied = |failed: &Failed| failed.what.contains("ermission denied");
        let errors = done.errors.unwrap_or_default();
        if errors.iter().any(denied) {
            return Err(answer.refused());
        }
        let delayed = |failed: &Failed| failed.what.contains("due to lock delay").then_some(failed.op_index);
        let delayed: Option<Vec<_>> = errors.iter().map(delayed).collect();
        Ok(delayed
            .filter(|delayed| !delayed.is_empty())
            .map_or(Written::Overtaken, Written::Delayed))
    }

    /// Waits until something at `key` has changed since the write `index`, for about `wait` at most; with `recurse` under it.
    /// Returns the entries, and the number to continue with.
    pub(super) async fn changed(
        &self,
        key: &str,
        recurse: bool,
        index: u64,
        wait: Duration,
    ) -> Asked<(Vec<Entry>, u64)> {
        let millis = wait.as_millis();
        let recurse = if recurse { "&recurse=true" } else { "" };
        let path = format!(
            "/v1/kv/{}?index={index}&wait={millis}ms{recurse}{}",
            escaped(key),
            self.place
        );
        // The store adds up to a sixteenth, to spread the requests; and it answers at once to an index of zero.
        let wait = if index == 0 { Duration::ZERO } else { wait + wait / 16 };
        let patience = wait + self.http.timeout();
        let answer = self.http.call(Method::GET, &path, "", patience).await?;
        let next = self::index(&answer);
        // The index goes back when the store was restored: earlier knowledge of it is void.
        let next = if next < index { 0 } else { next };
        Ok((entries(&answer)?, next))
    }
}

/// The number of an answer; zero without one.
fn index(answer: &Answer) -> u64 {
    let index = answer.headers.get("x-consul-index");
    index.and_then(|index| index.to_str().ok()?.parse().ok()).unwrap_or(0)
}

fn entries(answer: &Answer) -> Asked<Vec<Entry>> {
    if answer.status == StatusCode::NOT_FOUND {
        return Ok(Vec::new());
    }
    let nonsense = || StoreError::Answer { given: answer.text() };
    let listed: Vec<Listed> = answer.json()?;
    let entries = listed.into_iter().map(|listed| {
        let value = BASE64
            .decode(listed.value.unwrap_or_default())
            .map_err(|_| nonsense())?;
        Ok(Entry {
            key: listed.key,
            value,
            index: listed.modify_index,
            session: listed.session.filter(|session| !session.is_empty()),
        })
    });
    entries.collect()
}
