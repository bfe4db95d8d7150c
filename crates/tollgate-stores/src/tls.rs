//! Encrypted connections: the trusted roots, and our own certificate.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use tollgate::remote::RemoteError;

/// Certificates of an encrypted connection to a store, in PEM.
///
/// Servers must have a certificate of the name or address that was connected to; the check cannot be turned off. The process
/// chooses the cryptography, by `rustls`'s default provider; without a choice it is `aws-lc-rs`.
///
/// ```
/// # use tollgate::remote::RemoteError;
/// # use tollgate_stores::Tls;
/// let nothing = Tls::new().roots("there is no certificate here".as_bytes());
/// assert!(matches!(nothing.check(), Err(RemoteError::Certificate { what: "root certificates", .. })));
/// assert_eq!(Tls::new().check(), Ok(()));
/// ```
#[derive(Clone, Default)]
#[must_use = "it is passed to the options of a store"]
pub struct Tls {
    pub(super) roots: Option<Box<[u8]>>,
    pub(super) client: Option<Client>,
}

/// The certificate of a client.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) chain: Box<[u8]>,
    pub(super) key: Box<[u8]>,
}

impl Tls {
    /// Trusts the servers that the system trusts, and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts only servers whose certificates lead to one of these.
    pub fn roots(mut self, pem: impl Into<Box<[u8]>>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Shows the server this certificate, and the chain from it to one that the server trusts. `key` is its private key: PKCS
    /// #8, PKCS #1 or SEC 1.
    pub fn client(mut self, chain: impl Into<Box<[u8]>>, key: impl Into<Box<[u8]>>) -> Self {
        let (chain, key) = (chain.into(), key.into());
        self.client = Some(Client { chain, key });
        self
    }

    /// Checks that the certificates can be used. The options of a store check it, too.
    ///
    /// # Errors
    /// [`RemoteError::Certificate`] when something is no PEM of the right kind, or the key does not belong to the certificate.
    pub fn check(&self) -> Result<(), RemoteError> {
        self.config(RootCertStore::empty()).map(drop)
    }

    /// The settings of a client that trusts `system` unless other roots were given.
    pub(super) fn config(&self, system: RootCertStore) -> Result<ClientConfig, RemoteError> {
        let roots = match &self.roots {
            None => system,
            Some(pem) => roots(pem)?,
        };
        let provider = rustls::crypto::CryptoProvider::get_default().cloned();
        let provider = provider.unwrap_or_else(|| rustls::crypto::aws_lc_rs::default_provider().into());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("protocol versions", &error))?
            .with_root_certificates(roots);
        let Some(Client { chain, key }) = &self.client else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates("client certificate", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| bad("client key", &error))?;
        config
            .with_client_auth_cert(chain, key)
            .map_err(|error| bad("client certificate and key", &error))
    }

    /// The settings of a client that trusts the system's roots unless others were given. They are loaded only then.
    #[cfg(any(feature = "consul", feature = "etcd", feature = "postgres-tls"))]
    pub(super) fn client_config(&self) -> Result<ClientConfig, RemoteError> {
        self.config(match self.roots {
            None => system_roots()?,
            Some(_) => RootCertStore::empty(),
        })
    }

    /// Makes `aws-lc-rs` the provider of the process, unless it has one: for libraries that have no other way to know.
    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    pub(super) fn choose_provider() {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may have been first.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
    }
}

/// The root certificates of the system.
#[cfg(any(feature = "consul", feature = "etcd", feature = "postgres-tls"))]
fn system_roots() -> Result<RootCertStore, RemoteError> {
    let mut store = RootCertStore::empty();
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

fn roots(pem: &[u8]) -> Result<RootCertStore, RemoteError> {
    const WHAT: &str = "root certificates";
    let mut store = RootCertStore::empty();
    for certificate in certificates(WHAT, pem)? {
        store.add(certificate).map_err(|error| bad(WHAT, &error))?;
    }
    Ok(store)
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, RemoteError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| bad(what, &error))?;
    if all.is_empty() {
        return Err(bad(what, &"there is none in it"));
    }
    Ok(all)
}

fn bad(what: &'static str, why: &dyn fmt::Display) -> RemoteError {
    let why = why.to_string().into();
    RemoteError::Certificate { what, why }
}

/// Without its contents.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("roots", &self.roots.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
