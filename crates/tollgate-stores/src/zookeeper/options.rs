//! The addresses and settings of a ZooKeeper.

use super::link::{Access, Link, failed};
use super::{Nodes, Zookeeper, acl, servers};
use crate::connect::{Connect, ConnectOptions, unusable};
#[cfg(feature = "tls")]
use crate::tls::Tls;
use std::time::Duration;
use tokio::time::Instant;
use tollgate::remote::RemoteError;
use tollgate::remote::StoreError;
use zookeeper_client::Client;

impl Connect for Zookeeper {
    type Own = ();
    const STORE: &'static str = "ZooKeeper";

    fn connect(options: ConnectOptions<Self>) -> Result<Self, RemoteError> {
        let odd = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(char::is_control);
        let parts = options.prefix.strip_prefix('/').map(|path| path.split('/').any(odd));
        if parts.is_none_or(|odd| odd && &*options.prefix != "/") {
            return Err(unusable(format!("the prefix {:?} is no path", options.prefix)));
        }
        options.credentials()?;
        #[cfg(feature = "tls")]
        let encrypted = options.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let encrypted = false;
        servers::check(&options.address, encrypted)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &options.tls {
            tls.check()?;
            if tls.roots.is_none() {
                return Err(unusable("encrypted connections to ZooKeeper need root certificates"));
            }
        }
        Ok(Zookeeper::new(Nodes::new(options)))
    }
}

impl ConnectOptions<Zookeeper> {
    /// Creates a session at the servers that lasts at least for `ttl`.
    pub(super) async fn link(&self, ttl: Duration) -> Result<Link, StoreError> {
        let sent = Instant::now();
        // Whole milliseconds count.
        let millis = Duration::from_millis(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX));
        let mut connector = Client::connector().with_session_timeout(millis).with_fail_eagerly();
        let mut access = Access::Anyone;
        if let (Some(user), Some(password)) = (&self.user, &self.password) {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
            access = Access::Creator;
        }
        let connects = async {
            #[cfg(feature = "tls")]
            if let Some(tls) = &self.tls {
                return connector.with_tls(encrypted(tls)?).secure_connect(&self.address).await;
            }
            connector.connect(&self.address).await
        };
        let connected = tokio::time::timeout(self.timeout, connects).await;
        let connected = connected.map_err(|_| StoreError::TimedOut { after: self.timeout })?;
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
