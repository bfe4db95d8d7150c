//! Redis, for the rig.

use crate::minute::tried_tenants;
use crate::places::Place;
use crate::rig::server::{Server, Store};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate::remote::Key;

/// A server of the program that `ci/with-stores redis` names.
#[derive(Clone, Debug)]
pub(crate) struct Redis;

impl Store for Redis {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let program = std::env::var_os("TOLLGATE_REDIS_SERVER")
            .expect("TOLLGATE_REDIS_SERVER is a program; ci/with-stores redis finds or installs it");
        let mut command = Command::new(program);
        command.args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--daemonize",
            "no",
        ]);
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(folder);
        command
    }

    fn ready(&self, address: SocketAddr, pid: u32) -> bool {
        let serves = || -> io::Result<bool> {
            let info = bulk(address, "INFO server")?;
            Ok(info.lines().any(|line| line == format!("process_id:{pid}")))
        };
        serves().unwrap_or(false)
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        // The latest token of all limiters is of none.
        Ok(all_keys(address)?
            .into_iter()
            .filter(|name| !name.ends_with(":clock"))
            .collect())
    }

    fn forgets(&self) -> bool {
        true
    }

    fn forget_scripts(&self, address: SocketAddr) -> io::Result<()> {
        tell(address, "SCRIPT FLUSH SYNC")
    }
}

/// The names of all keys, also of those that are of no limiter.
pub(crate) fn all_keys(address: SocketAddr) -> io::Result<Vec<String>> {
    // One text, since a list would have to be parsed.
    let keys = bulk(
        address,
        r#"EVAL "return table.concat(redis.call('KEYS', '*'), '\\n')" 0"#,
    )?;
    Ok(keys.lines().map(str::to_owned).collect())
}

/// Sends a command that the server answers with OK.
pub(crate) fn say(server: &Server<Redis>, command: &str) -> io::Result<()> {
    tell(server.address(), command)
}

pub(crate) fn tell(address: SocketAddr, command: &str) -> io::Result<()> {
    let (_, answer) = ask(address, command)?;
    if answer == "+OK\r\n" {
        Ok(())
    } else {
        Err(io::Error::other(answer))
    }
}

/// Runs a script on the server.
pub(crate) fn eval(server: &Server<Redis>, script: &str) -> io::Result<()> {
    say(server, &format!("EVAL \"{script} return redis.status_reply('OK')\" 0"))
}

/// The time by the server's clock, in microseconds since 1970.
pub(crate) fn micros(server: &Server<Redis>) -> io::Result<u64> {
    let script = "local t = redis.call('TIME') return t[1] .. string.format('%06d', t[2])";
    let micros = bulk(server.address(), &format!("EVAL \"{script}\" 0"))?;
    micros.parse().map_err(io::Error::other)
}

/// Sends a command in the protocol's inline form; returns the first line of the answer, and the rest of the connection.
fn ask(address: SocketAddr, command: &str) -> io::Result<(BufReader<TcpStream>, String)> {
    let limit = Duration::from_secs(30);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    Ok((stream, line))
}

/// The same, for a text of known length.
pub(crate) fn bulk(address: SocketAddr, command: &str) -> io::Result<String> {
    let (mut stream, line) = ask(address, command)?;
    let length = line.strip_prefix('$').and_then(|length| length.trim_end().parse().ok());
    let mut text = vec![0; length.ok_or_else(|| io::Error::other(line.clone()))?];
    stream.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).replace('\r', ""))
}

/// The place of the store.
pub(crate) struct Here;
impl Place for Here {
    type Store = tollgate_stores::Redis;
    fn server() -> SocketAddr {
        crate::store::server()
    }
    fn at(address: SocketAddr) -> tollgate_stores::Redis {
        crate::store::at(address)
    }
    async fn keys(key: &Key) -> usize {
        let keys = Redis.keys(Self::server()).expect("a server that answers");
        let is_of = |name: &&String| name.contains(&format!("{{{key}}}")) || name.contains(&format!("{{{key}."));
        keys.iter().filter(is_of).count()
    }
}
crate::rates_shared::shared!(Here);
crate::leased::leased!(Here);
crate::fair::fair!(Here, true);
crate::minute::faults!(faults, Redis, Here::at, |report| tried_tenants(report));
