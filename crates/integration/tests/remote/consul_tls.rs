//! Encrypted connections to a real Consul, and refused ones.

use crate::certificates::{Authority, Encrypted, Guard, is_reached_with_certificates};
use crate::consul::Consul as Program;
use crate::raw_session::PATIENCE;
use crate::rig::server::{Server, Store};
use std::path::Path;
use std::process::Command;
use tollgate::remote::RemoteError;
use tollgate_stores::{Consul, Tls};

/// For clients with a certificate of the authority.
fn command(program: &Program, guard: &Guard, port: u16, folder: &Path) -> Command {
    let mut command = program.command(port, folder);
    let [certificate, key, root] = guard.write(folder);
    for (setting, path) in [("cert_file", certificate), ("key_file", key), ("ca_file", root)] {
        command.arg("-hcl").arg(format!("{setting} = \"{}\"", path.display()));
    }
    command.args(["-hcl", "verify_incoming_https = true"]);
    command.args(["-hcl", &format!("ports {{ https = {} }}", guard.take_port())]);
    command
}

#[tokio::test]
async fn peers_with_certificates_reach_a_limiter_encrypted() {
    let authority = Authority::new();
    let guard = Guard::new(&authority, "127.0.0.1");
    let program = Encrypted {
        program: Program,
        guard: guard.clone(),
        command,
    };
    let _server = Server::start(program).await.expect("a server");
    let address = format!("https://127.0.0.1:{}", guard.port());
    let options = || Consul::options(&*address).timeout(PATIENCE);
    is_reached_with_certificates(&authority, |tls| options().tls(tls).connect().unwrap()).await;
}

#[tokio::test]
async fn impossible_certificates_are_refused_at_once() {
    let tls = |address: &str, tls| Consul::options(address).tls(tls).connect().map(drop).unwrap_err();
    let nothing = Tls::new().roots("nothing".as_bytes());
    let refused = tls("https://127.0.0.1:1", nothing);
    assert!(matches!(refused, RemoteError::Certificate { .. }), "{refused}");
    let known = Authority::new().trusting();
    let refused = tls("http://127.0.0.1:1", known);
    assert!(matches!(refused, RemoteError::Address { .. }), "{refused}");
}
