//! Encrypted connections to a real server, and refused ones.

use crate::certificates::{Authority, Encrypted, Guard, Identity};
use crate::raw_session::{LONG, RawSession};
use crate::redis::Redis as Program;
use crate::rig::server::{Server, Store};
use crate::store::key;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate::Quota;
use tollgate::remote::{Remote, RemoteError, Rule, StoreError};
use tollgate_stores::{Redis, Tls};

/// For clients with a certificate of the authority.
fn command(program: &Program, guard: &Guard, port: u16, folder: &Path) -> Command {
    let mut command = program.command(port, folder);
    command.args(["--tls-port", &guard.take_port().to_string()]);
    let [certificate, key, root] = guard.write(folder);
    for (option, path) in [
        ("--tls-cert-file", certificate),
        ("--tls-key-file", key),
        ("--tls-ca-cert-file", root),
    ] {
        command.arg(option).arg(path);
    }
    command
}

async fn start(authority: &Authority, name: &str) -> (Server<Encrypted<Program>>, String) {
    let guard = Guard::new(authority, name);
    let program = Encrypted {
        program: Program,
        guard: guard.clone(),
        command,
    };
    let server = Server::start(program).await.expect("a server");
    (server, format!("rediss://127.0.0.1:{}/", guard.port()))
}

/// A rate, so that nothing is frozen on a server that was just started.
const RULE: Rule = Rule::Rate {
    quota: Quota::per_second(10),
};

async fn refused(address: &str, tls: Tls) -> String {
    let store = Redis::options(address).tls(tls).timeout(Duration::from_secs(10));
    let (store, key) = (store.connect().unwrap(), key());
    let mut one = RawSession::new(&store, &key, RULE, LONG);
    match one.say(|_| {}).await {
        Err(StoreError::Unreachable { why }) => why.into(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_asks_for_certificates_serves_clients_with_one() {
    let authority = Authority::new();
    let (_server, address) = start(&authority, "127.0.0.1").await;
    let options = Redis::options(address.as_str()).tls(authority.known());
    let remote = Remote::permits(key(), 2).spawn(options.connect().unwrap()).unwrap();
    // Also messages over the connection: the first waits until the server has been up for long enough.
    let permit = remote
        .acquire(2)
        .await
        .unwrap_or_else(|refusal| panic!("{refusal}: {:?}", remote.stats()));
    assert!(permit.fence().is_some());
    drop(permit);
    remote.close().await;

    // Without one the client is refused.
    refused(&address, authority.trusting()).await;
    // So is one that another authority has signed.
    let stranger = Authority::new();
    let Identity { certificate, key } = stranger.sign("client.test");
    let stranger = authority.trusting().client(certificate.into_bytes(), key.into_bytes());
    refused(&address, stranger).await;
}

#[tokio::test]
async fn an_unauthenticated_server_receives_nothing() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (_server, address) = start(&authority, "127.0.0.1").await;
    let why = refused(&address, stranger.trusting()).await;
    assert!(why.contains("invalid peer certificate"), "{why}");
    let (_server, address) = start(&authority, "elsewhere.test").await;
    let why = refused(&address, authority.known()).await;
    assert!(why.contains("not valid for name"), "{why}");
}

#[tokio::test]
async fn unusable_certificates_are_found_before_anything_is_sent() {
    let authority = Authority::new();
    let (one, other) = (authority.sign("one.test"), authority.sign("other.test"));
    let bytes = |text: &str| text.as_bytes().to_vec();
    let cases = [
        ("root certificates", Tls::new().roots(*b"")),
        ("root certificates", Tls::new().roots(bytes(&one.key))),
        (
            "root certificates",
            Tls::new().roots(*b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ),
        ("client certificate", Tls::new().client(*b"", bytes(&one.key))),
        (
            "client key",
            Tls::new().client(bytes(&one.certificate), bytes(&one.certificate)),
        ),
        (
            "client certificate and key",
            Tls::new().client(bytes(&one.certificate), bytes(&other.key)),
        ),
    ];
    for (wrong, tls) in cases {
        let error = Redis::options("rediss://127.0.0.1").tls(tls).connect().unwrap_err();
        assert!(
            matches!(error, RemoteError::Certificate { what, .. } if what == wrong),
            "{wrong}: {error:?}"
        );
    }
    for address in ["redis://127.0.0.1", "unix:///nowhere", "rediss://127.0.0.1/#insecure"] {
        let error = Redis::options(address).tls(authority.known()).connect().unwrap_err();
        assert!(matches!(error, RemoteError::Address { .. }), "{error:?}");
    }
}

#[test]
fn nothing_that_is_printed_has_a_key() {
    let authority = Authority::new();
    let Identity { certificate, key } = authority.sign("client.test");
    let tls = Tls::new().client(certificate.clone().into_bytes(), key.clone().into_bytes());
    let options = Redis::options("rediss://user:word@127.0.0.1").tls(tls.clone());
    let printed = format!("{tls:?} {options:?}");
    assert!(!printed.contains("BEGIN") && !printed.contains("word"), "{printed}");
}
