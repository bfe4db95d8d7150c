//! A policy under a key of Consul's, put in force while programs run.

use super::Consul;
use super::api::{Api, Entry};
use std::fmt;
use std::time::Duration;
use tollgate::remote::StoreError;
use tollgate_config::{ConfigError, ConfigFile, Kinds, LastGood, PolicySpec, Source};

/// The versions of a policy, or of [those of a service](tollgate_config::PolicySetSpec), under a key of Consul's: a
/// [`Source`].
///
/// One request waits until the key has changed. An invalid version is an error with line and column, and so are a deleted key
/// and an unavailable store, each once: the version in force stays.
///
/// ```no_run
/// # use tollgate_stores::Consul;
/// # use tollgate::Clock;
/// # use tollgate_config::{PolicySpec, Reload};
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let consul = Consul::options("http://127.0.0.1:8500").connect()?;
/// let (spec, source) = consul.policy::<PolicySpec>("gate/policy.toml").await?;
/// assert_eq!(source.key(), "gate/policy.toml");
/// let policy = spec.build(&Clock::real())?;
/// let followed = policy.clone();
/// tokio::spawn(async move { followed.follow(source, |event| eprintln!("{event:?}")).await });
/// # Ok(())
/// # }
/// ```
pub struct ConsulPolicy<S = PolicySpec> {
    api: Api,
    kept: LastGood<S>,
    /// The number of the last answer.
    index: u64,
    /// There is no such key: the store answers to a write of any key.
    missing: bool,
    /// The number of failures in a row.
    failures: u32,
}

/// The store answers after this time without a change.
const WAIT: Duration = Duration::from_secs(60);
/// The first and the longest pause before an unavailable store is asked again.
const RETRIES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

impl Consul {
    /// The policy under `key`, whose name ends in `.toml` or `.json`, and its later versions. The key is named in full: the
    /// [prefix](crate::ConnectOptions::prefix) is for limiters. Legs are of the built-in kinds.
    ///
    /// # Errors
    /// [`ConfigError`] when the store does not answer, or there is no policy under the key.
    pub async fn policy<S: ConfigFile>(&self, key: &str) -> Result<(S, ConsulPolicy<S>), ConfigError> {
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
    ) -> Result<(S, ConsulPolicy<S>), ConfigError> {
        let api = self.0.api.clone();
        let asked = api.changed(key, false, 0, WAIT).await;
        let (entries, index) = asked.map_err(away)?;
        let (spec, kept) = LastGood::first(key, content(entries), kinds)?;
        let source = ConsulPolicy {
            api,
            kept,
            index,
            missing: false,
            failures: 0,
        };
        Ok((spec, source))
    }
}

fn content(mut entries: Vec<Entry>) -> Result<Vec<u8>, String> {
    let entry = entries.pop().ok_or("there is no such key")?;
    Ok(entry.value)
}

/// The store does not answer.
fn away(error: StoreError) -> ConfigError {
    ConfigError::whole(error.to_string())
}

impl<S: ConfigFile> ConsulPolicy<S> {
    /// The key.
    pub fn key(&self) -> &str {
        self.kept.key()
    }

    /// The pause before the store is asked again.
    fn pause(&self) -> Duration {
        let (first, last) = RETRIES;
        first.saturating_mul(1 << self.failures.min(16)).min(last)
    }

    fn answered(&mut self, answer: Result<(Vec<Entry>, u64), StoreError>) -> Option<Result<S, ConfigError>> {
        match answer {
            Ok((entries, index)) => {
                (self.index, self.failures, self.missing) = (index, 0, entries.is_empty());
                let version = self.kept.see(content(entries))?;
                Some(version)
            }
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                // Reported once, not at each attempt.
                (self.failures == 1).then(|| Err(away(error)))
            }
        }
    }
}

impl<S: ConfigFile> Source<S> for ConsulPolicy<S> {
    async fn next(&mut self) -> Option<Result<S, ConfigError>> {
        loop {
            // An answer without a number would be followed by the next at once.
            if self.failures > 0 || self.missing || self.index == 0 {
                tokio::time::sleep(self.pause()).await;
            }
            let answer = self.api.changed(self.kept.key(), false, self.index, WAIT).await;
            if let Some(version) = self.answered(answer) {
                return Some(version);
            }
        }
    }
}

impl<S: ConfigFile> fmt::Debug for ConsulPolicy<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulPolicy")
            .field("key", &self.kept.key())
            .field("unavailable", &(self.failures > 0))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// A missing key is not waited for: nor is a silent store, longer than any answer may take.
    #[tokio::test(start_paused = true)]
    async fn a_silent_store_is_given_up_after_the_time_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (timeout, begun) = (Duration::from_secs(2), tokio::time::Instant::now());
        let consul = Consul::options(address).timeout(timeout).connect().unwrap();
        let silent = consul.policy::<PolicySpec>("policy.toml").await.unwrap_err();
        assert!(begun.elapsed() < 2 * timeout, "{silent} after {:?}", begun.elapsed());
    }

    /// Given a service's file under a key, with a leg of a kind of the program's own, then it is read by these kinds alone, and so are its
    /// later versions.
    #[tokio::test]
    async fn a_service_with_a_kind_of_its_own_is_read_and_followed() {
        use base64::Engine as _;
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        use tollgate::{Clock, LimiterExt, Semaphore};
        use tollgate_config::{LegKind, PolicySetSpec};

        #[derive(serde::Deserialize)]
        struct Doubled {
            limit: usize,
        }

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let consul = Consul::options(format!("http://{}", listener.local_addr().unwrap()));
        let consul = consul.connect().unwrap();
        tokio::spawn(async move {
            for index in 1.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                let text = format!("[[policy.global.leg]]\nname = \"a\"\nkind = \"doubled\"\nlimit = {index}\n");
                let value = base64::engine::general_purpose::STANDARD.encode(text);
                let body = format!(r#"[{{"Key":"service.toml","Value":"{value}","ModifyIndex":{index}}}]"#);
                let head = format!("HTTP/1.1 200 OK\r\nX-Consul-Index: {index}\r\nConnection: close\r\n");
                let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let error = consul
            .policy::<PolicySetSpec>("service.toml")
            .await
            .map(drop)
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("service.toml:3:8: key `kind`: `doubled` was given"),
            "{error}"
        );
        let doubled = |leg: Doubled, _: &Clock| Ok::<_, ConfigError>(Semaphore::new(2 * leg.limit).boxed());
        let kinds = Kinds::new().with("doubled", doubled);
        let (spec, mut source) = consul
            .policy_with::<PolicySetSpec>("service.toml", &kinds)
            .await
            .unwrap();
        let next = source.next().await.unwrap().unwrap();
        let limit = |spec: &PolicySetSpec| match &spec.policies["global"].legs[0].kind {
            LegKind::Custom { numbers, .. } => numbers["limit"].as_u64(),
            _ => None,
        };
        assert_eq!((limit(&spec), limit(&next)), (Some(2), Some(3)));
    }
}
