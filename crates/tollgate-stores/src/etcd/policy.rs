//! Policies pushed from a key of etcd.

use super::Etcd;
use super::auth::AuthHttp;
use super::stream::JsonStream;
use super::wire::{self, Found, Watched};
use serde_json::json;
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};
use tollgate::remote::StoreError;
use tollgate_config::{ConfigError, ConfigFile, Kinds, LastGood, PolicySpec, Source};

/// The versions of a policy, or of [those of a service](tollgate_config::PolicySetSpec), under a key of etcd, one after the
/// other: a [`Source`].
///
/// The server reports changes, and the key is read every 30 s all the same.
///
/// | event | effect |
/// |---|---|
/// | the value changes | the new policy counts; of several changes at once, the last |
/// | the new value is no policy | an error, with line and column; the version in force stays |
/// | the key is deleted | an error; the version in force stays |
/// | the server is unavailable | an error, once, and it is tried again every second; the version in force stays |
/// | it is back, or the key is put as it was | nothing, unless the value has changed |
/// | the server has forgotten the events meanwhile (compaction) | the key is read again |
///
/// ```no_run
/// # use tollgate::Clock;
/// # use tollgate_config::{PolicySpec, Reload};
/// # use tollgate_stores::Etcd;
/// # async fn followed() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let etcd = Etcd::options("http://127.0.0.1:2379").connect()?;
/// let (spec, source) = etcd.policy::<PolicySpec>("config/gate.toml").await?;
/// assert_eq!(source.key(), "config/gate.toml");
/// let policy = spec.build(&Clock::real())?;
/// let followed = policy.clone();
/// tokio::spawn(async move { followed.follow(source, |event| eprintln!("{event:?}")).await });
/// # Ok(())
/// # }
/// ```
pub struct EtcdPolicy<S = PolicySpec> {
    http: AuthHttp,
    kept: LastGood<S>,
    /// The server does not answer, which was reported.
    unavailable: bool,
    /// The events of the key.
    heard: Option<JsonStream>,
    /// When to read without an event.
    look_at: Instant,
    /// Not before this, after an error.
    retry_at: Option<Instant>,
    retry: Duration,
}

/// The value under the key, or that there is none.
type Seen = Result<Vec<u8>, String>;

/// What is said of a key that is gone.
const GONE: &str = "there is no such key";

/// The interval of reads without an event.
const EVERY: Duration = Duration::from_secs(30);

impl Etcd {
    /// The policy under `key`, whose name ends in `.toml` or `.json`, and its later versions. The key is named in full: the
    /// [prefix](crate::ConnectOptions::prefix) is for limiters. Legs are of the built-in kinds.
    ///
    /// # Errors
    /// [`ConfigError`] when the server does not answer, or there is no policy under the key.
    pub async fn policy<S: ConfigFile>(&self, key: &str) -> Result<(S, EtcdPolicy<S>), ConfigError> {
        self.policy_with(key, &Kinds::new()).await
    }

    /// The same for legs of these kinds as well.
    ///
    /// # Errors
    /// As those of [`policy`](Self::policy).
    pub async fn policy_with<S: ConfigFile>(
        &self,
        key: &str,
        kinds: &Kinds,
    ) -> Result<(S, EtcdPolicy<S>), ConfigError> {
        let http = self.0.store().http.clone();
        let (content, heard) = look(&http, key).await.map_err(away)?;
        let (spec, kept) = LastGood::first(key, content, kinds)?;
        let source = EtcdPolicy {
            http,
            kept,
            unavailable: false,
            heard: Some(heard),
            look_at: Instant::now() + EVERY,
            retry_at: None,
            retry: Duration::from_secs(1),
        };
        Ok((spec, source))
    }
}

/// Reads the key, and subscribes to its events from then on.
async fn look(http: &AuthHttp, key: &str) -> Result<(Seen, JsonStream), StoreError> {
    let query = json!({ "key": wire::encoded(key) });
    let found: Found = http.ask("/v3/kv/range", &query).await?.json()?;
    let mut create = query;
    create["start_revision"] = json!(found.header.revision.saturating_add(1).to_string());
    let heard = JsonStream::of(http, "/v3/watch", &json!({ "create_request": create })).await?;
    let pair = found.kvs.into_iter().next().ok_or(GONE.to_owned());
    Ok((pair.map(|pair| pair.bytes), heard))
}

/// The store does not answer.
fn away(error: StoreError) -> ConfigError {
    ConfigError::whole(error.to_string())
}

impl<S: ConfigFile> EtcdPolicy<S> {
    /// The key.
    pub fn key(&self) -> &str {
        self.kept.key()
    }

    /// How long after an error the server is tried again; 1 s unless set.
    #[must_use]
    pub fn retry_after(mut self, retry: Duration) -> Self {
        self.retry = retry;
        self
    }

    /// Waits for an event, and returns the last value; `None` when the key has to be read again.
    async fn hear(&mut self) -> Result<Option<Seen>, StoreError> {
        let Some(heard) = &mut self.heard else { return Ok(None) };
        loop {
            let next = timeout_at(self.look_at, heard.next::<Watched>()).await;
            let next = next.unwrap_or(Ok(None))?;
            let Some(next) = next.filter(|next| !next.canceled) else {
                return Ok(None);
            };
            if let Some(last) = next.events.into_iter().last() {
                let gone = last.is_delete();
                return Ok(Some((!gone).then_some(last.kv.bytes).ok_or(GONE.to_owned())));
            }
        }
    }
}

impl<S: ConfigFile> Source<S> for EtcdPolicy<S> {
    /// # Cancel safety
    /// No version is lost: nothing is awaited between receiving and returning it.
    async fn next(&mut self) -> Option<Result<S, ConfigError>> {
        loop {
            if let Some(at) = self.retry_at {
                sleep_until(at).await;
                self.retry_at = None;
            }
            let seen = match self.hear().await {
                Ok(Some(seen)) => Ok(seen),
                Ok(None) | Err(_) => {
                    // One that ends before its time restarts after a pause: it may always end.
                    if self.heard.take().is_some() && Instant::now() < self.look_at {
                        self.retry_at = Some(Instant::now() + self.retry);
                        continue;
                    }
                    match look(&self.http, self.kept.key()).await {
                        Ok((seen, heard)) => {
                            self.heard = Some(heard);
                            self.look_at = Instant::now() + EVERY;
                            Ok(seen)
                        }
                        Err(error) => Err(error),
                    }
                }
            };
            match seen {
                Ok(seen) => {
                    self.unavailable = false;
                    if let Some(version) = self.kept.see(seen) {
                        return Some(version);
                    }
                }
                Err(error) => {
                    self.retry_at = Some(Instant::now() + self.retry);
                    if !std::mem::replace(&mut self.unavailable, true) {
                        return Some(Err(away(error)));
                    }
                }
            }
        }
    }
}

impl<S: ConfigFile> fmt::Debug for EtcdPolicy<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdPolicy")
            .field("key", &self.kept.key())
            .field("unavailable", &self.unavailable)
            .finish_non_exhaustive()
    }
}
