//! Consul with access control lists: the rights that a token needs, and the errors without them.

use crate::consul::{Consul as Program, ask_as};
use crate::rig::server::{Server, Store};
use crate::store::key;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate::remote::{Remote, RemoteError, StoreError};
use tollgate_stores::Consul;

/// A server that allows nothing without a token.
#[derive(Clone)]
struct Guarded;

impl Store for Guarded {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let mut command = Program.command(port, folder);
        let tokens = format!("tokens {{ master = \"{MASTER}\" }}");
        command.arg("-hcl");
        command.arg(format!("acl {{ enabled = true default_policy = \"deny\" {tokens} }}"));
        command
    }

    fn ready(&self, address: SocketAddr, _: u32) -> bool {
        ask_as(MASTER, address, "PUT", "/v1/kv/ready", "").is_ok_and(|answer| answer == "true")
            && ask_as(MASTER, address, "DELETE", "/v1/kv/ready", "").is_ok_and(|answer| answer == "true")
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        match &*ask_as(MASTER, address, "GET", "/v1/kv/?keys=true", "")? {
            "" => Ok(Vec::new()),
            keys => Ok(serde_json::from_str(keys)?),
        }
    }
}

const MASTER: &str = "4f0b9c1e-0000-4000-8000-00000000aaaa";

/// A token with these rights.
fn token(address: SocketAddr, name: &str, rules: &str) -> String {
    let policy = serde_json::json!({ "Name": name, "Rules": rules });
    ask_as(MASTER, address, "PUT", "/v1/acl/policy", &policy.to_string()).unwrap();
    let token = serde_json::json!({ "Policies": [{ "Name": name }] });
    let made = ask_as(MASTER, address, "PUT", "/v1/acl/token", &token.to_string()).unwrap();
    let made: serde_json::Value = serde_json::from_str(&made).unwrap_or_else(|_| panic!("{made}"));
    made["SecretID"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_token_needs_exactly_the_documented_rights() {
    let server = Server::start(Guarded).await.expect("a server");
    let address = server.address();
    let keys = "key_prefix \"tollgate/\" { policy = \"write\" }";
    let sessions = "session_prefix \"\" { policy = \"write\" }";
    let enough = token(address, "enough", &format!("{keys}\n{sessions}"));
    let options = || Consul::options(format!("http://{address}")).timeout(Duration::from_secs(60));
    let consul = options().token(&*enough).connect().unwrap();
    let limiter = |limit| Remote::permits(key(), limit).ttl(Duration::from_secs(600));
    let document = limiter(2).spawn(consul.clone()).unwrap();
    let slots = limiter(2).spawn(consul.slots()).unwrap();
    for _ in 0..2 {
        drop(document.acquire(2).await.unwrap());
        drop(slots.acquire(2).await.unwrap());
    }
    assert!(!server.keys().unwrap().is_empty());
    document.close().await;
    slots.close().await;
    assert_eq!(server.keys().unwrap(), [""; 0]);

    let no_sessions = token(address, "no-sessions", keys);
    let no_keys = token(address, "no-keys", sessions);
    for token in [&*no_sessions, &*no_keys, ""] {
        let consul = options();
        let consul = if token.is_empty() { consul } else { consul.token(token) };
        let remote = limiter(1).unavailable_after(Duration::ZERO);
        let remote = remote.spawn(consul.connect().unwrap()).unwrap();
        assert!(
            tokio::time::timeout(Duration::from_secs(60), remote.acquire(1))
                .await
                .is_ok_and(|acquired| acquired.is_err())
        );
        let error = remote.stats().last_error.expect("it says why");
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        assert!(token.is_empty() || !error.to_string().contains(token), "{error}");
    }
    let refused = options().token("two\nlines").connect().map(drop).unwrap_err();
    assert!(matches!(refused, RemoteError::Address { .. }), "{refused}");
}
