//! The address and settings of an etcd.

use super::auth::AuthHttp;
use super::{Etcd, Nodes};
use crate::http::HttpOptions;
use std::fmt;
use std::time::Duration;
use tollgate::remote::RemoteError;

/// The settings of a connection to [`Etcd`]. Its debug output has no secrets.
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct EtcdOptions {
    http: HttpOptions,
    prefix: Box<str>,
    token: Option<Box<str>>,
    user: Option<(Box<str>, Box<str>)>,
}

impl EtcdOptions {
    pub(super) fn new(address: Box<str>) -> Self {
        let mut http = HttpOptions::new(address);
        http.timeout = Duration::from_secs(5);
        Self {
            http,
            prefix: "tollgate/".into(),
            token: None,
            user: None,
        }
    }

    /// The prefix of all keys; `tollgate/` unless set.
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The credentials, by name and password. Their token is requested with the first call, and again when the server does not
    /// know it any more.
    ///
    /// The user needs a role with `readwrite` on all that begins with the [prefix](Self::prefix), and for
    /// [`Etcd::policy`](super::Etcd) with `read` on the key.
    pub fn user(mut self, name: impl Into<Box<str>>, password: impl Into<Box<str>>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// The token to authenticate with, instead of a password: for example a JWT. It is not renewed: etcd's simple tokens end
    /// when they have not been used for five minutes.
    pub fn token(mut self, token: impl Into<Box<str>>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long the server may take to answer a call: 1 ms to a minute, 5 s unless set. The limiter has a time-out of its own;
    /// the shorter one counts.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.http.timeout = timeout;
        self
    }

    /// Certificates of an encrypted connection, where the address begins with `https://`.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, tls: crate::tls::Tls) -> Self {
        self.http.tls = Some(tls);
        self
    }

    /// Creates the handle. It connects when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when the address is none, asks for something that is not compiled in, the prefix is empty, or
    /// both a user and a token are given; [`RemoteError::Duration`]; [`RemoteError::NoRuntime`] outside a tokio runtime.
    pub fn connect(mut self) -> Result<Etcd, RemoteError> {
        if self.prefix.is_empty() {
            let why = "the prefix is empty".into();
            return Err(RemoteError::Address { why });
        }
        if self.token.is_some() && self.user.is_some() {
            let why = "both a user and a token are given".into();
            return Err(RemoteError::Address { why });
        }
        if let Some(token) = &self.token {
            self.http.secret("authorization", token)?;
        }
        let user = self.user.as_ref().map(|(name, password)| (&**name, &**password));
        let http = AuthHttp::new(self.http.connect()?, user);
        Ok(Etcd::new(Nodes::new(http, self.prefix)))
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("prefix", &self.prefix)
            .field("timeout", &self.http.timeout)
            .finish_non_exhaustive()
    }
}
