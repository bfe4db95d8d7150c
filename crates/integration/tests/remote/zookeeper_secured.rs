//! ZooKeeper with restricted rights: encrypted connections, access control lists, and the errors without a right.

use crate::raw_session::{self, LONG};
use crate::rig::server::Server;
use crate::store::key;
use crate::zookeeper::{Zookeeper as Program, children};
use std::net::SocketAddr;
use std::time::Duration;
use tollgate::remote::{Key, Remote, RemoteError, StoreError};
use tollgate_stores::{ConnectOptions, Zookeeper};
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

/// In the form of access control lists, with the password `secret`.
const ADMIN: &str = "admin:fvr2cB/fjGeAiX8g1aGhUm3ZICk=";
const GATE: &str = "gate:l95T0T/2EvGR8SnqoqMf9oyZutE=";

/// A user with a name at the server, through the library alone.
async fn known(address: SocketAddr, name: &str) -> Client {
    let known = Client::connector().with_auth("digest", format!("{name}:secret").as_bytes());
    known.connect(&address.to_string()).await.expect("a server")
}

/// A server where the administrator has all rights under `/tollgate`, and the gate only these.
async fn guarded(gate: Permission) -> (Server<Program>, Client) {
    let server = Server::start(Program).await.expect("a server");
    let admin = known(server.address(), "admin").await;
    let acls = [
        Acl::new(Permission::ALL, AuthId::new("digest", ADMIN)),
        Acl::new(gate, AuthId::new("digest", GATE)),
    ];
    let mode = CreateMode::Persistent.with_acls(Acls::new(&acls));
    admin.create("/tollgate", b"", &mode).await.unwrap();
    (server, admin)
}

fn options(server: &Server<Program>, name: &str) -> ConnectOptions<Zookeeper> {
    Zookeeper::options(server.address().to_string())
        .user(name)
        .password("secret")
}

/// The error of an acquire.
async fn refused(options: ConnectOptions<Zookeeper>, key: Key) -> StoreError {
    raw_session::refused(options.connect().unwrap(), key).await
}

#[tokio::test]
async fn a_user_needs_exactly_the_documented_rights() {
    let (server, admin) = guarded(Permission::CREATE | Permission::DELETE).await;
    let name = key();
    let remote = Remote::permits(name.clone(), 2).ttl(LONG);
    let remote = remote.spawn(options(&server, "gate").connect().unwrap()).unwrap();
    let held = remote.acquire(2).await.unwrap();
    // Others may not read its nodes, nor delete any, nor add one.
    let at = format!("/tollgate/{name}");
    assert!(admin.get_data(&at).await.is_err() && admin.list_children(&at).await.is_err());
    let error = refused(options(&server, "admin"), name.clone()).await;
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(!held.is_lost());
    drop(held);
    drop(remote.acquire(1).await.unwrap());
    remote.close().await;
    assert_eq!(children(&admin, "/tollgate").await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_before_anything_is_done() {
    for (right, missing) in [
        (Permission::CREATE, "to delete nodes under `/tollgate`"),
        (Permission::DELETE, "to make nodes under `/tollgate`"),
        (Permission::READ, "to make nodes under `/tollgate`"),
    ] {
        let (server, admin) = guarded(right).await;
        let before = admin.check_stat("/tollgate").await.unwrap().unwrap();
        let error = refused(options(&server, "gate"), key()).await;
        let why = error.to_string();
        assert!(
            matches!(error, StoreError::Refused { .. }) && why.contains(missing),
            "{why}"
        );
        // ZooKeeper knows users by their passwords.
        let wrong = Zookeeper::options(server.address().to_string())
            .user("admin")
            .password("wrong");
        let error = refused(wrong, key()).await;
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
        let after = admin.check_stat("/tollgate").await.unwrap().unwrap();
        assert_eq!(after.cversion, before.cversion, "no node has come, or gone");
    }
    // One whose prefix cannot be created, either.
    let (server, admin) = guarded(Permission::ALL).await;
    let admin_only = [Acl::new(Permission::ALL, AuthId::new("digest", ADMIN))];
    admin.set_acl("/", &admin_only, None).await.unwrap();
    let elsewhere = options(&server, "gate").prefix("/elsewhere");
    let why = refused(elsewhere, key()).await.to_string();
    assert!(
        why.contains("to make `/elsewhere`") || why.contains("to make nodes under `/elsewhere`"),
        "{why}"
    );
    // And this may be the only right that we have.
    let remote = Remote::permits(key(), 1).ttl(LONG).unavailable_after(Duration::ZERO);
    let remote = remote.spawn(options(&server, "gate").connect().unwrap()).unwrap();
    drop(remote.acquire(1).await.unwrap());
    remote.close().await;
}

#[tokio::test]
async fn impossible_servers_are_refused_at_once_and_nothing_is_printed() {
    for servers in ["", "zoo,", "http://zoo", "tcp+tls://zoo"] {
        let refused = Zookeeper::options(servers).connect().map(drop).unwrap_err();
        assert!(matches!(refused, RemoteError::Address { .. }), "{servers}: {refused}");
    }
    let options = Zookeeper::options("zoo").user("gate").password("word");
    let printed = format!("{options:?} {:?}", options.clone().connect().unwrap());
    assert!(!printed.contains("word"), "{printed}");
}

mod encrypted {
    use super::*;
    use crate::certificates::{Authority, Encrypted, Guard, Identity, is_reached_with_certificates};
    use std::path::Path;
    use std::process::Command;
    use tollgate_stores::Tls;

    /// For clients with a certificate of the authority.
    fn command(program: &Program, guard: &Guard, port: u16, folder: &Path) -> Command {
        let [_, _, root] = guard.write(folder);
        // Both in one file.
        let Identity { certificate, key } = &*guard.identity;
        let keys = folder.join("keys.pem");
        std::fs::write(&keys, format!("{key}\n{certificate}")).expect("a file");
        let settings = format!(
            "secureClientPort={}\nsecureClientPortAddress=127.0.0.1\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.location={}\nssl.keyStore.type=PEM\nssl.trustStore.location={}\nssl.trustStore.type=PEM\n\
             ssl.clientAuth=need\nssl.hostnameVerification=false\n",
            guard.take_port(),
            keys.display(),
            root.display()
        );
        program.command_with(port, folder, &settings)
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
        let server = Server::start(program).await.expect("a server");
        let address = format!("127.0.0.1:{}", guard.port());
        let options = || Zookeeper::options(&*address);
        is_reached_with_certificates(&authority, |tls| options().tls(tls).connect().unwrap()).await;
        assert_eq!(server.keys().unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn certificates_require_an_encrypted_connection() {
        for servers in ["tcp://zoo", "zoo1,tcp://zoo2", "zoo..keeper:2281"] {
            let refused = Zookeeper::options(servers)
                .tls(Authority::new().trusting())
                .connect()
                .map(drop)
                .unwrap_err();
            assert!(matches!(refused, RemoteError::Address { .. }), "{servers}: {refused}");
        }
        let refused = Zookeeper::options("zoo")
            .tls(Tls::new())
            .connect()
            .map(drop)
            .unwrap_err();
        assert!(matches!(refused, RemoteError::Address { .. }), "{refused}");
        let refused = Zookeeper::options("zoo")
            .tls(Tls::new().roots(*b""))
            .connect()
            .map(drop)
            .unwrap_err();
        assert!(matches!(refused, RemoteError::Certificate { .. }), "{refused}");
    }
}
