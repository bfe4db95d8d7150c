//! The address and settings of a Consul.

use super::Consul;
use super::api::Api;
use crate::http::HttpOptions;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::RemoteError;

/// The settings of a connection to [`Consul`]. Its debug output has no secrets.
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct ConsulOptions {
    http: HttpOptions,
    token: Option<Box<str>>,
    datacenter: Option<Box<str>>,
    prefix: Box<str>,
}

impl ConsulOptions {
    pub(super) fn new(address: Box<str>) -> Self {
        Self {
            http: HttpOptions::new(address),
            token: None,
            datacenter: None,
            prefix: "tollgate/".into(),
        }
    }

    /// The token of an access control list, sent with each call. It needs `key_prefix` with `write` for the
    /// [prefix](Self::prefix), and `session_prefix` with `write` for the nodes that are connected to.
    pub fn token(mut self, token: impl Into<Box<str>>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The datacenter; that of the agent unless set.
    pub fn datacenter(mut self, name: impl Into<Box<str>>) -> Self {
        self.datacenter = Some(name.into());
        self
    }

    /// The prefix of all keys; `tollgate/` unless set.
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long an answer may take: 1 ms to a minute, 1 s unless set. A sync of a limiter is several calls, and has a time-out
    /// of its own.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.http.timeout = timeout;
        self
    }

    /// The certificates of an encrypted connection, if they are not the system's. For addresses that begin with `https://`.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.http.tls = Some(tls);
        self
    }

    /// Creates the handle. It connects when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when the address is none, or asks for encryption without the feature `tls`, or has
    /// certificates and asks for none, or a setting has characters that cannot be sent; [`RemoteError::Certificate`];
    /// [`RemoteError::Duration`]; [`RemoteError::NoRuntime`] outside a tokio runtime.
    pub fn connect(self) -> Result<Consul, RemoteError> {
        let api = self.api()?;
        Ok(Consul(Arc::new(super::Inner::new(api, self.prefix))))
    }

    pub(super) fn api(&self) -> Result<Api, RemoteError> {
        let mut folders = self.prefix.split('/').rev().skip(1);
        // Consul redirects paths with such parts.
        if folders.any(|folder| matches!(folder, "" | "." | "..")) || self.prefix.contains(char::is_control) {
            let why = format!(
                "the prefix {:?} has a part that is empty, `.` or `..`, or control characters",
                self.prefix
            )
            .into();
            return Err(RemoteError::Address { why });
        }
        let mut http = self.http.clone();
        if let Some(token) = &self.token {
            http.secret("x-consul-token", token)?;
        }
        Ok(Api::new(http.connect()?, self.datacenter.as_deref()))
    }
}

impl fmt::Debug for ConsulOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulOptions")
            .field("datacenter", &self.datacenter)
            .field("prefix", &self.prefix)
            .field("timeout", &self.http.timeout)
            .finish_non_exhaustive()
    }
}
