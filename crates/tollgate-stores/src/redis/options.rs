//! The address and settings of a Redis.

use super::Redis;
use super::link::Link;
use crate::settings::{check_time_out, runtime};
#[cfg(feature = "tls")]
use crate::tls::Tls;
#[cfg(feature = "redis-cluster")]
use ::redis::cluster::ClusterClient;
use ::redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, PushInfo, RedisError};
#[cfg(feature = "tls")]
use ::redis::{ClientTlsConfig, TlsCertificates};
use std::fmt;
use std::time::Duration;
use tollgate::remote::RemoteError;

/// The settings of a connection to [`Redis`]. Its debug output has no secrets.
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct RedisOptions {
    /// One address, or several of a cluster.
    addresses: Box<[Box<str>]>,
    #[cfg(feature = "redis-cluster")]
    is_cluster: bool,
    user: Option<Box<str>>,
    password: Option<Box<str>>,
    prefix: Box<str>,
    timeout: Duration,
    longest_ttl: Duration,
    evicts: Option<Box<str>>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl RedisOptions {
    pub(super) fn new(address: Box<str>) -> Self {
        Self {
            addresses: Box::new([address]),
            #[cfg(feature = "redis-cluster")]
            is_cluster: false,
            user: None,
            password: None,
            prefix: "tollgate:".into(),
            timeout: Duration::from_millis(500),
            longest_ttl: Duration::ZERO,
            evicts: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn of_cluster(addresses: Box<[Box<str>]>) -> Self {
        Self {
            addresses,
            is_cluster: true,
            ..Self::new("".into())
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

    /// The prefix of all keys and channels; `tollgate:` unless set. Without braces.
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the server may take to log us in, and to answer a call: 1 ms to a minute, 500 ms unless set. The limiter has a
    /// time-out of its own; the shorter one counts.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The longest [time to live](tollgate::remote::RemoteBuilder::ttl) of any process at this store, where they differ: a server
    /// that may have forgotten something grants no permits for this long. Unless it is set, the longest that the server knows
    /// and that of the asking limiter count. A server that has forgotten everything may then grant permits that a process with
    /// a longer time to live still holds.
    pub fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.longest_ttl = ttl;
        self
    }

    /// Allows a server whose `maxmemory-policy` is this one, such as `volatile-lru`; only `noeviction` is allowed unless set. A
    /// server that does not report its policy counts as `unknown`.
    ///
    /// # Bounds
    /// The next sync at a limiter notices that keys of it were evicted, also if only some are gone: its sessions learn that
    /// they are lost, and nothing is granted for a time to live. An unknown limiter may have been evicted as a whole: it grants
    /// nothing until this process has seen no eviction, of any key, for a time to live. So no permit is granted beyond the
    /// limit, but permits are lost while memory is short. An evicted rate or window is as new: the tokens taken from it are
    /// there again.
    pub fn allow_eviction(mut self, policy: impl Into<Box<str>>) -> Self {
        self.evicts = Some(policy.into());
        self
    }

    /// The certificates of an encrypted connection, if they are not the system's. For addresses that begin with `rediss://`.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Creates the handle. It connects when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when the address is none, or asks for encryption without the feature `tls`, or has
    /// certificates and asks for none; [`RemoteError::Certificate`]; [`RemoteError::Duration`]; [`RemoteError::NoRuntime`]
    /// outside a tokio runtime.
    pub fn connect(self) -> Result<Redis, RemoteError> {
        runtime()?;
        check_time_out(self.timeout)?;
        if self.prefix.contains(['{', '}']) {
            return Err(address(format!("the prefix {:?} has braces", self.prefix)));
        }
        let infos = self.addresses.iter().map(|address| self.info(address));
        let infos: Vec<_> = infos.collect::<Result<_, _>>()?;
        Redis::new(
            |hear| self.link(infos, hear),
            self.prefix.clone(),
            self.timeout,
            self.longest_ttl,
            self.evicts.clone(),
        )
    }

    fn link(
        &self,
        infos: Vec<ConnectionInfo>,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<Link, RemoteError> {
        let Some(first) = infos.first().cloned() else {
            return Err(address("no server of the cluster is named"));
        };
        #[cfg(feature = "tls")]
        let certificates = self.certificates(first.addr())?;
        #[cfg(feature = "redis-cluster")]
        if self.is_cluster {
            let servers = ClusterClient::builder(infos);
            #[cfg(feature = "tls")]
            let servers = match certificates {
                Some(certificates) => servers.certs(certificates),
                None => servers,
            };
            return Link::to_cluster(servers, self.timeout, hear).map_err(|error| unusable(&error));
        }
        #[cfg(feature = "tls")]
        let client = match certificates {
            Some(certificates) => Client::build_with_tls(first, certificates),
            None => Client::open(first),
        };
        #[cfg(not(feature = "tls"))]
        let client = Client::open(first);
        let link = client.and_then(|client| Link::to(client, self.timeout, hear));
        link.map_err(|error| unusable(&error))
    }

    /// The certificates of an encrypted connection; none for another one.
    #[cfg(feature = "tls")]
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

    fn info(&self, at: &str) -> Result<ConnectionInfo, RemoteError> {
        if at.starts_with("rediss:") && cfg!(not(feature = "tls")) {
            return Err(address("rediss:// needs the feature `tls`"));
        }
        let info = at.into_connection_info().map_err(|error| unusable(&error))?;
        if let ConnectionAddr::TcpTls { insecure: true, .. } = info.addr() {
            return Err(address("certificates are always checked: `#insecure` is not allowed"));
        }
        // The third version of the protocol sends messages beside answers.
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

/// The library's messages name the fault, and no password.
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
