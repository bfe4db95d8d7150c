//! The address and settings of a Redis.

use super::Redis;
use super::link::Link;
use crate::connect::{Connect, ConnectOptions, unusable};
#[cfg(feature = "tls")]
use crate::tls::Tls;
#[cfg(feature = "redis-cluster")]
use ::redis::cluster::ClusterClient;
use ::redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, PushInfo, RedisError};
#[cfg(feature = "tls")]
use ::redis::{ClientTlsConfig, TlsCertificates};
#[cfg(feature = "redis-sentinel")]
use ::redis::{
    TlsMode,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};
use std::time::Duration;
use tollgate::remote::RemoteError;

/// The settings that only Redis has.
#[derive(Clone, Default)]
pub struct RedisSettings {
    /// The servers of a cluster, apart from the address.
    #[cfg(feature = "redis-cluster")]
    pub(super) cluster: Option<Box<[Box<str>]>>,
    /// Apart from the address.
    #[cfg(feature = "redis-sentinel")]
    pub(super) sentinels: Option<Sentinels>,
    pub(super) longest_ttl: Duration,
    pub(super) evicts: Option<Box<str>>,
}

/// The name by which sentinels know a server, and their addresses.
#[cfg(feature = "redis-sentinel")]
#[derive(Clone)]
pub(super) struct Sentinels {
    pub(super) name: Box<str>,
    pub(super) addresses: Box<[Box<str>]>,
}

impl Connect for Redis {
    type Own = RedisSettings;
    const STORE: &'static str = "Redis";

    fn connect(options: ConnectOptions<Self>) -> Result<Self, RemoteError> {
        if options.prefix.contains(['{', '}']) {
            return Err(unusable(format!("the prefix {:?} has braces", options.prefix)));
        }
        let addresses = std::slice::from_ref(&options.address);
        #[cfg(feature = "redis-cluster")]
        let addresses = options.own.cluster.as_deref().unwrap_or(addresses);
        #[cfg(feature = "redis-sentinel")]
        if let Some(sentinels) = &options.own.sentinels {
            return Redis::new(|hear| options.by_sentinels(sentinels, hear), &options);
        }
        let infos = addresses.iter().map(|address| options.info(address));
        let infos: Vec<_> = infos.collect::<Result<_, _>>()?;
        Redis::new(|hear| options.link(infos, hear), &options)
    }
}

impl ConnectOptions<Redis> {
    /// The longest [time to live](tollgate::remote::RemoteBuilder::ttl) of any process at this store, where they differ: a server
    /// that may have forgotten something grants no permits for this long. Unless it is set, the longest that the server knows
    /// and that of the asking limiter count. A server that has forgotten everything may then grant permits that a process with
    /// a longer time to live still holds.
    pub fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.own.longest_ttl = ttl;
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
        self.own.evicts = Some(policy.into());
        self
    }

    fn link(
        &self,
        infos: Vec<ConnectionInfo>,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<Link, RemoteError> {
        let Some(first) = infos.first().cloned() else {
            return Err(unusable("no server of the cluster is named"));
        };
        #[cfg(feature = "tls")]
        let certificates = self.certificates(first.addr())?;
        #[cfg(feature = "redis-cluster")]
        if self.own.cluster.is_some() {
            let servers = ClusterClient::builder(infos);
            #[cfg(feature = "tls")]
            let servers = match certificates {
                Some(certificates) => servers.certs(certificates),
                None => servers,
            };
            return Link::to_cluster(servers, self.timeout, hear).map_err(|error| failed(&error));
        }
        #[cfg(feature = "tls")]
        let client = match certificates {
            Some(certificates) => Client::build_with_tls(first, certificates),
            None => Client::open(first),
        };
        #[cfg(not(feature = "tls"))]
        let client = Client::open(first);
        let link = client.and_then(|client| Link::to(client, self.timeout, hear));
        link.map_err(|error| failed(&error))
    }

    #[cfg(feature = "redis-sentinel")]
    fn by_sentinels(
        &self,
        Sentinels { name, addresses }: &Sentinels,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<Link, RemoteError> {
        let infos = addresses.iter().map(|address| info(address));
        let infos: Vec<_> = infos.collect::<Result<_, _>>()?;
        let Some(first) = infos.first() else {
            return Err(unusable("no sentinel is named"));
        };
        let (asked, is_encrypted) = (
            first.redis_settings(),
            matches!(first.addr(), ConnectionAddr::TcpTls { .. }),
        );
        let given = |text: Option<&str>| text.map(str::to_owned);
        let same = |info: &ConnectionInfo| {
            let redis = info.redis_settings();
            (given(redis.username()), given(redis.password())) == (given(asked.username()), given(asked.password()))
                && matches!(info.addr(), ConnectionAddr::TcpTls { .. }) == is_encrypted
        };
        if !infos.iter().all(same) {
            return Err(unusable(
                "sentinels have one user, one password and one kind of connection",
            ));
        }
        let servers = infos.iter().map(|info| info.addr().clone());
        let failed = |error| failed(&error);
        let mut sentinels = SentinelClientBuilder::new(servers, name, SentinelServerType::Master)
            .map_err(failed)?
            .set_client_to_redis_db(asked.db())
            // The third version of the protocol sends messages beside answers.
            .set_client_to_redis_protocol(ProtocolVersion::RESP3);
        if let Some(user) = asked.username() {
            sentinels = sentinels.set_client_to_sentinel_username(user);
        }
        if let Some(password) = asked.password() {
            sentinels = sentinels.set_client_to_sentinel_password(password);
        }
        if let Some(user) = &self.user {
            sentinels = sentinels.set_client_to_redis_username(user);
        }
        if let Some(password) = &self.password {
            sentinels = sentinels.set_client_to_redis_password(password);
        }
        if is_encrypted {
            sentinels = sentinels.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        #[cfg(feature = "tls")]
        if let Some(certificates) = self.certificates(first.addr())? {
            sentinels = sentinels
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
        let sentinels = sentinels.build().map_err(failed)?;
        Ok(Link::by_sentinels(sentinels, self.timeout, hear))
    }

    /// The certificates of an encrypted connection; none for another one.
    #[cfg(feature = "tls")]
    fn certificates(&self, at: &ConnectionAddr) -> Result<Option<TlsCertificates>, RemoteError> {
        if !matches!(at, ConnectionAddr::TcpTls { .. }) {
            return match self.tls {
                None => Ok(None),
                Some(_) => Err(unusable(
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
        let info = info(at)?;
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

/// What an address says.
fn info(at: &str) -> Result<ConnectionInfo, RemoteError> {
    if at.starts_with("rediss:") && cfg!(not(feature = "tls")) {
        return Err(unusable("rediss:// needs the feature `tls`"));
    }
    let info = at.into_connection_info().map_err(|error| failed(&error))?;
    if let ConnectionAddr::TcpTls { insecure: true, .. } = info.addr() {
        return Err(unusable("certificates are always checked: `#insecure` is not allowed"));
    }
    Ok(info)
}

/// The library's messages name the fault, and no password.
fn failed(error: &RedisError) -> RemoteError {
    unusable(error.to_string())
}
