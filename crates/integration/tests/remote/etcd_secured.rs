//! etcd with restricted rights: encrypted connections, names and passwords, and the errors without a right.

use crate::etcd::{Etcd as Program, ask_as};
use crate::etcd_sync::base64;
use crate::raw_session::{self, LONG, PATIENCE, RawSession};
use crate::rig::server::{Server, Store};
use crate::store::key;
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use tollgate::remote::{Remote, RemoteError, Rule, StoreError};
use tollgate_stores::{ConnectOptions, Etcd};

/// A server that is ready also if it requires credentials.
#[derive(Clone)]
struct Guarded;

impl Store for Guarded {
    fn command(&self, port: u16, folder: &Path) -> Command {
        Program.command(port, folder)
    }

    fn ready(&self, address: SocketAddr, pid: u32) -> bool {
        Program.ready(address, pid)
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        let all = json!({ "key": "AA==", "range_end": "AA==", "keys_only": true });
        let found = said(address, &token(address, "root"), "/v3/kv/range", &all);
        let pairs = found["kvs"].as_array().cloned().unwrap_or_default();
        Ok(pairs.iter().map(|pair| pair["key"].to_string()).collect())
    }
}

/// The answer, which is no error.
fn said(address: SocketAddr, token: &str, path: &str, body: &Value) -> Value {
    let answer = ask_as(token, address, "POST", path, &body.to_string()).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"),
        "{path}: {answer}"
    );
    serde_json::from_str(body).unwrap()
}

fn token(address: SocketAddr, name: &str) -> String {
    let who = json!({ "name": name, "password": "secret" });
    let told = said(address, "", "/v3/auth/authenticate", &who);
    told["token"].as_str().expect("a token").to_owned()
}

/// Creates a user with this right, and no other.
fn user(address: SocketAddr, name: &str, right: &str, under: &str) {
    let end = format!("{}0", under.trim_end_matches('/'));
    let may = json!({ "permType": right, "key": base64(under), "range_end": base64(&end) });
    let say = |path, body| said(address, "", path, &body);
    say("/v3/auth/user/add", json!({ "name": name, "password": "secret" }));
    say("/v3/auth/role/add", json!({ "name": name }));
    say("/v3/auth/role/grant", json!({ "name": name, "perm": may }));
    say("/v3/auth/user/grant", json!({ "user": name, "role": name }));
}

/// A server that requires credentials.
async fn guarded() -> (Server<Guarded>, SocketAddr) {
    let server = Server::start(Guarded).await.expect("a server");
    let address = server.address();
    user(address, "gate", "READWRITE", "tollgate/");
    user(address, "reads", "READ", "tollgate/");
    user(address, "writes", "WRITE", "tollgate/");
    user(address, "elsewhere", "READWRITE", "other/");
    user(address, "root", "READWRITE", "root/");
    said(address, "", "/v3/auth/enable", &json!({}));
    (server, address)
}

fn options(address: SocketAddr) -> ConnectOptions<Etcd> {
    Etcd::options(format!("http://{address}")).timeout(PATIENCE)
}

/// The error of an acquire.
async fn refused(options: ConnectOptions<Etcd>) -> StoreError {
    raw_session::refused(options.connect().unwrap(), key()).await
}

#[tokio::test]
async fn a_user_needs_exactly_the_documented_rights() {
    let (server, address) = guarded().await;
    let gate = options(address).user("gate").password("secret").connect().unwrap();
    let limiter = || Remote::permits(key(), 2).ttl(LONG);
    let remote = limiter().spawn(gate.clone()).unwrap();
    for _ in 0..2 {
        drop(remote.acquire(2).await.unwrap());
    }
    assert!(!server.keys().unwrap().is_empty());
    remote.close().await;
    assert_eq!(server.keys().unwrap(), [""; 0]);

    for name in ["reads", "writes", "elsewhere"] {
        let error = refused(options(address).user(name).password("secret")).await;
        let why = error.to_string();
        assert!(matches!(error, StoreError::Refused { .. }), "{name}: {why}");
        assert!(
            why.contains("`readwrite` on all that begins with `tollgate/`"),
            "{name}: {why}"
        );
    }
    for (name, password) in [("gate", "wrong"), ("stranger", "secret")] {
        let error = refused(options(address).user(name).password(password)).await;
        assert!(matches!(error, StoreError::Refused { .. }), "{name}: {error}");
        assert!(!error.to_string().contains(password), "{error}");
    }
    let error = refused(options(address)).await;
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert_eq!(server.keys().unwrap(), [""; 0], "nothing was done");

    // The same rights by a token that was given for a password elsewhere.
    let token = token(address, "gate");
    let remote = limiter()
        .spawn(options(address).token(token).connect().unwrap())
        .unwrap();
    drop(remote.acquire(2).await.unwrap());
    remote.close().await;
}

/// A change that is refused again and again leaves no lease behind each time.
#[tokio::test]
async fn a_change_that_is_refused_takes_one_lease() {
    let (_server, address) = guarded().await;
    let reads = options(address).user("reads").password("secret").connect().unwrap();
    let (key, rule) = (key(), Rule::Permits { limit: 1 });
    let mut one = RawSession::new(&reads, &key, rule, LONG);
    for _ in 0..5 {
        one.say(|sync| sync.begin = true).await.expect_err("it may only read");
    }
    let leases = said(address, &token(address, "root"), "/v3/lease/leases", &json!({}));
    let leases = leases["leases"].as_array().map_or(0, Vec::len);
    assert_eq!(leases, 2, "the session's, and the limit's");
}

/// The server keeps tokens in memory only.
#[tokio::test]
async fn a_token_that_the_server_has_forgotten_is_asked_for_anew() {
    let (mut server, address) = guarded().await;
    let gate = options(address).user("gate").password("secret").connect().unwrap();
    let remote = Remote::permits(key(), 2).ttl(LONG).spawn(gate).unwrap();
    let held = remote.acquire(1).await.unwrap();
    server.kill().unwrap();
    server.restart().await.unwrap();
    drop(remote.acquire(1).await.unwrap());
    assert!(!held.is_lost());
    drop(held);
    remote.close().await;
    assert_eq!(server.keys().unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_policy_is_followed_with_read_access_to_its_key() {
    use tollgate_config::{PolicySpec, Source};
    let (_server, address) = guarded().await;
    let put = |limit| {
        let text = format!("[[leg]]\nname = \"calls\"\nkind = \"semaphore\"\nlimit = {limit}\n");
        let pair = json!({ "key": base64("tollgate/gate.toml"), "value": base64(&text) });
        said(address, &token(address, "gate"), "/v3/kv/put", &pair);
    };
    put(4);
    let reads = options(address).user("reads").password("secret").connect().unwrap();
    let (_, mut source) = reads.policy::<PolicySpec>("tollgate/gate.toml").await.unwrap();
    put(5);
    assert!(source.next().await.expect("a version").is_ok());
    let writes = options(address).user("writes").password("secret").connect().unwrap();
    let refused = writes
        .policy::<PolicySpec>("tollgate/gate.toml")
        .await
        .map(drop)
        .unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
}

#[tokio::test]
async fn credentials_are_sent_once_and_never_printed() {
    let options = || Etcd::options("http://127.0.0.1:1").user("gate").password("word");
    let refused = options().token("token").connect().map(drop).unwrap_err();
    assert!(matches!(refused, RemoteError::Address { .. }), "{refused}");
    let refused = Etcd::options("http://127.0.0.1:1").token("two\nlines").connect();
    assert!(matches!(refused, Err(RemoteError::Address { .. })));
    let printed = format!("{:?} {:?}", options(), options().connect().unwrap());
    assert!(!printed.contains("word"), "{printed}");
}

mod encrypted {
    use super::*;
    use crate::certificates::{Authority, Encrypted, Guard, is_reached_with_certificates};

    /// For clients with a certificate of the authority; at its unencrypted port it reports its health, and nothing else.
    fn command(program: &Program, guard: &Guard, port: u16, folder: &Path) -> Command {
        let mut command = program.command(port, folder);
        let encrypted = format!("https://127.0.0.1:{}", guard.take_port());
        // The last option counts.
        command.args([
            "--listen-client-urls",
            &encrypted,
            "--advertise-client-urls",
            &encrypted,
        ]);
        command.args(["--listen-metrics-urls", &format!("http://127.0.0.1:{port}")]);
        let [certificate, key, root] = guard.write(folder);
        for (option, path) in [
            ("--cert-file", certificate),
            ("--key-file", key),
            ("--trusted-ca-file", root),
        ] {
            command.arg(option).arg(path);
        }
        command.arg("--client-cert-auth");
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
        let options = || Etcd::options(&*address).timeout(PATIENCE);
        is_reached_with_certificates(&authority, |tls| options().tls(tls).connect().unwrap()).await;

        let clear = Etcd::options("http://127.0.0.1:1").tls(authority.trusting());
        let refused = clear.connect().map(drop).unwrap_err();
        assert!(matches!(refused, RemoteError::Address { .. }), "{refused}");
    }
}
