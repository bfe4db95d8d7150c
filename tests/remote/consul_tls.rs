//! Encrypted connections to a real Consul, and what is refused.

use crate::certificates::{Authority, Identity};
use crate::consul::Consul as Program;
use crate::rig::server::{Server, Store};
use crate::speaker::LONG;
use crate::store::key;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tollgate::remote::{Consul, Remote, RemoteError, StoreError, Tls};

/// A server that speaks in the clear at its port, and encrypted at another, to those whom the authority knows.
#[derive(Clone)]
struct Encrypted {
    port: Arc<AtomicU16>,
    identity: Arc<Identity>,
    root: Arc<str>,
}

impl Store for Encrypted {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let mut command = Program.command(port, folder);
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let free = free.expect("a port").port();
        // Relaxed: the test reads it when the server is ready.
        self.port.store(free, Ordering::Relaxed);
        for (setting, text) in [
            ("cert_file", &*self.identity.certificate),
            ("key_file", &*self.identity.key),
            ("ca_file", &*self.root),
        ] {
            let path = folder.join(setting);
            std::fs::write(&path, text).expect("a file");
            command.arg("-hcl").arg(format!("{setting} = \"{}\"", path.display()));
        }
        command.args(["-hcl", "verify_incoming_https = true"]);
        command.args(["-hcl", &format!("ports {{ https = {free} }}")]);
        command
    }

    fn ready(&self, address: SocketAddr, pid: u32) -> bool {
        Program.ready(address, pid)
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        Program.keys(address)
    }
}

#[tokio::test]
async fn a_limiter_is_reached_encrypted_by_those_who_know_each_other() {
    let authority = Authority::new();
    let store = Encrypted {
        port: Arc::default(),
        identity: authority.sign("127.0.0.1").into(),
        root: authority.root.as_str().into(),
    };
    let _server = Server::start(store.clone()).await.expect("a server");
    // Relaxed: see above.
    let address = format!("https://127.0.0.1:{}", store.port.load(Ordering::Relaxed));
    let options = || Consul::options(&*address).timeout(Duration::from_secs(60));
    let Identity {
        certificate,
        key: secret,
    } = authority.sign("client.test");
    let believes = Tls::new().roots(authority.root.as_bytes());
    let known = believes.clone().client(certificate.into_bytes(), secret.into_bytes());
    let remote = Remote::permits(key(), 2).ttl(LONG);
    let remote = remote.spawn(options().tls(known).connect().unwrap()).unwrap();
    drop(remote.acquire(2).await.unwrap());
    remote.close().await;

    // Who shows nothing is not let in, and a server that another authority has signed is not believed.
    let stranger = Tls::new().roots(Authority::new().root.as_bytes());
    for tls in [believes, stranger] {
        let remote = Remote::permits(key(), 1).ttl(LONG).away_after(Duration::ZERO);
        let remote = remote.spawn(options().tls(tls).connect().unwrap()).unwrap();
        assert!(remote.acquire(1).await.is_err());
        let error = remote.stats().last_error.expect("it says why");
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    }
}

#[tokio::test]
async fn certificates_that_cannot_be_are_refused_at_once() {
    let tls = |address: &str, tls| Consul::options(address).tls(tls).connect().map(drop).unwrap_err();
    let nothing = Tls::new().roots("nothing".as_bytes());
    let refused = tls("https://127.0.0.1:1", nothing);
    assert!(matches!(refused, RemoteError::Certificate { .. }), "{refused}");
    let known = Tls::new().roots(Authority::new().root.as_bytes());
    let refused = tls("http://127.0.0.1:1", known);
    assert!(matches!(refused, RemoteError::Address { .. }), "{refused}");
}
