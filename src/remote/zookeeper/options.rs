//! Where a ZooKeeper is, and how it is spoken to.

use super::link::{Access, Link, failed};
use super::{Nodes, Zookeeper};
use crate::remote::backend::StoreError;
use crate::remote::error::RemoteError;
use std::fmt;
use std::time::Duration;
use zookeeper_client::Client;

/// The settings of a connection to [`Zookeeper`]. What is printed of them has no secrets.
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct ZookeeperOptions {
    servers: Box<str>,
    prefix: Box<str>,
    auth: Option<(Box<str>, Box<str>)>,
    #[cfg(feature = "remote-tls")]
    tls: Option<zookeeper_client::TlsOptions>,
}

impl ZookeeperOptions {
    pub(super) fn new(servers: Box<str>) -> Self {
        Self {
            servers,
            prefix: "/tollgate".into(),
            auth: None,
            #[cfg(feature = "remote-tls")]
            tls: None,
        }
    }

    /// The node under which all of ours lie; `/tollgate` unless set. It is made when it is not there.
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Who we are, by ZooKeeper's scheme `digest`. Nodes that are made from then on are for nobody else: what others may do to
    /// those that are there already, and to the prefix, their access control lists say.
    pub fn digest(mut self, user: impl Into<Box<str>>, password: impl Into<Box<str>>) -> Self {
        self.auth = Some((user.into(), password.into()));
        self
    }

    /// Connections are encrypted.
    #[cfg(feature = "remote-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "remote-tls")))]
    pub fn tls(mut self, tls: zookeeper_client::TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Makes the handle. The servers are spoken to when they are first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when the prefix is no path; [`RemoteError::NoRuntime`] outside a tokio runtime.
    pub fn connect(self) -> Result<Zookeeper, RemoteError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(RemoteError::NoRuntime);
        }
        let odd = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(char::is_control);
        let parts = self.prefix.strip_prefix('/').map(|path| path.split('/').any(odd));
        if parts.is_none_or(|odd| odd && &*self.prefix != "/") {
            let why = format!("the prefix {:?} is no path", self.prefix).into();
            return Err(RemoteError::Address { why });
        }
        if self.servers.trim().is_empty() {
            let why = "no server is named".into();
            return Err(RemoteError::Address { why });
        }
        Ok(Zookeeper::new(Nodes::new(self)))
    }

    /// A session at the servers that lasts at least for `ttl`.
    pub(super) async fn link(&self, ttl: Duration) -> Result<Link, StoreError> {
        // Whole milliseconds count.
        let millis = Duration::from_millis(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX));
        let mut connector = Client::connector().with_session_timeout(millis).with_fail_eagerly();
        let mut access = Access::Anyone;
        if let Some((user, password)) = &self.auth {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
            access = Access::Creator;
        }
        #[cfg(feature = "remote-tls")]
        let connected = match self.tls.clone() {
            Some(tls) => connector.with_tls(tls).secure_connect(&self.servers).await,
            None => connector.connect(&self.servers).await,
        };
        #[cfg(not(feature = "remote-tls"))]
        let connected = connector.connect(&self.servers).await;
        let client = connected.map_err(failed)?;
        let prefix = if &*self.prefix == "/" {
            "/".into()
        } else {
            format!("{}/", self.prefix)
        };
        let link = Link::new(client, access, prefix.into());
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

impl fmt::Debug for ZookeeperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperOptions")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
