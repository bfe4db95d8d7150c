//! Where a Redis is, and how it is spoken to.

use super::Redis;
use crate::remote::error::RemoteError;
#[cfg(feature = "remote-tls")]
use crate::remote::tls::Tls;
use ::redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError};
#[cfg(feature = "remote-tls")]
use ::redis::{ClientTlsConfig, TlsCertificates};
use std::fmt;
use std::time::Duration;

/// The settings of a connection to [`Redis`]. What is printed of them has no secrets.
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct RedisOptions {
    address: Box<str>,
    user: Option<Box<str>>,
    password: Option<Box<str>>,
    prefix: Box<str>,
    timeout: Duration,
    #[cfg(feature = "remote-tls")]
    tls: Option<Tls>,
}

impl RedisOptions {
    pub(super) fn new(address: Box<str>) -> Self {
        Self {
            address,
            user: None,
            password: None,
            prefix: "tollgate:".into(),
            timeout: Duration::from_millis(500),
            #[cfg(feature = "remote-tls")]
            tls: None,
        }
    }

    /// The user to log in as, one of an access control list; that of the address, or Redis's own, unless set.
    pub fn user(mut self, user: impl Into<Box<str>>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password to log in with; that of the address unless set.
    pub fn password(mut self, password: impl Into<Box<str>>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// What all keys and channels begin with; `tollgate:` unless set. Without braces.
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the server may take to let us in, and to answer a call: 1 ms to a minute, 500 ms unless set. The limiter has a
    /// time-out of its own; the shorter one counts.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The certificates of an encrypted connection, where they are not the system's. For addresses that begin with `rediss://`.
    #[cfg(feature = "remote-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "remote-tls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Makes the handle. The server is spoken to when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when the address is none, or asks for encryption without the feature `remote-tls`, or has
    /// certificates and asks for none; [`RemoteError::Certificate`]; [`RemoteError::Duration`]; [`RemoteError::NoRuntime`]
    /// outside a tokio runtime.
    pub fn connect(self) -> Result<Redis, RemoteError> {
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
        if self.prefix.contains(['{', '}']) {
            return Err(address(format!("the prefix {:?} has braces", self.prefix)));
        }
        let client = self.client()?;
        Redis::new(client, self.prefix, self.timeout).map_err(|error| unusable(&error))
    }

    fn client(&self) -> Result<Client, RemoteError> {
        if self.address.starts_with("rediss:") && cfg!(not(feature = "remote-tls")) {
            return Err(address("rediss:// needs the feature `remote-tls`"));
        }
        let info = self.info().map_err(|error| unusable(&error))?;
        if let ConnectionAddr::TcpTls { insecure: true, .. } = info.addr() {
            return Err(address("certificates are always checked: `#insecure` is not allowed"));
        }
        #[cfg(feature = "remote-tls")]
        if let Some(certificates) = self.certificates(info.addr())? {
            return Client::build_with_tls(info, certificates).map_err(|error| unusable(&error));
        }
        Client::open(info).map_err(|error| unusable(&error))
    }

    /// What an encrypted connection goes by; none for one that is not.
    #[cfg(feature = "remote-tls")]
    fn certificates(&self, at: &ConnectionAddr) -> Result<Option<TlsCertificates>, RemoteError> {
        if !matches!(at, ConnectionAddr::TcpTls { .. }) {
            return match self.tls {
                None => Ok(None),
                Some(_) => Err(address(
                    "certificates are given, and the address does not begin with rediss://",
                )),
            };
        }
        Tls::choose_provider();
        let tls = self.tls.clone().unwrap_or_default();
        tls.check()?;
        let client_tls = tls.client.map(|client| ClientTlsConfig {
            client_cert: client.chain.into(),
            client_key: client.key.into(),
        });
        let root_cert = tls.roots.map(Into::into);
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }

    fn info(&self) -> Result<ConnectionInfo, RedisError> {
        let info = (*self.address).into_connection_info()?;
        // The third version of the protocol has messages beside answers.
        let mut redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        if let Some(user) = &self.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password);
        }
        Ok(info.set_redis_settings(redis))
    }
}

/// The library's messages name what is wrong, and no password.
fn unusable(error: &RedisError) -> RemoteError {
    address(error.to_string())
}

fn address(why: impl Into<Box<str>>) -> RemoteError {
    RemoteError::Address { why: why.into() }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
