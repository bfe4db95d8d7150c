//! A small client of HTTP, for stores that speak it.
//!
//! Connections are kept and used again. A call that is dropped or runs out of time takes its connection with it, so that one
//! that has gone silent is never used a second time.

use super::backend::StoreError;
use super::error::RemoteError;
#[cfg(feature = "remote-tls")]
use super::tls::Tls;
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error;
use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;

#[cfg(not(feature = "remote-tls"))]
type Connector = HttpConnector;
#[cfg(feature = "remote-tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;

/// The longest answer that is read: above what any store keeps under a name.
const LONGEST_ANSWER: usize = 64 << 20;

/// Where a store is, and what it is told with each call.
#[derive(Clone)]
pub(super) struct HttpOptions {
    pub(super) address: Box<str>,
    pub(super) headers: HeaderMap,
    /// How long an answer may take.
    pub(super) timeout: Duration,
    #[cfg(feature = "remote-tls")]
    pub(super) tls: Option<Tls>,
}

impl HttpOptions {
    pub(super) fn new(address: Box<str>) -> Self {
        Self {
            address,
            headers: HeaderMap::new(),
            timeout: Duration::from_secs(1),
            #[cfg(feature = "remote-tls")]
            tls: None,
        }
    }

    /// Says `value`, a secret, under `name` with each call.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when it has characters that no header has.
    pub(super) fn secret(&mut self, name: &'static str, value: &str) -> Result<(), RemoteError> {
        say(&mut self.headers, name, value)
    }

    /// Makes the client. The store is spoken to when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`], [`RemoteError::Certificate`], [`RemoteError::Duration`], or [`RemoteError::NoRuntime`] outside a tokio runtime.
    pub(super) fn connect(self) -> Result<Http, RemoteError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(RemoteError::NoRuntime);
        }
        let allowed = (Duration::from_millis(1), Duration::from_secs(60));
        if self.timeout < allowed.0 || self.timeout > allowed.1 {
            return Err(RemoteError::Duration {
                what: "time-out",
                given: self.timeout,
                allowed,
            });
        }
        let base = base(&self.address)?;
        let connector = self.connector(base.starts_with("https:"))?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .build(connector);
        Ok(Http {
            client,
            base,
            headers: self.headers,
            timeout: self.timeout,
        })
    }
}

impl HttpOptions {
    fn plain(&self) -> HttpConnector {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(self.timeout));
        // Whoever waits for what a store says by itself is to notice that nobody is there: after 25 s.
        connector.set_keepalive(Some(Duration::from_secs(10)));
        connector.set_keepalive_interval(Some(Duration::from_secs(5)));
        connector.set_keepalive_retries(Some(3));
        connector
    }

    #[cfg(not(feature = "remote-tls"))]
    fn connector(&self, encrypted: bool) -> Result<Connector, RemoteError> {
        if encrypted {
            return Err(unusable("https:// needs the feature `remote-tls`"));
        }
        Ok(self.plain())
    }

    #[cfg(feature = "remote-tls")]
    fn connector(&self, encrypted: bool) -> Result<Connector, RemoteError> {
        if !encrypted && self.tls.is_some() {
            return Err(unusable(
                "certificates are given, and the address does not begin with https://",
            ));
        }
        let tls = self.tls.clone().unwrap_or_default();
        // What the system believes is looked for only where it counts.
        let system = if encrypted && tls.roots.is_none() {
            system_roots()?
        } else {
            rustls::RootCertStore::empty()
        };
        let mut connector = self.plain();
        connector.enforce_http(false);
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls.config(system)?);
        Ok(builder.https_or_http().enable_http1().wrap_connector(connector))
    }
}

/// The certificates that the system believes.
#[cfg(feature = "remote-tls")]
fn system_roots() -> Result<rustls::RootCertStore, RemoteError> {
    let mut store = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = store.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found
            .errors
            .first()
            .map_or("there are none".into(), ToString::to_string);
        return Err(RemoteError::Certificate {
            what: "root certificates of the system",
            why: why.into(),
        });
    }
    Ok(store)
}

fn say(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<(), RemoteError> {
    let value = HeaderValue::from_str(value);
    let mut value = value.map_err(|_| unusable(format!("the {name} has control characters")))?;
    value.set_sensitive(true);
    headers.insert(HeaderName::from_static(name), value);
    Ok(())
}

/// The scheme, the host and the path that an address begins with, without a slash at the end.
fn base(address: &str) -> Result<Box<str>, RemoteError> {
    // Not repeated in a message: it may have a password.
    let uri: Uri = address
        .parse()
        .map_err(|_| unusable("it is none, such as http://127.0.0.1:8500"))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err(unusable("it does not begin with http:// or https://")),
    }
    let Some(authority) = uri.authority() else {
        return Err(unusable("it names no host"));
    };
    if authority.as_str().contains('@') {
        return Err(unusable("names and passwords belong into the options"));
    }
    if uri.query().is_some() {
        return Err(unusable("it has a query"));
    }
    Ok(address.trim_end_matches('/').into())
}

fn unusable(why: impl Into<Box<str>>) -> RemoteError {
    RemoteError::Address { why: why.into() }
}

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
    /// The same, which says `value`, a secret, under `name` as well.
    ///
    /// # Errors
    /// As [`HttpOptions::secret`].
    #[cfg(feature = "etcd")]
    pub(super) fn saying(&self, name: &'static str, value: &str) -> Result<Self, RemoteError> {
        let mut http = self.clone();
        say(&mut http.headers, name, value)?;
        Ok(http)
    }

    /// How long an answer may take, unless said otherwise.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks `path`, which begins with a slash and may have a query, and reads the answer to its end.
    ///
    /// # Errors
    /// [`StoreError::TimedOut`] when that takes longer than `timeout`; [`StoreError::Unreachable`] when there is no connection,
    /// or it breaks: what was asked may or may not have been done.
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

    /// Asks `path`, and returns when the answer begins; its body comes as the store sends it. No time-out.
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
    /// What the store says, for messages: the beginning of it.
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

    /// The store does not do it. A server that is starting, electing, or overloaded is one that cannot be reached.
    pub(super) fn refused(&self) -> StoreError {
        let why = format!("{}: {}", self.status, self.text()).into();
        if self.status.is_server_error() || self.status == StatusCode::TOO_MANY_REQUESTS {
            StoreError::Unreachable { why }
        } else {
            StoreError::Refused { why }
        }
    }
}

/// The error and what it comes from.
fn unreachable(error: &dyn Error) -> StoreError {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(why, ": {error}");
        source = error.source();
    }
    StoreError::Unreachable { why: why.into() }
}

/// `text` as a part of a path or query: everything but letters, digits, `-._~` and slashes in percents.
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A server that answers each connection with `answer`, and tells what it was asked first.
    async fn server(answer: &'static str) -> (Box<str>, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/base/", listener.local_addr().unwrap()).into();
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            if answer.is_empty() {
                // Says nothing for as long as anybody listens.
                while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
            }
            String::from_utf8_lossy(&buffer[..read]).into_owned()
        });
        (address, asked)
    }

    #[tokio::test]
    async fn a_call_says_what_it_was_told_and_reads_to_the_end() {
        let (address, asked) = server("HTTP/1.1 200 OK\r\nX-Index: 7\r\nContent-Length: 5\r\n\r\ntrue\n").await;
        let mut options = HttpOptions::new(address);
        options.secret("x-token", "secret").unwrap();
        let http = options.connect().unwrap();
        let answer = http.call(Method::PUT, "/v1/a?b", "body", http.timeout()).await.unwrap();
        assert_eq!((answer.status, &*answer.text()), (StatusCode::OK, "true"));
        assert_eq!(answer.headers["x-index"], "7");
        assert!(answer.json::<bool>().unwrap());
        let asked = asked.await.unwrap();
        assert!(
            asked.starts_with("PUT /base/v1/a?b HTTP/1.1\r\n") && asked.ends_with("body"),
            "{asked}"
        );
        assert!(asked.contains("x-token: secret\r\n"), "{asked}");
        assert!(!format!("{http:?}").contains("secret"));
    }

    #[tokio::test]
    async fn a_status_says_whether_the_store_refuses_or_is_away() {
        for (answer, away) in [
            ("HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nACL\n", false),
            (
                "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 9\r\n\r\nNo leader",
                true,
            ),
            ("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n", true),
        ] {
            let (address, _asked) = server(answer).await;
            let http = HttpOptions::new(address).connect().unwrap();
            let answer = http.call(Method::GET, "/", "", http.timeout()).await.unwrap();
            let error = answer.json::<bool>().unwrap_err();
            assert_eq!(matches!(error, StoreError::Unreachable { .. }), away, "{error}");
        }
    }

    #[tokio::test]
    async fn silence_and_nobody_are_told_apart() {
        let (address, _asked) = server("").await;
        let http = HttpOptions::new(address).connect().unwrap();
        let after = Duration::from_millis(20);
        let silent = http.call(Method::GET, "/", "", after).await.unwrap_err();
        assert_eq!(silent, StoreError::TimedOut { after });
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let http = HttpOptions::new(format!("http://{free}").into()).connect().unwrap();
        let nobody = http.call(Method::GET, "/", "", Duration::from_secs(60)).await;
        assert!(matches!(nobody, Err(StoreError::Unreachable { .. })), "{nobody:?}");
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_is_refused_without_its_secrets() {
        for address in [
            "",
            "somewhere",
            "ftp://a",
            "http://a:hidden@b",
            "http://a?hidden",
            "http://a b:hidden",
        ] {
            let refused = HttpOptions::new(address.into()).connect().unwrap_err();
            assert!(matches!(refused, RemoteError::Address { .. }), "{address}: {refused}");
            assert!(!refused.to_string().contains("hidden"), "{refused}");
        }
        let mut options = HttpOptions::new("http://a".into());
        assert!(options.secret("x-token", "two\nlines").is_err());
        options.timeout = Duration::ZERO;
        assert!(matches!(options.connect(), Err(RemoteError::Duration { .. })));
    }

    #[test]
    fn outside_a_runtime_there_is_no_client() {
        let refused = HttpOptions::new("http://a".into()).connect().unwrap_err();
        assert_eq!(refused, RemoteError::NoRuntime);
    }

    #[test]
    fn what_means_something_in_a_path_is_escaped() {
        assert_eq!(escaped("a/b-c_d.e~f"), "a/b-c_d.e~f");
        assert_eq!(escaped("a b?c%d#ä"), "a%20b%3Fc%25d%23%C3%A4");
    }
}
