//! Encrypted connections to a real Consul, and what is refused.

use crate::certificates::{Authority, Guard};
use crate::consul::Consul as Program;
use crate::rig::server::{Server, Store};
use crate::speaker::{LONG, serves_who_waits};
use crate::store::key;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate::remote::{Consul, Remote, RemoteError, StoreError, Tls};

/// A server that speaks in the clear at its port, and encrypted at another, to those whom the authority knows.
#[derive(Clone)]
struct Encrypted(Guard);

impl Store for Encrypted {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let mut command = Program.command(port, folder);
        let [certificate, key, root] = self.0.write(folder);
        for (setting, path) in [("cert_file", certificate), ("key_file", key), ("ca_file", root)] {
            command.arg("-hcl").arg(format!("{setting} = \"{}\"", path.display()));
        }
        command.args(["-hcl", "verify_incoming_https = true"]);
        command.args(["-hcl", &format!("ports {{ https = {} }}", self.0.take_port())]);
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
    let guard = Guard::new(&authority, "127.0.0.1");
    let _server = Server::start(Encrypted(guard.clone())).await.expect("a server");
    let address = format!("https://127.0.0.1:{}", guard.port());
    let options = || Consul::options(&*address).timeout(Duration::from_secs(60));
    serves_who_waits(options().tls(authority.known()).connect().unwrap()).await;

    // Who shows nothing is not let in, and a server that another authority has signed is not believed.
    for tls in [authority.believed(), Authority::new().believed()] {
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
    let known = Authority::new().believed();
    let refused = tls("http://127.0.0.1:1", known);
    assert!(matches!(refused, RemoteError::Address { .. }), "{refused}");
}
