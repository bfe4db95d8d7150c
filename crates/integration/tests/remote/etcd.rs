//! etcd, for the rig.

use crate::minute::recovers_soon;
use crate::places::Place;
use crate::rig::run::LIFE;
use crate::rig::server::Store;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate::remote::Key;

/// Leases are checked twice a second.
pub(crate) const LOOKS: Duration = Duration::from_millis(500);

/// A server of the program that `ci/with-stores etcd` names. Its data outlives a kill.
#[derive(Clone, Debug)]
pub(crate) struct Etcd;

impl Store for Etcd {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let program = std::env::var_os("TOLLGATE_ETCD_SERVER")
            .expect("TOLLGATE_ETCD_SERVER is a program; ci/with-stores etcd finds or fetches it");
        // The port for other servers of a cluster, of which there are none. A restarted server may have another.
        let peer = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
        let peer = format!("http://{}", peer.expect("a free port"));
        let address = format!("http://127.0.0.1:{port}");
        let mut command = Command::new(program);
        command
            .args(["--name", "one"])
            .arg("--data-dir")
            .arg(folder.join("data"));
        for (name, value) in [
            ("--listen-client-urls", &address),
            ("--advertise-client-urls", &address),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
        ] {
            command.args([name, value]);
        }
        command.args(["--initial-cluster", &format!("one={peer}")]);
        command
    }

    fn ready(&self, address: SocketAddr, _pid: u32) -> bool {
        ask(address, "GET", "/health", "").is_ok_and(|answer| answer.contains(r#""health":"true""#))
    }

    /// A client that is heard and hears nothing renews its lease until it gives up, and then ends it: after the current sync
    /// has timed out, and the pause after that.
    fn late(&self) -> Duration {
        LOOKS + LIFE / 4 + LIFE / 10
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        // All from the first key to the last.
        let answer = ask(
            address,
            "POST",
            "/v3/kv/range",
            r#"{"key":"AA==","range_end":"AA==","keys_only":true}"#,
        )?;
        let parts = answer.split(r#""key":""#).skip(1);
        Ok(parts
            .filter_map(|part| part.split('"').next())
            .map(str::to_owned)
            .collect())
    }
}

/// The answer, with its head.
pub(crate) fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<String> {
    ask_as("", address, method, path, body)
}

/// The same, with a token.
pub(crate) fn ask_as(token: &str, address: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<String> {
    let limit = Duration::from_secs(30);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let length = body.len();
    let token = match token {
        "" => String::new(),
        token => format!("Authorization: {token}\r\n"),
    };
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\n{token}Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The place of the store.
pub(crate) struct Here;
impl Place for Here {
    type Store = tollgate_stores::Etcd;
    fn server() -> SocketAddr {
        crate::etcd_sync::address()
    }
    fn at(address: SocketAddr) -> tollgate_stores::Etcd {
        crate::etcd_sync::at(address)
    }
    async fn keys(key: &Key) -> usize {
        crate::etcd_sync::count(key).await
    }
}
crate::leased::leased!(Here);
crate::leased::unasked!(Here);
crate::change::lowered!(Here);
crate::fair::fair!(Here, false);
crate::minute::faults!(faults, Etcd, Here::at, |report| recovers_soon(report, LOOKS));
