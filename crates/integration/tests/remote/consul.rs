//! Consul, for the rig: a server that keeps its data over a restart, as Consul does.

use crate::consul_store::Kind as _;
use crate::places::Place;
use crate::rig::server::Store;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate::remote::Key;

/// A server of the program that `ci/with-stores consul` names.
#[derive(Clone, Debug)]
pub(crate) struct Consul;

impl Consul {
    /// One of `servers` at these ports: for clients, for the others' servers, and for their gossip.
    pub(crate) fn agent(&self, servers: u8, port: u16, [server, gossip]: [u16; 2], folder: &Path) -> Command {
        let program = std::env::var_os("TOLLGATE_CONSUL_SERVER")
            .expect("TOLLGATE_CONSUL_SERVER is a program; ci/with-stores consul finds or fetches it");
        // The process that becomes the server reports its id.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$0" "$@" -node-meta "pid:$$""#]);
        command.arg(program).args(["agent", "-server"]);
        command.arg(format!("-bootstrap-expect={servers}"));
        command.args(["-bind", "127.0.0.1", "-client", "127.0.0.1", "-disable-host-node-id"]);
        command.args([
            "-dns-port",
            "-1",
            "-grpc-port",
            "-1",
            "-serf-wan-port",
            "-1",
            "-log-level",
            "warn",
        ]);
        command.arg("-data-dir").arg(folder.join("data"));
        for (name, port) in [
            ("-http-port", port),
            ("-server-port", server),
            ("-serf-lan-port", gossip),
        ] {
            command.arg(name).arg(port.to_string());
        }
        for setting in [
            "session_ttl_min = \"1s\"",
            "limits { http_max_conns_per_client = 2000 }",
            "performance { raft_multiplier = 1 }",
        ] {
            command.arg("-hcl").arg(setting);
        }
        command
    }
}

impl Store for Consul {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let ports = ports(folder).expect("ports of its own");
        self.agent(1, port, ports, folder)
    }

    fn ready(&self, address: SocketAddr, pid: u32) -> bool {
        let serves = || -> io::Result<bool> {
            let about: serde_json::Value = serde_json::from_str(&ask(address, "GET", "/v1/agent/self", "")?)?;
            // A server that takes a write has a leader.
            Ok(about["Meta"]["pid"].as_str() == Some(&*pid.to_string())
                && ask(address, "PUT", "/v1/kv/ready", &pid.to_string())? == "true"
                && ask(address, "DELETE", "/v1/kv/ready", "")? == "true")
        };
        serves().unwrap_or(false)
    }

    fn lives(&self) -> u32 {
        2
    }

    fn trips(&self) -> u32 {
        2
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        match &*ask(address, "GET", "/v1/kv/?keys=true", "")? {
            "" => Ok(Vec::new()),
            keys => Ok(serde_json::from_str(keys)?),
        }
    }
}

/// The same two in each life of a server: it is known by them.
fn ports(folder: &Path) -> io::Result<[u16; 2]> {
    let file = folder.join("ports");
    if let Ok(known) = std::fs::read_to_string(&file) {
        return Ok(serde_json::from_str(&known)?);
    }
    let free = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let [one, other] = free;
    let ports = [one?.local_addr()?.port(), other?.local_addr()?.port()];
    std::fs::write(file, serde_json::to_string(&ports)?)?;
    Ok(ports)
}

/// The server's answer, without the line's end.
pub(crate) fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<String> {
    ask_as("", address, method, path, body)
}

/// The same, with a token.
pub(crate) fn ask_as(token: &str, address: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<String> {
    let limit = Duration::from_secs(30);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let length = body.len();
    // In HTTP 1.0, which ends with the connection.
    let token = format!("X-Consul-Token: {token}\r\nContent-Length: {length}");
    write!(stream, "{method} {path} HTTP/1.0\r\n{token}\r\n\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok(body.trim_end().to_owned())
}

/// The place of the store.
pub(crate) struct Here;
impl Place for Here {
    type Store = tollgate_stores::Consul;
    fn server() -> SocketAddr {
        crate::consul_store::server()
    }
    fn at(address: SocketAddr) -> tollgate_stores::Consul {
        crate::consul_store::Kind::at(address)
    }
    async fn keys(key: &Key) -> usize {
        crate::consul_store::keys(key).len()
    }
}
crate::leased::leased!(Here);
crate::leased::unasked!(Here);
crate::change::lowered!(Here);
crate::fair::fair!(Here, false);
crate::minute::faults!(document_faults, Consul, Here::at, |_| {});
crate::minute::faults!(slots_faults, Consul, tollgate_stores::ConsulSlots::at, |_| {});
