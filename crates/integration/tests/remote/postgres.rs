//! PostgreSQL, for the rig, and the store that its tests share.

use crate::minute::tried_tenants;
use crate::places::Place;
use crate::rig::server::Store;
use crate::store::key;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio_postgres::{Client, NoTls};
use tollgate::remote::Key;
use tollgate_stores::{ConnectOptions, Postgres};

/// Makes the data folder, unless it is there, and becomes the server, which root cannot be. After a kill it first waits until the
/// former server's processes have gone.
const START: &str = r#"
set -e
cd "$1"
as=
if [ "$(id -u)" = 0 ]; then
    user=$(id -un postgres 2> /dev/null || id -un 65534)
    chown "$user" .
    as="setpriv --reuid $user --regid $(id -g "$user") --clear-groups"
fi
if [ -d data ]; then
    until $as "$0/postgres" --single -D data postgres < /dev/null > /dev/null 2>&1; do sleep 0.05; done
else
    $as "$0/initdb" --pgdata data --username tollgate --auth trust --no-sync > /dev/null
fi
chown -R --reference . .
port=$2
shift 2
exec $as "$0/postgres" -D data -c listen_addresses=127.0.0.1 -c port="$port" -c unix_socket_directories= -c fsync=off "$@"
"#;

/// A server of the programs that `ci/with-stores postgres` names. Its data outlives a kill.
#[derive(Clone, Debug)]
pub(crate) struct Program;

impl Store for Program {
    fn command(&self, port: u16, folder: &Path) -> Command {
        let programs = std::env::var_os("TOLLGATE_POSTGRES_PROGRAMS")
            .expect("TOLLGATE_POSTGRES_PROGRAMS is a folder; ci/with-stores postgres finds or installs it");
        let mut command = Command::new("sh");
        command
            .args(["-c", START])
            .arg(programs)
            .arg(folder)
            .arg(port.to_string());
        command
    }

    fn ready(&self, address: SocketAddr, _pid: u32) -> bool {
        ask(address, "SELECT ''").is_ok()
    }

    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>> {
        ask(
            address,
            "SELECT kind || ' ' || key FROM tollgate.state_v1 WHERE kind <> 'server' UNION ALL SELECT key FROM tollgate.keys_v1",
        )
    }

    /// The instant at which a row is deleted is rounded up to a multiple of half of that, and rows are deleted a pause apart.
    fn deletes_within(&self, remembered: Duration) -> Duration {
        remembered + remembered / 2 + Duration::from_secs(2)
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    fn forget_scripts(&self, address: SocketAddr) -> io::Result<()> {
        let drop = "DO $$ DECLARE f regprocedure; BEGIN
            FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'tollgate'::regnamespace LOOP
                EXECUTE 'DROP FUNCTION ' || f;
            END LOOP;
        END $$";
        ask(address, drop).map(std::mem::drop)
    }
}

/// The first column of the answer. Soon, also when there is no answer.
fn ask(address: SocketAddr, statement: &'static str) -> io::Result<Vec<String>> {
    let answer = async move {
        let mut config: tokio_postgres::Config = at_address(address).parse().expect("an address");
        config.connect_timeout(Duration::from_secs(1));
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        let rows = client.query_typed(statement, &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    };
    // The caller may be a task of another runtime.
    let asked = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer: Result<_, tokio_postgres::Error> = runtime.block_on(answer);
        answer.map_err(io::Error::other)
    });
    asked.join().expect("it answers")
}

fn at_address(address: SocketAddr) -> String {
    format!("postgres://tollgate@{address}/postgres")
}

/// A client of the server there.
pub(crate) fn at(address: SocketAddr) -> Postgres {
    let options = Postgres::options(at_address(address)).timeout(Duration::from_secs(10));
    options.connect().expect("settings that can be")
}

/// The address of the server that `ci/with-stores postgres` started.
pub(crate) fn url() -> String {
    std::env::var("TOLLGATE_POSTGRES")
        .expect("TOLLGATE_POSTGRES has the address of a server; ci/with-stores postgres starts one")
}

/// Its address.
pub(crate) fn server() -> SocketAddr {
    let url = url();
    let (_, address) = url.split_once('@').expect("a user");
    let address = address.split('/').next().expect("an address");
    address.parse().expect("an address")
}

/// The options of a client of that server, in this schema. No test depends on how long it takes to answer.
pub(crate) fn options(schema: &str) -> ConnectOptions<Postgres> {
    Postgres::options(url()).timeout(Duration::from_secs(60)).prefix(schema)
}

/// A client of that server.
pub(crate) fn store() -> Postgres {
    options("tollgate").connect().expect("settings that can be")
}

/// The name of a schema that no other test uses.
pub(crate) fn schema() -> String {
    key().as_str().replace('-', "_")
}

/// A connection of the test's own.
pub(crate) async fn raw(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
    tokio::spawn(connection);
    client
}

/// The number of rows with this name, of its leased capacity, and of those of keys of a limiter of many keys.
pub(crate) async fn keys(key: &Key) -> usize {
    let client = raw(&url()).await;
    let rows = "SELECT count(*) FROM (SELECT key FROM tollgate.state_v1 UNION ALL SELECT key FROM tollgate.keys_v1) t
        WHERE key = $1 OR starts_with(key, $1 || ':') OR starts_with(key, $1 || '.')";
    let rows: i64 = client
        .query_one(rows, &[&key.as_str()])
        .await
        .expect("it is installed")
        .get(0);
    rows as usize
}

/// The place of the store.
pub(crate) struct Here;
impl Place for Here {
    type Store = Postgres;
    fn server() -> SocketAddr {
        server()
    }
    fn at(address: SocketAddr) -> Postgres {
        at(address)
    }
    async fn keys(key: &Key) -> usize {
        keys(key).await
    }
}
crate::rates_shared::shared!(Here);
crate::leased::leased!(Here);
crate::change::lowered!(Here);
crate::fair::fair!(Here, true);
crate::minute::faults!(faults, Program, at, |report| tried_tenants(report));
