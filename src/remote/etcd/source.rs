//! Policies pushed from a key of etcd.

use super::Etcd;
use super::stream::Lines;
use super::words::{self, Event, Found};
use crate::policy::file::Format;
use crate::policy::source::{PolicySource, SourceError};
use crate::policy::spec::PolicySpec;
use crate::remote::backend::StoreError;
use crate::remote::http::Http;
use http::Method;
use serde::Deserialize;
use serde_json::json;
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// The versions of a policy that lie under a key of etcd, one after the other: a [`PolicySource`].
///
/// It is told of changes by the server, and looks every 30 s all the same.
///
/// | what happens | what comes of it |
/// |---|---|
/// | the value changes | the new policy counts; of several changes at once, the last |
/// | the new value is no policy | an error, with line and column; the version in force stays |
/// | the key is deleted | an error; the version in force stays |
/// | the server is away | an error, once, and it is tried again every second; the version in force stays |
/// | it is back, or the key is put as it was | nothing, unless the value has changed |
/// | the server has forgotten what happened meanwhile (compaction) | it is looked at anew |
///
/// ```no_run
/// # use tollgate::Clock;
/// # use tollgate::policy::file::Format;
/// # use tollgate::remote::Etcd;
/// # async fn followed() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let etcd = Etcd::options("http://127.0.0.1:2379").connect()?;
/// let (spec, source) = etcd.policy("config/gate.toml", Format::Toml).await?;
/// let policy = spec.build(&Clock::real())?;
/// let followed = policy.clone();
/// tokio::spawn(async move { followed.follow(source, |event| eprintln!("{event}")).await });
/// # Ok(())
/// # }
/// ```
pub struct EtcdSource {
    http: Http,
    key: Box<str>,
    format: Format,
    /// What was last found, and judged.
    given: Seen,
    /// The last version that was given.
    applied: Vec<u8>,
    /// The server does not answer, which was said.
    away: bool,
    /// What is heard of the key.
    heard: Option<Lines>,
    /// When to look although nothing was heard.
    look_at: Instant,
    /// Not before this, after an error.
    retry_at: Option<Instant>,
    retry: Duration,
}

/// What lies under the key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Value(Vec<u8>),
    Nothing,
}

/// How often it is looked although nothing was heard.
const EVERY: Duration = Duration::from_secs(30);

impl Etcd {
    /// The policy that lies under `key`, which is a whole key without the [prefix](super::EtcdOptions::prefix), and the source
    /// of its later versions.
    ///
    /// # Errors
    /// [`StoreError`] when the server does not answer, or refuses; a message when there is no such key; or
    /// [`PolicyFileError`](crate::policy::file::PolicyFileError), with line and column.
    pub async fn policy(
        &self,
        key: impl Into<Box<str>>,
        format: Format,
    ) -> Result<(PolicySpec, EtcdSource), SourceError> {
        let mut source = EtcdSource {
            http: self.0.shelf().http.clone(),
            key: key.into(),
            format,
            given: Seen::Nothing,
            applied: Vec::new(),
            away: false,
            heard: None,
            look_at: Instant::now(),
            retry_at: None,
            retry: Duration::from_secs(1),
        };
        let (seen, heard) = source.look().await?;
        let Seen::Value(value) = &seen else {
            return Err(source.missing());
        };
        let spec = source.parse(value)?;
        source.applied.clone_from(value);
        (source.given, source.heard) = (seen, Some(heard));
        source.look_at = Instant::now() + EVERY;
        Ok((spec, source))
    }
}

impl EtcdSource {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How long after an error the server is tried again; 1 s unless set.
    #[must_use]
    pub fn retry_after(mut self, retry: Duration) -> Self {
        self.retry = retry;
        self
    }

    fn missing(&self) -> SourceError {
        format!("there is no key `{}`", self.key).into()
    }

    fn parse(&self, value: &[u8]) -> Result<PolicySpec, SourceError> {
        let text = std::str::from_utf8(value).map_err(|error| format!("`{}` is no UTF-8: {error}", self.key))?;
        PolicySpec::parse(text, self.format).map_err(|error| format!("`{}`: {error}", self.key).into())
    }

    /// What lies there, and what is heard of it from then on.
    async fn look(&self) -> Result<(Seen, Lines), StoreError> {
        let time = self.http.timeout();
        let query = json!({ "key": words::encoded(&*self.key) });
        let body = query.to_string();
        let found = self.http.call(Method::POST, "/v3/kv/range", body, time).await?;
        let found: Found = found.json()?;
        let mut create = query;
        create["start_revision"] = json!((found.header.revision + 1).to_string());
        let heard = Lines::of(&self.http, "/v3/watch", &json!({ "create_request": create })).await?;
        let value = found.kvs.into_iter().next().map(|pair| pair.bytes);
        Ok((value.map_or(Seen::Nothing, Seen::Value), heard))
    }

    /// What is to be said of what was found; nothing, if it is as it was.
    fn judge(&mut self, seen: Seen) -> Option<Result<PolicySpec, SourceError>> {
        self.away = false;
        if seen == self.given {
            return None;
        }
        self.given = seen.clone();
        match seen {
            Seen::Nothing => Some(Err(self.missing())),
            // It is back as it was before it was wrong, or gone.
            Seen::Value(value) if value == self.applied => None,
            Seen::Value(value) => {
                let version = self.parse(&value);
                if version.is_ok() {
                    self.applied = value;
                }
                Some(version)
            }
        }
    }

    /// What was heard last; `None` when it is to be looked at anew.
    async fn hear(&mut self) -> Result<Option<Seen>, StoreError> {
        let Some(heard) = &mut self.heard else { return Ok(None) };
        loop {
            let next = tokio::select! {
                next = heard.next::<Heard>() => next?,
                () = sleep_until(self.look_at) => None,
            };
            let Some(next) = next.filter(|next| !next.canceled) else {
                return Ok(None);
            };
            if let Some(last) = next.events.into_iter().last() {
                let gone = last.is_delete();
                return Ok(Some(if gone {
                    Seen::Nothing
                } else {
                    Seen::Value(last.kv.bytes)
                }));
            }
        }
    }
}

/// What is heard of a key.
#[derive(Debug, Deserialize)]
struct Heard {
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    events: Vec<Event>,
}

impl PolicySource for EtcdSource {
    /// # Cancel safety
    /// A version that has come is not lost: nothing is awaited between hearing and giving it.
    async fn next(&mut self) -> Option<Result<PolicySpec, SourceError>> {
        loop {
            if let Some(at) = self.retry_at {
                sleep_until(at).await;
                self.retry_at = None;
            }
            let seen = match self.hear().await {
                Ok(Some(seen)) => Ok(seen),
                Ok(None) | Err(_) => {
                    self.heard = None;
                    let (seen, time) = (self.look(), self.http.timeout());
                    match timeout(2 * time, seen).await {
                        Ok(Ok((seen, heard))) => {
                            self.heard = Some(heard);
                            self.look_at = Instant::now() + EVERY;
                            Ok(seen)
                        }
                        Ok(Err(error)) => Err(error),
                        Err(_) => Err(StoreError::TimedOut { after: 2 * time }),
                    }
                }
            };
            match seen {
                Ok(seen) => {
                    if let Some(version) = self.judge(seen) {
                        return Some(version);
                    }
                }
                Err(error) => {
                    self.retry_at = Some(Instant::now() + self.retry);
                    if !std::mem::replace(&mut self.away, true) {
                        return Some(Err(error.into()));
                    }
                }
            }
        }
    }
}

impl fmt::Debug for EtcdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdSource")
            .field("key", &self.key)
            .field("away", &self.away)
            .finish_non_exhaustive()
    }
}
