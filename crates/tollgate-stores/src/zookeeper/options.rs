//! The addresses and settings of a ZooKeeper.

use super::link::{Access, Link, failed};
use super::{Nodes, Zookeeper, acl, servers};
use crate::settings::runtime;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use std::fmt;
use std::time::Duration;
use tokio::time::Instant;
use tollgate::remote::RemoteError;
use tollgate::remote::StoreError;
use zookeeper_client::Client;

/// The settings of a connection to [`Zookeeper`]. Its debug output has no secrets.
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct ZookeeperOptions {
    servers: Box<str>,
    prefix: Box<str>,
    auth: Option<(Box<str>, Box<str>)>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl ZookeeperOptions {
    pub(super) fn new(servers: Box<str>) -> Self {
        Self {
            servers,
            prefix: "/tollgate".into(),
            auth: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The node above all of ours; `/tollgate` unless set. It is created if it is missing.
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Credentials, by ZooKeeper's scheme `digest`. New nodes are for this user only; existing nodes, and the prefix, keep
    /// their access control lists. We must be allowed to create and to delete under the prefix, `cd`; otherwise the first sync
    /// is refused before anything is done.
    pub fn digest(mut self, user: impl Into<Box<str>>, password: impl Into<Box<str>>) -> Self {
        self.auth = Some((user.into(), password.into()));
        self
    }

    /// Encrypts connections, to the port that the servers call `secureClientPort`, with these certificates. The roots must be
    /// named: those of the system are not used.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Creates the handle. It connects when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when the prefix is no path, no server is named, one is invalid, or some are encrypted and some
    /// are not; [`RemoteError::NoRuntime`] outside a tokio runtime; and, with the feature `tls`,
    /// `RemoteError::Certificate`.
    pub fn connect(self) -> Result<Zookeeper, RemoteError> {
        runtime()?;
        let odd = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(char::is_control);
        let parts = self.prefix.strip_prefix('/').map(|path| path.split('/').any(odd));
        if parts.is_none_or(|odd| odd && &*self.prefix != "/") {
            let why = format!("the prefix {:?} is no path", self.prefix).into();
            return Err(RemoteError::Address { why });
        }
        #[cfg(feature = "tls")]
        let encrypted = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let encrypted = false;
        servers::check(&self.servers, encrypted)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            tls.check()?;
            if tls.roots.is_none() {
                let why = "encrypted connections to ZooKeeper need root certificates".into();
                return Err(RemoteError::Address { why });
            }
        }
        Ok(Zookeeper::new(Nodes::new(self)))
    }

    /// Creates a session at the servers that lasts at least for `ttl`.
    pub(super) async fn link(&self, ttl: Duration) -> Result<Link, StoreError> {
        let sent = Instant::now();
        // Whole milliseconds count.
        let millis = Duration::from_millis(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX));
        let mut connector = Client::connector().with_session_timeout(millis).with_fail_eagerly();
        let mut access = Access::Anyone;
        if let Some((user, password)) = &self.auth {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
            access = Access::Creator;
        }
        #[cfg(feature = "tls")]
        let connected = match &self.tls {
            Some(tls) => {
                let tls = encrypted(tls).map_err(failed)?;
                connector.with_tls(tls).secure_connect(&self.servers).await
            }
            None => connector.connect(&self.servers).await,
        };
        #[cfg(not(feature = "tls"))]
        let connected = connector.connect(&self.servers).await;
        let client = connected.map_err(failed)?;
        let above = self.prefix.strip_suffix('/').unwrap_or(&self.prefix);
        acl::check(&client, access, above).await?;
        let prefix = format!("{above}/");
        let link = Link::new(client, access, prefix.into(), ttl, sent);
        if link.lasts() < ttl {
            let why = format!(
                "a time to live of {ttl:?} was given, and the server keeps sessions for {:?} at most",
                link.lasts()
            );
            return Err(StoreError::Refused { why: why.into() });
        }
        Ok(link)
    }
}

/// The certificates in the form of the client library.
#[cfg(feature = "tls")]
fn encrypted(tls: &Tls) -> Result<zookeeper_client::TlsOptions, zookeeper_client::Error> {
    use zookeeper_client::{Error, TlsOptions};
    let text = |pem: &[u8]| {
        let text = String::from_utf8(pem.to_vec());
        text.map_err(|_| Error::BadArguments(&"a certificate is no PEM"))
    };
    // The library uses the default provider of the process, and panics without one.
    Tls::choose_provider();
    let mut options = TlsOptions::new();
    if let Some(roots) = &tls.roots {
        options = options.with_pem_ca(&text(roots)?)?;
    }
    if let Some(client) = &tls.client {
        options = options.with_pem_identity(&text(&client.chain)?, &text(&client.key)?)?;
    }
    Ok(options)
}

impl fmt::Debug for ZookeeperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperOptions")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
