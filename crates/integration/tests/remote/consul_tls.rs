//! Encrypted connections to a real Consul, and what is refused.

use crate::certificates::{Authority, Encrypted, Guard, known_to_each_other};
use crate::consul::Consul as Program;
use crate::rig::server::{Server, Store};
use crate::speaker::PATIENCE;
use std::path::Path;
use std::process::Command;
use tollgate::remote::{Consul, RemoteError, Tls};

/// To those whom the authority knows.
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
    known_to_each_other(&authority, |tls| options().tls(tls).connect().unwrap()).await;
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
