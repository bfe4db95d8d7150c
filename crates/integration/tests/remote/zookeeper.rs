//! ZooKeeper, for the rig.

use crate::minute::recovers_soon;
use crate::places::Place;
use crate::rig::run::LIFE;
use crate::rig::server::Store;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate::remote::Key;
use zookeeper_client::{Client, Error};

/// Sessions end at whole ticks.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// A server of the classes that `ci/with-stores zookeeper` names. Its data outlives a kill.
#[derive(Clone, Debug)]
pub(crate) struct Zookeeper;

/// The value of a variable of `ci/with-stores zookeeper`.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; ci/with-stores zookeeper does that"))
}

impl Zookeeper {
    /// The same as [`command`](Store::command), with more settings.
    pub(crate) fn command_with(&self, port: u16, folder: &Path, more: &str) -> Command {
        let settings = folder.join("zoo.cfg");
        let data = folder.join("data");
        // A short tick: sessions expire at whole ticks.
        let text = format!(
            "tickTime=100\nminSessionTimeout=200\nmaxSessionTimeout=1000000\ndataDir={}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n{more}",
            data.display()
        );
        std::fs::write(&settings, text).expect("a folder of our own");
        program("org.apache.zookeeper.server.ZooKeeperServerMain", &settings)
    }
}

/// Runs this class with these settings.
pub(crate) fn program(class: &str, settings: &Path) -> Command {
    let mut command = Command::new(variable("TOLLGATE_JAVA"));
    command
        .args(["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .args(["-Dzookeeper.forceSync=no", "-Dznode.container.checkIntervalMs=100"])
        .args(["-cp", &variable("TOLLGATE_ZOOKEEPER_CLASSES"), class])
        .arg(settings);
    command
}

/// Its reported mode.
pub(crate) fn mode(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"srvr")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let mut lines = answer.lines();
    let mode = lines.find_map(|line| line.strip_prefix("Mode: "));
    mode.map(str::to_owned).ok_or_else(|| io::Error::other(answer))
}

impl Store for Zookeeper {
    fn command(&self, port: u16, folder: &Path) -> Command {
        self.command_with(port, folder, "")
    }

    fn ready(&self, address: SocketAddr, _pid: u32) -> bool {
        mode(address).is_ok_and(|mode| mode == "standalone")
    }

    /// A client that is heard and hears nothing tries to come back for 1.4 times its session, and is heard each time.
    fn late(&self) -> Duration {
        LIFE * 7 / 5 + TICK
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let names = std::thread::spawn(move || {
            let names = async { children(&raw(address).await, "/tollgate").await };
            runtime()?.block_on(names).map_err(io::Error::other)
        });
        names.join().expect("it does not panic")
    }
}

/// A client of the library's own.
pub(crate) async fn raw(address: SocketAddr) -> Client {
    let client = Client::connect(&address.to_string()).await;
    client.expect("a server")
}

/// The nodes there, in no order; none when there is no such node.
pub(crate) async fn children(client: &Client, path: &str) -> Result<Vec<String>, Error> {
    match client.list_children(path).await {
        Err(Error::NoNode) => Ok(Vec::new()),
        children => children,
    }
}

/// The place of the store.
pub(crate) struct Here;
impl Place for Here {
    type Store = tollgate_stores::Zookeeper;
    fn server() -> SocketAddr {
        crate::zookeeper_sync::address()
    }
    fn at(address: SocketAddr) -> tollgate_stores::Zookeeper {
        crate::zookeeper_sync::at(address)
    }
    async fn keys(key: &Key) -> usize {
        let client = raw(Self::server()).await;
        let under = format!("{key}.");
        let names = children(&client, "/tollgate").await.unwrap();
        names.iter().filter(|name| name.starts_with(&under)).count()
    }
}
crate::leased::leased!(Here);
crate::leased::unasked!(Here);
crate::change::lowered!(Here);
crate::fair::fair!(Here, false);
crate::minute::faults!(faults, Zookeeper, Here::at, |report| recovers_soon(report, TICK));
