//! The address of a store that speaks HTTP, and the headers of each call.

use super::{Connector, Http};
use crate::connect::{Connect, ConnectOptions, unusable};
#[cfg(feature = "tls")]
use crate::tls::Tls;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::time::Duration;
use tollgate::remote::RemoteError;

/// The address of a store, and the headers of each call.
#[derive(Clone)]
pub(crate) struct HttpOptions {
    pub(crate) address: Box<str>,
    pub(crate) headers: HeaderMap,
    /// How long an answer may take.
    pub(crate) timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

impl HttpOptions {
    pub(crate) fn new(address: Box<str>, timeout: Duration) -> Self {
        Self {
            address,
            headers: HeaderMap::new(),
            timeout,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    pub(crate) fn of<S: Connect>(options: &ConnectOptions<S>) -> Self {
        Self {
            #[cfg(feature = "tls")]
            tls: options.tls.clone(),
            ..Self::new(options.address.clone(), options.timeout)
        }
    }

    /// Sends `value`, a secret, in the header `name` with each call.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when it has characters that no header has.
    pub(crate) fn secret(&mut self, name: &'static str, value: &str) -> Result<(), RemoteError> {
        say(&mut self.headers, name, value)
    }

    /// Creates the client. It connects when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`], or [`RemoteError::Certificate`].
    pub(crate) fn connect(self) -> Result<Http, RemoteError> {
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
        // A reader of a stream notices a dead server after 25 s.
        connector.set_keepalive(Some(Duration::from_secs(10)));
        connector.set_keepalive_interval(Some(Duration::from_secs(5)));
        connector.set_keepalive_retries(Some(3));
        connector
    }

    #[cfg(not(feature = "tls"))]
    fn connector(&self, encrypted: bool) -> Result<Connector, RemoteError> {
        if encrypted {
            return Err(unusable("https:// needs the feature `tls`"));
        }
        Ok(self.plain())
    }

    #[cfg(feature = "tls")]
    fn connector(&self, encrypted: bool) -> Result<Connector, RemoteError> {
        if !encrypted && self.tls.is_some() {
            return Err(unusable(
                "certificates are given, and the address does not begin with https://",
            ));
        }
        let tls = self.tls.clone().unwrap_or_default();
        let config = if encrypted {
            tls.client_config()
        } else {
            tls.config(rustls::RootCertStore::empty())
        };
        let mut connector = self.plain();
        connector.enforce_http(false);
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(config?);
        Ok(builder.https_or_http().enable_http1().wrap_connector(connector))
    }
}

pub(super) fn say(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<(), RemoteError> {
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
