//! A small HTTP client, for stores that speak HTTP.
//!
//! Connections are kept and used again. A call that is dropped or runs out of time takes its connection with it, so that a
//! silent connection is never used a second time.

mod options;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
pub(super) use options::HttpOptions;
use std::error::Error;
use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;
#[cfg(feature = "etcd")]
use tollgate::remote::RemoteError;
use tollgate::remote::StoreError;

#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;
#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;

/// The longest answer that is read: above what any store keeps under a name.
const LONGEST_ANSWER: usize = 64 << 20;

/// A client. Clones share their connections.
#[derive(Clone)]
pub(super) struct Http {
    client: Client<Connector, Full<Bytes>>,
    base: Box<str>,
    headers: HeaderMap,
    timeout: Duration,
}

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Http {
    /// Returns a client that also sends the header `name` with `value`, a secret.
    ///
    /// # Errors
    /// As [`HttpOptions::secret`].
    #[cfg(feature = "etcd")]
    pub(super) fn saying(&self, name: &'static str, value: &str) -> Result<Self, RemoteError> {
        let mut http = self.clone();
        options::say(&mut http.headers, name, value)?;
        Ok(http)
    }

    /// How long an answer may take, unless a call says otherwise.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Requests `path`, which begins with a slash and may have a query, and reads the answer to its end.
    ///
    /// # Errors
    /// [`StoreError::TimedOut`] when that takes longer than `timeout`; [`StoreError::Unreachable`] when there is no connection,
    /// or it breaks: the request may or may not have been carried out.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        timeout: Duration,
    ) -> Result<Answer, StoreError> {
        let body = body.into();
        let whole = async {
            let (status, headers, body) = self.open(method, path, body).await?;
            let body = Limited::new(body, LONGEST_ANSWER).collect().await;
            let body = body.map_err(|error| unreachable(&*error))?.to_bytes();
            Ok(Answer { status, headers, body })
        };
        let answer = tokio::time::timeout(timeout, whole).await;
        answer.unwrap_or(Err(StoreError::TimedOut { after: timeout }))
    }

    /// Requests `path`, and returns when the answer begins; its body comes as the store sends it. No time-out.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`].
    pub(super) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, HeaderMap, Incoming), StoreError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .body(Full::new(body))
            .map_err(|error| StoreError::Refused {
                why: error.to_string().into(),
            })?;
        request.headers_mut().extend(self.headers.clone());
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| unreachable(&error))?;
        let (parts, body) = response.into_parts();
        Ok((parts.status, parts.headers, body))
    }
}

impl Answer {
    /// The beginning of the answer, for messages.
    pub(super) fn text(&self) -> Box<str> {
        let text = String::from_utf8_lossy(&self.body);
        text.trim().chars().take(300).collect::<String>().into()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the status is no success, [`StoreError::Answer`] when the body is something else.
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, StoreError> {
        if !self.status.is_success() {
            return Err(self.refused());
        }
        serde_json::from_slice(&self.body).map_err(|_| StoreError::Answer { given: self.text() })
    }

    /// The error of a status without success. A server that is starting, electing, slow or overloaded counts as unreachable.
    pub(super) fn refused(&self) -> StoreError {
        let why = format!("{}: {}", self.status, self.text()).into();
        let passes = [
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::TOO_EARLY,
            StatusCode::TOO_MANY_REQUESTS,
        ];
        if self.status.is_server_error() || passes.contains(&self.status) {
            StoreError::Unreachable { why }
        } else {
            StoreError::Refused { why }
        }
    }
}

/// The error with its sources.
fn unreachable(error: &dyn Error) -> StoreError {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(why, ": {error}");
        source = error.source();
    }
    StoreError::Unreachable { why: why.into() }
}

/// Escapes `text` as a part of a path or query: everything but letters, digits, `-._~` and slashes in percents.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Without secrets.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("base", &self.base)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
