//! A certificate authority of a test's own.

use crate::raw_session::{refused, serves_waiters};
use crate::rig::server::Store;
use crate::store::key;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tollgate::remote::{Backend, StoreError};
use tollgate_stores::Tls;

/// A certificate authority. Peers with its root trust the certificates that it signs.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, in PEM.
    pub(crate) root: String,
}

/// The certificate of an encrypted server, and its port, beside the unencrypted one. The server asks clients for a certificate
/// of the same authority.
#[derive(Clone)]
pub(crate) struct Guard {
    port: Arc<AtomicU16>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) root: Arc<str>,
}

impl Guard {
    /// For a host called `name`.
    pub(crate) fn new(authority: &Authority, name: &str) -> Self {
        Self {
            port: Arc::default(),
            identity: authority.sign(name).into(),
            root: authority.root.as_str().into(),
        }
    }

    /// Reserves a free port.
    pub(crate) fn take_port(&self) -> u16 {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let free = free.expect("a port").port();
        // Relaxed: it is read when the server is ready.
        self.port.store(free, Ordering::Relaxed);
        free
    }

    pub(crate) fn port(&self) -> u16 {
        // Relaxed: see `take_port`.
        self.port.load(Ordering::Relaxed)
    }

    /// Writes its certificate, its key, and the root, and returns where.
    pub(crate) fn write(&self, folder: &Path) -> [PathBuf; 3] {
        let Identity { certificate, key } = &*self.identity;
        [("certificate", &**certificate), ("key", key), ("root", &self.root)].map(|(name, text)| {
            let path = folder.join(name).with_extension("pem");
            std::fs::write(&path, text).expect("a folder of our own");
            path
        })
    }
}

/// A server of this program, unencrypted at its port, and encrypted at that of the guard; `command` has the settings.
#[derive(Clone)]
pub(crate) struct Encrypted<S> {
    pub(crate) program: S,
    pub(crate) guard: Guard,
    pub(crate) command: fn(&S, &Guard, u16, &Path) -> Command,
}

impl<S: Store> Store for Encrypted<S> {
    fn command(&self, port: u16, folder: &Path) -> Command {
        (self.command)(&self.program, &self.guard, port, folder)
    }

    fn ready(&self, address: SocketAddr, pid: u32) -> bool {
        self.program.ready(address, pid)
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        self.program.keys(address)
    }
}

/// A client with a certificate reaches a limiter; one without is refused, and a server signed by another authority is not
/// trusted.
pub(crate) async fn is_reached_with_certificates<B: Backend>(authority: &Authority, store: impl Fn(Tls) -> B) {
    serves_waiters(store(authority.known())).await;
    for tls in [authority.trusting(), Authority::new().trusting()] {
        let error = refused(store(tls), key()).await;
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    }
}

/// A certificate, and its private key, in PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.distinguished_name = called("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, root }
    }

    /// Signs a certificate for `name`: a host or an address.
    pub(crate) fn sign(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        // Not that of its issuer: it would count as self-signed.
        params.distinguished_name = called(name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        let key = key.serialize_pem();
        Identity { certificate, key }
    }

    /// The settings of a client with a certificate.
    pub(crate) fn known(&self) -> Tls {
        let Identity { certificate, key } = self.sign("client.test");
        self.trusting().client(certificate.into_bytes(), key.into_bytes())
    }

    /// The settings of a client without a certificate.
    pub(crate) fn trusting(&self) -> Tls {
        Tls::new().roots(self.root.as_bytes())
    }
}

fn called(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}
